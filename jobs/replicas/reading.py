"""Reading: the union of the replicas' file sets, each row once, then last write wins where files can overlap.

A row has the same place in the same origin wherever it lies, so which replica serves it does not matter,
and a quorum read costs one read of each row. A file that also has rows which were not asked for here, or which another
file serves, is read with a filter on the token. Files whose token ranges are apart cannot hold the same key: only the
others are merged, and so only they are shuffled. An append-only table needs no merge at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, merged, overlap, rows_are_in, select
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT, spark_ddl
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage import places
from epochlake.placement.tokens import TOKEN, Interval

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SYSTEM_DDL = f"`{TOKEN}` bigint, `{WRITTEN_AT}` bigint, `{DELETED}` boolean"
_FILE = "_file"
_RANK = "_rank"

Asked = tuple[int, int, Sequence[ReplicaSnapshot]]
"""A range, first and last token, and the snapshots of the replicas that were chosen for it."""


class Scan(msgspec.Struct, frozen=True):
    """Files that are read in the same way, as Spark's paths: only the rows with tokens in `intervals`, () for all."""

    paths: tuple[str, ...]
    intervals: tuple[Interval, ...]


class ReadPlan(msgspec.Struct, frozen=True):
    """What is read `plain` as it is, `filtered` for tombstones, or `merged` by key.

    `copies`: the files, where they are read. `lost`: damaged copies with rows that no other file has.
    """

    plain: tuple[Scan, ...]
    filtered: tuple[Scan, ...]
    merged: tuple[Scan, ...]
    copies: tuple[ExpectedFile, ...] = ()
    lost: tuple[ExpectedFile, ...] = ()


def read_files(spark: SparkSession, table: Table, asked: Iterable[Asked], lineage: Lineage = NO_LINEAGE) -> DataFrame:
    """The rows of the ranges asked for, which must not overlap: `read_plan` of `plan_read`."""
    return read_plan(spark, table, plan_read(table, asked, lineage))


def read_plan(spark: SparkSession, table: Table, plan: ReadPlan) -> DataFrame:
    """The rows of a plan, with exactly the table's columns.

    Per key the highest `_written_at` wins, then a tombstone, then the highest file id; a tombstone that wins hides the
    key. The frame keeps showing the pinned snapshots; it fails when a file of them is missing, torn or has a page with
    other bytes than were written.
    """
    names = [f"`{column.name}`" for column in table.columns]
    frames = [scan_rows(spark, table, scan).select(*names) for scan in plan.plain]
    frames += [_live(scan_rows(spark, table, scan)).select(*names) for scan in plan.filtered]
    if plan.merged:
        frames.append(_live(_newest(spark, table, plan.merged)).select(*names))
    if not frames:
        return spark.createDataFrame([], spark_ddl(table.columns))
    return _union(frames)


def plan_read(
    table: Table,
    asked: Iterable[Asked],
    lineage: Lineage = NO_LINEAGE,
    *,
    damaged: Collection[tuple[VolumeId, str]] = (),
    replaced: Lineage = NO_LINEAGE,
    turn: int = 0,
) -> ReadPlan:
    """Choose the files to read, and for each one the replica that has been given the fewest bytes to read so far.

    `lineage`: what the merged files of these snapshots stand for. Copies that are `damaged` (volume and path) are not
    read; `replaced` says what each merged file was made of, so that rows of a damaged one are found in older files.
    `turn`: with whom to begin, so that not all reads begin with the same replica.
    """
    files: dict[str, DataFile] = {}
    holders: dict[str, dict[VolumeId, ReplicaAddress]] = defaultdict(dict)
    wanted: dict[str, list[Interval]] = defaultdict(list)
    lost: dict[tuple[VolumeId, str], ExpectedFile] = {}
    for low, high, snapshots in _joined(asked):
        union: dict[str, DataFile] = {}
        bad: list[ExpectedFile] = []
        for snapshot in snapshots:
            for file in snapshot.within(low, high):
                if (snapshot.address.volume_id, file.path) in damaged:
                    bad.append(ExpectedFile(file, snapshot.address))
                    continue
                union[file.file_id] = file
                holders[file.file_id][snapshot.address.volume_id] = snapshot.address
        for part in select(union.values(), low, high, lineage):
            wanted[part.file.file_id].append((part.low, part.high))
        for copy in bad:
            if not rows_are_in(union.values(), copy.file, low, high, lineage, replaced):
                lost[copy.address.volume_id, copy.file.path] = copy
        files |= union
    parts = {file_id: merged(intervals) for file_id, intervals in wanted.items()}
    alone = (
        parts.keys()
        if table.append_only
        else not_overlapping(
            {
                file_id: overlap((parts[file_id][0][0], parts[file_id][-1][1]), files[file_id].extent)
                for file_id in parts
            }
        )
    )
    load: dict[VolumeId, int] = defaultdict(int)
    plain, filtered, by_key = _Scans(), _Scans(), _Scans()
    copies = []
    first = _beginning(holders.values(), turn)
    for file in sorted((files[file_id] for file_id in parts), key=lambda file: (file.min_token, file.file_id)):
        able = holders[file.file_id]
        volume = min(able, key=lambda holder: (load[holder], holder < first, holder))
        load[volume] += file.size
        copies.append(ExpectedFile(file, able[volume]))
        kind = by_key if file.file_id not in alone else filtered if file.has_tombstones else plain
        kind.add(places.spark_uri(copies[-1].uri), file, parts[file.file_id])
    return ReadPlan(plain.scans(), filtered.scans(), by_key.scans(), tuple(copies), tuple(lost.values()))


def _beginning(holders: Iterable[Mapping[VolumeId, ReplicaAddress]], turn: int) -> VolumeId:
    """The volume that is preferred where loads are equal."""
    volumes = sorted({volume for able in holders for volume in able})
    return volumes[turn % len(volumes)] if volumes else 0


def not_overlapping(extents: Mapping[str, Interval]) -> set[str]:
    """The names of the intervals that no other one touches."""
    alone: set[str] = set()
    group: list[str] = []
    reach = 0
    for name, (first, last) in sorted(extents.items(), key=lambda item: item[1]):
        if group and first > reach:
            if len(group) == 1:
                alone.add(group[0])
            group = []
        reach = max(reach, last) if group else last
        group.append(name)
    if len(group) == 1:
        alone.add(group[0])
    return alone


class _Scans:
    """Paths by what is wanted of them."""

    def __init__(self) -> None:
        self._paths: dict[tuple[Interval, ...], list[str]] = defaultdict(list)

    def add(self, path: str, file: DataFile, intervals: Sequence[Interval]) -> None:
        first, last = file.extent
        whole = any(low <= first and last <= high for low, high in intervals)
        self._paths[() if whole else tuple(intervals)].append(path)

    def scans(self) -> tuple[Scan, ...]:
        return tuple(Scan(tuple(paths), intervals) for intervals, paths in sorted(self._paths.items()))


def _joined(asked: Iterable[Asked]) -> list[Asked]:
    """Neighbouring ranges that the same replicas serve as one: fewer files are read in parts."""
    joined: list[Asked] = []
    for low, high, snapshots in sorted(asked, key=lambda one: one[0]):
        if joined and joined[-1][1] == low - 1 and set(joined[-1][2]) == set(snapshots):
            joined[-1] = (joined[-1][0], high, snapshots)
        else:
            joined.append((low, high, snapshots))
    return joined


def scan_rows(spark: SparkSession, table: Table, scan: Scan) -> DataFrame:
    """The rows of the files of a scan, with the table's columns and the system columns."""
    rows = (
        spark.read.schema(f"{spark_ddl(table.columns)}, {_SYSTEM_DDL}")
        # No column is made of a directory's name, and neither a missing nor a torn file is passed over in silence,
        # whatever the session says.
        .option("recursiveFileLookup", True)
        .option("ignoreMissingFiles", False)
        .option("ignoreCorruptFiles", False)
        # The checksum of every page is verified: a flipped bit is an error and not another value.
        .option("parquet.page.verify-checksum.enabled", True)
        .parquet(*scan.paths)
    )
    return rows.where(_within(scan.intervals)) if scan.intervals else rows


def _within(intervals: Sequence[Interval]) -> Column:
    from pyspark.sql import functions as F

    return reduce(lambda one, other: one | other, [F.col(TOKEN).between(low, high) for low, high in intervals])


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionAll(other), frames)


def _live(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(~F.col(DELETED))


def _newest(spark: SparkSession, table: Table, scans: Sequence[Scan]) -> DataFrame:
    """For each key the row that counts."""
    from pyspark.sql import functions as F

    rows = _union([scan_rows(spark, table, scan).withColumn(_FILE, F.col("_metadata.file_name")) for scan in scans])
    return winners(rows, table, _FILE)


def winners(rows: DataFrame, table: Table, file: str, *, task: Sequence[str] = ()) -> DataFrame:
    """The row that counts of each key: the last write, then a tombstone, then the highest file id.

    `file` is the column with the name of a row's file; `task` are columns by which rows are partitioned already. Equal
    keys have equal tokens: sorting by the token first is cheap. A file that was cut out of another one is named after
    its origin, so the names of two origins compare alike however they were cut.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [f"`{name}`" for name in table.primary_key]
    order = Window.partitionBy(*task, TOKEN, *keys).orderBy(
        F.col(WRITTEN_AT).desc(), F.col(DELETED).desc(), F.col(file).desc()
    )
    return rows.withColumn(_RANK, F.row_number().over(order)).where(F.col(_RANK) == 1)
