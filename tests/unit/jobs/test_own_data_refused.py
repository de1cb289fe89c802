"""What a user's own files, queries and exports may not be: one error each, and nothing changed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs import administration
from epochlake.jobs.exchange import row_files
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine, Result

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("day", "date", True), ("delay", "int", True)]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=COLUMNS, primary_key=("id",))
    with made.cluster:
        yield made


@pytest.fixture
def line(small: SmallCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path / "root", capsys)


def test_a_file_that_may_not_be_read_is_said_in_one_line(
    small: SmallCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(InvalidRequest, match=r"a\.csv cannot be read: Permission denied"):
        small.cluster.load(TABLE, tmp_path / "a.csv")


def test_a_file_whose_name_is_no_utf8_is_named_wherever_it_is_found(
    small: SmallCluster, line: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.csv").write_text("id\n1\n")
    (folder / os.fsdecode(b"\xff.csv")).write_text("id\n2\n")
    said = r"\\udcff\.csv' is no name in UTF-8"
    for files in (folder, str(folder / "*.csv"), folder / "\udcff.csv", [str(folder / "\udcff.csv")]):
        with pytest.raises(InvalidRequest, match=said) as refused:
            small.cluster.load(TABLE, files)
        assert "Rename the file" in refused.value.hint
    for words in (["load", TABLE, folder], ["table", "create", "air.other", "--like", folder]):
        result = line.text(*words)
        assert (result.code, "is no name in UTF-8" in result.error_text) == (2, True)
        assert "unexpected" not in result.error_text
    assert small.cluster.count(TABLE) == 0


def test_what_may_not_be_read_or_written_is_no_file_that_is_not_there(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever tests may be allowed everything, so the file system is played."""
    monkeypatch.chdir(tmp_path)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    Path("a.csv").write_text("id,day\n")
    Path("delta").mkdir()
    monkeypatch.setattr(row_files, "_of_csv", refused)
    monkeypatch.setattr(row_files, "_writer", refused)
    monkeypatch.setattr(
        Path, "is_dir", lambda path: refused() if path == Path("delta/_delta_log") else os.path.isdir(path)
    )
    for words, said in (
        (["load", TABLE, "a.csv", "--format", "csv"], "a.csv may not be read: permission denied"),
        (["table", "export", TABLE, "rows.csv"], "no file may be written to ."),
        (["table", "adopt", "delta", "air.adopted"], "delta may not be read: permission denied"),
    ):
        told = line.text(*words)
        assert told.code == 2
        assert said in told.error_text
        assert told.hint == "Check owner and mode"


WRONG = {
    "no query": ("SELEC 1 FROM air.flights", "cannot be read: syntax error"),
    "a change": ("DELETE FROM air.flights", "Only SELECT"),
    "two": ("SELECT 1; SELECT 2", "is not one statement"),
    "no such table": ("SELECT * FROM air.planes", "no table 'air.planes'"),
    "no keyspace": ("SELECT * FROM planes", "Name tables as keyspace.table"),
    "no such column": ("SELECT tail FROM air.flights", '"tail"'),
    "not a line of ours": ("SELECT tail FROM air.flights", "`epochlake table show TABLE` has the columns"),
    "another type": ("SELECT CAST('x' AS BIGINT)", "values of its type, or cast it"),
    "no such file": ("SELECT * FROM 'nothing.csv'", "counts from the working directory"),
    "three names": ("SELECT * FROM a.air.flights", "Name tables as keyspace.table"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_query_that_cannot_be_answered_says_why(line: CommandLine, what: str) -> None:
    query, said = WRONG[what]
    told = line.text("query", query)
    assert told.code != 0
    assert said in " ".join(told.err.split()), told.err
    assert "unexpected" not in told.err
    assert "EXPLAIN" not in told.err


def test_what_is_no_query_no_file_and_no_session_is_said_at_once(small: SmallCluster) -> None:
    cluster: Any = small.cluster
    for call, said in (
        (lambda: cluster.sql(None), "None is no query. Write one SELECT"),
        (lambda: cluster.load(TABLE, 7), "7 is no name of a file. Give a path"),
        (lambda: cluster.load(TABLE, ""), "'' is no name of a file. Give a path"),
        (lambda: cluster.load(TABLE, ["a.csv", 7]), "7 is no name of a file. Give a path"),
        (lambda: cluster.load(TABLE, [b"a.csv"]), "b'a.csv' is no name of a file. Give a path"),
        (lambda: cluster.load(TABLE, "a.csv", batch=5), "the batch name 5 cannot be used"),
        (lambda: cluster.pipeline("load", None), "None is no session of Spark. Give the notebook's `spark`"),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(said)):
            call()


BAD: dict[str, tuple[list[str], str]] = {
    "nothing there": (["load", TABLE, "none.parquet"], "there is no file none.parquet"),
    "an empty directory": (["load", TABLE, "empty"], "there is no file to load below"),
    "no match": (["load", TABLE, "*.nothing"], "no file is named as"),
    "twice": (["load", TABLE, "a.parquet", "a.parquet"], "both called a.parquet"),
    "torn": (["load", TABLE, "torn.parquet"], "torn.parquet cannot be read as parquet"),
    "a key of another column": (["query", TABLE, "--key", "day=2013-01-01"], "Give the primary key (id)"),
    "a filter of two kinds": (["query", TABLE, "--where", "delay = 1 or id = 2"], "there is only `and`"),
    "a key that is null": (["load", TABLE, "null.parquet"], "id"),
    "like nothing": (["table", "create", "air.x", "--like", "none.csv"], "there is no file none.csv"),
    "like no rows": (["table", "create", "air.x", "--like", "none_of_it.csv"], "has no rows"),
    "neither": (["table", "create", "air.x"], "--like FILE"),
    "another column": (
        ["table", "create", "air.x", "--like", "a.parquet", "--column", "tail int"],
        "has no column tail",
    ),
    "into a directory": (["table", "export", TABLE, "empty", "--format", "csv", "--overwrite"], "is a directory"),
    "over what is no table": (["table", "export", TABLE, "empty", "--overwrite"], "is no Delta table"),
    "no format": (["table", "export", TABLE, "out.xls"], "--format"),
    "two columns of a name": (["table", "create", "air.x", "--like", "twice.csv"], "two columns 'id'"),
    "two columns of a name loaded": (["load", TABLE, "twice.csv"], "two columns 'id'"),
    "no commas": (["load", TABLE, "semicolons.csv"], "have no commas between them"),
    "a URI": (["load", TABLE, "s3://lake/a.parquet"], "s3://lake/a.parquet is no path of a file system"),
    "export to a URI": (["table", "export", TABLE, "s3://lake/rows"], "s3://lake/rows is no path of a file system"),
    "to a URI": (["query", TABLE, "--to", "s3://lake/rows.csv"], "is no path of a file system"),
    "like a URI": (["table", "create", "air.x", "--like", "abc://lake/a.csv"], "is no path of a file system"),
    "a key that is no column": (
        ["table", "create", "air.x", "--like", "a.parquet", "--primary-key", "tail"],
        "are id, day",
    ),
    "a key of no number": (["query", TABLE, "--key", "id=x"], "Give a value of the column's type"),
    "to no directory": (["query", TABLE, "--to", "nowhere/rows.csv"], "there is no directory nowhere"),
    "export to no directory": (["table", "export", TABLE, "nowhere/rows.csv"], "there is no directory nowhere"),
    "columns of a query": (["query", "SELECT 1", "--column", "id"], "Say it in the SELECT"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_error_and_changes_nothing(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"id": range(5), "day": ["2013-01-01"] * 5}), "a.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    pq.write_table(pa.table({"id": pa.array([1, None], pa.int64())}), "null.parquet")
    (tmp_path / "none_of_it.csv").write_text("id,day\n")
    (tmp_path / "twice.csv").write_text("id,id\n1,2\n")
    (tmp_path / "semicolons.csv").write_text("id;day\n1;2013-01-01\n")
    words, said = BAD[what]
    epoch = small.cluster.catch_up().epoch
    told = line.text(*words)
    assert told.code == 2, told.err
    assert said in " ".join(told.err.split()), told.err
    assert told.err.count("hint:") <= 1
    assert small.cluster.catch_up().epoch == epoch
    assert small.cluster.count(TABLE) == 0


AWKWARD = 'x y,"a`b",x_y,"c,d",$HOME "q",it\'s,plain\n1,a,b,c,d,e,f\n2,b,c,d,e,f,g\n'


def run_as_told(line: CommandLine, error: str) -> Result:
    """Run the command of a hint as a shell takes it apart, which would put values in the place of variables."""
    command = error.partition("which this makes: ")[2].strip()
    told = f'epochlake() {{ printf "%s\\n" "$@"; }}; {command}'
    words = subprocess.run(["sh", "-c", told], capture_output=True, check=True)
    return line.text(*words.stdout.decode().splitlines())


def test_a_file_whose_columns_cannot_be_called_so_is_told_a_command_that_works_as_it_is(
    line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my file.csv").write_text(AWKWARD.replace('$HOME "q"', '"$HOME ""q"""'), encoding="utf-8")
    refused = line.text("table", "create", "air.awkward", "--like", "my file.csv")
    assert refused.code == 2
    assert "columns that cannot be called so: 'x y', 'a`b', 'c,d', '$HOME \"q\"'" in refused.err
    made = run_as_told(line, refused.err)
    assert made.code == 0, made.err
    assert line.text("table", "create", "air.awkward", "--like", "my file-renamed.csv").code == 0
    shown = {column["name"]: column["type"] for column in line.json("table", "show", "air.awkward").json["columns"]}
    assert list(shown) == ["x_y_2", "a_b", "x_y", "c_d", '$HOME_"q"', "it's", "plain"]
    assert line.json("load", "air.awkward", "my file-renamed.csv").json["rows"] == 2


def test_a_file_with_other_names_keeps_the_types_of_its_cells(
    line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trips.csv").write_text("Trip ID,fare,note\n1,NA,NA\n2,2.5,x\n", encoding="utf-8")
    refused = line.text("table", "create", "air.trips", "--like", "trips.csv")
    assert run_as_told(line, refused.err).code == 0
    assert line.text("table", "create", "air.trips", "--like", "trips-renamed.csv").code == 0
    assert line.json("load", "air.trips", "trips-renamed.csv").code == 0
    rows = line.json("query", "air.trips").json
    by_id = sorted(rows, key=lambda row: int(row["Trip_ID"]))
    assert by_id == [{"Trip_ID": 1, "fare": None, "note": "NA"}, {"Trip_ID": 2, "fare": 2.5, "note": "x"}]


def test_columns_of_no_type_are_told_with_what_works_as_it_is(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    times = pa.array([1, 2], pa.time32("s"))
    pq.write_table(pa.table({"id": [1, 2], "it's": pa.nulls(2), "n": pa.nulls(2), "at": times}), "a.parquet")
    refused = line.text("table", "create", "air.untold", "--like", "a.parquet")
    assert "at (time32[ms]): there is no such type of a column" in refused.err
    assert run_as_told(line, refused.err).code == 0
    refused = line.text("table", "create", "air.untold", "--like", "a-as-texts.parquet")
    option = refused.err.partition("Say what they are to be: ")[2].strip()
    assert option == """--column "it's string" --column 'n string'"""
    made = line.text("table", "create", "air.untold", "--like", "a-as-texts.parquet", *shlex.split(option))
    assert made.code == 0, made.err
    assert line.json("load", "air.untold", "a-as-texts.parquet").json["rows"] == 2
    assert small.cluster.get("air.untold", 2)["at"] == "00:00:02"


def test_nanoseconds_that_a_table_cannot_hold_are_called_so(small: SmallCluster, tmp_path: Path) -> None:
    administration.create_table(small.cluster, "air.fine", [("id", "bigint", False), ("at", "timestamp", True)], ["id"])
    place = tmp_path / "fine.parquet"
    pq.write_table(pa.table({"id": [1], "at": pa.array([1_001], pa.timestamp("ns", "UTC"))}), place)
    with pytest.raises(InvalidRequest, match=r"not timestamp\[ns, tz=UTC\], which has finer .*00\.000001001Z"):
        small.cluster.load("air.fine", place)
    pq.write_table(pa.table({"id": [1], "at": pa.array([1_000], pa.timestamp("ns", "UTC"))}), place)
    small.cluster.load("air.fine", place)
    assert small.cluster.count("air.fine") == 1


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_name_is_no_place_to_write_to(
    line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for command in (["table", "export", TABLE, blank], ["query", TABLE, "--to", blank]):
        refused = line.text(*command)
        assert (refused.code, refused.out) == (2, "")
        assert "is no name of a file" in refused.err
    assert list(Path().iterdir()) == []
