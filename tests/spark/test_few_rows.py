"""Few rows of a DataFrame are taken once and staged by this process; what that changes nobody but the clock notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from epochlake.jobs import few_rows as module
from epochlake.jobs.few_rows import few_rows
from epochlake.jobs.gate import pipeline as pipelines
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import functions as F

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS = "air.flights"
ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    with_tablets = placed(tmp_path, FOUR, dict.fromkeys(range(4), "ABC"), configuration=ONE_TRY)
    with with_tablets.cluster:
        yield with_tablets


FEW: dict[str, Callable[[SparkSession], DataFrame]] = {
    "a list": lambda spark: spark.createDataFrame([(n, "x") for n in range(20)], "id bigint, note string"),
    "of Arrow": lambda spark: spark.createDataFrame(pa.table({"id": range(20), "note": ["x"] * 20})),
    "a range": lambda spark: spark.range(20).selectExpr("id", "'x' AS note"),
    "filtered": lambda spark: spark.createDataFrame([(n, "x") for n in range(40)], "id bigint, note string").where(
        "id < 20"
    ),
}


@pytest.mark.connect
@pytest.mark.parametrize("kind", FEW)
def test_rows_of_which_little_was_sent_are_few(spark: SparkSession, kind: str) -> None:
    taken = few_rows(FEW[kind](spark))
    assert taken is not None
    assert sorted(taken.to_pylist(), key=lambda row: row["id"]) == [{"id": n, "note": "x"} for n in range(20)]


@pytest.mark.connect
def test_rows_that_may_be_many_are_left_to_spark(spark: SparkSession) -> None:
    many = module.MOST_ROWS + 1
    assert few_rows(spark.range(many)) is None
    assert few_rows(spark.createDataFrame([("x" * module.MOST_BYTES,)], "text string")) is None
    few = spark.createDataFrame([(n,) for n in range(3)], "id bigint")
    assert few_rows(few.select(F.explode(F.sequence(F.lit(0), F.lit(many))).alias("n"))) is None
    assert few_rows(few.mapInArrow(lambda batches: batches, "id bigint")) is None


def test_a_function_that_makes_many_rows_of_few_is_left_to_spark(spark: SparkSession) -> None:
    made = spark.sparkContext.parallelize(range(4), 2).flatMap(lambda n: [(n,)] * module.MOST_ROWS)
    assert few_rows(spark.createDataFrame(made, "id bigint")) is None


@pytest.mark.connect
def test_rows_that_come_out_otherwise_each_time_are_taken_once(
    cluster: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is staged twice, as its replicas were away at first, has the rows of one execution."""
    asked: list[pa.Table | None] = []

    def counted(df: DataFrame) -> pa.Table | None:
        asked.append(few_rows(df))
        return asked[-1]

    monkeypatch.setattr(pipelines, "few_rows", counted)
    drawn = spark.range(30).selectExpr("cast(rand() * 1000000000 AS bigint) AS id", "uuid() AS note")
    with cluster.cluster.pipeline("writer", spark) as pipeline:
        with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
            pipeline.write(drawn, FLIGHTS, batch="drawn")
        assert len(asked) == 1
        assert asked[0] is not None
        pipeline.write(spark.createDataFrame(asked[0]), FLIGHTS, batch="drawn")
        shown = pipeline.read(FLIGHTS).toArrow().to_pylist()
    assert sorted(row["id"] for row in shown) == sorted(asked[0]["id"].to_pylist())


@pytest.mark.connect
def test_a_batch_is_one_whoever_stages_it(
    cluster: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = FEW["a list"](spark)
    with cluster.cluster.pipeline("writer", spark) as pipeline:
        with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
            pipeline.write(rows, FLIGHTS, batch="b")
        with monkeypatch.context() as by_jobs:
            by_jobs.setattr(pipelines, "few_rows", lambda df: None)
            assert not pipeline.write(rows, FLIGHTS, batch="b").already
        assert pipeline.write(rows, FLIGHTS, batch="b").already
        assert pipeline.delete(rows.where("id < 5"), FLIGHTS).rows == 5
        assert sorted(row.id for row in pipeline.read(FLIGHTS).collect()) == list(range(5, 20))


def test_rows_that_cannot_be_written_are_refused_alike(cluster: SmallCluster, spark: SparkSession) -> None:
    nothing = spark.createDataFrame([(None, "x")], "id bigint, note string")
    twice = spark.createDataFrame([(1, "x"), (1, "y")], "id bigint, note string")
    with cluster.cluster.pipeline("writer", spark) as pipeline:
        for rows, message in ((nothing, "primary key, and it is null"), (twice, "the same primary key")):
            with pytest.raises(InvalidRequest, match=message):
                pipeline.write(rows, FLIGHTS)
        assert pipeline.read(FLIGHTS).count() == 0
