"""Topology requests from asking to ending (seed 000, "Topology state machine").

A request is taken up by the coordinator; `StartRequest` and `FinishRequest` move the node along the states of the
seed's diagram. A node leaves only when no tablet names its volumes any more and its ranges are handed over, and a
replace ends only when the replaced node's replicas are all rebuilt: these are conditions of the events, so no
coordinator can get them wrong. Where keyspaces are on the ring a node's request comes with the plan of an operation,
which begins and ends within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.cancelling import (
    cancelling,
    in_state,
    require_cancellable,
    taken_back,
    with_request,
)
from epochlake.metastore.metadata.events.change_generations import require_divided
from epochlake.metastore.metadata.events.losses import Loss, check_loss, holds_nothing, with_loss
from epochlake.metastore.metadata.events.nodes import require_no_open_request, require_tokens_free, volumes_given_up
from epochlake.metastore.metadata.events.operations import require_not_paused
from epochlake.metastore.metadata.events.plans import allowed, begun, check_plan, plan_of
from epochlake.metastore.metadata.events.replicas import GOING, require_enough_nodes_without
from epochlake.metastore.metadata.model import Node, NodeState, RequestKind, RequestState, TopologyRequest
from epochlake.metastore.metadata.ring_state import operation_of_request, ring_state
from epochlake.placement.rejections import Code
from epochlake.placement.ring import checks
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, Step
from epochlake.placement.ring.strategies import replication_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata
    from epochlake.metastore.metadata.components.upgrade import Described

STARTED = {
    RequestKind.JOIN: NodeState.BOOTSTRAPPING,
    RequestKind.REPLACE: NodeState.REPLACING,
    RequestKind.LEAVE: NodeState.DECOMMISSIONING,
    RequestKind.REMOVE: NodeState.REMOVING,
    RequestKind.REBUILD: NodeState.REBUILDING,
    RequestKind.MOVE: NodeState.MOVING,
}
ENDED = {
    RequestKind.JOIN: NodeState.NORMAL,
    RequestKind.REPLACE: NodeState.NORMAL,
    RequestKind.LEAVE: NodeState.LEFT,
    RequestKind.REMOVE: NodeState.LEFT,
    RequestKind.REBUILD: NodeState.NORMAL,
    RequestKind.MOVE: NodeState.NORMAL,
}
_ASKED_OF_A_NODE = (RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.MOVE, RequestKind.REBUILD)
_MID_DONE = STEPS.index(Step.MID) + 1


class RequestTopology(Event, frozen=True):
    """Ask something of a node that is there.

    That it leaves (its storage is alive), is removed (its storage is gone), moves to other `tokens` (allocated when
    none are given), or is rebuilt (from `source_datacenter`, where one is given). `force` lets a node go although ring
    keyspaces keep fewer replicas then, and gives rows up that only lost storage has.

    A removal declares the node lost, in whatever state it is: `takes_back` are the requests that this ends, and
    `takes_over` is the leave of the node that goes on as this removal (losses.py).
    """

    request_id: str
    kind_of_request: RequestKind
    node_id: int
    why: str = ""
    tokens: tuple[int, ...] = ()
    source_datacenter: str = ""
    force: bool = False
    takes_back: tuple[str, ...] = ()
    takes_over: str = ""
    declares_lost: bool = False

    def check(self, metadata: ClusterMetadata) -> None:
        node = metadata.directory.nodes.get(self.node_id)
        require(node is not None, Code.UNKNOWN_NODE, f"there is no node number {self.node_id}")
        assert node is not None
        kind = self.kind_of_request
        require(kind in _ASKED_OF_A_NODE, Code.WRONG_REQUEST, f"a {kind} is not asked for this way")
        require(
            node.state is NodeState.NORMAL or (kind is RequestKind.REMOVE and node.state is not NodeState.LEFT),
            Code.WRONG_STATE,
            f"node {node.name!r} is {node.state}: only a normal node can {kind}",
            hint=_instead(node),
        )
        require(
            self.request_id not in metadata.requests, Code.REQUEST_EXISTS, f"request {self.request_id} exists already"
        )
        require(
            not (self.tokens and kind is not RequestKind.MOVE)
            and not (self.source_datacenter and kind is not RequestKind.REBUILD)
            and not (self.force and kind not in GOING),
            Code.WRONG_OPTION,
            f"a {kind} of node {node.name!r}: tokens are for a move, a source datacenter is for a rebuild, and force "
            "is for a leave or a remove",
        )
        if kind is RequestKind.REMOVE:
            self._check_remove(metadata, node)
            return
        require(
            not (self.takes_back or self.takes_over or self.declares_lost),
            Code.WRONG_OPTION,
            f"a {kind} of node {node.name!r} ends nothing else",
        )
        require(
            not node.lost,
            Code.LOST,
            f"the storage of node {node.name!r} is declared lost: it can only be removed or replaced",
        )
        require_no_open_request(metadata, node)
        if kind in GOING:
            require_enough_nodes_without(metadata, node, None, kind=kind, force=self.force)
        elif kind is RequestKind.MOVE:
            self._check_move(metadata, node)
        else:
            self._check_rebuild(metadata)

    @property
    def loss(self) -> Loss:
        """What it does to other requests, as a removal."""
        return Loss(self.takes_back, self.takes_over, self.declares_lost)

    def _check_remove(self, metadata: ClusterMetadata, node: Node) -> None:
        check_loss(metadata, node, RequestKind.REMOVE, self.loss)
        if self.takes_over:
            # The leave was allowed; what is new is that the node does not hand its rows over.
            if not self.force and metadata.rings.placements:
                allowed(metadata, lambda state: checks.others_hold(state, node.node_id))
            return
        after = with_loss(metadata, node.node_id, self.loss, self.request_id, metadata.epoch + 1)
        if holds_nothing(after, node.node_id):
            return
        require_enough_nodes_without(
            after, after.directory.nodes[node.node_id], None, kind=RequestKind.REMOVE, force=self.force
        )

    def _check_move(self, metadata: ClusterMetadata, node: Node) -> None:
        require_tokens_free(metadata, self.tokens, node.node_id)
        require(
            tuple(sorted(self.tokens)) != node.tokens or not node.tokens,
            Code.TOKENS_UNCHANGED,
            f"node {node.name!r} owns just these tokens already",
            hint="Choose others",
        )

    def _check_rebuild(self, metadata: ClusterMetadata) -> None:
        source = self.source_datacenter
        require(
            not source or any(node.datacenter == source for node in metadata.directory.members()),
            Code.UNKNOWN_DATACENTER,
            f"there is no node in datacenter {source!r} to rebuild from",
            hint="`epochlake node list` says which nodes are where",
        )
        # What is in flight now may have ended when the request is started.
        alone = msgspec.structs.replace(ring_state(metadata), operations={})
        allowed(metadata, lambda state: plan_rebuild(state, self.request_id, self.node_id, source), alone)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = TopologyRequest(
            self.request_id,
            self.kind_of_request,
            self.node_id,
            reason=self.why,
            requested_epoch=epoch,
            epoch=epoch,
            tokens=tuple(sorted(self.tokens)),
            source_datacenter=self.source_datacenter,
            force=self.force,
        )
        if self.kind_of_request is not RequestKind.REMOVE:
            return with_request(metadata, request)
        metadata = with_loss(metadata, self.node_id, self.loss, self.request_id, epoch)
        if self.takes_over:
            request = msgspec.structs.replace(request, state=RequestState.RUNNING, started_epoch=epoch)
        elif metadata.directory.nodes[self.node_id].state is NodeState.LEFT:
            # It was only about to join, and its own request is taken back.
            request = msgspec.structs.replace(request, state=RequestState.DONE)
        return with_request(metadata, request)

    def summary(self) -> str:
        ends = ", ".join(f"request {name}" for name in (*self.takes_back, self.takes_over) if name)
        return f"node {self.node_id} is to {self.kind_of_request}" + (f", which ends {ends}" if ends else "")


class StartRequest(Event, frozen=True):
    """The coordinator takes up a request; the node goes into the state of its kind.

    The attachment is the plan of the ring operation (`placement.ring.codec`), named like the request: its PREPARE is
    in this epoch too. It is needed when there are keyspaces on the ring, and to move.

    With a replace the replaced node leaves at once and the new one is normal: its tablets are rebuilt after that
    (seed 000, "Node replace with tablets"), and the request goes on until they are. Its ranges of the ring stay its
    own until they are handed over: reads and writes name volumes whose storage counts as gone.
    """

    request_id: str
    attachment: bytes = b""

    def builds(self, described: Described) -> bool:
        return True

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(
            request.state is RequestState.PENDING,
            Code.WRONG_STATE,
            f"request {self.request_id} is {request.state}, not pending",
        )
        require_not_paused(request)
        require(
            request.kind is not RequestKind.CHECK_AND_REPAIR_CDC_STREAMS,
            Code.WRONG_REQUEST,
            f"request {self.request_id} is a {request.kind}: it ends without having been started",
        )
        if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
            require(
                not self.attachment,
                Code.INVALID_EVENT,
                f"request {self.request_id} changes a replication: its steps are prepared one by one, once it runs",
            )
            return
        node = metadata.directory.nodes[request.node_id]
        if request.kind is RequestKind.REMOVE:
            _require_at_rest(metadata, request, node)
        if request.kind in GOING:
            require_enough_nodes_without(metadata, node, request, kind=request.kind, force=request.force)
        if request.kind is RequestKind.REPLACE:
            assert node.replaces is not None
            replaced = metadata.directory.nodes[node.replaces]
            require(
                replaced.state is NodeState.NORMAL,
                Code.WRONG_STATE,
                f"node {replaced.name!r} is {replaced.state}: it is replaced when the request that it takes part in "
                "has ended",
            )
            _require_at_rest(metadata, request, replaced)
        self._check_plan(metadata, request, node)

    def _check_plan(self, metadata: ClusterMetadata, request: TopologyRequest, node: Node) -> None:
        require(
            bool(self.attachment) or not (metadata.rings.placements or request.kind is RequestKind.MOVE),
            Code.PLAN_NEEDED,
            f"request {self.request_id} needs a plan of the ranges that change hands: there are keyspaces on the ring, "
            "or it is about nothing else",
        )
        if not self.attachment:
            return
        plan = plan_of(self.attachment)
        # A node that once replaced another may do anything else later.
        replaced = node.replaces if request.kind is RequestKind.REPLACE else None
        require(
            _outline(plan) == (self.request_id, request.kind.value, node.node_id, replaced, ""),
            Code.INVALID_EVENT,
            f"{plan} is not what request {self.request_id} asks for: a {request.kind} of node {node.node_id}",
        )
        require(
            not request.tokens or plan.tokens == request.tokens,
            Code.STALE_PLAN,
            f"request {self.request_id} asks for tokens {list(request.tokens)}, the plan has {list(plan.tokens)}",
        )
        require(
            plan.datacenter == request.source_datacenter,
            Code.STALE_PLAN,
            f"request {self.request_id} asks for datacenter {request.source_datacenter!r} as the source, the plan has "
            f"{plan.datacenter!r}",
        )
        gives_up = {plan.node_id} if plan.replaced is None else {plan.replaced}
        if plan.kind is not OperationKind.REBUILD:
            allowed(metadata, lambda state: checks.tokens_free(state, plan.tokens, gives_up))
        check_plan(metadata, plan)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        running = msgspec.structs.replace(request, state=RequestState.RUNNING, started_epoch=epoch, epoch=epoch)
        if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
            return with_request(metadata, running)
        node = metadata.directory.nodes[request.node_id]
        changed = [msgspec.structs.replace(node, state=STARTED[request.kind])]
        if request.kind is RequestKind.REPLACE:
            assert node.replaces is not None
            replaced = metadata.directory.nodes[node.replaces]
            # Without a plan no keyspace is on the ring, and the tokens go with the place.
            handed = {} if self.attachment else {"tokens": replaced.tokens}
            given = {} if self.attachment else {"tokens": ()}
            changed = [
                msgspec.structs.replace(node, state=NodeState.NORMAL, **handed),
                msgspec.structs.replace(replaced, state=NodeState.LEFT, replaced_by=node.node_id, **given),
            ]
        metadata = with_request(
            msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(*changed, epoch=epoch)), running
        )
        return begun(metadata, plan_of(self.attachment), epoch) if self.attachment else metadata

    def summary(self) -> str:
        if not self.attachment:
            return f"request {self.request_id} started"
        plan = plan_of(self.attachment)
        return f"request {self.request_id} started: {plan.kind} of node {plan.node_id} prepared"


class FinishRequest(Event, frozen=True):
    """A running request is done, or one that is being cancelled is back where it began.

    Refused while any tablet still names a volume that is to be given up, while an operation of the request is in
    flight, and before a keyspace has the replication that was asked for.
    """

    request_id: str

    def builds(self, described: Described) -> bool:
        return True

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        if _has_nothing_to_remove(metadata, request):
            return
        if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS and request.state is RequestState.PENDING:
            require_not_paused(request)
            require_divided(metadata)
            return
        require(
            request.state in (RequestState.RUNNING, RequestState.CANCELLING),
            Code.WRONG_STATE,
            f"request {self.request_id} is {request.state}, not running",
        )
        operation = operation_of_request(metadata, self.request_id)
        require(
            operation is None,
            Code.OPERATION_IN_FLIGHT,
            f"{operation} is in flight: request {self.request_id} ends after it",
        )
        if request.state is RequestState.CANCELLING:
            return
        if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
            keyspace = metadata.schema.keyspaces[request.keyspace]
            reached = replication_of(keyspace.strategy, keyspace.replication)
            require(
                reached == replication_of(request.strategy, request.replication),
                Code.REPLICATION_NOT_REACHED,
                f"keyspace {keyspace.name!r} has {keyspace.strategy} {keyspace.replication}: request "
                f"{self.request_id} asks for {request.strategy} {request.replication}",
            )
            return
        waiting = metadata.replicas_in_use(volumes_given_up(metadata, request))
        require(
            not waiting or _is_given_up(metadata, request),
            Code.REPLICAS_LEFT,
            f"{len(waiting)} tablets still have a replica on the node that request {self.request_id} gives up",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        if request.state is RequestState.CANCELLING:
            return taken_back(metadata, request, epoch)
        done = msgspec.structs.replace(request, state=RequestState.DONE, epoch=epoch)
        if _is_given_up(metadata, request):
            why = "the storage of the new node was lost: what it had still to get comes to the node that follows it"
            done = msgspec.structs.replace(done, state=RequestState.FAILED, detail=why)
        if request.kind not in ENDED:
            return with_request(metadata, done)
        return with_request(in_state(metadata, request.node_id, ENDED[request.kind], epoch), done)

    def summary(self) -> str:
        return f"request {self.request_id} done"


class CancelRequest(Event, frozen=True):
    """An operator takes a request back; a node on its way out is normal again (seed 000, `rollback_to_normal`).

    Tablets that have moved stay where they are; those on the way end their transition. A ring operation whose MID is
    not done is taken back in this very epoch; one whose MID is done goes back by `RetreatOperation`. Either way what
    was streamed is cleaned up first, and `FinishRequest` ends it. Steps of a change of replication that are finished
    stay. A replace that has started cannot be cancelled: the replaced node has left. Nor can a request whose ranges
    have all been handed over.
    """

    request_id: str
    why: str = ""

    def builds(self, described: Described) -> bool:
        return True

    def check(self, metadata: ClusterMetadata) -> None:
        require_cancellable(metadata, metadata.request(self.request_id))

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        return cancelling(metadata, self.request_id, self.why, epoch)

    def summary(self) -> str:
        return f"request {self.request_id} cancelled"


def _has_nothing_to_remove(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    """Whether the node that is to be removed has left meanwhile, as it never came to join."""
    return (
        request.kind is RequestKind.REMOVE
        and request.state is RequestState.PENDING
        and metadata.directory.nodes[request.node_id].state is NodeState.LEFT
    )


def _is_given_up(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    """Whether a replace goes on to a node that is lost: the request by which it was declared so takes its tablets over.

    See `volumes_given_up`.
    """
    return request.kind is RequestKind.REPLACE and metadata.directory.nodes[request.node_id].lost


def _require_at_rest(metadata: ClusterMetadata, asking: TopologyRequest, node: Node) -> None:
    """That nothing else is under way with a node that is declared lost."""
    for request in metadata.open_requests():
        require(
            request.request_id == asking.request_id or request.node_id != node.node_id,
            Code.REQUEST_IN_THE_WAY,
            f"node {node.name!r} is still in request {request.request_id} ({request.kind}, {request.state}), which "
            "ends first",
        )


def _instead(node: Node) -> str:
    return (
        f"Where its storage is lost, run `epochlake node remove {node.name}`"
        if node.state is not NodeState.LEFT
        else ""
    )


def _outline(plan: Operation) -> tuple[str, str, int, int | None, str]:
    return plan.operation_id, plan.kind.value, plan.node_id, plan.replaced, plan.keyspace
