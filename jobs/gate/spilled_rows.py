"""Rows of one write that many tasks have: each stores its own in token order, and who writes merges them as a stream.

For engines whose tasks come with rows in no order and have no gate, as writers of Spark's data sources. A spill is a
file of Arrow below the root of the cluster, of at most `RUN_ROWS` rows; it is deleted when the write has ended. Nobody
but this write reads it, so that a task that is tried again, or fails, leaves nothing that could be seen.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_conform import conform_arrow, conform_arrow_keys
from epochlake.jobs.gate.arrow_rows import hashes
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.row_digests import DigestedColumn, RowDigest, digested_columns
from epochlake.jobs.replicas.encoding import ROW_DIGEST
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.staging import Announce, StagedFile, stage_here, wrapped
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import places
from epochlake.metastore.storage.failures import MissingFile
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray

RUN_ROWS = 250_000
"""So many rows a task sorts at once."""

KEPT_MS = 7 * 24 * 3600 * 1000
"""So long spills stay when nobody deletes them: no write takes a week."""

BATCH_ROWS = 16_384
"""So many rows of each spill are held while they are merged."""


class Spill(msgspec.Struct, frozen=True):
    """A file of rows in token order. `firsts`: the first token of each of its batches."""

    uri: str
    rows: int
    firsts: tuple[int, ...]


def spill(
    storage: Storage,
    place: str,
    name: str,
    table: Table,
    batches: Iterable[pa.RecordBatch],
    *,
    deleted: bool = False,
    changes: bool = False,
) -> list[Spill]:
    """Store the rows of a task in files at a place, which are called by `name` and a number. With `deleted` their keys.

    Those of a batch of `changes` say that they are deleted, or not, themselves.

    Raises InvalidRequest for rows that do not fit the table, StorageUnavailable.
    """
    spills: list[Spill] = []
    held: list[pa.RecordBatch] = []
    try:
        for batch in batches:
            held.append(batch)
            if sum(one.num_rows for one in held) >= RUN_ROWS:
                spills.append(_stored(storage, f"{place}/{name}-{len(spills)}.arrow", table, held, deleted, changes))
                held = []
        if sum(one.num_rows for one in held):
            spills.append(_stored(storage, f"{place}/{name}-{len(spills)}.arrow", table, held, deleted, changes))
    except BaseException:
        # Whoever aborts the write is not told of the files of a task that has failed.
        with suppress(StorageUnavailable):
            for one in spills:
                storage.delete_file(one.uri)
        raise
    return spills


def _stored(
    storage: Storage, uri: str, table: Table, held: list[pa.RecordBatch], deleted: bool, changes: bool
) -> Spill:
    given = pa.Table.from_batches(held)
    rows = conform_arrow_keys(given, table) if deleted else conform_arrow(given, table)
    tokens = hashes(rows.select(list(table.primary_key)))
    order = np.argsort(tokens, kind="stable")
    rows = rows.take(pa.array(order)).combine_chunks().append_column(TOKEN, pa.array(tokens[order]))
    if changes:
        rows = rows.append_column(DELETED, pa.array(np.full(rows.num_rows, deleted)))
    firsts = []
    with storage.new_file(uri) as file, pa.ipc.new_file(file, rows.schema) as writer:
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            writer.write_batch(batch)
            firsts.append(int(batch.column(TOKEN)[0].as_py()))
    return Spill(uri, rows.num_rows, tuple(firsts))


class SpilledRows:
    """The rows of spills, merged in token order whenever they are read: a batch of each spill is in memory."""

    def __init__(self, storage: Storage, spills: Sequence[Spill], windows: tuple[Interval, ...] | None = None) -> None:
        self._storage = storage
        self._spills = spills
        self._windows = windows

    def stage(
        self, plan: StagingPlan, *, digest: RowDigest | None = None, announce: Announce | None = None
    ) -> list[StagedFile]:
        rows = self.batches() if digest is None else (_digested(batch, digest) for batch in self.batches())
        return stage_here(plan, rows, digested=digest is not None, announce=announce)

    def counted(self, digest: RowDigest) -> Count:
        rows, total = 0, np.int64(0)
        with np.errstate(over="ignore"):
            for batch in self.batches():
                rows += batch.num_rows
                total += _digests(batch, digest).sum(dtype=np.int64)
        return Count(rows, wrapped(int(total)))

    def within(self, windows: Collection[Interval]) -> SpilledRows:
        return SpilledRows(self._storage, self._spills, tuple(merged(windows)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with their tokens, in token order."""
        for batch in self._merged():
            if self._windows is None:
                yield batch
                continue
            tokens = batch.column(TOKEN).to_numpy()
            inside = np.zeros(len(tokens), dtype=bool)
            for low, high in self._windows:
                inside |= (tokens >= low) & (tokens <= high)
            if inside.any():
                yield batch.filter(pa.array(inside))

    def _merged(self) -> Iterator[pa.RecordBatch]:
        # Between two cuts each spill has at most a few batches; rows with one token are never parted.
        firsts = sorted(token for one in self._spills for token in one.firsts)
        cuts = sorted(set(firsts[4::4]))
        with ExitStack() as stack:
            runs = [_Run(stack, self._storage, one) for one in self._spills]
            for cut in [*cuts, None]:
                parts = [part for run in runs for part in run.up_to(cut)]
                if parts:
                    rows = pa.Table.from_batches(parts)
                    order = np.argsort(rows.column(TOKEN).to_numpy(), kind="stable")
                    yield from rows.take(pa.array(order)).combine_chunks().to_batches()


class NewSpilledRows:
    """Spilled rows that are to be the rows of a table: only their keys, and those of deletes, are in memory."""

    def __init__(self, storage: Storage, place: str, spills: Sequence[Spill], table: Table) -> None:
        self._rows = SpilledRows(storage, spills)
        self._storage = storage
        self._place = place
        self._spills = spills
        self._table = table

    def keys(self) -> pa.Table:
        """Their primary keys."""
        names = list(self._table.primary_key)
        fields = [pa.field(one.name, arrow_type(one.type)) for one in self._table.columns if one.name in names]
        batches = [batch.select(names) for batch in self._rows.batches()]
        return pa.Table.from_batches(batches) if batches else pa.schema(fields).empty_table().select(names)

    def count_outside(self, where: pc.Expression) -> int:
        """For how many of them a condition is not true."""
        return sum(batch.num_rows - pa.table(batch).filter(where).num_rows for batch in self._rows.batches())

    @property
    def columns(self) -> tuple[DigestedColumn, ...]:
        """What they are digested by."""
        return digested_columns(self._table)

    def counted(self, columns: tuple[DigestedColumn, ...] | None) -> Count:
        """How many they are, and the sum of their digests. Earlier versions had the columns of their time."""
        return self._rows.counted(RowDigest(columns or self.columns, self._table, self._table))

    def with_deletes(self, deletes: pa.Table) -> SpilledRows:
        """They, and deletes of other keys, as a batch of changes."""
        name = f"deletes-{uuid.uuid4().hex[:8]}"
        self._storage.create_directory(self._place, parents=True)
        gone = spill(self._storage, self._place, name, self._table, deletes.to_batches(), deleted=True, changes=True)
        return SpilledRows(self._storage, [*self._spills, *gone])


class _Run:
    """One spill, read forward."""

    def __init__(self, stack: ExitStack, storage: Storage, of: Spill) -> None:
        filesystem, path = storage.filesystem(of.uri)
        self._file = pa.ipc.open_file(stack.enter_context(filesystem.open_input_file(path)))
        self._next = 0
        self._held: pa.RecordBatch | None = None

    def up_to(self, cut: int | None) -> Iterator[pa.RecordBatch]:
        """The rows that were not read yet, with tokens before the cut; None: all."""
        while True:
            if self._held is None:
                if self._next == self._file.num_record_batches:
                    return
                self._held = self._file.get_batch(self._next)
                self._next += 1
            tokens = self._held.column(TOKEN).to_numpy()
            count = len(tokens) if cut is None else int(np.searchsorted(tokens, cut))
            if count:
                yield self._held.slice(0, count)
            if count < len(tokens):
                self._held = self._held.slice(count)
                return
            self._held = None


def _digested(batch: pa.RecordBatch, digest: RowDigest) -> pa.RecordBatch:
    return batch.append_column(ROW_DIGEST, pa.array(_digests(batch, digest)))


def _digests(batch: pa.RecordBatch, digest: RowDigest) -> NDArray[np.int64]:
    return digest.of_arrow(pa.Table.from_batches([batch]))


def forget_spills(storage: Storage, place: str) -> None:
    """Delete what tasks have stored at a place, those that failed as well. Vacuum deletes what cannot be now."""
    local = places.local_path(place)
    with suppress(StorageUnavailable):
        if local is not None:
            storage.within_deadline("delete", place, lambda: storage.delete_tree(local))
            return
        for entry in storage.list_files(place):
            storage.delete_file(places.join(place, entry.name))


def forget_old_spills(storage: Storage, root_spills: str, older_than_ms: int) -> None:
    """Delete spills of writes that have ended without deleting them: those of which nothing was stored for a week.

    Raises StorageUnavailable when it cannot be told which there are.
    """
    newest: dict[str, int] = {}
    try:
        listed = storage.list_files(root_spills)
    except MissingFile:
        return
    for entry in listed:
        write = entry.name.partition("/")[0]
        newest[write] = max(newest.get(write, 0), entry.modified_ms)
    for write, modified in newest.items():
        if modified < older_than_ms - KEPT_MS:
            forget_spills(storage, places.join(root_spills, write))
