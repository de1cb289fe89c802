"""An epoch log in memory, with the contract of the real one: it carries most property tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendConflict, ends_too_early


class SharedEntries:
    """What several handles of one in-memory log share."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.version = 0
        self.lock = threading.Lock()


class InMemoryLog:
    """One handle; `InMemoryLog(other.shared)` is another one on the same log."""

    def __init__(self, shared: SharedEntries | None = None) -> None:
        self.shared = shared or SharedEntries()
        self._seen: int | None = None

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        with self.shared.lock:
            self._seen = self.shared.version
            if after > len(self.shared.entries):
                raise ends_too_early(after, len(self.shared.entries))
            return self.shared.entries[after:up_to]

    def version(self) -> int | None:
        return self._seen

    def append(self, entries: Sequence[Entry]) -> None:
        with self.shared.lock:
            if self.shared.version != self._seen:
                raise AppendConflict(f"the log is at version {self.shared.version} by now, {self._seen} was read")
            self.shared.entries.extend(entries)
            self.shared.version += 1
            self._seen = self.shared.version

    def prepare(self, entries: Sequence[Entry]) -> None:
        """Nothing has to be on a disk here."""

    def forget(self) -> None:
        """Nothing was prepared."""

    def fence(self) -> None:
        with self.shared.lock:
            self.shared.version += 1

    def request_epochs(self, up_to: int) -> dict[str, int]:
        with self.shared.lock:
            return {entry.request_id: entry.epoch for entry in self.shared.entries[:up_to]}

    def entry(self, epoch: int) -> Entry:
        with self.shared.lock:
            return self.shared.entries[epoch - 1]

    def compact_if_due(self) -> bool:
        return False
