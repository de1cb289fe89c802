"""Named batches land once, whatever happened to the first try, also in a table that nothing would ever deduplicate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs.gate import batches, commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import LogUnreadable, Rejected, UnknownFormat

from tests.support.clusters import FOUR, SmallCluster, placed, spark_stages_all, without_zookeeper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, append_only=True, configuration=ONE_TRY)


@pytest.fixture
def pipeline(cluster: SmallCluster, spark: SparkSession) -> Iterator[Pipeline]:
    with cluster.pipeline("load", spark) as opened:
        yield opened


def january(spark: SparkSession, note: str = "2013-01") -> DataFrame:
    return spark.range(0, 20, 1, 1).selectExpr("id", f"'{note}' as note")


def everything(cluster: SmallCluster, spark: SparkSession, level: str = "ALL") -> list[int]:
    return sorted(row.id for row in cluster.pipeline("reader", spark).read("air.flights", consistency=level).collect())


def land_half(cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the batch; between staging and committing B and C go away, so that it lands on A alone, and fails."""

    def losing(self: CommitPhase, number: int) -> int:
        with cluster.without("BC"):
            return original(self, number)

    original = CommitPhase._round
    monkeypatch.setattr(CommitPhase, "_round", losing)
    with pytest.raises(ConsistencyNotReached):
        pipeline.write(january(spark), "air.flights", batch="2013-01")
    monkeypatch.setattr(CommitPhase, "_round", original)


def forget_staged_files(cluster: SmallCluster, nodes: str) -> None:
    """What cleaning up does with files that were staged and never committed."""
    for node in nodes:
        for path in Path(cluster.address(node).uri).glob("_tablet=*/*.parquet"):
            path.unlink()


@pytest.mark.connect
def test_a_batch_that_has_landed_is_not_written_again(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    first = pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert not first.already
    again = cluster.pipeline("retry", spark).write(january(spark), "air.flights", batch="2013-01")
    assert (again.already, again.rows, again.files) == (True, first.rows, first.files)
    assert everything(cluster, spark) == list(range(20))
    pipeline.write(january(spark), "air.flights", batch="2013-02")
    assert len(everything(cluster, spark)) == 40


def test_a_batch_that_failed_half_way_lands_once(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_half(cluster, pipeline, spark, monkeypatch)
    with cluster.without("A"):
        again = pipeline.write(january(spark), "air.flights", batch="2013-01")
        assert (again.already, again.rows) == (False, 20)
        assert everything(cluster, spark, "QUORUM") == list(range(20))
    assert everything(cluster, spark) == list(range(20))


def test_a_batch_that_one_silent_replica_may_hold_alone_is_not_staged_again(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_half(cluster, pipeline, spark, monkeypatch)
    forget_staged_files(cluster, "BC")
    with cluster.without("A"), pytest.raises(ConsistencyNotReached, match="nobody else has") as refused:
        pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert list(refused.value.replicas) == ["A/d1"]
    assert everything(cluster, spark, "ONE") in ([], list(range(20)))
    pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert everything(cluster, spark) == list(range(20))


def test_a_batch_whose_staged_files_are_all_gone_is_staged_again(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(self: CommitPhase, number: int) -> int:
        raise KeyboardInterrupt

    original = CommitPhase._round
    monkeypatch.setattr(CommitPhase, "_round", dying)
    with pytest.raises(KeyboardInterrupt):
        pipeline.write(january(spark), "air.flights", batch="2013-01")
    monkeypatch.setattr(CommitPhase, "_round", original)
    forget_staged_files(cluster, "ABC")
    again = pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert (again.already, again.rows) == (False, 20)
    assert pipeline.write(january(spark), "air.flights", batch="2013-01").already
    assert everything(cluster, spark) == list(range(20))


def test_a_batch_whose_tablets_have_moved_since_it_failed_lands_once(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_half(cluster, pipeline, spark, monkeypatch)
    cluster.start("A", "X")
    cluster.until(None)
    again = pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert not again.already
    assert everything(cluster, spark) == list(range(20))


def test_a_batch_that_comes_again_with_other_rows_is_rejected_and_with_the_same_in_another_order_lands(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_half(cluster, pipeline, spark, monkeypatch)
    others = [january(spark, "something else"), january(spark).where("id < 19"), january(spark).union(january(spark))]
    for other in others:
        with pytest.raises(Rejected, match=r"batch-used.*20 rows") as rejected:
            pipeline.write(other, "air.flights", batch="2013-01")
        assert rejected.value.code == "batch-used"
    shuffled = january(spark).orderBy("id", ascending=False).repartition(3)
    assert not pipeline.write(shuffled, "air.flights", batch="2013-01").already
    for other in others[:2]:
        with pytest.raises(Rejected, match="batch-used"):
            pipeline.write(other, "air.flights", batch="2013-01")
    read = cluster.pipeline("reader", spark).read("air.flights").collect()
    assert sorted((row.id, row.note) for row in read) == [(number, "2013-01") for number in range(20)]


def test_a_batch_of_an_earlier_version_is_compared_by_the_number_of_its_rows(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(january(spark), "air.flights", batch="2013-01")
    [decision] = Path(cluster.cluster.root.batches).rglob("*.json")
    stored = json.loads(decision.read_bytes())
    for staged in stored["files"]:
        del staged["digest"]
    decision.write_text(json.dumps(stored))
    assert pipeline.write(january(spark), "air.flights", batch="2013-01").already
    with pytest.raises(Rejected, match="batch-used"):
        pipeline.write(january(spark).limit(7), "air.flights", batch="2013-01")


def test_two_jobs_that_write_one_batch_at_the_same_time_land_it_once(
    cluster: SmallCluster, spark: SparkSession
) -> None:
    written = []

    def write(name: str) -> None:
        written.append(cluster.pipeline(name, spark).write(january(spark), "air.flights", batch="2013-01"))

    threads = [threading.Thread(target=write, args=(f"job {n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.rows for one in written] == [20, 20, 20]
    assert everything(cluster, spark) == list(range(20))


def test_a_retry_brings_the_batch_to_a_replica_that_had_missed_it(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    with cluster.without("C"):
        first = pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert list(first.missing) == ["C/d1"]
    assert cluster.files_on("C") == set()
    assert pipeline.write(january(spark), "air.flights", batch="2013-01").already
    assert cluster.files_on("C") == cluster.files_on("A")


def test_a_batch_without_rows_is_a_batch(cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession) -> None:
    empty = pipeline.write(january(spark).where("false"), "air.flights", batch="none")
    assert (empty.rows, empty.already) == (0, False)
    assert pipeline.write(january(spark).where("false"), "air.flights", batch="none").already
    with pytest.raises(Rejected, match=r"with 0 rows .* comes with 20 rows"):
        pipeline.write(january(spark), "air.flights", batch="none")
    assert everything(cluster, spark) == []


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("{", LogUnreadable, "cannot be read"),
        ('{"batch":"","table":"","files":[],"format":9}', UnknownFormat, "Upgrade"),
    ],
)
def test_what_a_batch_is_made_of_is_not_guessed(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, content: str, error: type[Exception], message: str
) -> None:
    name = batches.batch_id(cluster.table.table_id, "write", "2013-01")
    place = Path(cluster.cluster.root.batches, name[:2], f"{name}.1.json")
    place.parent.mkdir(parents=True)
    place.write_text(content)
    with pytest.raises(error, match=message):
        pipeline.write(january(spark), "air.flights", batch="2013-01")
    assert everything(cluster, spark) == []
