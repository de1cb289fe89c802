"""Going on with a prepared operation, a step at a time, and going back.

Nothing is planned here: a step applies the deltas that were computed when the operation was prepared, and sets the
state of its nodes. Cancelling applies the inverse deltas in reverse order, then unlocks (seed 002, Cancelling
Committed Events).
"""

from __future__ import annotations

from collections.abc import Mapping

from epochlake.placement.rejections import Code
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.placements import Assignment, Placements, applied, applied_to_reads, inverse
from epochlake.placement.ring.state import (
    STEPS,
    NodeState,
    Operation,
    OperationKind,
    RingNode,
    RingState,
    Step,
)
from epochlake.placement.ring.strategies import Replication
from msgspec.structs import replace

_AT_WORK = {
    OperationKind.JOIN: NodeState.BOOTSTRAPPING,
    OperationKind.LEAVE: NodeState.DECOMMISSIONING,
    OperationKind.MOVE: NodeState.MOVING,
    OperationKind.REPLACE: NodeState.REPLACING,
    OperationKind.REMOVE: NodeState.REMOVING,
    OperationKind.REBUILD: NodeState.REBUILDING,
}
_NEWCOMERS = (OperationKind.JOIN, OperationKind.REPLACE)


def accepted(state: RingState, operation: Operation) -> RingState:
    """The state after an operation's PREPARE: its ranges are split and locked.

    Raises `InvariantViolated` when any of its steps was not planned for this state.
    """
    prepared = _stepped(with_own_placement(state, operation), operation)
    with_deltas(prepared.placements, operation, 1)
    return prepared


def advanced(state: RingState, operation_id: str) -> RingState:
    """The state after the next step of an operation in flight; after FINISH it is in flight no more.

    Raises `PlanRejected` (`unknown-operation` when it is not in flight, `cancelling` when it is on its way back) and
    `InvariantViolated` when the placements are not those that the plan was made for.
    """
    operation = in_flight(state, operation_id)
    if operation.cancelling:
        raise PlanRejected(Code.CANCELLING, f"{operation} is being cancelled: it only goes back.", operation_id)
    return _stepped(state, operation)


def retreated(state: RingState, operation_id: str) -> RingState:
    """The state with an operation's last step taken back; with PREPARE taken back it is in flight no more.

    This is how to cancel while jobs run: each step back is an epoch with a barrier after it, like each step forth.
    From then on the operation is `cancelling`.
    """
    operation = in_flight(state, operation_id)
    step = STEPS[operation.next_step - 1]
    placements = dict(state.placements)
    for replication, deltas in operation.deltas.items():
        placements[replication] = applied(placements[replication], inverse(deltas[operation.next_step - 1]))
    nodes = {**state.nodes, **_members_before(state, operation, step)}
    back = replace(operation, next_step=operation.next_step - 1, cancelling=True)
    if step is not Step.PREPARE:
        operations = {**state.operations, operation_id: back}
        return replace(state, nodes=nodes, placements=placements, operations=operations)
    gone = replace(state, nodes=nodes, placements=placements, operations=_without(state, operation))
    return gone if operation.previous is None else _with_replication(gone, operation, operation.previous)


def cancelled(state: RingState, operation_id: str) -> RingState:
    """The state as if the operation had never been prepared; raises like `advanced`.

    All steps back at once. Once MID is done that is no single epoch's change while jobs run: who still reads the new
    replicas could miss what is written to the old ones. Then go back with `retreated`, a step at a time.
    """
    in_flight(state, operation_id)
    while operation_id in state.operations:
        state = retreated(state, operation_id)
    return state


def in_flight(state: RingState, operation_id: str) -> Operation:
    """The operation of that name; raises `PlanRejected` (`unknown-operation`)."""
    if operation_id not in state.operations:
        known = ", ".join(map(str, state.operations.values())) or "nothing"
        raise PlanRejected(Code.UNKNOWN_OPERATION, f"operation {operation_id} is not in flight; in flight: {known}.")
    return state.operations[operation_id]


def next_step(operation: Operation) -> Step:
    """The step that comes next."""
    return STEPS[operation.next_step]


def settled_placements(state: RingState) -> dict[Replication, Placements]:
    """The placements once every operation in flight has ended, however their steps are interleaved.

    Those that are being cancelled end where they began, all others where their plans lead.
    """
    placements = dict(state.placements)
    for operation in state.operations.values():
        if operation.cancelling:
            placements = without_deltas(placements, operation)
        else:
            placements = with_deltas(placements, operation, operation.next_step)
    return placements


def without_deltas(placements: Mapping[Replication, Placements], operation: Operation) -> dict[Replication, Placements]:
    """The placements with all the steps of an operation that are done taken back."""
    result = dict(placements)
    for replication, deltas in operation.deltas.items():
        back = [inverse(delta) for delta in reversed(deltas[: operation.next_step])]
        result[replication] = applied(result[replication], *back)
    return result


def with_deltas(
    placements: Mapping[Replication, Placements], operation: Operation, first: int
) -> dict[Replication, Placements]:
    """The placements after an operation's deltas from step number `first` on."""
    result = dict(placements)
    for replication, deltas in operation.deltas.items():
        result[replication] = applied(result[replication], *deltas[first:])
    return result


def reads_at_rest(state: RingState) -> dict[Replication, Assignment]:
    """What reads were before anything that is in flight: what the strategies calculate for the ring as it is."""
    reads = {replication: placements.reads for replication, placements in state.placements.items()}
    for operation in reversed(list(state.operations.values())):
        for replication, deltas in operation.deltas.items():
            for delta in reversed(deltas[: operation.next_step]):
                reads[replication] = applied_to_reads(reads[replication], inverse(delta))
    return reads


def settled_tokens(state: RingState) -> dict[int, tuple[int, ...]]:
    """Who owns which tokens once every operation in flight has ended."""
    tokens = state.tokens()
    for operation in state.operations.values():
        if not operation.cancelling:
            tokens = tokens_after(tokens, operation)
    return tokens


def tokens_after(tokens: Mapping[int, tuple[int, ...]], operation: Operation) -> dict[int, tuple[int, ...]]:
    """Who owns which tokens once this operation has finished."""
    involved = operation.nodes
    result = {node: owned for node, owned in tokens.items() if node not in involved}
    if operation.tokens:
        result[operation.node_id] = operation.tokens
    return result


def with_own_placement(state: RingState, operation: Operation) -> RingState:
    """A keyspace whose replication changes gets a placement of its own; its fellows keep theirs."""
    if operation.previous is None:
        return state
    (own,) = operation.deltas
    placements = {**state.placements, own: state.placements[operation.previous]}
    return _tidied(replace(state, keyspaces={**state.keyspaces, operation.keyspace: own}, placements=placements))


def _stepped(state: RingState, operation: Operation) -> RingState:
    """Apply the step that `operation.next_step` points at, and point at the one after it."""
    step = next_step(operation)
    placements = dict(state.placements)
    for replication, deltas in operation.deltas.items():
        placements[replication] = applied(placements[replication], deltas[operation.next_step])
    nodes = {**state.nodes, **_members(state, operation, step)}
    if step is not Step.FINISH:
        onward = replace(operation, next_step=operation.next_step + 1)
        operations = {**state.operations, operation.operation_id: onward}
        return replace(state, nodes=nodes, placements=placements, operations=operations)
    done = replace(state, nodes=nodes, placements=placements, operations=_without(state, operation))
    return done if operation.replication is None else _with_replication(done, operation, operation.replication)


def _members(state: RingState, operation: Operation, step: Step) -> dict[int, RingNode]:
    """The nodes whose state or tokens a step changes."""
    if operation.kind is OperationKind.CHANGE_REPLICATION or step is Step.MID:
        return {}
    node = state.nodes[operation.node_id]
    if step is Step.PREPARE:
        return {node.node_id: replace(node, state=NodeState.MOVING)} if operation.kind is OperationKind.MOVE else {}
    if step is Step.START:
        return {node.node_id: replace(node, state=_AT_WORK[operation.kind])}
    changed = {gone: replace(state.nodes[gone], state=NodeState.LEFT, tokens=()) for gone in operation.departing}
    if operation.tokens:
        changed[node.node_id] = replace(node, state=NodeState.NORMAL, tokens=operation.tokens)
    if operation.replaced is not None:
        changed[operation.replaced] = replace(changed[operation.replaced], replaced_by=node.node_id)
    return changed


def _members_before(state: RingState, operation: Operation, step: Step) -> dict[int, RingNode]:
    """The node whose state a step had changed, as it was before that step."""
    changed_at = Step.PREPARE if operation.kind is OperationKind.MOVE else Step.START
    if operation.kind is OperationKind.CHANGE_REPLICATION or step is not changed_at:
        return {}
    idle = NodeState.NONE if operation.kind in _NEWCOMERS else NodeState.NORMAL
    return {operation.node_id: replace(state.nodes[operation.node_id], state=idle)}


def _without(state: RingState, operation: Operation) -> dict[str, Operation]:
    return {name: other for name, other in state.operations.items() if name != operation.operation_id}


def _with_replication(state: RingState, operation: Operation, replication: Replication) -> RingState:
    """The keyspace shares the placement of its replication again."""
    (own,) = operation.deltas
    placements = {**state.placements, replication: state.placements[own]}
    return _tidied(
        replace(state, keyspaces={**state.keyspaces, operation.keyspace: replication}, placements=placements)
    )


def _tidied(state: RingState) -> RingState:
    """Without the placements that no keyspace uses."""
    used = set(state.keyspaces.values())
    return replace(state, placements={key: value for key, value in state.placements.items() if key in used})
