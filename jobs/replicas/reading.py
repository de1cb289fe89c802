"""Reading: the union of the replicas' file sets, each row once, then last write wins where files can overlap.

A row has the same place in the same origin wherever it lies, so which replica serves it does not matter,
and a quorum read costs one read of each row. A file that also has rows which were not asked for here, or which another
file serves, is read with a filter on the token. Files whose token ranges are apart cannot hold the same key: only the
others are merged. An append-only table needs no merge at all.

Nothing is shuffled. A task tells for the files of a section which of their rows do not count (superseding.py), and
Spark leaves these out of its own scan: what a query does not ask for is not read, and any filter may skip what it can,
because which rows count does not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

import msgspec
from epochlake.jobs.jvm_calls import loaded
from epochlake.jobs.replicas import leaving_out
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.derived_tokens import has_derived_tokens
from epochlake.jobs.replicas.file_columns import FileColumns, columns_to_read, file_columns
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, merged, rows_are_in, select
from epochlake.jobs.replicas.pushed_filters import shown
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT, spark_ddl
from epochlake.jobs.replicas.sections import Division, Run, Task, divided, tasks, work_of
from epochlake.jobs.replicas.superseding import (
    FILE,
    FIRST,
    SUPERSEDED_DDL,
    WORDS,
    Told,
    as_table,
    judged_by,
    tell_superseded,
    told_outside,
)
from epochlake.jobs.replicas.telling import positions_of, tell_here, words_of_files
from epochlake.jobs.workers.background import Background
from epochlake.metastore.metadata.model import Column as TableColumn
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage import places
from epochlake.placement.tokens import TOKEN, Interval

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SYSTEM_DDL = f"`{TOKEN}` bigint, `{WRITTEN_AT}` bigint, `{DELETED}` boolean"
_FILE = "_file"
_RANK = "_rank"
_POSITION = "position in the file"
"""Of a row. No column of a table has a space in its name."""

MOST_TOLD_ROWS = 1 << 28
"""Of how many merged rows it is told which ones count: a bit for each (32 MiB) goes to the driver and each executor."""

TOLD_HERE = 1 << 22
"""What is as much work as reading token and key of so many rows, this process tells while it plans: once, as it is
remembered, where tasks of Python would be a stage of each execution.
"""

WHOLE_ROWS = 1 << 18
"""Of files with so many rows at most Spark is told which rows a read leaves out, and scans no part by itself."""

SENT_TOGETHER = 6
"""Fewer paths than this are as soon sent to the JVM one by one as together: for 200 that takes 13 ms more."""

PARQUET = "parquet"
V1_SOURCES = "spark.sql.sources.useV1SourceList"
ALWAYS_V1 = "org.apache.spark.sql.execution.datasources.parquet"
"""As Spark called its first reader of Parquet when it had no other. A service that has a list of the readers that it
allows may not know it, so it is used only where it is needed.
"""


class HeldFiles(Protocol):
    """Files of a replica that a read may show: those of its snapshot."""

    @property
    def address(self) -> ReplicaAddress:
        """Where the replica is."""

    @property
    def all_files(self) -> Mapping[str, DataFile]:
        """File id -> file."""

    def within(self, low: int, high: int) -> Sequence[DataFile]:
        """Those whose window meets these tokens, both included."""

    def showing(self, low: int, high: int) -> Sequence[DataFile]:
        """Those of `within` that may show a row of these tokens, or stand for files that would."""


Asked = tuple[int, int, Sequence[HeldFiles]]
"""A range, first and last token, and what the replicas have that were chosen for it."""


class Scan(msgspec.Struct, frozen=True):
    """Files that are read in the same way, as Spark's paths: only the rows with tokens in `intervals`, () for all."""

    paths: tuple[str, ...]
    intervals: tuple[Interval, ...]


class ReadPlan(msgspec.Struct, frozen=True):
    """What is read `plain` as it is, `filtered` for tombstones, or `merged` by key.

    `alone` and `sections`: the same files, or parts of them, that need no merge, and those that do. `tasks`: the slices
    of sections, for telling which of their rows do not count. `copies`: the files, where they are read. `lost`: damaged
    copies with rows that no other file has.
    """

    plain: tuple[Scan, ...]
    filtered: tuple[Scan, ...]
    merged: tuple[Scan, ...]
    alone: tuple[Run, ...] = ()
    sections: tuple[tuple[Run, ...], ...] = ()
    tasks: tuple[Task, ...] = ()
    copies: tuple[ExpectedFile, ...] = ()
    lost: tuple[ExpectedFile, ...] = ()


def read_files(spark: SparkSession, table: Table, asked: Iterable[Asked], lineage: Lineage = NO_LINEAGE) -> DataFrame:
    """The rows of the ranges asked for, which must not overlap: `read_plan` of `plan_read`."""
    return read_plan(spark, table, plan_read(table, asked, lineage))


def read_plan(spark: SparkSession, table: Table, plan: ReadPlan, names: Sequence[str] | None = None) -> DataFrame:
    """The rows of a plan, with exactly the table's columns, or those of them that are `names`, in this order.

    Per key the highest `_written_at` wins, then a tombstone, then the highest file id; a tombstone that wins hides the
    key. The frame keeps showing the pinned snapshots; it fails when a file of them is missing, torn or has a page with
    other bytes than were written. Raises StorageUnavailable, which names the file, where that is found at once.
    """
    columns = [column.name for column in table.columns] if names is None else names
    if not (plan.merged and is_told_here(plan)):
        merged_rows = sum({run.name: run.copy.file.rows for run in _merged_runs(plan)}.values())
        return _rows_of(spark, table, plan, columns, _not_superseded if merged_rows <= MOST_TOLD_ROWS else _ranked)
    plan, parts = _parts_as_files(plan, columns_to_read(table))
    tell = partial(_tell, judged_by(table), plan.tasks, parts)
    if len(plan.copies) <= leaving_out.LOOKED_UP:
        # Spark looks at the files meanwhile, which takes as long.
        telling = Background(1).submit(tell)
        scanned = _scanned(spark, table, plan)
        counts = _counts(spark, plan.copies, telling.result())
        if counts is not None:
            return _without(table, scanned, columns, counts)
    return _rows_of(spark, table, plan, columns, partial(_not_superseded, told=tell()))


def read_ranked(spark: SparkSession, table: Table, plan: ReadPlan) -> DataFrame:
    """`read_plan` in the way that has no limit, and is slower: a shuffle brings all versions of a key together."""
    return _rows_of(spark, table, plan, [column.name for column in table.columns], _ranked)


def _rows_of(
    spark: SparkSession,
    table: Table,
    plan: ReadPlan,
    names: Sequence[str],
    merge: Callable[[SparkSession, Table, ReadPlan], DataFrame],
) -> DataFrame:
    frames = _unmerged(spark, table, plan.plain, plan.filtered, names)
    if plan.merged:
        frames.append(merge(spark, table, plan).transform(_shown(table, names)))
    return frame_of(spark, columns_named(table, names), frames)


def frames_alone(spark: SparkSession, table: Table, plan: ReadPlan, names: Sequence[str]) -> list[DataFrame]:
    """Some columns of what needs no merge, the parts of files too, as Spark reads it."""
    return _unmerged(spark, table, *scans_of(plan.alone), names)


def frame_of(spark: SparkSession, columns: Sequence[TableColumn], frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of frames that have these columns; without a frame there are none."""
    return _union(frames) if frames else spark.createDataFrame([], spark_ddl(columns))


def columns_named(table: Table, names: Iterable[str]) -> list[TableColumn]:
    """The columns of a table with these names, in this order."""
    columns = {column.name: column for column in table.columns}
    return [columns[name] for name in names]


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """The numbers of tasks, 0 to `count` - 1, each in a partition of its own."""
    return spark.range(0, count, numPartitions=count)


def _unmerged(
    spark: SparkSession, table: Table, plain: Iterable[Scan], filtered: Iterable[Scan], names: Sequence[str]
) -> list[DataFrame]:
    frames = [scan_rows(spark, table, scan) for scan in plain]
    frames += [scan_rows(spark, table, scan, live=True) for scan in filtered]
    return list(map(_shown(table, names), frames))


def _scanned(spark: SparkSession, table: Table, plan: ReadPlan) -> tuple[list[DataFrame], list[DataFrame]]:
    """The rows of a plan before it is told which ones do not count: of files of which that is told, and of others.

    Files that can hold the same key are scanned with those that cannot: each scan costs as much as reading many rows.
    """
    deletes = _has_deletes(plan)
    beside, apart = (plan.filtered, plan.plain) if deletes else (plan.plain, plan.filtered)
    paths: dict[tuple[Interval, ...], list[str]] = defaultdict(list)
    for scan in (*beside, *plan.merged):
        paths[scan.intervals] += scan.paths
    scans = [Scan(tuple(found), intervals) for intervals, found in sorted(paths.items())]
    return (
        [scan_rows(spark, table, scan, live=deletes) for scan in scans],
        [scan_rows(spark, table, scan, live=not deletes) for scan in apart],
    )


def _without(
    table: Table, scanned: tuple[Sequence[DataFrame], Sequence[DataFrame]], names: Sequence[str], counts: Column
) -> DataFrame:
    """What `_scanned` gave of which `counts` is true, which its scan finds out."""
    told, others = scanned
    return _union(list(map(_shown(table, names), [*(frame.where(counts) for frame in told), *others])))


def _parts_as_files(plan: ReadPlan, columns: FileColumns | None) -> tuple[ReadPlan, list[Run]]:
    """A plan that reads whole files where it reads parts of files with few rows, and these parts.

    Each scan costs as much as reading many rows. Whatever a part leaves out is then told not to count.
    """
    copies = {places.spark_uri(copy.uri): copy for copy in plan.copies}
    paths: dict[tuple[Interval, ...], list[str]] = defaultdict(list)
    parts = []
    for scan in plan.merged:
        for path in scan.paths:
            is_part = bool(scan.intervals) and copies[path].file.rows <= WHOLE_ROWS
            paths[() if is_part else scan.intervals].append(path)
            if is_part:
                parts.append(Run(copies[path], scan.intervals, columns))
    merged_now = tuple(Scan(tuple(found), intervals) for intervals, found in sorted(paths.items()))
    return msgspec.structs.replace(plan, merged=merged_now), parts


def _tell(told_by: Sequence[str], of: Sequence[Task], parts: Sequence[Run]) -> list[Told]:
    """What is told of tasks, and of the rows that are in none of the parts of their files."""
    return [*tell_here(told_by, of), *(told for run in parts if (told := told_outside(run)) is not None)]


def _counts(spark: SparkSession, copies: Sequence[ExpectedFile], told: Sequence[Told]) -> Column | None:
    """Whether a row of these files, which are scanned, counts; None where they are too many to look that up."""
    if sum(one.count for one in told) <= leaving_out.NAMED_POSITIONS:
        return leaving_out.named(positions_of(told))
    files = {copy.file.path.rpartition("/")[2]: copy.file for copy in copies}
    words = words_of_files(told, {name: file.rows for name, file in files.items()})
    conditions = copies[0].address.storage.kept(leaving_out.Conditions)
    return conditions.looked_up(spark, words, {name: file.size for name, file in files.items()})


def _shown(table: Table, names: Iterable[str]) -> Callable[[DataFrame], DataFrame]:
    return shown(columns_named(table, names))


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


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
    holders: dict[str, dict[VolumeId, ExpectedFile]] = defaultdict(dict)
    wanted: dict[str, list[Interval]] = defaultdict(list)
    lost: dict[tuple[VolumeId, str], ExpectedFile] = {}
    for low, high, snapshots in joined(asked):
        union: dict[str, DataFile] = {}
        bad: list[ExpectedFile] = []
        for snapshot in snapshots:
            # A file without a row here may still say that another one, which is damaged, has none either.
            for file in snapshot.within(low, high) if damaged else snapshot.showing(low, high):
                if (snapshot.address.volume_id, file.path) in damaged:
                    bad.append(ExpectedFile(file, snapshot.address))
                    continue
                union[file.file_id] = file
                # What a replica has cut for itself may be of another size than the same piece elsewhere.
                holders[file.file_id][snapshot.address.volume_id] = ExpectedFile(file, snapshot.address)
        for part in select(union.values(), low, high, lineage):
            wanted[part.file.file_id].append((part.low, part.high))
        for copy in bad:
            if not rows_are_in(union.values(), copy.file, low, high, lineage, replaced):
                lost[copy.address.volume_id, copy.file.path] = copy
        files |= union
    load: dict[VolumeId, int] = defaultdict(int)
    runs = []
    columns = columns_to_read(table)
    first = _beginning(holders.values(), turn)
    for file in sorted((files[file_id] for file_id in wanted), key=lambda file: (file.min_token, file.file_id)):
        able = holders[file.file_id]
        volume = min(able, key=lambda holder: (load[holder], holder < first, holder))
        load[volume] += able[volume].file.size
        runs.append(_run(able[volume], merged(wanted[file.file_id]), columns))
    division = Division(tuple(runs), ()) if table.append_only else divided(runs)
    shared = {run.name for section in division.merged for run in section}
    plain, filtered = scans_of(run for run in runs if run.name not in shared)
    return ReadPlan(
        plain,
        filtered,
        _scans(run for run in runs if run.name in shared),
        division.alone,
        division.merged,
        tasks(division.merged),
        tuple(run.copy for run in runs),
        tuple(lost.values()),
    )


def _run(copy: ExpectedFile, intervals: Sequence[Interval], columns: FileColumns | None) -> Run:
    first, last = copy.file.extent
    whole = any(low <= first and last <= high for low, high in intervals)
    return Run(copy, () if whole else tuple(intervals), columns)


def _beginning(holders: Iterable[Mapping[VolumeId, ExpectedFile]], turn: int) -> VolumeId:
    """The volume that is preferred where loads are equal."""
    volumes = sorted({volume for able in holders for volume in able})
    return volumes[turn % len(volumes)] if volumes else 0


def scans_of(runs: Iterable[Run]) -> tuple[tuple[Scan, ...], tuple[Scan, ...]]:
    """Scans of runs that need no merge: of those that are read as they are, and of those with tombstones."""
    runs = list(runs)
    deletes = [run for run in runs if run.copy.file.has_tombstones]
    return _scans(run for run in runs if not run.copy.file.has_tombstones), _scans(deletes)


def _scans(runs: Iterable[Run]) -> tuple[Scan, ...]:
    """Runs by what is wanted of them."""
    paths: dict[tuple[Interval, ...], list[str]] = defaultdict(list)
    for run in runs:
        paths[run.intervals].append(places.spark_uri(run.copy.uri))
    return tuple(Scan(tuple(found), intervals) for intervals, found in sorted(paths.items()))


def joined(asked: Iterable[Asked]) -> list[Asked]:
    """Neighbouring ranges that the same replicas serve as one: fewer files are read in parts."""
    found: list[Asked] = []
    for low, high, snapshots in sorted(asked, key=lambda one: one[0]):
        if found and found[-1][1] == low - 1 and set(found[-1][2]) == set(snapshots):
            found[-1] = (found[-1][0], high, snapshots)
        else:
            found.append((low, high, snapshots))
    return found


def scan_rows(spark: SparkSession, table: Table, scan: Scan, *, live: bool = False) -> DataFrame:
    """The rows of the files of a scan, with the table's columns and the system columns; `live`: but for deletes."""
    columns = file_columns(table)
    reader = (
        spark.read.format(_reader_of(spark))
        .schema(_schema_of(table, columns))
        # No column is made of a directory's name, and neither a missing nor a torn file is passed over in silence,
        # whatever the session says.
        .option("recursiveFileLookup", True)
        .option("ignoreMissingFiles", False)
        .option("ignoreCorruptFiles", False)
        # The checksum of every page is verified: a flipped bit is an error and not another value.
        .option("parquet.page.verify-checksum.enabled", True)
        # Days and moments are what files say, also where a session takes other files for those of a Spark before 3.
        .option("datetimeRebaseMode", "CORRECTED")
    )
    together = loaded(spark, reader, scan.paths) if len(scan.paths) >= SENT_TOGETHER else None
    rows = reader.load(list(scan.paths)) if together is None else together
    if columns is not None:
        rows = columns.named(rows, (TOKEN, WRITTEN_AT, DELETED))
    conditions = [_within(table, scan.intervals)] if scan.intervals else []
    conditions += [f"NOT `{DELETED}`"] if live else []
    return rows.where(" AND ".join(conditions)) if conditions else rows


def _reader_of(spark: SparkSession) -> str:
    """The name of the reader of Parquet that tells of each row in which file it is and where, as merging needs.

    Another one is called by the usual name in a session that leaves `parquet` out of its list of sources.
    """
    sources = spark.conf.get(V1_SOURCES, PARQUET) or ""
    return PARQUET if PARQUET in (name.strip().lower() for name in sources.split(",")) else ALWAYS_V1


def _schema_of(table: Table, columns: FileColumns | None) -> StructType | str:
    """As what Spark reads files of a table: under the names that these have."""
    if columns is None:
        return f"{spark_ddl(table.columns)}, {_SYSTEM_DDL}"
    return columns.spark_schema(_SYSTEM_DDL)


def _within(table: Table, intervals: Sequence[Interval]) -> str:
    """Whether a row is in one of these, as a condition of SQL.

    Of a token that is there first: then row groups are skipped by what their footers say of it.
    """

    def inside(token: str) -> str:
        return f"({' OR '.join(f'{token} BETWEEN {low}L AND {high}L' for low, high in intervals)})"

    stored = inside(f"`{TOKEN}`")
    if not has_derived_tokens(table):
        return stored
    return f"({stored} OR `{TOKEN}` IS NULL AND {inside(_hash_of_key(table))})"


def with_every_token(rows: DataFrame, table: Table) -> DataFrame:
    """Rows as files have them, with the tokens that these leave out."""
    from pyspark.sql import functions as F

    if not has_derived_tokens(table):
        return rows
    return rows.withColumn(TOKEN, F.expr(f"coalesce(`{TOKEN}`, {_hash_of_key(table)})"))


def _hash_of_key(table: Table) -> str:
    return f"xxhash64({', '.join(_quoted(table.primary_key))})"


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionAll(other), frames)


def _live(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(~F.col(DELETED))


def _merged_runs(plan: ReadPlan) -> Iterator[Run]:
    """The runs of a plan's tasks; one that is in several slices several times."""
    return (run for task in plan.tasks for piece in task for run in piece.runs)


def is_told_here(plan: ReadPlan) -> bool:
    """Whether so little has to be told of a plan's rows that no task is worth it."""
    return work_of(plan.tasks) <= TOLD_HERE


def _has_deletes(plan: ReadPlan) -> bool:
    return any(run.copy.file.has_tombstones for section in plan.sections for run in section)


def _not_superseded(spark: SparkSession, table: Table, plan: ReadPlan, told: Sequence[Told] | None = None) -> DataFrame:
    """The rows that count of the files that have some in sections.

    `told`: which rows do not count; without it tasks tell, and read tokens and keys. Where that is too much to look it
    up it is broadcast. As an anti join it lets filters through, and columns that nobody asks for.
    """
    from pyspark.sql import functions as F

    merged = {run.name: run.copy for run in _merged_runs(plan)}
    scans = [scan_rows(spark, table, scan) for scan in plan.merged]
    # It is told of deletes only where another file has rows of their tokens.
    live = _live if _has_deletes(plan) else lambda rows: rows
    if told is not None and (counts := _counts(spark, list(merged.values()), told)) is not None:
        return live(_union([scan.where(counts) for scan in scans]))
    place = [F.col("_metadata.file_name").alias(_FILE), F.col("_metadata.row_index").alias(_POSITION)]
    rows = live(_union([scan.select("*", *place) for scan in scans]))
    if told is None:
        tell = partial(tell_superseded, judged_by(table), plan.tasks)
        superseded = numbered(spark, len(plan.tasks)).mapInArrow(tell, SUPERSEDED_DDL)
    else:
        superseded = spark.createDataFrame(as_table(told))
    at = F.col(f"`{_POSITION}`") - F.col(f"`{FIRST}`")
    # Null where the words do not reach to a row.
    word = F.get(F.col(f"`{WORDS}`"), F.shiftright(at, 6).cast("int"))
    is_told = F.getbit(word, at.bitwiseAND(63).cast("int")) == 1
    same_file = F.col(_FILE) == F.col(f"`{FILE}`")
    if leaving_out.have_hashes_of_their_own(merged):
        # A join by a number takes Spark half as long as one by a text.
        same_file = F.xxhash64(_FILE) == F.xxhash64(f"`{FILE}`")
    return rows.join(F.broadcast(superseded), same_file & is_told, "left_anti")


def _ranked(spark: SparkSession, table: Table, plan: ReadPlan) -> DataFrame:
    """The rows of the merged files that count, found by a shuffle."""
    from pyspark.sql import functions as F

    scans = [scan_rows(spark, table, scan).withColumn(_FILE, F.col("_metadata.file_name")) for scan in plan.merged]
    return _live(winners(with_every_token(_union(scans), table), table, _FILE))


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
