"""Stretches of a table: neighbouring ranges that are in the same place, so that a file may have rows of all of them.

A table may have a million ranges, and a small write has rows in a thousand of them. What is decided by where ranges are
is decided once for each stretch. While tablets are being split, each of their halves is a stretch: no new file may have
rows of two, but for one that is so small that splits leave it as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from epochlake.jobs.gate.kept import KeptByTable
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import overlap
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId
from epochlake.metastore.metadata.placements import Placement, Since, TablePlacements, highs, index_of
from epochlake.placement.tokens import Interval


class Stay(msgspec.Struct, frozen=True):
    """Since when the ranges with the tokens in `window` are where they are."""

    window: Interval
    since: Since


class Stretch(msgspec.Struct, frozen=True):
    """The ranges from number `first` to `last`, both included, where they are, and since when each part of them."""

    first: int
    last: int
    placement: Placement
    stays: tuple[Stay, ...]


class Shared(msgspec.Struct, frozen=True):
    """What a file and a stretch share: `ranges`, the numbers of those that it may have rows in, and their tokens."""

    file: DataFile
    stretch: Stretch
    ranges: range
    window: Interval


class Stretches:
    """The stretches of tables, found anew at each epoch.

    `spared`: files of up to so many bytes are not cut by splits.
    """

    def __init__(self, spared: int = 0) -> None:
        self._spared = spared
        self._kept: KeptByTable[tuple[list[Stretch], list[Stretch]]] = KeptByTable()

    def shared(self, metadata: ClusterMetadata, table_id: TableId, files: Iterable[DataFile]) -> Iterator[Shared]:
        """Each file with every stretch that it may have rows in; files without rows have none."""
        placements = metadata.placements(table_id)
        apart, together = self._kept.of(metadata.epoch, table_id, lambda: _both(placements))
        lows, ends = placements.lows, highs(placements.lows)
        for file in files:
            if not file.rows:
                continue
            window = file.window
            stretches = together if file.size <= self._spared else apart
            begin, end = index_of(lows, np.array(file.extent, dtype=np.int64)).tolist()
            number = bisect_right(stretches, begin, key=_first) - 1
            while number < len(stretches) and stretches[number].first <= end:
                stretch = stretches[number]
                ranges = range(max(begin, stretch.first), min(end, stretch.last) + 1)
                tokens = (int(lows[ranges[0]]), int(ends[ranges[-1]]))
                yield Shared(file, stretch, ranges, overlap(window, tokens))
                number += 1


def _both(placements: TablePlacements) -> tuple[list[Stretch], list[Stretch]]:
    apart = list(stretches_of(placements, apart=placements.apart))
    return apart, list(stretches_of(placements)) if placements.apart else apart


def stretches_of(placements: TablePlacements, *, apart: bool = False) -> Iterator[Stretch]:
    """The stretches of all ranges, in token order. `apart`: each range is one."""
    bounds = list(zip(placements.lows.tolist(), highs(placements.lows).tolist(), strict=True))
    keys = [_where(placements.placement(index)) for index in range(len(bounds))]
    begins = [index for index in range(len(bounds)) if index == 0 or apart or keys[index] != keys[index - 1]]
    for first, after in pairwise([*begins, len(bounds)]):
        stays = tuple(_stays(placements, bounds, first, after))
        yield Stretch(first, after - 1, placements.placement(first), stays)


def _stays(placements: TablePlacements, bounds: Sequence[Interval], first: int, after: int) -> Iterator[Stay]:
    begin, since = first, placements.since(first)
    for index in range(first + 1, after):
        now = placements.since(index)
        if _moment(now) != _moment(since):
            yield Stay((bounds[begin][0], bounds[index - 1][1]), since)
            begin, since = index, now
    yield Stay((bounds[begin][0], bounds[after - 1][1]), since)


def _first(stretch: Stretch) -> int:
    return stretch.first


def _where(placement: Placement) -> object:
    # In which order replicas are named is of no account.
    return frozenset(placement.reads), tuple(frozenset(replicas) for replicas in placement.write_sets)


def _moment(since: Since) -> object:
    return frozenset(since.replicas), since.placed_epoch, since.started_epoch
