"""What is written without Spark is what Spark writes: hashes, values of every type, keys, and batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.placement.column_hashing import hashes_of

from tests.support.arrow_rows import TYPES, random_rows
from tests.support.clusters import FOUR, SmallCluster, placed, spark_stages_all, without_zookeeper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))
FLIGHTS = "air.flights"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    with_tablets = placed(tmp_path, FOUR, dict.fromkeys(range(4), "ABC"), configuration=ONE_TRY)
    with with_tablets.cluster:
        yield with_tablets


@pytest.fixture
def pipeline(cluster: SmallCluster, spark: SparkSession) -> Iterator[Pipeline]:
    with cluster.pipeline("test", spark) as opened:
        yield opened


def numbered(count: int, note: str = "x") -> pa.Table:
    return pa.table({"id": range(count), "note": [note] * count})


def notes(frame: DataFrame) -> list[tuple[int, str]]:
    return sorted((row.id, row.note) for row in frame.collect())


def test_values_of_every_type_have_the_hash_that_spark_gives_them(spark: SparkSession, seed: int) -> None:
    rows = random_rows(seed, 3_000)
    hashed = (
        spark.createDataFrame(rows)
        .coalesce(1)
        .selectExpr(*[f"xxhash64({name}) as {name}" for name in TYPES], f"xxhash64({', '.join(TYPES)}) as all_of_them")
    )
    actual = {name: hashes_of([rows[name].combine_chunks()], rows.num_rows) for name in TYPES}
    actual["all_of_them"] = hashes_of([column.combine_chunks() for column in rows.columns], rows.num_rows)
    expected = hashed.toArrow()
    for name, hashes in actual.items():
        np.testing.assert_array_equal(hashes, expected[name].to_numpy(), err_msg=f"seed {seed}, {TYPES.get(name)}")


def test_values_of_every_type_are_read_by_spark_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, seed: int
) -> None:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    columns = [("id", "bigint", False), *((name, ddl, True) for name, ddl in TYPES.items())]
    columns.append(("by_name", "map<string,array<double>>", True))
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, columns=columns)
    rows = random_rows(seed, 500).add_column(0, "id", pa.array(range(500)))
    names = pa.array([[("a", [1.0, None])], None] * 250, pa.map_(pa.string(), pa.list_(pa.float64())))
    rows = rows.append_column("by_name", names)
    with cluster.cluster:
        assert cluster.cluster.write(FLIGHTS, rows, consistency="ALL", batch="all types").rows == 500
        with cluster.pipeline("reader", spark) as pipeline:
            read = pipeline.read(FLIGHTS)
            assert repr(read.sort("id").toArrow().to_pylist()) == repr(rows.to_pylist())
            # What Spark has read has the digests that the batch was begun with.
            assert pipeline.write(read, FLIGHTS, batch="all types").already


def test_a_row_that_is_written_with_spark_and_without_is_one_row(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(spark.createDataFrame(numbered(100, "spark")), FLIGHTS)
    cluster.cluster.write(FLIGHTS, numbered(50, "arrow"))
    assert notes(pipeline.read(FLIGHTS)) == [(n, "arrow" if n < 50 else "spark") for n in range(100)]
    cluster.cluster.delete(FLIGHTS, [{"id": n} for n in range(30, 90)])
    assert [n for n, _ in notes(pipeline.read(FLIGHTS))] == [*range(30), *range(90, 100)]
    with_tokens = {token for node in "ABC" for token in cluster.tokens_on(node)}
    assert len(with_tokens) == 100


def test_a_batch_that_spark_began_is_continued_without_it(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
        pipeline.write(spark.createDataFrame(numbered(40)), FLIGHTS, batch="b")
    continued = cluster.cluster.write(FLIGHTS, numbered(40), batch="b")
    assert (continued.rows, continued.already) == (40, False)
    assert cluster.cluster.write(FLIGHTS, numbered(40), batch="b").already
    with pytest.raises(Rejected, match="comes with"):
        cluster.cluster.write(FLIGHTS, numbered(40, "y"), batch="b")
    assert notes(pipeline.read(FLIGHTS)) == [(n, "x") for n in range(40)]


def test_a_batch_that_was_begun_without_spark_is_continued_by_it(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
        cluster.cluster.write(FLIGHTS, numbered(40), batch="b")
    assert not pipeline.write(spark.createDataFrame(numbered(40)), FLIGHTS, batch="b").already
    assert pipeline.write(spark.createDataFrame(numbered(40)).repartition(3), FLIGHTS, batch="b").already
    with pytest.raises(Rejected):
        pipeline.write(spark.createDataFrame(numbered(40, "y")), FLIGHTS, batch="b")
    assert notes(pipeline.read(FLIGHTS)) == [(n, "x") for n in range(40)]


def test_fields_that_a_dataframe_spells_with_other_capitals_are_staged_as_they_are_declared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes them for the same; whoever reads without it finds a field by its very name."""
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    columns = [
        ("id", "bigint", False),
        ("at", "struct<street:string,zip:int>", True),
        ("l", "array<struct<x:int>>", True),
    ]
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=columns, primary_key=("id",))
    given = spark.sql("SELECT 1L id, named_struct('Street', 'Via', 'ZIP', 3) at, array(named_struct('X', 7)) l")
    with table.cluster.pipeline("writer", spark) as pipeline:
        pipeline.write(given, FLIGHTS)
        [row] = pipeline.read(FLIGHTS).collect()
    expected = {"id": 1, "at": {"street": "Via", "zip": 3}, "l": [{"x": 7}]}
    assert row.asDict(recursive=True) == expected
    assert table.cluster.get(FLIGHTS, 1) == expected
