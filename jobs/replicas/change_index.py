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
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import msgspec
from deltalake import DeltaTable
from epochlake.jobs.replicas.change_entries import (
    BEGUN,
    DATA,
    GENERATION,
    Begun,
    ChangeEntry,
    Said,
    Totals,
    added,
    entry_of,
    generation_in,
    mark_in,
    removed,
)
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import attempts
from epochlake.jobs.replicas.schema import replica_schema
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.delta_commits import Action, CommitName
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.metadata.model import Table, TableId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.tokens import TABLET

logger = logging.getLogger(__name__)

FLOOR = "_floor"
"""A file with the last position whose changes are not kept any more."""

DELETED_UP_TO = "_deleted"
"""A file with the last position whose files have been deleted: at most the floor, less where that was interrupted."""

CHECKPOINT_EVERY = 100
KEPT = 4096
"""Entries that a process remembers."""

READY_SECONDS = 1.0
"""For so long an entry may be used that was made ready: its age is told by when its bytes were stored."""


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


class TooEarly(EpochlakeError):
    """A write is older than the beginning of the stream: what has come over it since may not be in the stream."""


class Tail(msgspec.Struct, frozen=True):
    """The end of an index: its last position, and the newest time of writing up to there.

    `identity`: what tells the commit at that position from another one that takes its place.
    """

    position: int
    newest: int
    identity: tuple[int, ...] | None = None


class ReadyEntry(msgspec.Struct, frozen=True):
    """An entry whose bytes are on the disk, at `prepared`, before its write has reached its level: a proposal.

    It counts for nothing, and is used only where it is what would be appended: to the index at `uri` after `tail`, of
    all of these files, judged at `epoch`. `since`: when it was made, by the clock of the process that does not go back.
    """

    uri: str
    tail: Tail
    write_id: str
    epoch: int
    level: str
    by: str
    files: tuple[DataFile, ...]
    actions: tuple[Action, ...]
    prepared: str
    since: float

    def fits(
        self, uri: str, tail: Tail, write_id: str, epoch: int, level: str, by: str, files: Sequence[DataFile]
    ) -> bool:
        """Whether it is the entry of a write that is to be appended now."""
        said = (self.uri, self.tail, self.write_id, self.epoch, self.level, self.by, self.files)
        return said == (uri, tail, write_id, epoch, level, by, tuple(files)) and (
            time.monotonic() - self.since < READY_SECONDS
        )


_Store = Callable[[Storage, CommitName, str, Sequence[Action]], str]
"""`prepare_commit` of delta_commits.py, or `write_prepared`."""


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
        self._table_id: str | None = None
        self._made: set[str] = set()
        # Up to where it is known which entries are older than some before them, and these, each with where that begins.
        self._looked_at = 0
        self._reach_back: list[tuple[int, int]] = []
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
        delta_commits.put_commit(
            self._storage, CommitName(self.uri, 0), "CREATE TABLE", [protocol, {"metaData": metadata}]
        )

    def data_uri(self, file: DataFile) -> str:
        """Where the index has a file."""
        return places.join(self.uri, DATA, f"{file.file_id}.parquet")

    @property
    def data_directory(self) -> str:
        """Where the index has its files."""
        return places.join(self.uri, DATA)

    @property
    def log_directory(self) -> str:
        """Where the index has its commits."""
        return places.join(self.uri, delta_commits.LOG)

    def make_directory(self, name: str) -> None:
        """Make a directory of the index, so that the disk has its name, unless this process has."""
        if name not in self._made:
            self._storage.create_directory(places.join(self.uri, name), parents=True)
            self._made.add(name)

    def lacking(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Those of some files that do not lie in the index with all of their bytes."""
        sizes = self._storage.sizes_of([self.data_uri(file) for file in files])
        return [file for file, size in zip(files, sizes, strict=True) if size != file.size]

    def tail(self) -> Tail:
        """The end as it is now. An index that is not there is an error: it was made before its stream began."""
        known = self._tail
        if known is not None and self._identity(known.position) != known.identity:
            # The root went back behind what this process has read: nothing that it remembers counts.
            logger.warning("the index of changes at %s went back behind position %d", self.uri, known.position)
            with self._lock:
                self._tail = self._begun = self._table_id = known = None
                self._entries.clear()
                self._made.clear()
                self._reach_back.clear()
                self._looked_at = 0
        if known is None:
            last = delta_commits.newest_version(self._storage, self.uri) if self._is_there() else -1
            if last < 0:
                raise StorageUnavailable(
                    f"the index of changes at {self.uri} is lost: its table's changes are to be kept, and it is not "
                    "there",
                    hint="Restore it from a backup; or end the stream with `epochlake changes drop`, and begin "
                    "another one",
                )
            known = self._tail_at(last)
        while delta_commits.has_moved_on(self._storage, self.uri, known.position):
            known = self._tail_at(known.position + 1)
        with self._lock:
            if self._tail is None or self._tail.position < known.position:
                self._tail = known
        return known

    def _tail_at(self, position: int) -> Tail:
        identity = self._identity(position)
        return Tail(position, self._newest_at(position), identity)

    def _identity(self, position: int) -> tuple[int, ...] | None:
        found = delta_commits.identity(self._storage, self.uri, position)
        # Its size, when it was written, and its number. When its inode was changed says nothing: it was linked.
        return None if found is None else (found[0], found[1], found[-1])

    def begin(self, newest: int) -> Begun:
        """Begin the stream, once, after everybody who does not know of it can land no more.

        `newest`: the newest time of writing of the table's rows then. Writes that are in the index before that are of
        those who know of the stream.
        """
        for _ in attempts():
            begun = self.begun()
            if begun is not None:
                return begun
            tail = self.tail()
            mark: Action = {"txn": {"appId": BEGUN, "version": newest}}
            self._put(tail.position + 1, "BEGIN", [mark])
        raise self._contended()

    def begun(self) -> Begun | None:
        """Where it begins; None where it has not begun yet."""
        if self._begun is None:
            last = self.tail().position
            marks = ((at, mark_in(self._actions(at))) for at in range(1, last + 1) if self.entry(at) is None)
            self._begun = next((Begun(at, newest) for at, newest in marks if newest is not None), None)
        return self._begun

    def mark_generation(self, number: int, after: int) -> int:
        """Let a generation of the streams begin here, once; the position after which its changes come.

        After the position `after` nobody has marked it yet or somebody has, and before it nobody could.
        """
        for _ in attempts():
            tail = self.tail().position
            found = self.generation_mark(number, after, tail)
            if found is not None:
                return found
            mark: Action = {"txn": {"appId": GENERATION, "version": number}}
            self._put(tail + 1, "GENERATION", [mark])
        raise self._contended()

    def generation_mark(self, number: int, after: int, up_to: int) -> int | None:
        """Where a generation begins, after one position and up to another one that is no later than the tail; None
        where it does not.
        """
        for position in range(after + 1, up_to + 1):
            if self.entry(position) is None and generation_in(self._actions(position)) == number:
                return position
        return None

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
        entry = entry_of(position, self._actions(position), self.uri)
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

    def compared_from(self, after: int, up_to: int) -> int:
        """After which position entries have to be kept, at most `after`, so that each of those after it, up to another
        position, can be compared with what came before it. Each entry is looked at once by a process.
        """
        with self._lock:
            looked_at = max(self._looked_at, self.floor())
        found = []
        for entry in self.entries(looked_at, up_to):
            begin = self.before_entry(entry, entry.oldest)
            if begin < entry.position - 1:
                found.append((entry.position, begin))
        with self._lock:
            if self._looked_at <= looked_at:
                self._looked_at = max(up_to, looked_at)
                self._reach_back += found
            reach_back = [(position, begin) for position, begin in self._reach_back if position > after]
        needed = min((begin for _, begin in reach_back), default=after)
        return after if needed >= after else self.compared_from(needed, up_to)

    def make_ready(
        self, write_id: str, files: Sequence[DataFile], *, epoch: int, level: str, by: str
    ) -> ReadyEntry | None:
        """Have the disk have the bytes of an entry before its write has landed, for `append`; None where the index has
        it in part. Raises StorageUnavailable.
        """
        return self._made_ready(delta_commits.prepare_commit, write_id, files, epoch, level, by)

    def write_ready(
        self, write_id: str, files: Sequence[DataFile], *, epoch: int, level: str, by: str
    ) -> ReadyEntry | None:
        """`make_ready`, but for the sync of `prepared`, which is for whoever calls it."""
        return self._made_ready(delta_commits.write_prepared, write_id, files, epoch, level, by)

    def _made_ready(
        self,
        store: _Store,
        write_id: str,
        files: Sequence[DataFile],
        epoch: int,
        level: str,
        by: str,
    ) -> ReadyEntry | None:
        files = [file for file in files if file.rows]
        tail = self._known_tail()
        if not files or len(self._without_entry(files, tail)) < len(files):
            return None
        since = time.monotonic()
        actions, _ = self._said(tail, write_id, files, epoch, level, by)
        prepared = store(self._storage, self._commit_at(tail.position + 1), "WRITE", actions)
        return ReadyEntry(self.uri, tail, write_id, epoch, level, by, tuple(files), tuple(actions), prepared, since)

    def append(
        self,
        write_id: str,
        files: Sequence[DataFile],
        *,
        epoch: int,
        level: str,
        by: str,
        in_time: bool = True,
        ready: ReadyEntry | None = None,
    ) -> tuple[int, int] | None:
        """Append a write whose files the index has in copies: where it is, and how many of the files are in that entry.

        Files that are in the index already are left out; None when all are. With `in_time`, TooEarly is raised for what
        was written before the stream began and is appended after that. Raises StorageUnavailable when it cannot be told
        whether it was appended: appending it again is safe. `ready`: what was made ready of it, used where it fits, and
        used up by this, whatever comes of it.
        """
        files = [file for file in files if file.rows]
        left = [] if ready is None else [ready]
        try:
            if not files:
                return None
            tail = self._known_tail()
            for _ in attempts():
                new = self._without_entry(files, tail)
                if not new:
                    return None
                begun = self.begun()
                if in_time and begun is not None and min(file.min_written_at for file in new) <= begun.newest:
                    raise TooEarly(f"a write is older than the stream of changes at {self.uri}", hint="Write it again")
                self._require_there(new)
                position = tail.position + 1
                if left and left[0].fits(self.uri, tail, write_id, epoch, level, by, new):
                    fitting = left.pop()
                    actions, newest = list(fitting.actions), _newest(tail, new)
                    put = delta_commits.put_prepared(self._storage, self._commit_at(position), fitting.prepared)
                else:
                    actions, newest = self._said(tail, write_id, new, epoch, level, by)
                    put = self._put(position, "WRITE", actions)
                if put:
                    self._remember(Tail(position, newest, self._identity(position)), actions)
                    self._checkpoint_if_due(position)
                    return position, len(new)
                tail = self.tail()
        finally:
            for unused in left:
                forget_ready(self._storage, unused)
        raise self._contended()

    def _checkpoint_if_due(self, position: int) -> None:
        delta_checkpoints.checkpoint_if_due(
            self._storage, lambda: DeltaTable(places.delta_uri(self.uri)), self.uri, position, CHECKPOINT_EVERY
        )

    def _said(
        self, tail: Tail, write_id: str, files: Sequence[DataFile], epoch: int, level: str, by: str
    ) -> tuple[list[Action], int]:
        """The entry of a write after a tail, and the newest time of writing with it."""
        now, newest, before = time.time_ns() // 1000, _newest(tail, files), self._totals_at(tail.position)
        totals = None if before is None else before.with_write(files)
        return [added(Said(write_id, epoch, level, by, now, newest, file, totals)) for file in files], newest

    def _known_tail(self) -> Tail:
        """The end as this process has read it last, while that is there. Who appends after it finds out what is newer:
        then the commit is refused.
        """
        known = self._tail
        is_there = known is not None and self._identity(known.position) == known.identity
        return known if known is not None and is_there else self.tail()

    def _remember(self, tail: Tail, actions: Sequence[Action]) -> None:
        """What this process has appended."""
        with self._lock:
            self._entries[tail.position] = entry_of(tail.position, actions, self.uri)
            if self._tail is None or self._tail.position < tail.position:
                self._tail = tail

    def _require_there(self, files: Sequence[DataFile]) -> None:
        """That the index has its copies of some files. Raises MissingFile."""
        lacking = self.lacking(files)
        if lacking:
            raise failures.MissingFile(
                f"the index of changes at {self.uri} has no copy of file {lacking[0].file_id}", hint="Try again"
            )

    def without_entry(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Those of some files that are in no entry."""
        return self._without_entry(files, self.tail())

    def _without_entry(self, files: Sequence[DataFile], tail: Tail) -> list[DataFile]:
        if not files:
            return []
        oldest = min(file.min_written_at for file in files)
        entries = self.entries(self.before(oldest, tail), tail.position)
        there = {file.file_id for entry in entries for file in entry.files}
        return [file for file in files if file.file_id not in there]

    def drop(self, floor: int) -> list[ChangeEntry]:
        """Keep nothing up to the position `floor`; the entries that are not kept any more.

        Readers are told before anything goes. What an earlier call was killed at is done as well.
        """
        deleted, floor = self._deleted_up_to(), max(floor, self.floor())
        self._storage.replace_bytes(places.join(self.uri, FLOOR), str(floor).encode())
        over = list(self.entries(deleted, floor))
        files = [file for entry in over for file in entry.files]
        if files:
            self._put_deleted(files)
        for file in files:
            self._storage.delete_file(self.data_uri(file))
        self._storage.replace_bytes(places.join(self.uri, DELETED_UP_TO), str(floor).encode())
        return over

    def _put_deleted(self, files: Sequence[DataFile]) -> None:
        for _ in attempts():
            position = self.tail().position + 1
            actions = [removed(file) for file in files]
            if self._put(position, "DELETE", actions):
                return
        raise self._contended()

    def _put(self, position: int, operation: str, actions: Sequence[Action]) -> bool:
        return delta_commits.put_commit(self._storage, self._commit_at(position), operation, actions)

    def committed_at(self, position: int) -> int:
        """When the commit at a position was put, by the clock of the root; microseconds since 1970, 0: not known."""
        return 1000 * (self._storage.modified_ms(delta_commits.commit_uri(self.uri, position)) or 0)

    def between(self, after: int, up_to: int) -> Totals:
        """What the entries after a position have, up to another one, which is no later than the tail."""
        last, before = self._totals_at(up_to), self._totals_at(after)
        if last is not None and before is not None:
            return last.since(before)
        found = Totals()
        for entry in self.entries(after, up_to):
            found = found.with_write(entry.files)
        return found

    def _totals_at(self, position: int) -> Totals | None:
        entry = self._last_entry(position)
        return Totals() if entry is None else entry.totals

    def _contended(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"the index of changes at {self.uri} was changed by others during each of our tries", hint="Retry"
        )

    def _is_there(self) -> bool:
        return self._storage.exists(delta_commits.commit_uri(self.uri, 0))

    def floor(self) -> int:
        """The last position whose changes are not kept any more; 0 where all are."""
        return self._number(FLOOR) or 0

    def is_interrupted(self) -> bool:
        """Whether a call of `drop` was killed before it had deleted all files."""
        return (self._number(DELETED_UP_TO) or 0) < self.floor()

    def _deleted_up_to(self) -> int:
        """The last position whose files have been deleted. Indexes of earlier versions do not say it before this."""
        said = self._number(DELETED_UP_TO)
        if said is None:
            said = self.floor()
            self._storage.replace_bytes(places.join(self.uri, DELETED_UP_TO), str(said).encode())
        return said

    def _number(self, name: str) -> int | None:
        uri = places.join(self.uri, name)
        try:
            return int(self._storage.read_bytes(uri))
        except failures.MissingFile:
            return None
        except ValueError as error:
            raise LogUnreadable(f"{uri} is no number", hint="Restore the file") from error

    def _last_entry(self, position: int) -> ChangeEntry | None:
        """The last entry up to a position."""
        while position > 0:
            entry = self.entry(position)
            if entry is not None:
                return entry
            position -= 1
        return None

    def newest_up_to(self, position: int) -> int:
        """The newest time of writing up to a position, microseconds; 0 where there is none."""
        return self._newest_at(position)

    def _newest_at(self, position: int) -> int:
        """The newest time of writing up to a position."""
        marked = 0
        while position > 0:
            entry = self.entry(position)
            if entry is not None:
                return max(entry.newest, marked)
            marked = max(marked, mark_in(self._actions(position)) or 0)
            position -= 1
        return marked

    def _commit_at(self, position: int) -> CommitName:
        """The commit at a position. Every index was made by one commit: all of them are held against its id."""
        return CommitName(self.uri, position, self._id_of_table())

    def _id_of_table(self) -> str | None:
        """The id of its Delta table, as the first commit has it."""
        if self._table_id is None:
            first = delta_commits.read_commit(self._storage, CommitName(self.uri, 0))
            self._table_id = next((delta_commits.id_in(action) for action in first if "metaData" in action), None)
        return self._table_id

    def _actions(self, position: int) -> list[Action]:
        try:
            return delta_commits.read_commit(self._storage, self._commit_at(position))
        except failures.MissingFile as error:
            raise StorageUnavailable(
                f"position {position} of the index of changes at {self.uri} is missing, and later ones are there",
                hint="Restore it from a backup; or end the stream, and begin another one",
            ) from error


def forget_ready(storage: Storage, ready: ReadyEntry) -> None:
    """Delete what was made ready, used or not. Never raises."""
    delta_commits.forget_prepared(storage, ready.prepared)


def _newest(tail: Tail, files: Sequence[DataFile]) -> int:
    return max([tail.newest, *(file.max_written_at for file in files)])
