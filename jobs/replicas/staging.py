"""Phase one of a write: rows become Parquet files in the directories of their write replicas, in one Spark job.

A range's rows are encoded once, and the same bytes are stored under the same name on each of its
replicas. Nothing is visible by that; the driver commits the files afterwards, and a file that is never committed is
vacuumed. A replica whose storage fails is part of the answer, not an error: the consistency level decides.

Rows reach a task in token order (Spark sorts, and spills when they are many), so a file covers a narrow range of
tokens, a task holds one row group at a time, and two rows with the same key are neighbours. A task has whole ranges: as
many neighbouring ones as begin in its slice of the token space (slices.py). Ranges with few rows share a file
(sharing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.jobs.replicas.arrow_maps import map_in_arrow
from epochlake.jobs.replicas.encoding import RESULT, RESULT_DDL, ROW_DIGEST, encode_rows
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.shuffles import shuffle_tasks
from epochlake.jobs.replicas.slices import tasks_of_slices
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.column_ddl import spark_type
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import MIN_TOKEN, TOKEN, with_token

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

TARGET_FILE_BYTES = 128 << 20
"""A file is closed when it has grown to about this size."""


class StagedFile(msgspec.Struct, frozen=True):
    """A file, the replicas that have it in their directory, and those whose storage failed, with the reason.

    `digest`: the sum of its rows' digests, modulo 2^64, when it was staged for a named batch.
    """

    file: DataFile
    stored: frozenset[VolumeId]
    failed: dict[VolumeId, str]
    digest: int | None = None


def stage(df: DataFrame, plan: StagingPlan) -> list[StagedFile]:
    """Store the rows of `df` in the directories of the write replicas of their ranges; the files, in token order.

    `df` has the table's columns with their declared types, in order, perhaps without generated ones; when the plan is
    one of deleting, the key columns suffice, and the rows become tombstones. The window of each file is the range of
    the plan's routing that it was staged for. A column of digests of rows is not stored: they are added up for each
    file.

    Raises InvalidRequest, and nothing of it will ever be visible: a null in a key column or in one that is declared not
    nullable, two rows with the same key for a table that is not append-only, a range without a route.
    """
    plan = msgspec.structs.replace(plan, tasks=_tasks(df, plan))
    rows = map_in_arrow(_routed(df, plan), partial(encode_rows, plan), RESULT_DDL).toArrow()
    return staged_files(rows, plan, digested=ROW_DIGEST in df.columns)


Announce = Callable[[list[StagedFile]], None]
"""Is told of files that are stored, and are not on the disks yet. The root's disk has their copies when it returns, and
what it stores by itself.
"""


def stage_here(
    plan: StagingPlan, batches: Iterable[pa.RecordBatch], *, digested: bool = False, announce: Announce | None = None
) -> list[StagedFile]:
    """`stage` in this process, of batches as `encode_rows` wants them. `announce` is told while the disks sync."""

    announced: list[StagedFile] = []
    told_of: list[pa.RecordBatch] = []

    def stored(told: Sequence[pa.RecordBatch]) -> None:
        assert announce is not None
        announced.extend(staged_files(pa.Table.from_batches(told, RESULT), plan, digested=digested))
        told_of.extend(told)
        announce(announced)

    told = list(encode_rows(plan, batches, None if announce is None else stored))
    if told and len(told) == len(told_of) and all(map(is_, told, told_of)):
        return announced  # as it mostly is: what was stored is on the disks by now
    return staged_files(pa.Table.from_batches(told, RESULT), plan, digested=digested)


def wrapped(number: int) -> int:
    """A number as a signed 64-bit one, what does not fit cut off."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _routed(df: DataFrame, plan: StagingPlan) -> DataFrame:
    """The rows with `_token`, each range's rows in one partition, in token order."""
    from pyspark.sql import functions as F

    table = plan.table
    if plan.deleted:
        missing = {one.name: spark_type(one.type) for one in table.columns if one.name not in df.columns}
        df = df.withColumns({name: F.lit(None).cast(type_) for name, type_ in missing.items()}) if missing else df
    # Generated columns that are not given are computed where rows are encoded.
    names = [F.col(f"`{column.name}`") for column in table.columns if column.name in df.columns]
    names += [F.col(name) for name in (DELETED, ROW_DIGEST) if name in df.columns]
    tokens = df.select(*names).transform(with_token(table.primary_key))
    return tokens.repartitionById(plan.tasks, task_of_token(plan.routing.lows, plan.tasks)).sortWithinPartitions(TOKEN)


def _tasks(df: DataFrame, plan: StagingPlan) -> int:
    return min(len(plan.routing.lows), shuffle_tasks(df.sparkSession))


def task_of_token(lows: NDArray[np.int64], count: int) -> Column:
    """The task, 0 to `count` - 1, of a row by its `_token`: each of the ranges that begin at `lows` has one task."""
    from pyspark.sql import functions as F

    tasks = tasks_of_slices(lows, count)
    begins = F.array(*[F.lit(begin).cast("bigint") for begin, _ in tasks])
    before = F.array(*[F.lit(task) for _, task in tasks])
    high_half = F.shiftrightunsigned(F.col(TOKEN).bitwiseXOR(F.lit(MIN_TOKEN)), 32)
    own = F.shiftright(high_half * F.lit(count), 32).cast("int")
    return F.when(F.col(TOKEN) >= begins[own], own).otherwise(before[own])


def staged_files(rows: pa.Table, plan: StagingPlan, *, digested: bool) -> list[StagedFile]:
    """The files that rows of RESULT tell of. Raises InvalidRequest for rows that cannot be written."""
    staged = []
    for row in rows.to_pylist():
        if row["refused"] is not None:
            reason, _, hint = row["refused"].partition("\n")
            raise InvalidRequest(reason, hint=hint)
        file = DataFile(
            file_id=row["file_id"],
            label=row["label"],
            path=path_of(row["label"], row["file_id"]),
            size=row["size"],
            rows=row["rows"],
            min_token=row["min_token"],
            max_token=row["max_token"],
            min_written_at=plan.written_at,
            max_written_at=plan.written_at,
            has_tombstones=bool(row["tombstones"]),
        )
        failed = dict(zip(row["failed"], row["reasons"], strict=True))
        digest = row["digest"] if digested else None
        staged.append(StagedFile(file, frozenset(row["stored"]), failed, digest))
    return sorted(staged, key=lambda one: (one.file.min_token, one.file.file_id))
