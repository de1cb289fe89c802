"""Compaction beside damage and clocks that are wrong: it goes on with what is whole, and forgets nothing early."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compaction import Budget

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import without_leases
from tests.support.versions import compact_here, read_versions, stage_versions, write_versions

ROWS = range(40)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})


def live(table: SmallCluster, node: str) -> list[DataFile]:
    return list(open_snapshot(table.address(node)).all_files.values())


def test_a_range_that_is_known_to_be_damaged_uses_up_no_budget_that_another_range_needs(table: SmallCluster) -> None:
    """It was what readers pay most for, in each run anew, and nothing else was ever compacted."""
    for part in range(4):
        write_versions(table, dict.fromkeys(ROWS, f"{part}"))
    [first] = compact_here(table, budget=Budget(most_bytes=1), dry_run=True).compacted
    low, high = table.tokens_of(first.unit)
    [*_, newest] = sorted(live(table, "A"), key=lambda file: (low <= file.min_token <= high, file.max_written_at))
    for node in "ABC":
        path = Path(table.address(node).uri, newest.path)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    report = compact_here(table, budget=Budget(most_bytes=1), repairing=False)
    assert (report.compacted, [one.reason for one in report.skipped]) == ((), [compaction.DAMAGED])
    report = compact_here(table, budget=Budget(most_bytes=1), repairing=False)
    assert [one.unit for one in report.compacted] == [1 - first.unit]
    report = compact_here(table, budget=Budget(most_bytes=1), repairing=False)
    assert [one.units for one in report.skipped] == [(first.unit,)], "it is tried where nothing else is worth it"


def test_a_clock_that_has_jumped_ahead_makes_no_delete_old(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed load that is tried again within the grace would bring its rows back. The root tells the time."""
    pipeline = table.pipeline("tried again")
    staged = stage_versions(table, pipeline, {1: "late"})
    write_versions(table, {1: "a", 2: "a"})
    write_versions(table, {1: None})
    real = time.time_ns
    with monkeypatch.context() as jumped:
        jumped.setattr(time, "time_ns", lambda: real() + 60 * 86_400 * 10**9)
        assert compact_here(table, tombstone_grace_seconds=864_000.0).compacted
    assert "seconds ahead of" in caplog.text
    assert any(file.has_tombstones for file in live(table, "A"))
    table.land(pipeline, staged)
    assert read_versions(table) == [(2, "a")]
