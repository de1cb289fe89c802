"""Replicas of all the tablets of a table, as chunks of one integer array that are copied only when they change.

A map of 2^20 tablets at three replicas is 12 MB in 256 chunks; moving ten tablets copies at most ten chunks of 48 KB
and the tuple of chunk references, so that an old and a new map share all that did not change and every epoch can keep
a map of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import siblings_apart

CHUNK = 4096
"""Tablets in a chunk."""

NO_REPLICA = -1
"""Pads the rows of tablets that have fewer replicas than the widest one."""


class TabletMap(msgspec.Struct, frozen=True, eq=False):
    """An immutable map `tablet -> replicas` of `count` tablets (a power of two).

    `chunks`: int32 arrays of shape (tablets, width), read only, padded with NO_REPLICA.
    `resize_type` and `resize_seq_number` are the resize decision of seed 000, "Tablet splitting".
    """

    count: int
    width: int
    chunks: tuple[np.ndarray, ...]
    resize_type: str = "none"
    resize_seq_number: int = 0
    epoch: int = 0

    @staticmethod
    def from_array(replicas: np.ndarray, *, epoch: int = 0) -> TabletMap:
        """Take an int array of shape (count, width)."""
        count, width = replicas.shape
        if count < 1 or count & (count - 1):
            raise InvalidRequest(f"a table has 2^k tablets, not {count}", hint="Ask for 1, 2, 4, 8, …")
        whole = np.ascontiguousarray(replicas, dtype=np.int32)
        chunks = []
        for start in range(0, count, CHUNK):
            chunk = whole[start : start + CHUNK].copy()
            chunk.flags.writeable = False
            chunks.append(chunk)
        return TabletMap(count, width, tuple(chunks), epoch=epoch)

    def to_array(self) -> np.ndarray:
        """All replicas, int32 of shape (count, width)."""
        return np.concatenate(self.chunks) if len(self.chunks) > 1 else self.chunks[0]

    def replicas(self, tablet: int) -> tuple[int, ...]:
        """The volumes that hold `tablet`, in the map's order."""
        if not 0 <= tablet < self.count:
            raise InvalidRequest(f"there is no tablet {tablet}: the table has tablets 0 to {self.count - 1}")
        row = self.chunks[tablet // CHUNK][tablet % CHUNK]
        return tuple(replica for replica in row.tolist() if replica != NO_REPLICA)

    def has_replica(self, tablet: int, volume: int) -> bool:
        """Whether `volume` holds `tablet` (seed 000: this, not the routing of requests, says what a replica is)."""
        return volume in self.replicas(tablet)

    def with_replicas(self, changes: Mapping[int, Iterable[int]], epoch: int) -> TabletMap:
        """The map with the replicas of some tablets replaced; chunks without a change are shared."""
        rows = {tablet: tuple(replicas) for tablet, replicas in changes.items()}
        width = max([self.width, *(len(replicas) for replicas in rows.values())])
        chunks = list(self.chunks) if width == self.width else [_widened(chunk, width) for chunk in self.chunks]
        fresh: set[int] = set()
        for tablet, replicas in rows.items():
            if not 0 <= tablet < self.count:
                raise InvalidRequest(f"there is no tablet {tablet}: the table has tablets 0 to {self.count - 1}")
            number = tablet // CHUNK
            if number not in fresh:
                chunks[number] = chunks[number].copy()
                fresh.add(number)
            row = chunks[number][tablet % CHUNK]
            row[: len(replicas)] = replicas
            row[len(replicas) :] = NO_REPLICA
        for number in fresh:
            chunks[number].flags.writeable = False
        return msgspec.structs.replace(self, width=width, chunks=tuple(chunks), epoch=epoch)

    def tablets_on(self, volumes: Iterable[int]) -> np.ndarray:
        """Numbers of the tablets that have a replica on any of `volumes`, ascending, int64."""
        wanted = np.fromiter(volumes, dtype=np.int32)
        if not len(wanted):
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(np.isin(self.to_array(), wanted).any(axis=1))

    def decided(self, resize_type: str, resize_seq_number: int, epoch: int) -> TabletMap:
        """The map with another resize decision; every chunk is shared."""
        return msgspec.structs.replace(self, resize_type=resize_type, resize_seq_number=resize_seq_number, epoch=epoch)

    def split(self, epoch: int) -> TabletMap:
        """Each tablet as two, 2i and 2i + 1, on the replicas that it has; the decision is carried out."""
        return self._resized(np.repeat(self.to_array(), 2, axis=0), epoch)

    def merged(self, epoch: int) -> TabletMap:
        """Tablets 2i and 2i + 1 as one, on the replicas of the former; the decision is carried out.

        Raises InvalidRequest when two siblings are not on the same volumes.
        """
        apart = self.siblings_apart()
        if self.count == 1 or len(apart):
            if self.count == 1:
                raise InvalidRequest("a single tablet cannot be merged")
            pair = f"tablets {2 * apart[0]} and {2 * apart[0] + 1}"
            raise InvalidRequest(f"{pair} are not on the same volumes", hint="Co-locate them first")
        return self._resized(self.to_array()[0::2], epoch)

    def siblings_apart(self) -> np.ndarray:
        """The pairs i whose tablets 2i and 2i + 1 are not on the same volumes; of a single tablet none."""
        if self.count == 1:
            return np.empty(0, dtype=np.int64)
        chunks = [siblings_apart(chunk) + number * CHUNK // 2 for number, chunk in enumerate(self.chunks)]
        return np.concatenate(chunks)

    def _resized(self, replicas: np.ndarray, epoch: int) -> TabletMap:
        fresh = TabletMap.from_array(replicas, epoch=epoch)
        return msgspec.structs.replace(fresh, resize_seq_number=self.resize_seq_number)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (tuple(r for r in row if r != NO_REPLICA) for chunk in self.chunks for row in chunk.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TabletMap):
            return NotImplemented
        same = (self.count, self.width, self.resize_type, self.resize_seq_number, self.epoch) == (
            other.count,
            other.width,
            other.resize_type,
            other.resize_seq_number,
            other.epoch,
        )
        return same and all(a is b or np.array_equal(a, b) for a, b in zip(self.chunks, other.chunks, strict=True))

    __hash__ = None  # type: ignore[assignment]


def _widened(chunk: np.ndarray, width: int) -> np.ndarray:
    wider = np.full((len(chunk), width), NO_REPLICA, dtype=np.int32)
    wider[:, : chunk.shape[1]] = chunk
    wider.flags.writeable = False
    return wider
