"""The files of a read as of a time: what the replicas have now, with compactions taken back that came later.

A write has one time, which each of its files carries, so a file that was staged is of the past as a whole or not at
all. Only a merged file can hide what was there before: it has no older versions of its rows, and no deletes that were
forgotten. What it was made of is in the ledger, all the way down; so of a merged file that says too little of the time
the files are read that it has replaced, wherever they still lie. Each is proved by its name and its seal, so it does
not matter whose it was. Where one is gone the read is refused, and it is told since when it can be had.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from epochlake.jobs.gate.errors import HistoryNotKept
from epochlake.jobs.gate.moments import words_of_moment
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import Lineage, missing, overlap, without
from epochlake.jobs.replicas.ledger import Merge
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.reading import Asked, HeldFiles
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.states import FileTable
from epochlake.jobs.replicas.stored_files import StoredFiles
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateTable
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


class PastFiles:
    """Files of a replica that are of the past which is asked for."""

    def __init__(self, address: ReplicaAddress, files: Iterable[DataFile]) -> None:
        self.address = address
        self.all_files = {file.file_id: file for file in files}

    def within(self, low: int, high: int) -> list[DataFile]:
        """Those whose window meets these tokens, both included."""
        return self._table.within(low, high)

    def showing(self, low: int, high: int) -> list[DataFile]:
        """Those of `within` that may show a row of these tokens, or stand for files that would."""
        return self._table.showing(low, high)

    @cached_property
    def _table(self) -> FileTable:
        return FileTable.of(self.all_files.values())


class Past(NamedTuple):
    """What is asked of replicas for a time; `taken_out`: files, by volume and path, that no replica has any more."""

    asked: list[Asked]
    taken_out: frozenset[tuple[VolumeId, str]]


class _Need(NamedTuple):
    """Rows that a merged file has replaced; where they are gone, only times from `since` on can be read."""

    origin: str
    low: int
    high: int
    since: int


class _Use(NamedTuple):
    """The rows of a file from token `low` to `high` are read of this copy."""

    low: int
    high: int
    copy: ExpectedFile


def past_of(cluster: Store, metadata: ClusterMetadata, table: Table, asked: Sequence[Asked], as_of: int) -> Past:
    """What to read of a table for the rows as they were at `as_of` (microseconds since 1970), inclusive.

    `asked`: what a read now asks for. Raises HistoryNotKept where files are gone that tell of the time,
    StorageUnavailable for the ledger.
    """
    files = {file.file_id: file for _, _, held in asked for one in held for file in one.all_files.values()}
    found = [file for file in files.values() if file.is_merged]
    tree = MergeTree(cluster.ledger.merges(table.table_id) if found else {}, as_of)
    for file in found:
        tree.require(cluster, file)
    lineage = cluster.ledger.lineage(table.table_id, files.values())
    needs = [need for low, high, held in asked for need in _needed(low, high, held, tree, lineage)]
    uses: list[_Use] = []
    if needs:
        uses = _found(cluster, metadata, table, needs, tree, [one for _, _, held in asked for one in held])
    straddling = [file for file in files.values() if not file.is_merged and tree.straddles(file)]
    if straddling:
        raise HistoryNotKept(table.full_name, as_of, max(file.max_written_at for file in straddling), {})
    live: dict[VolumeId, HeldFiles] = {}
    for _, _, held in asked:
        for one in held:
            if one.address.volume_id not in live:
                kept = [file for file in one.all_files.values() if tree.counts(file)]
                live[one.address.volume_id] = PastFiles(one.address, kept)
    there = {
        (one.address.volume_id, file.path) for _, _, held in asked for one in held for file in one.all_files.values()
    }
    taken_out = {(use.copy.address.volume_id, use.copy.file.path) for use in uses} - there
    return Past(list(_divided(asked, live, uses)), frozenset(taken_out))


class MergeTree:
    """What merged files were made of, and which of them say all about a time.

    A merged file has lost older versions of its rows to newer ones, the newest of which it has; and with its making
    deletes that were older. So it says all about times at or after its newest row and its making, and those of every
    merged file that it was made of.
    """

    def __init__(self, merges: Mapping[str, Merge], as_of: int) -> None:
        self.as_of = as_of
        self._merges = merges
        self._made_at: dict[str, int] = {}

    def require(self, cluster: Store, file: DataFile) -> None:
        """Raise StorageUnavailable where it is not known what a merged file was made of."""
        if file.origin not in self._merges:
            raise StorageUnavailable(
                f"the ledger of compactions at {cluster.ledger.uri} has no entry for the merged file {file.origin}, so "
                "it cannot be told what was there before it",
                hint="Restore the ledger, or check that this is the cluster's root",
            )

    def is_known(self, origin: str) -> bool:
        """Whether it is a merged file."""
        return origin in self._merges

    def made_at(self, origin: str) -> int:
        """When the youngest of the compactions was made that a merged file comes of."""
        # No recursion: a range that is always written to has a merge on a merge for years.
        waiting = [origin]
        while waiting:
            merge = self._merges[waiting[-1]]
            below = {one.origin for one in merge.replaced if one.origin in self._merges}
            unknown = below - self._made_at.keys()
            if unknown:
                waiting += unknown
            else:
                self._made_at[waiting.pop()] = max([merge.at, *(self._made_at[one] for one in below)])
        return self._made_at[origin]

    def since(self, file: DataFile) -> int:
        """From when on a merged file says all."""
        return max(self.made_at(file.origin), file.max_written_at)

    def says_all(self, file: DataFile) -> bool:
        """Whether a file can be read as it is, for the time that is asked for."""
        return not file.is_merged or self.since(file) <= self.as_of

    def counts(self, file: DataFile) -> bool:
        """Whether a file has rows of the time, and says all about it."""
        return self.says_all(file) and file.min_written_at <= self.as_of

    def straddles(self, file: DataFile) -> bool:
        """Whether a file has rows of several times, some of them later: no write makes one."""
        return file.rows > 0 and file.min_written_at <= self.as_of < file.max_written_at

    def made_of(self, origin: str, low: int, high: int, since: int) -> Iterable[_Need]:
        """What the rows of a merged file from token `low` to `high` were made of."""
        merge = self._merges[origin]
        for one in merge.replaced:
            first, last = overlap((low, high), overlap((one.low, one.high), (merge.low, merge.high)))
            if first <= last:
                yield _Need(one.origin, first, last, since)


def _needed(low: int, high: int, held: Sequence[HeldFiles], tree: MergeTree, lineage: Lineage) -> Iterable[_Need]:
    """What is needed in the place of merged files that do not say all, in a range."""
    union = {file.file_id: file for one in held for file in one.within(low, high)}
    # Where a merged file has no row there was one perhaps, which a delete has hidden that is forgotten by now.
    silent = {key: file for key, file in union.items() if not tree.says_all(file)}
    told = [msgspec.structs.replace(file, rows=0) if key in silent else file for key, file in union.items()]
    for part in missing(told, (), low, high, lineage):
        if part.file.file_id in silent:
            since = tree.since(silent[part.file.file_id])
            yield from tree.made_of(part.file.origin, part.low, part.high, since)


def _found(
    cluster: Store,
    metadata: ClusterMetadata,
    table: Table,
    needs: Sequence[_Need],
    tree: MergeTree,
    held: Sequence[HeldFiles],
) -> list[_Use]:
    """Where what is needed lies. Raises HistoryNotKept for what lies nowhere."""
    live: dict[str, list[ExpectedFile]] = defaultdict(list)
    for one in {one.address.volume_id: one for one in held}.values():
        for file in one.all_files.values():
            live[file.origin].append(ExpectedFile(file, one.address))
    unreachable: dict[str, str] = {}
    gone: list[_Need] = []
    uses: list[_Use] = []
    waiting = list(needs)
    # First where the table is now, then where it may have been.
    for volumes in _volumes(metadata, table):
        stored = StoredFiles(address_of(cluster.storage, metadata, table, volume) for volume in volumes)
        unreachable |= {metadata.describe(one.volume_id): reason for one, reason in stored.unreachable.items()}
        gone = []
        while waiting:
            known = stored.of(dict.fromkeys(need.origin for need in waiting))
            waiting, asked = [], waiting
            for need in asked:
                copies = [*live[need.origin], *known[need.origin]]
                used, deeper, lacking = _looked_up(need, copies, tree)
                uses += used
                waiting += deeper
                gone += lacking
        if not gone:
            return uses
        waiting = gone
    since = max(need.since for need in gone)
    raise HistoryNotKept(table.full_name, tree.as_of, since, unreachable)


def _volumes(metadata: ClusterMetadata, table: Table) -> list[list[VolumeId]]:
    """The volumes that replicas of a table are on now, and all others of members."""
    placements = metadata.placements(table.table_id)
    ranges = [placements.placement(index) for index in range(len(placements.lows))]
    now = {volume for one in ranges for volume in (*one.reads, *one.writes)} - set(metadata.directory.lost)
    members = {volume.volume_id for node in metadata.directory.members() for volume in node.volumes}
    return [sorted(now), sorted(members - now - set(metadata.directory.lost))]


def _looked_up(
    need: _Need, copies: Sequence[ExpectedFile], tree: MergeTree
) -> tuple[list[_Use], list[_Need], list[_Need]]:
    """What is read for a need of the copies of its origin; what has to be looked for one step down; what is gone."""
    uses: list[_Use] = []
    covered: list[tuple[int, int]] = []
    later: list[tuple[int, int]] = []
    since = 0
    for copy in copies:
        window = overlap(copy.file.window, (need.low, need.high))
        if window[0] > window[1]:
            continue
        if not tree.says_all(copy.file):
            later.append(window)
            since = max(since, tree.since(copy.file))
        elif not tree.straddles(copy.file):
            covered.append(window)
            if copy.file.rows and copy.file.min_written_at <= tree.as_of:
                uses.append(_Use(*window, copy))
    gaps = without((need.low, need.high), covered)
    if not tree.is_known(need.origin):
        return uses, [], [_Need(need.origin, *gap, need.since) for gap in gaps]
    if without((need.low, need.high), [*covered, *later]):
        since = need.since  # not all of it is there to be read for earlier times
    since = min(since, need.since)
    return uses, [one for gap in gaps for one in tree.made_of(need.origin, *gap, since)], []


def _divided(asked: Sequence[Asked], live: Mapping[VolumeId, HeldFiles], uses: Sequence[_Use]) -> Iterable[Asked]:
    """The ranges, divided so that of each file that was taken out only the rows are read that are needed."""
    made: dict[tuple[VolumeId, frozenset[str]], HeldFiles] = {}
    asked = sorted(asked, key=lambda one: one[0])
    begins = [low for low, _, _ in asked]
    of_range: dict[int, list[_Use]] = defaultdict(list)
    for use in uses:
        for number in range(max(bisect_right(begins, use.low) - 1, 0), bisect_right(begins, use.high)):
            of_range[number].append(use)
    for number, (low, high, held) in enumerate(asked):
        base = [live[one.address.volume_id] for one in held]
        cuts = sorted({cut for use in of_range[number] for cut in (use.low, use.high + 1) if low < cut <= high})
        lows = [low, *cuts]
        for first, last in zip(lows, [*(cut - 1 for cut in cuts), high], strict=True):
            here: dict[VolumeId, dict[str, ExpectedFile]] = defaultdict(dict)
            for use in of_range[number]:
                if use.low <= first and last <= use.high:
                    here[use.copy.address.volume_id][use.copy.file.file_id] = use.copy
            extra = []
            for volume, copies in sorted(here.items()):
                key = (volume, frozenset(copies))
                if key not in made:
                    address = next(iter(copies.values())).address
                    made[key] = PastFiles(address, [copy.file for copy in copies.values()])
                extra.append(made[key])
            yield first, last, [*base, *extra]


def require_past(as_of: int, seen: int) -> None:
    """Raise InvalidRequest for a time to come: what is going to be written by then nobody knows.

    `seen`: the newest time of a write that is known here; clocks of writers may be ahead of this one.
    """
    if as_of > max(time.time_ns() // 1000, seen):
        raise InvalidRequest(
            f"{words_of_moment(as_of)} is still to come, so it cannot be read as of then",
            hint="Give a time that is over, by the clock of this machine",
        )


class _Made:
    """When tables were made, microseconds since 1970, kept by a storage: table id -> time."""

    def __init__(self) -> None:
        self.at: dict[TableId, int] = {}


def require_made_by(cluster: Store, table: Table, as_of: int) -> None:
    """Raise HistoryNotKept for a time before a table was made; asked only where there is no row of that time."""
    made = cluster.storage.kept(_Made).at
    if table.table_id not in made:
        for entry in cluster.log().read(0):
            if entry.event == CreateTable.kind():
                event = entry.decode()
                assert isinstance(event, CreateTable)
                made.setdefault(event.table.table_id, entry.committed_at)
    at = made.get(table.table_id, 0)
    if as_of < at:
        raise HistoryNotKept(
            table.full_name, as_of, at, {}, "it was made later (a table of this name that was dropped is another one)."
        )
