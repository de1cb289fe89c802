"""Whether rows would be lost with the storage of a node: where a quorum may have been on lost storage alone.

Pure, of the metadata. It is asked when a declaration is planned: its event is about what can be, not what is wise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Node, NodeId
from epochlake.metastore.metadata.replication import replication_setting, ring_keyspaces
from epochlake.placement.rejections import Code
from epochlake.placement.tablets.transitions import read_replicas

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


def require_rows_elsewhere(metadata: ClusterMetadata, node: Node) -> None:
    """Raise Rejected (rows-lost) where a quorum may have been on `node` and on storage that is lost already.

    Rows that such a quorum has acknowledged are nowhere else, so only an operator can give them up (by force).
    """
    owner = metadata.directory.node_of_volume
    lost = {owner[volume].node_id for volume in metadata.directory.lost} | {node.node_id}
    at_risk = _tablets_at_risk(metadata, lost, node) + _ranges_at_risk(metadata, lost, node)
    if at_risk:
        raise Rejected(
            Code.ROWS_LOST,
            f"without the storage of node {node.name!r} no quorum is left of {_said(at_risk)}: rows that it "
            "has acknowledged may be nowhere else",
            hint="Bring it back, or give them up with --force",
        )


def _tablets_at_risk(metadata: ClusterMetadata, lost: set[NodeId], node: Node) -> list[str]:
    """Tables with tablets on `node` of whose replicas a majority would be lost."""
    owner = metadata.directory.node_of_volume
    volumes = [volume for volume, one in owner.items() if one.node_id in lost]
    own = [volume.volume_id for volume in node.volumes]
    found = []
    for table_id, tablet_map in metadata.tablets.maps.items():
        rows = tablet_map.to_array()
        moving = [t for key, t in metadata.tablets.transitions.items() if key[0] == table_id]
        for transition in moving:
            rows = rows.copy() if transition is moving[0] else rows
            reads = read_replicas(transition.stage, transition.replicas, transition.new_replicas)
            rows[transition.tablet, : len(reads)] = reads
        if _without_quorum(rows, volumes, own):
            found.append(metadata.schema.tables[table_id].full_name)
    return found


def _ranges_at_risk(metadata: ClusterMetadata, lost: set[NodeId], node: Node) -> list[str]:
    """Keyspaces with ranges on `node` of whose replicas a majority would be lost."""
    placements = metadata.rings.placements
    return [
        name
        for name in sorted(ring_keyspaces(metadata))
        if _without_quorum(placements[replication_setting(metadata, name)].reads.replicas, sorted(lost), [node.node_id])
    ]


def _without_quorum(replicas: np.ndarray, lost: Sequence[int], own: Sequence[int]) -> bool:
    count = (replicas >= 0).sum(axis=1)
    gone = np.isin(replicas, lost).sum(axis=1)
    return bool((np.isin(replicas, own).any(axis=1) & (gone >= count // 2 + 1)).any())


def _said(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
