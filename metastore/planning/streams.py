"""Streams by volume: what `streams_per_volume` counts, said once for moves, rebuilds, merges and the ring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

from epochlake.metastore.configuration import CoordinatorSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.balancing.model import BalancingPolicy
from epochlake.placement.balancing.waves import STREAM_TABLETS
from epochlake.placement.tablets.transitions import Stage

BEFORE_STREAMED = frozenset({Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING})
"""Stages in which a transition still counts as a stream of its volumes."""


class StreamLimits(NamedTuple):
    """How many streams a volume may have, and how many bytes tablets have that share one; 0: each has its own."""

    per_volume: int
    shared_bytes: int = BalancingPolicy().shared_stream_bytes

    @classmethod
    def of(cls, settings: CoordinatorSettings) -> Self:
        return cls(settings.streams_per_volume, settings.shared_stream_bytes)

    @property
    def policy(self) -> BalancingPolicy:
        return BalancingPolicy(streams_per_volume=self.per_volume, shared_stream_bytes=self.shared_bytes)


class Busy(NamedTuple):
    """Streams that run, or will, in transitions that have begun: from volumes, and to volumes."""

    leaving: Counter[VolumeId]
    pending: Counter[VolumeId]

    @property
    def total(self) -> Counter[VolumeId]:
        return self.leaving + self.pending


def busy(metadata: ClusterMetadata, limits: StreamLimits) -> Busy:
    """The streams of the tablets in flight; one for each way where tablets may share one."""
    waiting = [one for one in metadata.tablets.transitions.values() if one.stage in BEFORE_STREAMED]
    ways: Collection[tuple[VolumeId | None, VolumeId]] = [(one.leaving, one.pending) for one in waiting]
    if limits.shared_bytes:
        ways = {*ways}
    leaving = Counter(leaving for leaving, _ in ways if leaving is not None)
    return Busy(leaving, Counter(pending for _, pending in ways))


class Room:
    """How many more streams volumes may have within `limits`, when `taken` are in flight.

    A tablet is asked for with the volumes at the ends of its stream that count, and its bytes; None: nobody knows.
    Small ones that go the same way share a stream.
    """

    def __init__(self, limits: StreamLimits, taken: Mapping[VolumeId, int] | None = None) -> None:
        self._limits = limits
        self._taken = Counter(taken or {})
        self._shared: dict[tuple[VolumeId, ...], tuple[int, int]] = {}

    def has(self, *volumes: VolumeId, size: int | None = None) -> bool:
        """Whether one more tablet may go from or to each of the volumes."""
        return self._shares(volumes, size) or all(self._taken[volume] < self._limits.per_volume for volume in volumes)

    def take(self, *volumes: VolumeId, size: int | None = None) -> None:
        """One more tablet goes from or to each of the volumes."""
        room, places = self._shared.get(volumes, (0, 0))
        if not self._shares(volumes, size):
            self._taken.update(volumes)
            room, places = self._limits.shared_bytes, STREAM_TABLETS
        self._shared[volumes] = (room - (room if size is None else size), places - 1)

    def _shares(self, volumes: tuple[VolumeId, ...], size: int | None) -> bool:
        room, places = self._shared.get(volumes, (0, 0))
        return size is not None and self._limits.shared_bytes > 0 and size <= room and places > 0
