"""The ranges of a table as a pipeline plans with them at one epoch: who is written and read where.

A table may have a million ranges and has few different sets of replicas, so what is decided by replicas
is decided once for each set, and what travels to executors names each set once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec
import numpy as np
from epochlake.jobs.gate.errors import NamedRanges
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.staging_plan import Routing
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.metadata.placements import Placement, TablePlacements, highs, index_of, ranges_within
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import ConsistencyLevel, readable, required
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval, range_label
from numpy.typing import NDArray


class Grouped(msgspec.Struct, frozen=True, eq=False):
    """The placement of range i is `distinct[group[i]]`."""

    distinct: tuple[Placement, ...]
    group: NDArray[np.int32]

    @property
    def write_volumes(self) -> set[VolumeId]:
        """All volumes that get writes of the table."""
        return {volume for placement in self.distinct for volume in placement.writes}

    def groups_of(self, indices: Iterable[int]) -> set[int]:
        """The groups that some ranges are in."""
        return set(self.group[np.fromiter(indices, dtype=np.int64)].tolist())

    def ranges_in(self, groups: Iterable[int]) -> list[int]:
        """The ranges of some groups, ascending."""
        return np.flatnonzero(np.isin(self.group, list(groups))).tolist()

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Neighbouring ranges with one placement taken together: number of the first, of the last, and the group."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(self.group)) + 1])
        ends = np.append(starts[1:], len(self.group)) - 1
        return zip(starts.tolist(), ends.tolist(), self.group[starts].tolist(), strict=True)


def grouped(placements: TablePlacements) -> Grouped:
    """The placements of all ranges, equal ones once."""
    known: dict[tuple[object, ...], int] = {}
    distinct: list[Placement] = []
    group = np.empty(len(placements.lows), dtype=np.int32)
    for index in range(len(group)):
        placement = placements.placement(index)
        # In which order replicas are named is of no account.
        key = (frozenset(placement.reads), tuple(frozenset(replicas) for replicas in placement.write_sets))
        if key not in known:
            known[key] = len(distinct)
            distinct.append(placement)
        group[index] = known[key]
    return Grouped(tuple(distinct), group)


def routes(storage: Storage, metadata: ClusterMetadata, table: Table, among: Grouped) -> Routing:
    """The routing by which rows are staged: every range with the addresses of its write replicas."""
    placements = metadata.placements(table.table_id)
    return Routing(
        lows=placements.lows,
        labels=tuple(placements.label(index) for index in range(len(placements.lows))),
        routes=tuple(
            tuple(address_of(storage, metadata, table, volume) for volume in placement.writes)
            for placement in among.distinct
        ),
        route=among.group,
    )


def choose_for_read(
    metadata: ClusterMetadata,
    among: Grouped,
    level: ConsistencyLevel,
    unusable: Collection[VolumeId],
    local: str | None,
) -> tuple[list[tuple[VolumeId, ...]], list[int]]:
    """For each group of ranges the replicas to read at `level`, and the groups that have too few usable ones.

    Storage that is declared lost is never read, and a level needs as many replicas as it did with it. A level that
    includes replicas which serve no reads now, because they are being rebuilt, has too few as well.
    Few volumes that hold many of the ranges are preferred, local ones first: each volume costs one snapshot.
    """
    datacenter_of = metadata.directory.datacenter_of
    unusable = metadata.directory.lost.union(unusable)
    holds: Counter[VolumeId] = Counter()
    for placement, ranges in zip(among.distinct, np.bincount(among.group).tolist(), strict=True):
        holds.update(dict.fromkeys(placement.reads, ranges))

    def rank(volume: VolumeId) -> tuple[bool, int, VolumeId]:
        return (local is not None and datacenter_of(volume) != local, -holds[volume], volume)

    chosen: list[tuple[VolumeId, ...]] = []
    short: list[int] = []
    for group, placement in enumerate(among.distinct):
        if not readable(level, placement.reads, placement.unread, datacenter_of, local):
            short.append(group)
            chosen.append(())
            continue
        usable = sorted((volume for volume in placement.reads if volume not in unusable), key=rank)
        taken: list[VolumeId] = []
        for datacenter, need in required(level, placement.reads, datacenter_of, local).items():
            here = [volume for volume in usable if datacenter is None or datacenter_of(volume) == datacenter]
            taken += here[:need]
            if len(here) < need:
                short.append(group)
                break
        chosen.append(tuple(taken))
    return chosen, short


def refined(routing: Routing, windows: Collection[Interval]) -> Routing:
    """The routing with a border also wherever one of `windows` begins or ends, so that no range is partly in one."""
    if not windows:
        return routing
    borders = {token for low, high in windows for token in (low, high + 1) if MIN_TOKEN < token <= MAX_TOKEN}
    lows = np.union1d(routing.lows, np.array(sorted(borders), dtype=np.int64))
    within = index_of(routing.lows, lows)
    ends, known = highs(lows).tolist(), highs(routing.lows).tolist()
    labels = tuple(
        routing.labels[index] if (low, high) == (routing.lows[index], known[index]) else range_label(low, high)
        for index, low, high in zip(within.tolist(), lows.tolist(), ends, strict=True)
    )
    return Routing(lows, labels, routing.routes, routing.route[within], tuple(sorted(borders)))


def named(metadata: ClusterMetadata, table: Table, indices: Collection[int]) -> NamedRanges:
    """Ranges of a table by the names that people know them by."""
    placements = metadata.placements(table.table_id)
    units = tuple(sorted({placements.unit(index) for index in indices}))
    if not metadata.is_on_ring(table.table_id):
        return NamedRanges("tablet", units, tuple(str(unit) for unit in units))
    ends = highs(placements.lows)
    return NamedRanges("range", units, tuple(f"{placements.lows[unit]} to {ends[unit]}" for unit in units))


def ranges_of(placements: TablePlacements, windows: Iterable[Interval]) -> list[int]:
    """The ranges that have a token of any of `windows`, ascending."""
    lows = placements.lows
    return sorted({index for low, high in windows for index in ranges_within(lows, low, high)})
