"""Which plans are rejected and why, and what the steps of accepted ones do."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from epochlake.placement.errors import InvalidRequest, InvariantViolated
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move, plan_remove, plan_replace
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import NodeState, Operation, RingState, ring_state
from epochlake.placement.ring.steps import accepted, advanced, cancelled, settled_placements, settled_tokens
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.streaming import streams

from tests.unit.placement.ring_rings import KS, cluster, finished, in_a_row, member, network, reads, simple, writes

NEW = 20
SIX = cluster([*in_a_row(6, racks=3), member(NEW), member(21)], network(dc1=2))
JOINING = accepted(SIX, plan_join(SIX, "join", NEW, [150]))
LEAVING = accepted(SIX, plan_leave(SIX, "leave", 6, force=True))
THREE = cluster([*in_a_row(3, racks=3), member(NEW)], network(dc1=3))
FOUR = cluster(in_a_row(4, racks=3), network(dc1=3))
ONE = cluster([member(1, 0), member(NEW)], simple(1))
SINGLE = cluster([*in_a_row(3), member(NEW)], simple(1))
Plan = Callable[[], Operation]

REJECTED: list[tuple[str, Plan, str, str]] = [
    ("an unknown node", lambda: plan_join(SIX, "x", 99, [5]), "unknown-node", "node 99 is to join"),
    ("a member that joins", lambda: plan_join(SIX, "x", 1, [5]), "node-state", "it is normal"),
    ("a stranger that leaves", lambda: plan_leave(SIX, "x", NEW), "node-state", "it is none"),
    ("a token of another node", lambda: plan_join(SIX, "x", NEW, [300]), "tokens-taken", "belong to node 3"),
    (
        "a token that a joiner takes",
        lambda: plan_join(JOINING, "x", 21, [150]),
        "tokens-taken",
        "will belong to node 20",
    ),
    ("a token that is none", lambda: plan_join(SIX, "x", NEW, [2**63]), "tokens-taken", "64-bit"),
    ("a move to where it is", lambda: plan_move(SIX, "x", 1, [100]), "tokens-unchanged", "owns just these"),
    ("a locked range", lambda: plan_leave(JOINING, "x", 2, force=True), "ranges-locked", "join of node 20"),
    ("a node at work", lambda: plan_move(JOINING, "x", NEW, [5]), "node-busy", "join of node 20"),
    ("a node that leaves", lambda: plan_replace(LEAVING, "x", 6, 21), "node-busy", "leave of node 6"),
    ("a name in use", lambda: plan_leave(JOINING, "join", 5, force=True), "operation-exists", "this name"),
    ("the last node", lambda: plan_leave(ONE, "x", 1, force=True), "last-node", "the last one"),
    ("too few nodes", lambda: plan_leave(THREE, "x", 1), "below-replication", "3 nodes that stay"),
    ("the last of a rack", lambda: plan_leave(FOUR, "x", 2), "rack-needed", "dc1/r2"),
    ("the last of a rack, dead", lambda: plan_remove(FOUR, "x", 3), "rack-needed", "dc1/r3"),
    ("the only replica, dead", lambda: plan_remove(SINGLE, "x", 2), "only-replica", r"\(100, 200\]"),
    ("a rebuild from nobody", lambda: plan_rebuild(SINGLE, "x", 2), "no-source", r"\(100, 200\]"),
    ("a rebuild from nowhere", lambda: plan_rebuild(SIX, "x", 2, "dc9"), "no-source", "in datacenter dc9"),
    (
        "two steps at once",
        lambda: plan_replication_change(SIX, "x", KS, network(dc1=4)),
        "replication-step",
        "'dc1': 3} first",
    ),
    (
        "more replicas than nodes",
        lambda: plan_replication_change(THREE, "x", KS, network(dc1=4)),
        "below-replication",
        "has 3 nodes",
    ),
    (
        "replication beside a join",
        lambda: plan_replication_change(JOINING, "x", KS, network(dc1=3)),
        "ranges-locked",
        "join of node 20",
    ),
    (
        "the replication of nothing",
        lambda: plan_replication_change(SIX, "x", "no", network(dc1=3)),
        "unknown-keyspace",
        "keyspace no",
    ),
]


@pytest.mark.parametrize(("what", "plan", "code", "reason"), REJECTED, ids=[row[0] for row in REJECTED])
def test_what_cannot_work_is_rejected_before_anything_changes(what: str, plan: Plan, code: str, reason: str) -> None:
    with pytest.raises(PlanRejected, match=reason) as caught:
        plan()
    assert caught.value.code == code


def test_a_rejection_names_the_operation_in_the_way() -> None:
    with pytest.raises(PlanRejected) as caught:
        plan_leave(JOINING, "x", 2, force=True)
    assert caught.value.operation_id == "join"


def test_leaves_in_flight_count_as_gone_when_another_node_asks_to_leave() -> None:
    state = cluster(in_a_row(10), simple(9))
    lone = cluster([*in_a_row(10), *(member(40 + n, 10_000 + 1000 * n, dc="dc2") for n in range(5))], network(dc2=1))
    assert plan_leave(lone, "x", 1).departing == {1}
    state = accepted(state, plan_leave(state, "first", 1))
    with pytest.raises(PlanRejected, match="9 nodes that stay") as caught:
        plan_leave(state, "second", 5)
    assert caught.value.operation_id == "first"


@pytest.mark.parametrize("tokens", [[], [5, 5]])
def test_tokens_are_given_and_each_of_them_once(tokens: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        plan_join(SIX, "x", NEW, tokens)


def test_an_operation_that_is_not_in_flight_cannot_go_on() -> None:
    with pytest.raises(PlanRejected, match="operation x is not in flight"):
        advanced(SIX, "x")
    with pytest.raises(PlanRejected, match="in flight: operation join"):
        cancelled(JOINING, "x")


def test_a_plan_that_was_made_for_another_ring_is_not_applied() -> None:
    operation = plan_join(SIX, "x", NEW, [150])
    shrunk = finished(SIX, plan_leave(SIX, "leave", 2, force=True))
    with pytest.raises(InvariantViolated, match="the plan is for another placement"):
        accepted(shrunk, operation)


def test_the_first_node_of_a_ring_is_placed_at_once() -> None:
    empty = cluster([member(1)], simple(3))
    state = accepted(empty, plan_join(empty, "first", 1, [7]))
    assert reads(state) == {(-(2**63), 7): {1}, (7, -(2**63)): {1}}
    assert reads(cancelled(state, "first")) == reads(empty)


STEPWISE: list[tuple[str, RingState, Plan]] = [
    ("join", SIX, lambda: plan_join(SIX, "x", NEW, [150, 450])),
    ("leave", SIX, lambda: plan_leave(SIX, "x", 3, force=True)),
    ("remove", SIX, lambda: plan_remove(SIX, "x", 3, force=True)),
    ("move", SIX, lambda: plan_move(SIX, "x", 3, [450, 550])),
    ("replace", SIX, lambda: plan_replace(SIX, "x", 3, NEW)),
    ("replace with other tokens", SIX, lambda: plan_replace(SIX, "x", 3, NEW, [350, 10])),
    ("rebuild", SIX, lambda: plan_rebuild(SIX, "x", 3)),
    ("more replicas", SIX, lambda: plan_replication_change(SIX, "x", KS, network(dc1=3))),
    ("fewer replicas", SIX, lambda: plan_replication_change(SIX, "x", KS, network(dc1=1))),
    ("another strategy", SIX, lambda: plan_replication_change(SIX, "x", KS, simple(2))),
]


@pytest.mark.parametrize(("what", "state", "plan"), STEPWISE, ids=[row[0] for row in STEPWISE])
def test_cancelling_after_any_step_restores_everything(what: str, state: RingState, plan: Plan) -> None:
    now = accepted(state, plan())
    for _ in range(3):
        back = cancelled(now, "x")
        assert (back.nodes, back.keyspaces, back.operations) == (state.nodes, state.keyspaces, {})
        assert reads(back) == writes(back) == reads(state)
        assert set(back.placements) == set(state.placements)
        now = advanced(now, "x")


@pytest.mark.parametrize(("what", "state", "plan"), STEPWISE, ids=[row[0] for row in STEPWISE])
def test_what_is_settled_is_foretold_and_is_that_of_a_fresh_cluster(what: str, state: RingState, plan: Plan) -> None:
    now = accepted(state, plan())
    foretold, tokens = settled_placements(now), settled_tokens(now)
    end = finished(state, plan())
    assert end.tokens() == tokens
    assert reads(end) == writes(end) == reads(ring_state(end.nodes.values(), end.keyspaces))
    expected = {(low, high): set(nodes) for low, high, nodes in next(iter(foretold.values())).reads.ranges()}
    assert reads(end) == expected


def test_node_states_follow_the_steps() -> None:
    def states(operation: Operation) -> list[NodeState]:
        now = accepted(SIX, operation)
        seen = [now.nodes[operation.node_id].state]
        for _ in range(3):
            now = advanced(now, "x")
            seen.append(now.nodes[operation.node_id].state)
        return seen

    assert states(plan_remove(SIX, "x", 3, force=True)) == ["normal", "removing", "removing", "left"]
    assert states(plan_rebuild(SIX, "x", 3)) == ["normal", "rebuilding", "rebuilding", "normal"]
    assert states(plan_replace(SIX, "x", 3, NEW)) == ["none", "replacing", "replacing", "normal"]


def test_a_replaced_node_has_left_and_says_who_replaced_it() -> None:
    end = finished(SIX, plan_replace(SIX, "x", 3, NEW))
    assert (end.nodes[3].state, end.nodes[3].tokens, end.nodes[3].replaced_by) == (NodeState.LEFT, (), NEW)
    assert end.nodes[NEW].tokens == (300,)


def test_a_node_that_is_rebuilt_gets_writes_but_serves_no_reads_until_it_is_filled() -> None:
    state = advanced(accepted(SIX, plan_rebuild(SIX, "x", 3)), "x")
    assert all(3 not in nodes for nodes in reads(state).values())
    assert writes(state) == reads(SIX)
    assert reads(advanced(state, "x")) == reads(SIX)


def test_a_join_streams_each_range_from_the_replica_that_gives_it_up() -> None:
    state = cluster([*in_a_row(4), member(NEW)], simple(2))
    (found,) = streams(plan_join(state, "x", NEW, [150])).values()
    rows = zip(found.starts.tolist(), found.ends.tolist(), found.targets.tolist(), found.givers.tolist(), strict=True)
    top = -(2**63)
    assert sorted(rows) == [(top, 100, NEW, 2), (100, 150, NEW, 3), (400, top, NEW, 2)]


def test_a_replica_that_is_added_has_sources_but_nobody_gives_it_up() -> None:
    (found,) = streams(plan_replication_change(SIX, "x", KS, network(dc1=3))).values()
    assert len(found.targets) == 7
    assert set(found.givers.tolist()) == {-1}
    assert found.share == pytest.approx(1.0)


def test_a_keyspace_whose_replication_changes_leaves_its_fellows_alone() -> None:
    both = ring_state(in_a_row(5), {"one": simple(2), "two": simple(2)})
    now = accepted(both, plan_replication_change(both, "x", "one", simple(3)))
    assert reads(advanced(advanced(now, "x"), "x"), "two") == reads(both, "two")
    beside = accepted(now, plan_replication_change(now, "y", "two", simple(1)))
    end = beside
    for name in ("x", "y"):
        for _ in range(3):
            end = advanced(end, name)
    assert end.keyspaces == {"one": simple(3), "two": simple(1)}
    assert set(end.placements) == {simple(3), simple(1)}


def test_nothing_joins_while_a_replication_changes() -> None:
    changing = accepted(SIX, plan_replication_change(SIX, "change", KS, network(dc1=3)))
    with pytest.raises(PlanRejected, match="change of the replication of keyspace ks") as caught:
        plan_join(changing, "x", NEW, [150])
    assert caught.value.code == "ranges-locked"
    with pytest.raises(PlanRejected) as caught:
        plan_replication_change(changing, "x", KS, network(dc1=3))
    assert caught.value.code == "keyspace-busy"


PATHS = [
    (network(dc1=3), network(dc1=5), [{"dc1": 4}, {"dc1": 5}]),
    (network(dc1=3), network(dc1=3, dc2=2), [{"dc1": 3, "dc2": 1}, {"dc1": 3, "dc2": 2}]),
    (network(dc1=1, dc2=2), network(dc1=1), [{"dc1": 1, "dc2": 1}, {"dc1": 1}]),
    (network(dc1=2), network(dc1=1, dc2=1), [{"dc1": 2, "dc2": 1}, {"dc1": 1, "dc2": 1}]),
    (simple(2), network(dc1=3), [{"replication_factor": 3}, {"dc1": 3}]),
    (network(dc1=2, dc2=1), simple(2), [{"replication_factor": 3}, {"replication_factor": 2}]),
    (network(dc1=2), network(dc1=3, dc2=0), [{"dc1": 3, "dc2": 0}]),
    (network(dc1=2), network(dc1=2), []),
]


@pytest.mark.parametrize(("current", "target", "expected"), PATHS)
def test_the_way_to_another_replication_adds_replicas_before_it_takes_any(
    current: Replication, target: Replication, expected: list[dict[str, int]]
) -> None:
    path = replication_path(current, target)
    assert [dict(step.factors) for step in path] == expected
    assert not path or path[-1] == target


def test_a_keyspace_keeps_a_replica_somewhere() -> None:
    with pytest.raises(InvalidRequest, match="loses its rows"):
        replication_path(network(dc1=1), network(dc1=0))


def test_operations_on_disjoint_ranges_go_on_together_in_any_order() -> None:
    base = cluster([*in_a_row(20), member(NEW)], simple(2))
    state = accepted(base, plan_leave(base, "leave", 15))
    state = accepted(state, plan_join(state, "join", NEW, [550]))
    foretold = settled_placements(state)
    orders = [["leave"] * 3 + ["join"] * 3, ["join"] * 3 + ["leave"] * 3, ["join", "leave"] * 3]
    for order in orders:
        now = state
        for name in order:
            now = advanced(now, name)
        expected = msgspec.structs.replace(now, placements=foretold)
        assert reads(now) == writes(now) == reads(expected)
