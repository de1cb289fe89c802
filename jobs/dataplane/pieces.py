"""What files of one origin have in common: which rows a set of files holds, which are missing, which to read.

The one idea: a file is every row of its origin within its window, so sets of files are compared as sets of intervals,
without looking at a row, however differently replicas have been cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from epochlake.jobs.dataplane.files import DataFile

Interval = tuple[int, int]
"""First and last token, both included."""


class Part(msgspec.Struct, frozen=True):
    """The rows of a file from token `low` to `high`, both included."""

    file: DataFile
    low: int
    high: int

    @property
    def whole(self) -> bool:
        """Whether that is all of the file's rows."""
        first, last = self.file.extent
        return self.low <= first and last <= self.high


def missing(needed: Iterable[DataFile], have: Iterable[DataFile], low: int, high: int) -> list[Part]:
    """What `needed` has from token `low` to `high` and no file of `have` does; no row of it twice."""
    covered: dict[str, list[Interval]] = defaultdict(list)
    for file in have:
        covered[file.origin].append(file.window)
    parts = []
    for file in _widest_first(needed):
        first, last = file.extent
        for gap in without((max(first, low), min(last, high)), covered[file.origin]):
            parts.append(Part(file, *gap))
        covered[file.origin].append(file.window)
    return parts


def select(files: Iterable[DataFile], low: int, high: int) -> list[Part]:
    """Parts that together hold each row that `files` have from token `low` to `high` exactly once."""
    return missing(files, (), low, high)


def holds(have: Iterable[DataFile], file: DataFile) -> bool:
    """Whether the files of a replica have every row of `file`."""
    return not missing((file,), have, *file.window)


def without(interval: Interval, covered: Iterable[Interval]) -> list[Interval]:
    """What is left of an interval, ascending."""
    first, last = interval
    left = []
    for low, high in sorted(covered):
        if first > last or low > last:
            break
        if low > first:
            left.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        left.append((first, last))
    return left


def _widest_first(files: Iterable[DataFile]) -> list[DataFile]:
    """A file before those that were cut from it: reading it whole is one file instead of several."""
    return sorted(files, key=lambda file: (file.origin, file.window[0] - file.window[1], file.window[0]))
