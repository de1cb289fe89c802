"""`simulate` fills in the answers of the oracle documents, and says what is wrong with a malformed one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.tokens import MIN_TOKEN
from epochlake.placement.what_if.simulate import simulate

from tests.support.slices import sliced
from tests.unit.placement.ring_oracles import PLACEMENT_FILES, TRANSITION_FILES, cases, document, stripped

PLACEMENT_CASES = cases(*PLACEMENT_FILES)
TRANSITION_CASES = [case for case in cases(*TRANSITION_FILES) if not case["name"].startswith("GAP_")]
GAP_CASES = [case for case in cases("transitions_locks") if case["name"].startswith("GAP_")]


def test_the_oracles_hold_159_cases() -> None:
    assert len(PLACEMENT_CASES) + len(TRANSITION_CASES) + len(GAP_CASES) == 159


@pytest.mark.parametrize("case", PLACEMENT_CASES, ids=lambda case: case["name"])
def test_placement_cases_are_filled_in_exactly(case: dict[str, Any]) -> None:
    assert simulate(stripped(case)) == case


@sliced(at_least=35)
@pytest.mark.parametrize("case", TRANSITION_CASES, ids=lambda case: case["name"])
def test_transition_cases_are_filled_in(case: dict[str, Any]) -> None:
    answer = simulate(stripped(case))
    assert comparable(answer) == comparable(case)
    assert_owners_lead(answer)


def test_a_file_of_cases_is_answered_as_a_file_of_cases() -> None:
    source = document("transitions_hand")
    answer = simulate({**source, "cases": [stripped(case) for case in source["cases"]]})
    assert [comparable(case) for case in answer.pop("cases")] == [comparable(case) for case in source.pop("cases")]
    assert answer == source


def test_a_document_that_is_answered_already_is_answered_the_same_again() -> None:
    answer = simulate(stripped(TRANSITION_CASES[0]))
    assert simulate(answer) == answer


@pytest.mark.parametrize("case", GAP_CASES, ids=lambda case: case["name"])
def test_a_plan_that_replaces_a_node_which_another_hands_ranges_to_is_rejected(case: dict[str, Any]) -> None:
    answer = simulate(stripped(case))
    replaced = case["ops"][1]["replaced"]
    for step in answer["steps"]:
        assert step["result"] == ("success" if step["op"] == 0 else "rejected"), step
    reason = next(step["reason"] for step in answer["steps"] if step["op"] == 1)
    assert f"hands ranges to node {replaced}, which is itself being replaced" in reason
    assert "operation 0" in reason
    assert answer["settled"] is True
    assert answer["final_equivalent_to_fresh_calculation"] is True


def comparable(case: dict[str, Any]) -> dict[str, Any]:
    """Replicas and locks as sets, `same` written out; reasons of rejections are this project's own."""
    case = copy.deepcopy(case)
    for step in [case["start"], *case["steps"]]:
        reached = [step, step["cancel_here"]] if "cancel_here" in step else [step]
        for holder in reached:
            if "placements" in holder:
                holder["placements"] = {name: as_sets(value) for name, value in holder["placements"].items()}
        if "locks" in step:
            step["locks"] = {name: {tuple(pair) for pair in pairs} for name, pairs in step["locks"].items()}
        if "reason" in step:
            step["reason"] = ""
    return case


def as_sets(placement: dict[str, Any]) -> dict[str, Any]:
    writes = placement["reads"] if placement["writes"] == "same" else placement["writes"]
    sides = {"reads": placement["reads"], "writes": writes}
    return {side: [(low, high, frozenset(nodes)) for low, high, nodes in ranges] for side, ranges in sides.items()}


def assert_owners_lead(case: dict[str, Any]) -> None:
    owners = {token: node["id"] for node in case["nodes"] for token in node["tokens"]}
    for step in case["steps"]:
        if "tokens" in step:
            owners = {token: int(node) for node, tokens in step["tokens"].items() for token in tokens}
        for placement in step.get("placements", {}).values():
            for _, end, nodes in placement["reads"]:
                owner = owners.get(end, owners[min(owners)] if end == MIN_TOKEN and owners else None)
                assert owner not in nodes or nodes[0] == owner


SMALL: dict[str, Any] = {
    "nodes": [
        {"id": 1, "dc": "dc1", "rack": "r1", "state": "JOINED", "tokens": [0]},
        {"id": 2, "dc": "dc1", "rack": "r1", "state": "JOINED", "tokens": [100]},
        {"id": 3, "dc": "dc1", "rack": "r1", "state": "REGISTERED", "tokens": []},
    ],
    "keyspaces": [{"name": "ks", "strategy": "SimpleStrategy", "replication": {"replication_factor": 1}}],
    "ops": [{"op": "join", "node": 3, "tokens": [50]}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """SMALL with one value changed; a path is keys and positions joined by dots."""
    result = copy.deepcopy(SMALL)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = result
    for part in parents:
        target = target[part]
    target[last] = value
    return result


MALFORMED = [
    ("nodes", {}, r"document\.nodes: a list"),
    ("nodes.0.id", "one", r"nodes\[0\]\.id: a whole number"),
    ("nodes.1.id", 1, "same id"),
    ("nodes.0.tokens", [2**63], r"nodes\[0\]\.tokens\[0\]: .* 64-bit"),
    ("nodes.0.tokens", [100], r"document\.nodes: token 100 is given to node 1 and to node 2"),
    ("nodes.0.state", "HAPPY", r"nodes\[0\]\.state: 'HAPPY' is not one of REGISTERED, JOINED"),
    ("nodes.0.state", "REGISTERED", r"nodes\[0\]\.tokens: a node that is REGISTERED has no tokens"),
    ("keyspaces.0.strategy", "Other", r"keyspaces\[0\]: strategy 'Other'"),
    ("keyspaces.0.replication", {"replication_factor": -1}, r"keyspaces\[0\]: .*0 or more"),
    ("ops.0.op", "dance", r"ops\[0\]\.op: 'dance' is not one of join"),
    ("ops.0.node", 9, r"ops\[0\]: there is no node 9"),
    ("ops.0.tokens", [5, 5], r"ops\[0\]\.tokens: a token is given twice"),
    ("steps", [{"op": 3, "step": "PREPARE_JOIN"}], r"steps\[0\]\.op: there is no operation 3"),
    ("steps", [{"op": 0, "step": "PREPARE_LEAVE"}], r"steps\[0\]\.step: 'PREPARE_LEAVE' is no step of a join"),
    ("steps", [{"op": 0, "step": "MID_JOIN"}], r"steps\[0\]\.step: MID_JOIN of operation 0, which is not in flight"),
    (
        "steps",
        [{"op": 0, "step": "PREPARE_JOIN"}, {"op": 0, "step": "MID_JOIN"}],
        r"steps\[1\]\.step: MID_JOIN, but START comes next",
    ),
    ("start", {"placements": {"ks": {"reads": [[MIN_TOKEN, MIN_TOKEN, [1]]]}}}, r"start\.placements\.ks: not what"),
]


@pytest.mark.parametrize(("path", "value", "message"), MALFORMED, ids=lambda value: str(value)[:40])
def test_what_is_wrong_with_a_document_is_said_with_its_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        simulate(changed(path, value))


def test_without_steps_every_operation_runs_as_a_whole() -> None:
    answer = simulate(SMALL)
    assert [step["step"] for step in answer["steps"]] == ["PREPARE_JOIN", "START_JOIN", "MID_JOIN", "FINISH_JOIN"]
    assert answer["settled"] is True


def test_a_cancelled_operation_leaves_the_ring_as_it_was() -> None:
    steps = [{"op": 0, "step": f"{step}_JOIN"} for step in ("PREPARE", "START", "MID", "CANCEL")]
    answer = simulate({**SMALL, "steps": steps})
    assert answer["steps"][-1]["placements"] == answer["start"]["placements"]
    assert answer["steps"][-1]["node_states"]["3"] == "REGISTERED"


def test_bytes_that_would_move_follow_from_the_size_of_a_keyspace() -> None:
    sized = changed("keyspaces.0.bytes", 2**64)
    assert simulate(sized)["steps"][0]["bytes"] == {"ks": 50}


BEYOND_THE_ORACLES = [
    ({"op": "remove", "node": 2}, "rejected", "only replica"),
    ({"op": "remove", "node": 2, "force": True}, "success", "LEFT"),
    ({"op": "replace", "replaced": 2, "replacement": 3, "tokens": [70]}, "success", "JOINED"),
    ({"op": "rebuild", "node": 2}, "rejected", "no other replica"),
    (
        {
            "op": "change_replication",
            "keyspace": "ks",
            "strategy": "SimpleStrategy",
            "replication": {"replication_factor": 2},
        },
        "success",
        "REGISTERED",
    ),
]


@pytest.mark.parametrize(("op", "result", "shown"), BEYOND_THE_ORACLES, ids=lambda value: str(value)[:30])
def test_operations_that_the_oracles_do_not_know_are_answered_in_the_same_format(
    op: dict[str, Any], result: str, shown: str
) -> None:
    answer = simulate({**SMALL, "ops": [op]})
    first, last = answer["steps"][0], answer["steps"][-1]
    assert (first["result"], last["result"]) == (result, result)
    if result == "rejected":
        assert shown in first["reason"]
        return
    assert shown in last["node_states"].values()
    assert first["cancel_here"]["equivalent_to_start"] is True
    assert answer["settled"] is answer["final_equivalent_to_fresh_calculation"] is True
