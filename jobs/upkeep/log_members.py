"""The log members of a cluster: looking at them, changing them, and restoring a lost root from them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.reachability import Probed, probe
from epochlake.metastore.configuration import EMBEDDED, Configuration
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.head import read_head
from epochlake.metastore.coordination.whereabouts import whereabouts
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable, LogWentBack
from epochlake.metastore.log import generations
from epochlake.metastore.log.entry import Entry, Position
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.generations import Generation
from epochlake.metastore.log.log_member import DeltaMemberLogs
from epochlake.metastore.log.log_place import LogWithMembers
from epochlake.metastore.log.moving_members import MemberMover
from epochlake.metastore.metadata.model import Node, NodeState, VolumeId
from epochlake.metastore.metastore import log_below
from epochlake.metastore.root import Root
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.log_members import Candidate, choose_members, member_count

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)

DIRECTORY = "epochlake-log"
"""Below a volume: the copy of the log of its node."""

IN_MAINTENANCE = "it is in maintenance"


class LogMemberRow(msgspec.Struct, frozen=True):
    """A log member: the newest generation that it has promised, and the newest of which it has a whole copy, up to
    `epoch`. `trouble`: why it does not answer, else empty. `doubt`: why it may have lost what it held, so that its word
    does not count when the members change or a root is restored, else empty.
    """

    member: str
    promised: int
    adopted: int
    epoch: int
    trouble: str
    doubt: str = ""


class UnfinishedChange(msgspec.Struct, frozen=True):
    """A change of the log members that was begun and not ended. `members`: those that it leads to, as they answer: each
    of them that has promised `generation` takes nothing of the one before, so that commits may wait for the end.
    """

    generation: int
    members: tuple[LogMemberRow, ...]


class LogMembers(msgspec.Struct, frozen=True):
    """Who keeps copies of the log: `generation` is 0 before the first members were named. `unfinished`: the number of a
    change that was begun and not ended, else null; `change`: the same with its members.
    """

    generation: int
    unfinished: int | None
    members: tuple[LogMemberRow, ...]
    change: UnfinishedChange | None = None


class MembersProposed(msgspec.Struct, frozen=True):
    """The members that a cluster is to have: chosen for its normal `nodes`, or named (null). `joining`: what is new,
    `leaving`: what goes. `unavailable`: nodes that were not asked to keep a copy, each with why.
    """

    nodes: int | None
    members: tuple[str, ...]
    joining: tuple[str, ...]
    leaving: tuple[str, ...]
    unavailable: dict[str, str]


class RootRestored(msgspec.Struct, frozen=True):
    """A root that was restored up to `epoch` from the copy of `source`, and the generation of its members now.
    `unasked`: why ZooKeeper was not asked whether it knows of more, else empty.
    """

    generation: int
    epoch: int
    source: str
    unasked: str = ""


def describe(configuration: Configuration, storage: Storage) -> LogMembers:
    """The log members as they answer. Raises ConfigurationError where commits are acknowledged by the root alone."""
    mover = _mover(_place(configuration, storage))
    generation, states = mover.describe()
    unfinished = mover.unfinished()
    change = None
    if unfinished is not None:
        rows = tuple(LogMemberRow(*mover.state_of(uri, unfinished)) for uri in unfinished.members)
        change = UnfinishedChange(unfinished.number, rows)
    return LogMembers(
        generation.number if generation is not None else 0,
        unfinished.number if unfinished is not None else None,
        tuple(LogMemberRow(*state) for state in states),
        change,
    )


def unfinished(configuration: Configuration, storage: Storage) -> int | None:
    """The number of the change that was begun and not ended, if there is one; no log is read for it. Raises as
    `describe`.
    """
    found = _mover(_place(configuration, storage)).unfinished()
    return found.number if found is not None else None


def propose(cluster: Cluster) -> MembersProposed:
    """As many members as the size of the cluster asks for, each on a volume of another normal node that answers, spread
    over datacenters and racks, with few changes.

    Raises ConfigurationError where commits are acknowledged by the root alone; InvalidRequest when too few nodes can be
    members.
    """
    place = _place(cluster.configuration, cluster.storage)
    now = _members_of(generations.newest(place.storage, place.register))
    metadata = cluster.catch_up()
    nodes = metadata.directory.nodes.values()
    normal = [node for node in nodes if node.state is NodeState.NORMAL and not node.lost]
    probed = probe(cluster.storage, metadata, [volume for node in normal for volume in node.volumes])
    candidates: list[Candidate] = []
    unavailable: dict[str, str] = {}
    for node in normal:
        found = _candidate(node, probed, now)
        if isinstance(found, Candidate):
            candidates.append(found)
        else:
            unavailable[node.name] = found
    count = member_count(len(normal))
    if len(candidates) < count or not count:
        raise _too_few(len(normal), count, unavailable)
    chosen = generations.members_of(one.place for one in choose_members(candidates, count))
    return _proposed(now, chosen, len(normal), dict(sorted(unavailable.items())))


def named(configuration: Configuration, storage: Storage, members: Sequence[str]) -> MembersProposed:
    """What changes when these directories become the members. Nothing is read of the metadata, which may be out of
    reach while a change is unfinished. Raises as `propose`, and InvalidRequest for what cannot be a member.
    """
    place = _place(configuration, storage)
    return _proposed(
        _members_of(generations.newest(place.storage, place.register)), generations.members_of(members), None, {}
    )


def _members_of(generation: Generation | None) -> tuple[str, ...]:
    return generation.members if generation is not None else ()


def _proposed(
    now: Sequence[str], chosen: tuple[str, ...], nodes: int | None, unavailable: dict[str, str]
) -> MembersProposed:
    return MembersProposed(
        nodes=nodes,
        members=chosen,
        joining=tuple(sorted(set(chosen) - set(now))),
        leaving=tuple(sorted(set(now) - set(chosen))),
        unavailable=unavailable,
    )


def _candidate(node: Node, probed: Mapping[VolumeId, Probed], now: Sequence[str]) -> Candidate | str:
    """Where a node would keep its copy, or why it cannot."""
    reason = "it has no volume"
    found: list[Candidate] = []
    for volume in node.volumes:
        local = places.local_path(volume.uri)
        if local is None:
            reason = f"{volume.name} is on no file system"
            continue
        answer = probed[volume.volume_id]
        if answer.obstacle is not None:
            reason = answer.obstacle
            continue
        place = places.join(local, DIRECTORY)
        found.append(Candidate(node.name, node.datacenter, node.rack, place, place in now))
    best = min(found, key=lambda one: not one.is_member, default=None)
    if best is None:
        return reason
    if node.maintenance and not best.is_member:
        return IN_MAINTENANCE
    return best


def _too_few(nodes: int, count: int, unavailable: Mapping[str, str]) -> InvalidRequest:
    if not count:
        return InvalidRequest(
            "no node is normal yet that could keep a copy of the log",
            hint="Name directories of the first members, and choose them by --auto when nodes have joined",
        )
    said = "; ".join(f"{name}: {reason.rstrip('. ')}" for name, reason in sorted(unavailable.items()))
    return InvalidRequest(
        f"a cluster of {nodes} normal nodes is to have {count} log members, and fewer nodes can be one ({said})",
        hint="Bring those nodes back, or name directories",
    )


def reconfigure(
    configuration: Configuration,
    storage: Storage,
    proposed: MembersProposed,
    cluster_id: Callable[[], str],
    *,
    make_directories: bool = False,
    accept_loss: bool = False,
) -> Generation:
    """Make the members those that were proposed. Raises as `MemberMover.reconfigure`.

    `accept_loss`: those of before that do not answer are gone for good, also where they are a majority.

    `cluster_id` is asked for the first members of a cluster. `make_directories`: of those that join, which were chosen
    below volumes that answer. Others have to be there, or what is not mounted would be taken for an empty disk.
    """
    place = _place(configuration, storage)
    current = generations.newest(place.storage, place.register)
    if make_directories:
        for uri in proposed.joining:
            storage.create_directory(uri)
    identity = cluster_id() if current is None else current.cluster_id
    return _mover(place, accept_loss=accept_loss).reconfigure(identity, proposed.members, place.below.open())


def resume(configuration: Configuration, storage: Storage) -> Generation:
    """End a change of the log members that was begun. Raises InvalidRequest where there is none."""
    place = _place(configuration, storage)
    ended = _mover(place).resume(place.below.open())
    if ended is None:
        raise _nothing_unfinished()
    return ended


def cancel(configuration: Configuration, storage: Storage) -> Generation:
    """Go back to the members of before a change that was begun: a generation of its own, as promises are not taken
    back. Raises InvalidRequest where no change is unfinished.
    """
    place = _place(configuration, storage)
    mover = _mover(place)
    current = generations.newest(place.storage, place.register)
    if current is None or mover.unfinished() is None:
        raise _nothing_unfinished()
    return mover.reconfigure(current.cluster_id, current.members, place.below.open())


def named_at(storage: Storage, root: Root) -> tuple[str, ...]:
    """The log members of the newest generation that a root names, if it names one. Raises StorageUnavailable."""
    return _members_of(generations.newest(storage, root.log_members))


def copied(storage: Storage, root: Root) -> list[Entry]:
    """The entries of the longest copy that a log member has; none without members, and where none answers."""
    return MemberMover(storage, root.uri, root.log_members, DeltaMemberLogs(storage)).copied()


def from_members(root: Root, members: Sequence[str]) -> str:
    """What to do where nothing but a copy of its members makes the log of a root whole, as a hint."""
    return (
        f"Its log members keep what was acknowledged: move {root.log} away, and run "
        f"`epochlake metadata recover {shlex.join(members)}`"
    )


def _nothing_unfinished() -> InvalidRequest:
    return InvalidRequest("no change of the log members is unfinished")


def recover(
    configuration: Configuration, storage: Storage, members: Sequence[str], *, accept_loss: bool = False
) -> RootRestored:
    """Restore the log at the root of the configuration. Raises as `MemberMover.recover`, and LogWentBack where
    ZooKeeper knows of an epoch that none of these members has.

    `accept_loss`: the members that do not answer are gone for good, and what only they had is given up.
    """
    place = _place(configuration, storage)
    storage.create_directory(configuration.root, parents=True)

    def create_root() -> EpochLog:
        place.create()
        return place.below.open()

    zookeeper = _KnownToZooKeeper(configuration, ask=not accept_loss)
    mover = _mover(place, accept_loss=accept_loss)
    recovered = mover.recover(members, create_root, require=zookeeper.require)
    return RootRestored(recovered.generation.number, recovered.epoch, recovered.source, zookeeper.unasked)


class _KnownToZooKeeper:
    """What ZooKeeper knows of the end of the log: a member that is an earlier copy of itself as a whole disk is noticed
    by nothing else. `unasked`: why it was not asked, else empty.
    """

    def __init__(self, configuration: Configuration, *, ask: bool) -> None:
        self._configuration = configuration
        self._settings = configuration.zookeeper
        self.unasked = ""
        if not ask:
            self.unasked = "what it knows was given up"
        elif self._settings.connect == EMBEDDED:
            self.unasked = "it runs at the root"

    def require(self, cluster_id: str, end: Position) -> None:
        """Raise LogWentBack where an epoch after `end` was published, or another one at the end."""
        if self.unasked:
            return
        try:
            path = f"{self._settings.path.rstrip('/')}/{cluster_id}"
            session = self._settings.session_timeout_seconds
            guide = whereabouts(self._configuration, Storage(self._configuration.storage), cluster_id)
            connect = self._settings.connect if guide is None else guide.first()
            with Coordination(connect, path, session_timeout=session, guide=guide) as coordination:
                head = read_head(coordination)
        except CoordinationUnavailable as error:
            self.unasked = error.statement
            logger.warning("ZooKeeper was not asked whether it knows of more than the log members: %s", error)
            return
        if head is None or head.order < (end.incarnation, end.epoch) or head.hash == end.hash:
            return
        went_back = LogWentBack(end.epoch, head.epoch, head.hash, "ZooKeeper")
        went_back.hint = (
            "A log member that had it is missing, or goes back to an earlier copy: name all that are left. If it is "
            "gone for good, give --accept-loss"
        )
        raise went_back


def _mover(place: LogWithMembers, *, accept_loss: bool = False) -> MemberMover:
    return MemberMover(place.storage, place.root, place.register, place.logs, accept_loss=accept_loss)


def _place(configuration: Configuration, storage: Storage) -> LogWithMembers:
    place = log_below(configuration, storage)
    if not isinstance(place, LogWithMembers):
        raise ConfigurationError(
            "[log] acknowledge is 'root': the cluster has no log members",
            hint="Set [log] acknowledge = 'majority', for every process of the cluster",
        )
    return place
