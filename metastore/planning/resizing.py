"""What should be split and merged, from the metadata and the measured loads: pure decisions of the coordinator.

The rule itself is `placement/tablets/resizing.py`. Here tables become its columns, and the pairs of tablets that a
merge waits for become transitions, as many as volumes may stream at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

import msgspec
import numpy as np
from epochlake.metastore.configuration import TabletSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import NewTransition, StartTransitions
from epochlake.metastore.metadata.model import NodeState, TableId, VolumeId
from epochlake.metastore.metadata.replica_numbers import tables_altering
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.planning.streams import Room, StreamLimits, busy
from epochlake.placement.tablets.resizing import (
    Colocation,
    Goal,
    Resize,
    ResizeDecision,
    TableSizes,
    colocations,
    decide,
)
from epochlake.placement.tablets.tablet_map import NO_REPLICA, TabletMap
from epochlake.placement.tablets.transitions import Kind

_PASSED_OVER = 256
"""After so many pairs in a row that no volume has room for, the others are not looked at: there are thousands."""


class ResizePlanned(msgspec.Struct, frozen=True):
    """What is decided about a table: `count` tablets now, `wanted` in the end; `in_force` is the decision of now.

    `bytes`: mean size of a replica of a tablet, None when no replica of it could be measured.
    """

    table_id: TableId
    count: int
    bytes: float | None
    in_force: Resize
    decision: ResizeDecision


def planned_resizes(metadata: ClusterMetadata, loads: Loads, settings: TabletSettings) -> list[ResizePlanned]:
    """The decision for every table with tablets, in the order of their ids."""
    ids = sorted(metadata.tablets.maps)
    if not ids:
        return []
    total = _bytes_of_tables(metadata, loads)
    maps = [metadata.tablets.maps[table_id] for table_id in ids]
    options = [metadata.schema.tables[table_id].options for table_id in ids]
    sizes = [
        _mean(total[table_id], _measured(tablet_map, loads)) for table_id, tablet_map in zip(ids, maps, strict=True)
    ]
    columns = TableSizes.of(
        count=[tablet_map.count for tablet_map in maps],
        replicas=[int((tablet_map.to_array() != NO_REPLICA).sum()) // tablet_map.count for tablet_map in maps],
        bytes=sizes,
        target=[one.target_bytes or settings.target_bytes for one in options],
        minimum=[
            one.min_count if _may_merge(metadata, table_id) else max(one.min_count, tablet_map.count)
            for table_id, tablet_map, one in zip(ids, maps, options, strict=True)
        ],
        maximum=[one.max_count or 1 << 62 for one in options],
        resize=[tablet_map.resize_type for tablet_map in maps],
    )
    volumes = sum(len(n.volumes) for n in metadata.directory.nodes.values() if n.state is NodeState.NORMAL)
    return [
        ResizePlanned(table_id, tablet_map.count, None if math.isnan(size) else size, force, decision)
        for table_id, tablet_map, size, force, decision in zip(
            ids, maps, sizes, columns.resize, decide(columns, Goal(settings.per_volume, volumes)), strict=True
        )
    ]


def _may_merge(metadata: ClusterMetadata, table_id: TableId) -> bool:
    """Whether siblings may be brought together: none is pinned, and each tablet has as many replicas as its sibling,
    for which nothing is under way.
    """
    if table_id in tables_altering(metadata):
        return False
    counts = (metadata.tablets.maps[table_id].to_array() != NO_REPLICA).sum(axis=1)
    return not metadata.pins.of_table(table_id) and int(counts.min()) == int(counts.max())


def _bytes_of_tables(metadata: ClusterMetadata, loads: Loads) -> Counter[TableId]:
    """Bytes on the volumes that hold each table now; what is on others comes or goes with a transition."""
    places = {
        table_id: set(np.unique(tablet_map.to_array()).tolist())
        for table_id, tablet_map in metadata.tablets.maps.items()
    }
    total: Counter[TableId] = Counter()
    for (table_id, _, volume), size in loads.sizes.items():
        if volume in places.get(table_id, ()):
            total[table_id] += size
    return total


def _measured(tablet_map: TabletMap, loads: Loads) -> int:
    """Replicas of tablets that lie on volumes which were measured."""
    held = tablet_map.to_array()
    away = np.fromiter({NO_REPLICA, *loads.unmeasured}, dtype=held.dtype)
    return int((~np.isin(held, away)).sum())


def _mean(total: int, replicas: int) -> float:
    return total / replicas if replicas else math.nan


def colocating_transitions(
    metadata: ClusterMetadata, table_id: TableId, loads: Loads, streams: StreamLimits
) -> tuple[list[NewTransition], list[str]]:
    """Moves that may begin now to bring siblings together before a merge, and why others may not.

    While a pair cannot be brought together nothing begins: balancing goes on meanwhile, and would take apart what is
    together, for ever.
    """
    tablet_map = metadata.tablets.maps[table_id]
    moving = {tablet for table, tablet in metadata.tablets.transitions if table == table_id}
    pairs = [pair for pair in tablet_map.siblings_apart().tolist() if not {2 * pair, 2 * pair + 1} & moving]
    # Pairs on the same volumes are alike, but for the names of their tablets.
    clear: set[tuple[tuple[VolumeId, ...], ...]] = set()
    stuck: list[str] = []
    for pair in pairs:
        replicas = tablet_map.replicas(2 * pair), tablet_map.replicas(2 * pair + 1)
        if replicas in clear:
            continue
        obstacle = _obstacle(metadata, table_id, pair, loads)
        if obstacle:
            stuck.append(f"tablets {2 * pair} and {2 * pair + 1} wait for their merge: {obstacle}")
        else:
            clear.add(replicas)
    if stuck:
        return [], stuck
    room = Room(streams, busy(metadata, streams).total)
    begun: list[NewTransition] = []
    passed_over = 0
    for pair in pairs:
        move = _moves(metadata, tablet_map, pair)[0]
        size = loads.sizes.get((table_id, move.tablet, move.source), 0)
        if room.has(move.source, move.target, size=size):
            begun.append(_transition(metadata, table_id, move))
            room.take(move.source, move.target, size=size)
            passed_over = 0
        elif (passed_over := passed_over + 1) == _PASSED_OVER:
            break
    return begun, []


def _moves(metadata: ClusterMetadata, tablet_map: TabletMap, pair: int) -> list[Colocation]:
    """The moves of a pair, one after the other, in the order that keeps nodes and racks apart."""
    even, odd = tablet_map.replicas(2 * pair), tablet_map.replicas(2 * pair + 1)
    return colocations(pair, even, odd, lambda volume: _location(metadata, volume))


def _obstacle(metadata: ClusterMetadata, table_id: TableId, pair: int, loads: Loads) -> str:
    """Why a pair cannot be brought together now: some move on the way is not allowed, or could only fail, be taken back
    and begin again, for ever.
    """
    tablet_map = metadata.tablets.maps[table_id]
    moves = _moves(metadata, tablet_map, pair)
    if not moves:
        return "their replicas are in different datacenters"
    for move in moves:
        if move.source in loads.unmeasured:
            return f"{metadata.describe(move.source)} does not answer. Bring it back, or remove its node"
        if move.target in loads.no_targets:
            return f"{metadata.describe(move.target)} does not answer, or took a tablet back a moment ago"
        try:
            metadata.check(StartTransitions((_transition(metadata, table_id, move),)))
        except Rejected as rejected:
            return rejected.text
        moved = [move.target if volume == move.source else volume for volume in tablet_map.replicas(move.tablet)]
        tablet_map = tablet_map.with_replicas({move.tablet: moved}, metadata.epoch)
        maps = {**metadata.tablets.maps, table_id: tablet_map}
        metadata = msgspec.structs.replace(metadata, tablets=msgspec.structs.replace(metadata.tablets, maps=maps))
    return ""


def _transition(metadata: ClusterMetadata, table_id: TableId, move: Colocation) -> NewTransition:
    nodes = {metadata.directory.node_of_volume[volume].node_id for volume in (move.source, move.target)}
    kind = Kind.INTRANODE_MIGRATION if len(nodes) == 1 else Kind.MIGRATION
    reason = f"co-located with tablet {move.tablet - 1}, to be merged with it"
    return NewTransition(table_id, move.tablet, kind, move.source, move.target, reason)


def _location(metadata: ClusterMetadata, volume: VolumeId) -> tuple[str, str, int]:
    node = metadata.directory.node_of_volume[volume]
    return node.datacenter, node.rack, node.node_id


def replica_sets_with(tablet_map: TabletMap, volumes: Collection[VolumeId]) -> list[tuple[VolumeId, ...]]:
    """The different replica sets of a table's tablets that have one of `volumes`."""
    rows = tablet_map.to_array()[tablet_map.tablets_on(volumes)]
    different = np.unique(np.sort(rows, axis=1), axis=0)
    return [tuple(volume for volume in row if volume != NO_REPLICA) for row in different.tolist()]


def volumes_of(tablet_map: TabletMap) -> list[VolumeId]:
    """The volumes that hold tablets of a table."""
    return [volume for volume in np.unique(tablet_map.to_array()).tolist() if volume != NO_REPLICA]
