"""`DataFrame.mapInArrow` for columns of any name: Spark's own takes a name with a dot for a field of a struct."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, work: Work, ddl: str) -> DataFrame:
    """What `work` makes of the batches of each partition, which have the names of `rows`."""
    names = rows.columns
    if not any("." in name for name in names):
        return rows.mapInArrow(work, ddl)
    numbered = rows.toDF(*(str(number) for number in range(len(names))))
    return numbered.mapInArrow(partial(_named, names, work), ddl)


def _named(names: Sequence[str], work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return work(batch.rename_columns(list(names)) for batch in batches)
