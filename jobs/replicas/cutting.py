"""Cutting a piece out of a data file: the rows of a range of tokens, as a file of their own.

A piece is named after what it holds, so whoever cuts it, from the file that was staged or from a piece of
that, makes the same rows under the same name, and one that is there already is as good as a new one. What a piece is
like (rows, tokens, times) is read from its own footer, so there is nothing to remember between cutting and committing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from epochlake.jobs.replicas.encoding import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from epochlake.jobs.replicas.files import DataFile, cut_id, id_in
from epochlake.jobs.replicas.footers import column_number, range_in_group
from epochlake.jobs.replicas.intervals import FilePart, meet, overlap
from epochlake.jobs.replicas.replica import ReplicaAddress, require_replica
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import DamagedBytes, require_intact, require_sealed, sealed_writer
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.deadlines import progress
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN, Interval

BATCH_ROWS = 1 << 15
"""Rows that are decoded at a time."""

T = TypeVar("T")


def cut(source: ReplicaAddress, part: FilePart, target: ReplicaAddress) -> DataFile:
    """Store the part on `target` (which may be the source) as a file of its own, invisible until it is committed.

    Its window is the part's. It has no row when the part has none. Memory: a row group of the source and one of the
    piece. Raises StorageUnavailable, WrongCluster; a piece is there whole or not at all.
    """
    require_replica(target)
    low, high = window = overlap((part.low, part.high), part.file.window)
    file_id = cut_id(part.file.origin, low, high)
    path = f"{part.file.path.rpartition('/')[0]}/{file_id}.parquet"
    uri = places.join(target.uri, path)
    there = described(target.storage, uri, path, part.file.label, window)
    # It counts as new from now on, so that no clean-up takes it before it is committed.
    if there is not None and target.storage.touch(uri):
        return there
    target.storage.create_directory(uri.rpartition("/")[0])
    _write_piece(source.storage, places.join(source.uri, part.file.path), part.file, window, uri)
    piece = described(target.storage, uri, path, part.file.label, window)
    if piece is None:
        raise StorageUnavailable(
            f"the piece {uri} cannot be read just after it was written", hint="Check the volume and retry"
        )
    return piece


def _write_piece(storage: Storage, source_uri: str, file: DataFile, window: Interval, uri: str) -> None:
    # Checksums of pages are not enough: a flipped bit in the header of a page makes rows vanish without an error.
    if require_sealed(storage, file, source_uri) is not None:
        require_intact(storage, file, source_uri)
    filesystem, path = storage.filesystem(source_uri)

    def open_source() -> pq.ParquetFile:
        return pq.ParquetFile(filesystem.open_input_file(path), page_checksum_verification=True)

    def write() -> None:
        with (
            _reading(storage, source_uri, open_source) as source,
            storage.new_file(uri) as sink,
            sealed_writer(sink, source.schema_arrow, id_in(uri)) as writer,
        ):
            for rows in _in_row_groups(_rows_within(storage, source, source_uri, window)):
                writer.write(rows)
                progress()

    storage.within_deadline("write", uri, write)


def _reading(storage: Storage, uri: str, call: Callable[[], T]) -> T:
    """`call()`, which reads the source of a piece: what hangs or fails there is the source's."""
    return storage.within_deadline("cut", uri, call)


def _rows_within(storage: Storage, source: pq.ParquetFile, uri: str, window: Interval) -> Iterator[pa.RecordBatch]:
    """The rows with a token in the window; row groups that cannot have any are not read."""
    with failures.naming("cut", uri):
        column = column_number(source.metadata, TOKEN)
        ranges = [range_in_group(source.metadata, group, column) for group in range(source.num_row_groups)]
    groups = [group for group, tokens in enumerate(ranges) if tokens is None or meet(tokens, window)]
    low, high = window
    # A group at a time: a reader of several keeps what it has read of all of them.
    for group in groups:
        batches = source.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False)
        while (batch := _reading(storage, uri, lambda: next(batches, None))) is not None:  # noqa: B023  called at once
            tokens = batch.column(TOKEN)
            kept = batch.filter(pc.and_(pc.greater_equal(tokens, low), pc.less_equal(tokens, high)))
            if kept.num_rows:
                yield kept


def _in_row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def described(storage: Storage, uri: str, path: str, label: str, window: Interval) -> DataFile | None:
    """The piece that is stored there, by its footer; None when there is none, or a torn one."""
    size = storage.size_of(uri)
    if size is None:
        return None
    filesystem, stored = storage.filesystem(uri)

    def read_footer() -> pq.FileMetaData:
        with filesystem.open_input_file(stored) as stream:
            return pq.read_metadata(stream)

    try:
        footer = storage.deadlines.within(uri, f"read {uri}", read_footer)
        tokens, times, tombstones = (_range_of(footer, name) for name in (TOKEN, WRITTEN_AT, DELETED))
    except failures.STORAGE_ERRORS:
        return None
    found = DataFile(
        file_id=id_in(path),
        label=label,
        path=path,
        size=size,
        rows=footer.num_rows,
        min_token=tokens[0] if tokens else window[0],
        max_token=tokens[1] if tokens else window[0],
        min_written_at=times[0] if times else 0,
        max_written_at=times[1] if times else 0,
        has_tombstones=bool(tombstones and tombstones[1]),
    )
    try:
        require_sealed(storage, found, uri)
    except DamagedBytes:
        return None
    return found


def _range_of(footer: pq.FileMetaData, name: str) -> Interval | None:
    """The least and the greatest value of a column, None when there is no row. Raises ValueError without statistics."""
    if footer.num_rows == 0:
        return None
    column = column_number(footer, name)
    ranges = [range_in_group(footer, group, column) for group in range(footer.num_row_groups)]
    known = [values for values in ranges if values is not None]
    if len(known) < len(ranges):
        raise ValueError(f"the column {name!r} has no statistics")
    return min(low for low, _ in known), max(high for _, high in known)
