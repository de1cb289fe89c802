"""Planning an operation: what its steps will change, what it locks, and whether it may start at all.

The strategy is asked for the placement of the ring as it is and of the ring as it will be, and the
difference is the plan. Two operations may run together when their locked ranges are disjoint *and* their plans
together lead to the placement that the strategy gives to the ring after both; otherwise the second is rejected,
naming the first. Every function returns an `Operation` for `steps.accepted`, or raises `PlanRejected` and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.ring import checks
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.movement import Movement, founding, movement
from epochlake.placement.ring.placements import calculated
from epochlake.placement.ring.state import NodeState, Operation, OperationKind, RingState
from epochlake.placement.ring.steps import reads_at_rest, tokens_after
from epochlake.placement.ring.strategies import Replication


def plan_join(state: RingState, operation_id: str, node_id: int, tokens: Iterable[int]) -> Operation:
    """A node without tokens takes the given ones (seed 002, Bootstrap)."""
    checks.node_in_state(state, node_id, NodeState.NONE, "join")
    wanted = _tokens(tokens)
    checks.tokens_free(state, wanted, exempt=())
    return _planned(state, Operation(operation_id, OperationKind.JOIN, node_id, wanted, {}, {}))


def plan_leave(state: RingState, operation_id: str, node_id: int, *, force: bool = False) -> Operation:
    """A node hands its ranges over and leaves (seed 002, Decommission).

    Without `force` it is rejected where fewer nodes than the replication factor would stay, or no node of a rack that
    the replication factor needs.
    """
    checks.node_in_state(state, node_id, NodeState.NORMAL, "leave")
    checks.not_last(state, node_id)
    if not force:
        checks.replication_kept(state, node_id)
    return _planned(state, Operation(operation_id, OperationKind.LEAVE, node_id, (), {}, {}))


def plan_remove(state: RingState, operation_id: str, node_id: int, *, force: bool = False) -> Operation:
    """A dead node is taken out; what it held is streamed from the other replicas (seed 000, `removing`).

    Without `force` it is rejected like a leave, and also where the dead node holds the only replica of a range.
    """
    checks.node_in_state(state, node_id, NodeState.NORMAL, "be removed")
    checks.not_last(state, node_id)
    if not force:
        checks.replication_kept(state, node_id)
        checks.others_hold(state, node_id)
    return _planned(state, Operation(operation_id, OperationKind.REMOVE, node_id, (), {}, {}))


def plan_move(state: RingState, operation_id: str, node_id: int, tokens: Iterable[int]) -> Operation:
    """A node gives its tokens up for others, as many or not."""
    checks.node_in_state(state, node_id, NodeState.NORMAL, "move")
    wanted = _tokens(tokens)
    if wanted == state.nodes[node_id].tokens:
        raise PlanRejected(
            Code.TOKENS_UNCHANGED, f"node {node_id} owns just these tokens already", hint="Choose others"
        )
    checks.tokens_free(state, wanted, exempt=(node_id,))
    return _planned(state, Operation(operation_id, OperationKind.MOVE, node_id, wanted, {}, {}))


def plan_replace(
    state: RingState, operation_id: str, replaced: int, replacement: int, tokens: Iterable[int] | None = None
) -> Operation:
    """A node without tokens takes the place of another, which goes; it takes its tokens unless others are given."""
    checks.node_in_state(state, replaced, NodeState.NORMAL, "be replaced")
    checks.node_in_state(state, replacement, NodeState.NONE, "replace another")
    wanted = state.nodes[replaced].tokens if tokens is None else _tokens(tokens)
    checks.tokens_free(state, wanted, exempt=(replaced,))
    kind = OperationKind.REPLACE
    return _planned(state, Operation(operation_id, kind, replacement, wanted, {}, {}, replaced=replaced))


def _planned(state: RingState, outline: Operation) -> Operation:
    """The operation with deltas and locks, once nothing in flight stands in its way."""
    before = state.tokens()
    return checked(state, outline, _movements(state, before, tokens_after(before, outline)))


def checked(state: RingState, outline: Operation, movements: Mapping[Replication, Movement]) -> Operation:
    """The outline with deltas and locks; raises `PlanRejected` when it cannot go on beside what is in flight."""
    operation = msgspec.structs.replace(
        outline,
        deltas={replication: plan.deltas for replication, plan in movements.items()},
        locks={replication: plan.locks for replication, plan in movements.items()},
    )
    still_allowed(state, operation)
    return operation


def still_allowed(state: RingState, operation: Operation) -> None:
    """Raise `PlanRejected` when the operation cannot go on beside what is in flight in `state`.

    For whoever commits a plan: something may have been committed since it was made. That the placements are those
    that it was made for is checked by `steps.accepted`.
    """
    checks.operation_new(state, operation)
    checks.nodes_free(state, operation)
    checks.ranges_free(state, operation)
    checks.settings_free(state, operation)
    checks.hands_nothing_to_departing(state, operation)
    checks.settles(state, operation)


def _movements(
    state: RingState, before: Mapping[int, tuple[int, ...]], after: Mapping[int, tuple[int, ...]]
) -> dict[Replication, Movement]:
    final = state.ring_with(after)
    plan = movement if before else founding
    # What the strategy calculates for the ring as it is need not be calculated again: it stands there at rest.
    return {key: plan(reads, calculated(final, key)) for key, reads in reads_at_rest(state).items()}


def _tokens(tokens: Iterable[int]) -> tuple[int, ...]:
    wanted = tuple(sorted(tokens))
    if not wanted or len(set(wanted)) != len(wanted):
        raise InvalidRequest(
            f"tokens {list(wanted)} were asked for: none, or some of them twice",
            hint="Give at least one, and each of them once",
        )
    return wanted
