"""Keeping the rows of token ranges in files of their own: what makes a replica ready for a split (seed 000).

A file that straddles a boundary is cut where it lies, a few boundaries at a time, each in a commit of its
own. So a replica is always whole, work can stop anywhere and goes on where it was (a piece that is stored already is
not cut again), and what is planned on old metadata is refused by the fence before it changes anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.jobs.replicas.commits import pre_split
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.outcomes import FencedOff, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.streaming import Pace
from epochlake.jobs.workers import Workers
from epochlake.metastore import storage
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.fence import Fence
from epochlake.placement.decoding import decodable
from epochlake.placement.tokens import tablet_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 4
_RESULT_DDL = "number bigint, result string"


class PreSplit(msgspec.Struct, frozen=True):
    """What is asked of a replica table: that no file of it has rows of two of the `count` equal ranges of all tokens.

    Planned at `epoch`; the replica's fence is raised to it first where it is below `fence`. Stops after the boundary
    with which `limit` bytes of files are cut, to go on another time.
    """

    address: ReplicaAddress
    count: int
    epoch: int
    fence: int
    limit: int


class PreSplitOutcome(msgspec.Struct, frozen=True):
    """What became of it: bytes of files that were cut, how many files still straddle a boundary, and why it stopped.

    `away`: the replica does not answer; `failure` without that: somebody with newer metadata is at work there.
    """

    cut: int = 0
    left: int = 0
    failure: str = ""
    away: bool = False

    @property
    def ready(self) -> bool:
        """Whether nothing straddles, and nothing that was planned below the fence that was asked for can come."""
        return not (self.failure or self.left)


class PreSplitter(Protocol):
    """Carries out pre-splits, each on its own; the results in their order."""

    def pre_split(self, asked: Sequence[PreSplit]) -> list[PreSplitOutcome]: ...


def pre_split_replica(asked: PreSplit, pace: Pace) -> PreSplitOutcome:
    """Cut the files that straddle a boundary, up to the limit."""
    cut = 0
    try:
        snapshot = open_snapshot(asked.address)
        if snapshot.fence > asked.epoch:
            return PreSplitOutcome(failure=_behind(asked, snapshot.fence))
        if snapshot.fence < asked.fence:
            fence = raise_fence(asked.address, asked.epoch)
            if isinstance(fence, Unreachable):
                return PreSplitOutcome(failure=fence.reason, away=True)
            if fence > asked.epoch:
                return PreSplitOutcome(failure=_behind(asked, fence))
            snapshot = open_snapshot(asked.address)
        straddling = boundaries_within(snapshot.all_files.values(), asked.count)
    except (StorageUnavailable, WrongCluster) as error:
        return PreSplitOutcome(failure=str(error), away=True)
    left = len({file.file_id for files in straddling.values() for file in files})
    for boundaries, size in _slices(straddling, asked.limit):
        if cut and cut + size > asked.limit:
            break
        pace.take(size)
        outcome = pre_split(asked.address, boundaries, asked.epoch)
        match outcome:
            case Unreachable(reason=reason):
                return PreSplitOutcome(cut, left, reason, away=True)
            case FencedOff(fence=fence):
                return PreSplitOutcome(cut, left, _behind(asked, fence))
        cut += size
    if cut:
        try:
            left = len(_straddling(open_snapshot(asked.address).all_files.values(), asked.count))
        except (StorageUnavailable, WrongCluster) as error:
            return PreSplitOutcome(cut, left, str(error), away=True)
    return PreSplitOutcome(cut, left)


def boundaries_within(files: Iterable[DataFile], count: int) -> dict[int, list[DataFile]]:
    """The boundaries (last tokens of the lower side) that files have rows on both sides of, with these files."""
    ends = tablet_ranges(count)[1]
    found: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        first, last = file.extent
        low, high = np.searchsorted(ends, [first, last]).tolist() if first < last else (0, 0)
        for boundary in ends[low:high].tolist():
            found[boundary].append(file)
    return dict(sorted(found.items()))


def _straddling(files: Iterable[DataFile], count: int) -> set[str]:
    return {file.file_id for held in boundaries_within(files, count).values() for file in held}


def _slices(straddling: dict[int, list[DataFile]], limit: int) -> Iterator[tuple[list[int], int]]:
    """Boundaries to be cut at in one commit, and the bytes of the files that are cut there; no file counts twice."""
    counted: set[str] = set()
    boundaries: list[int] = []
    total = 0
    most = max(1, limit // 4)
    for boundary, files in straddling.items():
        fresh = {file.file_id: file.size for file in files if file.file_id not in counted}
        size = sum(fresh.values())
        # A file over several boundaries is cut at all of them at once: in two commits it would be read twice.
        if boundaries and fresh and total + size > most:
            yield boundaries, total
            boundaries, total = [], 0
        counted |= set(fresh)
        boundaries.append(boundary)
        total += size
    if boundaries:
        yield boundaries, total


def _behind(asked: PreSplit, fence: int) -> str:
    ahead, planned = Fence.of(fence), Fence.of(asked.epoch)
    return f"{asked.address.uri} is fenced at {ahead}, this was planned at {planned}: a newer coordinator is at work"


class ThreadPreSplitter:
    """Cuts in threads of this process."""

    def __init__(self, threads: int = THREADS, bytes_per_second: float = 0) -> None:
        self._threads = threads
        self._pace = Pace(bytes_per_second)

    def pre_split(self, asked: Sequence[PreSplit]) -> list[PreSplitOutcome]:
        return Workers(self._threads).run(lambda one: pre_split_replica(one, self._pace), asked)


class SparkPreSplitter:
    """Cuts in the executors of a Spark session, one task for each replica table: where they are nearer to storage."""

    def __init__(self, spark: SparkSession, bytes_per_second: float = 0) -> None:
        self._spark = spark
        self._bytes_per_second = bytes_per_second

    def pre_split(self, asked: Sequence[PreSplit]) -> list[PreSplitOutcome]:
        if not asked:
            return []
        rate = self._bytes_per_second / len(asked)
        numbers = self._spark.range(0, len(asked), numPartitions=len(asked))
        task = partial(_pre_split_numbered, rate, tuple(asked), storage.used_settings())
        results = {row.number: row.result for row in numbers.mapInArrow(task, _RESULT_DDL).collect()}
        return [msgspec.json.decode(results[number], type=decodable(PreSplitOutcome)) for number in range(len(asked))]


def _pre_split_numbered(
    bytes_per_second: float,
    asked: Sequence[PreSplit],
    settings: StorageSettings,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    storage.use_settings(settings)
    pace = Pace(bytes_per_second)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = msgspec.json.encode(pre_split_replica(asked[number], pace)).decode()
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([result], pa.string())], names=["number", "result"]
            )
