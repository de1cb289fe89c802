"""The rows of data files, read by this process: the row groups that have tokens asked for, every page verified.

Needs no Spark, so it runs on executors as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.footers import column_number, range_in_group
from epochlake.jobs.replicas.intervals import meet, overlap
from epochlake.jobs.replicas.sections import Run
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray

Positions = NDArray[np.int64]
"""Of rows in their file, ascending: int64 array of shape (rows,)."""


def rows_of_run(
    run: Run,
    window: Interval,
    columns: Sequence[str],
    of_type: Callable[[pa.DataType], pa.DataType],
    can_match: Callable[[pq.FileMetaData, int], bool] | None = None,
) -> Iterator[tuple[pa.Table, Positions]]:
    """The rows of a run that have a token in `window`: `rows_of_file`."""
    low, high = window
    first, last = run.copy.file.extent
    spans: list[Interval] | None = None
    if run.intervals or not (low <= first and last <= high):
        spans = [overlap(one, window) for one in run.intervals or [window] if meet(one, window)]
    return rows_of_file(run.copy.address.storage, run.copy.uri, spans, columns, of_type, can_match)


def rows_of_file(
    storage: Storage,
    uri: str,
    spans: Sequence[Interval] | None,
    columns: Sequence[str],
    of_type: Callable[[pa.DataType], pa.DataType],
    can_match: Callable[[pq.FileMetaData, int], bool] | None = None,
) -> Iterator[tuple[pa.Table, Positions]]:
    """For each row group of a file: its rows with a token in one of `spans` (None: all), and their positions.

    `columns` are read, with `_token` where that is not among them, each of the type that `of_type` makes of the stored
    one. Row groups of which `can_match` says no are left out; there is a table without rows where none is left. Raises
    StorageUnavailable, which names the file, for one that is missing, torn or has a page with other bytes than were
    written.
    """
    filesystem, path = storage.filesystem(uri)

    def opened() -> tuple[pq.ParquetFile, int]:
        # The checksum of every page is verified: a flipped bit is an error and not another value.
        source = pq.ParquetFile(filesystem.open_input_file(path), page_checksum_verification=True)
        return source, column_number(source.metadata, TOKEN)

    # It is closed when nobody holds it any more: storage that hangs may still be in it when this has given up.
    source, token = storage.within_deadline("read", uri, opened)
    names = list(columns) if TOKEN in columns else [TOKEN, *columns]

    schema = pa.schema([pa.field(name, of_type(source.schema_arrow.field(name).type)) for name in names])

    def read(group: int) -> pa.Table:
        return source.read_row_group(group, names, use_threads=False).select(names).cast(schema)

    start, parts = 0, 0
    for group in range(source.num_row_groups):
        rows = source.metadata.row_group(group).num_rows
        tokens = range_in_group(source.metadata, group, token)
        can = tokens is None or spans is None or any(meet(tokens, span) for span in spans)
        if can and (can_match is None or can_match(source.metadata, group)):
            part = storage.within_deadline("read", uri, partial(read, group))
            wanted = _wanted(spans, part.column(TOKEN).to_numpy())
            if wanted is None:
                yield part, np.arange(start, start + rows)
            else:
                yield part.filter(pa.array(wanted)), start + np.flatnonzero(wanted)
            parts += 1
        start += rows
    if not parts:
        yield schema.empty_table(), np.zeros(0, dtype=np.int64)


def _wanted(spans: Sequence[Interval] | None, tokens: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Which rows take part, None for all of them."""
    if spans is None:
        return None
    wanted = np.zeros(len(tokens), dtype=bool)
    for low, high in spans:
        wanted |= (tokens >= low) & (tokens <= high)
    return wanted
