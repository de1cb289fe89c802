"""What of a table compaction may drop because it has expired, and which files have nothing else.

A row goes when it had expired an hour before the metadata were looked at, and an hour before now: no clock of a reader
is taken to be further behind, and whatever time to live these metadata do not know of begins later. So no read shows
it, now or later, by any time to live that the table may get (metadata/time_to_live.py), whether it asks a replica that
still has the row or one that has not. Like a delete it has to stay until what it shadows cannot come any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.gate.expiry import bounds_as_of
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.footers import column_number
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.metadata.time_to_live import MICROS, SKEW_MICROS, in_force

THREADS = 8
"""So many footers are read side by side."""

MOST_KNOWN = 1 << 16

MOST_LOOKED_AT = 64
"""So many footers at most are read where somebody only wants to know whether there is something to compact."""

PAUSE_MICROS = 600 * MICROS
"""For so long what was found of a table is taken for what is so, where only the time can have changed it."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_newest: dict[tuple[str, str], int | None] = {}
"""The newest moment in a column of a file, by file id and the column's name in it; None where it is not known, or is
null in some row. A file never changes, so a process that looks again and again reads each footer once."""


class Expiry(msgspec.Struct, frozen=True):
    """`bounds`: by the name of a column, before which moment rows may be dropped (microseconds since 1970); `stored`:
    what files call these columns.
    """

    bounds: Mapping[str, int]
    stored: Mapping[str, str]

    @classmethod
    def of(cls, table: Table, at: int) -> Expiry:
        """What had expired at the time `at`, in microseconds since 1970."""
        bounds = bounds_as_of(table, at)
        return cls(bounds, {one.name: one.stored_name for one in table.columns if one.name in bounds})

    def whole_files(
        self, files: Iterable[DataFile], snapshots: Mapping[VolumeId, ReplicaSnapshot], purge_before: int
    ) -> frozenset[str]:
        """The ids of those files, all from before `purge_before`, of which every row has expired by some column.

        Footers are read for it. A file that cannot be read counts as one that has something left: merging says why.
        """
        old = [file for file in files if file.rows and file.max_written_at < purge_before] if self.bounds else []
        copies = [
            next(ExpectedFile(file, one.address) for one in snapshots.values() if file.file_id in one.all_files)
            for file in old
        ]
        found: set[str] = set()
        for name, bound in self.bounds.items():
            newest = ThreadWorkers(THREADS).run(partial(_newest_in, self.stored[name]), copies)
            found |= {file.file_id for file, moment in zip(old, newest, strict=True) if _is_before(moment, bound)}
        return frozenset(found)


class Found(NamedTuple):
    """`files`: the ids of files with nothing but old rows that have expired, as far as it is known. Of the same files
    it is so before the time `until`, microseconds since 1970; None: for ever.
    """

    files: frozenset[str]
    until: int | None


def found_expired(table: Table, snapshots: Iterable[ReplicaSnapshot], grace_seconds: float, now: int) -> Found:
    """What `Expiry.whole_files` finds at the time `now` (microseconds since 1970), with so few footers read that
    `status` stays quick: those of the oldest files first, and no more once one cannot be read. All others count as
    files that have something left, until somebody asks again.
    """
    if not table.lifetimes:
        return Found(frozenset(), None)
    holders = {file.file_id: (file, one) for one in snapshots for file in one.all_files.values() if file.rows}
    grace = int(grace_seconds * MICROS)
    delay = max(grace, SKEW_MICROS)
    expiry = Expiry.of(table, now - delay)
    old = sorted(
        (file for file, _ in holders.values() if file.max_written_at < now - grace),
        key=lambda file: (file.max_written_at, file.file_id),
    )
    changes = [file.max_written_at + grace + 1 for file, _ in holders.values() if file.max_written_at >= now - grace]
    changes += [one.since + delay for one in table.lifetimes if one.since > now - delay]
    expired: set[str] = set()
    lives = in_force(table)
    for column in table.numbered:
        if column.name not in expiry.bounds:
            continue
        unknown = [ExpectedFile(file, holders[file.file_id][1].address) for file in old]
        unknown = [one for one in unknown if (one.file.file_id, column.stored_name) not in _newest]
        if _look(unknown[:MOST_LOOKED_AT], column.stored_name) < len(unknown):
            changes.append(now)
        for file in old:
            moment = _newest.get((file.file_id, column.stored_name))
            if _is_before(moment, expiry.bounds[column.name]):
                expired.add(file.file_id)
            elif moment is not None and lives is not None and lives.column_id == column.column_id:
                changes.append(moment + (lives.seconds or 0) * MICROS + delay + 1)
    return Found(frozenset(expired), max(min(changes), now + PAUSE_MICROS) if changes else None)


def _look(files: Sequence[ExpectedFile], column: str) -> int:
    """Read footers until one cannot be read; of how many files the moment is known then."""
    for first in range(0, len(files), THREADS):
        some = files[first : first + THREADS]
        ThreadWorkers(THREADS).run(partial(_newest_in, column), some)
        known = sum((one.file.file_id, column) in _newest for one in some)
        if known < len(some):
            return first + known
    return len(files)


NOTHING_EXPIRES = Expiry(MappingProxyType({}), MappingProxyType({}))


def _is_before(moment: int | None, bound: int) -> bool:
    return moment is not None and moment < bound


def _newest_in(column: str, copy: ExpectedFile) -> int | None:
    key = (copy.file.file_id, column)
    if key not in _newest:
        try:
            found = _read_newest(column, copy)
        except (StorageUnavailable, OSError, pa.ArrowException, ValueError, OverflowError):
            return None  # also where a moment is one that Python has not
        if len(_newest) >= MOST_KNOWN:
            _newest.clear()
        _newest[key] = found
    return _newest[key]


def _read_newest(column: str, copy: ExpectedFile) -> int | None:
    storage = copy.address.storage
    filesystem, path = storage.filesystem(copy.uri)

    def footer() -> pq.FileMetaData:
        with filesystem.open_input_file(path) as stream:
            return pq.ParquetFile(stream).metadata

    known = storage.within_deadline("read", copy.uri, footer)
    number = column_number(known, column)
    newest: int | None = None
    for group in range(known.num_row_groups):
        said = known.row_group(group).column(number).statistics
        if said is None or not said.has_min_max or not said.has_null_count or said.null_count:
            return None
        moment = (said.max.replace(tzinfo=UTC) - _BEGINNING) // timedelta(microseconds=1)
        newest = moment if newest is None else max(newest, moment)
    return newest
