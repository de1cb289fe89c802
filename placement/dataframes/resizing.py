"""Splits and merges as DataFrames: tables and measured sizes in, a decision for each table out.

Sizes are summed where they are; what is decided from is one row for each table, so the decisions themselves are made on
the driver by `placement/tablets/resizing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from epochlake.placement.dataframes.frames import frame_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import Goal, Resize, TableSizes, decide

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE_COLUMNS = ("table_id", "count", "replicas", "target_bytes")
BOUND_COLUMNS = ("min_count", "max_count", "resize_type")
SIZE_COLUMNS = ("table_id", "bytes")


def resizes(tables: DataFrame, sizes: DataFrame, goal: Goal = Goal()) -> DataFrame:  # noqa: B008  frozen
    """The decision for each table, by table id (seed 000, "Tablet splitting").

    `tables`: table_id, count (tablets), replicas (of each tablet), target_bytes; and, where there are any, min_count,
    max_count and resize_type (the decision in force). `sizes`: table_id and bytes, one row for each replica of a tablet
    that was measured, empty ones too. Gives table_id, count, wanted_count, bytes (mean of a replica, null: not
    measured), resize_type, changes (whether that is another decision than is in force), reason. Raises InvalidRequest.
    """
    from pyspark.sql import functions as F  # only here: commands that start no Spark must not pay for it

    for frame, columns, name in ((tables, TABLE_COLUMNS, "tables"), (sizes, SIZE_COLUMNS, "sizes")):
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            raise InvalidRequest(
                f"resizing needs the columns {', '.join(columns)} of {name}; {', '.join(missing)} missing, "
                f"there are {', '.join(frame.columns)}"
            )
    means = sizes.groupBy("table_id").agg(F.avg("bytes").alias("bytes"))
    bounds = [column for column in BOUND_COLUMNS if column in tables.columns]
    rows = (
        tables.select(*TABLE_COLUMNS, *bounds)
        .join(means, "table_id", "left")
        .withColumn("count", F.col("count").cast("bigint"))
        .orderBy("table_id")
        .toArrow()
        .to_pylist()
    )
    return frame_of(tables.sparkSession, _decided(rows, goal))


def _decided(rows: list[dict], goal: Goal) -> pa.Table:
    sizes = [row["bytes"] for row in rows]
    columns = TableSizes.of(
        count=[row["count"] for row in rows],
        replicas=[row["replicas"] for row in rows],
        bytes=[float("nan") if size is None else size for size in sizes],
        target=[row["target_bytes"] for row in rows],
        minimum=[row.get("min_count") or 1 for row in rows],
        maximum=[row.get("max_count") or 1 << 62 for row in rows],
        resize=[row.get("resize_type") or Resize.NONE for row in rows],
    )
    decisions = decide(columns, goal)
    return pa.table(
        {
            "table_id": pa.array([row["table_id"] for row in rows], None if rows else pa.string()),
            "count": pa.array([row["count"] for row in rows], pa.int64()),
            "wanted_count": pa.array([decision.wanted for decision in decisions], pa.int64()),
            "bytes": pa.array(sizes, pa.float64()),
            "resize_type": pa.array([str(decision.resize) for decision in decisions], pa.string()),
            "changes": pa.array([decision.changes for decision in decisions], pa.bool_()),
            "reason": pa.array([decision.why for decision in decisions], pa.string()),
        }
    )
