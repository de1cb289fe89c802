"""Streams by volume: what `streams_per_volume` counts, said once for moves, rebuilds, merges and the ring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.tablets.transitions import Stage

BEFORE_STREAMED = frozenset({Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING})
"""Stages in which a transition still counts as a stream of its volumes."""


class Busy(NamedTuple):
    """Tablets that are streamed, or will be, in transitions that have begun: from volumes, and to volumes."""

    leaving: Counter[VolumeId]
    pending: Counter[VolumeId]

    @property
    def total(self) -> Counter[VolumeId]:
        return self.leaving + self.pending


def busy(metadata: ClusterMetadata) -> Busy:
    """The streams of the tablets in flight."""
    waiting = [one for one in metadata.tablets.transitions.values() if one.stage in BEFORE_STREAMED]
    leaving = Counter(one.leaving for one in waiting if one.leaving is not None)
    return Busy(leaving, Counter(one.pending for one in waiting))


class Room:
    """How many more streams volumes may have, of `limit` each, when `taken` are in flight."""

    def __init__(self, limit: int, taken: Mapping[VolumeId, int] | None = None) -> None:
        self._limit = limit
        self._taken = Counter(taken or {})

    def has(self, *volumes: VolumeId) -> bool:
        """Whether one more stream may go from or to each of the volumes."""
        return all(self._taken[volume] < self._limit for volume in volumes)

    def take(self, *volumes: VolumeId) -> None:
        """One more stream goes from or to each of the volumes."""
        self._taken.update(volumes)
