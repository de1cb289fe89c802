"""Merging the files of ranges and storing the result on all of their replicas: what a compaction does with bytes.

Rows come to a task in token order, as when they are staged, so one pass with little memory writes them. A
merged file is large enough for reading and no larger: a range becomes several, whose windows are next to each other and
together the whole range, so that it is exactly known which rows they stand for. Nothing is visible by that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from epochlake.jobs.replicas.arrow_maps import map_in_arrow
from epochlake.jobs.replicas.derived_tokens import key_in_files
from epochlake.jobs.replicas.encoding import OpenFile, Replicas
from epochlake.jobs.replicas.file_columns import FileColumns, file_columns
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.ledger import merged_id
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.row_groups import RowGroups
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.shuffles import shuffle_tasks
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.metadata.placements import index_of
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.tokens import TOKEN, Interval, range_label
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Source(msgspec.Struct, frozen=True):
    """Rows that take part: those of a file from token `low` to `high`; `whole`: that is all that it has. `rows`: of
    the file.
    """

    uri: str
    low: int
    high: int
    whole: bool
    rows: int = 0


class RangeMerge(msgspec.Struct, frozen=True):
    """The merge of one range, or of a slice of a large one, as executors see it; `chosen`: the number of the range.

    Deletes from before `purge_before` (microseconds) are left out, and so are rows from before it that have expired: by
    column, those whose moment is before the one in `expired_before`. `targets`: the replicas that get the result.
    `like`: the URI of a file with the columns that the result has.
    """

    number: int
    chosen: int
    label: str
    low: int
    high: int
    sources: tuple[Source, ...]
    like: str
    targets: tuple[ReplicaAddress, ...]
    purge_before: int
    expired_before: dict[str, int] = {}


class MergePlan(msgspec.Struct, frozen=True):
    """Merges that are done together, in token order. Travels to the executors.

    `derived_tokens`: files may leave out tokens that follow from their keys, as every member of the cluster reads them.
    """

    table: Table
    merges: tuple[RangeMerge, ...]
    target_file_bytes: int
    storage: Storage
    derived_tokens: bool = False

    @property
    def lows(self) -> NDArray[np.int64]:
        return np.array([merge.low for merge in self.merges], dtype=np.int64)


class MergedFile(msgspec.Struct, frozen=True):
    """A file that merge `number` has made; `failed`: the volumes that could not store it, with what they said."""

    number: int
    file: DataFile
    failed: dict[VolumeId, str]


Merger = Callable[[MergePlan], list[MergedFile]]
"""Reads the sources of a plan and stores their merge on the targets."""


def merge_with_spark(spark: SparkSession) -> Merger:
    """A merger that reads, merges and encodes in one Spark job; ranges side by side, spilling what does not fit."""

    def merge(plan: MergePlan) -> list[MergedFile]:
        rows = map_in_arrow(_merged_rows(spark, plan), partial(_encoded, plan), "merged string").toArrow()
        return [msgspec.json.decode(one, type=decodable(MergedFile)) for one in rows.column(0).to_pylist()]

    return merge


def _merged_rows(spark: SparkSession, plan: MergePlan) -> DataFrame:
    """The rows that count, in token order, each range's in one task. As `reading.read_files` chooses them."""
    from epochlake.jobs.replicas.reading import Scan, scan_rows, winners, with_every_token
    from epochlake.jobs.replicas.staging import task_of_token
    from pyspark.sql import functions as F

    task, file = "_task", "_file"
    intervals: dict[str, list[Interval]] = defaultdict(list)
    for merge in plan.merges:
        for source in merge.sources:
            # What is read whole needs no filter, and all of that is one scan.
            wanted = intervals[places.spark_uri(source.uri)]
            wanted += [] if source.whole else [(source.low, source.high)]
    paths: dict[tuple[Interval, ...], list[str]] = defaultdict(list)
    for path, asked in intervals.items():
        paths[tuple(merged(asked))].append(path)
    scans = [scan_rows(spark, plan.table, Scan(tuple(names), asked)) for asked, names in paths.items()]
    rows = scans[0].withColumn(file, F.col("_metadata.file_name"))
    for scan in scans[1:]:
        rows = rows.unionAll(scan.withColumn(file, F.col("_metadata.file_name")))
    count = min(len(plan.merges), shuffle_tasks(spark))
    rows = with_every_token(rows, plan.table)
    placed = rows.withColumn(task, task_of_token(plan.lows, count)).repartition(count, task)
    if not plan.table.append_only:
        # The shuffle by task serves the window as well: equal keys have equal tokens, so they are in one task.
        placed = winners(placed, plan.table, file, task=[task])
    names = [f"`{column.name}`" for column in plan.table.columns]
    return placed.sortWithinPartitions(task, TOKEN).select(*names, TOKEN, WRITTEN_AT, DELETED)


def _encoded(plan: MergePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows that count in, `MergedFile`s as JSON out."""
    for made in encode(plan, batches):
        yield pa.RecordBatch.from_pydict({"merged": [msgspec.json.encode(made).decode()]})


def encode(plan: MergePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[MergedFile]:
    """Store the rows of some whole ranges, in token order, as merged files on the replicas of their ranges.

    Ranges without a row are left to `encode_empty`.
    """
    replicas = Replicas(plan.storage)
    made: list[MergedFile] = []
    try:
        current: _RangeEncoder | None = None
        columns = file_columns(plan.table)
        for number, rows in _by_merge(plan, batches):
            if current is not None and current.merge.number != number:
                made += current.close()
                current = None
            if current is None:
                current = _RangeEncoder(plan, plan.merges[number], replicas, columns)
            made += current.take(rows)
        if current is not None:
            made += current.close()
        # Nothing is told before all of it is on the disks.
        not_synced = replicas.sync()
        yield from (_told(one, plan.merges[one.number], not_synced) for one in made)
    finally:
        replicas.close()


def encode_empty(storage: Storage, merge: RangeMerge) -> MergedFile:
    """The merged file of a range of which nothing is left: without a row, it says that all of it is gone."""
    filesystem, path = storage.filesystem(merge.like)

    def read_schema() -> pa.Schema:
        with filesystem.open_input_file(path) as stream:
            return pq.ParquetFile(stream).schema_arrow

    file = OpenFile(storage.within_deadline("read", merge.like, read_schema), merged_id())
    replicas = Replicas(storage)
    try:
        made = _store(merge, file, replicas, (merge.low, merge.high), _Statistics())
        return _told(made, merge, replicas.sync())
    finally:
        replicas.close()


def _told(made: MergedFile, merge: RangeMerge, not_synced: Mapping[VolumeId, str]) -> MergedFile:
    """What a replica has not on its disk it has not stored."""
    targets = {target.volume_id for target in merge.targets}
    failed = {volume: reason for volume, reason in not_synced.items() if volume in targets}
    return msgspec.structs.replace(made, failed=failed | made.failed)


class _Statistics:
    """What is known of the rows of a file."""

    def __init__(self) -> None:
        self.rows = 0
        self.min_token = self.max_token = 0
        self.min_written_at = self.max_written_at = 0
        self.has_tombstones = False

    def add(self, rows: pa.Table) -> None:
        written = pc.min_max(rows.column(WRITTEN_AT)).as_py()
        tokens = rows.column(TOKEN)
        if self.rows == 0:
            self.min_token, self.min_written_at = tokens[0].as_py(), written["min"]
        self.max_token = tokens[-1].as_py()
        self.min_written_at = min(self.min_written_at, written["min"])
        self.max_written_at = max(self.max_written_at, written["max"])
        self.has_tombstones = self.has_tombstones or bool(pc.any(rows.column(DELETED)).as_py())
        self.rows += rows.num_rows


class _RangeEncoder:
    """Makes the merged files of one range. A file that is large enough is closed where the token changes."""

    def __init__(self, plan: MergePlan, merge: RangeMerge, replicas: Replicas, columns: FileColumns | None) -> None:
        self.merge = merge
        self._target = plan.target_file_bytes
        self._key = key_in_files(plan.table) if plan.derived_tokens else None
        self._replicas = replicas
        self._columns = columns
        self._waiting = RowGroups()
        self._file: OpenFile | None = None
        self._statistics = _Statistics()
        self._low = merge.low

    def take(self, rows: pa.RecordBatch) -> Iterator[MergedFile]:
        for group in self._waiting.take(rows):
            yield from self._encode(group)

    def close(self) -> Iterator[MergedFile]:
        for group in self._waiting.rest():
            yield from self._encode(group)
        if self._file is not None:
            yield self._finish(self.merge.high)

    def _encode(self, rows: pa.Table) -> Iterator[MergedFile]:
        rows = self._without_expired(_in_utc(rows))
        if self._columns is not None:
            rows = self._columns.as_stored(rows)
        old = pc.and_(rows.column(DELETED), pc.less(rows.column(WRITTEN_AT), self.merge.purge_before))
        rows = rows.filter(pc.invert(old))
        if self._file is not None and self._file.size >= self._target and rows.num_rows:
            # Rows with one token stay together: a window begins and ends between tokens.
            same = int(np.searchsorted(rows.column(TOKEN).to_numpy(), self._file.max_token, side="right"))
            self._write(rows.slice(0, same))
            rows = rows.slice(same)
            if rows.num_rows:
                yield self._finish(self._file.max_token)
        self._write(rows)

    def _without_expired(self, rows: pa.Table) -> pa.Table:
        """Rows that count, but for those that no read shows any more, of any time to come. They go as deletes do: one
        that is left out here has shadowed older versions, so it may go only when no such version can come any more.
        """
        for name, bound in self.merge.expired_before.items():
            moments = rows.column(name)
            gone = pc.and_(
                pc.less(moments, pa.scalar(bound, pa.int64()).cast(moments.type)),
                pc.less(rows.column(WRITTEN_AT), self.merge.purge_before),
            )
            rows = rows.filter(pc.invert(pc.fill_null(gone, False)))
        return rows

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            if self._file is None:
                self._file = OpenFile(rows.schema, merged_id(), self._key)
            self._file.write(rows)
            self._statistics.add(rows)

    def _finish(self, high: int) -> MergedFile:
        assert self._file is not None
        file, self._file = self._file, None
        statistics, self._statistics = self._statistics, _Statistics()
        window, self._low = (self._low, high), high + 1
        return _store(self.merge, file, self._replicas, window, statistics)


def _store(
    merge: RangeMerge, made: OpenFile, replicas: Replicas, window: Interval, statistics: _Statistics
) -> MergedFile:
    """Store a merged file on all replicas of its range, under a directory that is called like its window."""
    file_id, data, directory = made.file_id, made.finish(), range_label(*window)
    failed = replicas.store(merge.targets, directory, file_id, data)
    file = DataFile(
        file_id=file_id,
        label=merge.label,
        path=path_of(directory, file_id),
        size=data.size,
        rows=statistics.rows,
        min_token=statistics.min_token if statistics.rows else window[0],
        max_token=statistics.max_token if statistics.rows else window[0],
        min_written_at=statistics.min_written_at,
        max_written_at=statistics.max_written_at,
        has_tombstones=statistics.has_tombstones,
    )
    return MergedFile(merge.number, file, failed)


def _by_merge(plan: MergePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut batches where the range changes."""
    lows = plan.lows
    for batch in batches:
        if batch.num_rows == 0:
            continue
        numbers = index_of(lows, batch.column(TOKEN).to_numpy())
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(starts):
            yield int(numbers[start]), batch.slice(start, end - start)


def _in_utc(rows: pa.Table) -> pa.Table:
    """As files are staged: timestamps in UTC, so that a file says nothing of the session."""
    fields = [
        pa.field(field.name, pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz
        else pa.field(field.name, field.type)
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))
