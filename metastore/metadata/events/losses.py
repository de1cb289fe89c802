"""A node whose storage is declared lost: what becomes of the requests that it takes part in.

The declaration ends in the same epoch what cannot go on without that storage, so an operator is never
sent from a request that waits for a dead disk to another one that is refused because of it. Requests are taken back
where that can be, and a leave goes on as a removal, from where it is. What cannot be taken back any more (ranges that
are handed over, a replace that has started) goes on to its end without that storage. All of it is in the event as a
decision, so nothing that replays the log works it out again (docs/decisions/028-a-way-out.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.events.cancelling import cancelling, handed_over, require_cancellable, with_request
from epochlake.metastore.metadata.model import Node, NodeId, NodeState, RequestKind, RequestState, TopologyRequest
from epochlake.metastore.metadata.ring_state import operation_of_request
from epochlake.placement.rejections import Code
from epochlake.placement.ring.checks import depends_on
from epochlake.placement.ring.state import OperationKind

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

DECLARING = (RequestKind.REMOVE, RequestKind.REPLACE)
"""Requests by which an operator says that the storage of a node is lost."""


class Loss(msgspec.Struct, frozen=True):
    """What a declaration does to other requests: those that it takes back, and the leave that goes on as a removal.

    Events of before there were declarations do not have one (`declares`): their node is lost from their start on.
    """

    takes_back: tuple[str, ...] = ()
    takes_over: str = ""
    declares: bool = True


def loss_of(metadata: ClusterMetadata, node: Node, kind: RequestKind) -> Loss:
    """What declaring `node` lost does now, by a removal or a replace of it.

    Raises Rejected (request-in-the-way) where its storage is given up already, and another way leads to the end.
    """
    takes_back, takes_over = [], ""
    for request in metadata.open_requests():
        if request.state is RequestState.CANCELLING:
            continue
        if request.node_id == node.node_id:
            if _goes_on_as_removal(metadata, request, node, kind):
                takes_over = request.request_id
            elif request.state is RequestState.PENDING or not _has_gone_too_far(metadata, request):
                takes_back.append(request.request_id)
        elif _would_replace(metadata, request, node.node_id) or _waits_for(metadata, request, node.node_id):
            takes_back.append(request.request_id)
    return Loss(tuple(takes_back), takes_over)


def check_loss(metadata: ClusterMetadata, node: Node, kind: RequestKind, planned: Loss) -> None:
    """Raise Rejected unless `planned` is what the declaration has to do, and can.

    Requests of other nodes that could not go on may be left out: logs from before this was decided have none of them.
    """
    now = loss_of(metadata, node, kind)
    own = {name for name in now.takes_back if not _waits_for(metadata, metadata.requests[name], node.node_id)}
    require(
        planned.takes_over == now.takes_over and own <= {*planned.takes_back} <= {*now.takes_back},
        Code.STALE_PLAN,
        f"what becomes of the requests of node {node.name!r} was planned on old metadata",
        hint="Plan it again",
    )
    for name in planned.takes_back:
        require_cancellable(metadata, metadata.request(name))


def with_loss(metadata: ClusterMetadata, node_id: NodeId, loss: Loss, request_id: str, epoch: int) -> ClusterMetadata:
    """The metadata with `node_id` lost and the requests taken back; `request_id` is the one that says so."""
    name = metadata.directory.nodes[node_id].name
    for taken in loss.takes_back:
        why = f"node {name} was declared lost (request {request_id})"
        metadata = cancelling(metadata, taken, why, epoch)
    if loss.takes_over:
        metadata = _taken_over(metadata, node_id, loss.takes_over, request_id, epoch)
    node = metadata.directory.nodes[node_id]
    if node.state is NodeState.LEFT or not loss.declares:
        return metadata
    lost = msgspec.structs.replace(node, lost=True)
    return msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(lost, epoch=epoch))


def holds_nothing(metadata: ClusterMetadata, node_id: int) -> bool:
    """Whether a node was only about to join: it has left, or will have when its request is taken back."""
    node = metadata.directory.nodes[node_id]
    return node.state is NodeState.LEFT or any(
        request.node_id == node_id
        and request.state is RequestState.CANCELLING
        and request.kind in (RequestKind.JOIN, RequestKind.REPLACE)
        for request in metadata.open_requests()
    )


def _goes_on_as_removal(metadata: ClusterMetadata, request: TopologyRequest, node: Node, kind: RequestKind) -> bool:
    """Whether an open request of the node goes on as its removal. Raises Rejected where there is nothing to declare."""
    if request.kind is RequestKind.REMOVE and kind is RequestKind.REMOVE:
        raise Rejected(
            Code.REQUEST_IN_THE_WAY,
            f"node {node.name!r} is being removed already (request {request.request_id}, {request.state})",
            hint="Run the coordinator, and see `epochlake status` for what it waits for",
        )
    if request.kind not in (RequestKind.LEAVE, RequestKind.REMOVE) or request.state is RequestState.PENDING:
        return False
    if kind is RequestKind.REPLACE and handed_over(metadata, request):
        raise Rejected(
            Code.REQUEST_IN_THE_WAY,
            f"node {node.name!r} has handed its ranges over already (request {request.request_id}, "
            f"{request.kind}): there is no place to take",
            hint=f"Run `epochlake node remove {node.name}`, and add another node",
        )
    return request.kind is RequestKind.LEAVE and kind is RequestKind.REMOVE


def _has_gone_too_far(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    """Whether a running request can only go on to its end."""
    return request.kind is RequestKind.REPLACE or handed_over(metadata, request)


def _would_replace(metadata: ClusterMetadata, request: TopologyRequest, node_id: NodeId) -> bool:
    """Whether it is a replace of that node by another one which has not started."""
    newcomer = metadata.directory.nodes.get(request.node_id)
    return (
        request.kind is RequestKind.REPLACE
        and request.state is RequestState.PENDING
        and newcomer is not None
        and newcomer.replaces == node_id
    )


def _waits_for(metadata: ClusterMetadata, request: TopologyRequest, node_id: NodeId) -> bool:
    """Whether a request of something else waits for that node's storage, and has not gone too far.

    A removal and a replace go on: what comes to a lost node comes from another one whose storage is lost as well.
    """
    if request.state is not RequestState.RUNNING or request.kind in DECLARING:
        return False
    operation = operation_of_request(metadata, request.request_id)
    return operation is not None and depends_on(operation, node_id)


def _taken_over(
    metadata: ClusterMetadata, node_id: NodeId, leave_id: str, request_id: str, epoch: int
) -> ClusterMetadata:
    """The operation and the tablets of a leave go on for the removal; what is streamed comes from other replicas."""
    leave = msgspec.structs.replace(
        metadata.requests[leave_id],
        state=RequestState.CANCELLED,
        detail=f"goes on as request {request_id} (remove)",
        paused=False,
        epoch=epoch,
    )
    metadata = with_request(metadata, leave)
    node = msgspec.structs.replace(metadata.directory.nodes[node_id], state=NodeState.REMOVING)
    metadata = msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(node, epoch=epoch))
    operation = operation_of_request(metadata, leave_id)
    if operation is None:
        return metadata
    name, rings = operation.operation_id, metadata.rings
    going_on = msgspec.structs.replace(operation, kind=OperationKind.REMOVE)
    running = msgspec.structs.replace(rings.running[name], request_id=request_id)
    return msgspec.structs.replace(
        metadata,
        rings=msgspec.structs.replace(
            rings,
            operations={**rings.operations, name: going_on},
            running={**rings.running, name: running},
            epoch=epoch,
        ),
    )
