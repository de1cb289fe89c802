"""Reading: the union of the replicas' file sets, each file once, then last write wins where files can overlap.

The one idea: a file has the same bytes wherever it lies, so which replica serves it does not matter, and a quorum read
costs one read of each file. Files of a tablet whose token ranges are apart cannot hold the same key: only the others
are merged, and so only they are shuffled. An append-only table needs no merge at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.dataplane.files import DataFile
from epochlake.jobs.dataplane.replica import ReplicaSnapshot
from epochlake.jobs.dataplane.schema import DELETED, WRITTEN_AT, spark_ddl
from epochlake.metastore import storage
from epochlake.metastore.metadata.model import Table
from epochlake.placement.tokens import TOKEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SYSTEM_DDL = f"`{TOKEN}` bigint, `{WRITTEN_AT}` bigint, `{DELETED}` boolean"


class ReadPlan(msgspec.Struct, frozen=True):
    """The Spark paths of the files: read `plain` as they are, `filtered` for tombstones, or `merged` by key."""

    plain: tuple[str, ...]
    filtered: tuple[str, ...]
    merged: tuple[str, ...]


def read_files(spark: SparkSession, table: Table, tablets: Mapping[str, Sequence[ReplicaSnapshot]]) -> DataFrame:
    """The rows of the tablets (label -> snapshots of the chosen replicas), with exactly the table's columns.

    Per key the highest `_written_at` wins, then a tombstone, then the highest file id; a tombstone that wins hides the
    key. The frame keeps showing the pinned snapshots; it fails when a file of them is missing or torn.
    """
    plan = plan_read(table, tablets)
    names = [f"`{column.name}`" for column in table.columns]
    frames = [
        _plain(spark, table, plan.plain).select(*names) if plan.plain else None,
        _live(_plain(spark, table, plan.filtered)).select(*names) if plan.filtered else None,
        _live(_newest(_plain(spark, table, plan.merged), table)).select(*names) if plan.merged else None,
    ]
    present = [frame for frame in frames if frame is not None]
    if not present:
        return spark.createDataFrame([], spark_ddl(table.columns))
    result = present[0]
    for frame in present[1:]:
        result = result.unionAll(frame)
    return result


def plan_read(table: Table, tablets: Mapping[str, Sequence[ReplicaSnapshot]]) -> ReadPlan:
    """Choose for each file of the union the replica that has been given the fewest bytes to read so far."""
    load: dict[str, int] = {}
    plain: list[str] = []
    filtered: list[str] = []
    merged: list[str] = []
    for label in sorted(tablets):
        snapshots = tablets[label]
        union: dict[str, DataFile] = {}
        for snapshot in snapshots:
            union.update(snapshot.files.get(label, {}))
        alone = set(union) if table.append_only else not_overlapping(union.values())
        for file in sorted(union.values(), key=lambda file: (file.min_token, file.file_id)):
            holders = [one.address.uri for one in snapshots if file.file_id in one.files.get(label, {})]
            uri = min(holders, key=lambda holder: (load.get(holder, 0), holder))
            load[uri] = load.get(uri, 0) + file.size
            kind = merged if file.file_id not in alone else filtered if file.has_tombstones else plain
            kind.append(storage.spark_uri(storage.join(uri, file.path)))
    return ReadPlan(tuple(plain), tuple(filtered), tuple(merged))


def not_overlapping(files: Iterable[DataFile]) -> set[str]:
    """The ids of the files whose token range no other file touches."""
    alone: set[str] = set()
    group: list[DataFile] = []
    reach = 0
    for file in sorted(files, key=lambda file: file.min_token):
        if group and file.min_token > reach:
            if len(group) == 1:
                alone.add(group[0].file_id)
            group = []
        reach = max(reach, file.max_token) if group else file.max_token
        group.append(file)
    if len(group) == 1:
        alone.add(group[0].file_id)
    return alone


def _plain(spark: SparkSession, table: Table, paths: Sequence[str]) -> DataFrame:
    return (
        spark.read.schema(f"{spark_ddl(table.columns)}, {_SYSTEM_DDL}")
        # No column is made of a directory's name, and neither a missing nor a torn file is passed over in silence,
        # whatever the session says.
        .option("recursiveFileLookup", True)
        .option("ignoreMissingFiles", False)
        .option("ignoreCorruptFiles", False)
        .parquet(*paths)
    )


def _live(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(~F.col(DELETED))


def _newest(rows: DataFrame, table: Table) -> DataFrame:
    """For each key the row that counts. Equal keys have equal tokens: sorting by the token first is cheap."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    file, rank = "_file", "_rank"
    order = Window.partitionBy(TOKEN, *[f"`{name}`" for name in table.primary_key]).orderBy(
        F.col(WRITTEN_AT).desc(), F.col(DELETED).desc(), F.col(file).desc()
    )
    ranked = rows.withColumn(file, F.col("_metadata.file_name")).withColumn(rank, F.row_number().over(order))
    return ranked.where(F.col(rank) == 1)
