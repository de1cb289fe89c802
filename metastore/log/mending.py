"""Mending a log whose newest commit is torn, as after a power cut or damage of the disk.

The one idea: nothing is guessed. An entry is on the disk before the commit that names it (docs/decisions/020). So what
a torn commit would have said is known from the data files that lie there: one file whose entries continue the chain is
what it named, and is named again, whether that was acknowledged or not; where there is none, the commit held no entry.
Everything else is refused: a torn commit that others were built on was whole once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from epochlake.metastore import delta_commits, storage, syncing
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.entry import GENESIS, Entry, entry_hash
from epochlake.metastore.log.files import SCHEMA, LogFile, files_of, from_arrow, read_columns, read_entries
from epochlake.metastore.rewriting import Mark, NewFile, add_lines


class Mending(msgspec.Struct, frozen=True):
    """What becomes of a torn commit: it names the entries from `first` to `last` again, or none (0).

    Or of damaged files of checkpoints, by their names: they are put aside.
    """

    version: int
    damage: str
    first: int = 0
    last: int = 0
    checkpoints: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.checkpoints:
            return f"{', '.join(self.checkpoints)}: {self.damage}; put aside, the log is read from its commits"
        if not self.first:
            return f"commit {self.version} of the log {self.damage}; it held no entry, and is empty now"
        epochs = f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"
        return f"commit {self.version} of the log {self.damage}; it names {epochs} again, found whole beside it"


def plan_mending(uri: str) -> list[Mending]:
    """What `mend` would do; nothing where no commit is torn. Raises LogUnreadable for what cannot be mended safely."""
    return [*_checkpoints(uri), *(mending for mending, _ in _plan(uri))]


def mend(uri: str) -> list[Mending]:
    """Make the torn commits at the end of the log whole; what was done. The torn files are kept under other names.

    Raises LogUnreadable for what cannot be mended safely, StorageUnavailable. Safe to repeat, and to do twice at once.
    """
    aside = _checkpoints(uri)
    for mending in aside:
        delta_commits.put_aside(uri, mending.checkpoints)
    planned = _plan(uri)
    for mending, file in planned:
        lines: list[delta_commits.Action] = []
        if file is not None:
            new = NewFile(file.path, file.size, file.rows or 0, {"epoch": mending.first}, {"epoch": mending.last})
            lines = add_lines([new], Mark("epoch-log", mending.last))
        _replace(uri, mending.version, lines)
    return [*aside, *(mending for mending, _ in planned)]


def _checkpoints(uri: str) -> list[Mending]:
    if storage.local_path(uri) is None:
        return []
    damaged = delta_commits.damaged_checkpoints(uri)
    return [Mending(-1, "damaged, or of a checkpoint that is not there", checkpoints=tuple(damaged))] if damaged else []


def _plan(uri: str) -> list[tuple[Mending, LogFile | None]]:
    if storage.local_path(uri) is None:
        return []
    torn = delta_commits.torn_commits(uri)
    if not torn:
        return []
    newest = delta_commits.newest_version(uri)
    versions = [one.version for one in torn]
    if versions != list(range(versions[0], newest + 1)):
        raise LogUnreadable(
            f"{torn[0]}. Commits after it are whole, so it was whole once and was damaged since: restore "
            f"{delta_commits.commit_uri(uri, versions[0])} from a copy of the log"
        )
    last, known = _before(uri, versions[0])
    found = _continuing(uri, last, known)
    if len(found) > 1:
        names = ", ".join(sorted(file.path for file, _ in found))
        raise LogUnreadable(
            f"{torn[0]}. Several files could be what it named: {names}. Restore the commit from a copy of the log, or "
            "move away those that were never committed"
        )
    planned: list[tuple[Mending, LogFile | None]] = []
    for number, one in enumerate(torn):
        if number == 0 and found:
            file, entries = found[0]
            planned.append((Mending(one.version, one.how, entries[0].epoch, entries[-1].epoch), file))
        else:
            planned.append((Mending(one.version, one.how), None))
    return planned


def _before(uri: str, version: int) -> tuple[Entry | None, set[str]]:
    """The last entry before a version, and the paths of the data files that are live there."""
    if version == 0:
        raise LogUnreadable(f"the first commit of the log at {uri} is torn: restore it from a copy of the log")
    try:
        files = files_of(DeltaTable(uri, version=version - 1))
    except (*storage.STORAGE_ERRORS, KeyError) as error:
        raise LogUnreadable(f"the log at {uri} cannot be read as it was before commit {version}: {error}") from error
    tail = max((file.last or 0 for file in files), default=0)
    entries = read_entries(uri, [file for file in files if file.last == tail], tail - 1) if tail else []
    return (entries[-1] if entries else None), {file.path for file in files}


def _continuing(uri: str, last: Entry | None, known: set[str]) -> list[tuple[LogFile, list[Entry]]]:
    """The data files that no commit names and whose entries come right after the last one, by number and hash."""
    found: dict[tuple[str, ...], tuple[LogFile, list[Entry]]] = {}
    for listed in storage.list_files(uri):
        if "/" in listed.name or not listed.name.endswith(".parquet") or listed.name in known:
            continue
        try:
            entries = from_arrow(read_columns(uri, [listed.name], SCHEMA.names))
        except (OSError, pa.ArrowException, KeyError, ValueError, StorageUnavailable):
            continue  # never on the disk as a whole, so no commit could name it
        if entries and _chains(last, entries):
            file = LogFile(listed.name, listed.size, len(entries), entries[0].epoch, entries[-1].epoch)
            found[tuple(entry.hash for entry in entries)] = (file, entries)
    return list(found.values())


def _chains(last: Entry | None, entries: Sequence[Entry]) -> bool:
    epoch, hash_ = (last.epoch, last.hash) if last is not None else (0, GENESIS)
    for entry in entries:
        if (entry.epoch, entry.previous_hash, entry.hash) != (epoch + 1, hash_, entry_hash(entry)):
            return False
        epoch, hash_ = entry.epoch, entry.hash
    return True


def _replace(uri: str, version: int, lines: Sequence[delta_commits.Action]) -> None:
    """Put a whole commit in place of a torn one, in one step: nobody ever finds the version free."""
    path = storage.local_path(delta_commits.commit_uri(uri, version))
    assert path is not None

    def replace() -> None:
        directory, name = os.path.split(path)
        if os.path.exists(path):
            os.link(path, f"{directory}/.{name}.torn-{time.time_ns()}")
        temporary = f"{directory}/.{name}{storage.TEMPORARY}{time.time_ns()}"
        with open(temporary, "xb") as file:
            file.write(delta_commits.encoded("HEAL", lines))
        syncing.sync([temporary])
        os.replace(temporary, path)
        syncing.sync(directories=[directory])

    storage.within_deadline("mend", uri, replace)
