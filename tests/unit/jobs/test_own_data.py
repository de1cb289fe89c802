"""A user's own files and Delta tables: proposed, loaded once, exported, adopted and asked by SQL."""

from __future__ import annotations

import csv
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import epochlake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from epochlake.jobs.administration import adopting
from epochlake.jobs.administration.adopting import adopt
from epochlake.jobs.cli.documents import Loaded
from epochlake.jobs.exchange import exporting, loading, row_files, sources
from epochlake.jobs.exchange.export_formats import ExportFormat, ending
from epochlake.jobs.gate.errors import ReadDisturbed
from epochlake.jobs.gate.gate import Gate
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import EpochlakeError, InvalidRequest, InvariantViolated

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine, fits
from tests.support.replicas import flip_in_a_page

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("day", "date", True), ("delay", "int", True)]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sources, "ROWS_OF_PART", 100)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=COLUMNS, primary_key=("id",))
    with made.cluster:
        yield made


@pytest.fixture
def line(small: SmallCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path / "root", capsys)


def rows(first: int, last: int, **columns: Any) -> pa.Table:
    ids = range(first, last)
    days = [f"2013-01-{number % 28 + 1:02}" for number in ids]
    return pa.table({"id": pa.array(ids, pa.int32()), "day": days} | columns)


def ids_in(small: SmallCluster) -> list[int]:
    return sorted(small.cluster.scan(TABLE, columns=["id"]).read_all()["id"].to_pylist())


def test_files_of_a_directory_land_once_in_batches_of_their_own_names(
    line: CommandLine, small: SmallCluster, tmp_path: Path
) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    pq.write_table(rows(0, 250), tmp_path / "in/a.parquet")
    pq.write_table(rows(250, 300), tmp_path / "in/deep/b.parquet")
    (tmp_path / "in/_SUCCESS").touch()
    (tmp_path / "in/.part.crc").touch()
    done = line.json("load", TABLE, tmp_path / "in", "--batch", "jan").json
    assert fits(done, Loaded)
    assert [part["batch"] for part in done["parts"]] == [
        "jan/a.parquet",
        "jan/a.parquet/1",
        "jan/a.parquet/2",
        "jan/deep/b.parquet",
    ]
    assert (done["rows"], done["already"], done["filled"]) == (300, False, ["delay"])
    assert done["casts"] == {"day": "string to date"} | {"id": "int to bigint"}
    assert ids_in(small) == [*range(300)]
    pq.write_table(rows(300, 310), tmp_path / "in/c.parquet")
    again = line.text("load", TABLE, tmp_path / "in", "--batch", "jan")
    assert "3 files in 5 writes, 4 of which had landed before" in " ".join(again.out.split())
    assert ids_in(small) == [*range(310)]


def test_a_load_that_is_killed_between_any_two_steps_goes_on(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(rows(0, 450), tmp_path / "a.parquet")
    write = small.cluster.write
    landed: list[str | None] = []

    def killed_after(steps: int) -> Any:
        def one(*args: Any, **kwargs: Any) -> Any:
            if len(landed) == steps:
                raise KeyboardInterrupt
            done = write(*args, **kwargs)
            landed.append(kwargs["batch"])
            return done

        return one

    for steps in range(1, 5):
        landed.clear()
        monkeypatch.setattr(small.cluster, "write", killed_after(steps))
        with pytest.raises(KeyboardInterrupt):
            small.cluster.load(TABLE, tmp_path / "a.parquet", batch="once")
    monkeypatch.setattr(small.cluster, "write", write)
    done = small.cluster.load(TABLE, tmp_path / "a.parquet", batch="once")
    assert [part.written.already for part in done] == [True] * 4 + [False]
    assert ids_in(small) == [*range(450)]


def test_of_a_file_with_a_row_that_would_lose_something_nothing_lands(small: SmallCluster, tmp_path: Path) -> None:
    pq.write_table(rows(0, 50, delay=pa.array([1] * 50)), tmp_path / "a.parquet")
    pq.write_table(rows(50, 400, delay=pa.array([1.0] * 320 + [2.5] * 30)), tmp_path / "b.parquet")
    with pytest.raises(InvalidRequest) as told:
        small.cluster.load(TABLE, [tmp_path / "a.parquet", tmp_path / "b.parquet"], batch="x")
    assert "b.parquet: these rows do not fit" in str(told.value)
    assert "column delay is int, not double, and would lose: row 320 has 2.5" in str(told.value)
    assert "1 file before it has landed" in str(told.value)
    assert ids_in(small) == [*range(50)]


def test_a_csv_is_read_as_it_is_meant_whatever_is_in_its_texts(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "BLOCK_BYTES", 1 << 10)
    epochlake.create_table(small.cluster, "air.texts", [("id", "int", False), ("t", "string", True)], ["id"])
    texts = [f'"quoted", {number}\n{number},not a row\n' * 5 for number in range(99)]
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("id", "t"), *enumerate(texts), (99, "NA"), (100, "")])
    small.cluster.load("air.texts", tmp_path / "texts.csv")
    found = {row["id"]: row["t"] for row in small.cluster.scan("air.texts").read_all().to_pylist()}
    assert found == dict(enumerate([*texts, "NA", ""]))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('1,"Rome\n2,Oslo\n3,Bonn\n', "begins in line 2 quotes are not closed"),
        ('1,Rome\n2,"', "begins in line 3 quotes are not closed"),
        ('1,"Rome\n2,"Oslo\n', "begins in line 2 quotes are not closed, or closed too early"),
        ('1,"two\nlines"\n2,"a \\"b\\""\n', "begins in line 4 quotes are not closed, or closed too early"),
    ],
)
def test_a_quote_that_is_not_closed_takes_no_row_with_it(
    small: SmallCluster, tmp_path: Path, lines: str, said: str
) -> None:
    epochlake.create_table(small.cluster, "air.texts", [("id", "int", False), ("t", "string", True)], ["id"])
    for mark in ("", "\ufeff"):
        (tmp_path / "texts.csv").write_text(f'{mark}"id",t\n{lines}', encoding="utf-8")
        with pytest.raises(InvalidRequest, match=said):
            small.cluster.load("air.texts", tmp_path / "texts.csv")
    assert small.cluster.count("air.texts") == 0


def test_quotes_that_belong_to_a_text_are_loaded(small: SmallCluster, tmp_path: Path) -> None:
    epochlake.create_table(small.cluster, "air.texts", [("t", "string", True), ("id", "int", False)], ["id"])
    texts = ['5" pipe', '"', '""', '","', "", '"\n1,2\n"', "a\r\nb", '5"']
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8-sig") as file:
        numbered = zip(texts, range(len(texts)), strict=True)
        csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows([("t", "id"), *numbered])
        file.write('5" pipe,8\r\n5",9\r\n"",10')
    small.cluster.load("air.texts", tmp_path / "texts.csv")
    found = {row["id"]: row["t"] for row in small.cluster.scan("air.texts").read_all().to_pylist()}
    assert found == {**dict(enumerate(texts)), 8: '5" pipe', 9: '5"', 10: ""}


def test_a_number_of_a_csv_is_null_only_where_it_says_so_and_never_too_large(
    small: SmallCluster, tmp_path: Path
) -> None:
    columns = [("id", "int", False), ("f", "float", True), ("at", "timestamp", True), ("t", "tinyint", True)]
    epochlake.create_table(small.cluster, "air.numbers", columns, ["id"])
    (tmp_path / "good.csv").write_text("id,f,at\n1,nan,\n2,-inf,NA\n3,,2013-01-01 10:00:00+01:00\n4,N/A,null\n")
    small.cluster.load("air.numbers", tmp_path / "good.csv")
    found = {row["id"]: row for row in small.cluster.scan("air.numbers").read_all().to_pylist()}
    assert [repr(found[number]["f"]) for number in (1, 2, 3, 4)] == ["nan", "-inf", "None", "None"]
    assert [found[number]["at"] for number in (1, 2, 4)] == [None] * 3
    for bad, said in {
        "5,NA,\n6,1e39,": "column f is float, and row 1 has '1e39'",
        "5,,2013-01-01 10:00:00": "a time without a zone is no moment",
        "5,1": "in each row as many values",
    }.items():
        (tmp_path / "bad.csv").write_text(f"id,f,at\n{bad}\n")
        with pytest.raises(InvalidRequest, match=said):
            small.cluster.load("air.numbers", tmp_path / "bad.csv")
    assert small.cluster.count("air.numbers") == 4
    for bad in ("0xff", "0x7F", "0X10"):  # which Arrow takes for -1, 127 and 16
        (tmp_path / "bad.csv").write_text(f"id,t\n5,1\n6,\n7,{bad}\n")
        with pytest.raises(InvalidRequest, match=f"column t is tinyint, and row 2 has '{bad}'"):
            small.cluster.load("air.numbers", tmp_path / "bad.csv")
    (tmp_path / "bad.csv").write_text("id,t\n5,-1\n0x6,0\n")
    with pytest.raises(InvalidRequest, match="column id is int, and row 1 has '0x6'"):
        small.cluster.load("air.numbers", tmp_path / "bad.csv")
    (tmp_path / "good.csv").write_text("id,t\n5,-1\n")
    small.cluster.load("air.numbers", tmp_path / "good.csv")
    assert small.cluster.get("air.numbers", 5)["t"] == -1


def test_a_load_that_could_land_twice_needs_a_name(small: SmallCluster, tmp_path: Path) -> None:
    epochlake.create_table(small.cluster, "air.added", COLUMNS, ["id"], append_only=True)
    pq.write_table(rows(0, 250), tmp_path / "a.parquet")
    with pytest.raises(InvalidRequest, match="--batch"):
        small.cluster.load("air.added", tmp_path / "a.parquet")
    assert small.cluster.count("air.added") == 0
    small.cluster.load("air.added", tmp_path / "a.parquet", batch="a")
    assert small.cluster.count("air.added") == 250


def test_a_file_that_is_changed_while_it_is_loaded_is_not_loaded_on(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a.parquet"
    pq.write_table(rows(0, 450), place)

    def changed(part: loading.LoadedPart, done: int, of: int) -> None:
        pq.write_table(rows(1000, 1450), place)

    with pytest.raises(InvalidRequest, match="was changed while it was loaded"):
        loading.load_files(small.cluster, TABLE, [place], batch="x", progress=changed)


def test_a_load_into_a_table_that_is_dropped_and_made_anew_does_not_count(small: SmallCluster, tmp_path: Path) -> None:
    pq.write_table(rows(0, 250), tmp_path / "a.parquet")

    def meanwhile(part: loading.LoadedPart, done: int, of: int) -> None:
        epochlake.drop_table(small.cluster, TABLE)
        epochlake.create_table(small.cluster, TABLE, COLUMNS, ["id"])

    with pytest.raises(InvalidRequest, match="dropped and made anew while it was loaded"):
        loading.load_files(small.cluster, TABLE, [tmp_path / "a.parquet"], batch="x", progress=meanwhile)
    assert small.cluster.count(TABLE) == 0
    small.cluster.load(TABLE, tmp_path / "a.parquet", batch="x")
    assert ids_in(small) == [*range(250)]


def test_the_same_batch_of_other_rows_is_refused(small: SmallCluster, tmp_path: Path) -> None:
    place = tmp_path / "a.parquet"
    pq.write_table(rows(0, 50), place)
    small.cluster.load(TABLE, place, batch="x")
    pq.write_table(rows(50, 100), place)
    with pytest.raises(EpochlakeError, match="other rows"):
        small.cluster.load(TABLE, place, batch="x")
    assert ids_in(small) == [*range(50)]


def test_a_table_like_a_file_has_its_columns_and_a_key_that_its_rows_allow(line: CommandLine, tmp_path: Path) -> None:
    pq.write_table(
        pa.table(
            {
                "carrier": ["UA", "UA", "AA"],
                "flight": pa.array([1, 2, 1], pa.uint16()),
                "fare": [1.5, 2.5, 3.5],
                "note": pa.nulls(3),
            }
        ),
        tmp_path / "a.parquet",
    )
    refused = line.text("table", "create", "air.like", "--like", tmp_path / "a.parquet")
    assert refused.code == 2
    assert "note (null): it has nothing but nulls" in refused.err
    made = line.json("table", "create", "air.like", "--like", tmp_path / "a.parquet", "--column", "note string").json
    assert made["details"]["primary_key"] == "carrier, flight"
    assert made["details"]["why"] == "carrier, flight together are unique in the 3 rows"
    shown = line.json("table", "show", "air.like").json
    assert [(one["name"], one["type"], one["nullable"]) for one in shown["columns"]] == [
        ("carrier", "string", False),
        ("flight", "int", False),
        ("fare", "double", True),
        ("note", "string", True),
    ]
    assert line.json("load", "air.like", tmp_path / "a.parquet").json["rows"] == 3


def test_columns_that_are_called_a_key_come_first_and_measured_ones_never(line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("weight,city,tail_id\n1.5,Rome,7\n2.5,Oslo,8\n")
    made = line.json("table", "create", "air.like", "--like", tmp_path / "a.csv", "--dry-run").json
    assert made["details"]["primary_key"] == "tail_id"
    (tmp_path / "b.csv").write_text("weight,city\n1.5,Rome\n2.5,Rome\n")
    refused = line.text("table", "create", "air.like", "--like", tmp_path / "b.csv")
    assert refused.code == 2
    assert "no columns of" in refused.err
    assert "--primary-key" in refused.err


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.arrow", "out"])
def test_a_table_is_exported_whole_and_takes_no_place_unasked(
    line: CommandLine, small: SmallCluster, tmp_path: Path, name: str
) -> None:
    small.cluster.write(TABLE, [{"id": number, "day": None, "delay": 1} for number in range(30)])
    place = tmp_path / name
    done = line.json("table", "export", TABLE, place).json
    assert (done["rows"], done["format"]) == (30, name.partition(".")[2] or "delta")
    refused = line.text("table", "export", TABLE, place)
    assert refused.code == 2
    assert "is there already" in refused.err
    small.cluster.delete(TABLE, [{"id": 0}])
    assert line.json("table", "export", TABLE, place, "--overwrite").json["rows"] == 29
    if name == "out":
        assert sorted(DeltaTable(place).to_pyarrow_table()["id"].to_pylist()) == [*range(1, 30)]
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_an_export_that_fails_leaves_what_was_there(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.cluster.write(TABLE, [{"id": 1, "day": None, "delay": 1}])
    assert line.text("table", "export", TABLE, tmp_path / "out").code == 0

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("epochlake.jobs.exchange.exporting.write_deltalake", full)
    failed = line.text("table", "export", TABLE, tmp_path / "out", "--overwrite")
    assert "No space left on device" in failed.err
    assert DeltaTable(tmp_path / "out").to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out"])
def test_an_export_whose_rows_cannot_be_read_says_so_and_leaves_what_was_there(
    small: SmallCluster, tmp_path: Path, name: str
) -> None:
    small.cluster.write(TABLE, [{"id": 1, "day": None, "delay": 1}])
    format_ = ending(tmp_path / name)
    exporting.export(small.cluster.scan(TABLE), tmp_path / name, format_)
    before = contents(tmp_path / name)

    def batches(failure: BaseException) -> Iterator[pa.RecordBatch]:
        yield from small.cluster.scan(TABLE)
        raise failure

    for failure in (ReadDisturbed(TABLE, {"a.parquet": "torn"}), KeyboardInterrupt()):
        rows = pa.RecordBatchReader.from_batches(small.cluster.scan(TABLE).schema, batches(failure))
        with pytest.raises(type(failure)):
            exporting.export(rows, tmp_path / name, format_, overwrite=True)
        assert contents(tmp_path / name) == before
        rows = pa.RecordBatchReader.from_batches(small.cluster.scan(TABLE).schema, batches(failure))
        with pytest.raises(type(failure)):
            exporting.export(rows, tmp_path / f"new-{name}", format_)
        assert not (tmp_path / f"new-{name}").exists()
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def contents(place: Path) -> object:
    """The rows of a Delta table, or the bytes of a file."""
    return DeltaTable(place).to_pyarrow_table() if place.is_dir() else place.read_bytes()


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_an_export_takes_no_place_that_somebody_has_taken_meanwhile(
    small: SmallCluster, tmp_path: Path, name: str
) -> None:
    small.cluster.write(TABLE, [{"id": 1, "day": None, "delay": 1}])
    small.cluster.write(TABLE, [{"id": 2, "day": None, "delay": 1}])
    place = tmp_path / name

    def batches() -> Iterator[pa.RecordBatch]:
        yield from small.cluster.scan(TABLE)
        other = threading.Thread(
            target=exporting.export, args=(small.cluster.scan(TABLE, keys=[{"id": 2}]), place, ending(place))
        )
        other.start()
        other.join()

    with pytest.raises(InvalidRequest, match=r"is there already|cannot be written"):
        exporting.export(
            pa.RecordBatchReader.from_batches(small.cluster.scan(TABLE).schema, batches()), place, ending(place)
        )
    found = DeltaTable(place).to_pyarrow_table() if place.is_dir() else pq.read_table(place)
    assert found["id"].to_pylist() == [2]


def test_an_export_over_a_delta_table_is_one_commit_of_it(small: SmallCluster, tmp_path: Path) -> None:
    """So whoever reads it sees the rows before or these, and a kill at any point leaves one or the other."""
    small.cluster.write(TABLE, [{"id": 1, "day": None, "delay": 1}])
    write_deltalake(tmp_path / "out", pa.table({"id": [7], "more": ["x"]}))
    reader = DeltaTable(tmp_path / "out").to_pyarrow_dataset()
    exporting.export(small.cluster.scan(TABLE), tmp_path / "out", ExportFormat.DELTA, overwrite=True)
    now = DeltaTable(tmp_path / "out")
    assert (now.version(), now.to_pyarrow_table().to_pylist()) == (1, [{"id": 1, "day": None, "delay": 1}])
    assert reader.to_table()["id"].to_pylist() == [7], "a read that was going on goes on"


def test_what_is_exported_is_on_the_disk_before_it_has_its_name(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.cluster.write(TABLE, [{"id": 1, "day": None, "delay": 1}])
    synced: list[str] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}") + f" {(tmp_path / 'out').exists()}")
        fsync(descriptor)

    for format_ in (ExportFormat.PARQUET, ExportFormat.DELTA):
        synced.clear()
        rows = small.cluster.scan(TABLE)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", seen)
            exporting.export(rows, tmp_path / "out", format_)
        of_files = [one for one in synced if not one.startswith(f"{tmp_path} ")]
        assert of_files
        assert all(one.endswith(" False") for one in of_files)
        assert f"{tmp_path} True" in synced, "and then its name"
        (tmp_path / "out").unlink() if format_ is ExportFormat.PARQUET else None


@pytest.mark.parametrize("place", ["root/log", "root/x.parquet", "A/d1/air/x", "."])
def test_nothing_is_exported_to_where_the_cluster_keeps_its_own(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if place.startswith("A/"):
        [volume] = small.cluster.metadata.directory.nodes[min(small.cluster.metadata.directory.nodes)].volumes
        place = f"{volume.uri}/air/x"
    told = line.text("table", "export", TABLE, place, "--overwrite", "--format", "delta")
    assert told.code == 2
    assert "where the cluster keeps what is its own" in " ".join(told.err.split())
    assert small.cluster.catch_up().epoch > 1


def test_a_delta_table_is_adopted_at_one_version_however_often_it_is_tried(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin"
    for first in (0, 150):
        more = rows(first, first + 150, origin=["EWR", "JFK", "LGA"] * 50)
        write_deltalake(origin, more, mode="append", partition_by=["origin"])
    write = Gate.write
    tries: list[int] = []

    def dies(self: Any, *args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        if len(tries) == 3:
            raise KeyboardInterrupt
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Gate, "write", dies)
    assert line.text("table", "adopt", origin, "air.adopted").code == 130
    write_deltalake(origin, rows(900, 950, origin=["EWR"] * 50), mode="append")  # after its version was pinned
    done = line.json("table", "adopt", origin, "air.adopted").json
    assert (done["rows"], done["version"], done["primary_key"], done["already"]) == (300, 1, ["id"], 2)
    entry = line.json("log", "show", done["epoch"]).json
    assert re.fullmatch(rf"adopted from {origin}, version 1, table \S+", entry["reason"])
    found = small.cluster.scan("air.adopted").read_all().sort_by("id")
    assert found["id"].to_pylist() == [*range(300)]
    assert found["origin"].to_pylist() == ["EWR", "JFK", "LGA"] * 100


def test_rows_with_one_key_are_no_table_that_can_be_adopted(
    line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(tmp_path / "one", pa.table({"id": [1, 2, 2], "note": ["a", "b", "c"]}))
    failed = line.text("table", "adopt", tmp_path / "one", "air.one", "--primary-key", "id")
    assert failed.code == 2
    assert "have the same primary key {'id': 2}" in failed.err
    monkeypatch.setattr(adopting, "ROWS_OF_PART", 1)  # nor where the first rows do not tell it
    for _ in range(2):
        write_deltalake(tmp_path / "two", pa.table({"id": [1, 2], "note": ["a", "b"]}), mode="append")
    failed = line.text("table", "adopt", tmp_path / "two", "air.two", "--primary-key", "id")
    assert failed.code == 4
    assert "has 2 rows, and its origin 4: 2 have the key of others" in " ".join(failed.err.split())
    assert line.text("table", "adopt", tmp_path / "nothing", "air.three").code == 2


def test_a_table_that_was_dropped_is_adopted_anew(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopting, "ROWS_OF_PART", 1)
    for _ in range(2):
        write_deltalake(tmp_path / "two", pa.table({"id": [1, 2], "n": [1, 2], "note": ["a", "b"]}), mode="append")
    failed = line.text("table", "adopt", tmp_path / "two", "air.two", "--primary-key", "id")
    assert "Drop the table, and adopt it again with another --primary-key" in " ".join(failed.err.split())
    write_deltalake(tmp_path / "two", pa.table({"id": [1, 2], "n": [3, 4], "note": ["a", "b"]}), mode="overwrite")
    again = line.text("table", "adopt", tmp_path / "two", "air.two")
    assert again.code == 4, "the table that was begun is of the version before"
    for rows in (2, 3):
        assert line.text("table", "drop", "air.two", "--reason", "begun anew").code == 0
        done = line.json("table", "adopt", tmp_path / "two", "air.two", "--primary-key", "n").json
        assert (done["rows"], done["already"], done["primary_key"]) == (rows, 0, ["n"])
        write_deltalake(tmp_path / "two", pa.table({"id": [9], "n": [rows + 8], "note": ["c"]}), mode="append")


def test_of_two_that_adopt_at_once_both_bring_the_version_that_was_pinned(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(tmp_path / "origin", rows(0, 50))
    write_deltalake(tmp_path / "origin", rows(50, 80), mode="append")
    proposed, opened = adopting.propose, adopting.open_delta

    def meanwhile(*args: Any) -> Any:
        """The other one has begun before somebody appended, and is through before this one commits."""
        monkeypatch.setattr(adopting, "propose", proposed)
        monkeypatch.setattr(adopting, "open_delta", lambda origin, version=0: opened(origin, version))
        first = adopt(small.cluster, str(tmp_path / "origin"), "air.adopted")
        monkeypatch.setattr(adopting, "open_delta", opened)
        assert (first.version, first.rows) == (0, 50)
        return proposed(*args)

    monkeypatch.setattr(adopting, "propose", meanwhile)
    second = adopt(small.cluster, str(tmp_path / "origin"), "air.adopted")
    assert (second.version, second.rows, second.already) == (0, 50, 1)
    assert small.cluster.count("air.adopted") == 50


def test_an_adoption_that_wakes_up_writes_nothing_to_a_table_that_was_made_anew(
    small: SmallCluster, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "origin", rows(0, 250))
    paused: list[int] = []

    def meanwhile(done: int, of: int) -> None:
        if not paused:
            paused.append(1)
            epochlake.drop_table(small.cluster, "air.adopted")
            epochlake.create_table(small.cluster, "air.adopted", COLUMNS, ["id"])

    write_deltalake(tmp_path / "origin", rows(250, 300), mode="append")
    with pytest.raises(Rejected, match="dropped and made anew"):
        adopt(small.cluster, str(tmp_path / "origin"), "air.adopted", progress=meanwhile)
    assert small.cluster.count("air.adopted") == 0


def test_an_adoption_is_gone_on_with_under_its_own_key_only(small: SmallCluster, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "origin", pa.table({"id": [1, 2], "n": [1, 2]}))
    adopt(small.cluster, str(tmp_path / "origin"), "air.adopted", ["id"])
    assert adopt(small.cluster, str(tmp_path / "origin"), "air.adopted", ["id"]).already == 1
    with pytest.raises(InvalidRequest, match="begun with the primary key id"):
        adopt(small.cluster, str(tmp_path / "origin"), "air.adopted", ["n"])


def test_a_table_that_is_written_to_after_its_adoption_is_not_to_be_dropped_for_it(
    small: SmallCluster, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "origin", pa.table({"id": [1, 2], "n": [1, 2]}))
    adopt(small.cluster, str(tmp_path / "origin"), "air.adopted")
    small.cluster.write("air.adopted", [{"id": 3, "n": 3}])
    with pytest.raises(InvariantViolated) as told:
        adopt(small.cluster, str(tmp_path / "origin"), "air.adopted")
    assert "Where others were to write to it already, nothing is wrong" in str(told.value)


def test_sql_reads_only_what_it_needs_and_joins(
    line: CommandLine, small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.cluster.write(TABLE, [{"id": number, "day": None, "delay": number % 3} for number in range(90)])
    asked: list[list[str] | None] = []
    scan = small.cluster.scan
    monkeypatch.setattr(small.cluster, "scan", lambda *a, **k: asked.append(k["columns"]) or scan(*a, **k))
    ask = lambda query: small.cluster.sql(query).read_all().to_pylist()  # noqa: E731
    assert ask("SELECT delay, count(*) n FROM air.flights GROUP BY ALL ORDER BY 1") == [
        {"delay": number, "n": 30} for number in range(3)
    ]
    assert ask("FROM air.flights SELECT count(*) c WHERE id < 10") == [{"c": 10}]
    assert asked == [["delay"], ["id"]]
    twice = "SELECT count(*) c FROM air.flights a JOIN air.flights b ON a.id = b.id + 1 WHERE b.delay = 2"
    assert ask(twice) == [{"c": 29}]
    assert ask('WITH flights AS (SELECT 1 AS x) SELECT * FROM flights, (SELECT max(id) m FROM "air"."flights")') == [
        {"x": 1, "m": 89}
    ]
    (tmp_path / "names.csv").write_text("delay,name\n0,none\n1,some\n")
    assert ask(f"SELECT name FROM '{tmp_path}/names.csv' WHERE delay = 1") == [{"name": "some"}], "of files alone"
    joined = f"SELECT name, count(*) n FROM air.flights JOIN '{tmp_path}/names.csv' USING (delay) GROUP BY 1 ORDER BY 1"
    assert line.json("query", joined).json == [{"name": "none", "n": 30}, {"name": "some", "n": 30}]


def test_a_file_that_is_damaged_while_a_query_reads_it_is_said_as_by_a_scan(small: SmallCluster) -> None:
    small.cluster.write(TABLE, [{"id": number, "day": None, "delay": 1} for number in range(500)], consistency="ALL")
    for path in small.directory.rglob("*.parquet"):
        if "flights" in str(path) or "air" in str(path):
            flip_in_a_page(path, "delay")
    with pytest.raises(EpochlakeError) as told:
        small.cluster.sql("SELECT sum(delay) FROM air.flights").read_all()
    assert "damaged" in str(told.value) or "torn" in str(told.value)


def test_what_directories_say_of_rows_is_a_column_of_them(
    line: CommandLine, small: SmallCluster, tmp_path: Path
) -> None:
    for day, city, ids in (("2026-01-01", "Rome", [1, 2]), ("2026-01-02", "a%2Fb", [3]), ("2026-01-01", NOTHING, [4])):
        place = tmp_path / f"sales/day={day}/city={city}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": ids}), place / "part-0.parquet")
    made = line.json("table", "create", "air.sales", "--like", tmp_path / "sales", "--column", "day date").json
    assert made["details"]["primary_key"] == "id"
    done = line.json("load", "air.sales", tmp_path / "sales", "--batch", "all").json
    assert (done["rows"], done["filled"]) == (4, [])
    wanted = [(1, "2026-01-01", "Rome"), (2, "2026-01-01", "Rome"), (3, "2026-01-02", "a/b"), (4, "2026-01-01", None)]
    assert found_in(small, "air.sales") == wanted
    small.cluster.delete("air.sales", [{"id": 1}])
    small.cluster.load("air.sales", tmp_path / "sales/day=2026-01-01/city=Rome/part-0.parquet")
    assert found_in(small, "air.sales") == wanted, "of directories above the file as well, where the table has them"
    epochlake.create_table(small.cluster, "air.less", [("id", "bigint", False), ("day", "string", True)], ["id"])
    with pytest.raises(InvalidRequest, match="city"):
        small.cluster.load("air.less", tmp_path / "sales")
    assert small.cluster.count("air.less") == 0


NOTHING = "__HIVE_DEFAULT_PARTITION__"


def found_in(small: SmallCluster, table: str) -> list[tuple[int, str, str | None]]:
    rows = small.cluster.scan(table).read_all().sort_by("id").to_pylist()
    return [(row["id"], str(row["day"]), row["city"]) for row in rows]


def test_files_of_a_table_that_has_a_log_of_them_are_not_loaded_one_by_one(
    line: CommandLine, small: SmallCluster, tmp_path: Path
) -> None:
    """Those that were replaced lie there until somebody vacuums."""
    for first in (0, 100):
        write_deltalake(tmp_path / "table", rows(first, first + 5), mode="overwrite")
    [inside, *_] = (tmp_path / "table").glob("*.parquet")
    for named in (tmp_path / "table", tmp_path / "table/*.parquet", inside, tmp_path):
        told = line.text("load", TABLE, named)
        assert told.code == 2
        assert "is a Delta table: its log says which of its files count" in " ".join(told.err.split())
    (tmp_path / "table").rename(tmp_path / "moved")
    for what in ("_delta_log", "_spark_metadata", ".hoodie"):
        (tmp_path / "moved/_delta_log").rename(tmp_path / "moved/aside")
        (tmp_path / "moved" / what).mkdir(exist_ok=True)
        with pytest.raises(InvalidRequest, match="says which of its files count"):
            small.cluster.load(TABLE, tmp_path / "moved")
        (tmp_path / "moved" / what).rmdir()
        (tmp_path / "moved/aside").rename(tmp_path / "moved/_delta_log")
    assert ids_in(small) == []


def test_a_delta_table_with_features_that_would_be_read_as_nulls_is_refused(
    line: CommandLine, small: SmallCluster, tmp_path: Path
) -> None:
    for name, feature in (("mapped", "delta.columnMapping.mode"), ("deleting", "delta.enableDeletionVectors")):
        value = "name" if name == "mapped" else "true"
        write_deltalake(tmp_path / name, pa.table({"id": [1, 2], "n": [1, 2]}), configuration={feature: value})
        for words in (
            ["table", "adopt", tmp_path / name, f"air.{name}", "--primary-key", "id"],
            ["table", "create", f"air.{name}", "--like", tmp_path / name],
        ):
            told = line.text(*words)
            assert told.code == 2
            assert "without Spark" in " ".join(told.err.split())
            assert "spark.read.format('delta')" in " ".join(told.err.split())
    assert [table.full_name for table in small.cluster.catch_up().schema.tables.values()] == [TABLE]


def test_an_adoption_that_cannot_be_has_created_nothing(line: CommandLine, small: SmallCluster, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "origin", pa.table({"id": [1, 2, 2], "n": [1, None, 3], "f": [1.5, 2.5, 3.5]}))
    for key, level, said in (
        ("n", "ALL", "n of"),
        ("id", "ALL", "have the same primary key {'id': 2}"),
        ("no", "ALL", "columns that do not exist"),
        ("f", "MOST", "unknown consistency level"),
    ):
        told = line.text("table", "adopt", tmp_path / "origin", "air.x", "--primary-key", key, "--consistency", level)
        assert told.code == 2
        assert said in " ".join(told.err.split())
    assert [table.full_name for table in small.cluster.catch_up().schema.tables.values()] == [TABLE]
    (tmp_path / "origin" / next((tmp_path / "origin").glob("*.parquet")).name).unlink()
    told = line.text("table", "adopt", tmp_path / "origin", "air.x", "--primary-key", "id")
    assert "\x1b" not in told.err, "no colours of another library"
