"""The epoch log of a world: the one in memory, each call a point where others may go on, and which may go wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

from epochlake.jobs.testing.scheduler import Scheduler
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendFailed, AppendUncertain
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries

ACCESS_SECONDS = 0.005
"""How long a call takes, on average."""


class LogTroubles:
    """What is wrong with the log's storage. `chance`: how likely a call fails, an append before or after its effect."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(repr(("log", seed)))
        self.chance = 0.0
        self.away = False

    def heal(self) -> None:
        self.chance, self.away = 0.0, False

    def strikes(self) -> bool:
        return self.away or (self.chance > 0 and self.random.random() < self.chance)


class WorldLog(InMemoryLog):
    """One handle of a process."""

    def __init__(self, scheduler: Scheduler, shared: SharedEntries, troubles: LogTroubles) -> None:
        super().__init__(shared)
        self._scheduler = scheduler
        self._troubles = troubles

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        self._scheduler.access(f"read the log after {after}", ACCESS_SECONDS)
        self._require_there()
        return super().read(after, up_to)

    def append(self, entries: Sequence[Entry]) -> None:
        self._scheduler.access(f"append epoch {entries[0].epoch}", ACCESS_SECONDS)
        if self._troubles.strikes():
            if self._troubles.away or self._troubles.random.random() < 0.5:
                raise AppendFailed("the disk says no")
            if self._troubles.random.random() < 0.5:
                super().append(entries)
            raise AppendUncertain("the disk says nothing")
        super().append(entries)
        self._scheduler.access(f"epoch {entries[-1].epoch} is in the log", ACCESS_SECONDS)

    def fence(self) -> None:
        self._scheduler.access("fence the log", ACCESS_SECONDS)
        if self._troubles.strikes():
            raise AppendUncertain("the disk says nothing")
        super().fence()

    def request_epochs(self, up_to: int) -> dict[str, int]:
        self._scheduler.access("read request ids", ACCESS_SECONDS)
        self._require_there()
        return super().request_epochs(up_to)

    def entry(self, epoch: int) -> Entry:
        self._scheduler.access(f"read epoch {epoch}", ACCESS_SECONDS)
        self._require_there()
        return super().entry(epoch)

    def _require_there(self) -> None:
        if self._troubles.strikes():
            raise StorageUnavailable("the log does not answer")
