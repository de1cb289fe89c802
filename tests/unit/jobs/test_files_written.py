"""Where rows are written to, what is refused there, and what comes back of a file that was written."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.exchange import row_files
from epochlake.jobs.exchange.export_formats import ExportFormat
from epochlake.jobs.exchange.exporting import export
from epochlake.jobs.exchange.row_files import Format, batches_of, write_rows
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("t", "string", True), ("a", "array<string>", True), ("b", "binary", True)]
NO_UTF_8 = pa.array([b"\xff", None, b"a", b"\xed\xa0\x80"])


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


def rows(**columns: pa.Array) -> pa.RecordBatchReader:
    return pa.table({"id": pa.array([1, 2, 3, 4]), **columns}).to_reader()


def test_a_pipe_or_a_device_stays_what_it_is(small: SmallCluster, line: CommandLine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "stdout.csv").symlink_to(tmp_path / "pipe.csv")  # as /dev/stdout leads to a pipe
    for name in ("pipe.csv", "stdout.csv"):
        for command in (["query", TABLE, "--to"], ["table", "export", "--overwrite", TABLE]):
            refused = line.text(*command, tmp_path / name)
            assert (refused.code, refused.out) == (2, "")
            assert f"{name} is a pipe or a device" in refused.err
    # Not /dev/null: run by root, and without what is tested here, the machine would lose it.
    assert stat.S_ISFIFO((tmp_path / "pipe.csv").lstat().st_mode)
    assert (tmp_path / "stdout.csv").is_symlink()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_leads_to_the_rows(tmp_path: Path, there: bool) -> None:
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "rows.arrow", tmp_path / "link.arrow"
    link.symlink_to(target)
    if there:
        target.write_text("of yesterday")
    assert write_rows(rows(), link, Format.ARROW) == 4
    assert link.is_symlink()
    assert not target.is_symlink()
    assert pa.ipc.open_file(target).read_all().num_rows == 4
    assert [path.name for path in target.parent.iterdir()] == ["rows.arrow"]


def test_a_name_may_be_as_long_as_a_file_system_has_it(line: CommandLine, tmp_path: Path) -> None:
    assert line.text("query", TABLE, "--to", tmp_path / f"{'é' * 120}.parquet").code == 0
    refused = line.text("query", TABLE, "--to", tmp_path / f"{'n' * 250}.parquet")
    assert refused.code == 2
    assert "File name too long" in refused.err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    for write in (
        lambda: write_rows(rows(), tmp_path, Format.CSV),
        lambda: export(rows(), tmp_path, ExportFormat.CSV, overwrite=True),
    ):
        with pytest.raises(InvalidRequest, match="is a directory, and csv is one file"):
            write()


def test_what_a_csv_cannot_have_is_named(small: SmallCluster, line: CommandLine, tmp_path: Path) -> None:
    small.cluster.write(TABLE, [{"id": 1, "t": None, "a": [], "b": b"\xff"}])
    nested = line.text("query", TABLE, "--to", tmp_path / "rows.csv")
    assert nested.code == 2
    assert "has no lists, maps and structs: a (array<string>)" in nested.err
    assert "hint: Write Parquet or Arrow, or other columns" in nested.err
    for_bytes = line.text("query", TABLE, "--column", "id,b", "--to", tmp_path / "rows.csv")
    assert (for_bytes.code, "hint: Write Parquet or Arrow" in for_bytes.err) == (2, True)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".csv") or "rows.csv" in path.name]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_texts_that_are_no_utf_8_come_back_as_they_are(
    small: SmallCluster, line: CommandLine, tmp_path: Path, name: str
) -> None:
    texts = NO_UTF_8.view(pa.string())
    small.cluster.write(TABLE, rows(t=texts, a=pa.ListArray.from_arrays([0, 1, 2, 4, 4], texts), b=NO_UTF_8))
    assert line.text("query", TABLE, "--to", tmp_path / name).code == 0
    before = _stored(small)
    assert [text for text, _ in before] == NO_UTF_8.to_pylist()
    small.cluster.delete(TABLE, [{"id": number} for number in (1, 2, 3, 4)])
    assert line.text("load", TABLE, tmp_path / name).code == 0
    assert _stored(small) == before


def _stored(small: SmallCluster) -> list[object]:
    found = small.cluster.scan(TABLE).read_all().sort_by("id").combine_chunks()
    texts, lists = found["t"].chunk(0), found["a"].chunk(0)
    return list(zip(texts.view(pa.binary()).to_pylist(), lists.view(pa.list_(pa.binary())).to_pylist(), strict=True))


NESTED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda texts: texts,
    "list": lambda texts: pa.ListArray.from_arrays([0, 1, 4], texts),
    "large list": lambda texts: pa.LargeListArray.from_arrays([0, 1, 4], texts),
    "list of a size": lambda texts: pa.FixedSizeListArray.from_arrays(texts, 2),
    "struct": lambda texts: pa.StructArray.from_arrays([texts], ["t"]),
    "map": lambda texts: pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), texts.slice(0, 2)),
    "dictionary": lambda texts: pa.DictionaryArray.from_arrays([0, 1, 2], texts),
}


@pytest.mark.parametrize("what", NESTED)
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_file_of_arrow_may_have_such_texts_anywhere(tmp_path: Path, what: str, type_: pa.DataType) -> None:
    as_bytes = {pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}.get(type_, pa.binary())
    values = NESTED[what](NO_UTF_8.cast(as_bytes).view(type_))
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), pa.schema([("t", values.type)])) as writer:
        writer.write(pa.record_batch([values], ["t"]))
    schema, batches = batches_of(tmp_path / "rows.arrow", Format.ARROW)
    assert pa.Table.from_batches(batches, schema).num_rows == len(values)


def test_a_hexadecimal_number_that_nobody_declares_is_a_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,n,t\n1,5,0x1\n2,0x10,x\n")
    schema, batches = batches_of(file, Format.CSV)
    read = pa.Table.from_batches(batches, schema).to_pydict()
    assert read == {"id": [1, 2], "n": ["5", "0x10"], "t": ["0x1", "x"]}
    file.write_text("id,t\n1,0x1\n2,-5\n")
    assert row_files.batches_of(file, Format.CSV)[0].field("id").type == pa.int64()


NUMBERS = [float("nan"), float("inf"), float("-inf"), -0.0, None]
SAID = ["NaN", "Infinity", "-Infinity", -0.0, None]


def test_numbers_that_json_has_no_word_for_are_not_null(
    small: SmallCluster, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    within = pa.array([[{"d": number}] for number in NUMBERS])
    found = pa.table({"d": pa.array(NUMBERS), "a": within, "b": pa.array([b"\xff"] * 5)})
    monkeypatch.setattr(Cluster, "scan", lambda *_, **__: found.to_reader())
    monkeypatch.setattr(Cluster, "changed_rows", lambda *_, **__: found.to_reader())
    monkeypatch.setattr(Cluster, "changes", lambda *_, **__: iter(found.to_batches()))
    expected = [{"d": said, "a": [{"d": said}], "b": "/w=="} for said in SAID]
    assert repr(line.done("query", TABLE)) == repr(expected)
    assert line.done("table", "diff", TABLE, "--from", "2013-01-01T10:00:00Z") == expected
    followed = line.text("changes", "read", TABLE, "--follow")
    assert [json.loads(row, parse_constant=pytest.fail) for row in followed.out.splitlines()] == expected


def test_columns_of_a_result_that_have_one_name_are_told_apart(line: CommandLine, tmp_path: Path) -> None:
    query = "SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS n, 5 AS m"
    expected = {"n": 1, "n_2": 2, "n_1": 3, "n_3": 4, "m": 5}
    assert line.done("query", query) == [expected]
    assert line.text("query", query).out.split()[-5:] == ["1", "2", "3", "4", "5"]
    assert line.text("query", query, "--to", tmp_path / "rows.parquet").code == 0
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == [expected]
    plain = line.done("query", "SELECT a.id, b.id FROM (SELECT 1 AS id) a JOIN (SELECT 2 AS id) b ON b.id > a.id")
    assert plain == [{"id": 1, "id_1": 2}]


@pytest.mark.parametrize(
    ("value", "type_"), [("1::UHUGEINT", "UHUGEINT"), ("[TIMETZ '10:00:00+02']", "TIME WITH TIME ZONE")]
)
def test_what_would_come_out_as_another_value_is_refused(line: CommandLine, value: str, type_: str) -> None:
    refused = line.text("query", f"SELECT 1 AS n, {value} AS v")
    assert refused.code == 2
    assert f"Arrow has no {type_}" in refused.err
    assert line.done("query", "SELECT sum(170141183460469231731687303715::HUGEINT) AS v")
    assert line.done("query", "SELECT TIMESTAMPTZ '2013-01-01 10:00:00Z' AS at")[0]["at"] == "2013-01-01T10:00:00Z"


def test_a_moment_with_nanoseconds_is_shown(line: CommandLine, tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([1, None], pa.timestamp("ns"))}), tmp_path / "nano.parquet")
    shown = line.done("query", f"SELECT * FROM '{tmp_path}/nano.parquet'")
    assert shown == [{"at": "1970-01-01T00:00:00.000000001"}, {"at": None}]


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_full_disk_behind_the_output_is_said_as_it_is(
    small: SmallCluster, line: CommandLine, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    ended = getattr(line, output)("query", TABLE)
    assert ended.code == 1
    assert "what the command prints cannot be written: No space left on device" in ended.err
    assert "unexpected" not in ended.err
