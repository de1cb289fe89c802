"""Sections: files that share tokens come together, slices are bounded, and every row is in exactly one slice."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sections import OPENING, Run, divided, sections, tasks
from epochlake.placement.tokens import Interval
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replicas import CLUSTER_ID
from tests.support.storages import STORAGE

PLACE = ReplicaAddress(STORAGE, CLUSTER_ID, 1, str(Path("/v1")), "air", "t-1")
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8)


def run(name: str, first: int, last: int, rows: int = 10, intervals: tuple[Interval, ...] = ()) -> Run:
    file = DataFile(name, "0-0", path_of("0-0", name), 1, rows, first, last, 1, 1, False)
    return Run(ExpectedFile(file, PLACE), intervals)


@given(SPANS)
def test_a_run_is_alone_in_its_section_exactly_when_no_other_shares_a_token(spans: list[tuple[int, int]]) -> None:
    extents = {str(n): (start, start + width) for n, (start, width) in enumerate(spans)}
    touching = {
        one
        for one, (first, last) in extents.items()
        for other, (low, high) in extents.items()
        if one != other and first <= high and low <= last
    }
    groups = sections(run(name, *extent) for name, extent in extents.items())
    alone = {one.copy.file.file_id for group in groups if len(group) == 1 for one in group}
    assert alone == set(extents) - touching
    assert sorted(one.copy.file.file_id for group in groups for one in group) == sorted(extents)
    reaches = [(min(one.extent[0] for one in group), max(one.extent[1] for one in group)) for group in groups]
    assert all(one[1] < other[0] for one, other in pairwise(reaches))


def test_what_is_asked_of_a_file_decides_what_it_touches() -> None:
    halves = [run("a", 0, 99, intervals=((0, 49),)), run("b", 0, 99, intervals=((50, 200),))]
    assert [len(group) for group in sections(halves)] == [1, 1]
    assert halves[1].extent == (50, 99)


@given(SPANS.filter(bool), st.integers(1, 40))
def test_every_token_of_a_run_is_in_exactly_one_of_its_slices(spans: list[tuple[int, int]], task_rows: int) -> None:
    runs = [run(str(n), start, start + width, rows=7 * (width + 1)) for n, (start, width) in enumerate(spans)]
    pieces = [piece for task in tasks(sections(runs), task_rows) for piece in task]
    assert all(piece.low <= piece.high for piece in pieces)
    assert all(one.high < other.low for one, other in pairwise(pieces)), "in token order"
    for one in runs:
        first, last = one.extent
        for token in range(first, last + 1):
            assert [one in piece.runs for piece in pieces if piece.low <= token <= piece.high] == [True]


@given(SPANS, st.integers(0, 60))
def test_a_division_has_every_row_once_and_merges_what_shares_a_token(
    spans: list[tuple[int, int]], part_rows: int
) -> None:
    runs = [run(str(n), start, start + width, rows=7 * (width + 1)) for n, (start, width) in enumerate(spans)]
    division = divided(runs, part_rows)
    parts = [(part, None) for part in division.alone]
    parts += [(part, number) for number, section in enumerate(division.merged) for part in section]
    tokens = [(part.name, token, number) for part, number in parts for one in part.spans for token in inside(one)]
    assert sorted((name, token) for name, token, _ in tokens) == sorted(
        (one.name, token) for one in runs for token in inside(one.extent)
    )
    at: dict[int, list[int | None]] = {}
    for _, token, number in tokens:
        at.setdefault(token, []).append(number)
    assert all(len(found) == 1 or (None not in found and len(set(found)) == 1) for found in at.values())


def test_one_row_among_many_makes_a_section_of_its_token() -> None:
    many, one = run("many", 0, 10**6 - 1, rows=10**6), run("one", 7 * 10**5, 7 * 10**5, rows=1)
    division = divided([many, one])
    assert [part.intervals for part in division.alone] == [((0, 699_999), (700_001, 999_999))]
    assert [[part.extent for part in section] for section in division.merged] == [[(700_000, 700_000)] * 2]
    assert divided([run("few", 0, 999, rows=1_000), run("one", 5, 5, rows=1)]).alone == ()


def inside(one: Interval) -> range:
    return range(one[0], one[1] + 1)


def test_a_large_section_is_sliced_evenly_and_small_ones_share_tasks() -> None:
    wide = [run("wide", -(2**63), 2**63 - 1, rows=10**7), run("half", 0, 2**63 - 1, rows=10**7)]
    [section] = sections(wide)
    pieces = [piece for task in tasks([section], 10**6) for piece in task]
    assert len(pieces) == 20
    rows = [
        sum(
            10**7 * (min(piece.high, one.extent[1]) - max(piece.low, one.extent[0])) / (one.extent[1] - one.extent[0])
            for one in piece.runs
        )
        for piece in pieces
    ]
    assert max(rows) < 1.01 * 10**6
    small = [run(f"{n}-{copy}", 100 * n, 100 * n + 9, rows=10) for n in range(100) for copy in (1, 2)]
    packed = tasks(sections(small), 10 * (2 * OPENING + 20))
    assert [len(task) for task in packed] == [10] * 10
