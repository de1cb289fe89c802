"""A log that has lost entries with their data file, shortened there when an operator accepts the loss.

What is kept, and the entry that says what is lost, take the place of all files that reach beyond it in one commit,
against exactly what was looked at. So the log is as it was, or shortened with that entry in it, and nothing between.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltalake.exceptions import DeltaError
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log.delta import APP_ID, DeltaLog
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain
from epochlake.metastore.log.files import LogFile, new_file, read_entries, write_entries
from epochlake.metastore.log.rescued import RescuedLog
from epochlake.metastore.log.restoring import look, opened, runs
from epochlake.metastore.rewriting import Mark, OldFile, replace_files
from epochlake.metastore.storage import failures
from epochlake.metastore.storage.storage import Storage


class ShortLog(RescuedLog):
    """The log as it is before entries that are lost; the first append shortens it to that."""

    def __init__(self, storage: Storage, uri: str) -> None:
        self._table = opened(storage, uri)
        self._known = look(storage, uri, self._table)
        super().__init__(storage, uri, self._known.entries)

    @property
    def gone(self) -> list[LogFile]:
        """The data files that are damaged, or reach beyond what is kept; no version names them after the append."""
        beyond = [file for file in self._known.files if (file.last or 0) > len(self._entries)]
        return [*(one.file for one in self._known.damaged), *beyond]

    @property
    def beyond(self) -> Position | None:
        """The position of the last entry that can be read, where that is beyond what is lost."""
        whole = [file for file in self._known.files if (file.last or 0) > len(self._entries)]
        if not whole:
            return None
        newest = max(whole, key=lambda file: file.last or 0)
        return position_of(read_entries(self._storage, self.uri, [newest])[-1])

    def _look_again(self) -> None:
        table = opened(self._storage, self.uri)
        if table.version() == self._table.version():
            return
        self._table, self._known = table, look(self._storage, self.uri, table)
        self._entries = self._known.entries
        if self._known.lost is None:
            self._whole = DeltaLog(self._storage, self.uri)

    def _version_before(self) -> int:
        version: int = self._table.version()
        return version

    def _begin_again(self, entries: Sequence[Entry]) -> None:
        first, putting = entries[0].epoch, False
        stored: list[LogFile] = []
        gone = self.gone
        kept = [file for file in self._known.files if file not in gone]
        held = {epoch for file in kept for epoch in range(file.first or 0, (file.last or 0) + 1)}
        again = [entry for entry in self._entries if entry.epoch not in held]
        try:
            for run in runs([*again, *entries]):
                stored.append(write_entries(self._storage, self.uri, run))
            self._storage.sync_always([f"{self.uri}/{file.path}" for file in stored], [self.uri])
            putting = True
            removes, adds = [OldFile(file.path, file.size) for file in gone], [new_file(file) for file in stored]
            done = replace_files(self._storage, self._table, removes, adds, mark=Mark(APP_ID, entries[-1].epoch))
        except (OSError, DeltaError, StorageUnavailable) as error:
            cause = failures.unavailable("write", self.uri, error)
            if putting:
                raise AppendUncertain(f"epoch {first}: {cause}") from error
            raise self._not_written(first, cause, stored) from error
        if not done:
            self._discard(stored)
            raise AppendConflict(f"epoch {first} was not appended: the log was healed, or shortened, meanwhile")
