"""The data files of the log's Delta table: which there are, what is in them, and how entries become one.

An entry may be stored more than once (two rewritings of the same files once both succeeded), and reading
makes one of it. Two entries of one epoch that are not the same are never passed over.
"""

from __future__ import annotations

import functools
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from epochlake.metastore.arrays import array_of
from epochlake.metastore.errors import HashMismatch, LogUnreadable, StorageUnavailable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.rewriting import NewFile
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of

FEW_ENTRIES = 64
"""So many at most are kept as bytes: what commits share in one append, not what is copied or compacted."""

SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("payload", pa.string(), nullable=False),
        pa.field("attachment", pa.binary()),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("state_id", pa.string(), nullable=False),
        pa.field("previous_state_id", pa.string(), nullable=False),
        pa.field("author", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("incarnation", pa.int32(), nullable=False),
        pa.field("format", pa.int32(), nullable=False),
        pa.field("previous_hash", pa.string(), nullable=False),
        pa.field("hash", pa.string(), nullable=False),
    ]
)


ROW_GROUP_ENTRIES = 512
"""So many entries are read to have the last one of a large file: every handle that is opened anew does."""


class LogFile(NamedTuple):
    """A data file of the log and the epochs that it holds, from its statistics."""

    path: str
    size: int
    rows: int | None
    first: int | None
    last: int | None

    def may_hold(self, after: int, up_to: int | None) -> bool:
        """Whether an epoch greater than `after`, and not greater than `up_to`, may be in it."""
        too_early = self.last is not None and self.last <= after
        too_late = up_to is not None and self.first is not None and self.first > up_to
        return not too_early and not too_late


def files_of(table: DeltaTable) -> list[LogFile]:
    """The live files of a version of the log. Raises what delta-rs and PyArrow raise, and KeyError."""
    actions = arrow(table.get_add_actions(flatten=True))
    columns = ("path", "size_bytes", "num_records", "min.epoch", "max.epoch")
    if not actions.num_rows:
        return []
    return [LogFile(*row) for row in zip(*(actions[name].to_pylist() for name in columns), strict=True)]


def read_entries(
    storage: Storage, uri: str, files: Sequence[LogFile], after: int = 0, up_to: int | None = None
) -> list[Entry]:
    """The entries in `files` with an epoch greater than `after` and at most `up_to`, in order, each of them once.

    Raises LogUnreadable that names the epochs of a file that cannot be read, or that are there with two contents.
    """
    if not files:
        return []
    parts = []
    for file in sorted(files, key=lambda file: file.first or 0):
        try:
            parts.append(_read_rows(storage, uri, file, after, up_to))
        except (OSError, pa.ArrowException, KeyError, StorageUnavailable) as error:
            raise _unreadable(uri, file, error) from error
    rows = pa.concat_tables(parts).sort_by("epoch")
    if after or up_to is not None:
        # Not by comparing with a number in Arrow, which would import pandas.
        epochs = rows["epoch"].to_pylist()
        first = bisect_right(epochs, after)
        rows = rows.slice(first, max(0, (len(epochs) if up_to is None else bisect_right(epochs, up_to)) - first))
    return distinct(from_arrow(rows))


def distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Entries in the order of their epochs, identical ones made one. Raises HashMismatch where two of them differ."""
    found: list[Entry] = []
    for entry in entries:
        if not found or found[-1].epoch != entry.epoch:
            found.append(entry)
        elif found[-1] != entry:
            error = HashMismatch(
                f"epoch {entry.epoch} is in the log twice, with the hashes {found[-1].hash} and {entry.hash}: "
                "two logs were mixed, or the log was altered",
                hint="Restore the log from a copy",
            )
            error.epochs = (entry.epoch, entry.epoch)
            raise error
    return found


def read_columns(storage: Storage, uri: str, paths: Sequence[str], columns: list[str]) -> pa.Table:
    """Some columns of data files, their pages' checksums verified. Raises what storage and PyArrow raise."""
    return read_columns_of(storage, uri, [LogFile(path, 0, None, None, None) for path in paths], columns)


def read_columns_of(storage: Storage, uri: str, files: Sequence[LogFile], columns: list[str]) -> pa.Table:
    """`read_columns` of files that hold what is said of them. Raises StorageDamaged where another one lies there."""
    filesystem, root = storage.filesystem(uri)
    parts = []
    for named in files:  # one by one, as pyarrow's datasets would import pandas
        with pq.ParquetFile(f"{root}/{named.path}", filesystem=filesystem, page_checksum_verification=True) as file:
            _require_named(uri, file.metadata, named)
            parts.append(file.read(columns=columns, use_threads=False))
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.concat_tables([part.select(columns).cast(schema) for part in parts]) if parts else schema.empty_table()


def _read_rows(storage: Storage, uri: str, named: LogFile, after: int, up_to: int | None) -> pa.Table:
    """The row groups of a data file that may hold an epoch greater than `after`, and not greater than `up_to`."""
    filesystem, root = storage.filesystem(uri)
    with pq.ParquetFile(f"{root}/{named.path}", filesystem=filesystem, page_checksum_verification=True) as file:
        spans = _require_named(uri, file.metadata, named)
        wanted = [
            group for group, span in enumerate(spans) if LogFile(named.path, 0, None, *span).may_hold(after, up_to)
        ]
        # A row group is small: handing its columns to Arrow's threads takes longer than decoding them.
        return file.read_row_groups(wanted, columns=SCHEMA.names, use_threads=False).select(SCHEMA.names).cast(SCHEMA)


def _require_named(uri: str, footer: pq.FileMetaData, named: LogFile) -> list[tuple[int, int] | tuple[None, None]]:
    """The first and last epochs of each row group, where the file holds what the log's statistics say of it.

    Another whole file of the log in its place would be read as if the entries of this one had never been: by those
    who have not seen them, and by whoever appends next. Raises StorageDamaged.
    """
    names = footer.schema.names
    if "epoch" not in names:
        raise KeyError("epoch")
    epoch = names.index("epoch")
    spans: list[tuple[int, int] | tuple[None, None]] = []
    for group in range(footer.num_row_groups):
        found = footer.row_group(group).column(epoch).statistics
        spans.append((found.min, found.max) if found is not None and found.has_min_max else (None, None))
    known = [span for span in spans if span[0] is not None]
    there: tuple[int | None, ...] = (footer.num_rows, None, None)
    if known and len(known) == len(spans):
        there = (footer.num_rows, min(first for first, _ in known), max(last for _, last in known))
    said = (named.rows, named.first, named.last)
    if any(one is not None and other is not None and one != other for one, other in zip(said, there, strict=True)):
        raise StorageDamaged(
            f"another file lies at {uri}/{named.path}: it holds {there[0]} entries, epochs {there[1]} to {there[2]}, "
            f"and {said[0]} of epochs {said[1]} to {said[2]} were put there"
        )
    return spans


def write_entries(storage: Storage, uri: str, entries: Sequence[Entry]) -> LogFile:
    """Store entries in a new data file, to be synced with the version that will name it. Raises StorageUnavailable."""
    data = encoded(entries)
    path = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    storage.write_bytes(f"{uri}/{path}", data)
    return LogFile(path, data.size, len(entries), entries[0].epoch, entries[-1].epoch)


def encoded(entries: Sequence[Entry]) -> pa.Buffer:
    """The bytes of a data file. Log members get what the root gets, so those of the last few entries stay."""
    if len(entries) > FEW_ENTRIES:
        return _encode(entries)
    with _encoding:  # several want the same at once
        return _kept(tuple(entries))


_encoding = threading.Lock()


@functools.lru_cache(maxsize=1)
def _kept(entries: tuple[Entry, ...]) -> pa.Buffer:
    return _encode(entries)


def _encode(entries: Sequence[Entry]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(
        to_arrow(entries), sink, compression="zstd", write_page_checksum=True, row_group_size=ROW_GROUP_ENTRIES
    )
    return sink.getvalue()


def write_anew(storage: Storage, uri: str, entries: list[Entry]) -> LogFile:
    """`write_entries` for entries that lie there already: read back, as the other files go. Raises LogUnreadable."""
    new = write_entries(storage, uri, entries)
    if read_entries(storage, uri, [new]) != entries:
        raise LogUnreadable(
            f"{uri}/{new.path} is not what was written to it, so the log was not changed", hint="Check the disk"
        )
    return new


def new_file(file: LogFile) -> NewFile:
    """A stored data file as a commit puts it in, with the statistics that readers need."""
    return NewFile(file.path, file.size, file.rows or 0, {"epoch": file.first or 0}, {"epoch": file.last or 0})


def discard(storage: Storage, uri: str, stored: NewFile) -> None:
    """Delete a data file that no commit names and none ever will, so that nobody takes its entries for what a torn
    commit named, and nothing stays that nobody needs. Never raises.
    """
    with suppress(StorageUnavailable):
        storage.delete_file(f"{uri}/{stored.path}")


def arrow(actions: object) -> pa.Table:
    """delta-rs' table as PyArrow's, by the C stream: `pa.table(…)` would import pandas, which takes 200 ms."""
    return pa.RecordBatchReader.from_stream(actions).read_all()


def to_arrow(entries: Sequence[Entry]) -> pa.Table:
    """Entries as rows of the log's table."""
    columns = [array_of([getattr(entry, field.name) for entry in entries], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def from_arrow(rows: pa.Table) -> list[Entry]:
    """What `to_arrow` was given."""
    columns = [
        rows[name].cast(pa.int64()).to_pylist() if name == "committed_at" else rows[name].to_pylist()
        for name in SCHEMA.names
    ]
    return [Entry(*values) for values in zip(*columns, strict=True)]


def _unreadable(uri: str, file: LogFile, cause: Exception) -> LogUnreadable:
    error = LogUnreadable(
        f"epochs {file.first} to {file.last} of the log cannot be read from {uri}/{file.path}: {words_of(cause)}",
        hint="Run `epochlake log heal`, which looks for them in other files, or restore the file from a copy "
        "of the log",
    )
    if file.first is not None and file.last is not None:
        error.epochs = (file.first, file.last)
    return error
