"""Tables whose columns change: files of all versions are read as the table is now, and nothing comes back."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from epochlake.jobs import administration
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.exchange.export_formats import ExportFormat
from epochlake.jobs.exchange.exporting import export
from epochlake.jobs.replicas.merging_here import merge_here
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import grow, without_zookeeper

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("note", "string", True), ("size", "int", True)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2)
        yield grown


def write(cluster: Cluster, *rows: dict[str, object]) -> None:
    cluster.write(TABLE, list(rows), consistency="ALL")


def rows(cluster: Cluster, **asked: object) -> list[dict[str, object]]:
    """The rows in the order of their keys, read without Spark."""
    read = cluster.scan(TABLE, **asked).read_all().to_pylist()  # type: ignore[arg-type]
    return sorted(read, key=lambda row: str(next(iter(row.values()))))


def test_a_column_that_is_added_has_its_default_in_rows_from_before_and_in_rows_that_leave_it_out(
    cluster: Cluster,
) -> None:
    write(cluster, {"id": 1, "note": "old", "size": 7})
    administration.alter_table(cluster, TABLE, add=["city string not null default 'Den Haag'", "c int"])
    write(cluster, {"id": 2, "note": "new", "size": 8}, {"id": 3, "note": "new", "size": 9})
    write(cluster, {"id": 4, "note": "given", "size": 1, "city": "Rome", "c": 5})
    write(cluster, {"id": 3, "note": "again", "size": 9, "city": "Oslo", "c": None})
    assert rows(cluster) == [
        {"id": 1, "note": "old", "size": 7, "city": "Den Haag", "c": None},
        {"id": 2, "note": "new", "size": 8, "city": "Den Haag", "c": None},
        {"id": 3, "note": "again", "size": 9, "city": "Oslo", "c": None},
        {"id": 4, "note": "given", "size": 1, "city": "Rome", "c": 5},
    ]
    assert cluster.count(TABLE, where=pc.field("city") == "Den Haag") == 2
    assert [row["id"] for row in rows(cluster, where=pc.field("c").is_null())] == [1, 2, 3]
    assert cluster.get(TABLE, 1) == {"id": 1, "note": "old", "size": 7, "city": "Den Haag", "c": None}


def test_a_name_that_is_used_again_never_shows_values_of_the_dropped_column(cluster: Cluster) -> None:
    write(cluster, {"id": 1, "note": "secret", "size": 7})
    administration.alter_table(cluster, TABLE, drop=["note"])
    assert rows(cluster) == [{"id": 1, "size": 7}]
    administration.alter_table(cluster, TABLE, add=[("note", "string", True)])
    write(cluster, {"id": 2, "size": 8, "note": "fresh"})
    expected = [{"id": 1, "size": 7, "note": None}, {"id": 2, "size": 8, "note": "fresh"}]
    assert rows(cluster) == expected
    repair(cluster, TABLE)
    write(cluster, {"id": 3, "size": 8, "note": "x"})
    merge_all(cluster)
    assert rows(cluster) == [*expected, {"id": 3, "size": 8, "note": "x"}]
    assert cluster.count(TABLE, where=pc.field("note") == "secret") == 0


def test_a_table_that_is_dropped_twice_and_added_twice_keeps_all_names_apart(cluster: Cluster) -> None:
    for number in range(3):
        write(cluster, {"id": number, "note": f"of {number}", "size": 0})
        administration.alter_table(cluster, TABLE, drop=["note"])
        administration.alter_table(cluster, TABLE, add=[("note", "string", True)])
    write(cluster, {"id": 3, "note": "last", "size": 0})
    assert [row["note"] for row in rows(cluster)] == [None, None, None, "last"]
    stored = [column.stored_as for column in cluster.table(TABLE).columns]
    assert stored == ["id", "size", "note#6"]


def test_columns_are_renamed_also_those_of_the_key(cluster: Cluster) -> None:
    write(cluster, {"id": 1, "note": "a", "size": 7})
    administration.alter_table(cluster, TABLE, rename={"id": "number", "note": "remark"})
    write(cluster, {"number": 1, "remark": "b", "size": 8}, {"number": 2, "remark": "c", "size": 9})
    assert rows(cluster) == [{"number": 1, "remark": "b", "size": 8}, {"number": 2, "remark": "c", "size": 9}]
    assert cluster.get(TABLE, {"number": 2}) == {"number": 2, "remark": "c", "size": 9}
    cluster.delete(TABLE, [{"number": 1}])
    administration.alter_table(cluster, TABLE, rename={"remark": "size", "size": "remark"})
    assert rows(cluster) == [{"number": 2, "size": "c", "remark": 9}]
    write(cluster, {"number": 3, "size": "d", "remark": 10})
    merge_all(cluster)
    assert rows(cluster) == [{"number": 2, "size": "c", "remark": 9}, {"number": 3, "size": "d", "remark": 10}]
    with pytest.raises(InvalidRequest, match="note is called size now"):
        write(cluster, {"number": 3, "note": "d", "remark": 10})


WIDER = [
    ("tinyint", "bigint", 7, 7),
    ("smallint", "int", -7, -7),
    ("int", "bigint", 2**31 - 1, 2**31 - 1),
    ("int", "double", 2**31 - 1, float(2**31 - 1)),
    ("float", "double", 0.5, 0.5),
    ("decimal(10,2)", "decimal(14,4)", Decimal("1.25"), Decimal("1.2500")),
    ("date", "timestamp_ntz", datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)),
]


@pytest.mark.parametrize(("before", "after", "given", "read"), WIDER)
def test_values_from_before_a_column_was_widened_are_read_as_the_wider_type(
    cluster: Cluster, before: str, after: str, given: object, read: object
) -> None:
    administration.create_table(cluster, "air.wide", [("id", "int", False), ("v", before, True)], ["id"], tablets=1)
    cluster.write("air.wide", [{"id": 1, "v": given}, {"id": 2, "v": None}])
    administration.alter_table(cluster, "air.wide", widen={"v": after})
    cluster.write("air.wide", [{"id": 3, "v": read}])
    expected = [{"id": 1, "v": read}, {"id": 2, "v": None}, {"id": 3, "v": read}]
    assert sorted(cluster.scan("air.wide").read_all().to_pylist(), key=lambda row: row["id"]) == expected
    assert cluster.count("air.wide", where=pc.field("v") == pa.scalar(read)) == 2
    merge_all(cluster, "air.wide")
    assert sorted(cluster.scan("air.wide").read_all().to_pylist(), key=lambda row: row["id"]) == expected


REFUSED = [
    ({"widen": {"id": "double"}}, "key-column"),
    ({"drop": ["id"]}, "key-column"),
    ({"nullable": ["id"]}, "key-column"),
    ({"widen": {"size": "smallint"}}, "narrower-type"),
    ({"widen": {"note": "int"}}, "narrower-type"),
    ({"drop": ["no"]}, "unknown-column"),
    ({"order": ["no"]}, "unknown-column"),
    ({"rename": {"note": "SIZE"}}, "column-exists"),
    ({"rename": {"note": "_x"}}, "reserved-name"),
    ({"add": [("size", "int", True)]}, "column-exists"),
    ({"add": [("c", "int", False)]}, "invalid-default"),
    ({"rename": {"note": "note"}}, "nothing-to-do"),
]


@pytest.mark.parametrize(("asked", "code"), REFUSED)
def test_what_would_lose_rows_or_values_is_refused(cluster: Cluster, asked: dict[str, object], code: str) -> None:
    epoch = cluster.catch_up().epoch
    with pytest.raises(Rejected) as refused:
        administration.alter_table(cluster, TABLE, **asked)  # type: ignore[arg-type]
    assert refused.value.code == code
    assert cluster.catch_up().epoch == epoch


def test_a_default_has_to_be_a_value_of_the_columns_type(cluster: Cluster) -> None:
    for definition in ("c int default 5.5", "c tinyint default 300", "c date default soon", "c binary default x"):
        with pytest.raises(InvalidRequest, match="column 'c'"):
            administration.alter_table(cluster, TABLE, add=parse_added([definition]))
    administration.alter_table(cluster, TABLE, add=parse_added(["at timestamp default '2020-01-01T10:00:00Z'"]))


def test_a_table_that_was_never_altered_is_stored_and_declared_as_it_always_was(cluster: Cluster) -> None:
    write(cluster, {"id": 1, "note": "a", "size": 7})
    [table] = cluster.metadata.schema.tables.values()
    assert b"alterations" not in msgspec.json.encode(table)
    assert b"column_id" not in msgspec.json.encode(table)
    for place in replica_tables(cluster):
        assert "epochlake.columns" not in DeltaTable(place).metadata().configuration


def test_replica_tables_declare_the_columns_of_now_and_files_have_their_numbers(cluster: Cluster) -> None:
    administration.alter_table(cluster, TABLE, drop=["note"], add=[("note", "string", True)], widen={"size": "bigint"})
    write(cluster, {"id": 1, "note": "a", "size": 7})
    for place in replica_tables(cluster):
        opened = DeltaTable(place)
        declared = {field.name: field.type.type for field in opened.schema().fields[4:]}
        assert declared == {"id": "long", "size": "long", "note#4": "string"}
        [file] = opened.file_uris()
        numbers = {
            field.name: field.metadata[b"PARQUET:field_id"]
            for field in pq.read_schema(file)
            if b"PARQUET:field_id" in (field.metadata or {})
        }
        assert numbers == {"id": b"1", "size": b"3", "note#4": b"4"}
        assert opened.to_pyarrow_table(columns=["note#4"]).to_pydict() == {"note#4": ["a"]}


def merge_all(cluster: Cluster, table: str = TABLE) -> None:
    """Put the files of every range together, whatever that is worth."""
    done = compact(cluster, table, merger=merge_here, policy=EVERYTHING)
    assert sum(one.files_before for one in done.compacted) > len(done.compacted)


def replica_tables(cluster: Cluster) -> list[str]:
    """Where the replica tables are."""
    [table] = cluster.metadata.schema.tables.values()
    volumes = cluster.metadata.directory.volumes.values()
    return [f"{volume.uri}/{table.keyspace}/{table.table_id}" for volume in volumes]


def test_sql_loads_and_exports_know_the_columns_of_now(cluster: Cluster, tmp_path: Path) -> None:
    write(cluster, {"id": 1, "note": "old", "size": 7})
    administration.alter_table(cluster, TABLE, drop=["note"], rename={"size": "length"}, widen={"size": "bigint"})
    administration.alter_table(cluster, TABLE, add=["note string not null default 'none'"])
    pq.write_table(pa.table({"id": [2], "length": [2**40]}), tmp_path / "more.parquet")
    [part] = cluster.load(TABLE, tmp_path / "more.parquet")
    assert (part.filled, part.defaults) == (("note",), {"note": "none"})
    told = cluster.sql(
        f"SELECT sum(length) AS all_of_it, min(note) AS note FROM {TABLE} WHERE note <> 'old'"
    ).read_all()
    assert told.to_pylist() == [{"all_of_it": 2**40 + 7, "note": "none"}]
    assert export(cluster.scan(TABLE), tmp_path / "all.parquet", ExportFormat.PARQUET, overwrite=False) == 2
    assert pq.read_table(tmp_path / "all.parquet").column_names == ["id", "length", "note"]


def test_deletes_and_their_compaction_know_the_key_by_its_new_name(cluster: Cluster) -> None:
    write(cluster, *({"id": number, "note": "x", "size": number} for number in range(10)))
    administration.alter_table(cluster, TABLE, rename={"id": "key"}, add=["c int not null default 1"])
    cluster.delete(TABLE, [{"key": number} for number in range(5)], consistency="ALL")
    write(cluster, {"key": 7, "note": "y", "size": 7, "c": 2})
    expected = [{"key": number, "note": "x", "size": number, "c": 1} for number in (5, 6, 8, 9)]
    expected.insert(2, {"key": 7, "note": "y", "size": 7, "c": 2})
    assert rows(cluster) == expected
    merge_all(cluster)
    assert rows(cluster) == expected
    assert cluster.count(TABLE, keys=[{"key": 4}, {"key": 7}]) == 1


def test_merges_and_overwrites_know_the_columns_of_now(cluster: Cluster) -> None:
    write(cluster, *({"id": number, "note": "old", "size": number} for number in range(4)))
    administration.alter_table(cluster, TABLE, rename={"note": "text", "id": "key"}, widen={"size": "bigint"})
    administration.alter_table(cluster, TABLE, add=["note string", "c int not null default 1"])
    source = pa.table({"key": [1, 9], "size": [2**40, 5]})
    merge = cluster.merge(TABLE, source)
    merge.when_matched_update({"size": "source.size"}).when_not_matched_insert(
        {"key": "source.key", "size": "source.size", "text": "'new'", "note": "'n'", "c": "2"}
    ).execute()
    expected = [{"key": n, "text": "old", "size": n, "note": None, "c": 1} for n in range(4)]
    expected[1]["size"] = 2**40
    assert rows(cluster) == [*expected, {"key": 9, "text": "new", "size": 5, "note": "n", "c": 2}]


def test_rows_of_the_past_are_shown_as_the_table_is_now(cluster: Cluster) -> None:
    write(cluster, {"id": 1, "note": "secret", "size": 7})
    then = datetime.datetime.now(datetime.UTC)
    administration.alter_table(cluster, TABLE, drop=["note"], rename={"size": "length"})
    administration.alter_table(cluster, TABLE, add=["note string"])
    write(cluster, {"id": 1, "length": 8, "note": "fresh"})
    assert rows(cluster, as_of=then) == [{"id": 1, "length": 7, "note": None}]
    assert rows(cluster) == [{"id": 1, "length": 8, "note": "fresh"}]
