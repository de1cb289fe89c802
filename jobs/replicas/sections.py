"""Sections: the files of a read whose tokens overlap, cut and packed into tasks of about the same work.

Only files of one section can hold the same key, since equal keys have equal tokens. A section with many rows is sliced
where tokens change, so that a task's memory is bounded however large a table is. Small ones share a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.intervals import meet, overlap
from epochlake.placement.tokens import Interval

TASK_ROWS = 1 << 20
"""Rows of a slice, and of the slices that share a task: about so many at most. A task holds their tokens and keys."""

OPENING = 4_000
"""Opening a file takes as long as reading token and key of so many rows."""


class Run(msgspec.Struct, frozen=True):
    """Rows in token order that take part: those of a copy with a token in one of `intervals`, () for all of them."""

    copy: ExpectedFile
    intervals: tuple[Interval, ...]

    @property
    def name(self) -> str:
        """The name of the file, by which Spark knows it as well."""
        return self.copy.file.path.rpartition("/")[2]

    @property
    def spans(self) -> list[Interval]:
        """Where its rows lie, ascending."""
        extent = self.copy.file.extent
        return [overlap(one, extent) for one in self.intervals if meet(one, extent)] if self.intervals else [extent]

    @property
    def extent(self) -> Interval:
        """First and last token that a row of it can have."""
        spans = self.spans
        return spans[0][0], spans[-1][1]


class Slice(msgspec.Struct, frozen=True):
    """The rows of a section from token `low` to `high`, both included: every version of each key of these tokens."""

    low: int
    high: int
    runs: tuple[Run, ...]


Task = tuple[Slice, ...]


def sections(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """The runs in groups that share no token with each other, in token order."""
    found: list[list[Run]] = []
    reach = 0
    for (first, last), run in sorted(((run.extent, run) for run in runs), key=lambda one: (one[0], one[1].name)):
        if found and first <= reach:
            found[-1].append(run)
        else:
            found.append([run])
            reach = last
        reach = max(reach, last)
    return [tuple(group) for group in found]


def tasks(merged: Iterable[Sequence[Run]], task_rows: int = TASK_ROWS) -> tuple[Task, ...]:
    """The slices of sections, in token order, in as few tasks as `task_rows` allows."""
    found: list[list[Slice]] = []
    room = 0.0
    for one in (piece for section in merged for piece in _sliced(section, task_rows)):
        work = _rows_of(one) + OPENING * len(one.runs)
        if not found or work > room:
            found.append([])
            room = float(task_rows)
        found[-1].append(one)
        room -= work
    return tuple(tuple(task) for task in found)


def _sliced(section: Sequence[Run], task_rows: int) -> list[Slice]:
    """A section as slices of about the same number of rows: tokens are hashes, so rows are even between two of them."""
    rises: list[tuple[int, float]] = []
    total = 0.0
    for run in section:
        for first, last in run.spans:
            density = _density(run)
            total += density * (last - first + 1)
            rises += [(first, density), (last + 1, -density)]
    low, high = min(run.extent[0] for run in section), max(run.extent[1] for run in section)
    borders = _borders(sorted(rises), total, math.ceil(total / task_rows))
    lows = [low, *(border for border in borders if low < border <= high)]
    highs = [*(border - 1 for border in lows[1:]), high]
    return [
        Slice(first, last, tuple(run for run in section if any(meet(span, (first, last)) for span in run.spans)))
        for first, last in zip(lows, highs, strict=True)
    ]


def _borders(rises: Sequence[tuple[int, float]], total: float, count: int) -> list[int]:
    """The first tokens of all slices but the first, ascending; `rises`: where how many rows a token begin and end."""
    found: list[int] = []
    passed = density = 0.0
    for (token, rise), (following, _) in pairwise(rises):
        density += rise
        rows = max(density, 0.0) * (following - token)
        while len(found) + 1 < count and passed + rows > (wanted := total * (len(found) + 1) / count):
            border = token + max(0, int((wanted - passed) / density))
            found.append(max(border, found[-1] + 1) if found else border)
        passed += rows
    return found


def _rows_of(piece: Slice) -> float:
    """About how many rows a slice has."""
    rows = 0.0
    for run in piece.runs:
        for span in run.spans:
            first, last = overlap(span, (piece.low, piece.high))
            rows += _density(run) * max(0, last - first + 1)
    return rows


def _density(run: Run) -> float:
    """Rows a token."""
    first, last = run.copy.file.extent
    return run.copy.file.rows / (last - first + 1)
