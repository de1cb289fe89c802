"""The rows of data files, read by this process: the row groups that have tokens asked for, every page verified.

Needs no Spark, so it runs on executors as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.derived_tokens import hashes_of_keys, key_noted, leaves_tokens_out, with_tokens
from epochlake.jobs.replicas.file_columns import FileColumns
from epochlake.jobs.replicas.footers import column_number, range_in_group
from epochlake.jobs.replicas.intervals import meet, overlap
from epochlake.jobs.replicas.sealing import DamagedBytes
from epochlake.jobs.replicas.sections import Run
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray

Positions = NDArray[np.int64]
"""Of rows in their file, ascending: int64 array of shape (rows,)."""


class CanMatch(Protocol):
    """Whether any row of a row group, by its footer and number, may be one that is asked for.

    `known_as`: what files of an altered table call its columns.
    """

    def __call__(self, footer: pq.FileMetaData, group: int, known_as: FileColumns | None = None, /) -> bool: ...


def rows_of_run(
    run: Run,
    window: Interval,
    columns: Sequence[str],
    of_type: Callable[[pa.DataType], pa.DataType],
    can_match: CanMatch | None = None,
) -> Iterator[tuple[pa.Table, Positions]]:
    """The rows of a run that have a token in `window`: `rows_of_file`."""
    low, high = window
    first, last = run.copy.file.extent
    spans: list[Interval] | None = None
    if run.intervals or not (low <= first and last <= high):
        spans = [overlap(one, window) for one in run.intervals or [window] if meet(one, window)]
    return rows_of_file(run.copy.address.storage, run.copy.uri, spans, columns, of_type, can_match, run.columns)


def rows_of_file(
    storage: Storage,
    uri: str,
    spans: Sequence[Interval] | None,
    columns: Sequence[str],
    of_type: Callable[[pa.DataType], pa.DataType],
    can_match: CanMatch | None = None,
    known_as: FileColumns | None = None,
) -> Iterator[tuple[pa.Table, Positions]]:
    """For each row group of a file: its rows with a token in one of `spans`, which are ascending and do not meet (None:
    all), and their positions.

    `columns` are read, each of the type that `of_type` makes of the stored one; `_token` as well where `spans` need it
    or nothing else is asked for. `known_as`: what files of an altered table call these columns; then they have the
    types of now. Row groups of which `can_match` says no are left out; there is a table without rows where none is
    left. Raises StorageUnavailable, which names the file, for one that is missing, torn or has a page with other bytes
    than were written, or a footer that has rotted since it was looked at.
    """
    filesystem, path = storage.filesystem(uri)
    names = list(columns) if TOKEN in columns or (columns and spans is None) else [TOKEN, *columns]

    def opened() -> tuple[pq.ParquetFile, pa.Schema, list[tuple[int, int]]]:
        # The checksum of every page is verified: a flipped bit is an error and not another value.
        source = pq.ParquetFile(filesystem.open_input_file(path), page_checksum_verification=True)
        schema = _read_schema(uri, source.schema_arrow, names, of_type, known_as)
        return source, schema, list(_groups(source.metadata, spans, can_match, known_as))

    def read(source: pq.ParquetFile, schema: pa.Schema, group: int) -> pa.Table:
        if known_as is None:
            rows = _stored(source, group, names).select(names).cast(schema)
        else:
            rows = _as_now(source, schema, group, known_as)
        # The header of a page has no checksum: where it has rotted, the page may be skipped, rows and all.
        if rows.num_rows != (written := source.metadata.row_group(group).num_rows):
            raise DamagedBytes(uri, f"it has {rows.num_rows} rows of {written} in a row group")
        return rows

    def begun() -> tuple[pq.ParquetFile, pa.Schema, list[tuple[int, int]], pa.Table]:
        # Most files have one row group: who opens one reads it in the same access.
        source, schema, groups = opened()
        return source, schema, groups, read(source, schema, groups[0][0]) if groups else schema.empty_table()

    # It is closed when nobody holds it any more: storage that hangs may still be in it when this has given up.
    source, schema, groups, part = storage.within_deadline("read", uri, begun)
    if not groups:
        yield part, np.zeros(0, dtype=np.int64)
    for number, (group, start) in enumerate(groups):
        if number:
            part = storage.within_deadline("read", uri, partial(read, source, schema, group))
        if spans is None:
            yield part, np.arange(start, start + part.num_rows)
        else:
            wanted = _wanted(spans, part.column(TOKEN).to_numpy())
            yield part.filter(pa.array(wanted)), start + np.flatnonzero(wanted)


def _read_schema(
    uri: str,
    stored: pa.Schema,
    names: Sequence[str],
    of_type: Callable[[pa.DataType], pa.DataType],
    known_as: FileColumns | None,
) -> pa.Schema:
    """The columns as they are read. Raises StorageUnavailable for a file that lacks one which it has to have."""
    fields = []
    for name in names:
        stored_name = name if known_as is None else known_as.stored_name(name)
        declared = None if known_as is None else known_as.declared_type(name)
        if stored_name in stored.names:
            type_ = stored.field(stored_name).type
            is_wider = declared is not None and not pa.types.is_nested(declared) and declared != type_
            as_declared = is_wider or (known_as is not None and known_as.has_structs(name))
            fields.append(pa.field(name, of_type(declared if as_declared else type_)))
        elif known_as is not None and known_as.may_be_absent(name):
            fields.append(pa.field(name, of_type(declared)))
        else:
            raise DamagedBytes(uri, f"it has no column {stored_name}")
    return pa.schema(fields)


def _stored(source: pq.ParquetFile, group: int, names: Sequence[str]) -> pa.Table:
    """Columns of a row group, at least these; every token where `_token` is among them."""
    key = key_noted(source.metadata.metadata) if TOKEN in names else None
    if key is None:
        return source.read_row_group(group, list(names), use_threads=False)
    asked = list(dict.fromkeys([*names, key]))
    if not leaves_tokens_out(source.metadata, group):
        return with_tokens(source.read_row_group(group, asked, use_threads=False), key)
    asked.remove(TOKEN)
    rows = source.read_row_group(group, asked, use_threads=False)
    return rows.append_column(TOKEN, pa.array(hashes_of_keys(rows.column(key))))


def _as_now(source: pq.ParquetFile, schema: pa.Schema, group: int, known_as: FileColumns) -> pa.Table:
    """A row group of a file of an altered table, as the table is now."""
    there = set(source.schema_arrow.names)
    stored = {name: known_as.stored_name(name) for name in schema.names}
    rows = _stored(source, group, [name for name in stored.values() if name in there])
    columns = [
        known_as.values_now(name, rows.column(stored_name))
        if stored_name in there
        else known_as.filled(name, rows.num_rows)
        for name, stored_name in stored.items()
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _groups(
    footer: pq.FileMetaData,
    spans: Sequence[Interval] | None,
    can_match: CanMatch | None,
    known_as: FileColumns | None,
) -> Iterator[tuple[int, int]]:
    """The row groups that have to be read, each with the position of its first row."""
    token = column_number(footer, TOKEN)
    start = 0
    for group in range(footer.num_row_groups):
        tokens = range_in_group(footer, group, token)
        can = tokens is None or spans is None or any(meet(tokens, span) for span in spans)
        if can and (can_match is None or can_match(footer, group, known_as)):
            yield group, start
        start += footer.row_group(group).num_rows


def _wanted(spans: Sequence[Interval], tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows take part."""
    if not spans:
        return np.zeros(len(tokens), dtype=bool)
    lows, highs = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    span = np.searchsorted(lows, tokens, side="right") - 1
    wanted: NDArray[np.bool_] = (span >= 0) & (tokens <= highs[span])
    return wanted
