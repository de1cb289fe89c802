"""Which volume of a node serves a token: for reads, and for writes (seed 000, "Sharding with tablets").

Who asks a node and what the node answers are decided at different moments, so in a transition between
nodes the answer is the same in all stages: a request that was sent by the placement of the stage before, or of the one
after, still finds its replica. In one between two volumes of a node nobody else sees a difference, so there the stage
says which of the two is read and which are written. On the ring a token of a node is on one volume for ever.

Pure: the metadata in, volumes out.
"""

from __future__ import annotations

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeId, TableId, VolumeId
from epochlake.metastore.metadata.placements import ranges_within
from epochlake.placement.tablets.transitions import Kind


def volume_for_reads(metadata: ClusterMetadata, table_id: TableId, token: int, node: NodeId) -> VolumeId | None:
    """The volume of `node` that serves reads of a token; None when the node has nothing to do with its range."""
    reads, _ = _replicas(metadata, table_id, token)
    return next(iter(_on_node(metadata, reads, node)), None)


def volumes_for_writes(metadata: ClusterMetadata, table_id: TableId, token: int, node: NodeId) -> tuple[VolumeId, ...]:
    """The volumes of `node` that must get writes of a token: two of them in the middle of a migration between these."""
    _, writes = _replicas(metadata, table_id, token)
    return _on_node(metadata, writes, node)


def _replicas(
    metadata: ClusterMetadata, table_id: TableId, token: int
) -> tuple[tuple[VolumeId, ...], tuple[VolumeId, ...]]:
    """The replicas that answer reads of a token, and those that take writes, when they are asked."""
    placements = metadata.placements(table_id)
    [index] = ranges_within(placements.lows, token, token)
    placement = placements.placement(index)
    either = (*placement.reads, *placement.writes)
    if metadata.is_on_ring(table_id):
        return either, either
    transition = metadata.tablets.transitions.get((table_id, placements.unit(index)))
    if transition is None or transition.kind is Kind.INTRANODE_MIGRATION:
        return placement.reads, placement.writes
    either = (*transition.replicas, *transition.new_replicas)
    return either, either


def _on_node(metadata: ClusterMetadata, replicas: tuple[VolumeId, ...], node: NodeId) -> tuple[VolumeId, ...]:
    of_node = {volume.volume_id for volume in metadata.directory.nodes[node].volumes}
    return tuple(volume for volume in dict.fromkeys(replicas) if volume in of_node)
