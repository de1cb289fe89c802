"""A log with a hole that cannot be filled, cut there when an operator accepts the loss of what comes after it.

Until the entry that says so is in, the log stays torn, so nobody goes on as if nothing were lost. The
hole gets a file that no reader takes for a commit; then everything after it is put aside, the oldest first, so that a
cut that was ended half-way never looks like a shorter log; then the entry takes the hole's place in one step.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from epochlake.metastore import delta_commits, storage, syncing
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.delta import APP_ID, DeltaLog
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain, ends_too_early
from epochlake.metastore.log.files import LogFile, read_entries, write_entries
from epochlake.metastore.log.holes import Unfillable, adds_in, read_before
from epochlake.metastore.log.replacing import alone, put_bytes, put_whole
from epochlake.metastore.rewriting import Mark, NewFile, add_lines
from epochlake.placement.errors import words_of

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*\Z")
_DIGEST = re.compile(r"\.(\d{20})\.checkpoint\.parquet\.sha256\Z")
_POINTER = "_last_checkpoint"
_ASIDE = re.compile(r"\.(\d{20})\.json\.lost-\d+\Z")


class Behind(NamedTuple):
    """What is known to come after a hole: the last entry that can be read, and the last epoch that is named."""

    position: Position | None
    epoch: int


class CutLog:
    """The log as it is before a hole; the first append cuts it there. Keeps the contract of an epoch log."""

    def __init__(self, uri: str, hole: Unfillable) -> None:
        self.uri = uri
        self._hole = hole
        self._entries = read_before(uri, hole.version)
        self._cut: DeltaLog | None = None

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        if self._cut is None and not self._is_torn():
            self._cut = DeltaLog(self.uri)
        if self._cut is not None:
            return self._cut.read(after, up_to)
        if after > len(self._entries):
            raise ends_too_early(after, len(self._entries))
        epochs = [entry.epoch for entry in self._entries]
        return self._entries[bisect_right(epochs, after) : None if up_to is None else bisect_right(epochs, up_to)]

    def entries(self) -> list[Entry]:
        """All entries; the handle stays where it is."""
        return self._entries if self._cut is None else DeltaLog(self.uri).read(0)

    def version(self) -> int | None:
        return self._hole.version - 1 if self._cut is None else self._cut.version()

    def append(self, entries: Sequence[Entry]) -> None:
        if self._cut is not None:
            self._cut.append(entries)
            return
        first, putting = entries[0].epoch, False
        new: LogFile | None = None
        try:
            with alone(self.uri):
                if not self._is_torn():
                    raise AppendConflict(f"epoch {first} was not appended: the log was mended, or cut, meanwhile")
                put_bytes(self.uri, self._hole.version, delta_commits.GIVEN_UP)
                _put_aside(self.uri, self._hole.version)
                new = write_entries(self.uri, entries)
                storage.sync_always([f"{self.uri}/{new.path}"], [self.uri])
                file = NewFile(new.path, new.size, len(entries), {"epoch": first}, {"epoch": entries[-1].epoch})
                putting = True
                put_whole(self.uri, self._hole.version, "WRITE", add_lines([file], Mark(APP_ID, entries[-1].epoch)))
        except StorageUnavailable as error:
            if putting:
                raise AppendUncertain(f"epoch {first}: {error}") from error
            if new is not None:
                with suppress(StorageUnavailable):
                    storage.delete_file(f"{self.uri}/{new.path}")
            failed = AppendFailed(
                f"epoch {first} was not written: {words_of(error)}. Run `epochlake log accept-loss` again"
            )
            failed.exit_code = error.exit_code
            raise failed from error
        self._cut = DeltaLog(self.uri)
        self._cut.read(0)

    def fence(self) -> None:
        """Nothing is ever appended to a log that is torn."""

    def request_epochs(self, up_to: int) -> dict[str, int]:
        return {entry.request_id: entry.epoch for entry in self.read(0, up_to)}

    def entry(self, epoch: int) -> Entry:
        found = self.read(epoch - 1, epoch)
        if not found:
            raise LogUnreadable(f"epoch {epoch} is not in the log at {self.uri}")
        return found[0]

    def compact_if_due(self) -> bool:
        return False

    def _is_torn(self) -> bool:
        return any(torn.version == self._hole.version for torn in delta_commits.torn_commits(self.uri))


def behind(uri: str, version: int) -> Behind:
    """What commits after a version say that they hold, those that were put aside too."""
    position: Position | None = None
    highest = 0
    for path in _commits_after(uri, version):
        with suppress(LogUnreadable, StorageUnavailable):
            for file in adds_in(uri, path):
                highest = max(highest, file.last or 0)
                with suppress(LogUnreadable):
                    last = position_of(read_entries(uri, [file])[-1])
                    if position is None or (last.incarnation, last.epoch) > (position.incarnation, position.epoch):
                        position = last
    return Behind(position, highest)


def _commits_after(uri: str, version: int) -> list[str]:
    directory = _log_directory(uri)

    def look() -> list[str]:
        found = [
            name
            for name in os.listdir(directory)
            if (match := _COMMIT.match(name) or _ASIDE.match(name)) and int(match[1]) > version
        ]
        return [f"{directory}/{name}" for name in sorted(found)]

    return storage.within_deadline("look at the log of", uri, look)


def after_hole(uri: str, version: int) -> list[str]:
    """The names, in the log's directory, of the commits after a version and of the checkpoints from it on."""
    directory = _log_directory(uri)

    def look() -> list[str]:
        commits, others = [], []
        for name in sorted(os.listdir(directory)):
            if (match := _COMMIT.match(name)) and int(match[1]) > version:
                commits.append(name)
            elif (match := _CHECKPOINT.match(name) or _DIGEST.match(name)) and int(match[1]) >= version:
                others.append(name)
        if (delta_commits.pointed_at(directory) or -1) >= version:
            others.append(_POINTER)
        return [*commits, *others]

    return storage.within_deadline("look at the log of", uri, look)


def _put_aside(uri: str, version: int) -> None:
    """Give what comes after a hole names that nobody reads, the oldest first, also what somebody adds meanwhile."""
    directory = _log_directory(uri)

    def rename(names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.rename(f"{directory}/{name}", f"{directory}/.{name}.lost-{time.time_ns()}")
        syncing.sync_directory(directory)

    while names := after_hole(uri, version):
        storage.within_deadline("put aside commits of", uri, partial(rename, names))


def _log_directory(uri: str) -> str:
    directory = storage.local_path(storage.join(uri, delta_commits.LOG))
    assert directory is not None, f"{uri} is on no file system"
    return directory
