"""The journal of a table's merges: numbered entries at the root, each put once, and by nobody twice.

An entry says which staged files a merge consists of. Whoever has put it has merged, whatever becomes of him; whoever
has not, has merged nothing. A merge puts the entry after the one that was finished before it read: of two that have
read the same rows one finds the number taken, and nothing of it is ever committed (docs/decisions/073-merge.md).

Until an entry is finished (its files are live at its level) copies of them lie beside it. So anybody can finish it,
also when its own process was killed, and vacuum has taken what it had staged.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.row_digests import DigestedColumn
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.stamped import stamped, unstamped
from epochlake.metastore.delta_tables import NO_SECOND_TRY
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable, UnknownFormat
from epochlake.metastore.metadata.model import TableId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage

T = TypeVar("T")

FORMAT = 1
PER_DIRECTORY = 1000
"""So many numbers share a directory."""


class MergeCounts(msgspec.Struct, frozen=True):
    """What a merge has changed, in rows."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class MergeEntry(msgspec.Struct, frozen=True):
    """A merge that counts. Stored as JSON.

    `attempt` names the try that has put it; one without files changes nothing. `source`: what it was given, and
    `batch` the name under which it is tried again, if it has one.
    """

    attempt: str
    table: str
    files: tuple[StagedFile, ...] = ()
    counts: MergeCounts = MergeCounts()
    source: Count = Count(0, None)
    batch: str = ""
    format: int = FORMAT


class Intent(msgspec.Struct, frozen=True):
    """The `attempt` of a named merge wants to be the entry `number`. Stored as JSON, before the entry is put.

    `columns`: what the rows of `source` are digested by, where they have the columns of the table. `asked`: what is
    done with them, as a digest of its text; earlier versions did not say.
    """

    number: int
    attempt: str
    source: Count
    columns: tuple[DigestedColumn, ...] | msgspec.UnsetType = msgspec.UNSET
    asked: str | msgspec.UnsetType = msgspec.UNSET
    format: int = FORMAT


class MergeJournal:
    """The merges of one table, below `uri`, which need not be there yet. Methods raise StorageUnavailable.

    Numbers have no gaps and entries never go, so that a number that was free once is free or taken, never free again.
    """

    def __init__(self, storage: Storage, uri: str, table_id: TableId) -> None:
        self._storage = storage
        self._uri = places.join(uri, table_id)

    def tail(self) -> int:
        """The number of the newest entry; 0: there is none.

        Raises LogUnreadable where the entry after it is gone, and had been finished: its merge has landed and counts,
        and whoever took its number again would be taken for finished before he has landed anything.
        """
        low = self._hint()
        if low and not self._has(low):
            low = 0  # the root went back behind the hint
        step = 1
        while self._has(low + step):
            low, step = low + step, step * 2
        high = low + step  # free; all up to `low` are taken
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has(middle) else (low, middle)
        if not self.is_finished(low + 1):
            return low
        if self._has(low + 1):
            return self.tail()  # put and finished meanwhile
        uri = self._entry_uri(low + 1)
        raise LogUnreadable(
            f"{uri} is gone, of a merge that was finished",
            hint=f"Restore it from a backup of the root, with all that are gone after it. Without one, and when "
            f"no merge that may have been given its name is tried again, delete {uri}.done",
        )

    def entry(self, number: int) -> MergeEntry | None:
        """An entry, which is on the disk; None where there is none. Raises LogUnreadable, UnknownFormat."""
        uri = self._entry_uri(number)
        found = _read(self._storage, uri)
        if found is None:
            return None
        # Whoever has put it may not have come to that: nothing is built upon what a power cut takes away.
        self._storage.sync_always([uri], [uri.rpartition("/")[0]])
        return _decoded(found, MergeEntry, uri)

    def put(self, number: int, entry: MergeEntry) -> bool:
        """Make it the entry of that number; whether it is. False: another one is.

        Where the root has not answered and it cannot be told, the number is taken for nothing, so that the entry is
        not there nor will be; or StorageUnavailable is raised, and nobody knows.
        """
        uri = self._entry_uri(number)
        self._storage.create_directory(uri.rpartition("/")[0], parents=True)
        try:
            if _put_once(self._storage, uri, stamped(entry)):
                return True
        except StorageUnavailable:
            if entry.files:  # a second put of the same name tells: of two only one is there
                self.put(number, MergeEntry(str(uuid.uuid4()), entry.table))
        there = self.entry(number)
        if there is None:
            raise StorageUnavailable(
                f"it cannot be told whether a merge counts, as {uri} cannot be read",
                hint="Merge again under the same name; without a name look first, or the source may count twice",
            )
        return there.attempt == entry.attempt

    def is_finished(self, number: int) -> bool:
        """Whether an entry has reached its level once."""
        return self._storage.exists(f"{self._entry_uri(number)}.done")

    def finish(self, number: int) -> None:
        """Say that an entry has reached its level. Copies of its files, and of tries that have lost, go."""
        self._storage.put_if_absent(f"{self._entry_uri(number)}.done", b"")
        self._storage.replace_bytes(places.join(self._uri, "hint"), str(number).encode())
        with suppress(StorageUnavailable):  # the next merge does it
            for name in self._names(self._copies):
                if int(name.partition("-")[0]) <= number:
                    self._forget(name)

    def keep(self, number: int, attempt: str, files: Sequence[tuple[str, str]]) -> None:
        """Keep copies of staged files, told by their ids and where they lie, for who finishes the entry `number`."""
        place = places.join(self._copies, f"{number}-{attempt}")
        self._storage.create_directory(place, parents=True)
        copies = [places.join(place, file_id) for file_id, _ in files]
        for (_, source), copy in zip(files, copies, strict=True):
            self._storage.write_bytes(copy, self._storage.read_bytes(source))
        self._storage.sync_always(copies, [place, self._copies])

    def kept_uri(self, number: int, attempt: str, file_id: str) -> str:
        """Where the copy of a file is, or was until the entry was finished."""
        return places.join(self._copies, f"{number}-{attempt}", file_id)

    def forget(self, number: int, attempt: str) -> None:
        """Delete the copies of a try that has lost. Never raises: the next merge does it as well."""
        with suppress(StorageUnavailable):
            self._forget(f"{number}-{attempt}")

    def intents(self, batch: str) -> list[Intent]:
        """What tries of a named merge have wanted, in their order."""
        found: list[Intent] = []
        while (data := _read(self._storage, self._intent_uri(batch, len(found) + 1))) is not None:
            found.append(_decoded(data, Intent, self._intent_uri(batch, len(found) + 1)))
        return found

    def intend(self, batch: str, before: int, intent: Intent) -> bool:
        """Add an intent to the `before` that there were; False: somebody else has added another one."""
        uri = self._intent_uri(batch, before + 1)
        self._storage.create_directory(uri.rpartition("/")[0], parents=True)
        return _put_once(self._storage, uri, stamped(intent))

    @property
    def _copies(self) -> str:
        return places.join(self._uri, "copies")

    def _entry_uri(self, number: int) -> str:
        return places.join(self._uri, "entries", f"{number // PER_DIRECTORY:06}", f"{number:09}.json")

    def _intent_uri(self, batch: str, number: int) -> str:
        return places.join(self._uri, "batches", batch[:2], f"{batch}.{number}.json")

    def _has(self, number: int) -> bool:
        return self._storage.exists(_kept_in(self._entry_uri(number)))

    def _hint(self) -> int:
        try:
            text = self._storage.read_bytes(places.join(self._uri, "hint"))
        except failures.MissingFile:
            return 0
        return int(text) if text.isdigit() else 0

    def _names(self, place: str) -> set[str]:
        try:
            return {entry.name.partition("/")[0] for entry in self._storage.list_files(place)}
        except failures.MissingFile:
            return set()

    def _forget(self, name: str) -> None:
        place = places.join(self._copies, name)
        try:
            entries = self._storage.list_files(place)
        except failures.MissingFile:
            return
        for entry in entries:
            self._storage.delete_file(places.join(place, entry.name))
        local = places.local_path(place)
        if local is not None:
            self._storage.within_deadline("delete", place, lambda: self._storage.delete_tree(local))


_KEPT = "epochlake.entry"
_NO_ROWS = Schema([Field("nothing", PrimitiveType("integer"))])


def _put_once(storage: Storage, uri: str, data: bytes) -> bool:
    """Put a small file where there is none; whether it was put. Of two at the same instant one is told so; their data
    differ.

    An object store decides that for the first commit of a Delta table only, by a conditional put: there the file is a
    property of a table without rows.
    """
    if places.local_path(uri) is not None:
        return storage.put_if_absent(uri, data)
    try:
        DeltaTable.create(
            places.delta_uri(uri),
            _NO_ROWS,
            mode="error",
            configuration={_KEPT: data.decode()},
            raise_if_key_not_exists=False,
            commit_properties=NO_SECOND_TRY,
            storage_options=storage.delta_options(uri),
        )
    except failures.STORAGE_ERRORS as error:
        if _read(storage, uri) is None:
            raise failures.unavailable("write", uri, error) from error
    # Who comes second at the same instant is told; with an earlier release he makes the second commit. The first one is
    # what was put.
    return _read(storage, uri) == data


def _kept_in(uri: str) -> str:
    """The file by which it is there."""
    return uri if places.local_path(uri) is not None else places.join(uri, "_delta_log", f"{0:020}.json")


def _read(storage: Storage, uri: str) -> bytes | None:
    """What `_put_once` has put; None: nothing."""
    try:
        data = storage.read_bytes(_kept_in(uri))
    except failures.MissingFile:
        return None
    if places.local_path(uri) is not None:
        return data
    for line in data.splitlines():
        action = msgspec.json.decode(line)
        if "metaData" in action:
            text: str = action["metaData"]["configuration"][_KEPT]
            return text.encode()
    raise LogUnreadable(f"{uri} is no entry of a merge", hint="Restore it from a backup of the root")


def _decoded(data: bytes, kind: type[T], uri: str) -> T:
    found = unstamped(data, kind, f"the merge {uri}")
    if found.format != FORMAT:  # type: ignore[attr-defined]
        said = f"{uri} has format {found.format}, and this version knows {FORMAT}"  # type: ignore[attr-defined]
        raise UnknownFormat(said, hint="Upgrade")
    return found
