"""Holes in the log: commits that are torn or missing, and whole ones after them. What they held is proved, or not said.

The hash of an entry covers all entries before it. What is missing between two entries is therefore
known by its hash, and a data file that lies there holds it or does not: nothing has to be guessed. Where the entries
after the hole continue those before it, the commit held none.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.entry import GENESIS, Entry, entry_hash
from epochlake.metastore.log.files import SCHEMA, LogFile, distinct, files_of, from_arrow, read_columns, read_entries
from epochlake.metastore.storage import failures
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of


class Unfillable(LogUnreadable):
    """What a torn or missing commit held cannot be proved, and there are whole ones after it.

    `version`: of the commit, and `how` it is torn; `after`: the last epoch before it; `last`: the last known.
    """

    def __init__(self, uri: str, torn: delta_commits.TornCommit, after: int, last: int, why: str) -> None:
        lost = (
            f"epoch {last} is"
            if last == after + 1
            else f"epochs {after + 1} to {last} are"
            if last > after
            else f"what came after epoch {after} is"
        )
        super().__init__(
            f"{torn}. There are whole commits after it, and what it held is not known: {why}",
            hint=f"Restore {delta_commits.commit_uri(uri, torn.version)} from a copy of the log; if {lost} lost for "
            "good, run `epochlake log accept-loss`",
        )
        self.version = torn.version
        self.how = torn.how
        self.after = after
        self.last = last
        self.epochs = (after + 1, max(after + 1, last))


class Stored(NamedTuple):
    """A data file that was read, and its entries."""

    file: LogFile
    entries: list[Entry]


class Filled(NamedTuple):
    """What fills holes: the data files that each version names again, maybe none, and how the log stands then."""

    files: dict[int, list[LogFile]]
    last: Entry | None
    known: set[str]


def torn_commits(storage: Storage, uri: str) -> list[delta_commits.TornCommit]:
    """The commits of the log, after the newest checkpoint, that are not whole, or of another version. Raises
    StorageUnavailable.
    """
    return delta_commits.torn_commits(storage, uri)


def before(storage: Storage, uri: str, version: int) -> tuple[Entry | None, set[str]]:
    """The last entry before a version, and the paths of the data files that are live there. Raises LogUnreadable."""
    files = _files_before(storage, uri, version)
    tail = max((file.last or 0 for file in files), default=0)
    entries = read_entries(storage, uri, [file for file in files if file.last == tail], tail - 1) if tail else []
    return (entries[-1] if entries else None), {file.path for file in files}


def read_before(storage: Storage, uri: str, version: int, after: int = 0, up_to: int | None = None) -> list[Entry]:
    """The entries before a version, as `EpochLog.read` gives them. Raises LogUnreadable."""
    files = [file for file in _files_before(storage, uri, version) if file.may_hold(after, up_to)]
    return read_entries(storage, uri, files, after, up_to)


def _files_before(storage: Storage, uri: str, version: int) -> list[LogFile]:
    if version == 0:
        raise LogUnreadable(f"the first commit of the log at {uri} is torn", hint="Restore it from a copy of the log")
    try:
        return files_of(DeltaTable(uri, version=version - 1))
    except (*failures.STORAGE_ERRORS, KeyError) as error:
        raise LogUnreadable(
            f"the log at {uri} cannot be read as it was before commit {version}: {words_of(error)}"
        ) from error


def loose(storage: Storage, uri: str, known: set[str]) -> Iterator[Stored]:
    """The data files that no commit names, those that are whole and whose entries are what their hashes say."""
    for listed in storage.list_files(uri):
        if "/" in listed.name or not listed.name.endswith(".parquet") or listed.name in known:
            continue
        entries = _entries_of(storage, uri, listed.name)
        if entries and continues((entries[0].epoch - 1, entries[0].previous_hash), entries):
            file = LogFile(listed.name, listed.size, len(entries), entries[0].epoch, entries[-1].epoch)
            yield Stored(file, entries)


def _entries_of(storage: Storage, uri: str, path: str) -> list[Entry]:
    """The entries in a data file; none where it was never on the disk as a whole, so that no commit could name it.

    Raises StorageUnavailable where the disk does not say what is in it: what it holds must not be taken for lost.
    """
    try:
        return from_arrow(read_columns(storage, uri, [path], SCHEMA.names))
    except (failures.MissingFile, failures.StorageDamaged, pa.ArrowException, KeyError, ValueError):
        return []
    except OSError as error:
        require_answer(error)
        return []


def require_answer(error: BaseException | None) -> None:
    """Raise StorageUnavailable where an error is one of the storage, and says nothing about what is stored."""
    if isinstance(error, StorageUnavailable) and not isinstance(error, failures.MissingFile | failures.StorageDamaged):
        raise error
    if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
        raise failures.unavailable("read the log for", "what a torn commit held", error)


def end_of(entry: Entry | None) -> tuple[int, str]:
    """What the entry after this one has to continue: an epoch and a hash."""
    return (entry.epoch, entry.hash) if entry is not None else (0, GENESIS)


def continues(end: tuple[int, str], entries: Sequence[Entry]) -> bool:
    """Whether entries come right after an epoch and its hash, and are what their own hashes say."""
    for entry in entries:
        if (entry.epoch - 1, entry.previous_hash) != end or entry.hash != entry_hash(entry):
            return False
        end = end_of(entry)
    return True


def fill(storage: Storage, uri: str, holes: Sequence[delta_commits.TornCommit], newest: int) -> Filled:
    """What the commits in `holes` held, up to version `newest` which is whole. Raises Unfillable, LogUnreadable."""
    first = holes[0]
    last, known = before(storage, uri, first.version)
    missing = {hole.version for hole in holes}
    epoch = end_of(last)[0]
    later: list[tuple[int, Entry]] = []
    highest = epoch
    try:
        for version in range(first.version + 1, newest + 1):
            if version in missing:
                continue
            for file in adds_in(storage, uri, delta_commits.commit_uri(uri, version)):
                known.add(file.path)
                highest = max(highest, file.last or 0)
                later += [(version, entry) for entry in read_entries(storage, uri, [file]) if entry.epoch > epoch]
        entries = distinct(sorted((entry for _, entry in later), key=lambda entry: entry.epoch))
    except (LogUnreadable, failures.MissingFile) as error:
        require_answer(error.__cause__)
        raise Unfillable(
            uri, first, epoch, highest, f"what comes after it cannot be read ({words_of(error)})"
        ) from error
    if not entries:
        raise Unfillable(uri, first, epoch, highest, "no entry comes after it that would prove it")
    of_version = {entry.epoch: version for version, entry in reversed(later)}
    found = list(loose(storage, uri, known))
    files: dict[int, list[LogFile]] = {version: [] for version in sorted(missing)}
    end = last
    for entry in entries:
        between = _between(found, end_of(end), end_of_previous(entry))
        if between is None or not continues(end_of_previous(entry), [entry]):
            why = f"no file beside it holds what is between epochs {end_of(end)[0]} and {entry.epoch}, by their hashes"
            raise Unfillable(uri, first, epoch, highest, why)
        if between:
            files[max(version for version in missing if version < of_version[entry.epoch])] += between
        end = entry
    return Filled(files, end, known | {file.path for named in files.values() for file in named})


def end_of_previous(entry: Entry) -> tuple[int, str]:
    """What an entry says that it continues."""
    return entry.epoch - 1, entry.previous_hash


def _between(found: Sequence[Stored], start: tuple[int, str], end: tuple[int, str]) -> list[LogFile] | None:
    """Files whose entries lead from one end of the chain to another one, exactly; None when there are none."""
    if start == end:
        return []
    for stored in found:
        if end_of(stored.entries[-1]) != end or stored.entries[0].epoch <= start[0]:
            continue
        earlier = _between(found, start, end_of_previous(stored.entries[0]))
        if earlier is not None:
            return [*earlier, stored.file]
    return None


def adds_in(storage: Storage, uri: str, commit: str) -> list[LogFile]:
    """The data files that the whole commit in a file names. Raises LogUnreadable, StorageUnavailable."""
    data = storage.read_bytes(commit)
    try:
        adds = [line["add"] for text in data.splitlines() if text.strip() and "add" in (line := json.loads(text))]
        return [_log_file(add) for add in adds]
    except (ValueError, KeyError, TypeError) as error:
        raise LogUnreadable(f"the commit {commit} of the log at {uri} cannot be read: {words_of(error)}") from error


def _log_file(add: dict[str, object]) -> LogFile:
    statistics = json.loads(str(add.get("stats") or "{}"))
    lowest, highest = statistics.get("minValues", {}), statistics.get("maxValues", {})
    return LogFile(
        unquote(str(add["path"])),
        int(str(add["size"])),
        statistics.get("numRecords"),
        lowest.get("epoch"),
        highest.get("epoch"),
    )
