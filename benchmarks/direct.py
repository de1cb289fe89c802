"""Few rows written and looked up at RF 3 and QUORUM, beside storing and syncing the same bytes three times.

The floor is what no write of three replicas can do without: three files with the bytes of one write, synced side by
side with their directories. A write opens three replica tables besides, commits to each, and leaves receipts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.spark_session import session

from benchmarks.clusters import opened
from benchmarks.harness import STORAGE, Result, at_least, at_most, medians, ratio_at_most

ROUNDS = 21
ROWS = 1_000
TABLETS = (16, 1_024)
SMALL_WRITES = 100
COLUMNS = [
    ("id", "bigint", False),
    ("carrier", "string", True),
    ("flight", "int", True),
    ("delay", "double", True),
    ("at", "timestamp", True),
]
SPARK_COLUMNS = ", ".join(f"{name} {type_}" for name, type_, _ in COLUMNS)


def thousand_rows() -> list[Result]:
    """A write of 1,000 rows into a table of few and into one of many tablets."""
    with opened() as (cluster, directory):
        tables = {tablets: _table(cluster, f"of_{tablets}", tablets) for tablets in TABLETS}
        numbers = itertools.count()
        size = 0

        def write(table: str) -> None:
            nonlocal size
            size = cluster.write(table, _rows(ROWS, next(numbers))).bytes

        write(tables[TABLETS[0]])
        works: dict[str, Callable[[], object]] = {"floor": lambda: _store(directory, bytes(size), next(numbers))}
        works |= {str(tablets): lambda table=table: write(table) for tablets, table in tables.items()}  # type: ignore[misc]
        taken = {name: seconds * 1000 for name, seconds in medians(ROUNDS, works).items()}
    return [
        Result(
            f"{ROWS:,} rows into {tablets:,} tablets at RF 3, QUORUM, without Spark",
            taken[str(tablets)],
            "ms",
            taken["floor"],
            "their bytes stored three times, synced",
            at_most(60),
        )
        for tablets in TABLETS
    ]


def small_writes() -> list[Result]:
    """Writes of one row, one after the other, each acknowledged by a quorum of disks before the next one."""
    with opened() as (cluster, directory):
        table = _table(cluster, "small", TABLETS[0])
        size = cluster.write(table, _rows(1, 0)).bytes
        numbers = itertools.count(1)
        works: dict[str, Callable[[], object]] = {
            "floor": lambda: _store(directory, bytes(size), next(numbers)),
            "write": lambda: cluster.write(table, _rows(1, next(numbers))),
        }
        taken = medians(SMALL_WRITES, works)
    return [
        Result(
            "writes of one row, one after the other, at RF 3, QUORUM, without Spark",
            1 / taken["write"],
            "1/s",
            1 / taken["floor"],
            "their bytes stored three times, synced",
            at_least(20),
        )
    ]


def one_row_by_spark() -> list[Result]:
    """A row of a DataFrame, taken once and staged by this process, beside a Spark job that stages it."""
    with opened() as (cluster, _):
        table = _table(cluster, "by_spark", TABLETS[0])
        spark = session("benchmarks")
        numbers = itertools.count()

        def write(pipeline: Pipeline) -> None:
            [row] = _rows(1, next(numbers)).to_pylist()
            pipeline.write(spark.createDataFrame([row], SPARK_COLUMNS), table)

        def write_by_job(pipeline: Pipeline) -> None:
            with mock.patch("epochlake.jobs.gate.pipeline.few_rows", return_value=None):
                write(pipeline)

        with cluster.pipeline("benchmark", spark) as pipeline:
            works: dict[str, Callable[[], object]] = {
                "taken": lambda: write(pipeline),
                "job": lambda: write_by_job(pipeline),
            }
            taken = {name: seconds * 1000 for name, seconds in medians(ROUNDS, works).items()}
    name = "a pipeline's write of one row at RF 3, QUORUM"
    return [Result(name, taken["taken"], "ms", taken["job"], "staged by a Spark job", ratio_at_most(0.6))]


def lookups() -> list[Result]:
    """A row by its key, at QUORUM, of a table of few and of one of many tablets, after some batches that overlap."""
    with opened() as (cluster, directory):
        tables = {tablets: _table(cluster, f"of_{tablets}", tablets) for tablets in TABLETS}
        for table in tables.values():
            for number in (0, 1, 0):
                cluster.write(table, _rows(ROWS, number))
        keys = itertools.cycle(range(2 * ROWS))
        largest = max(directory.rglob("*.parquet"), key=lambda file: file.stat().st_size)
        works: dict[str, Callable[[], object]] = {"floor": lambda: pq.read_table(largest, memory_map=False)}
        works |= {
            str(tablets): lambda table=table: cluster.get(table, next(keys))  # type: ignore[misc]
            for tablets, table in tables.items()
        }
        taken = {name: seconds * 1000 for name, seconds in medians(ROUNDS, works).items()}
    return [
        Result(
            f"a row by its key, of {tablets:,} tablets at RF 3, QUORUM, without Spark",
            taken[str(tablets)],
            "ms",
            taken["floor"],
            "PyArrow reading the file that it is in",
            at_most(20),
        )
        for tablets in TABLETS
    ]


def _table(cluster: Cluster, name: str, tablets: int) -> str:
    full_name = f"air.{name}"
    create_table(cluster, full_name, COLUMNS, ("id",), tablets=tablets)
    return full_name


def _rows(count: int, number: int) -> pa.Table:
    """Rows that no other number has."""
    ids = range(number * count, (number + 1) * count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "carrier": pa.array([f"carrier {id_ % 17}" for id_ in ids]),
            "flight": pa.array([id_ % 5000 for id_ in ids], pa.int32()),
            "delay": pa.array([id_ / 7 for id_ in ids], pa.float64()),
            "at": pa.array([id_ * 1_000_000 for id_ in ids], pa.timestamp("us", "UTC")),
        }
    )


def _store(directory: Path, data: bytes, number: int) -> None:
    """Three files with these bytes, each in a directory of its own, on the disk."""
    places = [directory / f"floor-{copy}" for copy in range(3)]
    files = [place / f"{number}.parquet" for place in places]
    for place, file in zip(places, files, strict=True):
        place.mkdir(exist_ok=True)
        file.write_bytes(data)
    STORAGE.syncing.sync(map(str, files), map(str, places))


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {
    "thousand_rows": thousand_rows,
    "small_writes": small_writes,
    "one_row_by_spark": one_row_by_spark,
    "lookups": lookups,
}
