"""What files of one origin have in common: which rows a set of files holds, which are missing, which to read.

A file is every row of its origin within its window, so sets of files are compared as sets of intervals,
without looking at a row, however differently replicas have been cut. A file that compaction has made stands for the
rows of other origins too: the lineage says for which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec
from epochlake.jobs.replicas.files import DataFile
from epochlake.placement.tokens import Interval

Lineage = Mapping[str, Sequence[tuple[str, int, int]]]
"""What merged files stand for: origin -> (older origin, first token, last token), all the way down; see ledger.py."""

NO_LINEAGE: Lineage = {}
"""Of files that were never compacted."""


class FilePart(msgspec.Struct, frozen=True):
    """The rows of a file from token `low` to `high`, both included and within its window."""

    file: DataFile
    low: int
    high: int

    @property
    def whole(self) -> bool:
        """Whether that is all of the file's rows."""
        first, last = self.file.extent
        return self.file.rows == 0 or (self.low <= first and last <= self.high)


def all_of(file: DataFile) -> FilePart:
    """A file as a part of itself."""
    return FilePart(file, *file.window)


def missing(
    needed: Iterable[DataFile], have: Iterable[DataFile], low: int, high: int, lineage: Lineage = NO_LINEAGE
) -> list[FilePart]:
    """What `needed` has from token `low` to `high` and no file of `have` does; no row of it twice.

    What a merged file of either stands for is there with it.

    Parts reach as far as nobody else's window does, so that the same question gives the same parts everywhere. Where a
    file's extent says that it has no row there is nothing to miss; that a piece has none is known only with the piece.
    """
    needed, have = list(needed), list(have)
    if not have and not lineage and len({file.origin for file in needed}) == len(needed):
        return _clipped(needed, low, high)
    covered: dict[str, list[Interval]] = defaultdict(list)
    for file in have:
        covered[file.origin].append(file.window)
    for file in chain(have, needed):
        for origin, first, last in lineage.get(file.origin, ()):
            if meet(file.window, (first, last)):
                covered[origin].append(overlap(file.window, (first, last)))
    parts = []
    for file in _widest_first(needed):
        window = file.window
        for gap in without(overlap(window, (low, high)), covered[file.origin]):
            if file.rows == 0 or meet(gap, file.extent):
                parts.append(FilePart(file, *gap))
        covered[file.origin].append(window)
    return parts


def _clipped(needed: Sequence[DataFile], low: int, high: int) -> list[FilePart]:
    """`missing` of files of which none says anything of another one: most tables have few others."""
    parts = []
    for file in sorted(needed, key=lambda file: file.origin):
        first, last = file.window
        first, last = max(first, low), min(last, high)
        if first <= last and (file.rows == 0 or (first <= file.max_token and file.min_token <= last)):
            parts.append(FilePart(file, first, last))
    return parts


def select(files: Iterable[DataFile], low: int, high: int, lineage: Lineage = NO_LINEAGE) -> list[FilePart]:
    """Parts that together hold each row that counts of `files`, from token `low` to `high`, exactly once."""
    return [part for part in missing(files, (), low, high, lineage) if part.file.rows]


def holds(have: Iterable[DataFile], file: DataFile, lineage: Lineage = NO_LINEAGE) -> bool:
    """Whether the files of a replica have every row of `file`: as itself, in pieces, in a wider or in a merged one."""
    return not missing((file,), have, *file.window, lineage)


def rows_are_in(
    have: Iterable[DataFile],
    file: DataFile,
    low: int,
    high: int,
    lineage: Lineage = NO_LINEAGE,
    replaced: Lineage = NO_LINEAGE,
) -> bool:
    """Whether the rows of `file` from token `low` to `high` can be read of other files: `holds`, and the way back too.

    `replaced`: what each merged file was made of, one step down, all of it. What a merged file stands for can be read
    in its place: that is what was read before the merge. Only what is known counts: a gap in a file that is not there
    may have had no row, and is a gap all the same.
    """
    have = list(have)
    lacking = [part for part in missing((file,), have, low, high, lineage) if part.file.rows]
    if not lacking:
        return True
    covered: dict[str, list[Interval]] = defaultdict(list)
    for one in have:
        covered[one.origin].append(one.window)
        for origin, first, last in lineage.get(one.origin, ()):
            if meet(one.window, (first, last)):
                covered[origin].append(overlap(one.window, (first, last)))
    return all(_is_covered(file.origin, (part.low, part.high), covered, replaced) for part in lacking)


def _is_covered(origin: str, window: Interval, covered: Mapping[str, Sequence[Interval]], replaced: Lineage) -> bool:
    waiting = [(origin, window)]
    while waiting:
        one, asked = waiting.pop()
        for gap in without(asked, covered.get(one, ())):
            if one not in replaced:
                return False
            waiting += [
                (older, overlap(gap, (first, last))) for older, first, last in replaced[one] if meet(gap, (first, last))
            ]
    return True


def superseded(files: Iterable[DataFile], lineage: Lineage) -> list[DataFile]:
    """Those of a replica's files all of whose rows are in merged files that it has as well."""
    files = list(files)
    covered: dict[str, list[Interval]] = defaultdict(list)
    for file in files:
        for origin, first, last in lineage.get(file.origin, ()):
            if meet(file.window, (first, last)):
                covered[origin].append(overlap(file.window, (first, last)))
    return [
        file
        for file in files
        if file.origin in covered
        and not any(file.rows == 0 or meet(gap, file.extent) for gap in without(file.window, covered[file.origin]))
    ]


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


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same tokens in as few intervals as there can be, ascending."""
    result: list[Interval] = []
    for low, high in sorted(intervals):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        elif low <= high:
            result.append((low, high))
    return result


def overlap(one: Interval, other: Interval) -> Interval:
    """The tokens of both; with `first > last` when there are none."""
    return max(one[0], other[0]), min(one[1], other[1])


def meet(one: Interval, other: Interval) -> bool:
    """Whether two intervals share a token."""
    first, last = overlap(one, other)
    return first <= last


def _widest_first(files: Iterable[DataFile]) -> list[DataFile]:
    """A file before those that were cut from it: reading it whole is one file instead of several."""
    return sorted(files, key=lambda file: (file.origin, file.window[0] - file.window[1], file.window[0]))
