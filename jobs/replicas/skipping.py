"""Row groups that no row of a filter can be in, by what the footer says of their columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from epochlake.jobs.replicas.footers import column_number
from pyarrow import fs


class RowGroups:
    """Those that a filter has to look at, which reads these columns. Columns of numbers with a point do not count: the
    least and the greatest value say nothing of what is not a number, and a filter may ask for just that.
    """

    def __init__(self, where: pc.Expression, columns: Collection[str]) -> None:
        self._where = where
        self._columns = columns

    def can_match(self, footer: pq.FileMetaData, group: int) -> bool:
        """Whether a row of the group may be one for which the filter is true."""
        schema = footer.schema.to_arrow_schema()
        known = _known(footer, group, {name: schema.field(name).type for name in self._columns})
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


def _known(footer: pq.FileMetaData, group: int, types: Mapping[str, pa.DataType]) -> pc.Expression | None:
    """What is true of all rows of a group."""
    found = []
    for name, type_ in types.items():
        if pa.types.is_nested(type_) or pa.types.is_floating(type_):
            continue
        statistics = footer.row_group(group).column(column_number(footer, name)).statistics
        if statistics is not None and statistics.has_min_max and statistics.has_null_count:
            low, high = (pa.scalar(value, type_) for value in (statistics.min, statistics.max))
            within = (ds.field(name) >= low) & (ds.field(name) <= high)
            found.append(within | ds.field(name).is_null() if statistics.null_count else within)
    return reduce(and_, found) if found else None
