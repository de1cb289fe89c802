"""Tokens allocated to joining nodes even ownership out."""

from __future__ import annotations

import random

import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.allocation import allocate_tokens, ownership
from epochlake.placement.ring.operations import plan_join
from epochlake.placement.ring.placements import calculated
from epochlake.placement.ring.state import RingState, ring_state
from epochlake.placement.ring.steps import accepted
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN

from tests.unit.placement.ring_rings import KS, cluster, member, network, simple

TOKENS = 8


def some_tokens(source: random.Random) -> tuple[int, ...]:
    return tuple(source.randint(MIN_TOKEN, MAX_TOKEN) for _ in range(TOKENS))


def uneven(source: random.Random, nodes: int, racks: int, replication: Replication) -> RingState:
    return cluster(
        [member(node, *some_tokens(source), rack=f"r{node % racks}") for node in range(nodes)],
        replication,
    )


def grown(state: RingState, additions: int, racks: int, source: random.Random | None) -> RingState:
    """The state with more nodes, their tokens at random from `source`, or allocated."""
    for node in range(len(state.nodes), len(state.nodes) + additions):
        rack = f"r{node % racks}"
        if source is None:
            tokens = allocate_tokens(state, "dc1", rack, TOKENS, state.keyspaces[KS])
        else:
            tokens = some_tokens(source)
        state = ring_state([*state.nodes.values(), member(node, *tokens, rack=rack)], state.keyspaces)
    return state


def spread(state: RingState) -> float:
    """How far the node that holds most is above the mean: 1.0 is even."""
    held = ownership(calculated(state.ring(), state.keyspaces[KS])).values()
    return max(held) * len(held) / sum(held)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("racks", "replication"), [(3, network(dc1=3)), (1, network(dc1=3)), (5, network(dc1=2)), (1, simple(2))]
)
def test_allocated_tokens_spread_ownership_better_than_random_ones(
    seed: int, racks: int, replication: Replication
) -> None:
    source = random.Random(seed)
    state = uneven(source, 6, racks, replication)
    allocated, at_random = grown(state, 12, racks, None), grown(state, 12, racks, source)
    assert spread(allocated) < spread(at_random), f"seed {seed}"


def test_on_average_the_most_loaded_node_is_less_than_half_as_far_above_the_mean_as_with_random_tokens() -> None:
    excess = {"allocated": 0.0, "at random": 0.0}
    for seed in range(20):
        source = random.Random(seed)
        state = uneven(source, 6, 3, network(dc1=3))
        excess["allocated"] += spread(grown(state, 12, 3, None)) - 1
        excess["at random"] += spread(grown(state, 12, 3, source)) - 1
    assert excess["allocated"] < 0.5 * excess["at random"], excess


def test_a_newcomer_takes_its_share_of_a_rack_that_holds_everything() -> None:
    state = uneven(random.Random(3), 9, 3, network(dc1=3))
    tokens = allocate_tokens(state, "dc1", "r0", TOKENS, state.keyspaces[KS])
    after = ring_state([*state.nodes.values(), member(9, *tokens, rack="r0")], state.keyspaces)
    assert ownership(calculated(after.ring(), after.keyspaces[KS]))[9] == pytest.approx(1 / 4, abs=0.001)


def test_a_ring_grown_from_nothing_is_even() -> None:
    state = grown(cluster([], network(dc1=3)), 12, 3, None)
    assert spread(state) < 1.1


def test_tokens_are_free_and_the_same_each_time_also_beside_a_join_in_flight() -> None:
    state = cluster([*uneven(random.Random(5), 4, 1, simple(2)).nodes.values(), member(50)], simple(2))
    state = accepted(state, plan_join(state, "join", 50, allocate_tokens(state, "dc1", "r0", TOKENS, simple(2))))
    tokens = allocate_tokens(state, "dc1", "r0", TOKENS, simple(2))
    taken = {token for node in state.nodes.values() for token in node.tokens} | set(state.operations["join"].tokens)
    assert len(set(tokens)) == TOKENS
    assert not taken & set(tokens)
    assert tokens == allocate_tokens(state, "dc1", "r0", TOKENS, simple(2))


def test_no_tokens_is_no_request() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        allocate_tokens(cluster([], simple(1)), "dc1", "r1", 0, simple(1))


def test_the_first_nodes_of_racks_share_the_ring_for_keyspaces_with_fewer_replicas_too() -> None:
    nodes = [member(0, *allocate_tokens(cluster([], network(dc1=3)), "dc1", "r0", TOKENS, network(dc1=3)), rack="r0")]
    for number in (1, 2):
        tokens = allocate_tokens(cluster(nodes, network(dc1=3)), "dc1", f"r{number}", TOKENS, network(dc1=3))
        nodes.append(member(number, *tokens, rack=f"r{number}"))
    shares = ownership(cluster(nodes, network(dc1=1)).placements[network(dc1=1)].reads)
    assert all(0.25 < shares[number] < 0.42 for number in range(3)), shares
