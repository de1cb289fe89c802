"""The rows of a change stream, as batches of Arrow: of each write its rows, in the order of the index.

The order of the index is the order in which writes reached their level. Of two that ran at the same time the older
one, by its time of writing, may come second; reads never show its rows then. Such a change is `_late`: a newer one of
its key comes before it. Which these are follows from the index alone, so every reader is told the same: an entry is
compared with those before it that are newer, which as a rule are none.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.change_entries import ChangeEntry
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.file_columns import FileColumns, columns_to_read
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.footer_groups import MAGIC
from epochlake.jobs.replicas.intervals import meet
from epochlake.jobs.replicas.row_values import bare_rows
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import DamagedBytes, read_seal, require_intact
from epochlake.jobs.replicas.superseding import has_newer, judged_by
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import failures
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of
from epochlake.placement.rejections import Code
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray

CHANGE = "_change"
POSITION = "_position"
LATE = "_late"
CHANGE_COLUMNS = (CHANGE, WRITTEN_AT, POSITION, LATE)

UPSERT = "upsert"
"""A row that was written. Whether there was one with its key before the stream does not say."""

DELETE = "delete"
"""A key whose row was deleted, if there was one; the other columns are null."""

INSERT = "insert"
"""A row of a table that is append-only: it takes the place of none."""


class ChangesDamaged(StorageUnavailable):
    """The file of some changes is not what was written there: missing, torn, another one, or with other bytes."""

    exit_code = 1

    def __init__(self, table: str, position: int, uri: str, damage: str) -> None:
        super().__init__(
            f"the changes of {table} at position {position} cannot be shown, as their file {uri} is damaged: {damage}",
            hint=f"Run `epochlake changes keep-up {table} --check-bytes`: it copies the file from a replica that has "
            "it; where none has, restore it, or read the whole table and go on behind this position",
        )


class Wanted(NamedTuple):
    """What of the changes is read: these columns of the table, as `schema` declares them; tokens in `within` only."""

    table: Table
    schema: pa.Schema
    within: Sequence[Interval] | None = None

    @property
    def batch_schema(self) -> pa.Schema:
        """The table's columns, then what a change says of itself."""
        return pa.schema([*self.schema, *CHANGE_SCHEMA])


CHANGE_SCHEMA = pa.schema(
    [
        pa.field(CHANGE, pa.string()),
        pa.field(WRITTEN_AT, pa.timestamp("us", "UTC")),
        pa.field(POSITION, pa.int64()),
        pa.field(LATE, pa.bool_()),
    ]
)


def changes_of(storage: Storage, index: ChangeIndex, entry: ChangeEntry, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The changes of one entry, by token. Raises ChangesGone for one that is not kept, StorageUnavailable."""
    for file in sorted(entry.files, key=lambda one: (one.min_token, one.file_id)):
        if wanted.within is not None and not any(meet(file.extent, window) for window in wanted.within):
            continue
        names = [TOKEN, WRITTEN_AT, DELETED, *wanted.schema.names]
        rows = _read(storage, index, entry, file, names, wanted.table)
        late = _late(storage, index, entry, file, wanted.table)
        if wanted.within is not None:
            inside = _inside(rows.column(TOKEN).to_numpy(), wanted.within)
            rows, late = rows.filter(pa.array(inside)), late[inside]
        yield from _told(rows, late, entry.position, wanted)


def _told(rows: pa.Table, late: NDArray[np.bool_], position: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    deleted = rows.column(DELETED).to_numpy().astype(bool)
    written = INSERT if wanted.table.append_only else UPSERT
    with _as_it_was_known(wanted.table, position):
        columns = [rows.column(field.name).cast(field.type) for field in wanted.schema]
    columns += [
        pa.chunked_array([pa.array(np.where(deleted, DELETE, written), pa.string())]),
        rows.column(WRITTEN_AT).cast(pa.timestamp("us", "UTC")),
        pa.chunked_array([pa.array(np.full(rows.num_rows, position), pa.int64())]),
        pa.chunked_array([pa.array(late, pa.bool_())]),
    ]
    yield from pa.Table.from_arrays(columns, schema=wanted.batch_schema).combine_chunks().to_batches()


def _late(storage: Storage, index: ChangeIndex, entry: ChangeEntry, file: DataFile, table: Table) -> NDArray[np.bool_]:
    """Of each row of a file, whether an entry before has a newer one of its key."""
    none = np.zeros(file.rows, dtype=bool)
    if table.append_only:
        return none
    overtaken = [
        (other, newer)
        for other in index.entries(index.before_entry(entry, file.min_written_at), entry.position - 1)
        for newer in other.files
        if newer.max_written_at >= file.min_written_at and meet(newer.extent, file.extent)
    ]
    if not overtaken:
        return none
    told_by = list(judged_by(table))
    names = [TOKEN, WRITTEN_AT, DELETED, *told_by]
    parts = [_read(storage, index, entry, file, names, table)]
    parts += [_read(storage, index, other, newer, names, table) for other, newer in overtaken]
    ids = [file.file_id, *(newer.file_id for _, newer in overtaken)]
    ranks = {file_id: rank for rank, file_id in enumerate(sorted(ids))}
    rank = np.repeat([ranks[file_id] for file_id in ids], [part.num_rows for part in parts])
    tokens = np.concatenate([part.column(TOKEN).to_numpy() for part in parts])
    deleted = np.concatenate([part.column(DELETED).to_numpy().astype(bool) for part in parts])
    written = np.concatenate([part.column(WRITTEN_AT).to_numpy() for part in parts])
    order = np.lexsort((rank, deleted, written, tokens))
    keys = pa.concat_tables([bare_rows(part.select(told_by)) for part in parts])
    newer_rows: NDArray[np.bool_] = has_newer(keys, tokens, order)[: file.rows]
    return newer_rows


def _read(
    storage: Storage, index: ChangeIndex, entry: ChangeEntry, file: DataFile, names: Sequence[str], wanted: Table
) -> pa.Table:
    """Columns of a file, which is the one that was written and has every page as it was; what it does not have is null.

    Of an altered table a change is shown as the table is now. Raises ChangesDamaged, ChangesGone, StorageUnavailable.
    """
    uri, known_as = index.data_uri(file), columns_to_read(wanted)
    try:
        stored = _proved(storage, file, uri, names, known_as)
    except (DamagedBytes, failures.MissingFile) as error:
        if entry.position <= index.floor():
            raise gone(index) from error
        damage = error.damage if isinstance(error, DamagedBytes) else "the file is not there"
        raise ChangesDamaged(wanted.full_name, entry.position, uri, damage) from error
    if known_as is not None:
        with _as_it_was_known(wanted, entry.position):
            return known_as.as_table_is_now(stored, names)
    there = set(stored.column_names)
    return pa.table(
        {name: stored.column(name) if name in there else pa.nulls(stored.num_rows) for name in dict.fromkeys(names)}
    )


@contextmanager
def _as_it_was_known(table: Table, position: int) -> Iterator[None]:
    """Who goes on reading has the columns that the table had when he began: a value that they cannot hold, as a wider
    type came since, is no damage of the file.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        raise Rejected(
            Code.SCHEMA_CHANGED,
            f"columns of {table.full_name} have got wider types since these changes were asked for, and the write at "
            f"position {position} has a value that those of before cannot hold: {words_of(error)}",
            hint="Ask for the changes again, after the `bookmark` of these",
        ) from error


def _proved(storage: Storage, file: DataFile, uri: str, names: Sequence[str], known_as: FileColumns | None) -> pa.Table:
    """Columns of a file whose seal holds, as far as it has them, and as it calls them.

    The footer that was proved is the one that pages are found by: it is read once. Raises DamagedBytes for a file that
    has other bytes, MissingFile.
    """
    seal = read_seal(storage, file, uri)
    filesystem, path = storage.filesystem(uri)

    def read() -> pa.Table:
        footer = pq.read_metadata(io.BytesIO(MAGIC + seal.footer))
        stream = filesystem.open_input_file(path)
        with pq.ParquetFile(stream, metadata=footer, page_checksum_verification=True) as parquet:
            there = set(parquet.schema_arrow.names)
            asked = [*names, DELETED] if known_as is not None else names
            stored = dict.fromkeys(name if known_as is None else known_as.stored_name(name) for name in asked)
            return parquet.read(columns=[name for name in stored if name in there], use_threads=False)

    try:
        rows = storage.within_deadline("read", uri, read)
    except (failures.MissingFile, failures.StorageLate):
        raise
    except StorageUnavailable:
        # What the reader of Parquet says is no word on whether storage answers: the bytes themselves tell.
        require_intact(storage, file, uri)
        raise
    if rows.num_rows != file.rows:
        raise DamagedBytes(uri, f"it has {rows.num_rows} rows of {file.rows}")
    return rows


def gone(index: ChangeIndex) -> ChangesGone:
    """What a reader is told who comes too late."""
    return ChangesGone(
        f"the changes up to position {index.floor()} of {index.uri} are not kept any more", index.tail().position
    )


def _inside(tokens: NDArray[np.int64], windows: Sequence[Interval]) -> NDArray[np.bool_]:
    inside = np.zeros(len(tokens), dtype=bool)
    for low, high in windows:
        inside |= (tokens >= low) & (tokens <= high)
    return inside
