"""Staging: rows reach the directories of their tablets' replicas in one job, the same bytes on each."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import row_groups
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.copying import copy_data_file, file_copy
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.reading import read_files
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.slices import slice_of, tasks_of_slices
from epochlake.jobs.replicas.staging import StagedFile, stage
from epochlake.jobs.replicas.staging_plan import Routing, StagingPlan
from epochlake.jobs.replicas.volumes import prepare_volume
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.placements import highs, index_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import (
    MAX_TOKEN,
    MIN_TOKEN,
    TABLET,
    TOKEN,
    parse_label,
    range_label,
    tablet_of,
    tablet_range,
    tokens_of_label,
    with_tablet,
    with_token,
)

from tests.support.failures import mounted, remount
from tests.support.replicas import TABLE, make_replica, marker, tablets_on
from tests.support.storages import STORAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPEND_ONLY = msgspec.structs.replace(TABLE, append_only=True)


@pytest.fixture
def replicas(tmp_path: Path) -> list[ReplicaAddress]:
    return [make_replica(tmp_path, volume) for volume in (1, 2, 3)]


def planned(
    table: Table,
    cover: Routing,
    at: int,
    *,
    deleted: bool = False,
    target_file_bytes: int = 128 << 20,
    shared_file_bytes: int = 0,
) -> StagingPlan:
    return StagingPlan(table, cover, at, deleted, target_file_bytes, STORAGE, shared_file_bytes=shared_file_bytes)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("id", "concat('n', id) as note")


def write(
    df: DataFrame,
    replicas: Sequence[ReplicaAddress],
    *,
    table: Table = TABLE,
    tablets: int = 4,
    at: int = 100,
    deleted: bool = False,
) -> list[StagedFile]:
    cover = tablets_on(tablets, dict.fromkeys(range(tablets), replicas))
    staged = stage(df, planned(table, cover, at, deleted=deleted))
    for replica in replicas:
        files = [one.file for one in staged if replica.volume_id in one.stored]
        commit_files(replica, files, epoch=1, app_id="load", app_version=at)
    return staged


@pytest.mark.parametrize("count", [1, 2, 64])
def test_spark_and_numpy_agree_on_the_tablet_of_a_row(spark: SparkSession, count: int) -> None:
    rows = numbers(spark, 200).transform(with_token(["id"])).transform(with_tablet(count)).toArrow()
    expected = tablet_of(rows[TOKEN].to_numpy(), count)
    np.testing.assert_array_equal(rows[TABLET].to_numpy(), expected)


def test_a_key_column_that_is_not_there_is_named_before_any_job(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequest, match=r"lacks \['key'\]"):
        numbers(spark, 1).transform(with_token(["id", "key"]))
    with pytest.raises(InvalidRequest, match="_token"):
        numbers(spark, 1).transform(with_tablet(2))


def test_each_file_has_rows_of_its_tablet_only_and_the_same_bytes_on_each_replica(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    staged = write(numbers(spark, 1000), replicas, tablets=8)
    assert sum(one.file.rows for one in staged) == 1000
    for one in staged:
        assert one.stored == {1, 2, 3}
        copies = [(Path(replica.uri) / one.file.path).read_bytes() for replica in replicas]
        assert copies[0] == copies[1] == copies[2]
        assert len(copies[0]) == one.file.size
        tokens = pq.read_table(Path(replicas[0].uri) / one.file.path, partitioning=None)[TOKEN].to_numpy()
        start, end = tablet_range(*parse_label(one.file.label))
        assert start < tokens[0] == one.file.min_token
        assert one.file.max_token == tokens[-1] <= end
        assert (np.diff(tokens) >= 0).all()
        assert one.file.window == tokens_of_label(one.file.label)
    files = [open_snapshot(replica).all_files for replica in replicas]
    assert files[0] == files[1] == files[2] == {one.file.file_id: one.file for one in staged}
    assert len({one.file.label for one in staged}) == len(staged)


def test_ranges_of_any_size_get_files_of_their_own_that_their_tasks_store_in_token_order(
    spark: SparkSession, replicas: list[ReplicaAddress], seed: int
) -> None:
    """More ranges than tasks, some without rows, many in one slice of the token space and one that is half of it."""
    chosen = random.Random(seed)
    lows = np.unique([MIN_TOKEN, 0, *[chosen.randrange(2**58) for _ in range(20)], MAX_TOKEN])
    ends = highs(lows)
    labels = tuple(range_label(*window) for window in zip(lows.tolist(), ends.tolist(), strict=True))
    routes = tuple((replica,) for replica in replicas)
    cover = Routing(lows, labels, routes, np.arange(len(lows), dtype=np.int32) % 3)
    staged = stage(numbers(spark, 3000), planned(APPEND_ONLY, cover, 1))
    assert sum(one.file.rows for one in staged) == 3000
    assert len({one.file.window for one in staged}) == len(staged)
    for one in staged:
        index = labels.index(one.file.label)
        low, high = one.file.window
        assert (low, high) == (lows[index], ends[index])
        assert low <= one.file.min_token <= one.file.max_token <= high
        assert one.stored == {replicas[index % 3].volume_id}


def test_neighbouring_ranges_share_a_file_of_few_rows_within_their_task(
    spark: SparkSession, replicas: list[ReplicaAddress], seed: int
) -> None:
    """Of 64 tablets on the same replicas each task makes one file; a tablet in between that is elsewhere parts it."""
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    elsewhere = random.Random(seed).randrange(64)
    same = tablets_on(64, dict.fromkeys(range(64), replicas))
    cover = Routing(
        same.lows, same.labels, (tuple(replicas), (replicas[0],)), (np.arange(64) == elsewhere).astype(np.int32)
    )
    staged = stage(numbers(spark, 3000), planned(APPEND_ONLY, cover, 1, shared_file_bytes=1 << 20))
    assert sum(one.file.rows for one in staged) == 3000
    assert len(staged) == 4 + (1 if elsewhere % 16 in (0, 15) else 2)
    windows = [one.file.window for one in staged]
    assert all(after[0] == before[1] + 1 for before, after in pairwise(windows))
    assert (windows[0][0], windows[-1][1]) == (MIN_TOKEN, MAX_TOKEN)
    for one in staged:
        assert one.file.window[0] <= one.file.min_token <= one.file.max_token <= one.file.window[1]
        assert one.stored == ({1} if one.file.label == cover.labels[elsewhere] else {1, 2, 3})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_a_task_has_whole_ranges_and_tasks_are_in_token_order(count: int, seed: int) -> None:
    chosen = np.random.default_rng(seed)
    lows = np.unique(np.append(chosen.integers(MIN_TOKEN, MAX_TOKEN, 100) >> chosen.integers(0, 60), MIN_TOKEN))
    tokens = np.sort(np.concatenate([lows, lows[1:] - 1, chosen.integers(MIN_TOKEN, MAX_TOKEN, 1000), [MAX_TOKEN]]))
    slices = tasks_of_slices(lows, count)
    own = slice_of(tokens, count)
    tasks = [
        number if begin is not None and token >= begin else before
        for token, number in zip(tokens.tolist(), own.tolist(), strict=True)
        for begin, before in [slices[number]]
    ]
    assert tasks == sorted(tasks)
    assert max(tasks) < count
    by_range = {(int(index), task) for index, task in zip(index_of(lows, tokens), tasks, strict=True)}
    assert len(by_range) == len(lows)


def test_rows_go_to_the_replicas_of_their_tablet_and_to_no_other(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    cover = tablets_on(2, {0: replicas[:1], 1: replicas[1:]})
    staged = stage(numbers(spark, 100), planned(TABLE, cover, 1))
    assert {one.file.label: one.stored for one in staged} == {"1-0": {1}, "1-1": {2, 3}}
    assert not (Path(replicas[0].uri) / "_tablet=1-1").exists()


TYPES: list[tuple[str, object]] = [
    ("boolean", True),
    ("tinyint", -7),
    ("smallint", 300),
    ("int", 70_000),
    ("bigint", 2**40),
    ("float", 0.5),
    ("double", float("inf")),
    ("string", "ä"),
    ("binary", bytearray(b"\x00\xff")),
    ("decimal(38,18)", Decimal("1.5")),
    ("date", datetime.date(1969, 7, 20)),
    ("timestamp", datetime.datetime(1969, 7, 20, 20, 17, 40, 123456)),
    ("timestamp_ntz", datetime.datetime(2038, 1, 19, 3, 14, 8)),
    ("array<int>", [1, None]),
    ("map<string,array<double>>", {"a": [1.0]}),
    ("struct<x:int,y:string>", (1, "z")),
]


def test_values_of_every_type_and_nulls_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    columns = (Column("id", "bigint"), *(Column(f"c{n}", ddl) for n, (ddl, _) in enumerate(TYPES)))
    table = msgspec.structs.replace(TABLE, columns=columns)
    replica = make_replica(tmp_path, 1, table=table)
    schema = ", ".join(f"{column.name} {column.type}" for column in columns)
    rows = [(1, *(value for _, value in TYPES)), (2, *(None for _ in TYPES))]
    source = spark.createDataFrame(rows, schema)
    write(source, [replica], table=table)
    actual = read_files(spark, table, [(MIN_TOKEN, MAX_TOKEN, [open_snapshot(replica)])])
    assert actual.dtypes == source.dtypes
    assert actual.sort("id").collect() == source.sort("id").collect()


def test_tombstones_need_only_the_key(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    [staged] = write(spark.range(3), replicas, tablets=1, deleted=True)
    assert staged.file.has_tombstones
    rows = pq.read_table(Path(replicas[0].uri) / staged.file.path, partitioning=None)
    assert rows["_deleted"].to_pylist() == [True] * 3
    assert rows["note"].null_count == 3


REFUSED: list[tuple[str, str]] = [
    ("select cast(null as bigint) as id, 'x' as note", "'id' is a column of the primary key, and it is null"),
    ("select id % 999 as id, 'x' as note from range(1000)", r"two of the rows given .*\{'id': 0\}"),
    ("select id, if(id = 5, null, 'x') as note from range(10)", "'note' is declared not nullable"),
]


@pytest.mark.parametrize(("query", "message"), REFUSED)
def test_rows_that_cannot_be_written_are_refused_with_the_reason(
    spark: SparkSession, replicas: list[ReplicaAddress], query: str, message: str
) -> None:
    strict = msgspec.structs.replace(TABLE, columns=(Column("id", "bigint"), Column("note", "string", nullable=False)))
    with pytest.raises(InvalidRequest, match=message):
        write(spark.sql(query), replicas, table=strict)
    assert open_snapshot(replicas[0]).all_files == {}


def test_a_tablet_without_a_replica_is_refused(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    with pytest.raises(InvalidRequest, match=r"rows for range 1-1 of air\.flights, and no replica"):
        stage(numbers(spark, 100), planned(TABLE, tablets_on(2, {0: replicas}), 1))


def test_an_append_only_table_takes_equal_keys(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    staged = write(spark.sql("select id % 10 as id, 'x' as note from range(100)"), replicas, table=APPEND_ONLY)
    assert sum(one.file.rows for one in staged) == 100


def test_no_rows_make_no_files(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    assert write(numbers(spark, 0), replicas) == []


def test_many_rows_become_several_files_with_token_ranges_apart(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    count = 3 * row_groups.ROW_GROUP_ROWS
    cover = tablets_on(1, {0: replicas[:1]})
    staged = stage(numbers(spark, count), planned(TABLE, cover, 1, target_file_bytes=100_000))
    assert sum(one.file.rows for one in staged) == count
    assert len(staged) == 4  # row groups end at the quarters of the tokens, and files with them
    ranges = [(one.file.min_token, one.file.max_token) for one in staged]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def lose_the_marker(replica: ReplicaAddress) -> None:
    (Path(replica.volume_uri) / "epochlake-volume.json").unlink()


def put_a_file_in_place_of_the_replica(replica: ReplicaAddress) -> None:
    Path(replica.uri).rename(Path(replica.uri + ".away"))
    Path(replica.uri).write_text("")


def put_a_file_in_place_of_the_tablet(replica: ReplicaAddress) -> None:
    (Path(replica.uri) / "_tablet=0-0").write_text("")


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lose_the_marker, "not mounted"),
        (put_a_file_in_place_of_the_replica, "lost|directory"),
        (put_a_file_in_place_of_the_tablet, "directory"),
    ],
)
def test_a_replica_that_fails_is_reported_and_the_others_are_written(  # type: ignore[no-untyped-def]
    spark: SparkSession, replicas: list[ReplicaAddress], fail, reason: str
) -> None:
    fail(replicas[1])
    [staged] = stage(numbers(spark, 10), planned(TABLE, tablets_on(1, {0: replicas}), 1))
    assert staged.stored == {1, 3}
    assert list(staged.failed) == [2]
    assert any(word in staged.failed[2] for word in reason.split("|"))
    assert replicas[1].volume_uri in staged.failed[2]


def test_a_read_only_and_a_full_volume_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    good = make_replica(tmp_path, 1)
    with mounted(tmp_path / "v2", "1m") as read_only, mounted(tmp_path / "v3", "256k"):
        replicas = [good, make_replica(tmp_path, 2), make_replica(tmp_path, 3)]
        remount(read_only, "ro")
        wide = numbers(spark, 50_000).selectExpr("id", "sha2(note, 512) as note")
        [staged] = stage(wide, planned(TABLE, tablets_on(1, {0: replicas}), 1))
    assert staged.stored == {1}
    assert "mounted read-only" in staged.failed[2]
    assert "disk is full" in staged.failed[3]


def test_a_replica_that_missed_a_file_gets_the_same_one_later(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    lose_the_marker(replicas[2])
    [staged] = write(numbers(spark, 10), replicas, tablets=1)

    prepare_volume(STORAGE, replicas[2].volume_uri, marker(3))
    copy_data_file(file_copy(staged.file, replicas[0], replicas[2]))
    assert isinstance(commit_files(replicas[2], [staged.file], epoch=1, app_id="load", app_version=100), Acknowledged)
    assert open_snapshot(replicas[2]).all_files == open_snapshot(replicas[0]).all_files
