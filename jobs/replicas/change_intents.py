"""Writes that may land and are not in the index of changes yet, as they are known at the root.

A write of a table with a change stream is put here, with copies of its files, before anything of it is committed
anywhere. So whatever lands is known: its writer may die at any moment, and whoever comes next finds out what became of
it. It is taken away when the write is in the index, or can land no more.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
from epochlake.jobs.replicas.change_index import ChangeIndex, ReadyEntry, forget_ready
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.sealing import require_intact, require_sealed
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.stamped import is_complete, stamped, unstamped
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, UnknownFormat, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage

FORMAT = 1
OPEN = "_open"
THREADS = 8


class Intent(msgspec.Struct, frozen=True):
    """A write that may land: its files, where they were staged, and who writes it.

    `write_id`: of the write, or of the batch that it is a try of. `pipeline_id`: by its lease it is known whether the
    writer lives; `ended`: it has said itself that it goes on no more. `at`: microseconds since 1970. Stored as JSON.
    """

    intent_id: str
    write_id: str
    level: str
    by: str
    pipeline_id: str
    at: int
    files: tuple[StagedFile, ...]
    ended: bool = False
    format: int = FORMAT


class PutIntent(msgspec.Struct, frozen=True):
    """An intent, and the index beside which it was put.

    `ready`: its entry there, as it was made ready with it. `is_whole`: the disk has copies of all of its files.
    """

    index: ChangeIndex
    intent: Intent
    ready: ReadyEntry | None = None
    is_whole: bool = False


class Intents:
    """The intents of one stream. Methods raise StorageUnavailable where the root does not answer."""

    def __init__(self, storage: Storage, index: ChangeIndex) -> None:
        self._storage = storage
        self._index = index
        self._directory = places.join(index.uri, OPEN)

    def put(self, metadata: ClusterMetadata, table: Table, intent: Intent) -> None:
        """Store the intent, and side by side copies of those files that lie in the index not yet: most are stored there
        while they are staged. All of it is on the disk when this returns.

        Raises StorageUnavailable when a file is nowhere whole.
        """
        lacking = self._lacking(intent)

        def keep(staged: StagedFile | None) -> None:
            return self._announce(intent, lacking) if staged is None else self._keep(metadata, table, staged)

        ThreadWorkers(THREADS).run(keep, [None, *lacking])

    def announce(self, intent: Intent, epoch: int) -> PutIntent:
        """Store the intent, and its entry in the index, made ready for a landing that is judged at `epoch`.

        Both are on the disk when this returns, and those copies that there are; `complete` stores the others.
        """
        lacking, ready = self._lacking(intent), None
        with suppress(StorageUnavailable):  # it does without
            files = [staged.file for staged in intent.files]
            ready = self._index.write_ready(intent.write_id, files, epoch=epoch, level=intent.level, by=intent.by)
        try:
            self._announce(intent, lacking, [] if ready is None else [ready.prepared])
        except BaseException:
            if ready is not None:
                forget_ready(self._storage, ready)
            raise
        return PutIntent(self._index, intent, ready, not lacking)

    def _announce(self, intent: Intent, lacking: Sequence[StagedFile], beside: Sequence[str] = ()) -> None:
        """Nobody else has its name, and who finds it torn leaves it: so its bytes and its name are synced together. So
        are its copies, whoever has stored them, and may not have come to their sync, and what is given `beside` it.
        """
        uri = self._uri(intent)
        self._index.make_directory(OPEN)
        self._storage.write_bytes(uri, stamped(intent))
        there = [staged.file for staged in intent.files if staged not in lacking and staged.file.rows]
        uris = [self._index.data_uri(file) for file in there]
        directories = [self._directory, *([self._index.data_directory] if uris else [])]
        self._storage.sync_always([uri, *uris, *beside], directories)

    def complete(self, metadata: ClusterMetadata, table: Table, intent: Intent) -> None:
        """Store the copies that an intent lacks. Raises as `put`."""
        ThreadWorkers(THREADS).run(lambda staged: self._keep(metadata, table, staged), self._lacking(intent))

    def end(self, intent: Intent) -> None:
        """Say that its writer goes on no more, so that others need not wait to find out."""
        self._storage.replace_bytes(self._uri(intent), stamped(_ended(intent)))

    def narrow(self, intent: Intent, files: Sequence[StagedFile]) -> Intent:
        """Say that only these files of it may land any more; the intent as it is now."""
        narrowed = msgspec.structs.replace(intent, files=tuple(files))
        self._storage.replace_bytes(self._uri(intent), stamped(narrowed))
        return narrowed

    def take_away(self, intent: Intent) -> None:
        """Forget it: the write is in the index, or can land no more."""
        self._storage.delete_file(self._uri(intent))

    def forget_files(self, files: Iterable[DataFile]) -> None:
        """Delete the copies of files that are in no entry and in no other intent."""
        needed = {staged.file.file_id for other in self.all() for staged in other.files}
        for file in files:
            if file.file_id not in needed:
                self._storage.delete_file(self._index.data_uri(file))

    def all(self) -> list[Intent]:
        """Those that there are, the oldest first. Raises LogUnreadable for one that is damaged, UnknownFormat.

        One that a power cut has torn, or that is being written just now, is of a write that has not begun to land.
        """
        try:
            listed = self._storage.list_files(self._directory)
        except failures.MissingFile:
            return []
        found = []
        for entry in listed:
            if places.TEMPORARY in entry.name:
                continue
            try:
                data = self._storage.read_bytes(places.join(self._directory, entry.name))
            except failures.MissingFile:
                continue  # it was taken away just now
            if is_complete(data):
                found.append(_decoded(data, entry.name))
        return sorted(found, key=lambda intent: (intent.at, intent.intent_id))

    def _lacking(self, intent: Intent) -> list[StagedFile]:
        files = [staged for staged in intent.files if staged.file.rows]
        lacking = {file.file_id for file in self._index.lacking([staged.file for staged in files])}
        return [staged for staged in files if staged.file.file_id in lacking]

    def _keep(self, metadata: ClusterMetadata, table: Table, staged: StagedFile) -> None:
        """Store a copy of a staged file in the index, from a replica that has it whole."""
        file, target = staged.file, self._index.data_uri(staged.file)
        failure: StorageUnavailable | WrongCluster | None = None
        for volume in sorted(staged.stored):
            source = places.join(address_of(self._storage, metadata, table, volume).uri, file.path)
            try:
                require_intact(self._storage, file, source)
                self._storage.copy_file(source, target)
                require_sealed(self._storage, file, target)
                self._storage.sync_always([target], [self._index.data_directory])
                return
            except (StorageUnavailable, WrongCluster) as error:
                failure = error
        raise StorageUnavailable(
            f"file {file.file_id} of {table.full_name} cannot be kept for the readers of its changes, as no replica "
            f"has it whole{f': {failure}' if failure else ''}",
            hint="Write the rows again, under another name where they are a batch",
        ) from failure

    def _uri(self, intent: Intent) -> str:
        return places.join(self._directory, f"{intent.intent_id}.json")


def new_intent(write_id: str | None, files: Sequence[StagedFile], level: str, by: str, pipeline_id: str) -> Intent:
    """The intent of a write that begins to land now; without a `write_id` it gets one."""
    intent_id = str(uuid.uuid4())
    kept = tuple(msgspec.structs.replace(staged, failed={}) for staged in files)
    return Intent(intent_id, write_id or intent_id, level, by, pipeline_id, time.time_ns() // 1000, kept)


def _ended(intent: Intent) -> Intent:
    return msgspec.structs.replace(intent, ended=True)


def _decoded(data: bytes, name: str) -> Intent:
    intent = unstamped(data, Intent, f"the write {name} that may have landed")
    if intent.format != FORMAT:
        raise UnknownFormat(f"{name} has format {intent.format}, and this version knows {FORMAT}", hint="Upgrade")
    return intent
