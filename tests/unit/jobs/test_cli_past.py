"""The command line goes back: rows as of a time, what differs, rollback, and dropped tables that are restored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs.administration.past_rows import RolledBack
from epochlake.jobs.gate.moments import words_of_moment

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine, fits

TABLE = "air.flights"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    with made.cluster:
        yield made


@pytest.fixture
def line(table: SmallCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path / "root", capsys)


def test_rows_are_shown_compared_and_rolled_back_to_a_time(table: SmallCluster, line: CommandLine) -> None:
    table.cluster.write(TABLE, [{"id": 1, "note": "old"}, {"id": 2, "note": "old"}])
    time.sleep(0.002)
    then = words_of_moment(time.time_ns() // 1000)
    table.cluster.write(TABLE, [{"id": 1, "note": "new"}, {"id": 3, "note": "new"}])
    table.cluster.delete(TABLE, [{"id": 2}])
    rows = line.json("query", TABLE, "--as-of", then).json
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": 1, "note": "old"}, {"id": 2, "note": "old"}]
    assert line.json("query", TABLE, "--as-of", then, "--key", "id=2").json == [{"id": 2, "note": "old"}]
    found = line.json("table", "diff", TABLE, "--from", then, "--limit", str(2**70)).json
    assert {row["id"]: row["_change"] for row in found} == {1: "changed", 2: "removed", 3: "added"}
    assert "there are more rows than these 1" in line.text("table", "diff", TABLE, "--from", then, "--limit", "1").err
    told = line.json("table", "rollback", TABLE, "--to", then, "--dry-run").json
    assert (told["rewritten"], told["brought_back"], told["deleted"], told["epoch"]) == (1, 1, 1, None)
    done = line.json("table", "rollback", TABLE, "--to", then)
    assert fits(done.json, RolledBack)
    assert sorted(table.cluster.scan(TABLE).read_all()["note"].to_pylist()) == ["old", "old"]
    again = line.text("table", "rollback", TABLE, "--to", then, "--until", done.json["until"])
    assert "all of which had landed before" in again.out
    assert "no row of air.flights has changed" in line.text("table", "rollback", TABLE, "--to", then).out
    assert line.text("query", TABLE, "--as-of", "2013-01-01").code == 2
    refused = line.text("query", TABLE, "--as-of", "2013-01-01T00:00:00Z")
    assert refused.code == 1
    assert "it was made later" in refused.err
    assert line.text("query", f"SELECT * FROM {TABLE}", "--as-of", then).code == 2


def test_a_table_is_dropped_listed_and_restored(table: SmallCluster, line: CommandLine) -> None:
    table.cluster.write(TABLE, [{"id": 1, "note": "old"}])
    line.done("table", "history", TABLE, "--keep", "7d")
    assert "history kept for 7 days" in line.text("table", "show", TABLE).out
    assert line.json("table", "show", TABLE).json["options"]["history_seconds"] == 604_800.0
    line.done("table", "drop", TABLE, "--keep", "1d")
    assert line.json("table", "list").json == []
    [dropped] = line.json("table", "list", "--dropped").json
    assert (dropped["name"], dropped["tablets"], dropped["keep_seconds"]) == (TABLE, 2, 86_400.0)
    assert "air.flights" in line.text("table", "list", "--dropped").out
    assert line.text("table", "restore", "air.others").code == 3
    line.done("table", "restore", TABLE, "--as", "again")
    assert "no dropped tables" in line.text("table", "list", "--dropped").out
    assert line.json("query", "air.again").json == [{"id": 1, "note": "old"}]
    assert "table air.again restored" in line.text("log", "list").out
    # Also when it is gone again, or its keyspace is called otherwise.
    line.done("table", "drop", "air.again")
    assert "table air.again restored" in line.text("log", "list").out
    assert "table air.again restored" in line.text("table", "restore", "air.again").out
    line.done("keyspace", "rename", "air", "sky")
    assert "table sky.again restored" in line.text("log", "list").out


@pytest.mark.parametrize(
    "words",
    [("query", TABLE), ("table", "show", TABLE), ("table", "drop", TABLE), ("table", "alter", TABLE, "--drop", "note")],
)
def test_who_names_a_table_that_was_dropped_is_told_how_it_comes_back(
    table: SmallCluster, line: CommandLine, words: tuple[str, ...]
) -> None:
    line.done("table", "create", "air.flight", "--column", "id bigint", "--primary-key", "id")
    line.done("table", "drop", TABLE)
    refused = line.json(*words)
    assert (refused.code, refused.error["code"]) == (3, "unknown-table")
    assert refused.error["hint"] == "It was dropped: `epochlake table restore air.flights` brings it back"
    bare = line.json(*words[: words.index(TABLE)], "flights", *words[words.index(TABLE) + 1 :])
    assert bare.error["hint"] == refused.error["hint"]
    # What was made under the name since is the table that is meant; what nobody dropped may be spelt wrong.
    assert "'air.flight'" in line.json("query", "air.fligts").error["hint"]
    line.done("table", "create", TABLE, "--column", "id bigint", "--primary-key", "id")
    assert line.json("query", TABLE).code == 0


def test_a_dropped_table_of_a_keyspace_that_is_gone_is_not_said_to_come_back(
    table: SmallCluster, line: CommandLine
) -> None:
    line.done("table", "drop", TABLE)
    line.done("keyspace", "drop", "air")
    assert "restore" not in line.json("query", TABLE).error["hint"]
