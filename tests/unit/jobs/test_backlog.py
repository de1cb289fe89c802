"""What compaction would save, told range by range, where ranges that are alike are weighed once."""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace
from typing import cast

import pytest
from epochlake.jobs.cli.text import status
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.intervals import NO_LINEAGE
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.states import FileTable
from epochlake.jobs.upkeep.compacting import Weighed, weigh
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.read_costs import ReadCost
from epochlake.jobs.views import backlog as views
from epochlake.jobs.views.backlog import DEFAULT, Backlog, Backlogs, backlog
from epochlake.jobs.views.health import Health
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.tokens import MIN_TOKEN, range_label
from hypothesis import given
from hypothesis import strategies as st

TABLE = Table("t-1", "air", "flights", (Column("id", "bigint", False),), ("id",))
WIDTH = 100
RANGES = [Range(n, n, str(n), n * WIDTH, n * WIDTH + WIDTH - 1, (1, 2)) for n in range(6)]
LAST = 6 * WIDTH - 1
WRITTEN_AT = 1_000_000

FILES = st.lists(
    st.tuples(st.integers(0, LAST), st.integers(0, LAST), st.integers(1, 10**5), st.integers(1, 10**8)), max_size=12
)


class Holding:
    """Of a replica only its files."""

    def __init__(self, files: list[DataFile]) -> None:
        self.files = files
        self.fingerprint = b"the same"

    @property
    def table(self) -> FileTable:
        return FileTable.of(self.files)

    def within(self, low: int, high: int) -> list[DataFile]:
        return self.files

    def showing(self, low: int, high: int) -> list[DataFile]:
        return [file for file in self.files if file.min_token <= high and low <= file.max_token]


def file(number: int, ends: tuple[int, int], rows: int, size: int) -> DataFile:
    first, last = sorted(ends)
    label = range_label(0, LAST)
    name = f"file-{number}"
    return DataFile(
        name, label, path_of(label, name), size, rows, first, last, WRITTEN_AT + number, WRITTEN_AT + number, False
    )


def told(files: list[DataFile]) -> Backlog | None:
    replica = cast(ReplicaSnapshot, Holding(files))
    return backlog(TABLE, RANGES, {1: replica, 2: replica}, NO_LINEAGE)


@pytest.mark.parametrize("many", [0, views.MANY_FILES])
@given(drawn=FILES)
def test_the_backlog_is_that_of_each_range_weighed_by_itself(many: int, drawn: list[tuple[int, int, int, int]]) -> None:
    files = [file(number, (first, last), rows, size) for number, (first, last, rows, size) in enumerate(drawn)]
    now = 10**16
    weighed: list[Weighed] = [
        weigh(TABLE, one, Holding(files).within(one.low, one.high), NO_LINEAGE, DEFAULT, MIN_TOKEN, now)
        for one in RANGES
    ]
    due = [one.chosen for one in weighed if one.chosen is not None]
    paid = functools.reduce(operator.add, (one.now for one in weighed), ReadCost())
    best = functools.reduce(operator.add, (one.best for one in weighed), ReadCost())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "MANY_FILES", many)
        found = told(files)
    assert (found.due, found.due_bytes) == (len(due), sum(one.size for one in due)) if found else not due
    assert found is None or found.times == paid.times(best)


def test_ranges_that_share_all_of_their_files_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weighings = []
    monkeypatch.setattr(views, "weigh", lambda *asked: weighings.append(asked) or weigh(*asked))
    found = told([file(number, (0, LAST), 1_000, 10_000) for number in range(20)])
    assert found is not None
    assert found.due == len(RANGES)
    assert len(weighings) == 1


@given(FILES, st.lists(st.integers(0, 3_000_000_000), min_size=2, max_size=6))
def test_what_is_remembered_of_a_backlog_is_what_would_be_told_now(
    drawn: list[tuple[int, int, int, int]], times: list[int]
) -> None:
    files = [file(number, (first, last), rows, size) for number, (first, last, rows, size) in enumerate(drawn)]
    replica = cast(ReplicaSnapshot, Holding(files))
    remembered = Backlogs()
    with pytest.MonkeyPatch.context() as patch:
        for now in times:  # as a clock may be put back, in any order
            patch.setattr(views.time, "time_ns", lambda now=now: now * 1000)
            assert remembered.of(TABLE, RANGES, {1: replica, 2: replica}, NO_LINEAGE) == told(files)


def test_a_backlog_is_told_again_only_where_files_ranges_or_the_time_call_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighings = []
    monkeypatch.setattr(views, "weigh", lambda *asked: weighings.append(asked) or weigh(*asked))
    files = [file(number, (0, LAST), 1_000, 10_000) for number in range(20)]
    replica, remembered = Holding(files), Backlogs()

    def asked(ranges: list[Range] = RANGES) -> int:
        """How often something was weighed."""
        before = len(weighings)
        remembered.of(TABLE, ranges, {1: cast(ReplicaSnapshot, replica)}, NO_LINEAGE)
        return len(weighings) - before

    assert (asked(), asked()) == (1, 0)
    replica.files, replica.fingerprint = files[:-1], b"others"
    assert (asked(), asked()) == (1, 0)
    assert (asked(RANGES[:2]), asked(RANGES[:2])) == (1, 0)


def test_how_much_is_due_for_expired_rows_is_said() -> None:
    def said(found: Backlog) -> str:
        health = SimpleNamespace(tables=(SimpleNamespace(table="air.visits", backlog=found),))
        return " ".join(map(str, status._backlog(cast(Health, health))))

    assert "2 ranges of 1 kB now (1 for expired rows)" in said(Backlog(2, 1_000, 0, 1.0, 1))
    assert "2 ranges of 1 kB now" in said(Backlog(2, 1_000, 0, 1.0))
    assert "expired" not in said(Backlog(2, 1_000, 0, 1.0))
