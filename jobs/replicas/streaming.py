"""Streaming a range: its files are copied to the pending replica, then committed there under the session of the stage.

What has to be copied is a set difference, known from metadata alone, so streaming can stop anywhere and
be planned again, and a copy that comes too late is only a file that nobody commits (seed 000, "Topology guards").
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, missing
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot
from epochlake.jobs.workers import Workers
from epochlake.metastore import storage
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.placement.decoding import decodable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Copy = Callable[[PartCopy], DataFile]
"""`copy_data_file`, or `link_data_file` for intranode migrations."""

Progress = Callable[[int, int], None]
"""Told the bytes and the rows of each file that has arrived; in the calling thread."""

_RESULT_DDL = "number bigint, file string, failure string"


class Copied(msgspec.Struct, frozen=True):
    """`arrived`: files that are stored on the target, whole: to be committed. `failed`: `PartCopy.key` -> why not."""

    arrived: tuple[DataFile, ...]
    failed: dict[str, str]


class Copier(Protocol):
    """Carries out copies, each on its own: one that fails does not stop the others."""

    def copy(self, copies: Sequence[PartCopy], progress: Progress | None = None) -> Copied: ...


def plan_streaming(
    sources: Sequence[ReplicaSnapshot],
    target: ReplicaSnapshot,
    low: int,
    high: int,
    lineage: Lineage = NO_LINEAGE,
) -> list[PartCopy]:
    """What any source has from token `low` to `high` and the target has not, each from the source with least to read.

    For a migration one source of the old replicas that are up to date suffices; for a rebuild give a quorum of the live
    replicas, so that every acknowledged row is in the union. Nothing outside of the range is brought, and nothing that
    a merged file of these replicas stands for (`lineage`). Largest first, so that copiers end together.
    """
    holders: dict[str, list[ReplicaAddress]] = {}
    union: dict[str, DataFile] = {}
    for source in sources:
        for file in source.within(low, high):
            union[file.file_id] = file
            holders.setdefault(file.file_id, []).append(source.address)
    load = {source.address: 0 for source in sources}
    copies = []
    parts = missing(union.values(), target.within(low, high), low, high, lineage)
    for part in sorted(parts, key=lambda part: (-part.file.size, part.file.file_id, part.low)):
        chosen = min(holders[part.file.file_id], key=lambda address: (load[address], address.volume_id))
        copy = PartCopy(part, chosen, target.address)
        load[chosen] += copy.size
        copies.append(copy)
    return copies


class Pace:
    """At most so many bytes per second, for all threads that share it; 0: no limit.

    A file is let through at once and those after it wait until its time is over: over a few files that is the rate.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Wait until `size` more bytes may be moved."""
        if not self._rate:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + size / self._rate
        time.sleep(max(0.0, start - time.monotonic()))


class ThreadCopier:
    """Copies in threads of this process: no JVM, and enough where storage is the limit.

    `bytes_per_second` holds for all copies of this copier together, 0 is no limit.
    """

    def __init__(self, threads: int = 4, how: Copy = copy_data_file, bytes_per_second: float = 0) -> None:
        self._threads = threads
        self._how = how
        self._pace = Pace(bytes_per_second)

    def copy(self, copies: Sequence[PartCopy], progress: Progress | None = None) -> Copied:
        results: dict[str, DataFile | str] = {}
        for one, result in Workers(self._threads).each(partial(_attempt, self._how, self._pace), copies):
            results[one.key] = _told(result, progress)
        return _copied(copies, results)


class SparkCopier:
    """Copies in the executors of a Spark session: for many files, and where executors are nearer to the storage.

    `bytes_per_second` is divided over the tasks, 0 is no limit. With a limit callers wait for each other: tasks of two
    calls know nothing of each other's pace.
    """

    def __init__(
        self, spark: SparkSession, partitions: int = 8, how: Copy = copy_data_file, bytes_per_second: float = 0
    ) -> None:
        self._spark = spark
        self._partitions = partitions
        self._how = how
        self._bytes_per_second = bytes_per_second
        self._turn = threading.Lock() if bytes_per_second else nullcontext()

    def copy(self, copies: Sequence[PartCopy], progress: Progress | None = None) -> Copied:
        if not copies:
            return Copied((), {})
        with self._turn:
            return self._copy(copies, progress)

    def _copy(self, copies: Sequence[PartCopy], progress: Progress | None) -> Copied:
        results: dict[str, DataFile | str] = {}
        tasks = min(self._partitions, len(copies))
        numbers = self._spark.range(0, len(copies), numPartitions=tasks)
        rate = self._bytes_per_second / tasks
        task = partial(_copy_numbered, self._how, rate, tuple(copies), storage.used_settings())
        for row in numbers.mapInArrow(task, _RESULT_DDL).toLocalIterator(prefetchPartitions=True):
            result = row.failure if row.file is None else msgspec.json.decode(row.file, type=decodable(DataFile))
            results[copies[row.number].key] = _told(result, progress)
        return _copied(copies, results)


def _copy_numbered(
    how: Copy,
    bytes_per_second: float,
    copies: Sequence[PartCopy],
    settings: StorageSettings,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    storage.use_settings(settings)
    pace = Pace(bytes_per_second)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = _attempt(how, pace, copies[number])
            file, failure = (None, result) if isinstance(result, str) else (msgspec.json.encode(result).decode(), None)
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([file], pa.string()), pa.array([failure], pa.string())],
                names=["number", "file", "failure"],
            )


def _attempt(how: Copy, pace: Pace, copy: PartCopy) -> DataFile | str:
    """Copy one file; what is there now, or why it failed."""
    pace.take(copy.size)
    try:
        return how(copy)
    except (StorageUnavailable, WrongCluster) as error:
        return str(error)


def _told(result: DataFile | str, progress: Progress | None) -> DataFile | str:
    if progress is not None and isinstance(result, DataFile):
        progress(result.size, result.rows)
    return result


def _copied(copies: Sequence[PartCopy], results: dict[str, DataFile | str]) -> Copied:
    """The answers in the order of the copies."""
    answers = {copy.key: results[copy.key] for copy in copies}
    arrived = tuple(answer for answer in answers.values() if isinstance(answer, DataFile))
    return Copied(arrived, {key: answer for key, answer in answers.items() if isinstance(answer, str)})
