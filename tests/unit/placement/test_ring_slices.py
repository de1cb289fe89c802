"""The placement of a ring slice by slice is that of the whole ring."""

from __future__ import annotations

import random

import numpy as np
import pytest
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move
from epochlake.placement.ring.placements import Assignment, Placements, calculated, same
from epochlake.placement.ring.replication import plan_replication_change
from epochlake.placement.ring.slices import slice_placements, slices_of
from epochlake.placement.ring.state import Operation, RingState
from epochlake.placement.ring.steps import accepted, advanced, retreated
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.slices import sliced
from tests.unit.placement.ring_oracles import PLACEMENT_FILES, cases, ring_of_case, settings_of_case
from tests.unit.placement.ring_rings import KS, cluster, in_a_row, member, network, simple

CASES = cases(*PLACEMENT_FILES)


def joined(state: RingState, replication: Replication, count: int) -> Placements:
    """What slices say, put together."""
    ring = state.ring()
    parts = [
        slice_placements(ring, replication, begin, end, state.operations.values())
        for begin, end in slices_of(ring, count)
    ]
    ends = [high for _, high in parts]
    assert ends[-1] == MIN_TOKEN
    assert [part.reads.starts[0] for part, _ in parts] == [MIN_TOKEN, *ends[:-1]]
    return Placements(*(together([getattr(part, side) for part, _ in parts]) for side in ("reads", "writes")))


def together(parts: list[Assignment]) -> Assignment:
    width = max(part.replicas.shape[1] for part in parts)
    rows = [np.pad(p.replicas, ((0, 0), (0, width - p.replicas.shape[1])), constant_values=-1) for p in parts]
    return Assignment(np.concatenate([part.starts for part in parts]), np.concatenate(rows))


@sliced(at_least=6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_slices_of_an_oracle_case_are_its_placement(case: dict) -> None:
    ring = ring_of_case(case)
    for replication in settings_of_case(case):
        whole = calculated(ring, replication)
        for count in (1, 3, len(whole.starts)):
            parts = [slice_placements(ring, replication, *span)[0].reads for span in slices_of(ring, count)]
            found = together(parts)
            assert found.starts.tolist() == whole.starts.tolist()
            assert found.replicas.tolist() == whole.replicas.tolist()


@pytest.mark.parametrize("replication", [simple(3), network(dc1=3, dc2=2), network(dc1=1), network(dc1=5)])
def test_slices_of_a_ring_that_is_longer_than_the_first_window_are_its_placement(replication: Replication) -> None:
    """Racks that stand together, so that walks leave the window; a node with a single token, far from all others."""
    chance = random.Random(4)
    nodes = [
        member(
            number,
            *(number * 2**58 + chance.randrange(2**57) for _ in range(60)),
            dc=f"dc{number % 2 + 1}",
            rack=f"r{number // 5}",
        )
        for number in range(12)
    ]
    state = cluster([*nodes, member(50, MAX_TOKEN, dc="dc2", rack="alone")], replication)
    for count in (1, 7, 40):
        assert same(joined(state, replication, count).reads, state.placements[replication].reads)


def plans(state: RingState) -> list[Operation]:
    return [
        plan_join(state, "join", 20, [150, 420]),
        plan_leave(state, "leave", 3, force=True),
        plan_move(state, "move", 2, [650]),
        plan_replication_change(state, "more", KS, simple(4)),
    ]


def test_slices_with_an_operation_in_flight_have_what_its_steps_have_done() -> None:
    state = cluster([*in_a_row(7, racks=3), member(20)], simple(3))
    for plan in plans(state):
        after = accepted(state, plan)
        while after.operations:
            for replication, placements in after.placements.items():
                for count in (1, 3, 8):
                    found = joined(after, replication, count)
                    assert same(found.reads, placements.reads), (plan, count)
                    assert same(found.writes, placements.writes), (plan, count)
            before, after = after, advanced(after, plan.operation_id)
        back = retreated(before, plan.operation_id)
        (replication,) = plan.deltas
        assert same(joined(back, replication, 4).writes, back.placements[replication].writes)


def test_two_operations_in_flight_are_both_in_the_slices() -> None:
    state = cluster([*in_a_row(12), member(20), member(21)], simple(2))
    both = accepted(state, plan_join(state, "a", 20, [150]))
    both = accepted(both, plan_join(both, "b", 21, [750]))
    both = advanced(advanced(both, "b"), "b")
    for count in (1, 5, 12):
        found = joined(both, simple(2), count)
        assert same(found.reads, both.placements[simple(2)].reads)
        assert same(found.writes, both.placements[simple(2)].writes)


def test_a_ring_without_tokens_is_one_slice_that_nobody_holds() -> None:
    state = cluster([member(1)], simple(3))
    found = joined(state, simple(3), 4)
    assert found.reads.starts.tolist() == [MIN_TOKEN]
    assert found.reads.replicas.shape == (1, 0)
