"""What the end-to-end test of the ring is made of: pipelines that never stop, and a coordinator that keeps dying."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from epochlake.jobs.cluster import Cluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from pyspark.errors import PySparkException

from tests.support.slices import some

if TYPE_CHECKING:
    from epochlake.jobs.gate.pipeline import Pipeline
    from pyspark.sql import Row, SparkSession

ROWS = 120
"""Rows of a batch."""
PAUSE_SECONDS = some(0, 1) / 4
"""After each batch; without pauses most of what Spark does is more of the same, while streams take their time."""

Contents = dict[int, str]


class Workload:
    """One thread that writes to every table and reads it back at QUORUM, again and again, until it is stopped.

    After each read the table must hold just what was acknowledged until then: no row less, and no row twice.
    `append_only` are tables whose rows are never written again.
    """

    def __init__(self, cluster: Cluster, spark: SparkSession, tables: list[str], append_only: set[str], seed: int):
        self.acknowledged: dict[str, Contents] = {table: {} for table in tables}
        self.reads = self.writes = self.read_again = 0
        self.failure: BaseException | None = None
        self._cluster, self._spark, self._append_only = cluster, spark, append_only
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload")

    def _run(self) -> None:
        try:
            with self._cluster.pipeline("workload", self._spark) as pipeline:
                number = 0
                while not self._stop.is_set():
                    for table, rows in self.acknowledged.items():
                        batch = self._batch(table, number)
                        frame = self._spark.createDataFrame(list(batch.items()), "id bigint, note string")
                        pipeline.write(frame, table, consistency="QUORUM", batch=f"{table}-{number}")
                        rows.update(batch)
                        self.writes += 1
                        if table not in self._append_only and number % 3 == 2:
                            gone = self._chance.sample(sorted(rows), 10)
                            keys = self._spark.createDataFrame([(key,) for key in gone], "id bigint")
                            pipeline.delete(keys, table, consistency="QUORUM", batch=f"{table}-{number}")
                            for key in gone:
                                del rows[key]
                        require_contents(self._read(pipeline, table), rows, table)
                        self.reads += 1
                        self._stop.wait(PAUSE_SECONDS)
                    number += 1
        except BaseException as error:
            self.failure = error

    def _read(self, pipeline: Pipeline, table: str) -> list[Row]:
        """All rows at QUORUM; once more when storage went away after the read had been planned, and only then."""
        try:
            return pipeline.read(table, consistency="QUORUM").collect()
        except PySparkException as error:
            if "FILE_NOT_EXIST" not in str(error):
                raise
            self.read_again += 1
            return pipeline.read(table, consistency="QUORUM").collect()

    def _batch(self, table: str, number: int) -> Contents:
        """New rows, and for tables that allow it some of the old ones again."""
        known = self.acknowledged[table]
        again = [] if table in self._append_only else self._chance.sample(sorted(known), min(len(known), ROWS // 4))
        first = number * ROWS
        return dict.fromkeys([*range(first, first + ROWS), *again], f"{table} {number}")

    def require_running(self) -> None:
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        self.require_running()


def require_contents(rows: list[Row], expected: Contents, table: str) -> None:
    """The rows of a read are the expected ones, each once."""
    found = {row["id"]: row["note"] for row in rows}
    lost, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    old = {key for key in expected.keys() & found.keys() if expected[key] != found[key]}
    assert (lost, extra, old) == (set(), set(), set()), f"{table}: lost {lost}, extra {extra}, old {old}"
    assert len(rows) == len(found), f"{table}: {len(rows) - len(found)} rows twice"


class MortalCoordinator:
    """`epochlake coordinator run` as a process; killed at a random time, and started again, `kills` times."""

    def __init__(self, conf: Path, messages: Path, kills: int, seed: int) -> None:
        self.killed = 0
        self._conf, self._messages, self._kills = conf, messages, kills
        self._chance = random.Random(seed)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            process = self._start()
            dies = self.killed < self._kills
            end = time.monotonic() + (self._chance.uniform(2.0, 5.0) if dies else 3600)
            while not stop.is_set() and time.monotonic() < end and process.poll() is None:
                time.sleep(0.05)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.killed += dies

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "epochlake.jobs.cli.entry", "--conf", str(self._conf), "coordinator", "run"]
        with self._messages.open("ab") as messages:
            return subprocess.Popen(command, stdout=messages, stderr=messages, start_new_session=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), name="killer")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def wait_until(
    cluster: Cluster, what: str, condition: Callable[[ClusterMetadata], bool], workload: Workload, seconds: float = 180
) -> ClusterMetadata:
    """Wait for the metadata to be as wanted, while the workload goes on."""
    deadline = time.monotonic() + seconds
    while not condition(metadata := cluster.catch_up()):
        workload.require_running()
        requests = {r.request_id: (r.kind, r.state) for r in metadata.open_requests()}
        assert time.monotonic() < deadline, f"{what} did not happen: {requests}, {list(metadata.rings.operations)}"
        time.sleep(0.02)
    return metadata


LEVELS = ("QUORUM", "ALL")
