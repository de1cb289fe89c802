"""The log members of a cluster: looking at them, changing them, and restoring a lost root from them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import ConfigurationError
from epochlake.metastore.log.generations import Generation
from epochlake.metastore.log.log_place import LogWithMembers
from epochlake.metastore.log.moving_members import MemberMover
from epochlake.metastore.metastore import log_below
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest


class LogMemberRow(msgspec.Struct, frozen=True):
    """A log member: the newest generation that it has promised, and the newest of which it has a whole copy, up to
    `epoch`. `trouble`: why it does not answer, else empty.
    """

    member: str
    promised: int
    adopted: int
    epoch: int
    trouble: str


class LogMembers(msgspec.Struct, frozen=True):
    """Who keeps copies of the log: `generation` is 0 before the first members were named. `unfinished`: the number of a
    change that was begun and not ended, else null.
    """

    generation: int
    unfinished: int | None
    members: tuple[LogMemberRow, ...]


class RootRestored(msgspec.Struct, frozen=True):
    """A root that was restored up to `epoch` from the copy of `source`, and the generation of its members now."""

    generation: int
    epoch: int
    source: str


def describe(configuration: Configuration, storage: Storage) -> LogMembers:
    """The log members as they answer. Raises ConfigurationError where commits are acknowledged by the root alone."""
    mover = _mover(_place(configuration, storage))
    generation, states = mover.describe()
    unfinished = mover.unfinished()
    return LogMembers(
        generation.number if generation is not None else 0,
        unfinished.number if unfinished is not None else None,
        tuple(LogMemberRow(*state) for state in states),
    )


def reconfigure(configuration: Configuration, storage: Storage, cluster_id: str, members: Sequence[str]) -> Generation:
    """Make these directories the log members. Raises as `MemberMover.reconfigure`."""
    place = _place(configuration, storage)
    return _mover(place).reconfigure(cluster_id, members, place.below.open())


def resume(configuration: Configuration, storage: Storage) -> Generation:
    """End a change of the log members that was begun. Raises InvalidRequest where there is none."""
    place = _place(configuration, storage)
    mover = _mover(place)
    unfinished = mover.unfinished()
    if unfinished is None:
        raise InvalidRequest("no change of the log members is unfinished")
    return mover.carry_out(unfinished, place.below.open())


def recover(configuration: Configuration, storage: Storage, members: Sequence[str]) -> RootRestored:
    """Restore the log at the root of the configuration. Raises as `MemberMover.recover`."""
    place = _place(configuration, storage)
    storage.create_directory(configuration.root, parents=True)
    place.create()
    recovered = _mover(place).recover(members, place.below.open())
    return RootRestored(recovered.generation.number, recovered.epoch, recovered.source)


def _mover(place: LogWithMembers) -> MemberMover:
    return MemberMover(place.storage, place.root, place.register, place.logs)


def _place(configuration: Configuration, storage: Storage) -> LogWithMembers:
    place = log_below(configuration, storage)
    if not isinstance(place, LogWithMembers):
        raise ConfigurationError(
            "[log] acknowledge is 'root': the cluster has no log members",
            hint="Set [log] acknowledge = 'majority', for every process of the cluster",
        )
    return place
