"""Streams by volume: what `streams_per_volume` counts, said once for moves, rebuilds, merges and the ring.

Tablets that go from one volume to another at the same time are one stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.balancing.model import BalancingPolicy
from epochlake.placement.balancing.waves import STREAM_TABLETS
from epochlake.placement.tablets.transitions import Stage

STREAM_BYTES = BalancingPolicy().stream_bytes

BEFORE_STREAMED = frozenset({Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING})
"""Stages in which a transition still counts as a stream of its volumes."""


class Busy(NamedTuple):
    """Streams that run, or will, in transitions that have begun: from volumes, and to volumes."""

    leaving: Counter[VolumeId]
    pending: Counter[VolumeId]

    @property
    def total(self) -> Counter[VolumeId]:
        return self.leaving + self.pending


def busy(metadata: ClusterMetadata) -> Busy:
    """The streams of the tablets in flight."""
    transitions = metadata.tablets.transitions.values()
    ways = {(one.leaving, one.pending) for one in transitions if one.stage in BEFORE_STREAMED}
    leaving = Counter(leaving for leaving, _ in ways if leaving is not None)
    return Busy(leaving, Counter(pending for _, pending in ways))


class Room:
    """How many more streams volumes may have, of `limit` each, when `taken` are in flight.

    A tablet is asked for with the volumes at the ends of its stream that count, and its bytes; None: nobody knows.
    Small ones that go the same way share a stream.
    """

    def __init__(self, limit: int, taken: Mapping[VolumeId, int] | None = None) -> None:
        self._limit = limit
        self._taken = Counter(taken or {})
        self._shared: dict[tuple[VolumeId, ...], tuple[int, int]] = {}

    def has(self, *volumes: VolumeId, size: int | None = None) -> bool:
        """Whether one more tablet may go from or to each of the volumes."""
        return self._shares(volumes, size) or all(self._taken[volume] < self._limit for volume in volumes)

    def take(self, *volumes: VolumeId, size: int | None = None) -> None:
        """One more tablet goes from or to each of the volumes."""
        room, places = self._shared.get(volumes, (0, 0))
        if not self._shares(volumes, size):
            self._taken.update(volumes)
            room, places = STREAM_BYTES, STREAM_TABLETS
        self._shared[volumes] = (room - (STREAM_BYTES if size is None else size), places - 1)

    def _shares(self, volumes: tuple[VolumeId, ...], size: int | None) -> bool:
        room, places = self._shared.get(volumes, (0, 0))
        return size is not None and size <= room and places > 0
