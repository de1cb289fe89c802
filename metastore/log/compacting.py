"""Putting the log's files together, and healing a log whose entries are stored more than once.

Both store entries anew and take out the files that they were in, by one conditional commit (metastore/rewriting.py).
What is stored anew was read whole, has the hashes that it says, and is read back before a version names it. So neither
changes, loses or repeats an entry, whoever does the same at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import HashMismatch
from epochlake.metastore.log.entry import Entry, entry_hash
from epochlake.metastore.log.files import LogFile, discard, new_file, read_columns_of, read_entries, write_anew
from epochlake.metastore.rewriting import NewFile, OldFile, replace_files
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage

COMPACTED_FILE_BYTES = 8 << 20
"""Compaction leaves files of this size alone, so that what it rewrites does not grow with the log."""


class Rewriting(msgspec.Struct, frozen=True):
    """Groups of files of the log, each to become one file."""

    groups: tuple[tuple[LogFile, ...], ...] = ()

    @property
    def files(self) -> int:
        """How many files go."""
        return sum(len(group) for group in self.groups)


class StoredTwice(msgspec.Struct, frozen=True):
    """Epochs that several files hold: the ranges of them, first and last, how many copies are too many, their files."""

    ranges: tuple[tuple[int, int], ...] = ()
    copies: int = 0
    rewriting: Rewriting = Rewriting()


def small_files(files: Sequence[LogFile]) -> list[LogFile]:
    """The files that compaction puts together."""
    return [file for file in files if file.size < COMPACTED_FILE_BYTES]


def compaction_of(files: Sequence[LogFile]) -> Rewriting:
    """The small files in the order of their epochs, in groups of at most `COMPACTED_FILE_BYTES`."""
    groups: list[list[LogFile]] = [[]]
    for file in sorted(small_files(files), key=lambda file: file.first or 0):
        if sum(other.size for other in groups[-1]) + file.size > COMPACTED_FILE_BYTES:
            groups.append([])
        groups[-1].append(file)
    return Rewriting(tuple(tuple(group) for group in groups if len(group) > 1))


def holds_copies(files: Sequence[LogFile]) -> bool:
    """Whether there are more rows than epochs, by the files' statistics alone."""
    return sum(file.rows or 0 for file in files) > max((file.last or 0 for file in files), default=0)


def stored_twice(storage: Storage, uri: str, files: Sequence[LogFile]) -> StoredTwice:
    """The epochs that are stored more than once, and the files to be rewritten. Raises LogUnreadable."""
    epochs_of = {file: _epochs(storage, uri, file) for file in files}
    times = Counter(epoch for epochs in epochs_of.values() for epoch in epochs)
    repeated = sorted(epoch for epoch, count in times.items() if count > 1)
    groups: list[tuple[set[int], list[LogFile]]] = []
    for file, epochs in epochs_of.items():
        mine = {epoch for epoch in epochs if times[epoch] > 1}
        if not mine:
            continue
        group = [file]
        for other in [group for group in groups if group[0] & mine]:
            groups.remove(other)
            mine |= other[0]
            group += other[1]
        groups.append((mine, group))
    return StoredTwice(
        _ranges(repeated), times.total() - len(times), Rewriting(tuple(tuple(files) for _, files in groups))
    )


def rewrite(storage: Storage, uri: str, table: DeltaTable, rewriting: Rewriting) -> set[str] | None:
    """Make one file of each group, against exactly the version of `table`; their paths, None if somebody was faster.

    Raises LogUnreadable where an entry is not what its hash says, or is there with two contents: nothing is changed
    then; and what delta-rs and storage raise.
    """
    removes: list[OldFile] = []
    adds: list[NewFile] = []
    for group in rewriting.groups:
        entries = read_entries(storage, uri, group)
        _require_sound(entries)
        new = write_anew(storage, uri, entries)
        removes += [OldFile(file.path, file.size) for file in group]
        adds.append(new_file(new))
    try:
        if replace_files(storage, table, removes, adds):
            return {file.path for file in adds}
    except delta_commits.TornCommit:
        pass  # what lay there was committed, and clean-up has deleted it or it is lost
    for file in adds:
        discard(storage, uri, file)
    return None


def _require_sound(entries: Sequence[Entry]) -> None:
    """A damaged entry is not written anew: the copy would have sound checksums."""
    for entry in entries:
        if entry_hash(entry) != entry.hash:
            error = HashMismatch(
                f"epoch {entry.epoch} is not what its hash says, so its file was not rewritten: the entry was altered",
                hint="Restore the log from a copy",
            )
            error.epochs = (entry.epoch, entry.epoch)
            raise error


def _epochs(storage: Storage, uri: str, file: LogFile) -> list[int]:
    try:
        epochs: list[int] = read_columns_of(storage, uri, [file], ["epoch"])["epoch"].to_pylist()
    except (OSError, pa.ArrowException, KeyError, StorageDamaged):
        # Names the file and its epochs.
        read_entries(storage, uri, [file])
        raise
    return epochs


def _ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)
