"""Nodes that have left are taken out of the metadata for good (`cms unregister` of CEP-21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.nodes import nodes_going, require_no_open_request
from epochlake.metastore.metadata.model import Node, NodeState, RequestState
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class UnregisterNodes(Event, frozen=True):
    """Nodes that have left go, with what their agents announced and with the requests about them that are done.

    What nobody else may ever get stays known: their numbers, host ids and volumes (`Directory.unregistered`). So do
    requests that failed or were cancelled, for a request that is not in the metadata was done (`ForgetRequests`).
    """

    node_ids: tuple[int, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require(bool(self.node_ids), Code.NOTHING_TO_DO, "no node was given")
        require(len(set(self.node_ids)) == len(self.node_ids), Code.INVALID_EVENT, "a node is named twice")
        for node_id in self.node_ids:
            node = metadata.directory.nodes.get(node_id)
            require(node is not None, Code.UNKNOWN_NODE, f"there is no node with number {node_id}")
            assert node is not None
            _require_gone(metadata, node)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        announced = {key: one for key, one in metadata.features.announced.items() if key not in self.node_ids}
        features = metadata.features
        if len(announced) < len(features.announced):
            features = msgspec.structs.replace(features, announced=announced, epoch=epoch)
        kept = {
            key: request
            for key, request in metadata.requests.items()
            if request.node_id not in self.node_ids or request.state is not RequestState.DONE
        }
        return msgspec.structs.replace(
            metadata,
            directory=metadata.directory.without(self.node_ids, epoch),
            requests=kept,
            features=features,
        )

    def summary(self) -> str:
        return f"{plural(len(self.node_ids), 'node')} unregistered: {', '.join(map(str, self.node_ids))}"


def _require_gone(metadata: ClusterMetadata, node: Node) -> None:
    """Raise Rejected unless a node has left, and nothing waits for it or names its volumes any more."""
    require(
        node.state is NodeState.LEFT,
        Code.WRONG_STATE,
        f"node {node.name!r} has not left",
        hint=f"Run `epochlake node decommission {node.name}`, or `node remove` when its storage is lost",
    )
    require_no_open_request(metadata, node)
    going = nodes_going(metadata).get(node.node_id)
    require(
        going is None,
        Code.REQUEST_IN_THE_WAY,
        f"what node {node.name!r} held is brought elsewhere by request {going.request_id if going else ''}",
        hint="Wait for it",
    )
    require(
        not still_named(metadata, node),
        Code.REPLICAS_LEFT,
        f"tablets or ranges still name volumes of node {node.name!r}: they are rebuilt from them, or beside them",
        hint="Wait until the coordinator has moved them",
    )


def still_named(metadata: ClusterMetadata, node: Node) -> bool:
    """Whether a tablet, a transition, or a range on the ring names a node or its volumes."""
    if metadata.replicas_in_use({volume.volume_id for volume in node.volumes}):
        return True
    return any(
        bool((side.replicas == node.node_id).any())
        for placed in metadata.rings.placements.values()
        for side in (placed.reads, placed.writes)
    )
