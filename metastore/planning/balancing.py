"""What the coordinator should begin next: pure decisions from the metadata and the measured loads.

Requests come first: what a node gives up is moved before anything is balanced, and while a request is open no balancing
is begun (seed 000, "Load balancing"). What is begun at once is limited by streams per volume; the rest is planned anew
when there is room, on the metadata of then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import NewTransition
from epochlake.metastore.metadata.events.nodes import nodes_given_up, volumes_given_up
from epochlake.metastore.metadata.model import (
    Node,
    NodeState,
    RequestKind,
    RequestState,
    Table,
    TableId,
    TopologyRequest,
    Transition,
    VolumeId,
)
from epochlake.metastore.metadata.rules import has_tags, kept_apart
from epochlake.metastore.planning.streams import Room, StreamLimits, busy
from epochlake.placement.balancing.beginning import begun_first
from epochlake.placement.balancing.model import ClusterLoad, Hold, Obstacle, Plan, Role
from epochlake.placement.balancing.planner import plan_moves
from epochlake.placement.balancing.reasons import move_reasons
from epochlake.placement.balancing.rules import parted
from epochlake.placement.tablets.tablet_map import NO_REPLICA, TabletMap
from epochlake.placement.tablets.transitions import Kind
from numpy.typing import NDArray


class Loads(msgspec.Struct, frozen=True):
    """Measured bytes of tablet replicas, and the volumes that could not be measured: neither targets nor sources.

    `avoided` are volumes that a transition to was taken back a moment ago: no targets for now. `held` are tables that
    are about to be split or merged: they are drained, and not balanced.
    """

    sizes: Mapping[tuple[TableId, int, VolumeId], int]
    unmeasured: frozenset[VolumeId]
    avoided: frozenset[VolumeId] = frozenset()
    held: frozenset[TableId] = frozenset()

    @property
    def no_targets(self) -> frozenset[VolumeId]:
        return self.unmeasured | self.avoided


def next_transitions(
    metadata: ClusterMetadata, loads: Loads, streams: StreamLimits
) -> tuple[list[NewTransition], list[str]]:
    """Tablets that should begin to move now, and what cannot move although it must; nothing for a paused request."""
    running = [r for r in metadata.open_requests() if r.state is RequestState.RUNNING and not r.paused]
    started: list[NewTransition] = []
    for request in running:
        if request.kind is RequestKind.REPLACE:
            started += _rebuilds_on_replacement(metadata, request, loads, streams)
    kinds = {
        node.node_id: Kind.MIGRATION if request.kind is RequestKind.LEAVE else Kind.REBUILD
        for request in running
        if request.kind in (RequestKind.LEAVE, RequestKind.REMOVE)
        for node in nodes_given_up(metadata, request)
    }
    if kinds or (not any(metadata.open_requests()) and metadata.switches.balancing):
        moves, stuck = _planned_moves(metadata, loads, streams, kinds)
        return _one_of_each_tablet(started + moves), stuck
    return _one_of_each_tablet(started), []


def _one_of_each_tablet(planned: list[NewTransition]) -> list[NewTransition]:
    """A tablet that two requests want to move begins with the first one (INV-TABL-2)."""
    return list({(new.table_id, new.tablet): new for new in reversed(planned)}.values())[::-1]


def cluster_load(
    metadata: ClusterMetadata, loads: Loads, draining: set[int], streams: StreamLimits
) -> tuple[ClusterLoad, _Rows]:
    """The cluster as the balancer sees it, and what its rows stand for."""
    nodes = [node for node in metadata.directory.nodes.values() if node.state is not NodeState.NONE]
    volumes = [volume for node in nodes for volume in node.volumes]
    row_of_volume = {volume.volume_id: row for row, volume in enumerate(volumes)}
    tables = sorted(metadata.tablets.maps)
    keys: list[tuple[TableId, int]] = []
    hold: list[NDArray[np.int64]] = []
    replicas: list[_Replicas] = []
    in_flight = busy(metadata, streams)
    measured = _measured_replicas(loads)
    moving: dict[TableId, list[Transition]] = defaultdict(list)
    for transition in metadata.tablets.transitions.values():
        moving[transition.table_id].append(transition)
    for table_id in tables:
        tablet_map = metadata.tablets.maps[table_id]
        held = Hold.PENDING_REQUEST if table_id in loads.held and not draining else Hold.FREE
        holds = np.full(tablet_map.count, held, dtype=np.int64)
        if not draining:
            # A node that goes takes no notice of pins: it would never end.
            holds[metadata.pins.pinned(table_id, tablet_map.count)] = Hold.PINNED
        holds[[transition.tablet for transition in moving[table_id]]] = Hold.IN_TRANSITION
        hold.append(holds)
        replicas.append(
            _replicas(tablet_map, moving[table_id], row_of_volume, measured.get(table_id, []), first_tablet=len(keys))
        )
        keys += [(table_id, tablet) for tablet in range(tablet_map.count)]
    node_row = {node.node_id: row for row, node in enumerate(nodes)}
    owner = [node_row[metadata.directory.node_of_volume[volume.volume_id].node_id] for volume in volumes]
    roles = []
    for node in nodes:
        if node.node_id in draining:
            roles.append(Role.DRAINING)
        elif node.state is not NodeState.NORMAL:
            roles.append(Role.EXCLUDED)
        elif node.maintenance:
            roles.append(Role.MAINTENANCE)
        elif any(volume.volume_id in loads.no_targets for volume in node.volumes):
            roles.append(Role.NO_STATISTICS)
        else:
            roles.append(Role.ACTIVE)
    load = ClusterLoad.of(
        node_datacenter=np.array([node.datacenter for node in nodes]),
        node_rack=np.array([node.rack for node in nodes]),
        node_role=roles,
        node_weight=[node.weight for node in nodes],
        volume_node=owner,
        volume_capacity=[volume.capacity for volume in volumes],
        tablet_table=np.repeat(np.arange(len(tables)), [len(holds) for holds in hold]),
        tablet_hold=np.concatenate([*hold, np.empty(0, np.int64)]),
        replica_tablet=np.concatenate([*(one.tablet for one in replicas), np.empty(0, np.int64)]),
        replica_volume=np.concatenate([*(one.volume for one in replicas), np.empty(0, np.int64)]),
        replica_size=np.concatenate([*(one.size for one in replicas), np.empty(0, np.int64)]),
        busy_out=[in_flight.leaving[volume.volume_id] for volume in volumes],
        busy_in=[in_flight.pending[volume.volume_id] for volume in volumes],
    )
    rules = _rules(metadata, load, [metadata.schema.tables[table_id] for table_id in tables], nodes)
    load = msgspec.structs.replace(load, table_nodes=rules)
    return load, _Rows(keys, [volume.volume_id for volume in volumes], [node.node_id for node in nodes])


class _Replicas(NamedTuple):
    """Replicas by tablet: of which tablet, on which volume (rows of the cluster's load), and of how many bytes."""

    tablet: NDArray[np.int64]
    volume: NDArray[np.int64]
    size: NDArray[np.int64]


def _measured_replicas(loads: Loads) -> dict[TableId, list[tuple[int, VolumeId, int]]]:
    """By table: tablet, volume, bytes."""
    found: dict[TableId, list[tuple[int, VolumeId, int]]] = defaultdict(list)
    for (table_id, tablet, volume), size in loads.sizes.items():
        found[table_id].append((tablet, volume, size))
    return found


def _replicas(
    tablet_map: TabletMap,
    moving: Sequence[Transition],
    row_of_volume: Mapping[VolumeId, int],
    measured: Sequence[tuple[int, VolumeId, int]],
    first_tablet: int,
) -> _Replicas:
    """A table's replicas as they will be when its transitions have ended. What was not measured is as large as the
    largest replica of its tablet that was.
    """
    sizes = _Sizes(measured)
    current = tablet_map.to_array()
    largest = sizes.of(current).max(axis=1, initial=0)
    changed = {transition.tablet: transition.new_replicas for transition in moving}
    after = tablet_map.with_replicas(changed, tablet_map.epoch).to_array() if moving else current
    known = sizes.of(after)
    size = np.maximum(np.where(known == _UNKNOWN, largest[:, None], known), 1)
    tablet, place = np.nonzero(after != NO_REPLICA)
    volumes = np.array(sorted(row_of_volume), dtype=np.int64)
    rows = np.array([row_of_volume[volume] for volume in volumes.tolist()], dtype=np.int64)
    volume = rows[np.searchsorted(volumes, after[tablet, place])]
    return _Replicas(tablet + first_tablet, volume, size[tablet, place])


_UNKNOWN = -1


class _Sizes:
    """Bytes of the replicas of a table that were measured."""

    def __init__(self, measured: Sequence[tuple[int, VolumeId, int]]) -> None:
        tablets, volumes, sizes = np.array(measured, dtype=np.int64).reshape(-1, 3).T
        order = np.lexsort((volumes, tablets))
        self._keys = _keys(tablets[order], volumes[order])
        self._sizes = sizes[order]

    def of(self, replicas: NDArray[np.int32]) -> NDArray[np.int64]:
        """Of each replica, (tablets, width): its bytes; `_UNKNOWN` where it was not measured, or there is none."""
        if not len(self._keys):
            return np.full(replicas.shape, _UNKNOWN, dtype=np.int64)
        keys = _keys(np.arange(len(replicas), dtype=np.int64)[:, None], replicas.astype(np.int64))
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._sizes[at], _UNKNOWN)


def _keys(tablets: NDArray[np.int64], volumes: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each pair of a tablet and a volume, both of at most 32 bits, in their order."""
    return tablets << 32 | volumes + 1


def _rules(
    metadata: ClusterMetadata, load: ClusterLoad, tables: Sequence[Table], nodes: Sequence[Node]
) -> NDArray[np.bool_] | None:
    """The nodes that each table may use, (tables, N); None when there are no rules."""
    row = {table.table_id: number for number, table in enumerate(tables)}
    pairs = [(row[table.table_id], [row[other] for other in kept_apart(metadata, table)]) for table in tables]
    pairs = [(table, others) for table, others in pairs if others]
    if not pairs and not any(table.options.tags for table in tables):
        return None
    cell = load.tablet_table[load.replica_tablet] * len(nodes) + load.volume_node[load.replica_volume]
    held = np.bincount(cell, minlength=len(tables) * len(nodes)).reshape(len(tables), len(nodes))
    _, rack = np.unique([f"{node.datacenter}\n{node.rack}" for node in nodes], return_inverse=True)
    tagged = np.array([[has_tags(table, node) for node in nodes] for table in tables])
    return parted(held, rack, load.node_role == Role.ACTIVE, pairs) & tagged


class _Rows(msgspec.Struct, frozen=True):
    tablets: list[tuple[TableId, int]]
    volumes: list[VolumeId]
    nodes: list[int]


def _planned_moves(
    metadata: ClusterMetadata, loads: Loads, streams: StreamLimits, kinds: Mapping[int, Kind]
) -> tuple[list[NewTransition], list[str]]:
    if not metadata.tablets.maps:
        return [], []
    load, rows = cluster_load(metadata, loads, set(kinds), streams)
    if not len(load.replica_tablet):
        return [], []
    policy = streams.policy
    plan = plan_moves(load, policy)
    names = [metadata.directory.nodes[node_id].name for node_id in rows.nodes]
    reasons, reason_of = move_reasons(load, plan, names)
    moves = []
    silent: set[VolumeId] = set()
    begun = np.flatnonzero(plan.wave == 1) if kinds else begun_first(load, plan, policy)
    for index in begun.tolist():
        table_id, tablet = rows.tablets[load.replica_tablet[plan.replica[index]]]
        source, target = rows.volumes[plan.source[index]], rows.volumes[plan.target[index]]
        from_node = metadata.directory.node_of_volume[source].node_id
        if kinds and from_node not in kinds:
            continue
        same_node = from_node == metadata.directory.node_of_volume[target].node_id
        kind = Kind.INTRANODE_MIGRATION if same_node else kinds.get(from_node, Kind.MIGRATION)
        if kind is not Kind.REBUILD and source in loads.unmeasured:
            # It could only fail, be taken back and begin again, for ever.
            silent.add(source)
            continue
        moves.append(NewTransition(table_id, tablet, kind, source, target, reasons[reason_of[index]]))
    unreadable = [
        f"tablets of {metadata.describe(volume)} stay: it does not answer. Bring it back, or remove its node"
        for volume in sorted(silent)
    ]
    return moves, unreadable + _stuck(metadata, load, rows, plan, set(kinds))


def _stuck(metadata: ClusterMetadata, load: ClusterLoad, rows: _Rows, plan: Plan, draining: set[int]) -> list[str]:
    """What must leave a node and has nowhere to go."""
    reasons: Counter[str] = Counter()
    for replica, why in zip(plan.stay_replica.tolist(), plan.stay_why.tolist(), strict=True):
        if replica < 0:
            continue
        volume = rows.volumes[load.replica_volume[replica]]
        node = metadata.directory.node_of_volume[volume]
        if node.node_id in draining:
            reasons[f"tablets of node {node.name} stay: {obstacle(why)}"] += 1
    return [f"{count} {reason}" for reason, count in reasons.items()]


def obstacle(why: int) -> str:
    """An obstacle of the balancer, for people."""
    return Obstacle(why).name.lower().replace("_", " ")


def _rebuilds_on_replacement(
    metadata: ClusterMetadata, request: TopologyRequest, loads: Loads, streams: StreamLimits
) -> list[NewTransition]:
    """Replicas of the replaced node, rebuilt on the volumes of the node that replaces it."""
    node = metadata.directory.nodes[request.node_id]
    lost = volumes_given_up(metadata, request)
    targets = [volume.volume_id for volume in node.volumes if volume.volume_id not in loads.no_targets]
    room = Room(streams, busy(metadata, streams).pending)
    holds = Counter(one.pending for one in metadata.tablets.transitions.values() if one.pending in targets)
    capacity = {volume.volume_id: volume.capacity for volume in node.volumes}
    for tablet_map in metadata.tablets.maps.values():
        for volume in targets:
            holds[volume] += len(tablet_map.tablets_on([volume]))
    found = []
    for table_id, tablet in metadata.replicas_in_use(lost):
        others = [volume for volume in metadata.tablets.maps[table_id].replicas(tablet) if volume not in lost]
        known = [loads.sizes.get((table_id, tablet, one), 0) for one in others if one not in loads.unmeasured]
        size = max(known, default=None)
        free = [volume for volume in targets if room.has(volume, size=size)]
        if not free:
            break
        if (table_id, tablet) in metadata.tablets.transitions:
            continue
        target = min(free, key=lambda volume: ((holds[volume] + 1) / capacity[volume], volume))
        leaving = next(v for v in metadata.tablets.maps[table_id].replicas(tablet) if v in lost)
        found.append(NewTransition(table_id, tablet, Kind.REBUILD, leaving, target, "node is replaced"))
        room.take(target, size=size)
        holds[target] += 1
    return found
