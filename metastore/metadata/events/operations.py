"""Events of operations on the ring: a change of replication asked for, and single steps, on the way and back.

A step is a decision that was made with the plan: the event names it, and its effect is the plan's. What has to have
happened before it (barriers, streaming) is the coordinator's to see to; what can be seen in the metadata is checked
here. The operation of a node begins with its request (`StartRequest`), that of a replication with `PrepareOperation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.plans import begun, check_plan, plan_of, with_names
from epochlake.metastore.metadata.events.replicas import require_enough_nodes, require_replication
from epochlake.metastore.metadata.model import PlacementKind, RequestKind, RequestState, TopologyRequest
from epochlake.metastore.metadata.ring_state import (
    operation_of_request,
    ring_state,
    with_ring_state,
    with_session,
)
from epochlake.placement.rejections import Code
from epochlake.placement.ring.replication import replication_path
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, Step
from epochlake.placement.ring.steps import advanced, next_step, retreated
from epochlake.placement.ring.strategies import Replication, replication_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata
    from epochlake.metastore.metadata.components.upgrade import Described

NO_NODE = 0
"""The node of a request that is about none."""

_MID = STEPS.index(Step.MID)


class RequestReplication(Event, frozen=True):
    """Ask that a ring keyspace gets another replication; it comes there a replica at a time, each an operation."""

    request_id: str
    keyspace: str
    strategy: str
    replication: dict[str, int]
    force: bool = False
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        current = metadata.keyspace(self.keyspace)
        require(
            current.placement is PlacementKind.RING,
            Code.UNSUPPORTED_PLACEMENT,
            f"keyspace {self.keyspace!r} has {current.placement} placement: only the replication of a ring keyspace "
            "can be changed",
        )
        require(
            self.request_id not in metadata.requests, Code.REQUEST_EXISTS, f"request {self.request_id} exists already"
        )
        for request in metadata.open_requests():
            require(
                request.keyspace != self.keyspace,
                Code.REQUEST_IN_THE_WAY,
                f"request {request.request_id} changes the replication of keyspace {self.keyspace!r} already "
                f"({request.state})",
                hint="Wait for it, or cancel it",
            )
        wanted = require_replication(self.keyspace, self.strategy, self.replication)
        require(
            wanted != replication_of(current.strategy, current.replication),
            Code.NOTHING_TO_DO,
            f"keyspace {self.keyspace!r} has this replication already",
        )
        if not self.force:
            require_enough_nodes(metadata, self.keyspace, wanted)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = TopologyRequest(
            self.request_id,
            RequestKind.KEYSPACE_RF_CHANGE,
            NO_NODE,
            reason=self.why,
            requested_epoch=epoch,
            epoch=epoch,
            keyspace=self.keyspace,
            strategy=self.strategy,
            replication=self.replication,
            force=self.force,
        )
        return msgspec.structs.replace(metadata, requests={**metadata.requests, request.request_id: request})

    def summary(self) -> str:
        wanted = ", ".join(f"{name}={count}" for name, count in self.replication.items())
        return f"keyspace {self.keyspace} is to have {self.strategy} ({wanted})"


class PrepareOperation(Event, frozen=True):
    """A single step of a change of replication begins: its plan is in the attachment."""

    request_id: str
    attachment: bytes = b""

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(
            request.kind is RequestKind.KEYSPACE_RF_CHANGE,
            Code.WRONG_REQUEST,
            f"request {self.request_id} is a {request.kind}: its operation begins when it is started",
        )
        require(
            request.state is RequestState.RUNNING,
            Code.WRONG_STATE,
            f"request {self.request_id} is {request.state}, not running",
        )
        require_not_paused(request)
        under_way = operation_of_request(metadata, self.request_id)
        require(under_way is None, Code.OPERATION_IN_THE_WAY, f"{under_way} is in flight: one at a time")
        plan = plan_of(self.attachment)
        current = metadata.schema.keyspaces[request.keyspace]
        path = replication_path(
            replication_of(current.strategy, current.replication),
            replication_of(request.strategy, request.replication),
        )
        require(
            (plan.kind, plan.keyspace) == (OperationKind.CHANGE_REPLICATION, request.keyspace)
            and plan.operation_id.rpartition("/")[0] == self.request_id,
            Code.INVALID_EVENT,
            f"{plan} is not one of request {self.request_id}",
        )
        require(
            [plan.replication] == path[:1],
            Code.STALE_PLAN,
            f"{plan} is not the next step to what request {self.request_id} asks for",
            hint="Plan it again",
        )
        check_plan(metadata, plan)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        return begun(metadata, plan_of(self.attachment), epoch)

    def summary(self) -> str:
        plan = plan_of(self.attachment)
        return f"{plan.operation_id}: PREPARE, keyspace {plan.keyspace} to {_shown(plan.replication)}"


class AdvanceOperation(Event, frozen=True):
    """An operation goes on by a step. START opens a session for its streaming, which is closed with MID."""

    operation_id: str
    step: Step
    session: str | None = None

    def builds(self, described: Described) -> bool:
        return True

    def check(self, metadata: ClusterMetadata) -> None:
        operation = _in_flight(metadata, self.operation_id)
        request = metadata.requests[metadata.rings.running[self.operation_id].request_id]
        require(
            not operation.cancelling and request.state is RequestState.RUNNING,
            Code.CANCELLING,
            f"request {request.request_id} is {request.state}: {with_names(metadata, str(operation))} only goes back",
        )
        require(
            next_step(operation) is self.step,
            Code.STALE_PLAN,
            f"the next step of {with_names(metadata, str(operation))} is {next_step(operation)}, not {self.step}",
        )
        require(
            bool(self.session) == (self.step is Step.START),
            Code.WRONG_SESSION,
            f"START of {self.operation_id} opens a session, and no other step does",
        )
        require(
            self.session not in metadata.open_sessions(),
            Code.WRONG_SESSION,
            f"session {self.session} is open already: each has one of its own",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        after = with_ring_state(metadata, advanced(ring_state(metadata), self.operation_id), epoch)
        return after if self.session is None else with_session(after, self.operation_id, self.session)

    def summary(self) -> str:
        return f"operation {self.operation_id}: {self.step}"


class RetreatOperation(Event, frozen=True):
    """An operation takes `step` back, and every later one that is done; with PREPARE it is in flight no more.

    MID is taken back by itself: readers of the new replicas need a barrier before writes leave these.
    """

    operation_id: str
    step: Step

    def builds(self, described: Described) -> bool:
        return True

    def check(self, metadata: ClusterMetadata) -> None:
        operation = _in_flight(metadata, self.operation_id)
        request = metadata.requests[metadata.rings.running[self.operation_id].request_id]
        named = with_names(metadata, str(operation))
        require(
            request.state is RequestState.CANCELLING,
            Code.WRONG_STATE,
            f"{named} goes back only when request {request.request_id} is cancelled: it is {request.state}",
        )
        index = STEPS.index(self.step)
        require(
            index < operation.next_step,
            Code.STALE_PLAN,
            f"{self.step} of {named} is not done, or was taken back already",
        )
        require(
            index == _MID or operation.next_step <= _MID,
            Code.STALE_PLAN,
            f"MID of {named} is taken back before {self.step}, in an epoch of its own",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        state, index = ring_state(metadata), STEPS.index(self.step)
        while self.operation_id in state.operations and state.operations[self.operation_id].next_step > index:
            state = retreated(state, self.operation_id)
        return with_ring_state(metadata, state, epoch)

    def summary(self) -> str:
        return f"operation {self.operation_id}: {self.step} taken back"


class PauseRequest(Event, frozen=True):
    """Nothing new is begun for a request until it is resumed."""

    request_id: str
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(
            request.state in (RequestState.PENDING, RequestState.RUNNING),
            Code.WRONG_STATE,
            f"request {self.request_id} is {request.state}: there is nothing to pause",
        )
        require(not request.paused, Code.NOTHING_TO_DO, f"request {self.request_id} is paused already")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        paused = msgspec.structs.replace(request, paused=True, detail=self.why or None, epoch=epoch)
        return msgspec.structs.replace(metadata, requests={**metadata.requests, self.request_id: paused})

    def summary(self) -> str:
        return f"request {self.request_id} paused" + (f": {self.why}" if self.why else "")


class ResumeRequest(Event, frozen=True):
    """A paused request goes on."""

    request_id: str

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(request.paused, Code.NOT_PAUSED, f"request {self.request_id} is not paused: there is nothing to resume")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        resumed = msgspec.structs.replace(request, paused=False, detail=None, epoch=epoch)
        return msgspec.structs.replace(metadata, requests={**metadata.requests, self.request_id: resumed})

    def summary(self) -> str:
        return f"request {self.request_id} resumed"


def require_not_paused(request: TopologyRequest) -> None:
    require(
        not request.paused,
        Code.REQUEST_PAUSED,
        f"request {request.request_id} is paused ({request.detail or 'no reason given'})",
        hint="Resume it first",
    )


def _in_flight(metadata: ClusterMetadata, operation_id: str) -> Operation:
    operation = metadata.rings.operations.get(operation_id)
    if operation is None:
        known = ", ".join(metadata.rings.operations) or "none"
        raise Rejected(Code.UNKNOWN_OPERATION, f"operation {operation_id!r} is not in flight (in flight: {known})")
    return operation


def _shown(replication: Replication | None) -> str:
    factors = () if replication is None else replication.factors
    return ", ".join(f"{name}={count}" for name, count in factors)
