"""Mending a log with torn or missing commits, as after a power cut or damage of the disk.

Nothing is guessed. An entry is on the disk before the commit that names it (docs/decisions/020). So what
a torn commit at the end would have said is known from the data files that lie there: one file whose entries continue
the chain is what it named, and is named again, whether that was acknowledged or not; where there is none, the commit
held no entry. A commit that others were built on was whole once: what it held has to lead by its hashes from the entry
before it to the entry after it (holes.py). Everything else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.log.checkpoints import spare_files
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.files import LogFile, new_file
from epochlake.metastore.log.holes import Stored, Unfillable, before, continues, end_of, fill, loose, torn_commits
from epochlake.metastore.log.replacing import alone, put_whole
from epochlake.metastore.rewriting import Mark, add_lines
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage


class Mending(msgspec.Struct, frozen=True):
    """What becomes of a torn or missing commit: it names the entries from `first` to `last` again, or none (0).

    `proved`: by the entries after it. Or of damaged files of checkpoints, by their names: they are put aside.
    """

    version: int
    damage: str
    first: int = 0
    last: int = 0
    checkpoints: tuple[str, ...] = ()
    proved: bool = False

    def __str__(self) -> str:
        if self.checkpoints:
            return f"{', '.join(self.checkpoints)}: {self.damage}; put aside, the log is read from its commits"
        said = f"commit {self.version} of the log {self.damage}"
        if not self.first:
            if self.proved:
                return f"{said}; the entries after it continue those before it, so none is missing, and it is empty now"
            return f"{said}; it held no entry, and is empty now"
        epochs = f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"
        between = ", and between its neighbours by its hashes" if self.proved else ""
        return f"{said}; it names {epochs} again, found whole beside it{between}"


def plan_mending(storage: Storage, uri: str) -> list[Mending]:
    """What `mend` would do; nothing where no commit is torn or missing.

    Raises LogUnreadable for what cannot be mended safely: Unfillable where its loss can be accepted.
    """
    return [*_checkpoints(storage, uri), *(mending for mending, _ in _plan(storage, uri))]


def mend(storage: Storage, uri: str) -> list[Mending]:
    """Make the torn and the missing commits of the log whole; what was done. Torn files are kept under other names.

    Raises LogUnreadable for what cannot be mended safely, StorageUnavailable. Safe to repeat, and to do twice at once.
    """
    if not _checkpoints(storage, uri) and not _torn(storage, uri):
        return []
    with alone(storage, uri):
        aside = _checkpoints(storage, uri)
        for mending in aside:
            delta_checkpoints.put_aside(storage, uri, mending.checkpoints)
        planned = _plan(storage, uri)
        for mending, files in planned:
            put_whole(storage, uri, mending.version, "HEAL", _lines(files))
    return [*aside, *(mending for mending, _ in planned)]


def _lines(files: Sequence[LogFile]) -> list[delta_commits.Action]:
    if not files:
        return []
    return add_lines([new_file(file) for file in files], Mark("epoch-log", max(file.last or 0 for file in files)))


def _checkpoints(storage: Storage, uri: str) -> list[Mending]:
    if not _has_commits(storage, uri):
        return []
    damaged = spare_files(storage, uri)
    return [Mending(-1, "damaged, or of a checkpoint that is not there", checkpoints=tuple(damaged))] if damaged else []


def _torn(storage: Storage, uri: str) -> list[delta_commits.TornCommit]:
    return torn_commits(storage, uri) if _has_commits(storage, uri) else []


def _has_commits(storage: Storage, uri: str) -> bool:
    """Whether there is a log to be mended; who opens the cluster says what it means that there is none."""
    return places.local_path(uri) is not None and storage.exists(places.join(uri, delta_commits.LOG))


def _plan(storage: Storage, uri: str) -> list[tuple[Mending, list[LogFile]]]:
    torn = _torn(storage, uri)
    if not torn:
        return []
    newest = delta_commits.newest_version(storage, uri)
    given_up = next((one for one in torn if one.how == delta_commits.ACCEPTED), None)
    if given_up is not None:
        epoch, _ = end_of(before(storage, uri, given_up.version)[0])
        raise Unfillable(uri, given_up, epoch, epoch, "its loss was accepted already")
    # What comes after a whole commit is the end; the others are holes, and what fills them is proved by what follows.
    whole = max((v for v in range(torn[0].version, newest + 1) if v not in {one.version for one in torn}), default=-1)
    holes, end = [one for one in torn if one.version < whole], [one for one in torn if one.version > whole]
    planned: list[tuple[Mending, list[LogFile]]] = []
    if holes:
        filled = fill(storage, uri, holes, whole)
        last, known = filled.last, filled.known
        planned += [(_filling(hole, filled.files[hole.version]), filled.files[hole.version]) for hole in holes]
    else:
        last, known = before(storage, uri, end[0].version)
    found = _continuing(storage, uri, last, known) if end else []
    if len(found) > 1:
        names = ", ".join(sorted(stored.file.path for stored in found))
        raise LogUnreadable(
            f"{end[0]}. Several files could be what it named: {names}",
            hint="Restore the commit from a copy of the log, or move away those that were never committed",
        )
    for number, one in enumerate(end):
        if number == 0 and found:
            file, entries = found[0]
            planned.append((Mending(one.version, one.how, entries[0].epoch, entries[-1].epoch), [file]))
        else:
            planned.append((Mending(one.version, one.how), []))
    return planned


def _filling(hole: delta_commits.TornCommit, files: Sequence[LogFile]) -> Mending:
    epochs = [epoch for file in files for epoch in (file.first, file.last) if epoch] or [0]
    return Mending(hole.version, hole.how, min(epochs), max(epochs), proved=True)


def _continuing(storage: Storage, uri: str, last: Entry | None, known: set[str]) -> list[Stored]:
    """The data files that no commit names and whose entries come right after the last one, by number and hash."""
    found: dict[tuple[str, ...], Stored] = {}
    for stored in loose(storage, uri, known):
        if continues(end_of(last), stored.entries):
            found[tuple(entry.hash for entry in stored.entries)] = stored
    return list(found.values())
