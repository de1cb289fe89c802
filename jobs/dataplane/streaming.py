"""Streaming a tablet: its files are copied to the pending replica, then committed there under the stage's session.

The one idea: what has to be copied is a set difference, known from metadata alone, so streaming can stop anywhere and
be planned again, and a copy that comes too late is only a file that nobody commits (seed 000, "Topology guards").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
from epochlake.jobs.dataplane.copying import FileCopy, copy_data_file
from epochlake.jobs.dataplane.files import DataFile
from epochlake.jobs.dataplane.replica import ReplicaSnapshot
from epochlake.metastore import storage
from epochlake.metastore.errors import StorageUnavailable, WrongCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Copy = Callable[[FileCopy], None]
"""`copy_data_file`, or `link_data_file` for intranode migrations."""

Progress = Callable[[int], None]
"""Told the bytes of each file that has arrived; in the calling thread."""

_RESULT_DDL = "number bigint, failure string"


class Copied(msgspec.Struct, frozen=True):
    """`arrived`: files that are stored on the target, whole. `failed`: file id -> why it is not."""

    arrived: tuple[DataFile, ...]
    failed: dict[str, str]


class Copier(Protocol):
    """Carries out copies, each on its own: one that fails does not stop the others."""

    def copy(self, copies: Sequence[FileCopy], progress: Progress | None = None) -> Copied: ...


def plan_streaming(sources: Sequence[ReplicaSnapshot], target: ReplicaSnapshot, label: str) -> list[FileCopy]:
    """The files of the tablet that any source has and the target has not, each from the source with least to read.

    For a migration one source of the old replicas that are up to date suffices; for a rebuild give a quorum of the live
    replicas, so that every acknowledged row is in the union. Largest files first, so that copiers end together.
    """
    there = target.files.get(label, {})
    union: dict[str, DataFile] = {}
    for source in sources:
        union.update(source.files.get(label, {}))
    load = {source.address: 0 for source in sources}
    copies = []
    for file in sorted(union.values(), key=lambda file: (-file.size, file.file_id)):
        if file.file_id in there:
            continue
        holders = [source.address for source in sources if file.file_id in source.files.get(label, {})]
        chosen = min(holders, key=lambda address: (load[address], address.volume_id))
        load[chosen] += file.size
        copies.append(FileCopy(file, chosen, target.address))
    return copies


class ThreadCopier:
    """Copies in threads of this process: no JVM, and enough where storage is the limit."""

    def __init__(self, threads: int = 4, how: Copy = copy_data_file) -> None:
        self._threads = threads
        self._how = how

    def copy(self, copies: Sequence[FileCopy], progress: Progress | None = None) -> Copied:
        failed: dict[str, str] = {}
        with ThreadPoolExecutor(self._threads) as pool:
            running = {pool.submit(_attempt, self._how, one): one for one in copies}
            for future in as_completed(running):
                _account(running[future], future.result(), failed, progress)
        return _copied(copies, failed)


class SparkCopier:
    """Copies in the executors of a Spark session: for many files, and where executors are nearer to the storage."""

    def __init__(self, spark: SparkSession, partitions: int = 8, how: Copy = copy_data_file) -> None:
        self._spark = spark
        self._partitions = partitions
        self._how = how

    def copy(self, copies: Sequence[FileCopy], progress: Progress | None = None) -> Copied:
        if not copies:
            return Copied((), {})
        failed: dict[str, str] = {}
        tasks = min(self._partitions, len(copies))
        numbers = self._spark.range(0, len(copies), numPartitions=tasks)
        task = partial(_copy_numbered, self._how, tuple(copies), storage.used_options())
        for row in numbers.mapInArrow(task, _RESULT_DDL).toLocalIterator(prefetchPartitions=True):
            _account(copies[row.number], row.failure, failed, progress)
        return _copied(copies, failed)


def _copy_numbered(
    how: Copy, copies: Sequence[FileCopy], options: dict[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    storage.use_options(options)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            failure = _attempt(how, copies[number])
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([failure], pa.string())], names=["number", "failure"]
            )


def _attempt(how: Copy, copy: FileCopy) -> str | None:
    """Copy one file; why it failed, or None."""
    try:
        how(copy)
    except (StorageUnavailable, WrongCluster) as error:
        return str(error)
    return None


def _account(copy: FileCopy, failure: str | None, failed: dict[str, str], progress: Progress | None) -> None:
    if failure is not None:
        failed[copy.file.file_id] = failure
    elif progress is not None:
        progress(copy.file.size)


def _copied(copies: Sequence[FileCopy], failed: dict[str, str]) -> Copied:
    return Copied(tuple(copy.file for copy in copies if copy.file.file_id not in failed), failed)
