"""The index of a change stream: every write of its table that has landed, in the order of the stream, once.

An append-only Delta table `<root>/changes/<table id>/<stream id>`, whose versions are the positions of the stream. A
write is one commit. Its data files are the write's own files, as they were staged, in copies of their own: what becomes
of the replicas' files (cut, merged, swept, lost) is nothing to a reader. So anybody may read it with Spark.

A commit is put as exactly the version after the last one that was read, so whoever appends has seen all that came
before. That gives both promises of the index. *Once*: every staged file has one time of writing, and each entry says
the newest time up to itself; a file can only be after the last position with an older newest time, and there it is
looked for. *Who came late is known*: an entry that is older than one before it says so, by the same numbers.

Commits are kept for ever, as they answer both questions; data files go when the stream's retention is over.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from deltalake import DeltaTable
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import attempts
from epochlake.jobs.replicas.schema import replica_schema
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.delta_commits import Action
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable, UnknownFormat
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.metadata.model import Table, TableId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.tokens import TABLET

FORMAT = 1
TAG = "epochlake.change"
FLOOR = "_floor"
"""A file with the last position whose changes are not kept any more."""

BEGUN = "epochlake-begun"
"""The transaction by which the stream begins: its version is the newest time of writing of all rows from before."""

DATA = "data"
CHECKPOINT_EVERY = 100
KEPT = 4096
"""Entries that a process remembers."""


class ChangesGone(EpochlakeError):
    """What a reader asks for is not kept any more, or is of another stream: it has to begin again.

    `position`: from where it can go on after it has read the table.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(
            reason,
            hint=f"Begin again: read the whole table now, then the changes after position {position}",
        )
        self.position = position


class Said(msgspec.Struct, frozen=True):
    """What an entry says beside its files; stored with each of them.

    `write_id`: of the write, or of the batch. `epoch`: at which its landing was judged; `at`: when it was appended,
    microseconds. `newest`: the newest time of writing up to this entry, its own included.
    """

    write_id: str
    epoch: int
    level: str
    by: str
    at: int
    newest: int
    file: DataFile
    format: int = FORMAT


class ChangeEntry(msgspec.Struct, frozen=True):
    """A write that has landed. `position`: in the stream; `files`: its files, each under its name in the index.

    `newest`: the newest time of writing of all entries up to this one.
    """

    position: int
    write_id: str
    epoch: int
    level: str
    by: str
    at: int
    newest: int
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Begun(msgspec.Struct, frozen=True):
    """Where a stream begins. What was written before it, until `newest`, is not in the stream but in the table."""

    position: int
    newest: int


class TooEarly(EpochlakeError):
    """A write is older than the beginning of the stream: what has come over it since may not be in the stream."""


class Tail(msgspec.Struct, frozen=True):
    """The end of an index: its last position, and the newest time of writing up to there."""

    position: int
    newest: int


class ChangeIndexes:
    """The indexes below a root. Safe for use by several threads."""

    def __init__(self, storage: Storage, uri: str) -> None:
        self.uri = uri
        self._storage = storage
        self._lock = threading.Lock()
        self._known: dict[str, ChangeIndex] = {}

    def of(self, stream: ChangeStream) -> ChangeIndex:
        """The index of a stream."""
        return self.at(stream.table_id, stream.stream_id)

    def at(self, table_id: TableId, stream_id: str) -> ChangeIndex:
        with self._lock:
            found = self._known.get(stream_id)
            if found is None:
                uri = places.join(self.uri, table_id, stream_id)
                found = self._known[stream_id] = ChangeIndex(self._storage, uri)
            return found


class ChangeIndex:
    """One index. Its methods raise StorageUnavailable where the root does not answer. Safe for use by several threads.

    What was read is remembered: commits never change.
    """

    def __init__(self, storage: Storage, uri: str) -> None:
        self.uri = uri
        self._storage = storage
        self._lock = threading.Lock()
        self._tail: Tail | None = None
        self._begun: Begun | None = None
        self._entries: OrderedDict[int, ChangeEntry | None] = OrderedDict()

    def create(self, table: Table) -> None:
        """Make it, empty, for a table. Nothing to do where it is."""
        schema = json.loads(replica_schema(table).to_json())
        schema["fields"] = [field for field in schema["fields"] if field["name"] != TABLET]
        description = "Epochlake: the changes of a table, a write for each version. Append only; do not write by hand."
        metadata = {
            "id": str(uuid.uuid4()),
            "name": "epochlake_changes",
            "description": description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [],
            "createdTime": time.time_ns() // 1_000_000,
            "configuration": {
                "delta.enableExpiredLogCleanup": "false",
                "delta.checkpointInterval": str(CHECKPOINT_EVERY),
                "delta.dataSkippingNumIndexedCols": "3",
            },
        }
        protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        for below in (delta_commits.LOG, DATA):
            self._storage.create_directory(places.join(self.uri, below), parents=True)
        delta_commits.put_commit(self._storage, self.uri, 0, "CREATE TABLE", [protocol, {"metaData": metadata}])

    def data_uri(self, file: DataFile) -> str:
        """Where the index has a file."""
        return places.join(self.uri, DATA, f"{file.file_id}.parquet")

    def tail(self) -> Tail:
        """The end as it is now. An index that is not there is an error: it was made before its stream began."""
        known = self._tail
        if known is None:
            last = delta_commits.newest_version(self._storage, self.uri) if self._is_there() else -1
            if last < 0:
                raise StorageUnavailable(
                    f"the index of changes at {self.uri} is lost: its table's changes are to be kept, and it is not "
                    "there",
                    hint="Restore it from a backup; or end the stream with `epochlake changes drop`, and begin "
                    "another one",
                )
            known = Tail(last, self._newest_at(last))
        while delta_commits.has_moved_on(self._storage, self.uri, known.position):
            known = Tail(known.position + 1, self._newest_at(known.position + 1))
        with self._lock:
            if self._tail is None or self._tail.position < known.position:
                self._tail = known
        return known

    def begin(self, newest: int) -> Begun:
        """Begin the stream, once, after everybody who does not know of it can land no more.

        `newest`: the newest time of writing of the table's rows then.
        """
        for _ in attempts():
            begun = self.begun()
            if begun is not None:
                return begun
            tail = self.tail()
            mark: Action = {"txn": {"appId": BEGUN, "version": max(newest, tail.newest)}}
            delta_commits.put_commit(self._storage, self.uri, tail.position + 1, "BEGIN", [mark])
        raise self._contended()

    def begun(self) -> Begun | None:
        """Where it begins; None where it has not begun yet."""
        if self._begun is None:
            last = self.tail().position
            marks = ((at, _mark(self._actions(at))) for at in range(1, last + 1) if self.entry(at) is None)
            self._begun = next((Begun(at, newest) for at, newest in marks if newest is not None), None)
        return self._begun

    def entries(self, after: int, up_to: int) -> Iterator[ChangeEntry]:
        """The entries after a position, up to another one, which is no later than the tail."""
        for position in range(after + 1, up_to + 1):
            entry = self.entry(position)
            if entry is not None:
                yield entry

    def entry(self, position: int) -> ChangeEntry | None:
        """The entry at a position that is no later than the tail; None where something else was committed."""
        with self._lock:
            if position in self._entries:
                return self._entries[position]
        entry = _entry(position, self._actions(position), self.uri)
        with self._lock:
            self._entries[position] = entry
            while len(self._entries) > KEPT:
                self._entries.popitem(last=False)
        return entry

    def before(self, written_at: int, tail: Tail) -> int:
        """The last position up to which every write is older than `written_at`: whatever is as new comes after it."""
        position, newest = tail.position, tail.newest
        while position > 0 and newest >= written_at:
            position -= 1
            newest = self._newest_at(position)
        return position

    def before_entry(self, entry: ChangeEntry, written_at: int) -> int:
        """The last position before an entry up to which every write is older than `written_at`."""
        last = entry.position - 1
        return self.before(written_at, Tail(last, self._newest_at(last)))

    def append(
        self,
        write_id: str,
        files: Sequence[DataFile],
        *,
        epoch: int,
        level: str,
        by: str,
        in_time: bool = True,
    ) -> tuple[int, int] | None:
        """Append a write whose files the index has in copies: where it is, and how many of the files are in that entry.

        Files that are in the index already are left out; None when all are. With `in_time`, TooEarly is raised for what
        was written before the stream began and is appended after that. Raises StorageUnavailable when it cannot be told
        whether it was appended: appending it again is safe.
        """
        files = [file for file in files if file.rows]
        if not files:
            return None
        oldest = min(file.min_written_at for file in files)
        for _ in attempts():
            tail = self.tail()
            there = {
                file.file_id for entry in self.entries(self.before(oldest, tail), tail.position) for file in entry.files
            }
            new = [file for file in files if file.file_id not in there]
            if not new:
                return None
            begun = self.begun()
            if in_time and begun is not None and min(file.min_written_at for file in new) <= begun.newest:
                raise TooEarly(f"a write is older than the stream of changes at {self.uri}", hint="Write it again")
            newest = max([tail.newest, *(file.max_written_at for file in new)])
            said = [Said(write_id, epoch, level, by, time.time_ns() // 1000, newest, file) for file in new]
            position = tail.position + 1
            uris = [self.data_uri(file) for file in new]
            if delta_commits.put_commit(self._storage, self.uri, position, "WRITE", [_add(one) for one in said], uris):
                delta_checkpoints.checkpoint_if_due(
                    self._storage, lambda: DeltaTable(places.delta_uri(self.uri)), self.uri, position, CHECKPOINT_EVERY
                )
                return position, len(new)
        raise self._contended()

    def drop(self, floor: int, entries: Sequence[ChangeEntry]) -> bool:
        """Keep nothing up to the position `floor`, as these entries' files; whether that was committed now.

        Readers are told before anything goes.
        """
        self._storage.replace_bytes(places.join(self.uri, FLOOR), str(max(floor, self.floor())).encode())
        position = self.tail().position + 1
        files = [file for entry in entries for file in entry.files]
        if not delta_commits.put_commit(self._storage, self.uri, position, "DELETE", [_remove(file) for file in files]):
            return False
        for file in files:
            self._storage.delete_file(self.data_uri(file))
        return True

    def _contended(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"the index of changes at {self.uri} was changed by others during each of our tries", hint="Retry"
        )

    def _is_there(self) -> bool:
        return self._storage.exists(delta_commits.commit_uri(self.uri, 0))

    def floor(self) -> int:
        """The last position whose changes are not kept any more; 0 where all are."""
        try:
            return int(self._storage.read_bytes(places.join(self.uri, FLOOR)))
        except failures.MissingFile:
            return 0
        except ValueError as error:
            raise LogUnreadable(f"{places.join(self.uri, FLOOR)} is no number", hint="Restore the file") from error

    def _newest_at(self, position: int) -> int:
        """The newest time of writing up to a position."""
        while position > 0:
            entry = self.entry(position)
            newest = _mark(self._actions(position)) if entry is None else entry.newest
            if newest is not None:
                return newest
            position -= 1
        return 0

    def _actions(self, position: int) -> list[Action]:
        try:
            return delta_commits.read_commit(self._storage, self.uri, position)
        except failures.MissingFile as error:
            raise StorageUnavailable(
                f"position {position} of the index of changes at {self.uri} is missing, and later ones are there",
                hint="Restore it from a backup; or end the stream, and begin another one",
            ) from error


def _path(file: DataFile) -> str:
    return f"{DATA}/{file.file_id}.parquet"


def _add(said: Said) -> Action:
    return {
        "add": {
            "path": _path(said.file),
            "partitionValues": {},
            "size": said.file.size,
            "modificationTime": said.at // 1000,
            "dataChange": True,
            "stats": said.file.statistics,
            "tags": {TAG: msgspec.json.encode(said).decode()},
        }
    }


def _entry(position: int, actions: Sequence[Action], uri: str) -> ChangeEntry | None:
    tags = [add["tags"][TAG] for action in actions if (add := _mapping(action.get("add"))) and add.get("tags")]
    try:
        said = [msgspec.json.decode(tag, type=decodable(Said)) for tag in tags]
    except msgspec.MsgspecError as error:
        raise LogUnreadable(
            f"position {position} of the index of changes at {uri} cannot be read: {error}", hint="Restore the file"
        ) from error
    if not said:
        return None
    first = said[0]
    if first.format != FORMAT:
        raise UnknownFormat(
            f"position {position} of {uri} has format {first.format}, and this version knows {FORMAT}", hint="Upgrade"
        )
    return ChangeEntry(
        position,
        first.write_id,
        first.epoch,
        first.level,
        first.by,
        first.at,
        first.newest,
        tuple(one.file for one in said),
    )


def _mark(actions: Sequence[Action]) -> int | None:
    """The newest time before the stream, where these actions begin it."""
    marks = [txn["version"] for action in actions if (txn := _mapping(action.get("txn"))) and txn["appId"] == BEGUN]
    return int(marks[0]) if marks else None


def _remove(file: DataFile) -> Action:
    return {
        "remove": {
            "path": _path(file),
            "dataChange": True,
            "deletionTimestamp": time.time_ns() // 1_000_000,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
        }
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
