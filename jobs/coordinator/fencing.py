"""Fencing the replicas of tablets in transition, and what their fences allow.

A stage is acknowledged when so many old and new replicas are fenced at its epoch that no quorum is left without one
(placement/consistency.py). Raising a fence needs nobody alive on the node: it is a commit into the replica's own table.
The sessions that the metadata has open at a replica are set in the same commit, so closing one is part of fencing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from epochlake.jobs.dataplane.fences import raise_fence
from epochlake.jobs.dataplane.outcomes import Unreachable
from epochlake.jobs.pipeline.replicas import address_of, describe
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, TableId, Transition, VolumeId
from epochlake.placement.consistency import BarrierLevel, barrier_passed

Place = tuple[TableId, VolumeId]
THREADS = 16

GONE = frozenset({NodeState.LEFT, NodeState.REMOVING})
"""Nodes of which an operator has said that their storage is gone for good."""


class Fences:
    """What is known of the fences of replica tables; kept between rounds so that each is raised once an epoch."""

    def __init__(self) -> None:
        self._known: dict[Place, int] = {}
        self._sessions: dict[Place, frozenset[str]] = {}
        self.unreachable: dict[Place, str] = {}

    def raise_for(self, metadata: ClusterMetadata, transitions: Iterable[Transition]) -> None:
        """Fence every replica of `transitions` at its transition's epoch or above, with the metadata's sessions."""
        need: dict[Place, int] = {}
        for transition in transitions:
            for volume in {*transition.replicas, *transition.new_replicas}:
                place = (transition.table_id, volume)
                need[place] = max(need.get(place, 0), transition.epoch)
        sessions = sessions_by_place(metadata)
        due = [
            place
            for place, epoch in need.items()
            if self._known.get(place, -1) < epoch or self._sessions.get(place) != sessions.get(place, frozenset())
        ]

        def attempt(place: Place) -> tuple[Place, int | Unreachable]:
            table = metadata.schema.tables[place[0]]
            address = address_of(metadata, table, place[1])
            open_here = sessions.get(place, frozenset())
            return place, raise_fence(address, metadata.epoch, open_sessions=open_here)

        with ThreadPoolExecutor(max(1, min(THREADS, len(due)))) as pool:
            for place, outcome in pool.map(attempt, due):
                if isinstance(outcome, Unreachable):
                    self._known.pop(place, None)
                    self.unreachable[place] = outcome.reason
                else:
                    self.unreachable.pop(place, None)
                    self._known[place] = outcome
                    # Whoever was further has set the sessions of its own, newer metadata.
                    self._sessions[place] = (
                        sessions.get(place, frozenset()) if outcome == metadata.epoch else frozenset()
                    )

    def fenced(self, transition: Transition) -> set[VolumeId]:
        """Replicas of a transition that are known to be fenced at its epoch."""
        return {
            volume
            for volume in (*transition.replicas, *transition.new_replicas)
            if self._known.get((transition.table_id, volume), -1) >= transition.epoch
        }

    def passed(self, metadata: ClusterMetadata, transition: Transition, level: BarrierLevel) -> bool:
        """Whether the transition's stage is acknowledged at `level`.

        Storage that is gone for good and does not answer cannot be part of anybody's quorum either: it counts as
        fenced. Without that a table whose only other replica is dead could never be freed by removing its node.
        """
        replicas = (*transition.replicas, *transition.new_replicas)
        return barrier_passed(
            level,
            transition.replicas,
            transition.new_replicas,
            self.fenced(transition) | {volume for volume in replicas if is_gone(metadata, volume)},
            metadata.directory.datacenter_of,
        )

    def missing(self, metadata: ClusterMetadata, transition: Transition) -> str:
        """What stands in the way of a barrier, for people."""
        fenced = self.fenced(transition)
        absent = [v for v in dict.fromkeys((*transition.replicas, *transition.new_replicas)) if v not in fenced]
        said = {v: self.unreachable.get((transition.table_id, v), "not fenced yet") for v in absent}
        return "; ".join(f"{describe(metadata, v)}: {reason}" for v, reason in said.items())


def is_gone(metadata: ClusterMetadata, volume: VolumeId) -> bool:
    """Whether the storage of `volume` is not expected to answer any more."""
    return metadata.directory.node_of_volume[volume].state in GONE


def sessions_by_place(metadata: ClusterMetadata) -> dict[Place, frozenset[str]]:
    """The sessions that the metadata has open, at the replica whose side effects they cover."""
    found: dict[Place, set[str]] = defaultdict(set)
    for transition in metadata.tablets.transitions.values():
        if transition.session is not None:
            found[(transition.table_id, transition.pending)].add(transition.session)
    return {place: frozenset(sessions) for place, sessions in found.items()}
