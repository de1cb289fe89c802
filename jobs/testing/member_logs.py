"""Log members in a world whose disks are in memory: their copies, and the root's log, are logs for tests.

A log is there for as long as its directory is. What comes back as it was brings its log along (`World.copy`).
"""

from __future__ import annotations

from itertools import count
from typing import Any

from epochlake.jobs.testing.disk import Troubles
from epochlake.jobs.testing.log import WorldLog
from epochlake.jobs.testing.power import is_below
from epochlake.jobs.testing.scheduler import Scheduler
from epochlake.metastore.errors import NotInitialised
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import EpochLog, PreparedLog
from epochlake.metastore.log.in_memory import SharedEntries
from epochlake.metastore.log.log_member import MemberLogs
from epochlake.metastore.log.log_place import LogBelowRoot, LogWithMembers
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage


class LogsInMemory:
    """All logs of a world, by the places where they are."""

    def __init__(self, scheduler: Scheduler, troubles: Troubles) -> None:
        self._scheduler = scheduler
        self._troubles = troubles
        self._there: dict[str, SharedEntries] = {}
        self._versions = count(1_000_000, 1_000_000)

    def of(self, storage: Storage) -> MemberLogs:
        """As a process has them."""
        return _Logs(self, storage)

    def place(self, storage: Storage, root: str) -> LogWithMembers:
        """The log at a root and its members, as a process has them."""
        return _Place(storage, root, _Below(storage, places.join(root, "log")))._with(self)

    def create(self, uri: str) -> None:
        if uri not in self._there:
            self._there[uri] = self._new([])

    def shared(self, uri: str) -> SharedEntries:
        """Raises NotInitialised where there is no log."""
        found = self._there.get(uri)
        if found is None:
            raise NotInitialised(f"{uri} holds no log")
        return found

    def entries(self, uri: str) -> list[Entry]:
        """What a log holds, past the world's troubles."""
        return list(self._there[uri].entries) if uri in self._there else []

    def handle(self, uri: str) -> PreparedLog:
        return _Handle(self, self._scheduler, self._troubles, uri)

    def delete(self, uri: str) -> None:
        self._there.pop(uri, None)

    def copy(self, place: str) -> dict[str, list[Entry]]:
        """The logs below a place."""
        return {uri: list(log.entries) for uri, log in self._there.items() if is_below(uri, place)}

    def restore(self, place: str, logs: dict[str, list[Entry]]) -> None:
        """Put these in place of the logs below a place."""
        for uri in [uri for uri in self._there if is_below(uri, place)]:
            del self._there[uri]
        for uri, entries in logs.items():
            self._there[uri] = self._new(entries)

    def _new(self, entries: list[Entry]) -> SharedEntries:
        """A log that no handle of before takes for the one that it has read."""
        shared = SharedEntries()
        shared.entries, shared.version = list(entries), next(self._versions)
        return shared


class _Handle(WorldLog):
    def __init__(self, logs: LogsInMemory, scheduler: Scheduler, troubles: Troubles, uri: str) -> None:
        self._logs = logs
        self._uri = uri
        super().__init__(scheduler, logs.shared(uri), troubles, uri)

    @property
    def shared(self) -> SharedEntries:
        return self._logs.shared(self._uri)

    @shared.setter
    def shared(self, _: SharedEntries) -> None:
        """It is looked up each time: another one may be in its place."""


class _Logs:
    def __init__(self, logs: LogsInMemory, storage: Storage) -> None:
        self._logs = logs
        self._storage = storage

    def is_there(self, uri: str) -> bool:
        return self._storage.exists(places.join(uri, "_delta_log"))

    def create(self, uri: str) -> None:
        # What is copied and brought back are files.
        directory = places.join(uri, "_delta_log")
        self._storage.create_directory(directory, parents=True)
        self._storage.put_if_absent(places.join(directory, "in-memory"), b"")
        self._logs.create(uri)

    def open(self, uri: str) -> PreparedLog:
        return self._logs.handle(uri)

    def delete(self, uri: str) -> None:
        self._storage.delete_directory(uri)
        self._logs.delete(uri)


class _Below(LogBelowRoot):
    """In place of the Delta table below the root."""

    logs: Any = None

    def is_there(self) -> bool:
        return self.logs.of(self.storage).is_there(self.uri)

    def create(self) -> None:
        self.logs.of(self.storage).create(self.uri)

    def open(self) -> EpochLog:
        found: EpochLog = self.logs.handle(self.uri)
        return found


class _Place(LogWithMembers):
    in_memory: Any = None

    def _with(self, logs: LogsInMemory) -> LogWithMembers:
        self.in_memory = logs
        self.below.logs = logs  # type: ignore[attr-defined]
        return self

    @property
    def logs(self) -> MemberLogs:
        found: MemberLogs = self.in_memory.of(self.storage)
        return found
