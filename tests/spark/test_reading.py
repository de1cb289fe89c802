"""Reading: each file of the union once, last write wins where files can overlap, nothing missing in silence."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from epochlake.jobs.dataplane.commits import commit_files, drop_tablets
from epochlake.jobs.dataplane.files import DataFile
from epochlake.jobs.dataplane.reading import not_overlapping, plan_read, read_files
from epochlake.jobs.dataplane.replica import ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.jobs.dataplane.staging import stage
from epochlake.metastore.metadata.model import Table
from epochlake.placement.tokens import tablet_label
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replicas import TABLE, make_replica

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPEND_ONLY = msgspec.structs.replace(TABLE, append_only=True)
batches = count(1)


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
    staged = stage(df, table, tablets, dict.fromkeys(range(tablets), replicas), written_at=at, deleted=deleted)
    files, batch = [one.file for one in staged], next(batches)
    for replica in replicas:
        if replica not in missed:
            commit_files(replica, files, epoch=1, app_id="load", app_version=batch)


def pinned(replicas: Sequence[ReplicaAddress], tablets: int = 1) -> dict[str, list[ReplicaSnapshot]]:
    snapshots = [open_snapshot(replica) for replica in replicas]
    return {tablet_label(tablet, tablets): snapshots for tablet in range(tablets)}


def values(df: DataFrame) -> dict[int, str]:
    collected = [tuple(row) for row in df.collect()]
    assert len({key for key, _ in collected}) == len(collected), f"a key came back twice: {sorted(collected)}"
    return dict(collected)


def plan_text(df: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    df.explain()
    return capsys.readouterr().out


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
    files = open_snapshot(replicas[0]).files["0-0"]
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
    plan = plan_read(TABLE, pinned(replicas, 8))
    served = [sum(path.startswith(f"file://{replica.uri}/") for path in plan.plain) for replica in replicas]
    assert sorted(served) == [2, 3, 3]


def test_an_append_only_table_is_read_without_a_shuffle(
    spark: SparkSession, replicas: list[ReplicaAddress], capsys: pytest.CaptureFixture[str]
) -> None:
    for at in (1, 2):
        write(rows(spark, (1, "a"), (2, "b")), replicas, at=at, table=APPEND_ONLY)
    df = read_files(spark, APPEND_ONLY, pinned(replicas))
    assert sorted(tuple(row) for row in df.collect()) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]
    assert "Exchange" not in plan_text(df, capsys)


def test_only_tablets_whose_files_overlap_are_shuffled(
    spark: SparkSession, replicas: list[ReplicaAddress], capsys: pytest.CaptureFixture[str]
) -> None:
    write(spark.range(100).selectExpr("id", "'old' as note"), replicas, at=1, tablets=4)
    tablets = pinned(replicas, 4)
    once = read_files(spark, TABLE, tablets)
    assert "Exchange" not in plan_text(once, capsys)
    write(rows(spark, (7, "new")), replicas, at=2, tablets=4)
    plan = plan_read(TABLE, pinned(replicas, 4))
    assert (len(plan.plain), len(plan.filtered)) == (3, 0)
    assert len(plan.merged) == 2
    assert values(read_files(spark, TABLE, pinned(replicas, 4))) == {n: "new" if n == 7 else "old" for n in range(100)}


def test_tombstones_alone_are_filtered_without_a_shuffle(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    write(spark.range(5), replicas, at=1, deleted=True)
    plan = plan_read(TABLE, pinned(replicas))
    assert (len(plan.plain), len(plan.filtered), len(plan.merged)) == (0, 1, 0)
    assert values(read_files(spark, TABLE, pinned(replicas))) == {}


def test_an_empty_table_has_its_columns(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    df = read_files(spark, TABLE, pinned(replicas))
    assert df.dtypes == [("id", "bigint"), ("note", "string")]
    assert df.count() == 0


def test_a_missing_file_fails_the_read(spark: SparkSession, replicas: list[ReplicaAddress]) -> None:
    write(rows(spark, (1, "a")), replicas, at=1)
    tablets = pinned(replicas[:1])
    [file] = tablets["0-0"][0].files["0-0"].values()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        planned = read_files(spark, TABLE, tablets)
        (Path(replicas[0].uri) / file.path).unlink()
        with pytest.raises(Exception, match=file.file_id):
            planned.collect()
        with pytest.raises(Exception, match=file.file_id):
            read_files(spark, TABLE, tablets).collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_a_read_goes_on_showing_what_it_pinned_while_the_tablet_is_dropped(
    spark: SparkSession, replicas: list[ReplicaAddress]
) -> None:
    write(rows(spark, (1, "a")), replicas, at=1)
    tablets = pinned(replicas)
    for replica in replicas:
        drop_tablets(replica, ["0-0"], 2)
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
        assert values(read_files(spark, TABLE, pinned(chosen, 2))) == expected


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8))
def test_a_file_counts_as_alone_exactly_when_no_other_shares_a_token(spans: list[tuple[int, int]]) -> None:
    files = [
        DataFile(str(n), "0-0", f"{n}.parquet", 1, 1, start, start + width, 1, 1, False)
        for n, (start, width) in enumerate(spans)
    ]
    touching = {
        one.file_id
        for one in files
        for other in files
        if one is not other and one.min_token <= other.max_token and other.min_token <= one.max_token
    }
    assert not_overlapping(files) == {file.file_id for file in files} - touching
