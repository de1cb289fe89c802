"""Fencing the replicas that a step changes, and what their fences allow.

A step is acknowledged when so many old and new replicas are fenced at its epoch that no quorum is left without one
(placement/consistency.py). Raising a fence needs nobody alive on the node: it is a commit into the replica's own table.
The sessions that the metadata has open at a replica are set in the same commit, so closing one is part of fencing.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property

import msgspec
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Unreachable
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.configuration import CoordinatorSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, RelaxBarriers, RelaxedBarrier
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import TableId, Transition, VolumeId
from epochlake.metastore.planning.ring_changes import change_of
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import BarrierLevel, barrier_passed

logger = logging.getLogger(__name__)

ReplicaKey = tuple[TableId, VolumeId]
THREADS = 16


class Sides(msgspec.Struct, frozen=True):
    """The replicas of some range of a table before and after a change: each of both must be blocked."""

    table_id: TableId
    old: tuple[VolumeId, ...]
    new: tuple[VolumeId, ...]


class Barrier(msgspec.Struct, frozen=True, dict=True):
    """What has to be fenced, at `epoch` or above, before the next step may be made.

    `required` are replica_keys that must be fenced whatever the level: those where sessions are opened or closed.
    """

    epoch: int
    sides: tuple[Sides, ...]
    required: frozenset[ReplicaKey] = frozenset()

    @cached_property
    def replica_keys(self) -> frozenset[ReplicaKey]:
        """Every replica that is fenced for it. Told once: a big ring has a quarter of a million sides."""
        volumes: dict[TableId, set[VolumeId]] = defaultdict(set)
        for side in self.sides:
            volumes[side.table_id].update(side.old, side.new)
        return self.required.union((table_id, volume) for table_id, found in volumes.items() for volume in found)


def barrier_of(transition: Transition, *, required: Iterable[VolumeId] = ()) -> Barrier:
    """The barrier of a tablet's stage."""
    table_id = transition.table_id
    sides = Sides(table_id, transition.replicas, transition.new_replicas)
    return Barrier(transition.epoch, (sides,), frozenset((table_id, volume) for volume in required))


class Fences:
    """What is known of the fences of replica tables; kept between rounds so that each is raised once an epoch.

    `reach` is given a fence that is ahead of the metadata, and raises unless the log has what it stands for.
    """

    def __init__(self, storage: Storage, reach: Callable[[int], object] = lambda _: None) -> None:
        self._storage = storage
        self._reach = reach
        self._known: dict[ReplicaKey, int] = {}
        self._sessions: dict[ReplicaKey, frozenset[str]] = {}
        self.unreachable: dict[ReplicaKey, str] = {}
        # The epoch that the present incarnation began with: fences of an earlier one do not count.
        self._least = Fence(0)

    def raise_for(self, metadata: ClusterMetadata, barriers: Iterable[Barrier]) -> None:
        """Fence every replica of `barriers` at its barrier's epoch or above, with the metadata's sessions.

        Raises LogWentBack for a replica that is fenced at an epoch which the log does not have: it would count as
        fenced for each step of a history that it has never heard of.
        """
        need: dict[ReplicaKey, int] = {}
        self._least = metadata.fence_at(0)
        for barrier in barriers:
            for replica in barrier.replica_keys:
                need[replica] = max(need.get(replica, 0), metadata.fence_at(barrier.epoch))
        sessions = sessions_by_replica(metadata)
        # What was fenced before it was declared lost is no acknowledgement any more.
        for replica in [replica for replica in self._known if is_gone(metadata, replica[1])]:
            del self._known[replica]
        due = sorted(
            replica
            for replica, epoch in need.items()
            if self._known.get(replica, -1) < epoch or self._sessions.get(replica) != sessions.get(replica, frozenset())
        )

        def attempt(replica: ReplicaKey) -> tuple[ReplicaKey, int | Unreachable]:
            table = metadata.schema.tables[replica[0]]
            address = address_of(self._storage, metadata, table, replica[1])
            open_here = sessions.get(replica, frozenset())
            return replica, raise_fence(address, metadata.fence, open_sessions=open_here)

        outcomes = list(ThreadWorkers(THREADS).run(attempt, due))
        ahead = max((fence for _, fence in outcomes if not isinstance(fence, Unreachable)), default=0)
        if ahead > metadata.fence:
            self._reach(ahead)
        for replica, outcome in outcomes:
            if isinstance(outcome, Unreachable):
                self._known.pop(replica, None)
                self.unreachable[replica] = outcome.reason
            else:
                self.unreachable.pop(replica, None)
                self._known[replica] = outcome
                # Whoever was further has set the sessions of its own, newer metadata.
                self._sessions[replica] = (
                    sessions.get(replica, frozenset()) if outcome == metadata.fence else frozenset()
                )

    def fenced(self, barrier: Barrier) -> set[ReplicaKey]:
        """Places of a barrier that are known to be fenced at its epoch."""
        at = max(self._least, Fence(barrier.epoch, self._least.incarnation))
        return {replica for replica in barrier.replica_keys if self._known.get(replica, -1) >= at}

    def passed(self, metadata: ClusterMetadata, barrier: Barrier, level: BarrierLevel) -> bool:
        """Whether the step is acknowledged at `level`.

        Storage that is declared lost is neither fenced nor counted as if it were (`barrier_passed`): what is left has
        to leave no quorum free. A table whose other replicas are all lost can still be freed by removing their nodes.
        """
        fenced = self.fenced(barrier)
        if not barrier.required <= fenced:
            return False
        # Of a side that is fenced as a whole no quorum is free, whatever the level: few others are left to look at.
        free: dict[TableId, set[VolumeId]] = defaultdict(set)
        for table_id, volume in barrier.replica_keys - fenced:
            free[table_id].add(volume)
        if not free:
            return True
        return all(
            barrier_passed(
                level,
                side.old,
                side.new,
                {volume for volume in (*side.old, *side.new) if (side.table_id, volume) in fenced},
                metadata.directory.datacenter_of,
                metadata.directory.lost,
            )
            for side in barrier.sides
            if side.table_id in free
            and not (free[side.table_id].isdisjoint(side.old) and free[side.table_id].isdisjoint(side.new))
        )

    def missing(self, metadata: ClusterMetadata, barrier: Barrier) -> str:
        """What stands in the way of a barrier, for people."""
        fenced = self.fenced(barrier)
        absent: dict[VolumeId, str] = {}
        for replica in sorted(barrier.replica_keys - fenced):
            absent.setdefault(replica[1], self.unreachable.get(replica, "not fenced yet"))
        return "; ".join(f"{metadata.describe(volume)}: {reason}" for volume, reason in absent.items())


class Patience:
    """How long steps have been waited for: after a while their barriers relax, never below what safety needs.

    `relaxed` are those that have, to be told in the log before a step relies on them.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._level = settings.barrier_level
        self._seconds = settings.barrier_timeout_seconds
        self._since: dict[Hashable, float] = {}
        self._told: set[Hashable] = set()
        self.relaxed: list[RelaxedBarrier] = []

    def tell(self, commit: Callable[[Event], object]) -> None:
        """Commit which barriers have relaxed since the last time."""
        if self.relaxed:
            commit(RelaxBarriers(tuple(self.relaxed)))
            self.relaxed.clear()

    def passed(self, fences: Fences, metadata: ClusterMetadata, step: Hashable, barrier: Barrier, name: str) -> bool:
        """Whether the barrier of `step` is passed by now: see `is_enough`."""
        return self.is_enough(
            step,
            lambda level: fences.passed(metadata, barrier, level),
            lambda: fences.missing(metadata, barrier),
            name,
        )

    def is_enough(
        self, step: Hashable, passes: Callable[[BarrierLevel], bool], missing: Callable[[], str], name: str
    ) -> bool:
        """Whether what `passes` at some level is enough for `step` by now.

        `step` is anything that tells steps apart, `name` is for people, and so is what is `missing`.
        """
        if passes(self._level):
            self._since.pop(step, None)
            return True
        since = self._since.setdefault(step, time.monotonic())
        if time.monotonic() - since <= self._seconds or not passes(BarrierLevel.QUORUM):
            return False
        if step not in self._told:
            self._told.add(step)
            logger.warning("the barrier of %s relaxes from %s", name, self._level)
            self.relaxed.append(RelaxedBarrier(name, self._level.value, BarrierLevel.QUORUM.value, missing()))
        return True


def is_gone(metadata: ClusterMetadata, volume: VolumeId) -> bool:
    """Whether `volume` is declared lost: it is not expected to answer, and not opened when it does."""
    return volume in metadata.directory.lost


def sessions_by_replica(metadata: ClusterMetadata) -> dict[ReplicaKey, frozenset[str]]:
    """The sessions that the metadata has open, at the replicas whose side effects they cover."""
    found: dict[ReplicaKey, set[str]] = defaultdict(set)
    for transition in metadata.tablets.transitions.values():
        if transition.session is not None:
            for volume in transition.receiving:
                found[(transition.table_id, volume)].add(transition.session)
    for running in metadata.rings.running.values():
        if running.session is not None:
            for replica in change_of(metadata, metadata.rings.operations[running.operation_id]).gaining:
                found[replica].add(running.session)
    return {replica: frozenset(sessions) for replica, sessions in found.items()}
