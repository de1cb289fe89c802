"""Putting tablets on other nodes by hand, by the transitions that the balancer uses.

Each tablet goes from one node to another in its datacenter, and the coordinator carries it out, behind its barriers and
with its way back. The balancer may bring it somewhere else later; a pin keeps it from that (`tablet_pins.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import NewTransition, StartTransitions
from epochlake.metastore.metadata.events.nodes import nodes_going
from epochlake.metastore.metadata.model import Node, Table, Volume, VolumeId
from epochlake.placement.rejections import Code
from epochlake.placement.tablets.tablet_map import TabletMap
from epochlake.placement.tablets.transitions import Kind

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

BY_HAND = "moved by hand"


def move_tablets(
    cluster: Cluster, table: str, tablets: tuple[int, ...], source: str, target: str, **options: Unpack[Options]
) -> Committed:
    """Let tablets of a table, by their numbers, go from a node to another: `n1`, or `n1/d2` for one of its volumes.

    All of them begin to move in one epoch, or none. Raises Rejected for what the balancer would not do either: a second
    replica on a node, another datacenter, a node in maintenance, without the table's tags, lost or about to leave.
    """
    return cluster.commit(TabletMoves(table, tablets, source, target), **options)


class TabletMoves(Change[StartTransitions], frozen=True):
    """What `move_tablets` commits."""

    verb: ClassVar[str] = "move tablets"
    table: str
    tablets: tuple[int, ...]
    source: str
    target: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> StartTransitions:
        table, tablet_map = with_tablets(metadata, self.table)
        (source, leaving), (target, pending) = place_of(metadata, self.source), place_of(metadata, self.target)
        require_staying(metadata, target)
        choose = emptiest(metadata, pending)
        new = []
        for tablet in self.tablets:
            require_tablet(tablet_map, tablet, self.table)
            here = [volume for volume in tablet_map.replicas(tablet) if volume in {one.volume_id for one in leaving}]
            if not here:
                raise Rejected(Code.NOT_A_REPLICA, f"{self.source} holds no replica of tablet {tablet} of {self.table}")
            free = [volume for volume in pending if volume.volume_id != here[0]] or list(pending)
            kind = Kind.REBUILD if source.lost else Kind.MIGRATION
            kind = Kind.INTRANODE_MIGRATION if source.node_id == target.node_id else kind
            new.append(NewTransition(table.table_id, tablet, kind, here[0], choose(free), call.reason or BY_HAND))
        return StartTransitions(tuple(new))


def with_tablets(metadata: ClusterMetadata, name: str) -> tuple[Table, TabletMap]:
    """A table and its tablets. Raises Rejected for one on the ring, and for one that there is not."""
    table = metadata.table(name)
    tablet_map = metadata.tablets.maps.get(table.table_id)
    if tablet_map is None:
        raise Rejected(
            Code.UNSUPPORTED_PLACEMENT, f"table {name} is on the ring: it has no tablets that could be moved"
        )
    return table, tablet_map


def require_tablet(tablet_map: TabletMap, tablet: int, table: str) -> None:
    """That a table has a tablet of this number. Raises Rejected."""
    if not 0 <= tablet < tablet_map.count:
        raise Rejected(
            Code.UNKNOWN_TABLET,
            f"there is no tablet {tablet} of {table}",
            hint=f"Name tablets from 0 to {tablet_map.count - 1}",
        )


def shared_racks(metadata: ClusterMetadata, event: StartTransitions) -> list[str]:
    """What the moves of `event` make worse: tablets that will have two replicas in a rack, and have not now."""
    said = []
    for new in event.transitions:
        before = metadata.tablets.maps[new.table_id].replicas(new.tablet)
        after = [new.pending if volume == new.leaving else volume for volume in before]
        together = _racks(metadata, after)
        if len(together) < len(_racks(metadata, before)):
            node = metadata.directory.node_of_volume[new.pending]
            table = metadata.schema.tables[new.table_id].full_name
            said.append(f"tablet {new.tablet} of {table} will have two replicas in rack {node.datacenter}/{node.rack}")
    return said


def _racks(metadata: ClusterMetadata, volumes: list[VolumeId] | tuple[VolumeId, ...]) -> set[tuple[str, str]]:
    nodes = [metadata.directory.node_of_volume[volume] for volume in volumes]
    return {(node.datacenter, node.rack) for node in nodes}


def place_of(metadata: ClusterMetadata, named: str) -> tuple[Node, tuple[Volume, ...]]:
    """A node and its volumes, or one of these, by `NODE` or `NODE/VOLUME`."""
    name, slash, wanted = named.partition("/")
    node = metadata.node(name)
    volumes = tuple(volume for volume in node.volumes if not slash or volume.name == wanted)
    if not volumes:
        raise Rejected(Code.UNKNOWN_VOLUME, f"node {name!r} has no volume {wanted!r}")
    return node, volumes


def require_staying(metadata: ClusterMetadata, target: Node) -> None:
    """That no open request takes away what the node is to have or to keep."""
    request = nodes_going(metadata).get(target.node_id)
    if request is not None:
        raise Rejected(
            Code.REQUEST_IN_THE_WAY, f"node {target.name!r} gets no tablets: {request.kind} of it is asked for"
        )


def emptiest(metadata: ClusterMetadata, volumes: Sequence[Volume]) -> Callable[[Sequence[Volume]], VolumeId]:
    """Of some of these volumes the one with the fewest tablets for its capacity; what was chosen counts then."""
    held = Counter(
        {
            volume.volume_id: sum(len(one.tablets_on([volume.volume_id])) for one in metadata.tablets.maps.values())
            for volume in volumes
        }
    )

    def choose(among: Sequence[Volume]) -> VolumeId:
        goal = min(among, key=lambda volume: ((held[volume.volume_id] + 1) / volume.capacity, volume.volume_id))
        held[goal.volume_id] += 1
        return goal.volume_id

    return choose
