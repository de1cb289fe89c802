"""Taking a request back: when that can be, and what it leaves behind (seed 002, "Cancelling Committed Events").

Its own event does it (`CancelRequest`), and so does the declaration that a node is lost, for what was under way with
that node (losses.py). Both mean the same by it, so the rule stands here once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.events.replicas import GOING
from epochlake.metastore.metadata.model import NodeId, NodeState, RequestKind, RequestState, TopologyRequest
from epochlake.metastore.metadata.ring_state import operation_of_request, ring_state, with_ring_state
from epochlake.placement.rejections import Code
from epochlake.placement.ring.state import STEPS, Step
from epochlake.placement.ring.steps import cancelled

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

_MID_DONE = STEPS.index(Step.MID) + 1


def require_cancellable(metadata: ClusterMetadata, request: TopologyRequest) -> None:
    """Raise Rejected when the request has ended, is on its way back, or has gone too far to be taken back."""
    require(
        request.state in (RequestState.PENDING, RequestState.RUNNING),
        Code.WRONG_STATE,
        f"request {request.request_id} is {request.state}: it cannot be cancelled",
    )
    require(
        request.kind is not RequestKind.REPLACE or request.state is RequestState.PENDING,
        Code.CANNOT_CANCEL,
        f"replace {request.request_id} has started, the replaced node has left",
        hint="Let it finish",
    )
    require(
        request.state is RequestState.PENDING or not handed_over(metadata, request),
        Code.CANNOT_CANCEL,
        f"the ranges of request {request.request_id} ({request.kind}) have all been handed over",
        hint="Let it finish",
    )


def cancelling(metadata: ClusterMetadata, request_id: str, why: str, epoch: int) -> ClusterMetadata:
    """The metadata with a request cancelled, or on its way back where its ring operation has to be taken back first."""
    request = msgspec.structs.replace(metadata.requests[request_id], detail=why, paused=False, epoch=epoch)
    operation = operation_of_request(metadata, request_id)
    if operation is None:
        return taken_back(metadata, request, epoch)
    state = ring_state(metadata)
    if operation.next_step < _MID_DONE:
        state = cancelled(state, operation.operation_id)
    else:
        going_back = msgspec.structs.replace(operation, cancelling=True)
        operations = {**state.operations, operation.operation_id: going_back}
        state = msgspec.structs.replace(state, operations=operations)
    return with_request(
        with_ring_state(metadata, state, epoch), msgspec.structs.replace(request, state=RequestState.CANCELLING)
    )


def with_request(metadata: ClusterMetadata, request: TopologyRequest) -> ClusterMetadata:
    return msgspec.structs.replace(metadata, requests={**metadata.requests, request.request_id: request})


def taken_back(metadata: ClusterMetadata, request: TopologyRequest, epoch: int) -> ClusterMetadata:
    """The request cancelled and its node back where it was: not there, or normal."""
    ended = msgspec.structs.replace(request, state=RequestState.CANCELLED, epoch=epoch)
    if request.kind in (RequestKind.KEYSPACE_RF_CHANGE, RequestKind.CHECK_AND_REPAIR_CDC_STREAMS):
        return with_request(metadata, ended)
    joining = request.kind in (RequestKind.JOIN, RequestKind.REPLACE)
    back = NodeState.LEFT if joining else NodeState.NORMAL
    metadata = _no_more_declared_by(metadata, request, epoch)
    return with_request(in_state(metadata, request.node_id, back, epoch), ended)


def _no_more_declared_by(metadata: ClusterMetadata, request: TopologyRequest, epoch: int) -> ClusterMetadata:
    """The metadata without the declaration that came with a removal or a replace: its node is expected back again.

    Another request of now may say the same of it.
    """
    node_id = _declares(metadata, request)
    others = (one for one in metadata.open_requests() if one.request_id != request.request_id)
    if node_id is None or any(_declares(metadata, one) == node_id for one in others):
        return metadata
    node = msgspec.structs.replace(metadata.directory.nodes[node_id], lost=False)
    return msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(node, epoch=epoch))


def _declares(metadata: ClusterMetadata, request: TopologyRequest) -> NodeId | None:
    """The node that a request says is lost."""
    match request.kind:
        case RequestKind.REMOVE:
            return request.node_id
        case RequestKind.REPLACE:
            return metadata.directory.nodes[request.node_id].replaces
    return None


def in_state(metadata: ClusterMetadata, node_id: int, state: NodeState, epoch: int) -> ClusterMetadata:
    """The metadata with a node in another state; one that has left owns nothing."""
    node = metadata.directory.nodes[node_id]
    tokens = () if state is NodeState.LEFT else node.tokens
    changed = msgspec.structs.replace(node, state=state, tokens=tokens)
    return msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(changed, epoch=epoch))


def handed_over(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    """Whether the ring operation of a running request has finished: it cannot be taken back then."""
    if operation_of_request(metadata, request.request_id) is not None:
        return False
    if request.kind is RequestKind.MOVE:
        return True
    if not metadata.rings.placements or request.kind not in (RequestKind.JOIN, *GOING):
        return False
    owns = bool(metadata.directory.nodes[request.node_id].tokens)
    return owns if request.kind is RequestKind.JOIN else not owns
