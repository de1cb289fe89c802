"""Row groups that no row of a filter can be in, by what the footer says of their columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from epochlake.jobs.replicas.file_columns import FileColumns
from epochlake.jobs.replicas.footers import column_number
from pyarrow import fs


class RowGroups:
    """Those that a filter has to look at, which reads these columns. Columns of numbers with a point do not count: the
    least and the greatest value say nothing of what is not a number, and a filter may ask for just that.
    """

    def __init__(self, where: pc.Expression, columns: Collection[str]) -> None:
        self._where = where
        self._columns = columns

    def can_match(self, footer: pq.FileMetaData, group: int, known_as: FileColumns | None = None) -> bool:
        """Whether a row of the group may be one for which the filter is true."""
        schema = footer.schema.to_arrow_schema()
        if known_as is not None:
            schema = known_as.as_now(schema)
        stored = {name: name if known_as is None else known_as.stored_name(name) for name in self._columns}
        known = _known(footer, group, {name: schema.field(name).type for name in self._columns}, stored)
        if known is None:
            return True
        # Arrow decides it, as it does for the files of a partitioned folder; nothing is opened for that.
        fragment = _PARQUET.make_fragment("unread", _ANYWHERE, partition_expression=known)
        try:
            matching = ds.FileSystemDataset([fragment], schema, _PARQUET, _ANYWHERE).get_fragments(self._where)
            return any(True for _ in matching)
        except pa.ArrowException:
            return True  # filtering says what is wrong with it


_PARQUET = ds.ParquetFileFormat()
_ANYWHERE = fs.LocalFileSystem()


def _known(
    footer: pq.FileMetaData, group: int, types: Mapping[str, pa.DataType], stored: Mapping[str, str]
) -> pc.Expression | None:
    """What is true of all rows of a group. `stored`: what the file calls the columns.

    Nothing is known of a column that came later than the file, or that was narrower then.
    """
    found = []
    there = footer.schema.to_arrow_schema()
    for name, type_ in types.items():
        if pa.types.is_nested(type_) or pa.types.is_floating(type_):
            continue
        if stored[name] not in there.names or there.field(stored[name]).type != type_:
            continue
        statistics = footer.row_group(group).column(column_number(footer, stored[name])).statistics
        if statistics is not None and statistics.has_min_max and statistics.has_null_count:
            try:
                low, high = _ends(statistics, type_)
            except UnicodeDecodeError:
                continue  # what is no text is never looked up by its order
            within = (ds.field(name) >= low) & (ds.field(name) <= high)
            found.append(within | ds.field(name).is_null() if statistics.null_count else within)
    return reduce(and_, found) if found else None


def _ends(statistics: pq.Statistics, type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """The least and the greatest value. Of days and moments as they are stored: Python has none after the year 9999."""
    if pa.types.is_temporal(type_):
        stored = pa.int32() if pa.types.is_date32(type_) else pa.int64()
        low, high = (pa.scalar(value, stored).cast(type_) for value in (statistics.min_raw, statistics.max_raw))
    else:
        low, high = (pa.scalar(value, type_) for value in (statistics.min, statistics.max))
    return low, high
