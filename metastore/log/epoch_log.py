"""The contract of an epoch log, whatever keeps it.

A log is read from a position on, and appended to **against exactly what was read**: an append after which somebody
else has appended conflicts, and nothing of it is written. That compare-and-append is the commit point of the whole
system; everything around it (locks, heads, queues) only makes it rare for two to try at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from epochlake.metastore.errors import EpochlakeError, LogWentBack
from epochlake.metastore.log.entry import Entry


class AppendConflict(EpochlakeError):
    """The log has moved since it was read. Nothing was appended; read again."""

    exit_code = 75


class AppendUncertain(EpochlakeError):
    """The append failed in a way that does not tell whether it landed. Read the log back."""

    exit_code = 75


class AppendFailed(EpochlakeError):
    """The append failed and certainly did not land, and trying again at once would not help (a full disk)."""


def ends_too_early(asked: int, last: int) -> LogWentBack:
    """The error of a log that is shorter than what was read of it before."""
    return LogWentBack(last, asked, "", "whoever asked for what comes after it")


class EpochLog(Protocol):
    """One handle on a log; not safe for use by several threads at once."""

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        """Move the handle to the tail and return the entries with a greater epoch than `after`, in order.

        With `up_to` only those up to that epoch; the handle moves to the tail all the same.

        Raises LogUnreadable, LogWentBack when the log ends before `after`; NotInitialised or StorageUnavailable.
        """
        ...

    def version(self) -> int | None:
        """What the next `append` is made against: another number after every append, fence or compaction that a `read`
        has seen. None before the first `read`.
        """
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """Append all of `entries` or none, against exactly the tail that the last `read` or `append` left.

        Raises AppendConflict, AppendUncertain or AppendFailed.
        """
        ...

    def fence(self) -> None:
        """Make every append against an earlier read conflict, without adding an entry.

        Raises AppendUncertain when that cannot be made sure.
        """
        ...

    def request_epochs(self, up_to: int) -> dict[str, int]:
        """The epoch of every request id in entries up to epoch `up_to`. The handle stays where it is."""
        ...

    def entry(self, epoch: int) -> Entry:
        """The entry of an epoch that is in the log. The handle stays where it is. Raises as `read` does."""
        ...

    def compact_if_due(self) -> bool:
        """Put small pieces of storage together when there are many; whether it did. Changes no entry."""
        ...


class PreparedLog(EpochLog, Protocol):
    """A log to which an append can be prepared while it is not known yet whether it is to be made."""

    def prepare(self, entries: Sequence[Entry]) -> None:
        """Have on the disk what an append of these entries writes, where nobody takes it for entries. The next append
        uses it if it is of these entries; otherwise it goes. Raises StorageUnavailable.
        """
        ...

    def forget(self) -> None:
        """Delete what was prepared and not used. Never raises."""
        ...
