"""Compaction by itself beside an endless load of upserts: what readers and writers have of it.

Each time a new cluster that is upserted, read and compacted until the JVM has compiled what all of these reads run, a
coordinator as a service in a process of its own, and a writer that upserts a batch every quarter of a second for a
minute. Every two seconds some columns are read, by Spark and without. What is compared: the second half of these reads
with the same rows when all of them have been compacted and nobody writes, read every two seconds as well: a process
that did nothing else for so long reads a fifth slower than one that reads again and again. The writes are compared with
those beside a service that does not compact. Replicas are on the disk of temporary files.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import numpy as np
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.spark_session import session
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.clusters import opened
from benchmarks.harness import Result, ratio_at_most, seconds
from benchmarks.rows import COLUMNS, SCANNED, mixed_rows

TABLE = "air.flights"
ROWS = 400_000
BATCH_ROWS = 1_000
PACE_SECONDS = 0.25
LOAD_SECONDS = 60.0
READ_SECONDS = 2.0
TABLETS = 4
BEFORE = 240
"""Reads of each way before the load, of the table as it is after a batch more: so many until they get no quicker."""
BATCHES_BEFORE = 10
"""So many of these batches are compacted together: a load leaves about as many files."""
AFTERWARDS = 9


class Loaded(msgspec.Struct, frozen=True):
    """What was seen beside a load, seconds: of writes, of reads by their way, and of these when all is compacted, as
    often as beside the load, and one `at_once` after the other.
    """

    writes: list[float]
    reads: dict[str, list[float]]
    compacted: dict[str, float]
    at_once: dict[str, float]


def endless_upserts() -> list[Result]:
    """A minute of upserts, with and without compaction."""
    spark = session("benchmarks")
    without, beside = (_load(compaction, spark) for compaction in ("off", "on"))
    found = []
    for way, target in (("by Spark", ratio_at_most(1.5)), ("without Spark", None)):
        late = beside.reads[way][len(beside.reads[way]) // 2 :]
        found += [
            Result(
                f"three columns of {ROWS:,} rows {way} beside upserts, compacted by itself",
                statistics.median(late) * 1000,
                "ms",
                beside.compacted[way] * 1000,
                "all compacted, nobody writes",
                target,
            ),
            Result(
                f"the same {way}",
                statistics.median(late) * 1000,
                "ms",
                beside.at_once[way] * 1000,
                "all compacted, nobody writes, one read after the other",
            ),
            Result(
                f"the same {way}, never compacted, after a minute",
                statistics.median(without.reads[way][-3:]) * 1000,
                "ms",
                without.compacted[way] * 1000,
                "all compacted, nobody writes",
            ),
        ]
    return [
        *found,
        Result(
            f"an upsert of {BATCH_ROWS:,} rows meanwhile",
            statistics.median(beside.writes) * 1000,
            "ms",
            statistics.median(without.writes) * 1000,
            "never compacted",
            ratio_at_most(1.15),
        ),
    ]


def _load(compaction: str, spark: SparkSession) -> Loaded:
    with opened() as (cluster, _), cluster.pipeline("reader", spark) as pipeline:
        create_table(cluster, TABLE, COLUMNS, ("id",), tablets=TABLETS)
        cluster.write(TABLE, mixed_rows(np.arange(ROWS), 0))
        ways: dict[str, Callable[[], int]] = {
            "by Spark": lambda: _rows_in_spark(pipeline),
            "without Spark": lambda: cluster.scan(TABLE, columns=SCANNED).read_all().num_rows,
        }
        chance = np.random.default_rng(1)
        _until_compiled(cluster, ways, chance)
        writes: list[float] = []
        reads: dict[str, list[float]] = {way: [] for way in ways}
        with _service(cluster, compaction):
            started = time.monotonic()
            rounds = 0
            while (spent := time.monotonic() - started) < LOAD_SECONDS:
                rows = mixed_rows(np.sort(chance.choice(ROWS, BATCH_ROWS, replace=False)), len(writes) + 1)
                writes.append(seconds(lambda rows=rows: cluster.write(TABLE, rows)))  # type: ignore[misc]
                if spent >= READ_SECONDS * rounds:
                    rounds += 1
                    for way, read in ways.items():
                        reads[way].append(_seconds(read))
                time.sleep(max(0.0, started + PACE_SECONDS * len(writes) - time.monotonic()))
        compact(cluster, TABLE, policy=EVERYTHING)
        at_once = {way: statistics.median(_seconds(read) for _ in range(AFTERWARDS)) for way, read in ways.items()}
        as_often: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(AFTERWARDS):
            time.sleep(READ_SECONDS)
            for way, read in ways.items():
                as_often[way].append(_seconds(read))
        compacted = {way: statistics.median(seen) for way, seen in as_often.items()}
        return Loaded(writes, reads, compacted, at_once)


def _until_compiled(cluster: Cluster, ways: Mapping[str, Callable[[], int]], chance: np.random.Generator) -> None:
    """What is read later is else the quicker for being read later, be it compacted or not.

    The JVM compiles what leaves rows out while that runs, which reads of a table without upserts do not: the first
    fifteen reads after five batches took 205 ms, and 160 later ones 150.
    """
    for number in range(BEFORE):
        rows = mixed_rows(np.sort(chance.choice(ROWS, BATCH_ROWS, replace=False)), 1000 + number)
        cluster.write(TABLE, rows)
        for read in ways.values():
            _seconds(read)
        if number % BATCHES_BEFORE == BATCHES_BEFORE - 1:
            compact(cluster, TABLE, policy=EVERYTHING)
            for read in ways.values():
                _seconds(read)


def _rows_in_spark(pipeline: Pipeline) -> int:
    """How many rows three columns have, all of which are read."""
    read = pipeline.read(TABLE, columns=SCANNED)
    [found] = read.agg(F.count("*"), F.bit_xor(F.xxhash64(*SCANNED))).collect()
    return int(found[0])


def _seconds(read: Callable[[], int]) -> float:
    def whole() -> None:
        found = read()
        assert found == ROWS, found

    return seconds(whole)


@contextmanager
def _service(cluster: Cluster, compaction: str) -> Iterator[None]:
    settings = {
        "EPOCHLAKE__ROOT": cluster.configuration.root,
        "EPOCHLAKE__ZOOKEEPER__CONNECT": cluster.configuration.zookeeper.connect,
        "EPOCHLAKE__COORDINATOR__COMPACTION": compaction,
    }
    command = [sys.executable, "-m", "epochlake.jobs.run_coordinator"]
    service = subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        service.terminate()
        service.wait()


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"endless_upserts": endless_upserts}
