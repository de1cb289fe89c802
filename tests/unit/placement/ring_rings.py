"""Small rings for tests."""

from __future__ import annotations

from collections.abc import Iterable

from epochlake.placement.ring.placements import Assignment
from epochlake.placement.ring.state import NodeState, Operation, RingNode, RingState, ring_state
from epochlake.placement.ring.steps import accepted, advanced
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, SIMPLE, Replication, replication_of

KS = "ks"


def member(node_id: int, *tokens: int, dc: str = "dc1", rack: str = "r1") -> RingNode:
    state = NodeState.NORMAL if tokens else NodeState.NONE
    return RingNode(node_id, dc, rack, state, tuple(sorted(tokens)))


def simple(factor: int) -> Replication:
    return replication_of(SIMPLE, {"replication_factor": factor})


def network(**factors: int) -> Replication:
    return replication_of(NETWORK_TOPOLOGY, factors)


def cluster(nodes: Iterable[RingNode], replication: Replication) -> RingState:
    return ring_state(nodes, {KS: replication})


def in_a_row(count: int, racks: int = 1) -> list[RingNode]:
    """Nodes 1 … count, node i with token 100·i, racks r1, r2, … in turn."""
    return [member(number, 100 * number, rack=f"r{(number - 1) % racks + 1}") for number in range(1, count + 1)]


def finished(state: RingState, operation: Operation) -> RingState:
    state = accepted(state, operation)
    for _ in range(3):
        state = advanced(state, operation.operation_id)
    return state


def reads(state: RingState, keyspace: str = KS) -> dict[tuple[int, int], set[int]]:
    return as_sets(state.placements[state.keyspaces[keyspace]].reads)


def writes(state: RingState, keyspace: str = KS) -> dict[tuple[int, int], set[int]]:
    return as_sets(state.placements[state.keyspaces[keyspace]].writes)


def as_sets(assignment: Assignment) -> dict[tuple[int, int], set[int]]:
    return {(start, end): set(nodes) for start, end, nodes in assignment.ranges()}
