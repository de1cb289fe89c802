"""Tables by name in Spark: `format("epochlake")` beside the gate's own pipeline, the same rows in the same run.

A million rows are written at RF 3, then 5 batches of 20,000 that replace rows all over the table. What is read is
summed up in Spark. Imports are those of processes of their own: what a DAG's file or a program pays first.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.datasource.registering import register
from epochlake.jobs.spark_session import session
from pyspark.sql import DataFrame

from benchmarks.clusters import opened
from benchmarks.harness import Result, at_most, medians, ratio_at_most
from benchmarks.rows import COLUMNS, SCANNED
from benchmarks.upserts import BATCH_ROWS, keys_of, rows_of, summed

ROWS = 1_000_000
BATCHES = 5
ROUNDS = 7
PARSINGS = 5
WRITTEN = 200_000
TABLE = "air.flights"
WITH_AIRFLOW = Path(__file__).parents[1] / ".venv-airflow" / "bin" / "python"


def reading() -> list[Result]:
    """Scans, a filter and a lookup by the format, and by SQL over a view, beside the pipeline's reads."""
    with opened() as (cluster, directory):
        create_table(cluster, TABLE, COLUMNS, ("id",), append_only=False, tablets=4)
        spark = session("benchmarks")
        register(spark)
        settings = {"root": str(directory / "root")}

        def load(**options: str) -> DataFrame:
            return spark.read.format("epochlake").options(**settings, **options).load(TABLE)

        with cluster.pipeline("benchmark", spark) as pipeline:
            pipeline.write(rows_of(spark.range(ROWS), 0), TABLE)
            for batch in range(1, BATCHES + 1):
                pipeline.write(rows_of(keys_of(spark, batch), batch), TABLE)
            few = pc.field("kind") < 10

            def by_sql() -> object:
                load(columns=",".join(SCANNED)).createOrReplaceTempView("flights_now")
                return spark.sql(f"SELECT bit_xor(xxhash64({', '.join(SCANNED)})) FROM flights_now").collect()

            works: dict[str, Callable[[], object]] = {
                "three columns": lambda: summed(load(columns=",".join(SCANNED))),
                "three columns by SQL": by_sql,
                "all columns": lambda: summed(load()),
                "filter": lambda: summed(load(columns=",".join(SCANNED), where="kind < 10")),
                "lookup": lambda: load(keys="[777]").collect(),
                "pipeline three columns": lambda: summed(pipeline.read(TABLE, columns=SCANNED)),
                "pipeline all columns": lambda: summed(pipeline.read(TABLE)),
                "pipeline filter": lambda: summed(pipeline.read(TABLE, columns=SCANNED, where=few)),
                "pipeline lookup": lambda: pipeline.read(TABLE, keys=[{"id": 777}]).collect(),
                "gate lookup": lambda: cluster.get(TABLE, 777),
                "unfiltered": lambda: summed(load(columns=",".join([*SCANNED])).where("kind < 10")),
                "unasked lookup": lambda: load().where("id = 777").collect(),
            }
            taken = medians(ROUNDS, works)
    compared = [
        ("three columns by the format", "three columns", "pipeline three columns", "pipeline.read", 1.3),
        ("three columns by SQL over a view", "three columns by SQL", "pipeline three columns", "pipeline.read", 1.3),
        ("all columns by the format", "all columns", "pipeline all columns", "pipeline.read", 1.3),
        ("a filter of 1 % as an option", "filter", "pipeline filter", "pipeline.read(where=)", None),
        ("a filter of 1 % as an option", "filter", "unfiltered", "the filter of a query", None),
        ("a row by its key as an option", "lookup", "pipeline lookup", "pipeline.read(keys=)", None),
        ("a row by its key as an option", "lookup", "unasked lookup", "the filter of a query", None),
        ("a row by its key as an option", "lookup", "gate lookup", "cluster.get", None),
    ]
    return [
        Result(name, taken[one], "s", taken[other], called, None if bound is None else ratio_at_most(bound))
        for name, one, other, called, bound in compared
    ]


def writing() -> list[Result]:
    """A DataFrame saved by the format beside the pipeline's write, of many rows and of few."""
    with opened() as (cluster, directory):
        create_table(cluster, TABLE, COLUMNS, ("id",), append_only=False, tablets=4)
        spark = session("benchmarks")
        register(spark)
        numbers = itertools.count(1)
        with cluster.pipeline("benchmark", spark) as pipeline:

            def rows(count: int) -> DataFrame:
                return rows_of(spark.range(count), next(numbers))

            def save(count: int) -> None:
                to = rows(count).write.format("epochlake").option("root", str(directory / "root"))
                to.mode("append").save(TABLE)

            works: dict[str, Callable[[], object]] = {}
            for count in (WRITTEN, BATCH_ROWS):
                works[f"save {count}"] = partial(save, count)
                works[f"write {count}"] = lambda count=count: pipeline.write(rows(count), TABLE)  # type: ignore[misc]
            taken = medians(ROUNDS, works)
    return [
        Result(
            f"{count:,} rows saved by the format",
            taken[f"save {count}"],
            "s",
            taken[f"write {count}"],
            "pipeline.write",
        )
        for count in (WRITTEN, BATCH_ROWS)
    ]


def importing() -> list[Result]:
    """`import epochlake` and what programs and the files of DAGs import of it, beside a bare Python."""

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    taken = medians(
        ROUNDS,
        {
            "bare": run("pass"),
            "package": run("import epochlake"),
            "names": run("from epochlake import open_cluster, add_node, InvalidRequest"),
            "airflow": run("import epochlake.airflow"),
            "pictures": run("import epochlake.pictures"),
        },
    )
    told = {
        "package": "import epochlake",
        "names": "from epochlake import open_cluster, …",
        "airflow": "import epochlake.airflow",
        "pictures": "import epochlake.pictures",
    }
    return [
        Result(
            what,
            taken[name] * 1000,
            "ms",
            taken["bare"] * 1000,
            "a bare Python",
            at_most(150) if name == "package" else None,
        )
        for name, what in told.items()
    ]


def parsing() -> list[Result]:
    """Both example DAGs, as a DAG processor reads them, beside the import of Airflow that each such file needs.

    In the environment of `make test-airflow`; where there is none, nothing is measured. One process says both: it
    begins with some seconds of Airflow, which two processes would take twice, and not equally long.
    """
    if not WITH_AIRFLOW.exists():
        return []
    examples = [
        f"epochlake.jobs.airflow_provider.examples.{name}" for name in ("nightly_gated_load", "weekly_rebalance")
    ]
    code = "\n".join(
        [
            "import time",
            "begun = time.perf_counter()",
            "from airflow.sdk import DAG",
            "from airflow.providers.standard.operators import hitl",
            "imported = time.perf_counter()",
            *(f"import {name}" for name in examples),
            "print('took', imported - begun, time.perf_counter() - begun)",
        ]
    )
    taken = []
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        for _ in range(1 + PARSINGS):  # the first one makes Airflow's home
            ended = subprocess.run(
                [WITH_AIRFLOW, "-c", code], check=True, capture_output=True, text=True, env=environment
            )
            taken.append([float(word) for word in ended.stdout.rpartition("took ")[2].split()])
    airflow, parsed = (statistics.median(one) for one in zip(*taken[1:], strict=True))
    return [Result("both example DAGs parsed", parsed, "s", airflow, "the import of Airflow")]


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {
    "reading": reading,
    "writing": writing,
    "importing": importing,
    "parsing": parsing,
}
