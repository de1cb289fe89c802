"""A log with a hole that cannot be filled, cut there when an operator accepts the loss of what comes after it.

Until the entry that says so is in, the log stays torn, so nobody goes on as if nothing were lost. The
hole gets a file that no reader takes for a commit; then everything after it is put aside, the oldest first, so that a
cut that was ended half-way never looks like a shorter log; then the entry takes the hole's place in one step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from epochlake.metastore import delta_commits
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.delta import APP_ID, DeltaLog
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain
from epochlake.metastore.log.files import LogFile, new_file, read_entries, write_entries
from epochlake.metastore.log.holes import Unfillable, adds_in, read_before, torn_commits
from epochlake.metastore.log.replacing import alone, put_bytes, put_whole
from epochlake.metastore.log.rescued import RescuedLog
from epochlake.metastore.rewriting import Mark, add_lines
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*\Z")
_DIGEST = re.compile(r"\.(\d{20})\.checkpoint\.parquet\.sha256\Z")
_POINTER = "_last_checkpoint"
_ASIDE = re.compile(r"\.(\d{20})\.json\.lost-\d+\Z")


class Behind(NamedTuple):
    """What is known to come after a hole: the last entry that can be read, and the last epoch that is named."""

    position: Position | None
    epoch: int


class CutLog(RescuedLog):
    """The log as it is before a hole; the first append cuts it there."""

    def __init__(self, storage: Storage, uri: str, hole: Unfillable) -> None:
        super().__init__(storage, uri, read_before(storage, uri, hole.version))
        self._hole = hole

    def _look_again(self) -> None:
        if not self._is_torn():
            self._whole = DeltaLog(self._storage, self.uri)

    def _version_before(self) -> int:
        return self._hole.version - 1

    def _begin_again(self, entries: Sequence[Entry]) -> None:
        first, putting = entries[0].epoch, False
        stored: list[LogFile] = []
        try:
            with alone(self._storage, self.uri):
                if not self._is_torn():
                    raise AppendConflict(f"epoch {first} was not appended: the log was mended, or cut, meanwhile")
                put_bytes(self._storage, self.uri, self._hole.version, delta_commits.GIVEN_UP)
                _put_aside(self._storage, self.uri, self._hole.version)
                stored = [write_entries(self._storage, self.uri, entries)]
                self._storage.sync_always([f"{self.uri}/{file.path}" for file in stored], [self.uri])
                putting = True
                lines = add_lines([new_file(file) for file in stored], Mark(APP_ID, entries[-1].epoch))
                put_whole(self._storage, self.uri, self._hole.version, "WRITE", lines)
        except StorageUnavailable as error:
            if putting:
                raise AppendUncertain(f"epoch {first}: {error}") from error
            raise self._not_written(first, error, stored) from error

    def _is_torn(self) -> bool:
        return any(torn.version == self._hole.version for torn in torn_commits(self._storage, self.uri))


def behind(storage: Storage, uri: str, version: int) -> Behind:
    """What commits after a version say that they hold, those that were put aside too."""
    position: Position | None = None
    highest = 0
    for path in _commits_after(storage, uri, version):
        with suppress(LogUnreadable, StorageUnavailable):
            for file in adds_in(storage, uri, path):
                highest = max(highest, file.last or 0)
                with suppress(LogUnreadable):
                    last = position_of(read_entries(storage, uri, [file])[-1])
                    if position is None or (last.incarnation, last.epoch) > (position.incarnation, position.epoch):
                        position = last
    return Behind(position, highest)


def _commits_after(storage: Storage, uri: str, version: int) -> list[str]:
    directory = _log_directory(uri)

    def look() -> list[str]:
        found = [
            name
            for name in storage.disk.names(directory)
            if (match := _COMMIT.match(name) or _ASIDE.match(name)) and int(match[1]) > version
        ]
        return [f"{directory}/{name}" for name in sorted(found)]

    return storage.within_deadline("look at the log of", uri, look)


def after_hole(storage: Storage, uri: str, version: int) -> list[str]:
    """The names, in the log's directory, of the commits after a version and of the checkpoints from it on."""
    directory = _log_directory(uri)

    def look() -> list[str]:
        commits, others = [], []
        for name in sorted(storage.disk.names(directory)):
            if (match := _COMMIT.match(name)) and int(match[1]) > version:
                commits.append(name)
            elif (match := _CHECKPOINT.match(name) or _DIGEST.match(name)) and int(match[1]) >= version:
                others.append(name)
        if (delta_commits.pointed_at(storage.disk, directory) or -1) >= version:
            others.append(_POINTER)
        return [*commits, *others]

    return storage.within_deadline("look at the log of", uri, look)


def _put_aside(storage: Storage, uri: str, version: int) -> None:
    """Give what comes after a hole names that nobody reads, the oldest first, also what somebody adds meanwhile."""
    directory = _log_directory(uri)

    def rename(names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                storage.disk.rename(f"{directory}/{name}", f"{directory}/.{name}.lost-{time.time_ns()}")
        storage.syncing.sync(directories=[directory])

    while names := after_hole(storage, uri, version):
        storage.within_deadline("put aside commits of", uri, partial(rename, names))


def _log_directory(uri: str) -> str:
    return places.require_local(places.join(uri, delta_commits.LOG))
