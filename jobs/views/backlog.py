"""What compaction would save the readers of each table now: its backlog, from metadata of files alone."""

from __future__ import annotations

import functools
import hashlib
import operator
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import Lineage
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.upkeep.compacting import EXPIRED, TARGET_FILE_BYTES, CompactionPolicy, Weighed, grace_of, weigh
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.expired_files import found_expired
from epochlake.jobs.upkeep.read_costs import ReadCost
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.placement.tokens import MIN_TOKEN

DEFAULT = CompactionPolicy()

_Likeness = tuple[int, frozenset[str]]
"""The width of a range, and the ids of the files that it shares."""


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
            ends = [found.until, *(one.until for one in weighed)]
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


def _weighed(
    table: Table,
    ranges: list[Range],
    opened: Mapping[VolumeId, ReplicaSnapshot],
    lineage: Lineage,
    now: int,
    expired: frozenset[str],
) -> list[Weighed]:
    """Each range at the time `now`, where of these files nothing is shown any more.

    Ranges of which the same is true are weighed once: of thousands of tablets that share their files most are alike.
    """
    weighed = []
    known: dict[_Likeness, Weighed] = {}
    for range_ in ranges:
        union: dict[str, DataFile] = {}
        # Replicas that have the same files are looked at once.
        distinct = {opened[volume].fingerprint: opened[volume] for volume in range_.replicas if volume in opened}
        for snapshot in distinct.values():
            union |= {file.file_id: file for file in snapshot.showing(range_.low, range_.high)}
        likeness = _likeness(range_, union, lineage)
        found = known.get(likeness) if likeness is not None else None
        if found is None:
            found = weigh(table, range_, union.values(), lineage, DEFAULT, MIN_TOKEN, now, TARGET_FILE_BYTES, expired)
            if likeness is not None:
                known[likeness] = found
        weighed.append(found)
    return weighed


def _backlog_of(weighed: list[Weighed]) -> Backlog | None:
    due = [one.chosen for one in weighed if one.chosen is not None]
    waiting = [one for one in weighed if one.chosen is None and one.due_at is not None]
    if not due and not waiting:
        return None
    expired = sum(one.reason == EXPIRED for one in due)
    return Backlog(len(due), sum(one.size for one in due), len(waiting), _times(weighed), expired)


def _likeness(range_: Range, files: Mapping[str, DataFile], lineage: Lineage) -> _Likeness | None:
    """What the weight of a range follows from; None where its files end within it, or stand for others.

    A file that has rows on both sides of a range has the share of its tokens there, wherever the range is.
    """
    for file in files.values():
        first, last = file.extent
        if not (file.rows and first <= range_.low and range_.high <= last) or lineage.get(file.origin):
            return None
    return range_.high - range_.low, frozenset(files)


def _times(weighed: list[Weighed]) -> float:
    paid = functools.reduce(operator.add, (one.now for one in weighed), ReadCost())
    return paid.times(functools.reduce(operator.add, (one.best for one in weighed), ReadCost()))
