"""Sections: the files of a read whose tokens overlap, cut and packed into tasks of about the same work.

Only files of one section can hold the same key, since equal keys have equal tokens. Where a large part of a file is
beside all others it is not merged: one new row among a million makes one token's rows a section. A section with many
rows is sliced where tokens change, so that a task's memory is bounded, however large a table is. Small ones share one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.file_columns import FileColumns
from epochlake.jobs.replicas.intervals import meet, overlap, without
from epochlake.placement.tokens import Interval

TASK_ROWS = 1 << 20
"""Rows of a slice, and of the slices that share a task: about so many at most. A task holds their tokens and keys."""

OPENING = 4_000
"""Opening a file takes as long as reading token and key of so many rows."""

PART_ROWS = 1 << 16
"""A part of a file that is beside all others is read by itself where it has about so many rows. With fewer, a row group
would be read many times over for what lies between its parts.
"""


class Run(msgspec.Struct, frozen=True):
    """Rows in token order that take part: those of a copy with a token in one of `intervals`, () for all of them.

    `columns`: what files of an altered table call its columns.
    """

    copy: ExpectedFile
    intervals: tuple[Interval, ...]
    columns: FileColumns | None = None

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


class Division(msgspec.Struct, frozen=True):
    """The runs of a read, or parts of them: those `alone`, which share no token with another one, and the others in
    sections, all in token order. Together they have every row of the runs once.
    """

    alone: tuple[Run, ...]
    merged: tuple[tuple[Run, ...], ...]


def divided(runs: Iterable[Run], part_rows: int = PART_ROWS) -> Division:
    """The division of runs in which sections are as small as `part_rows` allows."""
    alone: list[Run] = []
    found: list[tuple[Run, ...]] = []
    for section in sections(runs):
        if len(section) == 1:
            alone.append(section[0])
            continue
        shared = _shared(section, part_rows)
        if not shared:
            alone += section
            continue
        first, last = min(run.extent[0] for run in section), max(run.extent[1] for run in section)
        if shared == [(first, last)]:
            found.append(section)
            continue
        found += [_parts(section, [span]) for span in shared]
        alone += _parts(section, without((first, last), shared))
    return Division(tuple(alone), tuple(found))


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
        work = _work(one)
        if not found or work > room:
            found.append([])
            room = float(task_rows)
        found[-1].append(one)
        room -= work
    return tuple(tuple(task) for task in found)


def _shared(section: Sequence[Run], part_rows: int) -> list[Interval]:
    """Where tokens of two runs or more lie, ascending; what lies between as well, where that has few rows."""
    rises: dict[int, tuple[int, float]] = {}
    for run in section:
        density = _density(run)
        for first, last in run.spans:
            for token, runs, rows in ((first, 1, density), (last + 1, -1, -density)):
                before = rises.get(token, (0, 0.0))
                rises[token] = (before[0] + runs, before[1] + rows)
    begin = min(rises)
    spans: list[Interval] = []
    depth, density, between = 0, 0.0, 0.0
    for (token, (runs, rows)), (following, _) in pairwise(sorted(rises.items())):
        depth, density = depth + runs, density + rows
        if depth < 2:
            between += max(density, 0.0) * (following - token)
            continue
        if between < part_rows:
            low, spans = (spans[-1][0], spans[:-1]) if spans else (begin, [])
        else:
            low = token
        spans.append((low, following - 1))
        between = 0.0
    if spans and between < part_rows:
        spans[-1] = (spans[-1][0], max(rises) - 1)
    return spans


def _parts(section: Iterable[Run], spans: Sequence[Interval]) -> tuple[Run, ...]:
    """What runs have within some spans."""
    found = []
    for run in section:
        within = [overlap(one, span) for one in run.spans for span in spans if meet(one, span)]
        if within:
            found.append(run if within == run.spans else Run(run.copy, tuple(within), run.columns))
    return tuple(found)


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


def work_of(of: Iterable[Task]) -> float:
    """The work of some tasks, in rows whose token and key are read."""
    return sum(_work(piece) for task in of for piece in task)


def _work(piece: Slice) -> float:
    return _rows_of(piece) + OPENING * len(piece.runs)


def bytes_of(piece: Slice) -> float:
    """About how many bytes the rows of a slice are stored in."""
    return sum(_rows_of_run(run, piece) * run.copy.file.size / run.copy.file.rows for run in piece.runs)


def _rows_of(piece: Slice) -> float:
    """About how many rows a slice has."""
    return sum(_rows_of_run(run, piece) for run in piece.runs)


def _rows_of_run(run: Run, piece: Slice) -> float:
    rows = 0.0
    for span in run.spans:
        first, last = overlap(span, (piece.low, piece.high))
        rows += _density(run) * max(0, last - first + 1)
    return rows


def _density(run: Run) -> float:
    """Rows a token."""
    first, last = run.copy.file.extent
    return run.copy.file.rows / (last - first + 1)
