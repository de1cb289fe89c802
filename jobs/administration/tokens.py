"""Tokens for a node that joins or moves, where an operator says only how many.

Requests that wait are counted as if they had been carried out, so that two nodes that are added one
after the other do not ask for the same tokens.
"""

from __future__ import annotations

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node, RequestKind
from epochlake.metastore.planning.ring import main_replication
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.allocation import allocate_tokens
from epochlake.placement.ring.state import NodeState, RingNode, RingState

MOST_TOKENS = 1024
"""As many as `[ring] tokens_per_node` may be."""


def allocated(metadata: ClusterMetadata, datacenter: str, rack: str, count: int, node: Node | None) -> tuple[int, ...]:
    """`count` tokens for a node in that rack; those that `node` owns now are taken as free, where it is given.

    Raises InvalidRequest for a count that no node may have.
    """
    if not 1 <= count <= MOST_TOKENS:
        raise InvalidRequest(f"{count} tokens were asked for: a node has 1 to {MOST_TOKENS}")
    members = {}
    for other in metadata.directory.nodes.values():
        tokens = () if other is node else other.tokens
        if tokens and other.state is not NodeState.LEFT:
            members[other.node_id] = _member(other, tokens)
    for request in metadata.open_requests():
        asked = metadata.directory.nodes.get(request.node_id)
        if asked is None or asked is node:
            continue
        if request.tokens:
            members[asked.node_id] = _member(asked, request.tokens)
        elif request.kind in (RequestKind.LEAVE, RequestKind.REMOVE):
            members.pop(asked.node_id, None)
    return allocate_tokens(RingState(members, {}, {}), datacenter, rack, count, main_replication(metadata))


def _member(node: Node, tokens: tuple[int, ...]) -> RingNode:
    return RingNode(node.node_id, node.datacenter, node.rack, NodeState.NORMAL, tokens)
