"""`repair`, `compact` and `status` where files are damaged or replicas are away."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs import spark_session
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.workers.threads import ThreadWorkers

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine
from tests.support.compactions import without_leases
from tests.support.versions import merge_here, read_versions, write_versions

TABLE = "air.flights"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)
    # What Spark would do is done here: starting it takes longer than all of these tests.
    monkeypatch.setattr(spark_session, "session", lambda name: name)
    monkeypatch.setattr(compaction, "merge_with_spark", lambda spark: merge_here)
    monkeypatch.setattr(compaction, "SparkWorkers", lambda spark, partitions: ThreadWorkers())
    monkeypatch.setenv("COLUMNS", "80")
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    for part in range(3):
        write_versions(table, {row: f"note {row}" for row in range(part, 60, 3)})
    return table


@pytest.fixture
def line(table: SmallCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path / "root", capsys)


def live(table: SmallCluster, node: str) -> list[Path]:
    address = table.address(node)
    return sorted(Path(address.uri, file.path) for file in open_snapshot(address).all_files.values())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_compacting_with_a_replica_away_is_worth_trying_again_and_names_it(
    table: SmallCluster, line: CommandLine
) -> None:
    with table.without("B"):
        result = line.text("compact", TABLE, "--all")
    assert result.code == 75
    assert "B/d1" in result.out
    assert "none of 2 ranges was compacted" in result.out
    assert "1 replica(s) do not answer" in result.err
    assert all(len(text) <= 80 for text in result.out.splitlines())
    assert line.text("compact", TABLE, "--all").code == 0


def test_compacting_a_range_without_a_whole_copy_is_no_success(table: SmallCluster, line: CommandLine) -> None:
    for node in "ABC":
        flip(live(table, node)[0])
    result = line.text("compact", TABLE, "--all")
    assert result.code == 75
    assert "whole copy" in " ".join(result.out.split())


def test_what_a_read_has_met_is_counted_by_status_until_it_is_repaired(table: SmallCluster, line: CommandLine) -> None:
    for path in live(table, "A"):
        path.unlink()
    assert len(read_versions(table, "ALL")) == 60
    [health] = line.done("status")["health"]["tables"]
    assert health["damaged"] == len(table.cluster.damage.of(table.table.table_id)) > 0
    shown = line.text("status").out
    assert "of files: `epochlake repair air.flights`" in " ".join(shown.split())
    assert line.text("repair", TABLE).code == 0
    [health] = line.done("status")["health"]["tables"]
    assert health["damaged"] == 0
    assert len(read_versions(table, "ALL")) == 60
