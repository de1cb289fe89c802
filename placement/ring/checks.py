"""Why an operation may not start: every rejection of a plan, one function each.

They say what was asked, name the node or the operation in the way, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

import numpy as np
from epochlake.placement.rejections import Code
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.locks import NOTHING, first_conflict
from epochlake.placement.ring.placements import Assignment, AssignmentChange, applied_to_reads, calculated, same
from epochlake.placement.ring.state import NodeState, Operation, OperationKind, RingNode, RingState
from epochlake.placement.ring.steps import reads_at_rest, settled_tokens, tokens_after
from epochlake.placement.ring.strategies import SIMPLE, Replication
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN

_EVERY_SUBSET = 5
_GOING = (OperationKind.LEAVE, OperationKind.REMOVE)


def node_in_state(state: RingState, node_id: int, wanted: NodeState, what: str) -> None:
    if node_id not in state.nodes:
        raise PlanRejected(
            Code.UNKNOWN_NODE, f"node {node_id} is to {what}, but is not known", hint="Register it first"
        )
    current = state.nodes[node_id].state
    if current is not wanted:
        busy = next((operation for operation in state.operations.values() if node_id in operation.nodes), None)
        if busy is not None:
            raise _busy(node_id, busy)
        raise PlanRejected(
            Code.NODE_STATE, f"node {node_id} is to {what}, which takes a node that is {wanted}: it is {current}."
        )


def operation_new(state: RingState, asked: Operation) -> None:
    other = state.operations.get(asked.operation_id)
    if other is not None:
        raise PlanRejected(
            Code.OPERATION_EXISTS, f"{other} has this name already", other.operation_id, hint="Choose another"
        )


def nodes_free(state: RingState, asked: Operation) -> None:
    for operation in state.operations.values():
        for node_id in sorted(asked.nodes & operation.nodes):
            raise _busy(node_id, operation)


def tokens_free(state: RingState, tokens: Collection[int], exempt: Collection[int]) -> None:
    """No token is owned by a node, or is to be owned by the node of an operation in flight."""
    wanted = set(tokens)
    for token in wanted:
        if not MIN_TOKEN <= token <= MAX_TOKEN:
            raise PlanRejected(Code.TOKENS_TAKEN, f"token {token} is no signed 64-bit number, so nobody can own it.")
    for node in state.nodes.values():
        taken = wanted.intersection(node.tokens)
        if taken and node.node_id not in exempt:
            raise PlanRejected(
                Code.TOKENS_TAKEN, f"tokens {sorted(taken)} belong to node {node.node_id}", hint="Choose others"
            )
    for operation in state.operations.values():
        taken = wanted.intersection(operation.tokens)
        if taken and operation.node_id not in exempt:
            reason = f"tokens {sorted(taken)} will belong to node {operation.node_id}: {operation}. Choose others."
            raise PlanRejected(Code.TOKENS_TAKEN, reason, operation.operation_id)


def not_last(state: RingState, node_id: int) -> None:
    if set(settled_tokens(state)) <= {node_id}:
        raise PlanRejected(Code.LAST_NODE, f"node {node_id} is the last one with tokens: nobody could take its ranges.")


def replication_kept(state: RingState, node_id: int) -> None:
    """Enough nodes and racks stay for every replication setting, those that are leaving already not counted."""
    leaver = state.nodes[node_id]
    going = {operation.node_id for operation in state.operations.values() if operation.kind in _GOING}
    staying = [node for node in state.nodes.values() if node.tokens and node.node_id not in going]
    for keyspace, replication in sorted(state.keyspaces.items()):
        factor = replication.factor(leaver.datacenter)
        if factor == 0:
            continue
        everywhere = replication.strategy == SIMPLE
        fellows = [node for node in staying if everywhere or node.datacenter == leaver.datacenter]
        where = "the cluster" if everywhere else f"datacenter {leaver.datacenter}"
        if len(fellows) <= factor:
            raise PlanRejected(
                Code.BELOW_REPLICATION,
                f"node {node_id} cannot go: {where} has {len(fellows)} nodes that stay, it among them, and "
                f"keyspace {keyspace} keeps {factor} replicas there",
                _first(going, state),
                hint="Add a node first, lower the replication, or force it",
            )
        if not everywhere:
            _rack_kept(leaver, fellows, factor, keyspace)


def _rack_kept(leaver: RingNode, fellows: list[RingNode], factor: int, keyspace: str) -> None:
    racks = {node.rack for node in fellows}
    alone = [node.node_id for node in fellows if node.rack == leaver.rack] == [leaver.node_id]
    if alone and 1 < len(racks) <= factor:
        raise PlanRejected(
            Code.RACK_NEEDED,
            f"node {leaver.node_id} cannot go: it is the last of rack {leaver.datacenter}/{leaver.rack}, and "
            f"keyspace {keyspace} keeps {factor} replicas in {len(racks)} racks",
            hint="Add a node to the rack first, or force it",
        )


def others_hold(state: RingState, node_id: int) -> None:
    for keyspace, replication in sorted(state.keyspaces.items()):
        reads = state.placements[replication].reads
        alone = np.flatnonzero((reads.replicas == node_id).any(axis=1) & ((reads.replicas >= 0).sum(axis=1) == 1))
        if len(alone):
            start, end = reads.starts[alone[0]], reads.ends[alone[0]]
            raise PlanRejected(
                Code.ONLY_REPLICA,
                f"node {node_id} cannot be removed: it holds the only replica of {len(alone)} ranges of "
                f"keyspace {keyspace}, ({start}, {end}] first. Their rows would be lost",
                hint="Bring it back, or force it",
            )


def ranges_free(state: RingState, asked: Operation) -> None:
    """No range that the plan touches is locked by an operation in flight."""
    for operation in state.operations.values():
        for replication, ranges in asked.locks.items():
            hit = first_conflict(ranges, operation.locks.get(replication, NOTHING))
            if hit is not None:
                names = ", ".join(name for name, key in sorted(state.keyspaces.items()) if key == replication)
                reason = f"{asked} needs range ({hit[0]}, {hit[1]}] of {names}, which is locked by {operation}."
                reason += " Wait for it or cancel it."
                raise PlanRejected(Code.RANGES_LOCKED, reason, operation.operation_id)


def settings_free(state: RingState, asked: Operation) -> None:
    """No operation does away with a replication setting that another was planned for.

    A change of replication locks the whole ring for its keyspace. Where another operation changes no range of that
    keyspace it locks none, and locks alone would let both go on: its plan would be left for a setting that is gone.
    """
    for operation in state.operations.values():
        changing, planned = (asked, operation) if asked.previous is not None else (operation, asked)
        if changing.previous is not None and planned.deltas.keys() & {changing.previous, *changing.deltas}:
            raise PlanRejected(
                Code.RANGES_LOCKED,
                f"{asked} needs the ring of keyspace {changing.keyspace}, which is locked by {operation}",
                operation.operation_id,
                hint="Wait for it or cancel it",
            )


def hands_nothing_to_departing(state: RingState, asked: Operation) -> None:
    """No plan gives ranges to a node that another one takes out.

    Locks alone do not see it: what such a node gains lies outside the ranges that its own going away touches, and
    then nobody would take them from it. (Cassandra accepts both plans and fails at the second FINISH.)
    """
    for operation in state.operations.values():
        for giver, going in ((operation, asked), (asked, operation)):
            for node_id in sorted(gaining(giver) & going.departing):
                how = "replaced" if going.kind is OperationKind.REPLACE else "taken out"
                raise PlanRejected(
                    Code.HANDS_TO_DEPARTING,
                    f"{asked} cannot go on beside {operation}: {giver} hands ranges to node {node_id}, which "
                    f"is itself being {how} by {going}",
                    operation.operation_id,
                    hint=f"Wait for {operation} or cancel it",
                )


def settles(state: RingState, asked: Operation) -> None:
    """Whichever of the operations in flight finish, and whichever are cancelled, the ring ends as its strategy says.

    Locks do not see to that: a plan that adds a rack, or a node that a walk passes over, changes what another plan's
    ranges would be, though not yet what they are. With more than `_EVERY_SUBSET` others, pairs of them are tried and
    all of them together, instead of every subset.
    """
    others = [operation for operation in state.operations.values() if not operation.cancelling]
    if not others:
        return
    base = reads_at_rest(state)
    for subset in _subsets(others):
        if not _reaches_its_target(state, base, (*subset, asked)):
            names = ", ".join(map(str, subset))
            raise PlanRejected(
                Code.WOULD_NOT_SETTLE,
                f"{asked} together with {names} would not reach the placement that the strategy gives to the "
                "ring after all of them: one shifts racks or nodes that another counts on",
                subset[-1].operation_id,
                hint="Wait or cancel",
            )


def _reaches_its_target(
    state: RingState, base: Mapping[Replication, Assignment], operations: tuple[Operation, ...]
) -> bool:
    """Whether the plans together lead from these reads to what the strategies calculate for the ring after them."""
    tokens: Mapping[int, tuple[int, ...]] = state.tokens()
    targets = {replication: replication for replication in base}
    reached = dict(base)
    for operation in operations:
        tokens = tokens_after(tokens, operation)
        for replication, deltas in operation.deltas.items():
            for delta in deltas:
                reached[replication] = applied_to_reads(reached[replication], delta)
        if operation.replication is not None:
            targets.update(dict.fromkeys(operation.deltas, operation.replication))
    ring = state.ring_with(tokens)
    return all(same(reached[key], calculated(ring, target)) for key, target in targets.items())


def _subsets(operations: list[Operation]) -> Iterator[tuple[Operation, ...]]:
    most = len(operations) if len(operations) <= _EVERY_SUBSET else 2
    for size in range(1, most + 1):
        yield from combinations(operations, size)
    if most < len(operations):
        yield tuple(operations)


def gaining(operation: Operation) -> frozenset[int]:
    """Nodes that become replicas of a range."""
    nodes: set[int] = set()
    for deltas in operation.deltas.values():
        for delta in deltas:
            nodes.update(_new_nodes(delta.reads))
    return frozenset(nodes)


def depends_on(operation: Operation, node_id: int) -> bool:
    """Whether an operation cannot go on while the storage of a node does not answer.

    So it is with a node that gets rows: of ranges that it gains, or that it keeps where fewer nodes have them
    afterwards. A rebuild also counts on every other replica of its ranges.
    """
    for deltas in operation.deltas.values():
        for delta in deltas:
            before, after = (side == node_id for side in (delta.reads.before, delta.reads.after))
            fewer = (delta.reads.after >= 0).sum(axis=1) < (delta.reads.before >= 0).sum(axis=1)
            gets = after.any(axis=1) & (~before.any(axis=1) | fewer)
            shares = operation.kind is OperationKind.REBUILD and bool(before.any() or after.any())
            if gets.any() or shares:
                return True
    return False


def _new_nodes(change: AssignmentChange) -> set[int]:
    if not len(change.starts) or not change.after.shape[1]:
        return set()
    new = ~(change.after[:, :, None] == change.before[:, None, :]).any(axis=2) & (change.after >= 0)
    return set(np.unique(change.after[new]).tolist())


def _busy(node_id: int, operation: Operation) -> PlanRejected:
    reason = f"node {node_id} takes part in {operation}. Wait for it or cancel it."
    return PlanRejected(Code.NODE_BUSY, reason, operation.operation_id)


def _first(nodes: set[int], state: RingState) -> str | None:
    return next((name for name, operation in state.operations.items() if operation.node_id in nodes), None)
