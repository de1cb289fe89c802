"""The contract of an epoch log for one that has lost its end, until an operator has accepted the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendFailed, ends_too_early
from epochlake.metastore.log.files import LogFile
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of


class RescuedLog(ABC):
    """The log as it is before what is lost; the first append makes it a whole log again, which ends with that entry."""

    def __init__(self, storage: Storage, uri: str, entries: list[Entry]) -> None:
        self.uri = uri
        self._storage = storage
        self._entries = entries
        self._whole: DeltaLog | None = None

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        if self._whole is None:
            self._look_again()
        if self._whole is not None:
            return self._whole.read(after, up_to)
        if after > len(self._entries):
            raise ends_too_early(after, len(self._entries))
        epochs = [entry.epoch for entry in self._entries]
        return self._entries[bisect_right(epochs, after) : None if up_to is None else bisect_right(epochs, up_to)]

    def entries(self) -> list[Entry]:
        """All entries; the handle stays where it is."""
        return self._entries if self._whole is None else DeltaLog(self._storage, self.uri).read(0)

    def version(self) -> int | None:
        return self._version_before() if self._whole is None else self._whole.version()

    def append(self, entries: Sequence[Entry]) -> None:
        if self._whole is not None:
            self._whole.append(entries)
            return
        self._begin_again(entries)
        self._whole = DeltaLog(self._storage, self.uri)
        self._whole.read(0)

    def fence(self) -> None:  # noqa: B027  of the contract, and nothing to do
        """Nothing is ever appended to a log that has lost entries."""

    def request_epochs(self, up_to: int) -> dict[str, int]:
        return {entry.request_id: entry.epoch for entry in self.read(0, up_to)}

    def entry(self, epoch: int) -> Entry:
        found = self.read(epoch - 1, epoch)
        if not found:
            raise LogUnreadable(f"epoch {epoch} is not in the log at {self.uri}")
        return found[0]

    def compact_if_due(self) -> bool:
        return False

    @abstractmethod
    def _look_again(self) -> None:
        """Set `_whole` when somebody has mended the log, or accepted the loss, meanwhile."""

    @abstractmethod
    def _version_before(self) -> int:
        """The version of the log's table that was looked at."""

    @abstractmethod
    def _begin_again(self, entries: Sequence[Entry]) -> None:
        """Make the log whole with `entries` as its end. Raises as `EpochLog.append` does."""

    def _not_written(self, epoch: int, error: StorageUnavailable, stored: Sequence[LogFile]) -> AppendFailed:
        """The error of an append that has not landed; what was stored for it goes."""
        self._discard(stored)
        failed = AppendFailed(
            f"epoch {epoch} was not written: {words_of(error)}", hint="Run `epochlake log accept-loss` again"
        )
        failed.exit_code = error.exit_code
        return failed

    def _discard(self, stored: Sequence[LogFile]) -> None:
        for file in stored:
            try:
                self._storage.delete_file(f"{self.uri}/{file.path}")
            except StorageUnavailable:
                return  # what caused this is told
