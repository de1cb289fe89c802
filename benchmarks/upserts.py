"""Reads of a table after many upserts that no compaction has put together, beside Delta with deletion vectors.

A million rows are written, and then batches of 20,000 that replace rows all over the table. There is one copy of
Epochlake's files, as there is of Delta's. What is read is summed up in Spark, so that no client waits for rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from epochlake.jobs.administration.schema import create_keyspace, create_table
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.reading import read_ranked
from epochlake.jobs.spark_session import session
from epochlake.metastore.metadata.model import Column
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.clusters import three_nodes
from benchmarks.harness import Result, medians, ratio_at_most

ROWS = 1_000_000
BATCHES = 50
BATCH_ROWS = 20_000
ROUNDS = 5
TABLETS = (4, 16)
COLUMNS = (
    Column("id", "bigint", False),
    Column("kind", "bigint"),
    Column("weight", "double"),
    Column("code", "string"),
    Column("text", "string"),
    Column("note", "string"),
    Column("at", "timestamp"),
    Column("amount", "decimal(12,2)"),
)
NAMES = [column.name for column in COLUMNS]
SCANNED = ["id", "kind", "text"]

Query = Callable[[DataFrame], object]


def after_upserts() -> list[Result]:
    """Three columns, a filter that leaves 1 %, a count, and all columns; and the same by ranking all versions."""
    with tempfile.TemporaryDirectory(prefix="epochlake-benchmark-") as directory:
        cluster = three_nodes(Path(directory))
        try:
            create_keyspace(cluster, "once", {"dc1": 1})
            tables = {tablets: f"once.upserted_{tablets}" for tablets in TABLETS}
            for tablets, table in tables.items():
                create_table(cluster, table, COLUMNS, ("id",), append_only=False, tablets=tablets)
            spark = session("benchmarks")
            delta = f"delta.`{directory}/delta`"
            with cluster.pipeline("benchmark", spark) as pipeline:
                _load(pipeline, spark, list(tables.values()), delta)
                taken = _measured(pipeline, spark, tables, delta)
        finally:
            cluster.close()
    return [
        *[
            Result(f"{what}, {BATCHES} upserts", taken[f"4 {what}"], "s", taken[f"delta {what}"], "Delta with vectors")
            for what in QUERIES
        ],
        *[
            Result(
                f"{what}, {BATCHES} upserts",
                taken[f"4 {what}"],
                "s",
                taken[f"ranked {what}"],
                "ranking all versions after a shuffle",
                ratio_at_most(0.7),
            )
            for what in QUERIES
        ],
        Result(
            "three columns, 16 tablets",
            taken["16 three columns"],
            "s",
            taken["4 three columns"],
            "4 tablets",
            ratio_at_most(1.3),
        ),
    ]


def _three(df: DataFrame) -> object:
    return _summed(df.select(SCANNED))


def _one_percent(df: DataFrame) -> object:
    return _summed(df.where("kind < 10").select(SCANNED))


def _all(df: DataFrame) -> object:
    return _summed(df)


QUERIES: dict[str, Query] = {
    "three columns": _three,
    "a filter of 1 %": _one_percent,
    "count": DataFrame.count,
    "all columns": _all,
}


def _measured(pipeline: Pipeline, spark: SparkSession, tables: dict[int, str], delta: str) -> dict[str, float]:
    """Seconds, by who reads and what; each read finds out anew which files there are."""
    four = pipeline.gate.planning.table(tables[4])
    sources: dict[str, Callable[[], DataFrame]] = {
        "4": lambda: pipeline.read(tables[4]),
        "16": lambda: pipeline.read(tables[16]),
        "ranked": lambda: read_ranked(spark, four, pipeline.gate.plan_read(four)),
        "delta": lambda: spark.table(delta),
    }
    works: dict[str, Callable[[], object]] = {
        f"{who} {what}": lambda source=source, query=query: query(source())  # type: ignore[misc]
        for who, source in sources.items()
        for what, query in QUERIES.items()
        if who != "16" or what == "three columns"
    }
    return medians(ROUNDS, works)


def _load(pipeline: Pipeline, spark: SparkSession, tables: list[str], delta: str) -> None:
    first = _rows(spark.range(ROWS), 0)
    for table in tables:
        pipeline.write(first, table)
    columns = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
    spark.sql(f"CREATE TABLE {delta} ({columns}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    first.write.format("delta").mode("append").save(delta.removeprefix("delta.").strip("`"))
    for batch in range(1, BATCHES + 1):
        apart = ROWS // BATCH_ROWS
        ids = spark.range(BATCH_ROWS).select(
            (F.col("id") * apart + F.pmod(F.xxhash64("id", F.lit(batch)), F.lit(apart))).alias("id")
        )
        rows = _rows(ids, batch).localCheckpoint()
        for table in tables:
            pipeline.write(rows, table)
        rows.createOrReplaceTempView("upserted")
        spark.sql(
            f"MERGE INTO {delta} AS t USING upserted AS u ON t.id = u.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def _rows(ids: DataFrame, version: int) -> DataFrame:
    number = F.xxhash64("id", F.lit(version))
    return ids.select(
        "id",
        F.pmod(number, F.lit(1000)).alias("kind"),
        (number / 1e10).alias("weight"),
        F.concat(F.lit("c"), F.pmod(number, F.lit(50)).cast("string")).alias("code"),
        F.hex(number).alias("text"),
        F.concat(F.lit("version "), F.lit(version), F.lit(" of "), F.col("id")).alias("note"),
        F.timestamp_seconds(F.pmod(number, F.lit(10**9))).alias("at"),
        (F.pmod(number, F.lit(10**8)) / 100).cast("decimal(12,2)").alias("amount"),
    )


def _summed(df: DataFrame) -> object:
    return df.agg(F.bit_xor(F.xxhash64(*df.columns))).collect()


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"after_upserts": after_upserts}
