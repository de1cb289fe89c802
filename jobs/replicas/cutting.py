"""Cutting a piece out of a data file: the rows of a range of tokens, as a file of their own.

A piece is named after what it holds, so whoever cuts it, from the file that was staged or from a piece of
that, makes the same rows under the same name, and one that is there already is as good as a new one. What a piece is
like (rows, tokens, times) is read from its own footer, so there is nothing to remember between cutting and committing.

Row groups that lie within the range are copied as they are; only those that cross its ends are decoded
(docs/decisions/055-row-groups-are-copied.md). Files of earlier versions are decoded altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from epochlake.jobs.replicas.derived_tokens import key_noted, with_tokens
from epochlake.jobs.replicas.files import DataFile, cut_id, id_in
from epochlake.jobs.replicas.footer_groups import (
    MAGIC,
    TAIL,
    Footer,
    Group,
    UnknownLayout,
    footer_of,
    moved_to,
    read_footer,
)
from epochlake.jobs.replicas.footers import column_number, range_in_group
from epochlake.jobs.replicas.intervals import FilePart, meet, overlap
from epochlake.jobs.replicas.replica import ReplicaAddress, require_replica
from epochlake.jobs.replicas.row_groups import in_row_groups
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealed_groups import SealedGroups, encoded_group, schema_of
from epochlake.jobs.replicas.sealing import (
    DamagedBytes,
    intact_chunks,
    read_seal,
    require_intact,
    require_sealed,
    sealed_writer,
)
from epochlake.jobs.replicas.seals import SealedGroup, hexdigest
from epochlake.jobs.replicas.thrift_compact import MalformedThrift
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
    # What an earlier try has brought may have rotted since, and the source may go once it has been brought. Of its own
    # file a replica has cut the piece a moment ago.
    if there is not None and source.uri != target.uri and not _is_intact(target.storage, there, uri):
        there = None
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


def _is_intact(storage: Storage, piece: DataFile, uri: str) -> bool:
    try:
        require_intact(storage, piece, uri)
    except DamagedBytes:
        return False
    return True


def _write_piece(storage: Storage, source_uri: str, file: DataFile, window: Interval, uri: str) -> None:
    groups = _groups_to_copy(storage, source_uri, file, window)
    if groups is None:
        _write_decoded(storage, source_uri, file, window, uri)
    else:
        _write_copied(storage, source_uri, groups, window, uri)


class _Source(NamedTuple):
    """A file whose row groups can be copied: its footer, and each row group that has rows of a window, in order, with
    its seal, and whether all of its rows are in the window. `key`: the column whose hashes are the tokens left out.
    """

    footer: Footer
    groups: list[tuple[Group, SealedGroup, bool]]
    key: str | None


def _groups_to_copy(storage: Storage, uri: str, file: DataFile, window: Interval) -> _Source | None:
    """The row groups that have rows of a window; None where none is copied: the file has no digests of row groups, none
    lies within the window, or what the footer says of them is not known to hold elsewhere.
    """
    seal = read_seal(storage, file, uri)
    if seal.groups is None:
        return None
    tokens, key = _tokens_of_groups(seal.footer, uri)
    low, high = window
    whole = [span is not None and low <= span[0] and span[1] <= high for span in tokens]
    if not any(whole):
        return None
    try:
        footer = read_footer(seal.footer[:-TAIL])
        if [(one.start, one.size) for one in footer.groups] != [(one.start, one.size) for one in seal.groups]:
            return None
        if not all(whole) and not _is_stored_alike(footer):
            return None
    except (UnknownLayout, MalformedThrift):
        return None
    found = zip(footer.groups, seal.groups, whole, tokens, strict=True)
    touched = [(group, one, copied) for group, one, copied, span in found if span is None or meet(span, window)]
    return _Source(footer, touched, key)


def _tokens_of_groups(footer: bytes, uri: str) -> tuple[list[Interval | None], str | None]:
    """Between which tokens each row group lies, and the column whose hashes are those left out, if some are."""
    with failures.naming("cut", uri):
        said = pq.read_metadata(pa.BufferReader(MAGIC + footer))
        column = column_number(said, TOKEN)
        return [range_in_group(said, group, column) for group in range(said.num_row_groups)], key_noted(said.metadata)


def _is_stored_alike(footer: Footer) -> bool:
    """Whether rows that are encoded now have the columns of the file, stored as they are there."""
    with pq.ParquetFile(pa.BufferReader(MAGIC + footer_of(footer, [], {}))) as none:
        return schema_of(none.schema_arrow) == footer.schema


def _write_copied(storage: Storage, source_uri: str, source: _Source, window: Interval, uri: str) -> None:
    """Copy the row groups that lie within the window, and encode what others have of it.

    Of the source only these row groups are read, each once: what is verified is what is written, and a piece that has
    other bytes in it never gets its name.
    """
    filesystem, path = storage.filesystem(source_uri)

    def write() -> None:
        with (
            _reading(storage, source_uri, lambda: filesystem.open_input_file(path)) as stream,
            storage.new_file(uri) as sink,
        ):
            target = SealedGroups(sink, source.footer, id_in(uri), source.key)
            for group, seal, whole in source.groups:
                chunks = _chunks(storage, stream, seal, source_uri)
                if whole:
                    target.add(chunks, group, seal.digest)
                    continue
                rows = _decoded(source, group, chunks, window, source_uri)
                if rows.num_rows:
                    data, encoded = encoded_group(rows, source.key)
                    target.add([data], encoded, hexdigest([data]))
                progress()
            target.close()

    storage.within_deadline("write", uri, write)


def _chunks(storage: Storage, stream: pa.NativeFile, seal: SealedGroup, uri: str) -> Iterator[bytes]:
    """The bytes of a row group; what hangs or fails there is the source's. Raises DamagedBytes at their end."""
    chunks = intact_chunks(stream, seal, uri)
    while (chunk := _reading(storage, uri, lambda: next(chunks, None))) is not None:
        yield chunk


def _decoded(source: _Source, group: Group, chunks: Iterable[bytes], window: Interval, uri: str) -> pa.Table:
    """The rows of a row group with a token in the window."""
    end = footer_of(source.footer, [moved_to(group, len(MAGIC))], {})
    stored = pa.BufferReader(b"".join([MAGIC, *chunks, end]))
    low, high = window
    with failures.naming("cut", uri), pq.ParquetFile(stored, page_checksum_verification=True) as alone:
        rows = with_tokens(alone.read(use_threads=False), source.key)
    tokens = rows.column(TOKEN)
    return rows.filter(pc.and_(pc.greater_equal(tokens, low), pc.less_equal(tokens, high)))


def _write_decoded(storage: Storage, source_uri: str, file: DataFile, window: Interval, uri: str) -> None:
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
            sealed_writer(sink, source.schema_arrow, id_in(uri), key_noted(source.metadata.metadata)) as writer,
        ):
            for rows in in_row_groups(_rows_within(storage, source, source_uri, window)):
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
        key = key_noted(source.metadata.metadata)
    groups = [group for group, tokens in enumerate(ranges) if tokens is None or meet(tokens, window)]
    low, high = window
    # A group at a time: a reader of several keeps what it has read of all of them.
    for group in groups:
        batches = source.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False)
        while (batch := _reading(storage, uri, lambda: next(batches, None))) is not None:  # noqa: B023  called at once
            rows = with_tokens(pa.Table.from_batches([batch]), key)
            tokens = rows.column(TOKEN)
            yield from rows.filter(pc.and_(pc.greater_equal(tokens, low), pc.less_equal(tokens, high))).to_batches()


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
