"""`[log] acknowledge = "root"`: the root's log by itself, as long as the root names no log members.

A process that has it open when the first members are named would go on to report commits that only the root has. Who
appends looks for members when he has read the log; who names the first ones fences it then. So either they are seen, or
the append conflicts with the fence.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.metastore.errors import ConfigurationError
from epochlake.metastore.log import generations
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.storage.storage import Storage


class LogWithoutMembers:
    """A handle on the root's log; see `EpochLog` for its promises. Reading and appending raise ConfigurationError when
    `register`, the directory of the root's generations, names members.
    """

    def __init__(self, storage: Storage, register: str, root: EpochLog) -> None:
        self.root = root
        self._storage = storage
        self._register = register

    def require_none(self) -> None:
        """Raise ConfigurationError where there are members, LogUnreadable where the log is only partly restored."""
        if generations.numbers(self._storage, self._register):
            raise ConfigurationError(
                f"{self._register} names log members: a commit at this root counts when a majority has it, and this "
                "process would report it before",
                hint='Set [log] acknowledge = "majority" here as well',
            )
        generations.require_restored(self._storage, self._register)

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        found = self.root.read(after, up_to)
        self.require_none()
        return found

    def version(self) -> int | None:
        return self.root.version()

    def append(self, entries: Sequence[Entry]) -> None:
        self.require_none()
        self.root.append(entries)

    def fence(self) -> None:
        self.root.fence()

    def request_epochs(self, up_to: int) -> dict[str, int]:
        return self.root.request_epochs(up_to)

    def entry(self, epoch: int) -> Entry:
        return self.root.entry(epoch)

    def compact_if_due(self) -> bool:
        return self.root.compact_if_due()
