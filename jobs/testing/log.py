"""The epoch log of a world: the one in memory, each call a point where others may go on, and which may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epochlake.jobs.testing.disk import Troubles, area
from epochlake.jobs.testing.power import is_below
from epochlake.jobs.testing.scheduler import Scheduler
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendFailed, AppendUncertain, EpochLog
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACCESS_SECONDS = 0.005
"""How long a call takes, on average."""


class WorldLog(InMemoryLog):
    """One handle of a process."""

    def __init__(self, scheduler: Scheduler, shared: SharedEntries, troubles: Troubles, place: str) -> None:
        super().__init__(shared)
        self._scheduler = scheduler
        self._troubles = troubles
        self._place = place

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        self._scheduler.access(f"read the log after {after}", ACCESS_SECONDS)
        self._meet("read")
        self._require_there()
        entries = super().read(after, up_to)
        self._meet("read, done")
        return entries

    def append(self, entries: Sequence[Entry]) -> None:
        self._scheduler.access(f"append epoch {entries[0].epoch}", ACCESS_SECONDS)
        self._meet("append")
        if self._fails(writes=True):
            # What nobody can reach was not written; of another error nobody knows.
            if self._is_away() or self._troubles.random.random() < 0.5:
                raise AppendFailed("the disk says no")
            if self._troubles.random.random() < 0.5:
                super().append(entries)
            raise AppendUncertain("the disk says nothing")
        super().append(entries)
        self._meet("append, done")
        self._scheduler.access(f"epoch {entries[-1].epoch} is in the log", ACCESS_SECONDS)

    def fence(self) -> None:
        self._scheduler.access("fence the log", ACCESS_SECONDS)
        self._meet("fence")
        if self._fails(writes=True):
            raise AppendUncertain("the disk says nothing")
        super().fence()
        self._meet("fence, done")

    def request_epochs(self, up_to: int) -> dict[str, int]:
        self._scheduler.access("read request ids", ACCESS_SECONDS)
        self._require_there()
        return super().request_epochs(up_to)

    def entry(self, epoch: int) -> Entry:
        self._scheduler.access(f"read epoch {epoch}", ACCESS_SECONDS)
        self._require_there()
        return super().entry(epoch)

    def _meet(self, moment: str) -> None:
        self._scheduler.meet(self._scheduler.current.process, f"{area(self._place)} {moment}")

    def _require_there(self) -> None:
        if self._fails():
            raise StorageUnavailable("the log does not answer")

    def _fails(self, *, writes: bool = False) -> bool:
        try:
            return self._troubles.before(self._place, writes=writes)
        except OSError:
            return True

    def _is_away(self) -> bool:
        return any(is_below(self._place, place) for place in (*self._troubles.failing, *self._troubles.full))


class LogInMemory:
    """Where the log of a world is that has no files; `open_log` gives a handle on it."""

    def __init__(self, uri: str, open_log: Callable[[], EpochLog]) -> None:
        self._uri = uri
        self._open_log = open_log

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def table(self) -> str:
        return ""

    def is_there(self) -> bool:
        return True

    def create(self) -> None:
        """It is there."""

    def open(self) -> EpochLog:
        return self._open_log()

    def delta(self) -> DeltaLog:
        raise InvalidRequest("the log of this world has no files")

    def frame(self, spark: SparkSession) -> DataFrame:
        raise InvalidRequest("the log of this world has no files")
