"""What a staging task does: rows of some ranges, in token order, become Parquet files stored on several replicas.

One pass with little memory. A file is open for the range at hand, or for several that have few rows (sharing.py); rows
collect until they make a row group (row_groups.py); when the range ends or the file is large enough, its bytes are
stored on each replica. Runs on executors: it imports no Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas.file_columns import file_columns
from epochlake.jobs.replicas.files import directory_of, new_file_id, path_of
from epochlake.jobs.replicas.generated_rows import NotGenerated, completed
from epochlake.jobs.replicas.replica import ReplicaAddress, require_replica
from epochlake.jobs.replicas.row_checks import violation
from epochlake.jobs.replicas.row_groups import RowGroups
from epochlake.jobs.replicas.row_values import bare_rows, shown_rows
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import SealedWriter
from epochlake.jobs.replicas.sharing import shared
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.jobs.workers.background import Background, Outcome
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.metadata.placements import index_of
from epochlake.metastore.storage import places
from epochlake.metastore.storage.failures import StorageLate
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN
from numpy.typing import NDArray

ROW_DIGEST = "_row_digest"
"""A column that a named batch's rows come with: the digest of each row. It is added up for each file, not stored."""

RESULT = pa.schema(
    [
        ("file_id", pa.string()),
        ("label", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("min_token", pa.int64()),
        ("max_token", pa.int64()),
        ("stored", pa.list_(pa.int64())),
        ("failed", pa.list_(pa.int64())),
        ("reasons", pa.list_(pa.string())),
        ("refused", pa.string()),
        ("digest", pa.int64()),
        ("tombstones", pa.bool_()),
    ]
)
RESULT_DDL = (
    "file_id string, label string, size bigint, rows bigint, min_token bigint, max_token bigint, "
    "stored array<bigint>, failed array<bigint>, reasons array<string>, refused string, digest bigint, "
    "tombstones boolean"
)
"""A row for each file; or one with nothing but `refused`, when the rows cannot be written: why, and in a second line
what can be done about it.
"""


class RowsRefused(Exception):
    """The rows themselves cannot be written. Crosses to the driver as a value: trying the task again would not help.

    `hint`: what can be done about it.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def encode_rows(
    plan: StagingPlan,
    batches: Iterable[pa.RecordBatch],
    announce: Callable[[Sequence[pa.RecordBatch]], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows with `_token`, in token order, in; rows of RESULT out.

    Rows that come with `_deleted` say each by itself whether it is a tombstone; others are what the plan says.
    `announce` is told of all that is stored while the replicas' disks take it, and has the root's disk have the copies.
    """
    replicas = Replicas(plan.storage, plan.kept_at)
    routing, batches = shared(plan, batches)
    plan = msgspec.structs.replace(plan, routing=routing)
    stored: list[StoreOutcome] = []
    try:
        current = None
        for index, rows in _by_range(batches, plan.routing.lows):
            if current is None or current.index != index:
                if current is not None:
                    stored += current.close()
                current = RangeEncoder(plan, index, replicas)
            stored += current.take(rows)
        if current is not None:
            stored += current.close()
        # Nothing is told before all of it is on the disks: one group, synced while the next file was being encoded.
        told = [one.told({}) for one in stored]
        not_synced = replicas.sync(None if announce is None else partial(announce, told))
        yield from ([file.told(not_synced) for file in stored] if not_synced else told)
    except RowsRefused as refusal:
        for _ in batches:  # Spark expects its input to be read
            pass
        yield _result(refused=f"{refusal}\n{refusal.hint}")
    finally:
        replicas.close()


def _by_range(batches: Iterable[pa.RecordBatch], lows: NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut batches where the range changes."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ranges = index_of(lows, batch.column(TOKEN).to_numpy())
        starts = [0, *(np.flatnonzero(np.diff(ranges)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(starts):
            yield int(ranges[start]), batch.slice(start, end - start)


class StoreOutcome(msgspec.Struct, frozen=True):
    """A file, the replicas that it was stored on, and those that failed, with the reason."""

    file_id: str
    label: str
    size: int
    rows: int
    min_token: int
    max_token: int
    targets: tuple[VolumeId, ...]
    failed: dict[VolumeId, str]
    digest: int
    tombstones: bool

    def told(self, not_synced: Mapping[VolumeId, str]) -> pa.RecordBatch:
        """The row of RESULT. What a replica has not on its disk it has not stored."""
        failed = {volume: reason for volume, reason in not_synced.items() if volume in self.targets} | self.failed
        return _result(
            file_id=self.file_id,
            label=self.label,
            size=self.size,
            rows=self.rows,
            min_token=self.min_token,
            max_token=self.max_token,
            digest=self.digest,
            tombstones=self.tombstones,
            stored=[volume for volume in self.targets if volume not in failed],
            failed=list(failed),
            reasons=list(failed.values()),
        )


class RangeEncoder:
    """Makes the files of one range from its rows in token order."""

    def __init__(self, plan: StagingPlan, index: int, replicas: Replicas) -> None:
        self.index = index
        self._plan = plan
        self._label = plan.routing.labels[index]
        self._targets = plan.routing.replicas(index)
        if not self._targets:
            named = f"range {self._label} of {plan.table.full_name}"
            raise RowsRefused(f"there are rows for {named}, and no replica for it")
        self._replicas = replicas
        self._waiting = RowGroups()
        self._file: OpenFile | None = None
        self._last: pa.Table | None = None
        self._digest = np.int64(0)

    def take(self, rows: pa.RecordBatch) -> Iterator[StoreOutcome]:
        for group in self._waiting.take(rows):
            self._encode(group)
            if self._file is not None and self._file.size >= self._plan.target_file_bytes:
                yield self._store()

    def close(self) -> Iterator[StoreOutcome]:
        for group in self._waiting.rest():
            self._encode(group)
        if self._file is not None:
            yield self._store()

    def _encode(self, rows: pa.Table) -> None:
        """Make these a row group of the open file."""
        rows, beside = _generated(rows, self._plan)
        _refuse_nulls(rows, self._plan)
        if not self._plan.table.append_only and not self._plan.deleted:
            self._last = _refuse_duplicates(rows, self._last, self._plan.table)
        if ROW_DIGEST in rows.column_names:
            with np.errstate(over="ignore"):  # a sum that wraps around is what it is to be
                self._digest += rows.column(ROW_DIGEST).to_numpy().sum(dtype=np.int64)
            rows = rows.drop_columns([ROW_DIGEST])
        rows = _with_system_columns(rows, self._plan)
        for field, values in beside.items():
            rows = rows.append_column(field, values)
        _refuse_violations(rows, self._plan)
        if self._file is None:
            self._file = OpenFile(rows.schema, new_file_id())
        self._file.write(rows)

    def _store(self) -> StoreOutcome:
        """Store the open file on each replica of the range."""
        assert self._file is not None
        file, self._file = self._file, None
        digest, self._digest = self._digest, np.int64(0)
        file_id, data = file.file_id, file.finish()
        return StoreOutcome(
            file_id=file_id,
            label=self._label,
            size=data.size,
            rows=file.rows,
            min_token=file.min_token,
            max_token=file.max_token,
            targets=tuple(one.volume_id for one in self._targets),
            failed=self._replicas.store(self._targets, self._label, file_id, data),
            digest=int(digest),
            tombstones=file.tombstones,
        )


class OpenFile:
    """A Parquet file that grows in memory, a row group at a time. `key` as for `SealedWriter`."""

    def __init__(self, schema: pa.Schema, file_id: str, key: str | None = None) -> None:
        self.file_id = file_id
        self.rows = 0
        self.tombstones = False
        self.min_token = self.max_token = 0
        self._sink = pa.BufferOutputStream()
        self._writer = SealedWriter(self._sink, schema, file_id, key)

    @property
    def size(self) -> int:
        return self._writer.size

    def write(self, rows: pa.Table) -> None:
        tokens = rows.column(TOKEN)
        if self.rows == 0:
            self.min_token = tokens[0].as_py()
        self.max_token = tokens[-1].as_py()
        self.tombstones = self.tombstones or bool(pc.any(rows.column(DELETED)).as_py())
        self.rows += rows.num_rows
        self._writer.write(rows)

    def finish(self) -> pa.Buffer:
        self._writer.close()
        return self._sink.getvalue()


class Replicas:
    """The replicas that a task stores files on. One whose storage has failed is not tried again by this task.

    What is stored is synced in the background, while the next file is made; `sync` waits for all of it. Each file is
    stored in the directory `kept_at` as well, if there is one. Where that fails there is no copy, and whoever needs it
    makes it; where it hangs the task fails.
    """

    def __init__(self, storage: Storage, kept_at: str = "") -> None:
        self._storage = storage
        self._kept_at = kept_at
        self._copying = bool(kept_at)
        self._last: dict[VolumeId, str] = {}
        self._last_copy = ""
        self._copies: list[tuple[str, Outcome[None]]] = []
        self._checked: dict[str, str] = {}
        self._directories: dict[VolumeId, set[str]] = defaultdict(set)
        self._syncs: list[tuple[VolumeId, Outcome[None]]] = []
        self._background = Background(8)

    def store(
        self, replicas: tuple[ReplicaAddress, ...], label: str, file_id: str, data: pa.Buffer
    ) -> dict[VolumeId, str]:
        """Store the same bytes on all of them, side by side; the ones that failed, with the reason."""
        self._sync_last()
        begun = [self._background.submit(self._store_on, replica, label, file_id, data) for replica in replicas]
        self._last_copy = self._store_copy(file_id, data) if self._copying else ""
        reasons = [one.result() for one in begun]
        failed = {replica.volume_id: reason for replica, reason in zip(replicas, reasons, strict=True) if reason}
        for replica in replicas:
            if replica.volume_id not in failed:
                self._last[replica.volume_id] = places.join(replica.uri, path_of(label, file_id))
        return failed

    def _sync_last(self) -> None:
        """Let the disks have the file that was stored last, while the next one is made."""
        last, self._last = self._last, {}
        for volume, uri in last.items():
            self._syncs.append((volume, self._background.submit(self._storage.sync_data, [uri])))
        copy, self._last_copy = self._last_copy, ""
        if copy:
            self._copies.append((copy, self._background.submit(self._storage.sync_always, [copy])))

    def sync(self, beside: Callable[[], None] | None = None) -> dict[VolumeId, str]:
        """Wait until the disks have all that was stored, and its names; the replicas that failed, with the reason.

        `beside` has the disk have the last copies, with what it stores itself, while those of the replicas are busy.
        """
        failed: dict[VolumeId, str] = {}
        last, self._last = self._last, {}
        for volume, directories in self._directories.items():
            files = [last[volume]] if volume in last else []
            self._syncs.append((volume, self._background.submit(self._storage.sync_data, files, sorted(directories))))
        self._sync_copies(beside)
        for volume, synced in self._syncs:
            try:
                synced.result()
            except StorageUnavailable as error:
                failed.setdefault(volume, str(error))
        self._syncs = []
        return failed

    def _sync_copies(self, beside: Callable[[], None] | None) -> None:
        """Wait until the disk has all copies; those that it does not take are deleted."""
        earlier, self._copies = self._copies, []
        last, self._last_copy = [self._last_copy] if self._last_copy else [], ""
        try:
            if beside is not None:
                beside()
            elif last or earlier:
                self._storage.sync_always(last, [self._kept_at])
            for _, synced in earlier:
                synced.result()
        except StorageLate:
            raise
        except StorageUnavailable:
            for copy in [*(copy for copy, _ in earlier), *last]:
                self._forget_copy(copy)
            if beside is not None:
                raise  # it was told of these copies

    def close(self) -> None:
        self._background.close()

    def _store_copy(self, file_id: str, data: pa.Buffer) -> str:
        """Store a copy; where, or nothing where that has failed: then none is tried again by this task."""
        copy = places.join(self._kept_at, f"{file_id}.parquet")
        try:
            self._storage.write_bytes(copy, data)
        except StorageLate:
            raise  # it may still be written under this name, over what somebody else copies there
        except StorageUnavailable:
            self._forget_copy(copy)
            return ""
        return copy

    def _forget_copy(self, copy: str) -> None:
        self._copying = False
        with suppress(StorageUnavailable):  # a torn one has other bytes than it should have, which is looked at
            self._storage.delete_file(copy)

    def _store_on(self, replica: ReplicaAddress, label: str, file_id: str, data: pa.Buffer) -> str:
        uri = replica.uri
        if self._checked.get(uri):
            return self._checked[uri]
        try:
            if uri not in self._checked:
                require_replica(replica)
                self._checked[uri] = ""
            directory = places.join(uri, directory_of(label))
            if directory not in self._directories[replica.volume_id]:
                self._storage.create_directory(directory)
                self._directories[replica.volume_id] |= {directory, uri}
            self._storage.write_bytes(places.join(uri, path_of(label, file_id)), data)
        except (StorageUnavailable, WrongCluster) as error:
            self._checked[uri] = str(error)
        return self._checked[uri]


def _generated(rows: pa.Table, plan: StagingPlan) -> tuple[pa.Table, dict[pa.Field, pa.ChunkedArray]]:
    """Rows with what their table computes of them; refuse what they give otherwise."""
    try:
        return completed(plan.generation, plan.table, rows, compared=True, deleted=plan.deleted)
    except NotGenerated as wrong:
        raise RowsRefused(f"cannot write to {plan.table.full_name}: {wrong}", hint=wrong.hint) from wrong


def _refuse_nulls(rows: pa.Table, plan: StagingPlan) -> None:
    table = plan.table
    required = [] if plan.deleted else [column.name for column in table.columns if not column.nullable]
    upserts = rows.filter(pc.invert(rows.column(DELETED))) if DELETED in rows.column_names else rows
    for name in dict.fromkeys([*table.primary_key, *required]):
        nulls = (rows if name in table.primary_key else upserts).column(name).null_count
        if nulls:
            kind = "a column of the primary key" if name in table.primary_key else "declared not nullable"
            raise RowsRefused(
                f"cannot write to {table.full_name}: {name!r} is {kind}, and it is null in at least {nulls} of the "
                f"rows given",
                hint="Fill in a value, or leave these rows out",
            )


def _refuse_violations(rows: pa.Table, plan: StagingPlan) -> None:
    """Refuse rows, as a file is to have them, that make a check of the table false."""
    found = None if plan.checks is None or plan.deleted else violation(plan.checks, rows)
    if found is not None:
        raise RowsRefused(
            f"cannot write to {plan.table.full_name}: {found}", hint="Correct these rows, or leave them out"
        )


def _refuse_duplicates(rows: pa.Table, last: pa.Table | None, table: Table) -> pa.Table:
    """Equal keys have equal tokens and so are neighbours; `last`: the rows with the token that came last before.

    Returns the rows with the last token of these, for the next call.
    """
    keys = rows.select([*table.primary_key, TOKEN])
    if last is not None:
        keys = pa.concat_tables([last, keys])
    tokens = keys.column(TOKEN).to_numpy()
    same = np.flatnonzero(tokens[1:] == tokens[:-1])
    if len(same):
        suspects = keys.take(np.union1d(same, same + 1)).select(list(table.primary_key))
        seen: set[str] = set()
        for number, stored in enumerate(bare_rows(suspects).to_pylist()):
            if repr(stored) in seen:
                [key] = shown_rows(suspects.slice(number, 1))
                raise RowsRefused(
                    f"cannot write to {table.full_name}: two of the rows given have the same primary key {key}, and "
                    f"nothing says which one counts",
                    hint="Keep one row for each key",
                )
            seen.add(repr(stored))
    return keys.slice(int(np.searchsorted(tokens, tokens[-1])))


def _with_system_columns(rows: pa.Table, plan: StagingPlan) -> pa.Table:
    """The columns of a data file, all nullable, timestamps in UTC; the file then says nothing of the session."""
    count = rows.num_rows
    deleted = pa.repeat(plan.deleted, count)
    if DELETED in rows.column_names:
        deleted = rows.column(DELETED)
        rows = rows.drop_columns([DELETED])
    columns, fields = [], []
    for field in rows.schema:
        type_ = pa.timestamp("us", "UTC") if pa.types.is_timestamp(field.type) and field.type.tz else field.type
        columns.append(rows.column(field.name).cast(type_) if type_ != field.type else rows.column(field.name))
        fields.append(pa.field(field.name, type_))
    columns.append(pc.cast(pa.repeat(plan.written_at, count), pa.int64()))
    columns.append(deleted)
    fields += [pa.field(WRITTEN_AT, pa.int64()), pa.field(DELETED, pa.bool_())]
    made = pa.table(columns, schema=pa.schema(fields))
    known_as = file_columns(plan.table)
    return made if known_as is None else known_as.as_stored(made)


def _result(**values: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in RESULT.names}], schema=RESULT)
