"""A merge of 20,000 rows into a million: half of them are there and get another amount, half are new. Beside Delta's.

There is one copy of Epochlake's files, as there is of Delta's, which has deletion vectors. Each round merges other
rows, so that none finds its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from epochlake.jobs.administration.schema import create_keyspace, create_table
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.spark_session import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.clusters import opened
from benchmarks.harness import Result, medians, ratio_at_most
from benchmarks.rows import COLUMNS
from benchmarks.upserts import BATCH_ROWS, ROWS, keys_of, rows_of

ROUNDS = 5
SET = {"amount": "target.amount + source.amount", "note": "source.note"}


def merging() -> list[Result]:
    """By a pipeline, by a cluster without Spark, as a write that reads nothing, and by Delta."""
    with opened() as (cluster, directory):
        create_keyspace(cluster, "once", {"dc1": 1})
        tables = {who: f"once.by_{who}" for who in ("pipeline", "cluster", "write")}
        spark = session("benchmarks")
        delta = f"delta.`{directory}/delta`"
        with cluster.pipeline("benchmark", spark) as pipeline:
            for table in tables.values():
                create_table(cluster, table, COLUMNS, ("id",), append_only=False, tablets=4)
                pipeline.write(rows_of(spark.range(ROWS), 0), table)
            _create(spark, delta, directory)
            taken = medians(ROUNDS, _works(cluster, pipeline, spark, tables, delta))
    name = f"a merge of {BATCH_ROWS:,} rows into {ROWS:,}"
    return [
        Result(name, taken["pipeline"], "s", taken["delta"], "Delta's MERGE with vectors", ratio_at_most(1.0)),
        Result(f"{name}, without Spark", taken["cluster"], "s", taken["delta"], "Delta's MERGE with vectors"),
        Result(f"{name}", taken["pipeline"], "s", taken["write"], "a write of as many rows"),
    ]


def _works(
    cluster: Cluster, pipeline: Pipeline, spark: SparkSession, tables: dict[str, str], delta: str
) -> dict[str, Callable[[], object]]:
    numbers = {who: count(1) for who in (*tables, "delta")}

    def by_pipeline() -> object:
        merge = pipeline.merge(_source(spark, next(numbers["pipeline"])), tables["pipeline"])
        return merge.when_matched_update(SET).when_not_matched_insert_all().execute()

    def by_cluster() -> object:
        merge = cluster.merge(tables["cluster"], _source(spark, next(numbers["cluster"])).toArrow())
        return merge.when_matched_update(SET).when_not_matched_insert_all().execute()

    def by_write() -> object:
        return pipeline.write(_source(spark, next(numbers["write"])), tables["write"])

    def by_delta() -> object:
        _source(spark, next(numbers["delta"])).createOrReplaceTempView("merged")
        return spark.sql(
            f"MERGE INTO {delta} AS target USING merged AS source ON target.id = source.id "
            "WHEN MATCHED THEN UPDATE SET amount = target.amount + source.amount, note = source.note "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    return {"pipeline": by_pipeline, "cluster": by_cluster, "write": by_write, "delta": by_delta}


def _create(spark: SparkSession, delta: str, directory: object) -> None:
    columns = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
    spark.sql(f"CREATE TABLE {delta} ({columns}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    rows_of(spark.range(ROWS), 0).write.format("delta").mode("append").save(f"{directory}/delta")


def _source(spark: SparkSession, version: int) -> DataFrame:
    """Rows of which every second one has a key that is not there yet."""
    keys = keys_of(spark, version)
    new = F.when(F.col("id") % 2 == 1, F.col("id") + ROWS * (1 + version)).otherwise(F.col("id"))
    return rows_of(keys.select(new.alias("id")), version)


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"merging": merging}
