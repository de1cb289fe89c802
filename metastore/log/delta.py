"""The epoch log as an append-only Delta table, written through delta-rs: a commit needs no JVM.

One row per epoch; a group commit puts many rows in one Delta version. The append is made against exactly the version
that was read, without retries, and with `txn(appId = "epoch-log", version = epoch)`: two writers of one epoch cannot
both succeed, whatever the locks above believe. Nothing that is kept depends on a Delta version number: log clean-up
deletes versions, never rows.

One thing about clean-up matters for safety. A writer that was paused for long enough could find the commit file of the
next version **deleted**, write it again and believe that it had won. Clean-up only deletes what a checkpoint covers,
the oldest first, so an append counts only if, after it, the newest checkpoint is still older than the version that it
wrote and the version before is still there; otherwise the log is opened anew and read back
(docs/decisions/004-log-retention.md). A version before that is missing also tells that the root itself has gone, where
a write would begin a second log in the empty place.

Table properties, set on purpose:

- `delta.appendOnly`: rows are never changed or deleted by accident (the hash chain is the proof, not the property);
- `delta.checkpointInterval` 50: opening the table reads at most that many commit files;
- `delta.logRetentionDuration` 20 seconds with `delta.enableExpiredLogCleanup`: where a store lists a directory to find
  its tail, each commit file that is kept makes every commit slower (measured: 3 ms a commit at 50 files, 13 ms at
  2,000). A reader that is further behind starts again from its epoch, which needs no version;
- never `delta.setTransactionRetentionDuration`: it would expire the fence that the `txn` is.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.checkpoint_seals import rotten_checkpoint, seal
from epochlake.metastore.delta_commits import CommitName
from epochlake.metastore.delta_tables import NewTable, create_table
from epochlake.metastore.errors import LogTorn, LogUnreadable, NotInitialised, StorageUnavailable
from epochlake.metastore.log.checkpoints import damaged as damaged_checkpoints
from epochlake.metastore.log.compacting import (
    Rewriting,
    StoredTwice,
    compaction_of,
    holds_copies,
    rewrite,
    small_files,
    stored_twice,
)
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain, ends_too_early
from epochlake.metastore.log.files import (
    SCHEMA,
    LogFile,
    discard,
    files_of,
    new_file,
    read_columns_of,
    read_entries,
    write_entries,
)
from epochlake.metastore.log.holes import read_before
from epochlake.metastore.log.spark_log import GENERATION
from epochlake.metastore.rewriting import Mark, NewFile, append_files, append_prepared, prepare_append
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of

APP_ID = "epoch-log"

LOG_RETENTION_SECONDS = 20
"""Clean-up of the log's table deletes commit files that are older."""

PROPERTIES = {
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_SECONDS} seconds",
    "delta.enableExpiredLogCleanup": "true",
    # The payloads may be large; only the epoch is ever used to skip files.
    "delta.dataSkippingStatsColumns": "epoch",
}

COMPACTION_TRIES = 5
"""How often a compaction that was asked for is tried while others append."""

FENCE_TRIES = 100
"""How often a fence is tried while others append."""

REOPEN_SECONDS = LOG_RETENTION_SECONDS / 2
"""A handle that was not refreshed for so long is opened anew: clean-up has deleted no commit that it has not read."""


def create_log_table(storage: Storage, uri: str) -> None:
    """Create the empty table; does nothing when there is one already. Raises StorageUnavailable."""
    if places.local_path(uri) is not None:
        storage.create_directory(uri, parents=True)
    create_table(
        storage,
        uri,
        NewTable(
            schema=Schema.from_arrow(SCHEMA).to_json(),
            configuration=PROPERTIES,
            fixed=SCHEMA.names,
            name="epochlake_log",
            description="Epochlake: one row per epoch. Append only; do not write by hand.",
        ),
    )
    delta_commits.sync_commits(storage, CommitName(uri, 0))


def _id_of(table: DeltaTable) -> str:
    """The id in a table's metadata, which its commits say."""
    return str(table.metadata().id)


def torn_log(storage: Storage, uri: str, torn: delta_commits.TornCommit) -> LogTorn:
    """The error for a log with a torn commit; it names the epoch."""
    last: int | None = None
    with suppress(OSError, DeltaError, pa.ArrowException, KeyError):
        before = DeltaTable(uri, version=torn.version - 1) if torn.version else None
        last = max((file.last or 0 for file in files_of(before)), default=0) if before is not None else 0
    where = "" if last is None else f" after epoch {last}, where epoch {last + 1} would be"
    error = LogTorn(
        f"the log at {uri} is torn{where}: {torn}", hint="Run `epochlake log heal`, which says what it does"
    )
    if last is not None:
        error.epochs = (last + 1, last + 1)
        error.read_whole = partial(read_before, storage, uri, torn.version)
    return error


class _Prepared(NamedTuple):
    """An append of just these entries, which the disk has: their file, and the commit that would name it."""

    entries: tuple[Entry, ...]
    stored: NewFile
    commit: str


class DeltaLog:
    """One handle on the log table at `uri`; opened on first use."""

    def __init__(self, storage: Storage, uri: str, *, compact_every: int = 32) -> None:
        places.require_fit_for_tables(uri)
        self.uri = uri
        self._storage = storage
        self._options = storage.delta_options(uri)
        self._compact_every = compact_every
        self._table: DeltaTable | None = None
        self._refreshed_at = 0.0
        self._small_files = 0
        self._was_there = False
        # What proves that the handle still is on the log that it was on: the commit file of version `_read_at`, and the
        # entry that was the last one at `_last_at`. Valid as long as `_table` is, which is behind after an append here.
        self._read_at: int | None = None
        self._seen: bytes | None = None
        self._last: Entry | None = None
        self._last_at: int | None = None
        self._prepared: _Prepared | None = None

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        if up_to is None and self._nothing_came_after(after):
            return [self._last] if self._last is not None and self._last.epoch > after else []
        table = self._refresh()
        try:
            return self._read(table, after, up_to)
        except LogUnreadable:
            # A file may have been compacted away, and deleted since, by somebody faster: then there is a newer version.
            self._table = self._read_at = None
            version = table.version()
            table = self._refresh()
            if table.version() == version:
                raise
            return self._read(table, after, up_to)

    def _nothing_came_after(self, after: int) -> bool:
        """Whether the reader knows all but the last entry, which is known here and is the last one still."""
        now = time.monotonic()
        if self._table is None or self._read_at is None or self._last is None or self._last_at != self._read_at:
            return False
        if after not in (self._last.epoch - 1, self._last.epoch) or now - self._refreshed_at >= REOPEN_SECONDS:
            return False
        if self._commit_file(self._read_at) != self._seen or self._is_behind(self._read_at):
            return False
        self._refreshed_at = now
        return True

    def _read(self, table: DeltaTable, after: int, up_to: int | None) -> list[Entry]:
        files = self._files(table)
        self._small_files = len(small_files(files))
        if after and all(file.last is not None and file.last < after for file in files):
            raise ends_too_early(after, max((file.last or 0 for file in files), default=0))
        # Who follows reads from the last entry that it knows: that is here, as long as the handle is on the same log.
        proved = up_to is None and self._last is not None and self._last.epoch == after + 1
        known = [self._last] if proved and self._last is not None else []
        start = after + len(known)
        found = read_entries(
            self._storage, self.uri, [file for file in files if file.may_hold(start, up_to)], start, up_to
        )
        if up_to is None and found:
            self._last = found[-1]
        if up_to is None and (found or (self._last is not None and self._last.epoch in (after, after + 1))):
            self._last_at = table.version()
        return [*known, *found]

    def append(self, entries: Sequence[Entry]) -> None:
        table, read_at = self._table, self._read_at
        if table is None or read_at is None:
            raise AppendConflict("the log was not read before it was appended to")
        ready = self._take_prepared(entries)
        try:
            self._append(table, read_at, entries, ready)
        except BaseException:
            if ready is not None:
                delta_commits.forget_prepared(self._storage, ready.commit)
            raise

    def _append(self, table: DeltaTable, read_at: int, entries: Sequence[Entry], ready: _Prepared | None) -> None:
        self._table = self._read_at = None
        first, last = entries[0].epoch, entries[-1].epoch
        too_late = AppendConflict(f"epoch {first} was not appended: the log was read too long ago, or it has gone")
        stored = None if ready is None else ready.stored
        if not self._version_exists(read_at) or self._is_another(read_at):
            self._discard(stored)
            raise too_late
        try:
            stored = stored or self._store(entries)
            if self._has_moved_on(read_at):
                self._discard(stored)
                raise too_late
            if ready is None:
                appended = append_files(self._storage, table, read_at + 1, [stored], Mark(APP_ID, last))
            else:
                appended = append_prepared(self._storage, table, read_at + 1, ready.commit)
        except delta_commits.TornCommit as torn:
            # What lay there was committed, and clean-up has deleted it or it is lost: who reads again is told which.
            self._discard(stored)
            raise AppendConflict(f"epoch {first} was not appended: {torn}") from torn
        except (OSError, DeltaError, StorageUnavailable) as error:
            cause = error if isinstance(error, StorageUnavailable) else failures.unavailable("write", self.uri, error)
            if places.local_path(self.uri) is None or self._version_exists(read_at + 1):
                raise AppendUncertain(f"epoch {first}: {cause}") from error
            if self._has_moved_on(read_at):
                raise AppendConflict(f"epoch {first} was not appended, it was read too long ago: {cause}") from error
            self._discard(stored)
            failed = AppendFailed(f"epoch {first} was not written: {cause}")
            failed.exit_code = cause.exit_code  # a full disk may have room later, a wrong owner stays
            raise failed from error
        if not appended:
            self._discard(stored)
            raise AppendConflict(f"epoch {first} was not appended: somebody else has appended before")
        self._require_same_log(read_at + 1, entries)
        self._require_at_the_tail(read_at + 1, entries)
        # The handle stays behind: it is moved on when there is something to read, as that lists the log.
        self._table, self._read_at, self._seen = table, read_at + 1, self._commit_file(read_at + 1)
        self._last, self._last_at = entries[-1], read_at + 1
        self._seal_checkpoint(read_at + 1)
        self._small_files += 1

    def _seal_checkpoint(self, version: int) -> None:
        if (version + 1) % int(PROPERTIES["delta.checkpointInterval"]) == 0:
            seal(self._storage, self.uri, version)

    def version(self) -> int | None:
        return self._read_at

    def prepare(self, entries: Sequence[Entry]) -> None:
        self.forget()
        if places.local_path(self.uri) is None:
            return
        table, read_at = self._table, self._read_at
        following = 0 if read_at is None else read_at + 1
        expected = CommitName(self.uri, following, None if table is None else _id_of(table))
        stored = self._store(entries)
        try:
            mark = Mark(APP_ID, entries[-1].epoch)
            commit = prepare_append(self._storage, expected, [stored], mark)
        except BaseException:
            self._discard(stored)
            raise
        self._prepared = _Prepared(tuple(entries), stored, commit)

    def forget(self) -> None:
        ready, self._prepared = self._prepared, None
        if ready is not None:
            delta_commits.forget_prepared(self._storage, ready.commit)
            self._discard(ready.stored)

    def _take_prepared(self, entries: Sequence[Entry]) -> _Prepared | None:
        if self._prepared is not None and self._prepared.entries != tuple(entries):
            self.forget()
        ready, self._prepared = self._prepared, None
        return ready

    def _store(self, entries: Sequence[Entry]) -> NewFile:
        return new_file(write_entries(self._storage, self.uri, entries))

    def _discard(self, stored: NewFile | None) -> None:
        if stored is not None:
            discard(self._storage, self.uri, stored)

    def fence(self) -> None:
        if places.local_path(self.uri) is not None:
            self._fence_by_put()
            return
        try:
            DeltaTable(self.uri, storage_options=self._options).create_write_transaction(
                [], "append", Schema.from_arrow(SCHEMA), commit_properties=CommitProperties(max_commit_retries=10)
            )
        except (OSError, DeltaError) as error:
            raise AppendUncertain(f"the log at {self.uri} cannot be fenced: {error}") from error

    def _fence_by_put(self) -> None:
        try:
            for _ in range(FENCE_TRIES):
                table = self._open()
                following = CommitName(self.uri, table.version() + 1, _id_of(table))
                if delta_commits.put_commit(self._storage, following, "FENCE", []):
                    return
        except StorageUnavailable as error:
            raise AppendUncertain(f"the log at {self.uri} cannot be fenced: {error}") from error
        raise AppendUncertain(f"the log at {self.uri} cannot be fenced: others append to it all the time")

    def request_epochs(self, up_to: int) -> dict[str, int]:
        # Not through the handle: that stays where it was read, so that an append conflicts with what came after.
        table = self._open()
        try:
            rows = read_columns_of(self._storage, self.uri, files_of(table), ["epoch", "request_id"])
        except (OSError, DeltaError, pa.ArrowException, KeyError, failures.StorageDamaged) as error:
            raise LogUnreadable(
                f"the request ids of the log at {self.uri} cannot be read: {words_of(error)}"
            ) from error
        pairs = zip(rows["request_id"].to_pylist(), rows["epoch"].to_pylist(), strict=True)
        return {request_id: epoch for request_id, epoch in pairs if epoch <= up_to}

    def entry(self, epoch: int) -> Entry:
        # Not through the handle: that stays where it was read.
        found = DeltaLog(self._storage, self.uri).read(epoch - 1, epoch)
        if not found:
            raise LogUnreadable(f"epoch {epoch} is not in the log at {self.uri}")
        return found[0]

    def compact_if_due(self) -> bool:
        """Put small files together when there are `compact_every` of them, whoever wrote them."""
        if self._small_files < self._compact_every or self._table is None:
            return False
        table = self._refresh()
        self._table, self._read_at, self._small_files = None, None, 0
        return self._rewrite(table, compaction_of(self._files(table)))

    def compact(self) -> Rewriting:
        """Put the small files together, however few; the files that were. Call it with the commit lock held.

        Without the lock it is as safe, but may have to give way to others until it gives up.
        """
        return self._until_rewritten("compacted", lambda _, files: compaction_of(files))

    def heal(self) -> StoredTwice:
        """Store each entry once again; what was stored more often. Loses no entry, and changes none.

        Raises LogUnreadable, naming the epochs, where two entries of one epoch differ or one is damaged.
        """
        found: list[StoredTwice] = []

        def plan(table: DeltaTable, files: Sequence[LogFile]) -> Rewriting:
            found[:] = [stored_twice(self._storage, self.uri, files)]
            return found[0].rewriting

        self._until_rewritten("healed", plan)
        return found[0]

    def stored_twice(self) -> StoredTwice:
        """What `heal` would do; most often the statistics of the files tell that there is nothing."""
        files = self._files(self._open())
        return stored_twice(self._storage, self.uri, files) if holds_copies(files) else StoredTwice()

    def _until_rewritten(self, done: str, plan: Callable[[DeltaTable, Sequence[LogFile]], Rewriting]) -> Rewriting:
        self._table = self._read_at = None
        for _ in range(COMPACTION_TRIES):
            table = self._open()
            rewriting = plan(table, self._files(table))
            if not rewriting.groups or self._rewrite(table, rewriting):
                return rewriting
        raise StorageUnavailable(
            f"the log at {self.uri} was not {done}: others appended to it during each of {COMPACTION_TRIES} tries",
            hint="Try again",
        )

    def _rewrite(self, table: DeltaTable, rewriting: Rewriting) -> bool:
        """One try, against exactly the version of `table`; whether it counts."""
        read_at = table.version()
        if not rewriting.groups or not self._version_exists(read_at):
            return False
        try:
            added = rewrite(self._storage, self.uri, table, rewriting)
            if added is None:
                return False
            self._seal_checkpoint(read_at + 1)
            if self._has_moved_on(read_at) and added.isdisjoint(file.path for file in self._files(self._open())):
                # Written where clean-up had deleted another version (see `_require_at_the_tail`).
                self._storage.delete_file(f"{self.uri}/_delta_log/{read_at + 1:020}.json")
                return False
            # What is deleted then is only in the checkpoint: one that has rotted meanwhile is left to `log verify`.
            delta_checkpoints.sync_checkpoints(self._storage, self.uri)
            if rotten_checkpoint(self._storage, self.uri) is None:
                self._open().cleanup_metadata()
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise failures.unavailable("rewrite files of the log at", self.uri, error) from error
        return True

    def _files(self, table: DeltaTable) -> list[LogFile]:
        try:
            return files_of(table)
        except (OSError, DeltaError, pa.ArrowException, KeyError) as error:
            raise LogUnreadable(f"the files of the log at {self.uri} cannot be told: {words_of(error)}") from error

    def _refresh(self) -> DeltaTable:
        # A handle that was not used for a while may be behind what clean-up has kept: that one is opened anew.
        table, read_at, now = self._table, self._read_at, time.monotonic()
        self._table = self._read_at = None
        if table is not None and read_at is not None and now - self._refreshed_at < REOPEN_SECONDS:
            if self._seen is None or self._commit_file(read_at) != self._seen:
                # A directory that has gone looks like one without news, and another log may have come in its place.
                table = None
            elif table.version() < read_at or self._is_behind(read_at):
                # Only now: this lists the whole log, and costs more the more versions are kept.
                try:
                    table.update_incremental()
                    self._require_on_disk(table)
                    if delta_commits.is_missing(self._storage, self.uri, table.version() + 1):
                        table = None  # it ends at a hole; opened anew that tells, or a checkpoint stands for it
                except (OSError, DeltaError):
                    table = None
        else:
            table = None
        if table is None:
            table, self._last = self._open(), None
        self._table, self._read_at, self._seen = table, table.version(), self._commit_file(table.version())
        self._refreshed_at = now
        return table

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(self.uri, storage_options=self._options)
        except TableNotFoundError as error:
            if self._was_there:
                raise StorageUnavailable(
                    f"the log at {self.uri} has gone", hint="Check that the disk is mounted and the root was not moved"
                ) from error
            if self._has_lost_its_versions():
                raise LogUnreadable(
                    f"the log at {self.uri} has lost its _delta_log, and its data files are still there",
                    hint="Restore it from a backup, and do not begin another cluster here",
                ) from error
            raise NotInitialised(
                f"there is no cluster at {self.uri}",
                hint="Run `epochlake init` first, or name another root. Where there was one, mount its disk: `init` "
                "would begin another one in its place",
            ) from error
        except (OSError, DeltaError) as error:
            self._require_whole()
            raise failures.unavailable("read the log at", self.uri, error) from error
        if any(key.startswith(GENERATION) for key in table.metadata().configuration):
            raise LogUnreadable(
                f"the log at {self.uri} is written by Spark, which does not see what others append",
                hint="Name its table in [log] table",
            )
        self._was_there = True
        self._require_on_disk(table)
        return table

    def _require_on_disk(self, table: DeltaTable) -> None:
        """Sync what another process has appended, before anything is built upon it or done because of it."""
        try:
            # Not held against the id: what entries are, and where they belong, their hashes prove.
            delta_commits.sync_commits(self._storage, CommitName(self.uri, table.version()))
        except delta_commits.TornCommit as torn:
            raise torn_log(self._storage, self.uri, torn) from torn

    def _require_whole(self) -> None:
        try:
            delta_commits.require_whole(self._storage, self.uri)
        except delta_commits.TornCommit as torn:
            raise torn_log(self._storage, self.uri, torn) from torn
        if places.local_path(self.uri) is None:
            return
        if damaged := delta_checkpoints.damaged_checkpoints(self._storage, self.uri):
            raise LogUnreadable(
                f"the log at {self.uri} cannot be opened: {', '.join(damaged)} in its _delta_log is damaged, "
                "or of a checkpoint that is not there. Its commits are whole",
                hint="Run `epochlake log heal`",
            )
        if checkpoints := damaged_checkpoints(self._storage, self.uri):
            raise LogUnreadable(f"the log at {self.uri} cannot be opened: {'; '.join(map(str, checkpoints))}")

    def _has_lost_its_versions(self) -> bool:
        """Whether the directory of the log holds data files; asked when it is no table."""
        try:
            return any(file.name.endswith(".parquet") for file in self._storage.list_files(self.uri))
        except failures.MissingFile:
            return False

    def _is_another(self, version: int) -> bool:
        """Whether another log lies where the one was that was read up to this version: it was restored meanwhile, and
        has as many versions.
        """
        there = self._commit_file(version)
        return there is not None and self._seen is not None and there != self._seen

    def _require_same_log(self, written: int, entries: Sequence[Entry]) -> None:
        """Raise AppendConflict when version `written` continues another log than the one that was read: nobody could
        read that any more, so it is taken out unless somebody has put a version after it.
        """
        if not self._is_another(written - 1):
            return
        if not self._version_exists(written + 1):
            with suppress(StorageUnavailable):
                self._storage.delete_file(f"{self.uri}/_delta_log/{written:020}.json")
        raise AppendConflict(f"epoch {entries[0].epoch} was not appended: another log is in the place of the one read")

    def _require_at_the_tail(self, written: int, entries: Sequence[Entry]) -> None:
        """Raise AppendConflict unless version `written` continues the log, AppendUncertain when that cannot be told."""
        if not self._has_moved_on(written - 1):
            return
        try:
            found = {entry.epoch: entry.hash for entry in DeltaLog(self._storage, self.uri).read(entries[0].epoch - 1)}
        except (LogUnreadable, NotInitialised, StorageUnavailable) as error:
            raise AppendUncertain(
                f"epoch {entries[0].epoch}: its place in the log cannot be checked: {error}"
            ) from error
        if any(found.get(entry.epoch) != entry.hash for entry in entries):
            # The version was written where clean-up had deleted another one: nobody who opens the log can see it, and
            # it must not stay for those who have not looked for long.
            with suppress(StorageUnavailable):
                self._storage.delete_file(f"{self.uri}/_delta_log/{written:020}.json")
            raise AppendConflict(f"epoch {entries[0].epoch} was appended too late: the log had moved on long ago")

    def _has_moved_on(self, version: int) -> bool:
        """Whether clean-up may have come to the version after this one; also when that cannot be told."""
        try:
            pointer = f"{self.uri}/_delta_log/_last_checkpoint"
            newest = json.loads(self._storage.read_bytes(pointer))["version"] if self._storage.exists(pointer) else -1
        except (StorageUnavailable, ValueError, KeyError):
            return True
        return newest > version or not self._version_exists(version)

    def _commit_file(self, version: int) -> bytes | None:
        """The hash of the commit file of a version; None when it is not there, or cannot be read."""
        try:
            return hashlib.sha256(self._storage.read_bytes(f"{self.uri}/_delta_log/{version:020}.json")).digest()
        except StorageUnavailable:
            return None

    def _is_behind(self, version: int) -> bool:
        """Whether there are commits after a version; also when that cannot be told."""
        try:
            return delta_commits.has_moved_on(self._storage, self.uri, version)
        except StorageUnavailable:
            return True

    def _version_exists(self, version: int) -> bool:
        try:
            return self._storage.exists(f"{self.uri}/_delta_log/{version:020}.json")
        except StorageUnavailable:
            return True
