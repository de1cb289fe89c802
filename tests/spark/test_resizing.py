"""Splitting and merging with real rows, written and read through Spark throughout; and the same decisions by Spark."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects.pre_split import PreSplitter
from epochlake.jobs.coordinator.loads import measure_loads
from epochlake.jobs.coordinator.tracks import resizing
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.views.tablet_sizes import planned_resizes_frame, tablet_sizes
from epochlake.jobs.workers.spark import SparkWorkers
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings, TabletSettings
from epochlake.placement.dataframes.resizing import resizes
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import Goal

from tests.support.clusters import FOUR, placed, without_zookeeper
from tests.support.resizing import ALWAYS_SPLIT, NEVER_SPLIT, Resizable
from tests.support.slices import some
from tests.support.storages import STORAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=20, shared_file_bytes=0),
    coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=8),
)
ROWS = 400
PAUSE_SECONDS = 1 / some(2, 1)
"""Between two writes, and between two reads: each leaves a file for every tablet to be cut."""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    monkeypatch.setattr(resizing, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(resizing, "RETRY_SECONDS", 0.0)


class Load:
    """Pipelines that write and read at QUORUM, one after the other, until they are told to stop.

    A read must show every row that was acknowledged before it began, and none twice.
    """

    def __init__(self, story: Resizable, spark: SparkSession) -> None:
        self._story, self._spark = story, spark
        self._stop = threading.Event()
        self.written = self.reads = 0
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._repeat, args=(work,)) for work in (self.write, self.read)]

    def __enter__(self) -> Load:
        self.write()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _repeat(self, work: object) -> None:
        while not (self._stop.is_set() or self.failures):
            try:
                work()  # type: ignore[operator]
            except BaseException as failure:
                self.failures.append(failure)
            self._stop.wait(PAUSE_SECONDS)

    def write(self) -> None:
        rows = self._spark.range(self.written, self.written + ROWS, 1, 1).selectExpr("id", "'x' as note")
        with self._pipeline("writer") as pipeline:
            pipeline.write(rows, "air.flights", consistency="QUORUM")
        self.written += ROWS

    def read(self) -> None:
        acknowledged = self.written
        with self._pipeline("reader") as pipeline:
            seen = [row.id for row in pipeline.read("air.flights", consistency="QUORUM").select("id").collect()]
        assert len(seen) == len(set(seen))
        assert set(range(acknowledged)) <= set(seen)
        self.reads += 1

    def await_read(self) -> None:
        """Wait until a read has ended that had begun before, so that each stage is met by one."""
        before = self.reads
        while self.reads == before and not self.failures:
            self._stop.wait(PAUSE_SECONDS)

    def _pipeline(self, name: str) -> Pipeline:
        return self._story.cluster.pipeline(name, self._spark)


def test_eight_tablets_become_sixty_four_and_eight_again_under_load_with_a_node_lost_and_replaced(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    three = {name: FOUR[name] for name in "ABC"}
    replicas = dict.fromkeys(range(8), "ABC")
    story = Resizable(placed(tmp_path, three, replicas, append_only=True, configuration=QUICK), random.Random(seed))
    with Load(story, spark) as load:
        story.aim(ALWAYS_SPLIT)
        story.until_count(16, write=False)
        load.await_read()
        story.cluster.lose("A")
        story.until_count(64, write=False)
        load.await_read()
        administration.pause_balancing(story.cluster.cluster)
        volumes = [("d1", str(story.cluster.directory / "W"), 1 << 30)]
        administration.replace_node(story.cluster.cluster, "A", "W", volumes)
        story.cluster.settle()
        assert story.tablets.count == 64
        load.await_read()
        administration.resume_balancing(story.cluster.cluster)
        story.aim(NEVER_SPLIT)
        story.until_count(8, write=False)
        load.await_read()
        administration.pause_balancing(story.cluster.cluster)
        story.cluster.settle()
    load.read()
    assert story.tablets.count == 8
    assert story.cluster.metadata.node("A").state.value == "left"
    story.assert_sound()


def test_executors_cut_as_threads_do(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    three = {name: FOUR[name] for name in "ABC"}
    story = Resizable(placed(tmp_path, three, "ABC", append_only=True, configuration=QUICK), random.Random(seed))
    story.write(count=100)
    story.aim(ALWAYS_SPLIT)
    story.cluster.coordinator = Coordinator(story.cluster.cluster, pre_splitter=PreSplitter(SparkWorkers(spark)))
    story.until_count(4, write=False)
    story.stay()
    story.cluster.settle()
    story.assert_settled()


def test_spark_measures_what_the_coordinator_does_and_leaves_out_who_is_away(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    nodes = {name: FOUR[name] for name in "ABCX"}
    cluster = placed(tmp_path, nodes, {0: "ABC", 1: "XBC"}, append_only=True, configuration=QUICK)
    story = Resizable(cluster, random.Random(seed))
    story.write(count=50)
    metadata = cluster.metadata
    by_spark = partial(measure_loads, STORAGE, workers=SparkWorkers(spark, 3))
    with cluster.without("C"):
        measured, known = by_spark(metadata), measure_loads(STORAGE, metadata)
        rows = tablet_sizes(spark, STORAGE, metadata).collect()
    assert measured == known
    assert measured.unmeasured == {cluster.volume("C")}
    assert len(rows) == 4, "the replicas of the two tablets, without those on C"
    assert {(row.table_id, row.tablet, row.volume_id): row.bytes for row in rows if row.bytes} == measured.sizes
    [row] = planned_resizes_frame(spark, STORAGE, metadata, TabletSettings(target_bytes=1)).collect()
    assert (row.resize_type, row.changes, row["count"]) == ("split", True, 2)
    story.aim(ALWAYS_SPLIT)
    cluster.coordinator = Coordinator(cluster.cluster, measure=by_spark)
    story.until_count(4, write=False)


# --- decisions as DataFrames ---------------------------------------------------------------------------------------

TABLES = "table_id string, count int, replicas int, target_bytes bigint, max_count int, resize_type string"


@pytest.mark.connect
def test_decisions_of_frames_are_those_of_the_rule(spark: SparkSession) -> None:
    tables = spark.createDataFrame(
        [
            ("large", 2, 2, 100, None, "none"),
            ("large and bounded", 2, 2, 100, 2, "none"),
            ("small", 4, 1, 100, None, "none"),
            ("small by now", 4, 1, 100, None, "split"),
            ("unmeasured", 4, 3, 100, None, "none"),
        ],
        TABLES,
    )
    sizes = spark.createDataFrame(
        [
            *[("large", size) for size in (500, 500, 300, 300)],
            *[("large and bounded", 400)] * 4,
            *[("small", size) for size in (0, 0, 0, 196)],
            *[("small by now", 75)] * 4,
        ],
        "table_id string, bytes bigint",
    )
    rows = {row.table_id: row for row in resizes(tables, sizes).collect()}
    found = {name: (row.resize_type, row.changes, row.wanted_count) for name, row in rows.items()}
    assert found == {
        "large": ("split", True, 8),
        "large and bounded": ("none", False, 2),
        "small": ("merge", True, 2),
        "small by now": ("none", True, 4),
        "unmeasured": ("none", False, 4),
    }
    assert rows["large"].bytes == 400
    assert rows["unmeasured"].bytes is None
    assert "may have 2 at most" in rows["large and bounded"].reason


@pytest.mark.connect
def test_a_goal_of_replicas_on_each_volume_splits_the_largest_tablets_first(spark: SparkSession) -> None:
    tables = spark.createDataFrame(
        [("a", 2, 3, 100), ("b", 2, 3, 100)], "table_id string, count int, replicas int, target_bytes int"
    )
    sizes = spark.createDataFrame([("a", 60), ("b", 80)], "table_id string, bytes int")
    rows = resizes(tables, sizes, Goal(per_volume=6, volumes=3)).collect()
    assert [(row.table_id, row.wanted_count) for row in rows] == [("a", 2), ("b", 4)]


@pytest.mark.connect
def test_frames_without_tables_have_no_decisions_and_wrong_ones_are_refused(spark: SparkSession) -> None:
    sizes = spark.createDataFrame([], "table_id string, bytes bigint")
    none = resizes(spark.createDataFrame([], TABLES), sizes)
    assert none.count() == 0
    assert none.columns == ["table_id", "count", "wanted_count", "bytes", "resize_type", "changes", "reason"]
    with pytest.raises(InvalidRequest, match="target_bytes missing"):
        resizes(spark.createDataFrame([("a", 1, 1)], "table_id string, count int, replicas int"), sizes)
