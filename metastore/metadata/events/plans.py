"""Plans of range movements in events: read from the attachment, and checked again on the metadata of now.

A plan was made on older metadata than that on which it is committed, so nothing about it is taken on
trust but the decision itself. It must fit the placements, go on beside what is in flight, and lead to what the
replication strategy gives to the ring after it. What the ring refuses is refused here with its code, nodes by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.ring_state import ring_state, settles, with_ring_state
from epochlake.placement.errors import InvariantViolated
from epochlake.placement.rejections import Code
from epochlake.placement.ring.checks import depends_on, ranges_free, settings_free
from epochlake.placement.ring.codec import decode_operation
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import still_allowed
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, RingState
from epochlake.placement.ring.steps import accepted, advanced, with_own_placement
from msgspec.structs import replace

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

_NODE = re.compile(r"\bnode (\d+)\b")
_TOKENS_AT_THE_END = (OperationKind.LEAVE, OperationKind.REMOVE)


def plan_of(attachment: bytes) -> Operation:
    """The operation that an event carries. Raises Rejected for bytes that are none, or one that is under way."""
    try:
        operation = decode_operation(attachment)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Rejected(Code.INVALID_EVENT, f"the plan of the event cannot be read: {error}") from error
    whole = all(len(deltas) == len(STEPS) for deltas in operation.deltas.values())
    require(
        whole and operation.next_step == 0 and not operation.cancelling,
        Code.INVALID_EVENT,
        f"the plan of the event is not one of {len(STEPS)} steps of which none is done",
    )
    return operation


def allowed(metadata: ClusterMetadata, check: Callable[[RingState], object], state: RingState | None = None) -> None:
    """Ask the ring something about the metadata; raises Rejected with its code and reason."""
    try:
        check(ring_state(metadata) if state is None else state)
    except PlanRejected as refused:
        raise Rejected(
            refused.code, with_names(metadata, refused.reason), hint=with_names(metadata, refused.hint)
        ) from refused


def with_names(metadata: ClusterMetadata, reason: str) -> str:
    """A reason of the ring with nodes by name instead of by number."""
    nodes = metadata.directory.nodes

    def name(match: re.Match[str]) -> str:
        node = nodes.get(int(match[1]))
        return match[0] if node is None else f"node {node.name!r}"

    return _NODE.sub(name, reason)


def check_plan(metadata: ClusterMetadata, operation: Operation) -> None:
    """Raise Rejected unless the operation can be begun on this metadata."""
    state = ring_state(metadata)
    own = set(operation.deltas) if operation.previous is not None else set()
    require(
        set(operation.deltas) == (own or set(state.placements)),
        Code.STALE_PLAN,
        f"{with_names(metadata, str(operation))} was planned for other replication settings than there are now",
        hint="Plan it again",
    )
    _require_no_lost(metadata, operation)
    try:
        allowed(metadata, lambda now: _go_on_beside_others(now, operation), state)
        fits = settles(accepted(state, operation))
    except InvariantViolated as error:
        reason = f"{with_names(metadata, str(operation))} was planned on old metadata: {error}"
        raise Rejected(Code.STALE_PLAN, reason, hint="Plan it again") from error
    require(
        fits,
        Code.STALE_PLAN,
        f"{with_names(metadata, str(operation))} was planned on old metadata, and would not lead to the "
        "placement that the strategy gives to the ring after it",
        hint="Plan it again",
    )


def _require_no_lost(metadata: ClusterMetadata, operation: Operation) -> None:
    """That it does not count on lost storage; a removal and a replace may, they are about lost storage themselves."""
    if operation.kind in (OperationKind.REMOVE, OperationKind.REPLACE):
        return
    for node in metadata.directory.nodes.values():
        require(
            not (node.lost and depends_on(operation, node.node_id)),
            Code.LOST,
            f"{with_names(metadata, str(operation))} counts on node {node.name!r}, whose storage is declared lost: it "
            "goes on when that node is removed or replaced",
        )


def begun(metadata: ClusterMetadata, operation: Operation, epoch: int) -> ClusterMetadata:
    """The metadata after PREPARE of an operation; after all of it when no keyspace is on the ring.

    Then nothing is to be waited for: the tokens change at once, but for a node on its way out, which keeps its own
    until it has left, so that its way back is short.
    """
    state = accepted(ring_state(metadata), operation)
    if not operation.deltas:
        if operation.kind in _TOKENS_AT_THE_END:
            return metadata
        while operation.operation_id in state.operations:
            state = advanced(state, operation.operation_id)
    return with_ring_state(metadata, state, epoch)


def _go_on_beside_others(state: RingState, operation: Operation) -> None:
    settings_free(state, operation)
    if operation.previous is not None:  # its placement of its own is not there yet: it locks that which it leaves
        (locks,) = operation.locks.values()
        ranges_free(state, replace(operation, locks={operation.previous: locks}))
    still_allowed(with_own_placement(state, operation), operation)
