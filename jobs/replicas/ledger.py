"""The ledger of compactions: what each merged file stands for.

A merged file is known by its id, and what it replaces is written here *before* any replica may have it.
So whoever meets one (a read, a late commit, repair, streaming) finds out which other files it makes superfluous, and
a compaction that reached some replicas only shows no row twice.

The ledger decides, too: a row of an origin is replaced by at most one merge, ever. Entries are appended against exactly
the version that was read, so of two compactions that overlap one is refused. What is replaced therefore forms trees,
and "all the way down" is a walk without repetition. A merge that never reached a replica is voided, which frees what
it would have replaced (see `jobs/upkeep/settling.py` for when that is safe).

An append-only Delta table `<root>/compactions`, written through delta-rs, a partition for each table. Entries are small
(60 bytes for each file replaced) and are kept for ever: a batch that is tried again years later asks for them
(docs/decisions/006-named-batches.md). Old Delta versions are kept as well, as commits are few: a writer that was paused
can never find its version free again.

A wrong entry hides rows that nobody has copied elsewhere. So each has a hash, its file is read with page checksums, and
as many entries as its commit says have to be there: what does not match is an error, never an entry.
Entries that earlier versions wrote have no hash, and get one when their files are put together.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from epochlake.jobs.replicas.files import MERGED, DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, meet, overlap
from epochlake.jobs.replicas.replica import attempts
from epochlake.metastore import checkpoint_seals, delta_checkpoints, delta_commits
from epochlake.metastore.delta_tables import NewTable, create_table
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import TableId
from epochlake.metastore.rewriting import Mark, NewFile, OldFile, append_files, replace_files
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of
from epochlake.placement.tokens import Interval

logger = logging.getLogger(__name__)

APP_ID = "compactions"
COMPACT_EVERY = 32
"""So many small files of a table's entries are put together."""

_REPLACED = pa.struct([("origin", pa.string()), ("low", pa.int64()), ("high", pa.int64())])
SCHEMA = pa.schema(
    [
        ("table_id", pa.string()),
        ("file_id", pa.string()),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("epoch", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("replaced", pa.list_(_REPLACED)),
        ("void", pa.bool_()),
        ("hash", pa.string()),
    ]
)
_STORED = [name for name in SCHEMA.names if name != "table_id"]
_PROPERTIES = {
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "20",
    "delta.enableExpiredLogCleanup": "false",
    "delta.dataSkippingNumIndexedCols": "1",
}


class Replaced(msgspec.Struct, frozen=True):
    """The rows of an origin from token `low` to `high`, both included."""

    origin: str
    low: int
    high: int


class Merge(msgspec.Struct, frozen=True):
    """One merged file: its window, the epoch that its compaction was planned at, what it replaces.

    `at` in microseconds since 1970, for people. With `void` it never reached a replica and never will.
    """

    table_id: TableId
    file_id: str
    low: int
    high: int
    epoch: int
    at: int
    replaced: tuple[Replaced, ...]
    void: bool = False


def entry_hash(merge: Merge) -> str:
    """SHA-256 over every field. A field that is added later may only go into the hash where it is not its default."""
    replaced = [(one.origin, one.low, one.high) for one in merge.replaced]
    epoch = int(merge.epoch)  # it may be a fence, which is written as its number
    fields = (merge.table_id, merge.file_id, merge.low, merge.high, epoch, merge.at, replaced, merge.void)
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def merged_id() -> str:
    """The id of a new merged file."""
    return f"{MERGED}{uuid.uuid4()}"


_Choice = Callable[[Sequence[Merge]], list[Merge]]
"""Which entries may be appended to those that are there."""


class Ledger:
    """The ledger at `uri`, which need not be there yet. Safe for use by several threads.

    Entries never change, so what was read once is not read again until an unknown id is met.
    """

    def __init__(self, storage: Storage, uri: str) -> None:
        self.uri = uri
        self._storage = storage
        self._lock = threading.Lock()
        self._known: dict[TableId, dict[str, Merge]] = {}
        self._stands_for: dict[str, dict[str, list[Interval]]] = {}

    def lineage(self, table_id: TableId, files: Iterable[DataFile]) -> Lineage:
        """For the merged files among `files` those others among them that they stand for.

        Look after opening the snapshots that the files are of: an entry is older than any replica's commit of its file.
        Raises StorageUnavailable when the ledger cannot be read, or lacks the entry of a file.
        """
        files = list(files)
        merged = dict.fromkeys(file.origin for file in files if file.is_merged)
        if not merged:
            return NO_LINEAGE
        origins = {file.origin for file in files}
        if len(origins) == 1:
            return NO_LINEAGE
        for origin in merged:
            if origin not in self._stands_for:
                self._stands_for[origin] = _stands_for(origin, self._merges_with(table_id, merged))
        lineage = {
            origin: [(older, *interval) for older in sorted(among) for interval in stands_for[older]]
            for origin in merged
            if (among := (stands_for := self._stands_for[origin]).keys() & origins)
        }
        return lineage or NO_LINEAGE

    def merges(self, table_id: TableId) -> dict[str, Merge]:
        """Every entry of a table that is not void, read now: file id -> entry. Raises StorageUnavailable."""
        _, entries = self._read(table_id)
        return self._remember(table_id, entries)

    def record(self, groups: Sequence[Sequence[Merge]]) -> tuple[Merge, ...]:
        """Write entries of one table, before any replica may have their files; those that were written.

        A group is left out when one of it replaces what another entry replaces already. Raises StorageUnavailable when
        it cannot be told whether they were written: then none of these files may be committed.
        """

        def compatible(known: Sequence[Merge]) -> list[Merge]:
            return _compatible(groups, known)

        return self._append([merge for group in groups for merge in group], compatible)

    def void(self, merges: Sequence[Merge]) -> tuple[Merge, ...]:
        """Take back entries whose files are on no replica and never will be; those that were taken back.

        Not one that another entry replaces: its file has been on replicas, and is on none because it was merged on.
        Raises StorageUnavailable.
        """

        def not_yet_void(known: Sequence[Merge]) -> list[Merge]:
            standing = _standing(known)
            merged_on = {one.origin for merge in standing.values() for one in merge.replaced}
            return [
                msgspec.structs.replace(merge, void=True)
                for merge in merges
                if merge.file_id in standing and merge.file_id not in merged_on
            ]

        return self._append(merges, not_yet_void)

    def _append(self, merges: Sequence[Merge], choose: _Choice) -> tuple[Merge, ...]:
        if not merges:
            return ()
        table_id = merges[0].table_id
        for _ in attempts():
            table, known = self._read(table_id)
            if table is None:
                table = self._create()
                known = _entries(self._storage, self.uri, table, table_id)  # others may have been faster
            chosen = choose(known)
            if not chosen:
                return ()
            try:
                version = table.version() + 1
                mark = Mark(APP_ID, version)
                if not append_files(
                    self._storage, table, version, [self._store(table_id, chosen)], mark, {"table_id": table_id}
                ):
                    continue
            except failures.STORAGE_ERRORS as error:
                raise failures.unavailable("write the ledger of compactions at", self.uri, error) from error
            self._remember(table_id, [*known, *chosen])
            self._tidy(table_id)
            return tuple(chosen)
        raise StorageUnavailable(
            f"the ledger at {self.uri} was changed by others during each of our tries", hint="Retry"
        )

    def _read(self, table_id: TableId) -> tuple[DeltaTable | None, list[Merge]]:
        """The ledger as it is now, None when nothing was ever compacted, and all entries of a table.

        Entries never go. Where some of those do that were read before, a commit has rotted since, or an older copy lies
        there: what is decided without them could replace a row twice. Raises StorageUnavailable.
        """
        before = self._known.get(table_id, {})  # first: others may add to it, and to what is read
        table = self._open()
        entries = [] if table is None else _entries(self._storage, self.uri, table, table_id)
        lost = before.keys() - {entry.file_id for entry in entries}
        if lost:
            raise failures.StorageDamaged(
                f"the ledger of compactions at {self.uri} lacks {len(lost)} entries that were read there before, as "
                f"that of the merged file {max(lost)}: a commit of it has rotted, or an older copy lies there",
                hint=f"Restore {self.uri} from the newest copy, and try again",
            )
        return table, entries

    def _merges_with(self, table_id: TableId, wanted: Collection[str]) -> dict[str, Merge]:
        known = self._known.get(table_id, {})
        if any(origin not in known for origin in wanted):
            self.merges(table_id)
            known = self._known.get(table_id, {})
        lacking = sorted(origin for origin in wanted if origin not in known)
        if lacking:
            raise StorageUnavailable(
                f"the ledger of compactions at {self.uri} has no entry for the merged file {lacking[0]}, so it "
                "cannot be told what that one replaces",
                hint="Restore the ledger, or check that this is the cluster's root",
            )
        return known

    def _remember(self, table_id: TableId, entries: Sequence[Merge]) -> dict[str, Merge]:
        with self._lock:
            # Void ones as well: where one is met all the same, on what is no replica any more, it says the truth.
            self._known[table_id] = {merge.file_id: merge for merge in entries}
        return _standing(entries)

    def _open(self) -> DeltaTable | None:
        """The ledger as it is now, None when nothing was ever compacted. Raises StorageUnavailable."""
        try:
            return self._opened()
        except delta_commits.TornCommit as torn:
            raise failures.StorageDamaged(
                f"the ledger of compactions is damaged: {torn}",
                hint=f"Restore {delta_commits.commit_uri(self.uri, torn.version)} from a backup, and try again",
            ) from torn

    def _opened(self) -> DeltaTable | None:
        try:
            checkpoint_seals.require_sound(self._storage, self.uri)
            table = DeltaTable(places.delta_uri(self.uri), storage_options=self._storage.delta_options(self.uri))
        except TableNotFoundError:
            return None
        except (failures.StorageDamaged, *failures.STORAGE_ERRORS) as error:
            delta_commits.require_whole(self._storage, self.uri)
            if delta_checkpoints.put_torn_aside(self._storage, self.uri):
                return self._opened()
            raise failures.unavailable("read the ledger of compactions at", self.uri, error) from error
        # What another process has written is on the disk before anything is decided by it. Delta-rs has read all of it.
        delta_commits.look_at_all_again(self._storage, self.uri)
        metadata = table.metadata()
        held = delta_commits.held_against({"id": metadata.id, "configuration": metadata.configuration})
        delta_commits.sync_commits(self._storage, delta_commits.CommitName(self.uri, table.version(), held))
        return table

    def _create(self) -> DeltaTable:
        self._storage.create_directory(self.uri, parents=True)
        create_table(
            self._storage,
            self.uri,
            NewTable(
                schema=Schema.from_arrow(SCHEMA).to_json(),
                configuration=_PROPERTIES,
                fixed=SCHEMA.names,
                partition_columns=["table_id"],
                name="epochlake_compactions",
                description="Epochlake: what merged files replace. Append only; do not write by hand.",
            ),
        )
        table = self._open()
        if table is None:
            raise StorageUnavailable(
                f"the ledger of compactions at {self.uri} has gone just after it was made", hint="Retry"
            )
        return table

    def _tidy(self, table_id: TableId) -> None:
        """Put many small files together; nothing depends on it. Of two that do so at once one does nothing."""
        try:
            table = self._open()
            if table is not None and len(files := _files(table, table_id)) >= COMPACT_EVERY:
                entries = _entries(self._storage, self.uri, table, table_id)
                new = self._store(table_id, entries)
                if _read_file(self._storage, self.uri, _StoredFile(new.path, new.size, new.rows), table_id) == entries:
                    replaced = [OldFile(file.path, file.size) for file in files]
                    replace_files(self._storage, table, replaced, [new], {"table_id": table_id})
        except (StorageUnavailable, *failures.STORAGE_ERRORS) as error:
            logger.info("the ledger was not put together: %s", error)

    def _store(self, table_id: TableId, entries: Sequence[Merge]) -> NewFile:
        sink = pa.BufferOutputStream()
        pq.write_table(_to_arrow(entries).drop_columns(["table_id"]), sink, write_page_checksum=True)
        data = sink.getvalue()
        directory = f"table_id={table_id}"
        path = f"{directory}/part-00000-{uuid.uuid4()}-c000.parquet"
        self._storage.create_directory(places.join(self.uri, directory))
        self._storage.sync_always(directories=[self.uri])
        self._storage.write_bytes(places.join(self.uri, path), data)
        return NewFile(path, data.size, len(entries), {}, {})


def _compatible(groups: Sequence[Sequence[Merge]], known: Sequence[Merge]) -> list[Merge]:
    """Those of the groups that replace nothing that a standing entry replaces already."""
    taken: dict[str, list[Interval]] = defaultdict(list)
    for merge in _standing(known).values():
        for one in merge.replaced:
            taken[one.origin].append((one.low, one.high))
    return [
        merge
        for group in groups
        if not any(
            meet((one.low, one.high), other) for merge in group for one in merge.replaced for other in taken[one.origin]
        )
        for merge in group
    ]


def _standing(entries: Iterable[Merge]) -> dict[str, Merge]:
    entries = list(entries)
    void = {merge.file_id for merge in entries if merge.void}
    return {merge.file_id: merge for merge in entries if merge.file_id not in void}


def _stands_for(root: str, merges: Mapping[str, Merge]) -> dict[str, list[Interval]]:
    """What a merged file replaces, all the way down: origin -> tokens."""
    found: dict[str, list[Interval]] = defaultdict(list)
    waiting = [(root, (merges[root].low, merges[root].high))]
    while waiting:
        origin, window = waiting.pop()
        for one in merges[origin].replaced if origin in merges else ():
            part = overlap(window, (one.low, one.high))
            if meet(window, (one.low, one.high)):
                found[one.origin].append(part)
                if one.origin.startswith(MERGED):
                    waiting.append((one.origin, part))
    return dict(found)


def _entries(storage: Storage, uri: str, table: DeltaTable, table_id: TableId) -> list[Merge]:
    """The entries of a table, each once: earlier versions could store one twice, by two OPTIMIZE at the same time."""
    try:
        files = _files(table, table_id)
    except failures.STORAGE_ERRORS as error:
        raise failures.unavailable("read the ledger of compactions at", uri, error) from error
    return list(dict.fromkeys(entry for file in files for entry in _read_file(storage, uri, file, table_id)))


class _StoredFile(NamedTuple):
    """A data file of the ledger as its commit tells it; `rows` None where the commit does not say."""

    path: str
    size: int
    rows: int | None


def _read_file(storage: Storage, uri: str, file: _StoredFile, table_id: TableId) -> list[Merge]:
    """The entries of a data file. Raises StorageUnavailable, naming the file, when it is not what was written."""
    path = unquote(file.path)
    try:
        data = storage.read_bytes(places.join(uri, path))
    except failures.MissingFile as error:
        raise _damaged(uri, path, "is not there") from error
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as parquet:
            rows = parquet.read(use_threads=False)
    except failures.STORAGE_ERRORS as error:
        # Its bytes are here: what is said of them is no word on whether storage answers.
        raise _damaged(uri, path, f"has other bytes than were written ({words_of(error)})") from error
    lacking = set(_STORED) - {"hash"} - set(rows.column_names)
    if lacking:
        raise _damaged(uri, path, f"has no column {min(lacking)}")
    if file.rows is not None and rows.num_rows != file.rows:
        raise _damaged(uri, path, f"holds {rows.num_rows} entries, and {file.rows} were written")
    try:
        entries = _from_arrow(rows, table_id)
    except (TypeError, KeyError, *failures.STORAGE_ERRORS) as error:
        raise _damaged(uri, path, "holds something else than entries") from error
    hashes = rows["hash"].to_pylist() if "hash" in rows.column_names else [None] * rows.num_rows
    for entry, written in zip(entries, hashes, strict=True):
        if written is not None and written != entry_hash(entry):
            raise _damaged(uri, path, f"has an entry, of the merged file {entry.file_id}, that its hash denies")
    return entries


def _from_arrow(rows: pa.Table, table_id: TableId) -> list[Merge]:
    at = rows["at"].cast(pa.int64()).to_pylist()
    fields = rows.select([name for name in _STORED if name not in ("at", "hash")]).to_pylist()
    return [
        Merge(table_id=table_id, at=when, replaced=tuple(Replaced(**one) for one in row.pop("replaced")), **row)
        for row, when in zip(fields, at, strict=True)
    ]


def _damaged(uri: str, path: str, what: str) -> failures.StorageDamaged:
    return failures.StorageDamaged(
        f"the ledger of compactions is damaged: its file {uri}/{path} {what}. Its entries decide which rows "
        "are read, so none is used",
        hint=f"Restore this file from a backup of {uri}, and try again",
    )


def _files(table: DeltaTable, table_id: TableId) -> list[_StoredFile]:
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    if actions.num_rows == 0:
        return []
    rows = actions["num_records"].to_pylist() if "num_records" in actions.column_names else [None] * actions.num_rows
    of_table = zip(*(actions[name].to_pylist() for name in ("path", "size_bytes", "partition.table_id")), strict=True)
    return [
        _StoredFile(path, size, count)
        for (path, size, owner), count in zip(of_table, rows, strict=True)
        if owner == table_id
    ]


def _to_arrow(merges: Sequence[Merge]) -> pa.Table:
    return pa.Table.from_pylist([_row(merge) for merge in merges], SCHEMA)


def _row(merge: Merge) -> dict[str, object]:
    replaced = [msgspec.structs.asdict(one) for one in merge.replaced]
    return msgspec.structs.asdict(merge) | {"replaced": replaced, "hash": entry_hash(merge)}
