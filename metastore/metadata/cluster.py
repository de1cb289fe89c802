"""`ClusterMetadata`: everything that the cluster agrees on, as of one epoch.

It is immutable. `apply` is the only way to the next one, and a pure function of the event, so that replaying a log
gives the same metadata everywhere. Components that an event does not touch are shared between epochs; each knows the
epoch that last changed it. Look-ups by name are built on first use and live as long as the component does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import (
    Identity,
    Keyspace,
    Node,
    NodeId,
    NodeState,
    PlacementKind,
    RequestState,
    Switches,
    Table,
    TableId,
    TabletKey,
    TopologyRequest,
    Transition,
    Volume,
    VolumeId,
)
from epochlake.metastore.metadata.placements import (
    Placement,
    RingPlacements,
    TablePlacements,
    TabletPlacements,
)
from epochlake.metastore.metadata.rings import Rings, replication_setting
from epochlake.placement.rejections import Code
from epochlake.placement.ring.state import LOST
from epochlake.placement.tablets.tablet_map import TabletMap

if TYPE_CHECKING:
    from epochlake.metastore.metadata.events import Event


OPEN = (RequestState.PENDING, RequestState.RUNNING, RequestState.CANCELLING)
"""States of a request that has not ended."""


class Directory(msgspec.Struct, frozen=True, dict=True):
    """The nodes and their volumes. Nodes that left stay: replicas may still name their volumes (seed 000)."""

    nodes: Mapping[NodeId, Node]
    epoch: int = 0

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by name; a name belongs to the last node that took it, so that one that left can come back anew."""
        return {node.name: node for node in self.nodes.values()}

    @cached_property
    def node_of_volume(self) -> dict[VolumeId, Node]:
        return {volume.volume_id: node for node in self.nodes.values() for volume in node.volumes}

    @cached_property
    def lost(self) -> frozenset[VolumeId]:
        """Volumes that count for nothing and are never opened, also where their storage answers again: see `LOST`."""
        return frozenset(
            volume.volume_id
            for node in self.nodes.values()
            if node.lost or node.state in LOST
            for volume in node.volumes
        )

    @cached_property
    def volumes(self) -> dict[VolumeId, Volume]:
        return {volume.volume_id: volume for node in self.nodes.values() for volume in node.volumes}

    def why_lost(self, volume: VolumeId) -> str:
        """Why a volume is not to be opened, for people; empty where it may be."""
        if volume not in self.lost:
            return ""
        node = self.node_of_volume[volume]
        said = "has left" if node.state is NodeState.LEFT else "was declared lost"
        return (
            f"node {node.name!r} {said} (epoch {node.epoch}): its volume {volume} is neither read nor written any "
            "more, also when it answers again. Clear it and add it as a new node"
        )

    def datacenter_of(self, volume: VolumeId) -> str:
        return self.node_of_volume[volume].datacenter

    def members(self) -> list[Node]:
        """Nodes that have joined and have not left."""
        return [node for node in self.nodes.values() if node.state not in (NodeState.NONE, NodeState.LEFT)]

    def with_nodes(self, *changed: Node, epoch: int) -> Directory:
        nodes = dict(self.nodes)
        for node in changed:
            nodes[node.node_id] = msgspec.structs.replace(node, epoch=epoch)
        return Directory(nodes, epoch)


class Schema(msgspec.Struct, frozen=True, dict=True):
    """Keyspaces and tables."""

    keyspaces: Mapping[str, Keyspace]
    tables: Mapping[TableId, Table]
    epoch: int = 0

    @cached_property
    def by_name(self) -> dict[str, Table]:
        return {table.full_name: table for table in self.tables.values()}


class Tablets(msgspec.Struct, frozen=True):
    """Tablet maps, and the transitions in flight: at most one for each tablet (INV-TABL-2)."""

    maps: Mapping[TableId, TabletMap]
    transitions: Mapping[TabletKey, Transition]
    epoch: int = 0


class ClusterMetadata(msgspec.Struct, frozen=True):
    """The state of the cluster after `epoch`."""

    epoch: int
    state_id: str
    identity: Identity
    directory: Directory
    schema: Schema
    tablets: Tablets
    requests: Mapping[str, TopologyRequest]
    switches: Switches
    last_snapshot_epoch: int = 0
    rings: Rings = Rings()

    @staticmethod
    def empty() -> ClusterMetadata:
        """The metadata before the first epoch: no cluster yet."""
        return ClusterMetadata(
            epoch=0,
            state_id="",
            identity=Identity("", "", 1, 0),
            directory=Directory({}),
            schema=Schema({}, {}),
            tablets=Tablets({}, {}),
            requests={},
            switches=Switches(),
        )

    def check(self, event: Event) -> None:
        """Raise `Rejected` when the event is not valid on top of this metadata."""
        if self.epoch == 0 and not event.may_be_first:
            raise Rejected(Code.NOT_INITIALISED, "there is no cluster yet: run `epochlake init` first")
        if not self.switches.changes and not event.allowed_while_paused:
            raise Rejected(
                Code.CHANGES_PAUSED,
                f"changes of the cluster metadata are paused ({self.switches.changes_reason or 'no reason given'}): "
                "run `epochlake changes resume` first",
            )
        event.check(self)

    def apply(self, event: Event, state_id: str) -> ClusterMetadata:
        """The metadata after the next epoch, in which `event` happened. The event must have passed `check`."""
        epoch = self.epoch + 1
        changed = event.apply(self, epoch, state_id)
        return msgspec.structs.replace(changed, epoch=epoch, state_id=state_id)

    @property
    def fence(self) -> Fence:
        """What replicas know this epoch by: nothing that was planned before it lands on a replica fenced at it."""
        return self.fence_at(self.epoch)

    def fence_at(self, epoch: int) -> Fence:
        """What replicas know an earlier epoch by. One of an earlier incarnation counts as the one in which the present
        incarnation began: fences may have been raised to epochs whose loss was accepted then.
        """
        incarnation = self.identity.incarnation
        return Fence(epoch if incarnation == 1 else max(epoch, self.identity.epoch), incarnation)

    def incarnation_since(self, epoch: int) -> int:
        """The lowest incarnation that something of an epoch of the present history can have been done in.

        An epoch after the present incarnation began may have been one before as well, of those whose loss was accepted.
        """
        return self.identity.incarnation if epoch > self.identity.epoch else 1

    # --- looking things up, with errors that say what there is -------------------------------------------------

    def describe(self, volume: VolumeId) -> str:
        """A volume for people: its node and its own name."""
        return f"{self.directory.node_of_volume[volume].name}/{self.directory.volumes[volume].name}"

    def node(self, name: str) -> Node:
        node = self.directory.by_name.get(name)
        if node is None:
            known = ", ".join(sorted(self.directory.by_name)) or "none"
            raise Rejected(Code.UNKNOWN_NODE, f"there is no node {name!r} (nodes: {known})")
        return node

    def keyspace(self, name: str) -> Keyspace:
        keyspace = self.schema.keyspaces.get(name)
        if keyspace is None:
            known = ", ".join(sorted(self.schema.keyspaces)) or "none"
            raise Rejected(Code.UNKNOWN_KEYSPACE, f"there is no keyspace {name!r} (keyspaces: {known})")
        return keyspace

    def table(self, full_name: str) -> Table:
        table = self.schema.by_name.get(full_name)
        if table is None:
            known = ", ".join(sorted(self.schema.by_name)) or "none"
            hint = "" if "." in full_name else "; a table is named keyspace.table"
            raise Rejected(Code.UNKNOWN_TABLE, f"there is no table {full_name!r} (tables: {known}{hint})")
        return table

    def request(self, request_id: str) -> TopologyRequest:
        request = self.requests.get(request_id)
        if request is None:
            raise Rejected(Code.UNKNOWN_REQUEST, f"there is no topology request {request_id!r}")
        return request

    def open_requests(self) -> Iterator[TopologyRequest]:
        """Requests that have not ended, oldest first."""
        return (r for r in self.requests.values() if r.state in OPEN)

    def placement(self, table_id: TableId, tablet: int) -> Placement:
        """Where a tablet is read and written now."""
        return TabletPlacements(table_id, self.tablets.maps[table_id], self.tablets.transitions).of_tablet(tablet)

    def placements(self, table_id: TableId) -> TablePlacements:
        """Where every token of a table is read and written now."""
        if self.is_on_ring(table_id):
            return self.ring_placements(self.schema.tables[table_id].keyspace)
        return TabletPlacements(table_id, self.tablets.maps[table_id], self.tablets.transitions)

    def is_on_ring(self, table_id: TableId) -> bool:
        """Whether a table is one of a ring keyspace: it has no tablet map then."""
        return self.schema.keyspaces[self.schema.tables[table_id].keyspace].placement is PlacementKind.RING

    def ring_placements(self, keyspace: str) -> RingPlacements:
        """Where every token of the tables of a ring keyspace is read and written now."""
        return self.rings.placements_for(replication_setting(self, keyspace), self.directory.nodes)

    def ring_volumes(self, table_id: TableId) -> tuple[VolumeId, ...]:
        """All volumes that may hold rows of a ring table now, because they are read or written there; ascending."""
        return self.ring_placements(self.schema.tables[table_id].keyspace).volumes

    def replicas_in_use(self, volumes: set[VolumeId]) -> list[TabletKey]:
        """Tablets that have, or are getting, a replica on any of `volumes`."""
        keys = [
            (table_id, int(tablet))
            for table_id, tablet_map in self.tablets.maps.items()
            for tablet in tablet_map.tablets_on(volumes)
        ]
        known = set(keys)
        keys += [
            key
            for key, transition in self.tablets.transitions.items()
            if key not in known and volumes & {*transition.replicas, *transition.new_replicas}
        ]
        return keys

    def open_sessions(self) -> frozenset[str]:
        """Sessions that work with side effects may go on under (seed 000, "Topology guards")."""
        of_tablets = (t.session for t in self.tablets.transitions.values())
        of_operations = (running.session for running in self.rings.running.values())
        return frozenset(s for s in (*of_tablets, *of_operations) if s is not None)
