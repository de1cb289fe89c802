"""What the footer of a Parquet file says of its columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.placement.tokens import Interval


def column_number(footer: pq.FileMetaData, name: str) -> int:
    """The number of a top-level column among the leaves of nested ones. Raises ArrowInvalid where there is none."""
    for number in range(footer.num_columns):
        if footer.schema.column(number).path == name:
            return number
    raise pa.ArrowInvalid(f"there is no column {name!r}")


def range_in_group(footer: pq.FileMetaData, group: int, column: int) -> Interval | None:
    """The least and the greatest value of a column in a row group; None when the footer does not say."""
    statistics = footer.row_group(group).column(column).statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None
