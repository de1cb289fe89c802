"""The operations on the ring that topology requests ask for, planned on the metadata of now.

A plan is made within a commit's planner, so it is made again whenever the metadata has moved on, and a
request that cannot go on beside what is in flight stays pending, with the operation in its way as the reason.
"""

from __future__ import annotations

from collections import Counter

from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import PrepareOperation, StartRequest
from epochlake.metastore.metadata.events.plans import with_names
from epochlake.metastore.metadata.model import RequestKind, TopologyRequest
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.placement.rejections import Code
from epochlake.placement.ring.allocation import allocate_tokens
from epochlake.placement.ring.codec import encode_operation
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move, plan_remove, plan_replace
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import Operation
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, Replication, replication_of

REPLICAS = 3
"""What ownership is evened out for while no keyspace is on the ring."""


def started(metadata: ClusterMetadata, request: TopologyRequest, tokens_per_node: int) -> StartRequest:
    """The event that takes up a pending request, with its plan. Raises Rejected when it cannot go on now."""
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return StartRequest(request.request_id)
    try:
        operation = node_operation(metadata, request, tokens_per_node)
    except PlanRejected as refused:
        if metadata.rings.placements or request.kind is RequestKind.MOVE:
            raise _rejected(metadata, refused) from refused
        # Nodes from before there were tokens: nothing is on the ring, so none is needed.
        return StartRequest(request.request_id)
    return StartRequest(request.request_id, encode_operation(operation))


def next_replication_step(metadata: ClusterMetadata, request: TopologyRequest) -> PrepareOperation | None:
    """The next step of a change of replication, None when there is none left. Raises Rejected when it must wait."""
    path = replication_left(metadata, request)
    if not path:
        return None
    operation_id = f"{request.request_id}/{metadata.epoch + 1}"
    try:
        operation = plan_replication_change(
            ring_state(metadata), operation_id, request.keyspace, path[0], force=request.force
        )
    except PlanRejected as refused:
        raise _rejected(metadata, refused) from refused
    return PrepareOperation(request.request_id, encode_operation(operation))


def replication_left(metadata: ClusterMetadata, request: TopologyRequest) -> list[Replication]:
    """The settings that the keyspace of a change of replication still has to come to, a step each."""
    current = metadata.keyspace(request.keyspace)
    return replication_path(
        replication_of(current.strategy, current.replication), replication_of(request.strategy, request.replication)
    )


def node_operation(metadata: ClusterMetadata, request: TopologyRequest, tokens_per_node: int) -> Operation:
    """The operation of a node's request. Raises PlanRejected."""
    state = ring_state(metadata)
    node = metadata.directory.nodes[request.node_id]
    name, node_id = request.request_id, node.node_id
    match request.kind:
        case RequestKind.JOIN:
            return plan_join(state, name, node_id, request.tokens or _allocated(metadata, request, tokens_per_node))
        case RequestKind.LEAVE:
            return plan_leave(state, name, node_id, force=request.force)
        case RequestKind.REMOVE:
            return plan_remove(state, name, node_id, force=request.force)
        case RequestKind.MOVE:
            return plan_move(state, name, node_id, request.tokens or _allocated(metadata, request, tokens_per_node))
        case RequestKind.REBUILD:
            return plan_rebuild(state, name, node_id, request.source_datacenter)
        case RequestKind.REPLACE if node.replaces is not None:
            return plan_replace(state, name, node.replaces, node_id, request.tokens or None)
    raise Rejected(Code.WRONG_REQUEST, f"request {name} ({request.kind}) is about no node's ranges")


def _allocated(metadata: ClusterMetadata, request: TopologyRequest, count: int) -> tuple[int, ...]:
    """Tokens for the node of a request: the best ones, beside those that somebody else has asked for."""
    node = metadata.directory.nodes[request.node_id]
    others = (one for one in metadata.open_requests() if one.request_id != request.request_id)
    asked_for = {token for one in others for token in one.tokens}
    state, replication = ring_state(metadata), main_replication(metadata)
    return allocate_tokens(state, node.datacenter, node.rack, count, replication, asked_for)


def main_replication(metadata: ClusterMetadata) -> Replication:
    """The setting whose ownership is evened out: that of the keyspace on the ring with most tables."""
    tables = Counter(table.keyspace for table in metadata.schema.tables.values())
    rings = ring_keyspaces(metadata)
    if rings:
        main = rings[max(rings, key=lambda name: (tables[name], name))]
        return replication_of(main.strategy, main.replication)
    datacenters = sorted({node.datacenter for node in metadata.directory.nodes.values()})
    return Replication(NETWORK_TOPOLOGY, tuple((datacenter, REPLICAS) for datacenter in datacenters))


def _rejected(metadata: ClusterMetadata, refused: PlanRejected) -> Rejected:
    return Rejected(refused.code, with_names(metadata, refused.reason), hint=with_names(metadata, refused.hint))
