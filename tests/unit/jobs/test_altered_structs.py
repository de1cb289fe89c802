"""Tables whose structs change: files of all versions are read as the table is now, and no value comes back."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.exchange.export_formats import ExportFormat
from epochlake.jobs.exchange.exporting import export
from epochlake.jobs.gate import planning
from epochlake.jobs.replicas.merging_here import merge_here
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.struct_fields import places, tree_of
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import grow, without_zookeeper

TABLE = "air.homes"
COLUMNS = [
    ("id", "bigint", False),
    ("a", "struct<street:string,zip:int>", True),
    ("l", "array<struct<p:int,q:string>>", True),
    ("m", "map<string,struct<v:int,w:int>>", True),
]
OLD = {"a": {"street": "s", "zip": 5}, "l": [{"p": 1, "q": "x"}, None], "m": {"k": {"v": 1, "w": 2}, "n": None}}
NOTHING = {"a": None, "l": None, "m": None}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2)
        yield grown


def write(cluster: Cluster, *rows: dict[str, object]) -> None:
    cluster.write(TABLE, list(rows), consistency="ALL")


def rows(cluster: Cluster, **asked: object) -> list[dict[str, object]]:
    """The rows in the order of their keys, maps as mappings."""
    read = cluster.scan(TABLE, **asked).read_all().to_pylist(maps_as_pydicts="strict")  # type: ignore[arg-type]
    return sorted(read, key=lambda row: int(row["id"]))


def merge_all(cluster: Cluster) -> None:
    done = compact(cluster, TABLE, merger=merge_here, policy=EVERYTHING)
    assert sum(one.files_before for one in done.compacted) > len(done.compacted)


def alter(cluster: Cluster, **changes: object) -> None:
    administration.alter_table(cluster, TABLE, **changes)  # type: ignore[arg-type]


def test_fields_change_at_every_depth_by_one_epoch_and_files_of_before_show_them(cluster: Cluster) -> None:
    write(cluster, {"id": 1, **OLD}, {"id": 2, **NOTHING})
    alter(
        cluster,
        add=["a.city string", "l.element.r struct<x:int>", "m.value.u int"],
        drop=["a.zip", "l.element.q"],
        rename={"a.street": "road", "m.value.v": "net"},
        widen={"l.element.p": "bigint", "m.value.w": "double"},
        order=["a.city", "m.value.w"],
        comment={"a.street": "where it is"},
    )
    first = {"id": 1, "a": {"city": None, "road": "s"}, "l": [{"p": 1, "r": None}, None]}
    first["m"] = {"k": {"w": 2.0, "net": 1, "u": None}, "n": None}
    new = {"id": 3, "a": {"city": "c", "road": "r"}, "l": [{"p": 2**40, "r": {"x": 1}}]}
    new["m"] = {"k": {"w": 0.5, "net": 1, "u": 2}}
    write(cluster, new)
    expected = [first, {"id": 2, **NOTHING}, new]
    assert rows(cluster) == expected
    alter(cluster, add=["l.element.r.y int"], widen={"l.element.r.x": "bigint"})
    new["l"] = [{"p": 2**40, "r": {"x": 1, "y": None}}]
    assert rows(cluster) == expected
    assert cluster.get(TABLE, 1) == cluster.scan(TABLE, keys=[{"id": 1}]).read_all().to_pylist()[0]
    assert [row["id"] for row in rows(cluster, where=pc.field("a", "city") == "c")] == [3]
    repair(cluster, TABLE)
    write(cluster, {"id": 4, **NOTHING})
    merge_all(cluster)
    assert rows(cluster) == [*expected, {"id": 4, **NOTHING}]


def test_a_field_whose_name_is_used_again_never_shows_values_of_before(cluster: Cluster) -> None:
    for number in range(3):
        write(cluster, {"id": number, "a": {"street": f"of {number}", "zip": number}, "l": None, "m": None})
        if number % 2:
            alter(cluster, drop=["a.street"])
            alter(cluster, add=["a.street string"])
        else:
            alter(cluster, drop=["a.street"], add=["a.street string"])
    expected = [{"id": n, "a": {"zip": n, "street": None}, "l": None, "m": None} for n in range(3)]
    assert rows(cluster) == expected
    alter(cluster, rename={"a.zip": "street", "a.street": "zip"})
    expected = [{"id": n, "a": {"street": n, "zip": None}, "l": None, "m": None} for n in range(3)]
    assert rows(cluster) == expected
    merge_all(cluster)
    assert rows(cluster) == expected
    [_, column, *_] = cluster.table(TABLE).columns
    assert column.type == "struct<street:int,zip:string>"


def test_files_have_the_numbers_of_fields_and_replica_tables_declare_them(cluster: Cluster) -> None:
    alter(cluster, drop=["a.zip"], add=["l.element.r int"])
    alter(cluster, add=["a.zip string"])
    write(cluster, {"id": 1, "a": {"street": "s", "zip": "z"}, "l": [{"p": 1, "q": "x", "r": 2}], "m": None})
    [table] = cluster.metadata.schema.tables.values()
    for volume in cluster.metadata.directory.volumes.values():
        opened = DeltaTable(f"{volume.uri}/{table.keyspace}/{table.table_id}")
        [file] = opened.file_uris()
        schema = pq.read_schema(file)
        numbers = [field.metadata[b"PARQUET:field_id"] for field in schema.field("a").type]
        assert ([field.name for field in schema.field("a").type], numbers) == (["street", "zip#10"], [b"5", b"10"])
        inner = schema.field("l").type.value_type
        assert [int(field.metadata[b"PARQUET:field_id"]) for field in inner] == [7, 8, 9]
        # Any reader of Delta knows the fields, under their names in files.
        assert opened.to_pyarrow_table(columns=["a"]).to_pylist() == [{"a": {"street": "s", "zip#10": "z"}}]


def test_a_program_of_before_leaves_out_what_was_added_and_is_told_what_was_dropped_or_renamed(
    cluster: Cluster,
) -> None:
    alter(cluster, add=["a.city string", "m.value.u int"], widen={"a.zip": "bigint"}, order=["a.zip"])
    write(cluster, {"id": 1, **OLD})
    arrow = pa.table(
        {"id": [2], "a": pa.array([{"street": "t", "zip": 6}], pa.struct({"street": "string", "zip": "int32"}))}
    )
    for name, type_ in (("l", pa.list_(pa.struct({"p": "int32", "q": "string"}))), ("m", pa.null())):
        arrow = arrow.append_column(name, pa.nulls(1, type_))
    cluster.write(TABLE, arrow)
    expected = [(1, {"zip": 5, "street": "s", "city": None}), (2, {"zip": 6, "street": "t", "city": None})]
    assert [(row["id"], row["a"]) for row in rows(cluster)] == expected
    alter(cluster, drop=["a.city"], rename={"a.street": "road"})
    for given in (arrow, [{"id": 2, **NOTHING, "a": {"zip": 6, "street": "t"}}]):
        with pytest.raises(InvalidRequest, match=r"column a is|with the fields zip, road lacks road and has street"):
            Cluster(cluster.configuration).write(TABLE, given)
    with pytest.raises(InvalidRequest, match=r"a\.city was dropped by epoch .*; a\.street is called road now"):
        Cluster(cluster.configuration).write(TABLE, arrow)
    alter(cluster, add=["a.more string"])
    with pytest.raises(InvalidRequest, match=r"with the fields zip, road, more lacks road\.") as refused:
        write(cluster, {"id": 3, **NOTHING, "a": {"zip": 1}})
    assert "None" not in str(refused.value), "of what was not given nothing is quoted"
    alter(cluster, drop=["a.more"])
    # Nothing that was always there may be left out, and no field is there twice, or unknown.
    for wrong in ({"zip": 1}, {"zip": 1, "road": "r", "more": 1}, {"zip": 2**70, "road": "r"}):
        with pytest.raises(InvalidRequest):
            write(cluster, {"id": 3, **NOTHING, "a": wrong})


def test_rows_that_were_staged_before_land_unless_they_have_values_of_a_field_that_was_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(cluster, add=["a.city string"])
    altered: list[dict[str, object]] = []
    real = planning.Planning.conformed

    def then_altered(self: planning.Planning, name: str, conform: object) -> object:
        made = real(self, name, conform)  # type: ignore[arg-type]
        if altered:
            with Cluster(cluster.configuration) as other:
                alter(other, **altered.pop())
        return made

    monkeypatch.setattr(planning.Planning, "conformed", then_altered)
    row = {"id": 1, **OLD, "a": {"street": "s", "zip": 5, "city": "c"}}
    altered.append({"rename": {"a.street": "road"}, "widen": {"a.zip": "bigint"}, "add": ["a.late int"]})
    write(cluster, row)
    assert rows(cluster)[0]["a"] == {"road": "s", "zip": 5, "city": "c", "late": None}
    altered.append({"drop": ["a.city", "m.value.v"]})
    with pytest.raises(Rejected, match=r"dropped meanwhile: a\.city by epoch \d+, m\.value\.v by") as refused:
        write(cluster, {"id": 2, **OLD, "a": {"road": "s", "zip": 5, "city": "c", "late": None}})
    assert refused.value.code == "schema-changed"
    # A field that came and went meanwhile was in no row of it.
    altered.append({"add": ["a.short int"]})
    write(cluster, {"id": 3, **NOTHING})
    assert [row["id"] for row in rows(cluster)] == [1, 3]


def test_a_run_that_began_before_goes_on_with_the_fields_that_it_knew(cluster: Cluster) -> None:
    write(cluster, {"id": 1, **OLD})
    with Cluster(cluster.configuration) as other:
        alter(other, rename={"a.street": "road"}, order=["a.zip"])
    write(cluster, {"id": 2, **OLD})
    write(cluster, {"id": 3, **OLD, "a": {"zip": 5, "road": "s"}})
    assert [row["a"] for row in rows(cluster)] == [{"zip": 5, "road": "s"}] * 3


def test_changes_past_rows_merges_loads_and_exports_show_the_fields_of_now(cluster: Cluster, tmp_path: Path) -> None:
    administration.keep_changes(cluster, TABLE)
    write(cluster, {"id": 1, **OLD})
    then = datetime.datetime.now(datetime.UTC)
    alter(cluster, drop=["a.zip"], rename={"a.street": "road"})
    alter(cluster, add=["a.zip string"], widen={"l.element.p": "bigint"})
    now = {"id": 1, "a": {"road": "s", "zip": None}, "l": [{"p": 1, "q": "x"}, None], "m": OLD["m"]}
    assert rows(cluster, as_of=then) == [now]
    told = [row for batch in cluster.changes(TABLE) for row in batch.to_pylist(maps_as_pydicts="strict")]
    assert [{name: row[name] for name in now} for row in told] == [now]
    write(cluster, {"id": 1, **NOTHING})
    last = pa.Table.from_batches(cluster.changes(TABLE, before=True)).slice(1)
    assert [row["_before"] for row in last.to_pylist(maps_as_pydicts="strict")] == [now]
    write(cluster, now)
    pq.write_table(pa.table({"id": [2], "a": [{"zip": "z", "road": "r"}]}), tmp_path / "more.parquet")
    cluster.load(TABLE, tmp_path / "more.parquet")
    merge = cluster.merge(TABLE, pa.table({"id": [1, 3], "b": [{"road": "new", "zip": "1"}] * 2}))
    merge.when_matched_update({"a": "source.b"}).when_not_matched_insert(
        {"id": "source.id", "a": "source.b", "l": "null", "m": "null"}
    ).execute()
    expected = [
        {**now, "a": {"road": "new", "zip": "1"}},
        {"id": 2, **NOTHING, "a": {"road": "r", "zip": "z"}},
        {"id": 3, **NOTHING, "a": {"road": "new", "zip": "1"}},
    ]
    assert rows(cluster) == expected
    assert export(cluster.scan(TABLE), tmp_path / "all.parquet", ExportFormat.PARQUET, overwrite=False) == 3
    assert pq.read_schema(tmp_path / "all.parquet").field("a").type == pa.struct({"road": "string", "zip": "string"})
    [one] = cluster.sql(f"SELECT a.zip AS zip FROM {TABLE} WHERE a.road = 'r'").read_all().to_pylist()
    assert one == {"zip": "z"}


def test_a_check_reads_fields_as_they_are_called_and_holds_them_fast(cluster: Cluster) -> None:
    alter(cluster, add=["a.city string"])
    alter(cluster, add_checks={"local": "a.city = 'Rome' or a.zip > 3"})
    with pytest.raises(InvalidRequest, match="local"):
        write(cluster, {"id": 1, **NOTHING, "a": {"street": "s", "zip": 1, "city": "Oslo"}})
    for asked in ({"drop": ["a.zip"]}, {"rename": {"a.zip": "code"}}, {"drop": ["a.street"]}):
        with pytest.raises(Rejected) as refused:
            alter(cluster, **asked)
        assert refused.value.code == "checked-column"
        assert "--drop-check local" in refused.value.hint
    alter(cluster, widen={"a.zip": "bigint"}, add=["a.more int"], order=["a.more"], comment={"a.zip": "code"})
    write(cluster, {"id": 1, **NOTHING, "a": {"street": "s", "zip": 2**40, "city": "Oslo", "more": None}})
    alter(cluster, drop=["a.zip"], drop_checks=["local"])
    assert rows(cluster)[0]["a"] == {"more": None, "street": "s", "city": "Oslo"}


REFUSED = [
    ({"drop": ["a.street", "a.zip"]}, "no-columns"),
    ({"drop": ["a.no"]}, "unknown-column"),
    ({"drop": ["l.p"]}, "unknown-column"),
    ({"drop": ["l.element"]}, "unknown-column"),
    ({"drop": ["m.key"]}, "unknown-column"),
    ({"drop": ["id.x"]}, "unknown-column"),
    ({"add": ["a.street.x int"]}, "unknown-column"),
    ({"add": ["l.x int"]}, "unknown-column"),
    ({"order": ["a.no"]}, "unknown-column"),
    ({"widen": {"a.zip": "smallint"}}, "narrower-type"),
    ({"widen": {"a.street": "int"}}, "narrower-type"),
    ({"widen": {"a.street": "struct<x:int>"}}, "narrower-type"),
    ({"widen": {"a": "struct<street:string,zip:bigint>"}}, "narrower-type"),
    ({"rename": {"a.zip": "Street"}}, "column-exists"),
    ({"add": ["a.STREET int"]}, "column-exists"),
    ({"rename": {"a.zip": "b c"}}, "invalid-name"),
    ({"rename": {"a.zip": "zip"}}, "nothing-to-do"),
]


def test_a_column_that_says_its_fields_is_not_widened_as_a_whole(cluster: Cluster) -> None:
    alter(cluster, add=["a.city string"])
    for type_ in ("bigint", "array<int>", "struct<street:string,zip:bigint,city:string>"):
        with pytest.raises(Rejected, match="as a whole") as refused:
            alter(cluster, widen={"a": type_})
        assert refused.value.code == "narrower-type"


def test_fields_that_several_add_at_once_are_all_there_with_numbers_of_their_own(cluster: Cluster) -> None:
    write(cluster, {"id": 1, **OLD})
    failed: list[BaseException] = []

    def add(number: int) -> None:
        try:
            with Cluster(cluster.configuration) as other:
                alter(other, add=[f"a.x{number} int"])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    [column] = [one for one in cluster.catch_up().table(TABLE).columns if one.name == "a"]
    assert sorted(one.member.name for one in places(tree_of(column))) == ["street", "x0", "x1", "x2", "zip"]
    assert len({one.member.field_id for one in places(tree_of(column))}) == 5
    assert rows(cluster)[0]["a"] == {**OLD["a"], "x0": None, "x1": None, "x2": None}


@pytest.mark.parametrize(("asked", "code"), REFUSED)
def test_a_change_of_fields_that_cannot_be_is_refused_and_commits_nothing(
    cluster: Cluster, asked: dict[str, object], code: str
) -> None:
    epoch = cluster.catch_up().epoch
    with pytest.raises(Rejected) as refused:
        alter(cluster, **asked)
    assert refused.value.code == code
    assert cluster.catch_up().epoch == epoch


SENSELESS = [
    ({"drop": ["a"], "rename": {"a.zip": "x"}}, "to be dropped, and changed as well"),
    ({"drop": ["a.zip"], "comment": {"a.zip": "x"}}, "to be dropped, and changed as well"),
    ({"drop": ["a.zip", "a.zip"]}, "named twice"),
    ({"order": ["a.zip", "a.zip"]}, "named twice"),
    ({"add": ["a.x int not null default 5"]}, "cannot have a default"),
    ({"add": ["a.x int default 5"]}, "cannot have a default"),
    ({"nullable": ["a.zip"]}, "may be null already"),
    ({"rename": {"a.zip": "a.code"}}, "without its path"),
]


@pytest.mark.parametrize(("asked", "said"), SENSELESS)
def test_what_makes_no_sense_of_fields_says_why(cluster: Cluster, asked: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        alter(cluster, **asked)


def test_structs_that_spark_once_wrote_with_other_capitals_are_read_and_merged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epochlake.jobs.replicas import encoding

    real = encoding._with_system_columns

    def in_capitals(rows: pa.Table, plan: encoding.StagingPlan) -> pa.Table:
        made = real(rows, plan)
        place = made.column_names.index("a")
        street, zip_ = made.column("a").combine_chunks().flatten()
        return made.set_column(place, "a", pa.StructArray.from_arrays([street, zip_], ["Street", "ZIP"]))

    monkeypatch.setattr(encoding, "_with_system_columns", in_capitals)
    write(cluster, {"id": 1, **OLD})
    monkeypatch.undo()
    write(cluster, {"id": 2, **OLD})
    expected = [{"id": 1, **OLD}, {"id": 2, **OLD}]
    assert rows(cluster) == expected
    merge_all(cluster)
    assert rows(cluster) == expected
