"""Replicas that tablets should get or give up next, so that all have the replication of their keyspace: pure decisions.

One replica of a tablet at a time, as many tablets as volumes may stream at once. Where a replica goes is the balancer's
rule: another node, active, with the table's tags, in the rack that has the fewest replicas of the tablet, the emptiest
of them; it waits for a node that does not answer where all others would double a rack. What goes is on a node that is
to go anyway, else in the rack with the most, on the fullest node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import ChangeReplicas, ReplicaChange
from epochlake.metastore.metadata.events.nodes import nodes_going
from epochlake.metastore.metadata.model import NodeId, TableId, VolumeId
from epochlake.metastore.metadata.replica_numbers import altering, tablets_of, unlike
from epochlake.metastore.planning.balancing import Loads, cluster_load
from epochlake.metastore.planning.streams import Room, StreamLimits, busy
from epochlake.placement.balancing.model import Role

_PASSED_OVER = 256
"""After so many tablets in a row for which there is no room, the others are not looked at: there are thousands."""


def next_replica_changes(
    metadata: ClusterMetadata, loads: Loads, streams: StreamLimits
) -> tuple[list[ReplicaChange], list[str]]:
    """What may begin now for keyspaces whose replication is being altered, and why other tablets wait.

    Tablets in transition, and tables that are about to be split (`loads.held`), are left alone for now.
    """
    keyspaces = altering(metadata)
    if not keyspaces:
        return [], []
    places = _Places(metadata, loads, streams)
    begun: list[ReplicaChange] = []
    stuck: Counter[str] = Counter()
    passed_over = 0
    for keyspace in keyspaces:
        reason = f"keyspace {keyspace.name} is to have " + ", ".join(
            f"{name}={factor}" for name, factor in keyspace.replication.items()
        )
        for table_id in tablets_of(metadata, keyspace.name):
            if table_id in loads.held:
                continue
            for tablet in np.flatnonzero(unlike(metadata, table_id)).tolist():
                if (table_id, tablet) in metadata.tablets.transitions:
                    continue
                change = places.step(table_id, tablet, keyspace.replication, reason)
                if isinstance(change, str):
                    if change:
                        stuck[f"tablets of {metadata.schema.tables[table_id].full_name}: {change}"] += 1
                    if (passed_over := passed_over + 1) == _PASSED_OVER:
                        return begun, _counted(stuck)
                    continue
                begun.append(change)
                passed_over = 0
    return begun, _counted(stuck)


def _counted(stuck: Counter[str]) -> list[str]:
    return [f"{count} {why}" for why, count in stuck.items()]


class _Places:
    """Where replicas may come and go in this round; what is begun counts for what is asked next."""

    def __init__(self, metadata: ClusterMetadata, loads: Loads, streams: StreamLimits) -> None:
        self._metadata = metadata
        self._loads = loads
        load, rows = cluster_load(metadata, loads, set(nodes_going(metadata)), streams)
        self._room = Room(streams, busy(metadata, streams).total)
        self._rules = load.table_nodes
        self._table_row = {table_id: row for row, table_id in enumerate(sorted(metadata.tablets.maps))}
        self._node_of = dict(zip(rows.volumes, load.volume_node.tolist(), strict=True))
        self._node_id = rows.nodes
        self._role = load.node_role
        self._datacenter = load.node_datacenter
        self._rack = load.node_rack
        self._capacity = dict(zip(rows.volumes, load.volume_capacity.tolist(), strict=True))
        size = np.bincount(load.replica_volume, load.replica_size, len(rows.volumes))
        self._bytes = dict(zip(rows.volumes, size.tolist(), strict=True))
        self._node_capacity = np.bincount(load.volume_node, load.volume_capacity, len(rows.nodes))
        self._node_bytes = np.bincount(load.volume_node, size, len(rows.nodes))

    def step(self, table_id: TableId, tablet: int, replication: dict[str, int], reason: str) -> ReplicaChange | str:
        """The next change of a tablet, or why there is none now: nothing where it only waits for room."""
        replicas = self._metadata.tablets.maps[table_id].replicas(tablet)
        size = max((self._loads.sizes.get((table_id, tablet, one), 0) for one in replicas), default=0)
        obstacles = [""]
        held = Counter(self._metadata.directory.datacenter_of(one) for one in replicas)
        missing = {name: replication.get(name, 0) - held[name] for name in {*replication, *held}}
        comes = any(lacks > 0 for lacks in missing.values())
        # First what a tablet lacks: then as many as ever hold its rows.
        for name, lacks in sorted(missing.items(), key=lambda item: (-item[1], item[0])):
            if not lacks or (comes and not replication.get(name)):
                continue  # a datacenter goes when those that stay have all that they are to have
            found = self._target(table_id, name, replicas, size) if lacks > 0 else self._leaving(name, replicas, size)
            if isinstance(found, str):
                obstacles.append(found)
                continue
            pending, leaving = found
            change = ReplicaChange(table_id, tablet, pending, leaving, reason)
            try:
                self._metadata.check(ChangeReplicas((change,)))
            except Rejected as rejected:
                obstacles.append(rejected.text)
                continue
            self._take(change, size)
            return change
        return next((one for one in obstacles if one), "")

    def _in(self, datacenter: str, replicas: Sequence[VolumeId]) -> list[VolumeId]:
        return [one for one in replicas if self._metadata.directory.datacenter_of(one) == datacenter]

    def _racks(self, here: Sequence[VolumeId]) -> Counter[str]:
        return Counter(self._metadata.directory.node_of_volume[one].rack for one in here)

    def _height(self, volume: VolumeId) -> tuple[float, float, VolumeId]:
        node = self._node_of[volume]
        full = self._bytes[volume] / self._capacity[volume]
        return float(self._node_bytes[node] / self._node_capacity[node]), full, volume

    def _target(
        self, table_id: TableId, datacenter: str, replicas: Sequence[VolumeId], size: int
    ) -> tuple[VolumeId, None] | str:
        taken = {self._metadata.directory.node_of_volume[one].node_id for one in replicas}
        able = [
            volume
            for volume, node in self._node_of.items()
            if self._datacenter[node] == datacenter
            and self._role[node] == Role.ACTIVE
            and self._node_id[node] not in taken
            and volume not in self._loads.no_targets
            and (self._rules is None or self._rules[self._table_row[table_id], node])
        ]
        if not able:
            return f"no node of datacenter {datacenter} can take a replica more"
        racks = self._racks(self._in(datacenter, replicas))
        rack = {volume: str(self._rack[self._node_of[volume]]) for volume in able}
        fewest = min(racks[rack[volume]] for volume in able)
        if better := self._awaited(table_id, datacenter, taken, racks, fewest):
            return better
        best = [v for v in able if racks[rack[v]] == fewest and self._room.has(v, size=size)]
        return (min(best, key=self._height), None) if best else ""

    def _awaited(
        self, table_id: TableId, datacenter: str, taken: Collection[NodeId], racks: Counter[str], fewest: int
    ) -> str:
        """What a tablet waits for in a rack with fewer replicas of it than any that can take one; empty: nothing.

        A node that does not answer, or failed a moment ago, may be back at once, and nothing would move a replica away
        again that has gone to a second node of a rack. Who does not come back is removed, or set in maintenance.
        """
        for node, role in enumerate(self._role):
            if (
                role == Role.NO_STATISTICS
                and self._datacenter[node] == datacenter
                and self._node_id[node] not in taken
                and racks[str(self._rack[node])] < fewest
                and (self._rules is None or self._rules[self._table_row[table_id], node])
            ):
                name = self._metadata.directory.nodes[self._node_id[node]].name
                return (
                    f"node {name} of rack {self._rack[node]} does not answer, or failed a moment ago, and all others "
                    "that can take a replica more are in racks that have one: if it does not come back, remove it or "
                    "set it in maintenance"
                )
        return ""

    def _leaving(self, datacenter: str, replicas: Sequence[VolumeId], size: int) -> tuple[VolumeId, VolumeId] | str:
        here = self._in(datacenter, replicas)
        lost = self._metadata.directory.lost
        for volume in replicas:
            # With fewer replicas the one that is away would count for more, and all that stay get the rows of what
            # goes: nothing goes before it is back, or rebuilt.
            if volume in self._loads.unmeasured or volume in lost:
                return f"{self._metadata.describe(volume)} does not answer, so no other replica is given up"
        racks = self._racks(here)
        drained = {volume for volume in here if self._role[self._node_of[volume]] == Role.DRAINING}
        node_of = self._metadata.directory.node_of_volume
        leaving = max(here, key=lambda one: (one in drained, racks[node_of[one].rack], self._height(one)))
        heirs = [one for one in here if one != leaving and one not in drained]
        if len(here) == 1:  # the datacenter goes
            heirs = [one for one in replicas if one != leaving and self._role[self._node_of[one]] != Role.DRAINING]
        if not heirs:
            return f"no replica that stays in {datacenter} could take over the rows of one that goes"
        free = [one for one in heirs if self._room.has(leaving, one, size=size)]
        return (min(free, key=self._height), leaving) if free else ""

    def _take(self, change: ReplicaChange, size: int) -> None:
        ends = (change.pending,) if change.leaving is None else (change.leaving, change.pending)
        self._room.take(*ends, size=size)
        changed, by = (change.pending, max(size, 1)) if change.leaving is None else (change.leaving, -max(size, 1))
        self._bytes[changed] += by
        self._node_bytes[self._node_of[changed]] += by
