"""The log in a table that only Spark writes: the contract of each log, and what is its own. Also on Spark Connect."""

from __future__ import annotations

from pathlib import Path

import epochlake
import msgspec
import pytest
from epochlake.metastore.configuration import Configuration, LogSettings, ZooKeeperSettings
from epochlake.metastore.errors import ConfigurationError, LogUnreadable, NotInitialised
from epochlake.metastore.log import spark_log
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict
from epochlake.metastore.log.spark_log import SparkLog, create_spark_log
from pyspark.sql import SparkSession

from tests.support import slices
from tests.support.log_contract import (
    Opener,
    test_an_append_conflicts_after_a_fence_whoever_raised_it,
    test_of_many_who_append_the_same_epoch_exactly_one_succeeds,
)
from tests.support.logs import chain
from tests.support.session_settings import settings
from tests.support.storages import STORAGE

slow = pytest.mark.skipif(not slices.THOROUGH, reason="an append takes a second or two")

if slices.THOROUGH:
    from tests.support.log_contract import *  # noqa: F403

__all__ = [
    "test_an_append_conflicts_after_a_fence_whoever_raised_it",
    "test_of_many_who_append_the_same_epoch_exactly_one_succeeds",
]

pytestmark = pytest.mark.connect


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    name = f"delta.`{tmp_path}/log`"
    create_spark_log(spark, name)
    return name


@pytest.fixture
def open_log(spark: SparkSession, table: str) -> Opener:
    return lambda: SparkLog(spark, table, compact_every=8)


def next_of(known: list[Entry], tag: str = "request") -> list[Entry]:
    return chain(1, position_of(known[-1]), tag=tag)


def test_a_log_has_the_same_columns_in_a_session_whose_timestamps_have_no_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = f"delta.`{tmp_path}/zoneless`"
    with settings(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        create_spark_log(spark, name)
        log = SparkLog(spark, name)
        log.read(0)
        log.append(entries := chain(1))
        assert dict(spark.table(name).dtypes)["committed_at"] == "timestamp"
    assert SparkLog(spark, name).read(0) == entries


@slow
def test_a_fence_that_was_killed_half_way_leaves_no_two_generations_open(
    open_log: Opener, spark: SparkSession, table: str
) -> None:
    log = open_log()
    log.read(0)
    first = chain(1)
    log.append(first)
    slept, slept_longer = open_log(), open_log()
    assert slept.read(0) == slept_longer.read(0) == first
    for generation in (1, 2):
        spark_log._begin(spark, table, generation)  # and killed before it burned what was before
        after = open_log()
        known = after.read(0)
        after.append(next_of(known))
    open_log().fence()
    for behind in (slept, slept_longer, after):
        with pytest.raises(AppendConflict):
            behind.append(next_of(first, tag="slept") if behind is not after else next_of([*known, *next_of(known)]))
    assert [entry.request_id for entry in open_log().read(0)] == ["request-1", "request-2", "request-3"]


@slow
def test_a_slow_fence_does_not_bring_an_old_generation_back(
    open_log: Opener, spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log, "KEPT_GENERATIONS", 1)
    for _ in range(2):
        open_log().fence()
    log = open_log()
    assert log.read(0) == []
    spark_log._begin(spark, table, 1)  # by one who has read the generation 0 long ago
    first = chain(1)
    log.append(first)
    assert log.read(0) == open_log().read(0) == first
    log.append(next_of(first))


@slow
def test_a_table_that_was_restored_to_an_older_version_is_appended_to_again(
    open_log: Opener, spark: SparkSession, table: str
) -> None:
    log = open_log()
    log.read(0)
    entries = chain(3)
    for entry in entries:
        log.append([entry])
    version = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0].version
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('delta.appendOnly')").collect()
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version - 1}").collect()
    behind = open_log()
    known = behind.read(0)
    assert known == entries[:2]
    other = next_of(known, tag="another")
    with pytest.raises(AppendConflict):  # the table knows of a third epoch that has gone
        behind.append(other)
    assert behind.read(2) == []
    behind.append(other)
    assert open_log().read(0) == [*known, *other]


def test_a_log_of_another_kind_is_neither_read_nor_appended_to(
    open_log: Opener, spark: SparkSession, table: str, tmp_path: Path
) -> None:
    log = open_log()
    log.read(0)
    log.append(chain(1))
    with pytest.raises(LogUnreadable, match=r"written by Spark.*\[log\] table"):
        DeltaLog(STORAGE, f"{tmp_path}/log").read(0)
    other = f"delta.`{tmp_path}/other`"
    with pytest.raises(NotInitialised):
        SparkLog(spark, other).read(0)
    spark.range(3).write.format("delta").save(f"{tmp_path}/other")
    with pytest.raises(LogUnreadable, match="no log that Spark writes"):
        SparkLog(spark, other).read(0)
    with pytest.raises(LogUnreadable, match="holds rows"):
        create_spark_log(spark, other)
    columns = ", ".join(f"{name} {kind}" for name, kind, _ in spark_log._COLUMNS)
    made = f"delta.`{tmp_path}/made`"
    spark.sql(f"CREATE TABLE {made} ({columns}) USING delta")  # as somebody does who wants properties of a catalog
    create_spark_log(spark, made)
    assert SparkLog(spark, made).read(0) == []
    with pytest.raises(ConfigurationError, match="is no name of a table"):
        SparkLog(spark, "no name at all").read(0)


def test_a_cluster_whose_log_is_in_a_table_of_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    """Begun, changed, read at an earlier epoch and as a DataFrame; and nobody takes its root for an empty one."""
    table = f"log_of_{tmp_path.parent.name.replace('-', '_')}"
    below = Configuration(root=f"{tmp_path}/lake", zookeeper=ZooKeeperSettings(connect="embedded"))
    configuration = msgspec.structs.replace(below, log=LogSettings(table=table))
    try:
        epochlake.init_cluster(configuration, "lake", spark=spark)
        with epochlake.open_cluster(configuration, spark=spark) as cluster:
            (tmp_path / "d1").mkdir()
            epochlake.add_node(cluster, "A", "dc", "r", [("d1", f"{tmp_path}/d1", None)])
            assert cluster.at(1).epoch == 1
            frames = epochlake.MetadataFrames(spark, cluster)
            assert [row.epoch for row in frames.history.collect()] == [*range(1, cluster.metadata.epoch + 1)]
        with epochlake.open_cluster(configuration, spark=spark) as cluster:
            assert cluster.metadata.epoch > 1
        with pytest.raises(ConfigurationError, match=f"is in the table {table}"):
            epochlake.open_cluster(below)
        with pytest.raises(ConfigurationError, match=f"is in the table {table}"):
            epochlake.init_cluster(below)
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {table}")
