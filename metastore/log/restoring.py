"""Entries of the log whose data file is damaged or gone, put back from other files that hold them.

Compaction and healing leave the files that they put together where they are, so most entries lie there more than once.
Nothing is guessed. An entry is taken from another file where the hash of an entry after it leads to it; at the end of
the log, where nothing comes after, only from files that a commit of the log has named, or from a log member's copy:
members take only what the log has (docs/decisions/107-log-members.md). What is put back takes the place of the damaged
files in one commit, against exactly what was looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import HashMismatch, LogUnreadable, StorageUnavailable
from epochlake.metastore.log.entry import Entry, entry_hash
from epochlake.metastore.log.files import LogFile, distinct, files_of, new_file, read_entries, write_anew
from epochlake.metastore.log.holes import Stored, continues, end_of, end_of_previous, loose, require_answer
from epochlake.metastore.rewriting import NewFile, OldFile, replace_files
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of

TRIES = 5
"""How often it is tried while others append."""


Copies = Callable[[], Sequence[Entry]]
"""The entries that a copy of the log holds, of a log that has members; asked when something is damaged."""


def no_copies() -> Sequence[Entry]:
    """Those of a log without members."""
    return ()


class Damaged(NamedTuple):
    """A data file of the log that cannot be read, or whose entries are not what their hashes say."""

    file: LogFile
    how: str


class Restoring(msgspec.Struct, frozen=True):
    """Damaged data files that are taken out, by their paths, and the epochs that are put back, as ranges."""

    files: tuple[str, ...]
    how: str
    epochs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        said = f"{', '.join(self.files)}: {self.how}; taken out"
        if not self.epochs:
            return f"{said}, as its entries are in other files of the log"
        ranges = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in self.epochs)
        return f"{said}, and epochs {ranges} put back, found whole elsewhere and proved by their hashes"


class Lost(LogUnreadable):
    """Entries whose data file is damaged and that no other file holds, as far as that can be proved.

    `after`: the last epoch before them; `last`: the last that is known; `paths`: of the damaged files.
    """

    def __init__(self, uri: str, damaged: Sequence[Damaged], after: int, last: int, why: str) -> None:
        names = ", ".join(one.file.path for one in damaged)
        lost = f"epoch {last} is" if last == after + 1 else f"epochs {after + 1} to {last} are"
        super().__init__(
            f"epoch {after + 1} of the log cannot be read: {damaged[0].how}, and {why}",
            hint=f"Restore {names} in {uri} from a copy of the log; if {lost} lost for good, run "
            "`epochlake log accept-loss`",
        )
        self.after = after
        self.last = last
        self.paths = tuple(one.file.path for one in damaged)
        self.epochs = (after + 1, last)


class Whole(NamedTuple):
    """What the log holds without its damaged files: which those are, the others, the entries up to what is lost, those
    among them that are in no whole file of the log, and why and what is lost, if anything is.
    """

    damaged: list[Damaged]
    files: list[LogFile]
    entries: list[Entry]
    restored: list[Entry]
    lost: Lost | None


def plan_restoring(storage: Storage, uri: str, copies: Copies = no_copies) -> list[Restoring]:
    """What `restore` would do; nothing where every data file is whole.

    Raises Lost where it cannot be done, LogUnreadable, StorageUnavailable.
    """
    if not _is_there(storage, uri):
        return []
    whole = look(storage, uri, opened(storage, uri), copies)
    if whole.lost is not None:
        raise whole.lost
    return [_restoring(whole)] if whole.damaged else []


def restore(storage: Storage, uri: str, copies: Copies = no_copies) -> list[Restoring]:
    """Put back what damaged data files held; what was done. Damaged files stay where they lie, named by no version.

    Raises as `plan_restoring`. Safe to repeat, and to do twice at once.
    """
    if not _is_there(storage, uri):
        return []
    for _ in range(TRIES):
        table = opened(storage, uri)
        whole = look(storage, uri, table, copies)
        if whole.lost is not None:
            raise whole.lost
        if not whole.damaged:
            return []
        if replace_files(
            storage,
            table,
            [OldFile(one.file.path, one.file.size) for one in whole.damaged],
            _stored(storage, uri, whole),
        ):
            return [_restoring(whole)]
    raise StorageUnavailable(
        f"the log at {uri} was not healed: others appended to it during each of {TRIES} tries", hint="Try again"
    )


def opened(storage: Storage, uri: str) -> DeltaTable:
    """A handle on the newest version. Raises StorageUnavailable."""
    try:
        return DeltaTable(uri, storage_options=storage.delta_options(uri))
    except (OSError, DeltaError) as error:
        raise failures.unavailable("read the log at", uri, error) from error


def look(storage: Storage, uri: str, table: DeltaTable, copies: Copies = no_copies) -> Whole:
    """Read every data file of a version of the log. Raises StorageUnavailable, HashMismatch where two whole files have
    different entries of one epoch.
    """
    damaged: list[Damaged] = []
    files: list[LogFile] = []
    found: list[Entry] = []
    for file in _files(uri, table):
        try:
            held = read_entries(storage, uri, [file])
            _require_sound(file, held)
        except LogUnreadable as error:
            require_answer(error.__cause__)
            damaged.append(Damaged(file, _how(error)))
        else:
            files.append(file)
            found += held
    here = distinct(sorted(found, key=lambda entry: entry.epoch))
    if not damaged:
        return Whole([], files, here, [], None)
    known = {file.path for file in (*files, *(one.file for one in damaged))}
    beside = list(loose(storage, uri, known))
    copied = copies()
    by_hash = {entry.hash: entry for held in (copied, *(stored.entries for stored in beside)) for entry in held}
    entries: list[Entry] = []
    restored: list[Entry] = []
    for entry in here:
        between = _between(entries, entry, by_hash)
        if between is None or not continues(end_of_previous(entry), [entry]):
            why = f"{_nobody(copied)} holds what leads to epoch {entry.epoch} by its hashes"
            return _cut(uri, damaged, files, entries, restored, max(here[-1].epoch, _last(damaged)), why)
        restored += between
        entries += [*between, entry]
    last = _last(damaged)
    after = _at_the_end(entries, last, [copied, *(stored.entries for stored in _named(storage, uri, beside))])
    entries, restored = [*entries, *after], [*restored, *after]
    if (entries[-1].epoch if entries else 0) < last:
        why = "no file that a commit has named holds it as well" + (", nor does a log member" if copied else "")
        return _cut(uri, damaged, files, entries, restored, last, why)
    return Whole(damaged, files, entries, restored, None)


def _nobody(copied: Sequence[Entry]) -> str:
    return "no file beside it, and no log member," if copied else "no file beside it"


def _cut(
    uri: str,
    damaged: list[Damaged],
    files: list[LogFile],
    entries: list[Entry],
    restored: list[Entry],
    last: int,
    why: str,
) -> Whole:
    after = entries[-1].epoch if entries else 0
    if not after:
        raise LogUnreadable(
            f"the first epoch of the log at {uri} cannot be read: {damaged[0].how}",
            hint=f"Restore {damaged[0].file.path} from a copy of the log",
        )
    return Whole(damaged, files, entries, restored, Lost(uri, damaged, after, max(last, after + 1), why))


def _between(before: Sequence[Entry], entry: Entry, by_hash: Mapping[str, Entry]) -> list[Entry] | None:
    """The entries that lead from the last one of `before` to `entry`, by their hashes; None where one is missing."""
    start = end_of(before[-1] if before else None)
    found: list[Entry] = []
    end = end_of_previous(entry)
    while end != start:
        earlier = by_hash.get(end[1])
        if earlier is None or earlier.epoch != end[0] or earlier.epoch <= start[0]:
            return None
        found.append(earlier)
        end = end_of_previous(earlier)
    return found[::-1]


def _at_the_end(before: Sequence[Entry], last: int, named: Iterable[Sequence[Entry]]) -> list[Entry]:
    """The entries up to epoch `last` that continue `before`, from files that a commit has named, and copies."""
    following: dict[tuple[int, str], Entry] = {}
    for held in named:
        for entry in held:
            other = following.setdefault(end_of_previous(entry), entry)
            if other.hash != entry.hash:
                raise HashMismatch(
                    f"two commits of the log have named different entries as epoch {entry.epoch}",
                    hint="Restore the log from a copy",
                )
    found: list[Entry] = []
    end = end_of(before[-1] if before else None)
    while end[0] < last and end in following:
        found.append(following[end])
        end = end_of(found[-1])
    return found


def _named(storage: Storage, uri: str, beside: Iterable[Stored]) -> Iterator[Stored]:
    """Those of the files that no version names any more which a commit has named once."""
    once = _paths_in_commits(storage, uri) | _paths_in_checkpoints(storage, uri)
    return (stored for stored in beside if stored.file.path in once)


def _paths_in_commits(storage: Storage, uri: str) -> set[str]:
    paths: set[str] = set()
    directory = places.join(uri, delta_commits.LOG)
    for listed in storage.list_files(directory):
        if "/" in listed.name or not listed.name.endswith(".json") or not listed.name[0].isdigit():
            continue
        for line in storage.read_bytes(places.join(directory, listed.name)).splitlines():
            try:
                action = json.loads(line)
                paths |= {unquote(action[kind]["path"]) for kind in ("add", "remove") if kind in action}
            except (ValueError, KeyError, TypeError):
                continue  # a commit that is torn proves nothing
    return paths


def _paths_in_checkpoints(storage: Storage, uri: str) -> set[str]:
    paths: set[str] = set()
    directory = places.join(uri, delta_commits.LOG)
    filesystem, root = storage.filesystem(directory)
    for listed in storage.list_files(directory):
        if "/" in listed.name or not listed.name.endswith(".checkpoint.parquet"):
            continue
        try:
            with pq.ParquetFile(f"{root}/{listed.name}", filesystem=filesystem) as file:
                rows = file.read(columns=["add.path", "remove.path"], use_threads=False)
        except (OSError, pa.ArrowException):
            continue  # one that is damaged proves nothing
        for kind in ("add", "remove"):
            paths |= {unquote(row["path"]) for row in rows[kind].to_pylist() if row is not None and row["path"]}
    return paths


def _stored(storage: Storage, uri: str, whole: Whole) -> list[NewFile]:
    """New data files of what is put back, each with epochs in a row."""
    return [new_file(write_anew(storage, uri, run)) for run in runs(whole.restored)]


def runs(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries in the order of their epochs, parted where epochs are missing between them."""
    found: list[list[Entry]] = []
    for entry in entries:
        if found and found[-1][-1].epoch == entry.epoch - 1:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


def _restoring(whole: Whole) -> Restoring:
    return Restoring(
        tuple(one.file.path for one in whole.damaged),
        whole.damaged[0].how,
        tuple((run[0].epoch, run[-1].epoch) for run in runs(whole.restored)),
    )


def _last(damaged: Sequence[Damaged]) -> int:
    """The last epoch that damaged files had, as the log's statistics say. Raises LogUnreadable where they do not."""
    for one in damaged:
        if one.file.last is None:
            raise LogUnreadable(
                f"{one.file.path} of the log is damaged, and its statistics do not say which epochs it had",
                hint="Restore it from a copy of the log",
            )
    return max((one.file.last or 0 for one in damaged), default=0)


def _require_sound(file: LogFile, entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry_hash(entry) != entry.hash:
            raise HashMismatch(f"epoch {entry.epoch} in {file.path} is not what its hash says")


def _how(error: LogUnreadable) -> str:
    if isinstance(error, HashMismatch) or error.__cause__ is None:
        return words_of(error)
    return f"its data file cannot be read ({words_of(error.__cause__)})"


def _is_there(storage: Storage, uri: str) -> bool:
    """Whether there is a log; who opens the cluster says what it means that there is none."""
    return storage.exists(places.join(uri, delta_commits.LOG))


def _files(uri: str, table: DeltaTable) -> list[LogFile]:
    try:
        return files_of(table)
    except (OSError, DeltaError, pa.ArrowException, KeyError) as error:
        raise LogUnreadable(f"the files of the log at {uri} cannot be told: {words_of(error)}") from error
