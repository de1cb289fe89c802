"""`load` and `query`: rows of files into tables and out of them, and what is said of those that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.cli.documents import Loaded
from epochlake.jobs.cli.text import rows as text
from epochlake.jobs.gate import crowding
from epochlake.jobs.upkeep.compaction import compact
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine, fits

TABLE = "air.flights"
COLUMNS = [
    ("carrier", "string", False),
    ("flight", "int", False),
    ("delay", "double", True),
    ("day", "date", True),
    ("at", "timestamp", True),
    ("fare", "decimal(6,2)", True),
]
CSV = """carrier,flight,delay,day,at,fare
UA,1,3.5,2013-01-01,2013-01-01T10:00:00Z,12.50
UA,2,,,,
AA,1,40,2013-01-02,2013-01-02T10:00:00Z,8.00
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=COLUMNS, primary_key=("carrier", "flight"))
    with made.cluster:
        yield made


@pytest.fixture
def line(table: SmallCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "flights.csv").write_text(CSV)
    return CommandLine(tmp_path / "root", capsys)


def test_a_file_is_written_once_and_its_rows_are_shown(line: CommandLine, tmp_path: Path) -> None:
    first = line.json("load", TABLE, tmp_path / "flights.csv", "--batch", "2013", "--consistency", "all")
    assert fits(first.json, Loaded)
    assert (first.json["rows"], first.json["already"], first.json["consistency"]) == (3, False, "ALL")
    again = line.text("load", TABLE, tmp_path / "flights.csv", "--batch", "2013")
    assert again.code == 0
    assert "3 rows of air.flights had been written before at QUORUM" in again.out
    rows = sorted(line.json("query", TABLE).json, key=lambda row: (row["carrier"], row["flight"]))
    assert rows[1] == {
        "carrier": "UA",
        "flight": 1,
        "delay": 3.5,
        "day": "2013-01-01",
        "at": "2013-01-01T10:00:00Z",
        "fare": "12.50",
    }
    assert rows[2] == {"carrier": "UA", "flight": 2} | dict.fromkeys(("delay", "day", "at", "fare"))
    shown = line.text("query", TABLE, "--key", "carrier=AA", "--key", "flight=1")
    assert shown.code == 0
    assert "40.0" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_rows_are_deleted_by_the_keys_of_a_file(line: CommandLine, tmp_path: Path) -> None:
    assert line.text("load", TABLE, tmp_path / "flights.csv").code == 0
    keys = tmp_path / "keys.json"
    keys.write_text('{"carrier": "UA", "flight": 1}\n{"carrier": "AA", "flight": 1}\n')
    deleted = line.text("load", TABLE, keys, "--delete")
    assert "2 rows of air.flights deleted by their keys at QUORUM" in deleted.out
    assert [row["flight"] for row in line.json("query", TABLE).json] == [2]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["delay > 3"], ["AA 1", "UA 1"]),
        (["delay>3", "carrier = UA"], ["UA 1"]),
        (["delay is null"], ["UA 2"]),
        (["Delay IS NOT NULL".lower(), "day <= 2013-01-01"], ["UA 1"]),
        (["at >= 2013-01-02T00:00:00Z"], ["AA 1"]),
        (["fare = 12.50"], ["UA 1"]),
        (["carrier <> 'UA'"], ["AA 1"]),
        (["carrier != 'null'", "delay > 3"], ["AA 1", "UA 1"]),
        (["flight != 1"], ["UA 2"]),
    ],
)
def test_filters_are_applied_to_values_of_the_columns_types(
    line: CommandLine, tmp_path: Path, filters: list[str], found: list[str]
) -> None:
    assert line.text("load", TABLE, tmp_path / "flights.csv").code == 0
    words = [word for one in filters for word in ("--where", one)]
    rows = line.json("query", TABLE, "--column", "carrier,flight", *words).json
    assert sorted(f"{row['carrier']} {row['flight']}" for row in rows) == found


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.arrow"])
def test_rows_are_kept_in_a_file_and_come_back_from_it(line: CommandLine, tmp_path: Path, name: str) -> None:
    assert line.text("load", TABLE, tmp_path / "flights.csv").code == 0
    written = line.text("query", TABLE, "--to", tmp_path / name)
    assert (written.code, written.out) == (0, "")
    assert f"3 rows of {TABLE} are in {tmp_path / name}" in written.err
    back = line.json("load", TABLE, tmp_path / name, "--batch", name)
    assert back.json["rows"] == 3
    assert line.text("query", TABLE, "--to", tmp_path / name, "--limit", "1").code == 0
    read = {"out.parquet": pq.read_table, "out.csv": csv.read_csv}.get(name)
    assert read is None or read(tmp_path / name).num_rows == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_who_is_shown_some_rows_only_is_told_so(line: CommandLine, tmp_path: Path) -> None:
    assert line.text("load", TABLE, tmp_path / "flights.csv").code == 0
    some = line.json("query", TABLE, "--limit", "2")
    assert len(some.json) == 2
    assert "there are more rows than these 2" in some.err
    assert line.json("query", TABLE, "--limit", "3").err == ""
    for all_of_them in ("0", str(2**70)):
        assert len(line.json("query", TABLE, "--limit", all_of_them).json) == 3
    assert line.text("query", TABLE, "--where", "flight = 99").out.strip() == "no rows"


def test_what_would_move_a_terminals_cursor_is_not_sent_there(line: CommandLine, tmp_path: Path) -> None:
    rows = pa.table({"carrier": ["\x1b[2J"], "flight": pa.array([1], pa.int32())})
    for name, kind in (("delay", pa.float64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))):
        rows = rows.append_column(name, pa.nulls(1, kind))
    pq.write_table(rows.append_column("fare", pa.nulls(1, pa.decimal128(6, 2))), tmp_path / "odd.parquet")
    assert line.text("load", TABLE, tmp_path / "odd.parquet").code == 0
    assert "\x1b" not in line.text("query", TABLE).out


WRONG: dict[str, tuple[list[str], str]] = {
    "no such file": (["load", TABLE, "none.csv"], "there is no file none.csv"),
    "no format": (["load", TABLE, "flights.txt"], "Say it with --format: parquet, csv, json, arrow"),
    "another format": (["load", TABLE, "flights.csv", "--format", "parquet"], "cannot be read as parquet"),
    "other columns": (["load", TABLE, "other.csv"], "it has no column tail"),
    "wrong values": (["load", TABLE, "wrong.csv"], "column delay is double, and row 0 has 'late'"),
    "no such table": (["load", "air.planes", "flights.csv"], "no table 'air.planes'"),
    "no such level": (["load", TABLE, "flights.csv", "--consistency", "MOST"], "MOST"),
    "an empty batch": (["load", TABLE, "flights.csv", "--batch", ""], "batch name"),
    "no such column": (["query", TABLE, "--column", "tail"], "it has no column tail"),
    "no filter": (["query", TABLE, "--where", "delay"], "the filter 'delay' cannot be read"),
    "a filter of no column": (["query", TABLE, "--where", "tail = 3"], "has no column tail"),
    "a value of another type": (["query", TABLE, "--where", "delay > late"], "'late' is no double"),
    "a value that is null": (["query", TABLE, "--where", "carrier = NULL"], "Write carrier is null"),
    "a value that is no number": (["query", TABLE, "--where", "delay != NaN"], "'delay != NaN' compares with NaN"),
    "two filters in one": (["query", TABLE, "--where", "carrier = UA or carrier = AA"], "looks like one more filter"),
    "more than null": (["query", TABLE, "--where", "delay is null now"], "'now' follows 'is null'"),
    "half a key": (["query", TABLE, "--key", "carrier=UA"], "column flight (int) is missing"),
    "no key": (["query", TABLE, "--key", "carrier"], "Write COLUMN=VALUE"),
    "to json": (["query", TABLE, "--to", "out.json"], "Print them: --output json"),
    "to nowhere": (["query", TABLE, "--to", "gone/out.csv"], "there is no directory gone"),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_gets_one_error_that_says_what_to_do(
    line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.txt").write_text(CSV)
    (tmp_path / "other.csv").write_text(CSV.replace("fare", "tail"))
    (tmp_path / "wrong.csv").write_text(CSV.replace("3.5", "late"))
    words, message = WRONG[what]
    result = line.text(*words)
    assert result.code in (2, 3)
    assert message in result.error_text
    assert line.json("query", TABLE).json == []


def test_who_writes_faster_than_is_compacted_is_told_so_and_status_says_what_readers_pay(
    line: CommandLine, table: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowding, "CROWDED_FILES", 6)
    for _ in range(6):
        loaded = line.json("load", TABLE, tmp_path / "flights.csv")
        assert loaded.json["warnings"] == []
    [warning] = line.json("load", TABLE, tmp_path / "flights.csv").json["warnings"]
    assert warning.startswith("air.flights is written faster than it is compacted: 6 small files in a range")
    assert "is compacted: 7 small files" in " ".join(line.text("load", TABLE, tmp_path / "flights.csv").out.split())
    [health] = line.json("status").json["health"]["tables"]
    backlog = health["backlog"]
    assert backlog["due"] == backlog["waiting"] + backlog["due"] > 0
    assert backlog["times"] > 3
    shown = line.text("status").out
    assert "To be compacted" in shown
    assert f"reads take {backlog['times']:.1f} times as long as afterwards" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert compact(table.cluster, TABLE).complete
    assert line.json("status").json["health"]["tables"][0]["backlog"] is None
    assert "To be compacted" not in line.text("status").out
    assert line.json("load", TABLE, tmp_path / "flights.csv").json["warnings"] == []


def test_a_decimal_that_is_compared_with_another_number_is_told_how(table: SmallCluster) -> None:
    with pytest.raises(InvalidRequest, match=r"Compare a decimal with one: pyarrow\.compute\.field\('fare'\)"):
        table.cluster.scan(TABLE, where=pc.field("fare") < 10)
    assert table.cluster.scan(TABLE, where=pc.field("fare") < Decimal(10)).read_all().num_rows == 0


def test_a_column_that_a_file_lacks_is_said_to_be_null_or_to_have_its_default() -> None:
    done = Loaded(TABLE, 1, 1, 9, 7, "QUORUM", deleted=False, already=False, missing={})
    done = msgspec.structs.replace(done, filled=("tail", "note"), defaults={"note": "none"})
    said = [str(part) for part in text.loaded(done)]
    assert "null, as the file has no such column: tail" in said
    assert "note: its default, 'none', as the file has no such column" in said


def test_cells_are_spelt_as_filters_spell_them() -> None:
    assert [str(text._cell(value)) for value in (True, False, None, 7)] == ["true", "false", "null", "7"]
