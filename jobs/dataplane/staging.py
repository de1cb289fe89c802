"""Phase one of a write: rows become Parquet files in the directories of their write replicas, in one Spark job.

The one idea: a tablet's rows are encoded once, and the same bytes are stored under the same name on each of its
replicas. Nothing is visible by that; the driver commits the files afterwards, and a file that is never committed is
vacuumed. A replica whose storage fails is part of the answer, not an error: the consistency level decides.

Rows reach a task in token order (Spark sorts, and spills when they are many), so a file covers a narrow range of
tokens, a task holds one row group at a time, and two rows with the same key are neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.jobs.dataplane.encoding import RESULT_DDL, StagingPlan, encode_rows
from epochlake.jobs.dataplane.files import DataFile, path_of
from epochlake.jobs.dataplane.replica import ReplicaAddress
from epochlake.metastore import storage
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TABLET, TOKEN, tablet_bits, with_tablet, with_token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TARGET_FILE_BYTES = 128 << 20
"""A file is closed when it has grown to about this size."""


class StagedFile(msgspec.Struct, frozen=True):
    """A file, the replicas that have it in their directory, and those whose storage failed, with the reason."""

    file: DataFile
    stored: frozenset[VolumeId]
    failed: dict[VolumeId, str]


def stage(
    df: DataFrame,
    table: Table,
    tablet_count: int,
    routes: Mapping[int, Sequence[ReplicaAddress]],
    *,
    written_at: int,
    deleted: bool = False,
    target_file_bytes: int = TARGET_FILE_BYTES,
) -> list[StagedFile]:
    """Store the rows of `df` in the directories of their tablets' write replicas.

    `df` has the table's columns with their declared types, in order; for `deleted`, the key columns suffice, and the
    rows become tombstones. `routes`: the write replicas of each tablet. `written_at` in microseconds, for all rows.

    Raises InvalidRequest, and nothing of it will ever be visible: a null in a key column or in one that is declared not
    nullable, two rows with the same key for a table that is not append-only, a tablet without a route.
    """
    plan = StagingPlan(
        table=table,
        tablet_count=tablet_count,
        routes={tablet: tuple(replicas) for tablet, replicas in routes.items()},
        written_at=written_at,
        deleted=deleted,
        target_file_bytes=target_file_bytes,
        storage_options=storage.used_options(),
    )
    rows = _routed(df, plan).mapInArrow(partial(encode_rows, plan), RESULT_DDL).toArrow()
    return _staged(rows, plan)


def _routed(df: DataFrame, plan: StagingPlan) -> DataFrame:
    """The rows with `_token`, each tablet's rows in one partition, in token order."""
    from pyspark.sql import functions as F

    table = plan.table
    if plan.deleted:
        missing = [column for column in table.columns if column.name not in df.columns]
        df = df.withColumns({column.name: F.lit(None).cast(column.type) for column in missing}) if missing else df
    names = [F.col(f"`{column.name}`") for column in table.columns]
    tokens = df.select(*names).transform(with_token(table.primary_key))
    partitions = min(plan.tablet_count, int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200))
    # Neighbouring tablets share a partition when there are more of them, so that token order is tablet order.
    tablet = tokens.transform(with_tablet(plan.tablet_count))
    by_tablet = tablet.repartitionById(
        partitions, F.shiftright(F.col(TABLET).cast("long") * partitions, tablet_bits(plan.tablet_count)).cast("int")
    )
    return by_tablet.drop(TABLET).sortWithinPartitions(TOKEN)


def _staged(rows: pa.Table, plan: StagingPlan) -> list[StagedFile]:
    staged = []
    for row in rows.to_pylist():
        if row["refused"] is not None:
            raise InvalidRequest(row["refused"])
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
            has_tombstones=plan.deleted,
        )
        failed = dict(zip(row["failed"], row["reasons"], strict=True))
        staged.append(StagedFile(file, frozenset(row["stored"]), failed))
    return sorted(staged, key=lambda one: (one.file.min_token, one.file.file_id))
