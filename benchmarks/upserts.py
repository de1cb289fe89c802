"""Reads of a table after many upserts that no compaction has put together, beside Delta with deletion vectors.

A million rows are written, and then batches of 20,000 that replace rows all over the table. There is one copy of
Epochlake's files, as there is of Delta's. What is read is summed up in Spark, so that no client waits for rows.
Pipelines are told what is asked for: columns, a filter, a key; a filter of Spark, on what they give, is another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc
from epochlake.jobs.administration.schema import create_keyspace, create_table
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.reading import read_ranked
from epochlake.jobs.spark_session import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.clusters import opened
from benchmarks.harness import Result, medians, ratio_at_most
from benchmarks.rows import COLUMNS, SCANNED

ROWS = 1_000_000
BATCHES = 50
BATCH_ROWS = 20_000
BEFORE = 15
"""Rounds that do not count: the JVM goes on compiling what a query runs, and rows are left out by other code than a
fresh table is read with.
"""
ROUNDS = 11
TABLETS = (4, 16)
FRESH_TABLETS = (4, 1024)


class Query(NamedTuple):
    """What is asked of a pipeline, the same of any DataFrame with all rows, and what is done with the answer.

    `at_most`: of the time that Delta takes. `told`: asks a pipeline where no DataFrame is needed.
    """

    asked: Mapping[str, object]
    of_all: Callable[[DataFrame], DataFrame]
    done: Callable[[DataFrame], object]
    at_most: float
    told: Callable[[Pipeline, str], object] | None = None


def after_upserts() -> list[Result]:
    """Columns, a filter that leaves 1 %, a key, a count; beside Delta, ranking all versions, and fewer upserts."""
    with opened() as (cluster, directory):
        create_keyspace(cluster, "once", {"dc1": 1})
        upserted = {tablets: f"once.upserted_{tablets}" for tablets in TABLETS}
        fresh = {tablets: f"once.fresh_{tablets}" for tablets in FRESH_TABLETS}
        changed = {"a row": "once.a_row", "a batch": "once.a_batch"}
        for table, tablets in [
            *((table, tablets) for tables in (upserted, fresh) for tablets, table in tables.items()),
            *((table, 4) for table in changed.values()),
        ]:
            create_table(cluster, table, COLUMNS, ("id",), append_only=False, tablets=tablets)
        spark = session("benchmarks")
        delta = f"delta.`{directory}/delta`"
        with cluster.pipeline("benchmark", spark) as pipeline:
            for table in (*fresh.values(), *changed.values()):
                pipeline.write(rows_of(spark.range(ROWS), 0), table)
            pipeline.write(rows_of(spark.range(1), 1), changed["a row"])
            pipeline.write(rows_of(keys_of(spark, 1), 1), changed["a batch"])
            _load(pipeline, spark, list(upserted.values()), delta)
            taken = _measured(pipeline, spark, upserted, {**fresh, **changed}, delta)
    found = [
        Result(
            f"{what}, {BATCHES} upserts",
            taken[f"4 {what}"],
            "s",
            taken[f"delta {what}"],
            "Delta with vectors",
            ratio_at_most(query.at_most),
        )
        for what, query in QUERIES.items()
    ]
    found += [
        Result(
            f"{what}, {BATCHES} upserts",
            taken[f"4 {what}"],
            "s",
            taken[f"ranked {what}"],
            "ranking all versions after a shuffle",
            ratio_at_most(0.7),
        )
        for what in QUERIES
    ]
    compared = [
        ("three columns, 16 tablets", "16 three columns", "4 three columns", "4 tablets", 1.3),
        ("three columns after a row", "a row", "fresh 4", "before", 1.5),
        (f"three columns after a batch of {BATCH_ROWS:,}", "a batch", "fresh 4", "before", 1.5),
        ("three columns, one write, 1,024 tablets", "fresh 1024", "fresh 4", "4 tablets", 3.0),
    ]
    return found + [
        Result(name, taken[one], "s", taken[other], called, ratio_at_most(bound))
        for name, one, other, called, bound in compared
    ]


def summed(df: DataFrame) -> object:
    return df.agg(F.bit_xor(F.xxhash64(*df.columns))).collect()


QUERIES: dict[str, Query] = {
    "three columns": Query({"columns": SCANNED}, lambda df: df.select(SCANNED), summed, 1.0),
    "a filter of 1 %": Query(
        {"columns": SCANNED, "where": pc.field("kind") < 10},
        lambda df: df.where("kind < 10").select(SCANNED),
        summed,
        1.0,
    ),
    "a DataFrame filtered to 1 %": Query(
        {"columns": SCANNED},
        lambda df: df.where("kind < 10").select(SCANNED),
        lambda df: summed(df.where("kind < 10")),
        1.0,
    ),
    "a row by its key": Query({"keys": [{"id": 777}]}, lambda df: df.where("id = 777"), DataFrame.collect, 0.5),
    "count": Query({"columns": ["id"]}, lambda df: df, DataFrame.count, 3.0, Pipeline.count),
    "all columns": Query({}, lambda df: df, summed, 1.0),
}


def _measured(
    pipeline: Pipeline, spark: SparkSession, upserted: dict[int, str], others: Mapping[object, str], delta: str
) -> dict[str, float]:
    """Seconds, by who reads and what; each read finds out anew which files there are."""
    four = pipeline.gate.planning.table(upserted[4])
    works: dict[str, Callable[[], object]] = {}
    for what, query in QUERIES.items():
        works[f"4 {what}"] = partial(_asked, pipeline, upserted[4], query)
        works[f"delta {what}"] = partial(_of_all, partial(spark.table, delta), query)
        ranked = lambda: read_ranked(spark, four, pipeline.gate.plan_read(four))  # noqa: E731
        works[f"ranked {what}"] = partial(_of_all, ranked, query)
    three = QUERIES["three columns"]
    works["16 three columns"] = partial(_asked, pipeline, upserted[16], three)
    works |= {
        name if isinstance(name, str) else f"fresh {name}": partial(_asked, pipeline, table, three)
        for name, table in others.items()
    }
    return medians(ROUNDS, works, before=BEFORE)


def _asked(pipeline: Pipeline, table: str, query: Query) -> object:
    if query.told is not None:
        return query.told(pipeline, table)
    return query.done(pipeline.read(table, **query.asked))  # type: ignore[arg-type]


def _of_all(everything: Callable[[], DataFrame], query: Query) -> object:
    return query.done(query.of_all(everything()))


def _load(pipeline: Pipeline, spark: SparkSession, tables: list[str], delta: str) -> None:
    first = rows_of(spark.range(ROWS), 0)
    for table in tables:
        pipeline.write(first, table)
    columns = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
    spark.sql(f"CREATE TABLE {delta} ({columns}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    first.write.format("delta").mode("append").save(delta.removeprefix("delta.").strip("`"))
    for batch in range(1, BATCHES + 1):
        rows = rows_of(keys_of(spark, batch), batch).localCheckpoint()
        for table in tables:
            pipeline.write(rows, table)
        rows.createOrReplaceTempView("upserted")
        spark.sql(
            f"MERGE INTO {delta} AS t USING upserted AS u ON t.id = u.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def keys_of(spark: SparkSession, batch: int) -> DataFrame:
    """The keys of a batch, all over the table, each once."""
    apart = ROWS // BATCH_ROWS
    number = F.pmod(F.xxhash64("id", F.lit(batch)), F.lit(apart))
    return spark.range(BATCH_ROWS).select((F.col("id") * apart + number).alias("id"))


def rows_of(ids: DataFrame, version: int) -> DataFrame:
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


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"after_upserts": after_upserts}
