"""Reading: each file of the union once, last write wins where files can overlap, nothing missing in silence."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref as weak_ref

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import leaving_out, reading, telling
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split, relabel
from epochlake.jobs.replicas.copying import copy_data_file
from epochlake.jobs.replicas.known_tokens import KnownTokens
from epochlake.jobs.replicas.reading import Asked, Scan, plan_read, read_files, read_plan, read_ranked
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.sections import tasks
from epochlake.jobs.replicas.staging import stage
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.jobs.replicas.streaming import plan_streaming
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.tokens import tablet_label, tokens_of_label

from tests.support.replicas import TABLE, make_replica, tablets_on
from tests.support.session_settings import settings
from tests.support.storages import STORAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPEND_ONLY = msgspec.structs.replace(TABLE, append_only=True)
TABLES = (TABLE, APPEND_ONLY)
batches = count(1)


@pytest.fixture(autouse=True)
def _tasks_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the few rows of tests, where a test says nothing else."""
    monkeypatch.setattr(reading, "TOLD_HERE", -1)


@pytest.fixture
def replicas(tmp_path: Path) -> list[ReplicaAddress]:
    return [make_replica(tmp_path, volume) for volume in (1, 2, 3)]


def rows(spark: SparkSession, *pairs: tuple[int, str]) -> DataFrame:
    return spark.createDataFrame(list(pairs), "id bigint, note string")


def write(
    df: DataFrame,
    replicas: Sequence[ReplicaAddress],
    *,
    at: int,
    table: Table = TABLE,
    tablets: int = 1,
    deleted: bool = False,
    missed: Sequence[ReplicaAddress] = (),
) -> None:
    """Write a batch on all replicas but those that miss it."""
    cover = tablets_on(tablets, dict.fromkeys(range(tablets), replicas))
    staged = stage(df, StagingPlan(table, cover, at, deleted, 128 << 20, STORAGE))
    files, batch = [one.file for one in staged], next(batches)
    for replica in replicas:
        if replica not in missed:
            commit_files(replica, files, epoch=1, app_id="load", app_version=batch)


def pinned(*chosen: Sequence[ReplicaAddress]) -> list[Asked]:
    """The token space in as many equal ranges as are given, with the replicas that serve each."""
    opened = {replica: open_snapshot(replica) for replicas in chosen for replica in replicas}
    return [
        (*tokens_of_label(tablet_label(n, len(chosen))), [opened[replica] for replica in replicas])
        for n, replicas in enumerate(chosen)
    ]


def paths(scans: Sequence[Scan]) -> list[str]:
    return [path for scan in scans for path in scan.paths]


def values(df: DataFrame) -> dict[int, str]:
    collected = [tuple(row) for row in df.collect()]
    assert len({key for key, _ in collected}) == len(collected), f"a key came back twice: {sorted(collected)}"
    return dict(collected)


def plan_text(df: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    df.explain()
    return capsys.readouterr().out


@pytest.mark.connect
def test_the_last_write_of_a_key_wins_and_tombstones_hide(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    write(rows(spark, (1, "old"), (2, "kept"), (3, "gone"), (4, "back")), replicas, at=10)
    write(spark.createDataFrame([(3,), (4,)], "id bigint"), replicas, at=20, deleted=True)
    write(rows(spark, (1, "new"), (4, "again")), replicas, at=30)
    write(rows(spark, (2, "late, and older")), replicas, at=5)
    df = read_files(spark, TABLE, pinned(replicas))
    assert df.columns == ["id", "note"]
    assert values(df) == {1: "new", 2: "kept", 4: "again"}


def test_of_a_write_and_a_delete_at_the_same_instant_the_delete_wins(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    write(spark.createDataFrame([(1,)], "id bigint"), replicas, at=10, deleted=True)
    write(rows(spark, (1, "x"), (2, "y")), replicas, at=10)
    assert values(read_files(spark, TABLE, pinned(replicas))) == {2: "y"}


def test_of_two_writes_at_the_same_instant_the_same_one_wins_wherever_it_is_read(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    for note in "abcd":
        write(rows(spark, (1, note)), replicas, at=10)
    files = open_snapshot(replicas[0]).all_files
    answers = [values(read_files(spark, TABLE, pinned([replica]))) for replica in replicas]
    assert answers[0] == answers[1] == answers[2]
    only = max(files)
    [winner] = spark.read.parquet(f"file://{replicas[0].uri}/{files[only].path}").select("note").collect()
    assert answers[0] == {1: winner.note}


def test_a_quorum_read_sees_what_any_of_its_replicas_has_each_file_once(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    first, second, third = replicas
    for table in (APPEND_ONLY, TABLE):
        base = 100 if table is TABLE else 0
        write(rows(spark, (base + 1, "a")), replicas, at=10, table=table)
        write(rows(spark, (base + 2, "b")), replicas, at=20, table=table, missed=[first])
        write(rows(spark, (base + 3, "c")), replicas, at=30, table=table, missed=[second])
    expected = {1: "a", 2: "b", 3: "c", 101: "a", 102: "b", 103: "c"}
    assert values(read_files(spark, APPEND_ONLY, pinned([first, second]))) == expected
    assert values(read_files(spark, TABLE, pinned([third, first]))) == expected


def test_the_load_of_a_read_is_spread_over_the_replicas(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    write(spark.range(6000).selectExpr("id", "'x' as note"), replicas, at=1, tablets=8)
    plan = plan_read(TABLE, pinned(replicas))
    served = [sum(path.startswith(f"file://{replica.uri}/") for path in paths(plan.plain)) for replica in replicas]
    assert sorted(served) == [2, 3, 3]


def test_an_append_only_table_is_read_without_a_shuffle(
    spark: SparkSession, replicas: list[ReplicaAddress], capsys: pytest.CaptureFixture[str]
) -> None:
    for at in (1, 2):
        write(rows(spark, (1, "a"), (2, "b")), replicas, at=at, table=APPEND_ONLY)
    df = read_files(spark, APPEND_ONLY, pinned(replicas))
    assert sorted(tuple(row) for row in df.collect()) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]
    assert "Exchange" not in plan_text(df, capsys)


def test_only_files_that_overlap_are_merged_and_nothing_is_shuffled(
    spark: SparkSession, replicas: list[ReplicaAddress], capsys: pytest.CaptureFixture[str]
) -> None:
    write(spark.range(100).selectExpr("id", "'old' as note"), replicas, at=1, tablets=4)
    once = read_files(spark, TABLE, pinned(*[replicas] * 4))
    assert "Exchange" not in plan_text(once, capsys)
    write(rows(spark, (7, "new")), replicas, at=2, tablets=4)
    plan = plan_read(TABLE, pinned(replicas))
    assert (len(paths(plan.plain)), plan.filtered) == (3, ())
    assert len(paths(plan.merged)) == 2
    merged = read_files(spark, TABLE, pinned(replicas))
    assert "Exchange" not in plan_text(merged, capsys).replace("BroadcastExchange", "")
    assert values(merged) == {n: "new" if n == 7 else "old" for n in range(100)}


def test_tombstones_alone_are_filtered_without_a_shuffle(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    write(spark.range(5), replicas, at=1, deleted=True)
    plan = plan_read(TABLE, pinned(replicas))
    assert (plan.plain, len(paths(plan.filtered)), plan.merged) == ((), 1, ())
    assert values(read_files(spark, TABLE, pinned(replicas))) == {}


def test_an_empty_table_has_its_columns(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    df = read_files(spark, TABLE, pinned(replicas))
    assert df.dtypes == [("id", "bigint"), ("note", "string")]
    assert df.count() == 0


def test_a_missing_file_fails_the_read(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    write(rows(spark, (1, "a")), replicas, at=1)
    tablets = pinned(replicas[:1])
    [file] = tablets[0][2][0].all_files.values()
    with settings(spark, {"spark.sql.files.ignoreMissingFiles": "true"}):
        planned = read_files(spark, TABLE, tablets)
        (Path(replicas[0].uri) / file.path).unlink()
        with pytest.raises(Exception, match=file.file_id):
            planned.collect()
        with pytest.raises(Exception, match=file.file_id):
            read_files(spark, TABLE, tablets).collect()


def test_a_read_goes_on_showing_what_it_pinned_while_the_tablet_is_dropped(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    write(rows(spark, (1, "a")), replicas, at=1)
    tablets = pinned(replicas)
    for replica in replicas:
        drop_ranges(replica, [tokens_of_label("0-0")], 2)
    assert values(read_files(spark, TABLE, tablets)) == {1: "a"}
    assert values(read_files(spark, TABLE, pinned(replicas))) == {}


def test_any_history_of_writes_and_deletes_reads_like_a_dictionary(
    spark: SparkSession, replicas: list[ReplicaAddress], seed: int
) -> None:
    """Random batches with random clocks, each missed by one replica; every pair of replicas sees all of them."""
    chance, model = random.Random(seed), {}
    clocks = chance.sample(range(1, 1000), 8)
    for at in clocks:
        keys, deleted = chance.sample(range(20), chance.randint(1, 8)), chance.random() < 0.3
        batch = [(key, f"{at}") for key in keys]
        write(rows(spark, *batch), replicas, at=at, tablets=2, deleted=deleted, missed=[chance.choice(replicas)])
        for key in keys:
            if at > model.get(key, (0, None))[0]:
                model[key] = (at, None if deleted else f"{at}")
    expected = {key: note for key, (_, note) in model.items() if note is not None}
    for pair in ((0, 1), (1, 2), (0, 2)):
        chosen = [replicas[n] for n in pair]
        assert values(read_files(spark, TABLE, pinned(chosen))) == expected


def test_rows_that_another_file_serves_are_left_out_of_a_file_that_has_them_too(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    """An append-only table has no merge that would hide a row which is read twice."""
    first, second, third = replicas
    middle = tokens_of_label("1-0")[1]
    write(spark.range(200).selectExpr("id", "'x' as note"), [first, second], at=1, table=APPEND_ONLY)
    [copy] = plan_streaming([open_snapshot(first)], open_snapshot(third), *tokens_of_label("1-1"))
    commit_files(third, [copy_data_file(copy)], epoch=1, app_id="stream", app_version=1)
    drop_ranges(second, [(middle + 1, tokens_of_label("0-0")[1])], 1)
    expected = dict.fromkeys(range(200), "x")
    for low, high in itertools.product([[first], [second], [second, first]], [[first], [third], [first, third]]):
        assert values(read_files(spark, APPEND_ONLY, pinned(low, high))) == expected
        assert values(read_files(spark, TABLE, pinned(low, high))) == expected
    plan = plan_read(APPEND_ONLY, pinned([first], [third]))
    assert [scan.intervals for scan in plan.plain] == [(), ((tokens_of_label("1-0")),)]
    assert len(paths(plan_read(TABLE, pinned([first], [first, third])).plain)) == 1, "the whole file serves both"
    assert not plan_read(TABLE, pinned([first], [third])).merged, "the two do not overlap where they are asked"
    assert set(values(read_files(spark, TABLE, pinned([first], [third])[1:]))) == set(
        values(read_files(spark, TABLE, pinned([third])))
    )


def test_any_history_of_writes_and_deletes_reads_alike_however_replicas_were_cut(
    spark: SparkSession, replicas: list[ReplicaAddress], seed: int
) -> None:
    """Random batches, then replicas are cut at random; what one of them loses another one still serves."""
    chance = random.Random(seed)
    for at in chance.sample(range(1, 1000), 4):
        batch = [(key, f"{at}") for key in chance.sample(range(60), 25)]
        write(rows(spark, *batch), replicas, at=at, tablets=2, deleted=chance.random() < 0.3)
    expected = {table: sorted(map(tuple, read_files(spark, table, pinned(replicas)).collect())) for table in TABLES}
    for replica in replicas:
        pre_split(replica, [chance.randint(-(2**63), 2**63 - 1) for _ in range(3)], 1)
    quarters = [tokens_of_label(tablet_label(n, 4)) for n in range(4)]
    gone = {replica: chance.sample(quarters, 2) for replica in replicas[1:]}
    for replica, ranges in gone.items():
        drop_ranges(replica, ranges, 1)
    chosen = [[replica for replica in replicas if quarter not in gone.get(replica, ())] for quarter in quarters]
    for table in TABLES:
        asked = pinned(*[chance.sample(holders, chance.randint(1, len(holders))) for holders in chosen])
        assert sorted(map(tuple, read_files(spark, table, asked).collect())) == expected[table]


def test_relabelled_and_cut_files_are_what_spark_reads_from_the_delta_table(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    [replica, *_] = replicas
    write(spark.range(100).selectExpr("id", "'x' as note"), [replica], at=1)
    middle = tokens_of_label("1-0")[1]
    assert pre_split(replica, [middle], 1) == 0
    relabel(replica, lambda file: "1-0" if file.max_token <= middle else "1-1", 1)
    found = spark.read.format("delta").load(replica.uri)
    assert sorted(row.id for row in found.collect()) == list(range(100))
    for label in ("1-0", "1-1"):
        low, high = tokens_of_label(label)
        tokens = [row._token for row in found.where(f"_tablet = '{label}'").collect()]
        assert tokens
        assert all(low <= token <= high for token in tokens)


def test_a_filter_and_the_choice_of_columns_reach_spark_s_scan_of_merged_files(
    spark: SparkSession, replicas: list[ReplicaAddress], capsys: pytest.CaptureFixture[str]
) -> None:
    """An older version never comes back because the newer one was filtered away."""
    write(rows(spark, *((n, "old") for n in range(100))), replicas, at=1)
    write(rows(spark, *((n, "new") for n in range(50))), replicas, at=2)
    df = read_files(spark, TABLE, pinned(replicas))
    found = df.where("note = 'old'").select("note")
    text = plan_text(found, capsys)
    assert "EqualTo(note,old)" in text
    assert "ReadSchema: struct<note:string," in text, "of the table only this column"
    assert found.count() == 50
    assert df.where("note = 'new'").count() == 50
    assert df.count() == 100


WIDE = msgspec.structs.replace(
    TABLE,
    columns=(
        Column("id", "int"),
        Column("part", "double"),
        Column("code", "string"),
        Column("amount", "decimal(30,3)"),
        Column("day", "date"),
        Column("at", "timestamp"),
        Column("local", "timestamp_ntz"),
        Column("raw", "binary"),
        Column("place", "struct<x:float,names:array<string>>"),
        Column("note", "string"),
        Column("more", "map<string,array<timestamp>>"),
    ),
    primary_key=("code", "part", "amount", "day", "at", "local", "raw", "place"),
)
"""Keys of all kinds, some of which Arrow compares otherwise than Spark."""


def wide_rows(spark: SparkSession, keys: Sequence[int], batch: int) -> DataFrame:
    """For each number one key; -0.0 and 0.0 are the same one."""
    numbers = spark.createDataFrame([(key,) for key in keys], "id int")
    return numbers.selectExpr(
        "id",
        "CASE WHEN id % 3 = 0 THEN double('NaN') "
        f"WHEN id % 3 = 1 THEN {'-0.0D' if batch % 2 else '0.0D'} ELSE id * 0.1D END AS `part`",
        "concat('ä', id) AS code",
        "cast(id * 1.25 AS decimal(30,3)) AS amount",
        "date'0001-01-01' + id AS day",
        "timestamp'1900-01-01 00:00:00' + make_interval(0, 0, 0, id) AS at",
        "timestamp_ntz'9999-12-31 23:59:59' AS local",
        "cast(concat('r', id) AS binary) AS raw",
        "named_struct('x', float('NaN'), 'names', array('a', null, cast(id AS string))) AS place",
        f"'batch {batch}' AS note",
        f"map('k', array(timestamp'2026-03-29 01:30:00' + make_interval(0, 0, 0, {batch}), null)) AS more",
    )


def as_lines(df: DataFrame) -> list[str]:
    return sorted(row[0] for row in df.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))").collect())


@pytest.mark.connect
def test_any_history_is_read_as_a_window_over_all_versions_reads_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random batches of wide rows with clocks that tie, deletes, and replicas that were cut."""
    chance = random.Random(seed)
    replicas = [make_replica(tmp_path, volume, table=WIDE) for volume in (1, 2)]
    for batch in range(6):
        df = wide_rows(spark, chance.sample(range(40), 20), batch)
        write(df, replicas, at=chance.randrange(3), table=WIDE, tablets=2, deleted=chance.random() < 0.3)
        if batch == 3:
            pre_split(replicas[0], [chance.randint(-(2**63), 2**63 - 1) for _ in range(2)], 1)
    monkeypatch.setattr(reading, "tasks", partial(tasks, task_rows=25))
    plan = plan_read(WIDE, pinned(replicas))
    assert sum(map(len, plan.tasks)) > 2, "sections are sliced"
    shown = read_plan(spark, WIDE, plan)
    expected = read_ranked(spark, WIDE, plan)
    assert shown.dtypes == expected.dtypes
    assert shown.columns == [column.name for column in WIDE.columns]
    assert as_lines(shown) == as_lines(expected)
    assert as_lines(expected)


def test_what_is_too_much_to_tell_of_is_shuffled(
    spark: SparkSession,
    replicas: list[ReplicaAddress],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(rows(spark, (1, "a"), (2, "b")), replicas, at=1)
    write(rows(spark, (2, "c")), replicas, at=2)
    monkeypatch.setattr(reading, "MOST_TOLD_ROWS", 2)
    df = read_files(spark, TABLE, pinned(replicas))
    assert "Exchange hashpartitioning" in plan_text(df, capsys)
    assert values(df) == {1: "a", 2: "c"}


def flip_in(path: Path, column: str) -> None:
    """Flip a bit in the middle of the data of a column's first chunk."""
    group = pq.read_metadata(path).row_group(0)
    chunk = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == column)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit in a key": partial(flip_in, column="id"),
    "a flipped bit in a value": partial(flip_in, column="note"),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_among_merged_ones_fails_the_read_by_its_name(
    spark: SparkSession, replicas: list[ReplicaAddress], how: str
) -> None:
    for at in (1, 2):
        write(spark.range(500).selectExpr("id", "hex(xxhash64(id)) as note"), replicas, at=at)
    asked = pinned(replicas[:1])
    file = max(asked[0][2][0].all_files.values(), key=lambda file: file.min_written_at)
    quiet = dict.fromkeys(("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"), "true")
    with settings(spark, quiet):
        planned = read_files(spark, TABLE, asked)
        DAMAGES[how](Path(replicas[0].uri) / file.path)
        with pytest.raises(Exception, match=file.file_id):
            planned.collect()


def test_files_that_overlap_and_supersede_nothing_are_read(
    spark: SparkSession, replicas: list[ReplicaAddress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TOLD_HERE", 1 << 30)
    write(spark.range(0, 100, 2).selectExpr("id", "'even' as note"), replicas, at=1, tablets=2)
    write(spark.range(1, 100, 2).selectExpr("id", "'odd' as note"), replicas, at=2, tablets=2)
    found = values(read_files(spark, TABLE, pinned(replicas)))
    assert found == {n: "odd" if n % 2 else "even" for n in range(100)}


@pytest.mark.parametrize(
    ("named", "looked_up", "way"),
    [(4, 0, "LeftAnti"), (4, 64, "getbit"), (5, 0, "Filter")],
    ids=["join", "bits", "names"],
)
def test_what_is_little_is_told_while_it_is_planned(
    spark: SparkSession,
    replicas: list[ReplicaAddress],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: int,
    looked_up: int,
    way: str,
) -> None:
    """Three rows and two deletes do not count: a filter names them or looks for their bits, or they are joined with."""
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", named)
    monkeypatch.setattr(leaving_out, "LOOKED_UP", looked_up)
    write(spark.range(100).selectExpr("id", "'old' as note"), replicas, at=1, tablets=2)
    write(rows(spark, (7, "new")), replicas, at=2, tablets=2)
    write(spark.range(20, 22), replicas, at=3, deleted=True)
    by_tasks = read_files(spark, TABLE, pinned(replicas))
    assert "MapInArrow" in plan_text(by_tasks, capsys)
    monkeypatch.setattr(reading, "TOLD_HERE", 40_000)
    here = read_files(spark, TABLE, pinned(replicas))
    shown = plan_text(here, capsys)
    assert "MapInArrow" not in shown
    assert ("LeftAnti" in shown) is (way == "LeftAnti")
    assert ("getbit" in shown) is (way != "Filter")
    assert "Subquery" not in shown, "words are a constant"
    expected = {n: "new" if n == 7 else "old" for n in range(100) if n not in (20, 21)}
    assert values(here) == values(by_tasks) == expected
    files = [file for file in pinned(replicas)[0][2][0].all_files.values() if file.rows > 2]
    for replica, file in itertools.product(replicas, files):
        flip_in(Path(replica.uri) / file.path, "_token")
    assert values(read_files(spark, TABLE, pinned(replicas))) == expected, "what was told needs no second look"
    replicas[0].storage.kept(telling.Memory).clear()
    assert values(read_files(spark, TABLE, pinned(replicas))) == expected, "nor do tokens that are kept"
    replicas[0].storage.kept(telling.Memory).clear()
    replicas[0].storage.kept(KnownTokens).clear()
    with pytest.raises(StorageUnavailable, match="|".join(file.file_id for file in files)):
        read_files(spark, TABLE, pinned(replicas))


@pytest.mark.connect
@pytest.mark.parametrize("place", ["a b", "ü;x"])
def test_paths_that_are_sent_together_are_those_that_are_sent_one_by_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    directory = tmp_path / place
    directory.mkdir()
    replicas = [make_replica(directory, 1)]
    write(spark.range(100).selectExpr("id", "'old' as note"), replicas, at=1, tablets=4)
    write(spark.range(0, 100, 9).selectExpr("id", "'new' as note"), replicas, at=2, tablets=4)
    for apart in (0, 1 << 10):
        monkeypatch.setattr(reading, "SENT_TOGETHER", apart)
        found = values(read_files(spark, TABLE, pinned(replicas)))
        assert found == {n: "old" if n % 9 else "new" for n in range(100)}


def write_some_that_do_not_count(spark: SparkSession, replicas: Sequence[ReplicaAddress], *, tablets: int) -> None:
    """300 rows, of which each third has a newer version, in files of so many tablets, and ten are deleted."""
    write(spark.range(300).selectExpr("id", "hex(xxhash64(id)) as note"), replicas, at=1, tablets=2)
    write(spark.range(0, 300, 3).selectExpr("id", "'new' as note"), replicas, at=2, tablets=tablets)
    write(spark.range(1, 300, 30), replicas, at=3, deleted=True)


@pytest.mark.connect
@pytest.mark.parametrize("given", [True, False], ids=["a constant", "a frame of words"])
@pytest.mark.parametrize("searched", [0, 16], ids=["by hashes", "by sizes"])
def test_bits_are_looked_up_by_the_size_of_a_file_or_by_a_hash(
    spark: SparkSession,
    replicas: list[ReplicaAddress],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    searched: int,
    given: bool,
) -> None:
    """A file that was exchanged for another whole one, of another size, is not shown as what it was told of."""
    if not given:
        monkeypatch.setattr(leaving_out, "is_unset", lambda *_: None)
    monkeypatch.setattr(leaving_out, "SEARCHED", searched)
    monkeypatch.setattr(leaving_out, "PLACES_FOR_EACH", 10_000)
    monkeypatch.setattr(reading, "TOLD_HERE", 1 << 30)
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", 0)
    write_some_that_do_not_count(spark, replicas, tablets=2)
    plan = plan_read(TABLE, pinned(replicas[:1]))
    shown = read_plan(spark, TABLE, plan)
    assert ("xxhash64(" in plan_text(shown, capsys)) is (searched == 0)
    assert as_lines(shown) == as_lines(read_ranked(spark, TABLE, plan))
    assert shown.count() == 290
    largest = max(plan.copies, key=lambda copy: copy.file.rows)
    pq.write_table(pq.read_table(largest.uri, partitioning=None), largest.uri, compression="none")
    with pytest.raises(Exception, match=leaving_out.OTHER_FILE if searched else largest.file.file_id):
        read_plan(spark, TABLE, plan).collect()


@pytest.mark.parametrize("told_here", [-1, 1 << 30], ids=["told by tasks", "told here"])
@pytest.mark.parametrize("apart", [True, False], ids=["by hashes", "by names"])
def test_what_is_told_of_too_many_files_is_joined_with(
    spark: SparkSession,
    replicas: list[ReplicaAddress],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    apart: bool,
    told_here: int,
) -> None:
    monkeypatch.setattr(reading, "TOLD_HERE", told_here)
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", 0)
    monkeypatch.setattr(leaving_out, "LOOKED_UP", 2)
    if not apart:
        monkeypatch.setattr(leaving_out, "_hashes", lambda names, _=None: np.zeros(len(names), dtype=np.int64))
    write_some_that_do_not_count(spark, replicas, tablets=2)
    plan = plan_read(TABLE, pinned(replicas[:1]))
    shown = read_plan(spark, TABLE, plan)
    text = plan_text(shown, capsys)
    assert "LeftAnti" in text
    assert ("xxhash64(" in text) is apart
    assert as_lines(shown) == as_lines(read_ranked(spark, TABLE, plan))


def test_files_of_which_nothing_is_told_are_scanned_apart_where_there_are_many(
    spark: SparkSession,
    replicas: list[ReplicaAddress],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few of many files are merged: bits of those are looked up all the same."""
    monkeypatch.setattr(reading, "TOLD_HERE", 1 << 30)
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", 0)
    write(spark.range(300).selectExpr("id", "'old' as note"), replicas, at=1, tablets=8)
    first = [row.id for row in spark.range(300).where("xxhash64(id) < -7000000000000000000").collect()]
    assert first
    write(rows(spark, *((key, "new") for key in first)), replicas, at=2, tablets=1)
    plan = plan_read(TABLE, pinned(replicas[:1]))
    merged = {run.name for task in plan.tasks for piece in task for run in piece.runs}
    assert len(merged) < len(plan.copies)
    monkeypatch.setattr(leaving_out, "LOOKED_UP", len(merged))
    shown = read_plan(spark, TABLE, plan)
    text = plan_text(shown, capsys)
    assert "LeftAnti" not in text
    assert "getbit" in text
    assert values(shown) == {n: "new" if n in first else "old" for n in range(300)}


@pytest.mark.connect
@pytest.mark.parametrize(
    ("named", "looked_up"), [(1 << 20, 0), (0, 64), (0, 0)], ids=["by names", "by bits", "by a join"]
)
def test_of_a_small_file_of_which_a_part_is_read_spark_scans_all_and_shows_the_part(
    spark: SparkSession,
    replicas: list[ReplicaAddress],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: int,
    looked_up: int,
) -> None:
    monkeypatch.setattr(reading, "TOLD_HERE", 1 << 30)
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", named)
    monkeypatch.setattr(leaving_out, "LOOKED_UP", looked_up)
    write_some_that_do_not_count(spark, replicas, tablets=1)
    write(spark.range(400, 420).selectExpr("id", "'more' as note"), replicas, at=4)
    asked = pinned(replicas[:1], replicas[:1], replicas[:1], replicas[:1])
    plan = plan_read(TABLE, [asked[0], asked[2]])
    assert len({scan.intervals for scan in plan.merged}) > 1
    expected = as_lines(read_ranked(spark, TABLE, plan))
    monkeypatch.setattr(reading, "WHOLE_ROWS", 99)
    in_parts = read_plan(spark, TABLE, plan)
    apart = plan_text(in_parts, capsys).count("FileScan")
    monkeypatch.setattr(reading, "WHOLE_ROWS", 1000)
    whole = read_plan(spark, TABLE, plan)
    assert plan_text(whole, capsys).count("FileScan") < apart
    assert as_lines(whole) == as_lines(in_parts) == expected


@pytest.mark.connect
def test_a_session_makes_a_condition_once_and_another_one_after_a_write(
    spark: SparkSession, replicas: list[ReplicaAddress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TOLD_HERE", 1 << 30)
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", 0)
    monkeypatch.setattr(leaving_out, "MOST_CONDITIONS", 1)
    made: list[object] = []
    make = leaving_out.looked_up
    monkeypatch.setattr(leaving_out, "looked_up", lambda *asked: made.append(asked) or make(*asked))
    write(spark.range(100).selectExpr("id", "'old' as note"), replicas, at=1)
    write(spark.range(0, 100, 2).selectExpr("id", "'new' as note"), replicas, at=2)
    before = plan_read(TABLE, pinned(replicas[:1]))
    expected = {n: "old" if n % 2 else "new" for n in range(100)}
    first, second = (read_plan(spark, TABLE, before) for _ in range(2))
    assert len(made) == 1
    assert values(first) == values(second) == expected
    # Both in one query, which has the condition twice.
    pairs = first.join(second.withColumnRenamed("note", "again"), "id").where("note = again")
    assert pairs.count() == 100
    write(spark.range(1, 100, 2).selectExpr("id", "'newer' as note"), replicas, at=3)
    after = read_plan(spark, TABLE, plan_read(TABLE, pinned(replicas[:1])))
    assert len(made) == 2
    assert values(after) == {n: "newer" if n % 2 else "new" for n in range(100)}
    assert values(first) == values(read_plan(spark, TABLE, before)) == expected, "one that is not kept is made again"
    assert len(made) == 3


@pytest.mark.parametrize("given", [True, False], ids=["a constant", "a frame of words"])
def test_a_session_is_not_kept_alive_by_the_conditions_that_are_kept_for_it(
    spark: SparkSession, replicas: list[ReplicaAddress], monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """A process that goes on may begin a session for each of its users."""
    if not given:
        monkeypatch.setattr(leaving_out, "is_unset", lambda *_: None)
    conditions = replicas[0].storage.kept(leaving_out.Conditions)
    words, sizes = {"a.parquet": np.array([1, 2], dtype=np.int64)}, {"a.parquet": 100}
    session = spark.newSession()
    made = conditions.looked_up(session, words, sizes)
    assert conditions.looked_up(session, words, sizes) is made
    weakly = weak_ref(session)
    del session, made
    # PySpark holds the session that was made last, and the one that made a frame last.
    spark.newSession().createDataFrame([], "id bigint")
    gc.collect()
    assert weakly() is None
    assert conditions.looked_up(spark, words, sizes) is conditions.looked_up(spark, words, sizes)
