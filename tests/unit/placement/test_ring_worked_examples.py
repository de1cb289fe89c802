"""The tables of seed 002, "Bootstrap" and "Decommission", row by row.

Nodes A (token 100), B (200), C (300); RF 2; X joins with token 150, and is decommissioned again. The seed shows a part
of the ring; D, with token 0, stands for the rest of it, so that (0, 100] is a range.
"""

from __future__ import annotations

import msgspec
import pytest
from epochlake.placement.ring.operations import plan_join, plan_leave
from epochlake.placement.ring.placements import NO_TOKENS, applied
from epochlake.placement.ring.state import Operation, RingState
from epochlake.placement.ring.steps import accepted, advanced

from tests.unit.placement.ring_rings import KS, as_sets, cluster, member, reads, simple, writes

NAMES = {"A": 1, "B": 2, "C": 3, "D": 4, "X": 5}
RANGES = {"(0, 100]": (0, 100), "(100, 150]": (100, 150), "(150, 200]": (150, 200), "(100, 200]": (100, 200)}

BOOTSTRAP = [
    ("before", 0, {"(0, 100]": "AB", "(100, 200]": "BC"}, {"(0, 100]": "AB", "(100, 200]": "BC"}),
    (
        "split",
        1,
        {"(0, 100]": "AB", "(100, 150]": "BC", "(150, 200]": "BC"},
        {"(0, 100]": "AB", "(100, 150]": "BC", "(150, 200]": "BC"},
    ),
    (
        "X writes",
        2,
        {"(0, 100]": "AB", "(100, 150]": "BC", "(150, 200]": "BC"},
        {"(0, 100]": "ABX", "(100, 150]": "BCX", "(150, 200]": "BC"},
    ),
    (
        "X reads",
        3,
        {"(0, 100]": "AX", "(100, 150]": "XB", "(150, 200]": "BC"},
        {"(0, 100]": "ABX", "(100, 150]": "BCX", "(150, 200]": "BC"},
    ),
    (
        "superseded replicas go",
        4,
        {"(0, 100]": "AX", "(100, 150]": "XB", "(150, 200]": "BC"},
        {"(0, 100]": "AX", "(100, 150]": "XB", "(150, 200]": "BC"},
    ),
]
# The seed's last two tables, without X and merged, are one epoch here; the one between is tested by itself below.
DECOMMISSION = [
    ("before", 1, *BOOTSTRAP[4][2:]),
    (
        "takers write",
        2,
        {"(0, 100]": "AX", "(100, 150]": "XB", "(150, 200]": "BC"},
        {"(0, 100]": "AXB", "(100, 150]": "XBC", "(150, 200]": "BC"},
    ),
    (
        "takers read",
        3,
        {"(0, 100]": "AB", "(100, 150]": "BC", "(150, 200]": "BC"},
        {"(0, 100]": "AXB", "(100, 150]": "XBC", "(150, 200]": "BC"},
    ),
    ("X gone and merged", 4, *BOOTSTRAP[0][2:]),
]
START = [member(1, 100), member(2, 200), member(3, 300), member(4, 0), member(5)]


def bootstrapped(steps: int) -> RingState:
    state = cluster(START, simple(2))
    return after(state, plan_join(state, "bootstrap", NAMES["X"], [150]), steps)


def decommissioned(steps: int) -> RingState:
    state = bootstrapped(4)
    return after(state, plan_leave(state, "decommission", NAMES["X"]), steps)


def after(state: RingState, operation: Operation, steps: int) -> RingState:
    for done in range(steps):
        state = advanced(state, operation.operation_id) if done else accepted(state, operation)
    return state


def assert_table(placement: dict[tuple[int, int], set[int]], table: dict[str, str]) -> None:
    shown = {name: placement.get(RANGES[name]) for name in table}
    assert shown == {name: {NAMES[letter] for letter in letters} for name, letters in table.items()}


@pytest.mark.parametrize(("table", "steps", "read", "written"), BOOTSTRAP, ids=lambda value: str(value)[:20])
def test_bootstrap_goes_as_in_seed_002(table: str, steps: int, read: dict[str, str], written: dict[str, str]) -> None:
    state = bootstrapped(steps)
    assert_table(reads(state), read)
    assert_table(writes(state), written)


@pytest.mark.parametrize(("table", "steps", "read", "written"), DECOMMISSION, ids=lambda value: str(value)[:20])
def test_decommission_goes_as_in_seed_002(
    table: str, steps: int, read: dict[str, str], written: dict[str, str]
) -> None:
    state = decommissioned(steps)
    assert_table(reads(state), read)
    assert_table(writes(state), written)


def test_the_last_step_of_the_decommission_takes_x_out_of_the_writes_before_it_merges() -> None:
    state = decommissioned(3)
    finish = state.operations["decommission"].deltas[state.keyspaces[KS]][3]
    narrowed = applied(state.placements[state.keyspaces[KS]], msgspec.structs.replace(finish, merge=NO_TOKENS))
    table = {"(0, 100]": "AB", "(100, 150]": "BC", "(150, 200]": "BC"}
    assert_table(as_sets(narrowed.reads), table)
    assert_table(as_sets(narrowed.writes), table)


def test_decommission_undoes_the_bootstrap() -> None:
    assert reads(decommissioned(4)) == reads(cluster(START, simple(2)))


def test_the_guarded_range_of_the_consistency_section_goes_from_abc_to_bcx() -> None:
    """Seed 002, "Consistency Guarantees": RF 3, X takes over from A; epochs 100 to 103."""
    nodes = [member(1, 500), member(2, 200), member(3, 300), member(5)]
    state = cluster(nodes, simple(3))
    operation = plan_join(state, "bootstrap", NAMES["X"], [150])
    views = []
    for steps in range(1, 5):
        now = after(state, operation, steps)
        low = min(low for low, high in reads(now) if high == 150)
        views.append((reads(now)[low, 150], writes(now)[low, 150]))
    old, new = {1, 2, 3}, {2, 3, 5}
    assert views == [(old, old), (old, old | new), (new, old | new), (new, new)]
