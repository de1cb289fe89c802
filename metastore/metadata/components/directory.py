"""The component `directory`: nodes and their volumes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.differences import Difference, later, one
from epochlake.metastore.metadata.model import Node, NodeId, NodeState, Volume, VolumeId
from epochlake.metastore.metadata.names import node_names
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import rows_of
from epochlake.placement.ring.state import LOST

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

NODE = "node"
VOLUME = "volume"
UNREGISTERED = "unregistered node"


class Directory(msgspec.Struct, frozen=True, dict=True):
    """The nodes and their volumes. Nodes that left stay: replicas may still name their volumes (seed 000).

    Those that were taken out afterwards are `unregistered`. No list shows them, and their names are free; but their
    numbers, host ids and volumes are known for ever, so that none is given again, and that a disk which comes back is
    not taken for a new one.
    """

    nodes: Mapping[NodeId, Node]
    epoch: int = 0
    unregistered: Mapping[NodeId, Node] = {}

    @cached_property
    def known(self) -> Mapping[NodeId, Node]:
        """Every node that there ever was, by number: for what was done about them, and for volumes."""
        return {**self.unregistered, **self.nodes} if self.unregistered else self.nodes

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by name; a name belongs to the last node that took it, so that one that left can come back anew."""
        return {node.name: node for node in self.nodes.values()}

    @cached_property
    def node_of_volume(self) -> dict[VolumeId, Node]:
        return {volume.volume_id: node for node in self.known.values() for volume in node.volumes}

    @cached_property
    def lost(self) -> frozenset[VolumeId]:
        """Volumes that count for nothing and are never opened, also where their storage answers again: see `LOST`."""
        return frozenset(
            volume.volume_id
            for node in self.known.values()
            if node.lost or node.state in LOST
            for volume in node.volumes
        )

    @cached_property
    def volumes(self) -> dict[VolumeId, Volume]:
        return {volume.volume_id: volume for node in self.known.values() for volume in node.volumes}

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
        return Directory(nodes, epoch, self.unregistered)

    def without(self, gone: Collection[NodeId], epoch: int) -> Directory:
        """The directory after nodes were unregistered; these stay as they were."""
        nodes = {key: node for key, node in self.nodes.items() if key not in gone}
        return Directory(nodes, epoch, {**self.unregistered, **{key: self.nodes[key] for key in gone}})


class _Stored(msgspec.Struct, frozen=True):
    nodes: list[Node]
    directory_epoch: int
    # Not stored where there are none: snapshots without it keep the bytes that they had.
    unregistered_nodes: list[Node] | msgspec.UnsetType = msgspec.UNSET


def _encode(directory: Directory) -> _Stored:
    unregistered = [directory.unregistered[key] for key in sorted(directory.unregistered)]
    nodes = [directory.nodes[key] for key in sorted(directory.nodes)]
    return _Stored(nodes, directory.epoch, unregistered or msgspec.UNSET)


def _decode(stored: _Stored, _: pa.Table | None) -> Directory:
    unregistered = [] if stored.unregistered_nodes is msgspec.UNSET else stored.unregistered_nodes
    nodes, gone = ({node.node_id: node for node in some} for some in (stored.nodes, unregistered))
    return Directory(nodes, stored.directory_epoch, gone)


def _facts(directory: Directory) -> Facts:
    stored = _encode(directory)
    gone = {} if stored.unregistered_nodes is msgspec.UNSET else {"unregistered": plain(stored.unregistered_nodes)}
    return Facts({"nodes": plain(stored.nodes), **gone}, epoch=directory.epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    old_nodes, new_nodes = before.directory.nodes, after.directory.nodes
    if old_nodes is new_nodes:
        return
    names = node_names(later(before, after).directory)
    changed = [key for key in sorted({*old_nodes, *new_nodes}) if old_nodes.get(key) is not new_nodes.get(key)]
    for key in changed:
        yield from one(NODE, names[key], old_nodes.get(key), new_nodes.get(key), without=frozenset({"volumes"}))
    for key in changed:
        old, new = (
            {volume.volume_id: volume for volume in node.volumes} if node else {}
            for node in (old_nodes.get(key), new_nodes.get(key))
        )
        for volume_id in sorted({*old, *new}):
            name = f"{names[key]}/{(new.get(volume_id) or old[volume_id]).name}"
            yield from one(VOLUME, name, old.get(volume_id), new.get(volume_id))
    old_gone, new_gone = before.directory.unregistered, after.directory.unregistered
    for key in sorted({*old_gone, *new_gone}):
        yield from one(UNREGISTERED, names[key], _remembered(old_gone.get(key)), _remembered(new_gone.get(key)))


class _Remembered(msgspec.Struct, frozen=True):
    """What differences say of a node that was taken out: what nobody else ever gets."""

    node_id: NodeId
    host_id: str
    volumes: tuple[VolumeId, ...]


def _remembered(node: Node | None) -> _Remembered | None:
    if node is None:
        return None
    return _Remembered(node.node_id, node.host_id, tuple(volume.volume_id for volume in node.volumes))


def nodes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each node, those that left included until they are unregistered; by number."""
    rows = [metadata.directory.nodes[key] for key in sorted(metadata.directory.nodes)]
    return rows_of(
        c.NODES_SCHEMA,
        (
            (
                node.node_id,
                node.name,
                node.host_id,
                node.datacenter,
                node.rack,
                node.state.value,
                len(node.volumes),
                sum(volume.capacity for volume in node.volumes),
                list(node.tokens),
                node.replaces,
                node.replaced_by,
                node.epoch,
                node.maintenance,
                node.weight,
                list(node.tags),
                None if announced is None else announced.product_version,
                [] if announced is None else list(announced.features),
            )
            for node in rows
            for announced in (metadata.features.announced.get(node.node_id),)
        ),
    )


def volumes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each volume of each node; by number."""
    known, node_of = metadata.directory.volumes, metadata.directory.node_of_volume
    of_nodes = (volume.volume_id for node in metadata.directory.nodes.values() for volume in node.volumes)
    return rows_of(
        c.VOLUMES_SCHEMA,
        (
            (
                key,
                known[key].name,
                known[key].uri,
                known[key].capacity,
                node_of[key].node_id,
                node_of[key].name,
                node_of[key].datacenter,
                node_of[key].rack,
                node_of[key].state.value,
            )
            for key in sorted(of_nodes)
        ),
    )


def unregistered_nodes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each node that was taken out of the metadata after it had left; by number."""
    gone = metadata.directory.unregistered
    return rows_of(
        c.UNREGISTERED_NODES_SCHEMA,
        (
            (
                key,
                gone[key].name,
                gone[key].host_id,
                gone[key].replaces,
                gone[key].replaced_by,
                [volume.volume_id for volume in gone[key].volumes],
                gone[key].epoch,
            )
            for key in sorted(gone)
        ),
    )


DIRECTORY = Component(
    empty=Directory({}),
    since=1,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda directory: directory.epoch,
    facts=_facts,
    differences=_differences,
    tables=(nodes, volumes, unregistered_nodes),
)
