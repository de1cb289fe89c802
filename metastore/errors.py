"""Errors of the log and of committing. The four outcomes of a commit are distinct (design, section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.log.entry import Entry


class Rejected(EpochlakeError):
    """The metadata does not allow the event. Nothing was logged.

    `code` is stable and meant for programs (docs/rejections.md), `reason` for people.
    """

    exit_code = 3

    def __init__(self, code: Code, reason: str, *, hint: str = "") -> None:
        super().__init__(reason, hint=hint)
        self.code = code

    @property
    def statement(self) -> str:
        return f"rejected ({self.code}): {self.reason}"


class CommitTimeout(EpochlakeError):
    """The time given was used up before anything was proposed. Nothing was logged; trying again is safe."""

    exit_code = 75


class CommitUnknown(EpochlakeError):
    """The change may have landed. Retrying with the same `request_id` is safe and tells."""

    exit_code = 75

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(
            f"the outcome of request {request_id} is unknown: {reason}",
            hint="Submit it again with the same request id: it is committed at most once",
        )
        self.request_id = request_id


class LogUnreadable(EpochlakeError):
    """The log, or a part of it, cannot be read or trusted; the message names the epoch.

    `epochs`: the first and the last one of the part that cannot be read, when that is known.
    """

    epochs: tuple[int, int] | None = None


class LogGap(LogUnreadable):
    """An epoch is missing between two that are there."""


class HashMismatch(LogUnreadable):
    """An entry does not chain to the one before it, or its content is not what its hash says."""

    exit_code = 4


class LogWentBack(HashMismatch):
    """The log does not hold an entry that was committed: an older copy, or another log, is in its place.

    `log_epoch` is where the log ends; `known_epoch` and `known_hash` say which entry was known, `known_by` to whom.
    """

    def __init__(self, log_epoch: int, known_epoch: int, known_hash: str, known_by: str) -> None:
        found = (
            f"the log ends at epoch {log_epoch}, but epoch {known_epoch} was known"
            if log_epoch < known_epoch
            else f"the log, which ends at epoch {log_epoch}, holds another entry at epoch {known_epoch} than was known"
        )
        super().__init__(
            f"{found} to {known_by} (hash {known_hash[:12] or 'unknown'}): an older copy of the log, or another log, "
            "is in its place. Nothing was appended",
            hint="Restore it from the log members by `epochlake metadata recover`"
            if "log member" in known_by
            else "Restore the newest copy of the log; if the epochs that are missing are lost for good, run "
            "`epochlake log accept-loss`"
            + ("; if that finds nothing lost, only this process remembers more: end it" * (known_by == "this process")),
        )
        self.log_epoch = log_epoch
        self.known_epoch = known_epoch
        self.known_hash = known_hash
        self.known_by = known_by


class LogTorn(LogUnreadable):
    """A commit of the log is not whole: which epochs it held cannot be told.

    `read_whole` reads entries before it as `EpochLog.read` does, where that is possible.
    """

    read_whole: Callable[[int, int | None], list[Entry]] | None = None


LOG_CONTRADICTS = (LogGap, HashMismatch, LogTorn)
"""Errors of a log that answers, and is not what it was: what a process knows of it from before may be lost."""


class UnknownFormat(LogUnreadable):
    """An entry was written in a format that this version does not know."""


class NotInitialised(EpochlakeError):
    """There is no cluster at this root."""


class WrongCluster(EpochlakeError):
    """The root, a volume or ZooKeeper belongs to another cluster."""


class StorageUnavailable(EpochlakeError):
    """A root or a volume cannot be read or written now."""

    exit_code = 75


class WaitTimeout(EpochlakeError):
    """What was waited for did not happen in time."""

    exit_code = 75


class ConfigurationError(EpochlakeError):
    """The configuration does not say what it should; the message names file, key and the nearest valid key."""

    exit_code = 2


class CoordinationUnavailable(EpochlakeError):
    """ZooKeeper does not answer."""

    exit_code = 75
