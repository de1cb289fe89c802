"""Names for people of nodes and volumes, each of which no other node or volume has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from epochlake.metastore.metadata.model import NodeId, VolumeId

if TYPE_CHECKING:
    from epochlake.metastore.metadata.components.directory import Directory


def node_names(directory: Directory) -> dict[NodeId, str]:
    """A name for each node that no other has: a node whose name was used again later is `name#number`. Nodes that were
    unregistered have one as well, since earlier epochs tell of them.
    """
    used = Counter(node.name for node in directory.known.values())
    return {
        key: node.name if used[node.name] == 1 or directory.by_name.get(node.name) is node else f"{node.name}#{key}"
        for key, node in directory.known.items()
    }


def volume_names(directory: Directory) -> dict[VolumeId, str]:
    """`node/volume` for each volume."""
    names = node_names(directory)
    return {
        volume.volume_id: f"{names[key]}/{volume.name}"
        for key, node in directory.known.items()
        for volume in node.volumes
    }
