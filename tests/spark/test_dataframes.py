"""The metadata as DataFrames: the same as the metadata itself, at any epoch, and joinable as people would."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.log_place import LogBelowRoot
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.tables import columns, dataframes
from epochlake.metastore.tables.dataframes import MetadataFrames
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.random_histories import History, random_history, random_ring_history
from tests.support.storages import STORAGE

PARTS = (
    *("nodes", "volumes", "keyspaces", "tables", "tablets", "transitions", "read_placements", "write_placements"),
    *("ring_ranges", "operations"),
)


class Root:
    def __init__(self, uri: Path) -> None:
        self.log = str(uri / "log")


class HistoryOnDisk:
    """An open cluster as far as frames need one: a log and snapshots, made of a history."""

    def __init__(self, uri: Path, history: History) -> None:
        self.root = Root(uri)
        self.log_place = LogBelowRoot(STORAGE, self.root.log)
        self.snapshots = Snapshots(STORAGE, str(uri / "snapshots"))
        self.history = history
        self._written = 0
        create_log_table(STORAGE, self.root.log)
        self.catch_up()

    def catch_up(self) -> ClusterMetadata:
        log = DeltaLog(STORAGE, self.root.log)
        log.read(self._written)
        if new := self.history.entries[self._written :]:
            log.append(new)
        self._written = len(self.history.entries)
        return self.history.metadata


@pytest.fixture
def cluster(tmp_path: Path, seed: int) -> HistoryOnDisk:
    history = random_history(seed, 80, snapshots_at=(40,))
    cluster = HistoryOnDisk(tmp_path, history)
    cluster.snapshots.write(history.versions[40], history.position_at(40))
    return cluster


@pytest.fixture
def frames(spark: SparkSession, cluster: HistoryOnDisk) -> MetadataFrames:
    return MetadataFrames(spark, cluster)


@pytest.mark.connect
@pytest.mark.parametrize("part", [*PARTS, "requests"])
def test_frames_of_an_empty_cluster_have_the_documented_columns(spark: SparkSession, part: str) -> None:
    function = getattr(dataframes, "table_definitions" if part == "tables" else part)
    frame = function(spark, ClusterMetadata.empty())
    assert frame.columns == getattr(columns, f"{part.upper()}_SCHEMA").names
    assert frame.count() == 0


@pytest.mark.connect
def test_every_table_of_the_metadata_is_had_by_its_name(spark: SparkSession, frames: MetadataFrames) -> None:
    at = frames.now()
    for part in (*PARTS, "requests"):
        named, own = at.part(part), getattr(at, part)
        assert (named.schema, named.collect()) == (own.schema, own.collect()), part
    with pytest.raises(InvalidRequest, match="no table 'node'"):
        at.part("node")


@pytest.mark.connect
def test_placements_are_those_of_the_metadata_at_any_epoch(
    spark: SparkSession, frames: MetadataFrames, cluster: HistoryOnDisk, seed: int
) -> None:
    for epoch in random.Random(seed).sample(range(20, 81), 2):
        metadata = cluster.history.versions[epoch]
        expected = [
            (table_id, tablet, kind, replica, ordinal)
            for table_id, tablet_map in metadata.tablets.maps.items()
            for tablet in range(tablet_map.count)
            for kind in ("reads", "writes")
            for ordinal, replica in enumerate(getattr(metadata.placement(table_id, tablet), kind))
        ]
        at = frames.at(epoch)
        actual = keyed(at.read_placements, "reads").unionByName(keyed(at.write_placements, "writes"))
        assert_same(actual, spark.createDataFrame(expected, actual.schema))


def keyed(placements: DataFrame, kind: str) -> DataFrame:
    return placements.select("table_id", "tablet", F.lit(kind).alias("kind"), "volume_id", "ordinal")


def test_write_sets_are_those_in_which_a_write_must_reach_its_level(
    spark: SparkSession, frames: MetadataFrames, cluster: HistoryOnDisk
) -> None:
    metadata = max(cluster.history.versions, key=lambda version: len(version.tablets.transitions))
    both = F.when(F.col("write_set") == "both", F.array(F.lit("old"), F.lit("new"))).otherwise(F.array("write_set"))
    actual = (
        frames.at(metadata.epoch)
        .write_placements.select("table_id", "tablet", F.explode(both).alias("side"), "volume_id")
        .groupBy("table_id", "tablet", "side")
        .agg(F.sort_array(F.collect_list("volume_id")).alias("replicas"))
        .select("table_id", "tablet", "replicas")
    )
    expected = [
        (table_id, tablet, sorted(replicas))
        for table_id, tablet_map in metadata.tablets.maps.items()
        for tablet in range(tablet_map.count)
        for replicas in metadata.placement(table_id, tablet).write_sets
    ]
    assert_same(actual, spark.createDataFrame(expected, actual.schema))


def test_the_ring_is_there_at_any_epoch(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    cluster = HistoryOnDisk(tmp_path, random_ring_history(seed, 60))
    frames = MetadataFrames(spark, cluster)
    with_table = [version for version in cluster.history.versions if "sky.stars" in version.schema.by_name]
    metadata = max(with_table, key=lambda version: len(version.rings.operations))
    at = frames.at(metadata.epoch)
    assert {row.operation_id for row in at.operations.collect()} == set(metadata.rings.operations)
    cover = metadata.ring_placements("sky")
    counts = at.read_placements.where(F.col("table") == "stars").groupBy("tablet").count().collect()
    assert {row.tablet: row["count"] for row in counts} == {
        index: len(cover.placement(index).reads) for index in range(len(cover.lows))
    }
    nodes = at.ring_ranges.where(F.col("keyspace") == "sky").select(F.explode("reads").alias("node_id")).distinct()
    known = metadata.directory.node_of_volume
    assert {row.node_id for row in nodes.collect()} == {
        known[volume].node_id for index in range(len(cover.lows)) for volume in cover.placement(index).reads
    }


def test_time_travel_is_replay(spark: SparkSession, frames: MetadataFrames, cluster: HistoryOnDisk, seed: int) -> None:
    replayed = ClusterMetadata.empty()
    for entry in cluster.history.entries:
        replayed = replayed.apply(entry.decode(), entry.state_id)
        assert frames.at(entry.epoch).metadata == replayed
    before = frames.at(random.Random(seed).randrange(20, 80))
    assert_same(before.tablets, dataframes.tablets(spark, cluster.history.versions[before.epoch]))
    assert_same(before.requests, dataframes.requests(spark, cluster.history.versions[before.epoch]))


def test_an_epoch_that_is_not_there_is_refused(frames: MetadataFrames) -> None:
    with pytest.raises(InvalidRequest, match="from 1 to 80"):
        frames.at(81)


def test_unpinned_frames_follow_the_cluster_and_pinned_ones_stay(
    frames: MetadataFrames, cluster: HistoryOnDisk
) -> None:
    pinned = frames.now()
    cluster.history.add_unchecked(SwitchBalancing(False, "for this test"))
    assert (pinned.epoch, frames.epoch, frames.at(80).epoch) == (80, 81, 80)
    assert (pinned.history.count(), frames.history.count()) == (80, 81)


@pytest.mark.connect
def test_the_history_is_the_log_with_a_line_for_people(
    spark: SparkSession, frames: MetadataFrames, cluster: HistoryOnDisk
) -> None:
    entries = cluster.history.entries
    expected = pa.table(
        {
            "epoch": [entry.epoch for entry in entries],
            "event": [entry.event for entry in entries],
            "payload": [entry.payload for entry in entries],
            "attachment": pa.array([entry.attachment for entry in entries], pa.binary()),
            "hash": [entry.hash for entry in entries],
            "summary": [entry.decode().summary() for entry in entries],
        }
    )
    actual = frames.history.select(expected.column_names)
    assert_df_equality(actual, spark.createDataFrame(expected), ignore_nullable=True)


def test_an_event_of_a_newer_version_is_summed_up_by_its_kind(spark: SparkSession, tmp_path: Path) -> None:
    history = random_history(1, 20)
    history.entries[-1] = msgspec.structs.replace(history.entries[-1], event="PaintNode")
    newer = HistoryOnDisk(tmp_path / "newer", history)
    [row] = dataframes.history(spark, newer.log_place).where(F.col("epoch") == len(history.entries)).collect()
    assert row.summary == "PaintNode"


@pytest.mark.connect
def test_a_diff_of_two_epochs_names_what_changed(frames: MetadataFrames, cluster: HistoryOnDisk) -> None:
    before, after = cluster.history.versions[30], cluster.history.versions[80]
    appeared = frames.diff(30, 80).where("component = 'node' and before is null").collect()
    assert {row.name for row in appeared} == {
        node.name for key, node in after.directory.nodes.items() if key not in before.directory.nodes
    }
    assert all(msgspec.json.decode(row.after)["rack"].startswith("r") for row in appeared)


def test_replicas_by_node_are_one_group_by_away(frames: MetadataFrames, cluster: HistoryOnDisk) -> None:
    now = frames.now()
    counted = {row.node: row["count"] for row in now.read_placements.groupBy("node").count().collect()}
    metadata = cluster.history.metadata
    expected: dict[str, int] = {}
    for table_id, tablet_map in metadata.tablets.maps.items():
        for tablet in range(tablet_map.count):
            for volume in metadata.placement(table_id, tablet).reads:
                name = metadata.directory.node_of_volume[volume].name
                expected[name] = expected.get(name, 0) + 1
    assert counted == expected


def assert_same(actual: DataFrame, expected: DataFrame) -> None:
    assert_df_equality(actual, expected, ignore_row_order=True, ignore_nullable=True)
