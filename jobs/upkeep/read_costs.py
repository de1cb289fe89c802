"""What a range costs its readers: a pure function of its files, without reading a row.

Files that share no token with another one are read as they are. Of files that do (a section, see replicas/sections.py)
tokens and keys of every row are read and sorted first, to tell which rows count, and then the rows: so one delete that
is spread over a large file makes each read of that file several times as long. Costs are counted in rows: what a read
takes in seconds depends on columns and disks, the ratio of two costs does not much
(docs/decisions/052-compaction-by-itself.md has what was measured).
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from epochlake.jobs.replicas.intervals import FilePart, overlap
from epochlake.jobs.replicas.sections import OPENING

T = TypeVar("T")

TELLING = 1
"""Telling whether a row counts takes about as long as reading so many rows."""


class Stretch(msgspec.Struct, frozen=True):
    """Rows in token order that a read finds together, from token `first` to `last`, in so many `files`."""

    first: int
    last: int
    rows: int
    bytes: int
    files: int = 1


class ReadCost(msgspec.Struct, frozen=True):
    """What a read of some tokens has to do: open `files` with `rows` and `bytes`.

    Of these, those that are `merged` are in files that overlap others. `depth`: how many files may have one key.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0
    merged_files: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0
    depth: int = 0

    def __add__(self, other: ReadCost) -> ReadCost:
        """The cost of both, where they share no token."""
        return ReadCost(
            self.files + other.files,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.merged_files + other.merged_files,
            self.merged_rows + other.merged_rows,
            self.merged_bytes + other.merged_bytes,
            max(self.depth, other.depth),
        )

    @property
    def work(self) -> int:
        """In rows, as if all were to be read and nothing told. Merged files are opened twice."""
        return self.rows + TELLING * self.merged_rows + OPENING * (self.files + self.merged_files)

    def times(self, after: ReadCost) -> float:
        """How many times as long a read takes as it would at the cost `after`; 1.0 where there is nothing to read."""
        return self.work / after.work if after.work else 1.0


class Layer(msgspec.Struct, frozen=True):
    """A part of a file, and where its rows lie: told once, since it is asked for again and again."""

    part: FilePart
    stretch: Stretch


def stretch_of(part: FilePart) -> Stretch:
    """A part of a file with rows; its share of the file's rows and bytes is that of the tokens."""
    low, high = part.file.extent
    first, last = overlap((part.low, part.high), (low, high))
    share = max(0, last - first + 1) / (high - low + 1)
    return Stretch(first, last, round(part.file.rows * share), round(part.file.size * share))


def together(stretches: Iterable[Stretch], target_file_bytes: int) -> Stretch:
    """What some of them are when they have been put together, as if no row were superseded. Not for none."""
    all_of_them = list(stretches)
    size = sum(one.bytes for one in all_of_them)
    return Stretch(
        min(one.first for one in all_of_them),
        max(one.last for one in all_of_them),
        sum(one.rows for one in all_of_them),
        size,
        max(1, -(-size // target_file_bytes)),
    )


def cost(stretches: Iterable[Stretch], append_only: bool) -> ReadCost:
    """What a read of these does. Rows of an append-only table are never merged."""
    groups = [[one] for one in stretches] if append_only else overlapping(stretches, lambda one: one)
    return cost_of_sections(groups)


def cost_of_sections(sections: Iterable[Sequence[Stretch]]) -> ReadCost:
    """`cost` of stretches that are in groups already, as `overlapping` gives them."""
    return functools.reduce(operator.add, map(_cost_of_section, sections), ReadCost())


def overlapping(items: Iterable[T], stretch: Callable[[T], Stretch]) -> list[list[T]]:
    """The items in groups whose stretches share no token with those of other groups, in token order."""
    found: list[list[T]] = []
    reach = 0
    placed = [(stretch(item), item) for item in items]
    for place, item in sorted(placed, key=lambda one: (one[0].first, one[0].last)):
        if found and place.first <= reach:
            found[-1].append(item)
            reach = max(reach, place.last)
        else:
            found.append([item])
            reach = place.last
    return found


def depth(stretches: Iterable[Stretch]) -> int:
    """How many of them at most may have rows with one and the same token."""
    ends = [end for one in stretches for end in ((one.first, 1), (one.last + 1, -1))]
    now = deepest = 0
    for _, change in sorted(ends):
        now += change
        deepest = max(deepest, now)
    return deepest


def apart(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The largest of them that share no token with each other: what the others overlap."""
    found: list[Stretch] = []
    for one in sorted(stretches, key=lambda one: (-one.bytes, one.first, one.last)):
        # They are in token order: only those beside its place can share a token with it.
        place = bisect_left(found, one.first, key=lambda other: other.first)
        if (place == len(found) or one.last < found[place].first) and (not place or found[place - 1].last < one.first):
            found.insert(place, one)
    return found


def _cost_of_section(section: Sequence[Stretch]) -> ReadCost:
    files, rows = sum(one.files for one in section), sum(one.rows for one in section)
    size = sum(one.bytes for one in section)
    if len(section) == 1:
        return ReadCost(files, rows, size, depth=1)
    return ReadCost(files, rows, size, files, rows, size, depth(section))
