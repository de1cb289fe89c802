"""Rows of Arrow, of pandas and of Python written and deleted without Spark, over real Delta tables."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import open_cluster
from epochlake.jobs.gate import commit_phase, standing
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.row_digests import RowDigest, digested_columns
from epochlake.jobs.testing.rows import shown
from epochlake.jobs.upkeep.verification import owned_exactly
from epochlake.metastore.announcing import stored_leases
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.hashing import token_of

from tests.support.clusters import FOUR, SmallCluster, flights, placed, without_zookeeper
from tests.support.storages import STORAGE

ONE_TRY = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
FLIGHTS = "air.flights"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with_tablets = placed(tmp_path, FOUR, dict.fromkeys(range(8), "ABC"), configuration=ONE_TRY)
    with with_tablets.cluster:
        yield with_tablets


@pytest.fixture
def append_only(tmp_path: Path) -> Iterator[SmallCluster]:
    with_tablets = placed(tmp_path, FOUR, dict.fromkeys(range(8), "ABC"), append_only=True, configuration=ONE_TRY)
    with with_tablets.cluster:
        yield with_tablets


def numbered(count: int, note: str = "x", first: int = 0) -> pa.Table:
    return pa.table({"id": range(first, first + count), "note": [note] * count})


def notes(cluster: SmallCluster, level: str = "QUORUM") -> dict[int, str | None]:
    """What a read shows, by key; no key twice."""
    with Gate(cluster.cluster, "reader") as gate:
        found = shown(STORAGE, gate.plan_read(cluster.table, level))
    assert all(len(notes) == 1 for notes in found.values())
    return {key: note for key, [note] in sorted(found.items())}


def test_rows_are_written_replaced_and_deleted(cluster: SmallCluster) -> None:
    written = cluster.cluster.write(FLIGHTS, numbered(100, "old"))
    assert (written.rows, written.files, written.already, written.missing) == (100, 1, False, {})
    assert written.tablets == 8
    cluster.cluster.write(FLIGHTS, numbered(50, "new", first=25), consistency="ALL")
    deleted = cluster.cluster.delete(FLIGHTS, pa.table({"id": range(40, 90), "gate": ["?"] * 50}))
    assert deleted.rows == 50
    expected = {n: "old" if n < 25 or n >= 75 else "new" for n in [*range(40), *range(90, 100)]}
    for level in ("ONE", "QUORUM", "ALL"):
        assert notes(cluster, level) == expected


def test_rows_lie_at_the_tokens_that_lookups_expect(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, numbered(200), consistency="ALL")
    for node in "ABC":
        assert {row: token for token, row in cluster.tokens_on(node)} == {
            row: token_of([("bigint", str(row))]) for row in range(200)
        }


GIVEN: dict[str, Callable[[], object]] = {
    "table": lambda: numbered(3),
    "batch": lambda: numbered(3).to_batches()[0],
    "reader": lambda: numbered(3).to_reader(),
    "pandas": lambda: numbered(3).to_pandas(),
    "dicts": lambda: numbered(3).to_pylist(),
    "other columns first": lambda: numbered(3).select(["note", "id"]),
    "narrow": lambda: pa.table({"id": pa.array(range(3), pa.int8()), "note": ["x"] * 3}),
    "dictionary": lambda: pa.table({"id": range(3), "note": pa.array(["x"] * 3).dictionary_encode()}),
    "large": lambda: pa.table({"id": range(3), "note": pa.array(["x"] * 3, pa.large_string())}),
    "of NumPy": lambda: [{"id": np.int64(n), "note": "x"} for n in range(3)],
}


@pytest.mark.parametrize("given", GIVEN)
def test_all_forms_of_rows_are_the_same_rows(cluster: SmallCluster, given: str) -> None:
    assert cluster.cluster.write(FLIGHTS, GIVEN[given]()).rows == 3
    assert notes(cluster) == dict.fromkeys(range(3), "x")


REFUSED: dict[str, tuple[object, str]] = {
    "unknown column": (numbered(1).append_column("tail", pa.array([1])), "it has no column tail"),
    "missing column": (pa.table({"id": [1]}), r"column note \(string\) is missing"),
    "wrong type": (pa.table({"id": ["1"], "note": ["x"]}), "column id is bigint, not string"),
    "too wide": (pa.table({"id": pa.array([1], pa.uint64()), "note": ["x"]}), "column id is bigint, not uint64"),
    "twice": (pa.table([[1], [2], ["x"]], names=["id", "id", "note"]), "they have id twice"),
    "null key": (pa.table({"id": pa.array([None], pa.int64()), "note": ["x"]}), "'id' is a column of the primary key"),
    "two of a key": ([{"id": 1, "note": "x"}, {"id": 1, "note": "y"}], r"same primary key \{'id': 1\}"),
    "a text": ([{"id": "one", "note": "x"}], "'one' is no whole number"),
    "true": ([{"id": True, "note": "x"}], "True is no whole number"),
    "too large": ([{"id": 2**63, "note": "x"}], "column id is bigint"),
    "bytes": ([{"id": 1, "note": b"x"}], "b'x' is no text"),
    "uneven": ([{"id": 1, "note": "x"}, {"id": 2}], "column note is missing in row 1"),
    "unknown key": ([{"id": 1, "note": "x", "tail": 2}], "it has no column tail"),
    "a dict": ({"id": [1]}, "the rows for table air.flights are a dict"),
    "numbers": ([1, 2], "row 0 of the rows for table air.flights is an int"),
    "floats of pandas": (pd.DataFrame({"id": [1.0, None], "note": ["x", "y"]}), "column id is bigint, not double"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_do_not_fit_are_refused_with_the_reason_and_nothing_of_them_is_seen(
    cluster: SmallCluster, what: str
) -> None:
    rows, message = REFUSED[what]
    with pytest.raises(InvalidRequest, match=message):
        cluster.cluster.write(FLIGHTS, rows)
    assert notes(cluster) == {}
    assert [cluster.files_within(node) for node in "ABC"] == [[], [], []]


LOSSY: list[tuple[str, object, str]] = [
    ("date", datetime.datetime(2013, 1, 1, 5), "no date"),
    ("timestamp", datetime.datetime(2013, 1, 1, 5), "without a time zone"),
    ("timestamp_ntz", datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), "in a time zone"),
    ("timestamp_ntz", pd.Timestamp("2013-01-01T00:00:00.000000001"), "finer than a microsecond"),
    ("decimal(4,2)", Decimal("1.234"), "more than 2 digits"),
    ("decimal(4,2)", Decimal("123.4"), "decimal"),
    ("decimal(4,2)", 0.5, "no decimal number"),
    ("tinyint", 128, "tinyint"),
    ("float", 1e300, "too large for a float"),
    ("double", 2**53 + 1, "double"),
    ("binary", "text", "no bytes"),
    ("boolean", 1, "neither true nor false"),
    ("struct<a:int>", {"a": 1, "b": 2}, "the fields a has b, which is no field of it"),
    ("struct<a:int>", 1, "1 is no mapping with the fields a"),
    ("array<int>", "12", "no list"),
    ("array<date>", [datetime.datetime(2013, 1, 1)], "no date"),
    ("timestamp", pa.array([1], pa.timestamp("ns", "UTC")), "would lose data"),
    ("date", pa.array([1], pa.date64()), "would lose data"),
    ("struct<a:int>", pa.array([{"A": 1}]).cast(pa.struct([("A", pa.int32())])), r"struct<a:int>, not struct<A:int>"),
    ("int", pa.array([1]), "is int, not bigint"),
    ("decimal(4,2)", pa.array([Decimal("123.4")]), r"is decimal\(4,2\), not decimal\(4,1\)"),
    ("decimal(4,2)", pa.array([Decimal("1.234")]), r"is decimal\(4,2\), not decimal\(4,3\)"),
]


@pytest.mark.parametrize(("ddl", "value", "message"), LOSSY)
def test_a_value_that_its_type_cannot_hold_is_never_changed(ddl: str, value: object, message: str) -> None:
    table = msgspec.structs.replace(flights(), columns=(Column("id", "bigint"), Column("v", ddl)))
    rows = pa.table({"id": [1], "v": value}) if isinstance(value, pa.Array) else [{"id": 1, "v": value}]
    with pytest.raises(InvalidRequest, match=message):
        rows_to_write(rows, table)


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ("numeric(9, 2)", pa.decimal128(9, 2)),
        ("dec", pa.decimal128(10, 0)),
        ("timestamp_ltz", pa.timestamp("us", "UTC")),
        ("LONG", pa.int64()),
        ("array<integer>", pa.list_(pa.int32())),
        ("struct<a int, B: string>", pa.struct([("a", pa.int32()), ("B", pa.string())])),
    ],
)
def test_a_type_has_one_spelling_however_it_was_declared(declared: str, given: pa.DataType) -> None:
    table = msgspec.structs.replace(flights(), columns=(Column("id", "bigint"), Column("v", declared)))
    digest = RowDigest(digested_columns(table), table, table)
    assert rows_to_write(pa.table({"id": [1], "v": pa.nulls(1, given)}), table).counted(digest).count == 1


def test_a_decimal_with_fewer_digits_fits_one_with_more() -> None:
    table = msgspec.structs.replace(flights(), columns=(Column("id", "bigint"), Column("v", "decimal(4,2)")))
    digest = RowDigest(digested_columns(table), table, table)
    short, whole = (pa.table({"id": [1], "v": pa.array([Decimal(text)])}) for text in ("1.2", "01.20"))
    assert rows_to_write(short, table).counted(digest) == rows_to_write(whole, table).counted(digest)


def test_what_pandas_takes_for_missing_is_null(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, pd.DataFrame({"id": [1, 2, 3], "note": ["x", None, float("nan")]}))
    assert notes(cluster) == {1: "x", 2: None, 3: None}


def test_no_rows_are_no_files(cluster: SmallCluster) -> None:
    for rows in ([], numbered(0)):
        assert cluster.cluster.write(FLIGHTS, rows).files == 0


def test_an_append_only_table_takes_equal_keys_and_no_deletes(append_only: SmallCluster) -> None:
    append_only.cluster.write(FLIGHTS, [{"id": 1, "note": "x"}, {"id": 1, "note": "y"}])
    assert append_only.rows_on("A") == [1, 1]
    with pytest.raises(InvalidRequest, match="append-only"):
        append_only.cluster.delete(FLIGHTS, [{"id": 1}])


def test_a_level_is_reached_without_some_replicas_or_they_are_named(cluster: SmallCluster) -> None:
    with cluster.without("C"):
        assert list(cluster.cluster.write(FLIGHTS, numbered(9)).missing) == ["C/d1"]
        with pytest.raises(ConsistencyNotReached, match="C/d1"):
            cluster.cluster.write(FLIGHTS, numbered(9), consistency="ALL")
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached, match="B/d1"):
        cluster.cluster.write(FLIGHTS, numbered(9))
    with pytest.raises(InvalidRequest, match="LOCAL_QUORUM"):
        cluster.cluster.write(FLIGHTS, numbered(9), consistency="LOCAL_QUORUM")
    cluster.cluster.write(FLIGHTS, numbered(9), consistency="LOCAL_QUORUM", datacenter="dc1")
    for level in ("QUORUM", "LOCAL_QUORUM"):
        with pytest.raises(Rejected, match=r"no datacenter 'dcl' \(datacenters: dc1\). Did you mean 'dc1'"):
            cluster.cluster.write(FLIGHTS, numbered(1), consistency=level, datacenter="dcl")
        with pytest.raises(Rejected, match=r"no datacenter 'elsewhere'.*Name one that has nodes"):
            cluster.cluster.get(FLIGHTS, 1, consistency=level, datacenter="elsewhere")
    assert len(notes(cluster)) == 9


def test_a_batch_lands_once_however_often_it_is_tried(append_only: SmallCluster) -> None:
    cluster = append_only
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
        cluster.cluster.write(FLIGHTS, numbered(20), batch="b")
    assert not cluster.cluster.write(FLIGHTS, numbered(20), batch="b").already
    shuffled = numbered(20).take(list(reversed(range(20))))
    assert cluster.cluster.write(FLIGHTS, shuffled, batch="b").already
    with pytest.raises(Rejected) as rejected:
        cluster.cluster.write(FLIGHTS, numbered(20, "y"), batch="b")
    assert rejected.value.code == "batch-used"
    assert [cluster.rows_on(node) for node in "ABC"] == [list(range(20))] * 3


def test_what_is_lost_of_a_batch_is_staged_again(cluster: SmallCluster) -> None:
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
        cluster.cluster.write(FLIGHTS, numbered(20), batch="b")
    for path in cluster.directory.rglob("*.parquet"):
        if "_delta_log" not in str(path) and path.name.removesuffix(".parquet") not in cluster.files_on("A"):
            path.unlink()
    assert cluster.cluster.write(FLIGHTS, numbered(20), batch="b").rows == 20
    assert notes(cluster, "ALL") == dict.fromkeys(range(20), "x")


def test_a_writer_that_dies_after_staging_leaves_nothing_to_be_seen(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(phase: CommitPhase) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(CommitPhase, "land", die)
        with pytest.raises(KeyboardInterrupt):
            cluster.cluster.write(FLIGHTS, numbered(9), batch="b")
    assert notes(cluster) == {}
    assert not cluster.cluster.write(FLIGHTS, numbered(9), batch="b").already
    assert notes(cluster, "ALL") == dict.fromkeys(range(9), "x")


def test_a_file_of_many_tablets_is_cut_where_one_of_them_moves(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, numbered(100), consistency="ALL")
    cluster.start("A", "X", tablet=3)
    cluster.until(None, tablet=3)
    cluster.cluster.write(FLIGHTS, numbered(50, "y"), consistency="ALL")
    assert len(notes(cluster, "ALL")) == 100
    assert set(cluster.rows_on("X")) == set(range(100)) - set(cluster.rows_on("A"))
    assert owned_exactly(STORAGE, cluster.metadata) == ()


def test_a_write_that_was_staged_before_a_tablet_moved_lands_in_pieces(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    land = CommitPhase.land

    def move_first(phase: CommitPhase) -> object:
        cluster.start("A", "X", tablet=3)
        cluster.until(None, tablet=3)
        return land(phase)

    monkeypatch.setattr(CommitPhase, "land", move_first)
    cluster.cluster.write(FLIGHTS, numbered(100), consistency="ALL")
    assert notes(cluster, "ALL") == dict.fromkeys(range(100), "x")
    assert owned_exactly(STORAGE, cluster.metadata) == ()


def test_writes_of_several_threads_do_not_wait_for_each_other_and_all_land(cluster: SmallCluster) -> None:
    threads = [
        threading.Thread(target=cluster.cluster.write, args=(FLIGHTS, numbered(10, "x", first=10 * number)))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes(cluster) == dict.fromkeys(range(60), "x")


def leases(cluster: SmallCluster) -> list[str]:
    return [lease.pipeline_id for lease in stored_leases(STORAGE, cluster.cluster.root.leases)]


def test_one_announced_gate_serves_call_after_call_and_ends_with_the_cluster(cluster: SmallCluster) -> None:
    for number in range(3):
        cluster.cluster.write(FLIGHTS, numbered(1, first=number))
    assert len(leases(cluster)) == 1
    cluster.cluster.close()
    assert leases(cluster) == []
    with pytest.raises(InvalidRequest, match="was closed"):
        cluster.cluster.write(FLIGHTS, numbered(1))


def test_an_idle_gate_ends_by_itself_so_that_vacuum_does_not_wait_for_it(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STANDS_SECONDS", 0.05)
    cluster.cluster.write(FLIGHTS, numbered(1))
    deadline = time.monotonic() + 300
    while leases(cluster) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert leases(cluster) == []
    cluster.cluster.write(FLIGHTS, numbered(2))
    assert len(notes(cluster)) == 2


def test_a_gate_that_has_stood_knows_the_tables_of_now(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, numbered(1))
    with open_cluster(cluster.cluster.configuration) as operator:
        administration.drop_table(operator, FLIGHTS)
        administration.create_table(
            operator, FLIGHTS, [("id", "bigint", False), ("gate", "string", True)], ("id",), tablets=2
        )
    assert cluster.cluster.write(FLIGHTS, [{"id": 1, "gate": "B7"}]).tablets == 1


def test_an_unknown_table_is_rejected(cluster: SmallCluster) -> None:
    with pytest.raises(Rejected, match=r"no table 'air.planes'"):
        cluster.cluster.write("air.planes", numbered(1))


def test_writing_without_spark_does_not_import_it() -> None:
    looked = "import sys, epochlake.jobs.cluster, epochlake.jobs.gate.arrow_rows; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_columns_that_are_cut_differently_with_empty_pieces_are_written() -> None:
    table = flights(columns=[("id", "bigint", False), ("v", "int", True)], primary_key=["id"])
    notes = pa.chunked_array([[30, 10], [], [20]], pa.int32())
    for cuts in ([[3], [], [1, 2]], [[], [3, 1], [2]], [[3, 1, 2], []]):
        rows = rows_to_write(pa.table({"id": pa.chunked_array(cuts, pa.int64()), "v": notes}), table)
        rows._rows.validate(full=True)
        assert {row["id"]: row["v"] for row in rows._rows.to_pylist()} == {3: 30, 1: 10, 2: 20}
