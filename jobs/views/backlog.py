"""What compaction would save the readers of each table now: its backlog, from metadata of files alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import Lineage
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.states import FileTable
from epochlake.jobs.upkeep.compacting import EXPIRED, TARGET_FILE_BYTES, CompactionPolicy, Weighed, grace_of, weigh
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.expired_files import found_expired
from epochlake.jobs.upkeep.many_files import many_layers, weigh_many
from epochlake.jobs.upkeep.read_costs import ReadCost
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.placement.tokens import MIN_TOKEN

DEFAULT = CompactionPolicy()

MANY_FILES = 64
"""A range of which more files show rows is weighed by arrays; fewer are sooner looked at one by one."""


class Backlog(msgspec.Struct, frozen=True):
    """What is to be compacted: `due` ranges of `due_bytes` now, and `waiting` ranges later, when nothing is written.

    `expired`: how many of the due ranges have so much in files of nothing but rows that have expired (as far as footers
    of files have been looked at) that it is worth its place on the disk.
    `times`: how many times as long a read of the table takes as it would if all of it had been compacted, by estimate.
    """

    due: int
    due_bytes: int
    waiting: int
    times: float
    expired: int = 0


class _Told(NamedTuple):
    """A backlog, what it follows from (a digest), and between which times it holds, microseconds since 1970."""

    key: bytes
    since: int
    until: int | None
    backlog: Backlog | None


class Backlogs:
    """The backlog of each table as it was told last; kept by a storage.

    Files never change: as long as replicas have the same ones, only time can make another range due, or have rows
    expire.
    """

    def __init__(self) -> None:
        self._told: dict[TableId, _Told] = {}

    def of(
        self, table: Table, ranges: list[Range], opened: Mapping[VolumeId, ReplicaSnapshot], lineage: Lineage
    ) -> Backlog | None:
        """As `backlog`."""
        fingerprints = [(volume, snapshot.fingerprint) for volume, snapshot in sorted(opened.items())]
        expiry = (table.ttl, grace_of(table)) if table.lifetimes else ()
        follows_from = msgspec.json.encode((table.append_only, ranges, fingerprints, lineage, *expiry), order="sorted")
        key, now = hashlib.sha256(follows_from).digest(), time.time_ns() // 1000
        told = self._told.get(table.table_id)
        if told is None or told.key != key or now < told.since or (told.until is not None and now >= told.until):
            found = found_expired(table, opened.values(), grace_of(table), now)
            weighed = _weighed(table, ranges, opened, lineage, now, found.files)
            ends = [found.until, *(one.until for one, _ in weighed)]
            until = min((end for end in ends if end is not None), default=None)
            told = self._told[table.table_id] = _Told(key, now, until, _backlog_of(weighed))
        return told.backlog


def backlog(
    table: Table, ranges: list[Range], opened: Mapping[VolumeId, ReplicaSnapshot], lineage: Lineage
) -> Backlog | None:
    """Of a table whose replicas that answered are `opened`; None where there is nothing to compact. No row is read, and
    of a table with a TTL a few footers.
    """
    now = time.time_ns() // 1000
    expired = found_expired(table, opened.values(), grace_of(table), now).files
    return _backlog_of(_weighed(table, ranges, opened, lineage, now, expired))


class _Weight(NamedTuple):
    """What of `Weighed` counts here; `expired`: whether what is due has mostly expired."""

    now: ReadCost
    best: ReadCost
    due_bytes: int | None = None
    due_at: int | None = None
    until: int | None = None
    expired: bool = False


class _Alike(NamedTuple):
    """So many `ranges` that weigh the same, `range` among them, of each of which so many `files` show rows."""

    range: Range
    ranges: int
    files: int


def _weighed(
    table: Table,
    ranges: list[Range],
    opened: Mapping[VolumeId, ReplicaSnapshot],
    lineage: Lineage,
    now: int,
    expired: frozenset[str],
) -> list[tuple[_Weight, int]]:
    """What ranges weigh at the time `now`, and how many of them weigh that, where of these files nothing is shown any
    more.

    Ranges of which the same is true are weighed once: of thousands of tablets that share their files most are alike.
    """
    weighed = []
    served: dict[bytes, tuple[ReplicaSnapshot, list[Range]]] = {}
    for range_ in ranges:
        # Replicas that have the same files are looked at once.
        distinct = {opened[volume].fingerprint: opened[volume] for volume in range_.replicas if volume in opened}
        if len(distinct) == 1:
            [(fingerprint, snapshot)] = distinct.items()
            served.setdefault(fingerprint, (snapshot, []))[1].append(range_)
        elif distinct:
            weighed.append((_weight(table, range_, distinct.values(), lineage, now, expired), 1))
    for snapshot, some in served.values():
        for alike in _groups(some, snapshot.table):
            found = None
            if alike.files > MANY_FILES and not expired:
                found = _weight_of_many(table, alike.range, snapshot.table, now)
            if found is None:
                found = _weight(table, alike.range, (snapshot,), lineage, now, expired)
            weighed.append((found, alike.ranges))
    return weighed


def _weight(
    table: Table,
    range_: Range,
    snapshots: Iterable[ReplicaSnapshot],
    lineage: Lineage,
    now: int,
    expired: frozenset[str],
) -> _Weight:
    union: dict[str, DataFile] = {}
    for snapshot in snapshots:
        union |= {file.file_id: file for file in snapshot.showing(range_.low, range_.high)}
    found = weigh(table, range_, union.values(), lineage, DEFAULT, MIN_TOKEN, now, TARGET_FILE_BYTES, expired)
    due_bytes = None if found.chosen is None else found.chosen.size
    return _Weight(found.now, found.best, due_bytes, found.due_at, found.until, _is_expired(found))


def _is_expired(found: Weighed) -> bool:
    return found.chosen is not None and found.chosen.reason == EXPIRED


def _weight_of_many(table: Table, range_: Range, files: FileTable, now: int) -> _Weight | None:
    layers = many_layers(files, range_.low, range_.high)
    return None if layers is None else _Weight(*weigh_many(layers, table.append_only, DEFAULT, now))


def _groups(ranges: Sequence[Range], files: FileTable) -> Iterator[_Alike]:
    """Ranges that weigh the same; those that have nothing are left out.

    A file that has rows on both sides of a range has the share of its tokens there, wherever the range is. So ranges of
    one width are alike where the same files do, and where none begins or ends within.
    """
    lows = np.array([one.low for one in ranges], dtype=np.int64)
    highs = np.array([one.high for one in ranges], dtype=np.int64)
    showing = files.rows > 0
    # Files that stand for others count wherever they might.
    spans = np.where(files.merged, files.windows, files.extents)[:, showing | files.merged]
    firsts, lasts = np.sort(spans[0]), np.sort(spans[1])
    begun, ended = np.searchsorted(firsts, highs, "right"), np.searchsorted(lasts, lows, "left")
    across = (begun == np.searchsorted(firsts, lows, "right")) & (ended == np.searchsorted(lasts, highs, "left"))
    across &= not bool(np.any(files.merged))
    alike: dict[tuple[int, int, int], list[Range]] = {}
    places = zip(ranges, begun.tolist(), ended.tolist(), across.tolist(), strict=True)
    for range_, begin, end, is_across in places:
        if begin == end:
            continue
        if is_across:
            alike.setdefault((begin, end, range_.high - range_.low), []).append(range_)
        else:
            yield _Alike(range_, 1, begin - end)
    for (begin, end, _), some in alike.items():
        yield _Alike(some[0], len(some), begin - end)


def _backlog_of(weighed: Sequence[tuple[_Weight, int]]) -> Backlog | None:
    due = [(one, ranges) for one, ranges in weighed if one.due_bytes is not None]
    waiting = sum(ranges for one, ranges in weighed if one.due_bytes is None and one.due_at is not None)
    if not due and not waiting:
        return None
    return Backlog(
        sum(ranges for _, ranges in due),
        sum(ranges * (one.due_bytes or 0) for one, ranges in due),
        waiting,
        _times(weighed),
        sum(ranges for one, ranges in due if one.expired),
    )


def _times(weighed: Sequence[tuple[_Weight, int]]) -> float:
    now = sum(ranges * one.now.work for one, ranges in weighed)
    best = sum(ranges * one.best.work for one, ranges in weighed)
    return now / best if best else 1.0
