"""Whoever begins what a plan begins with, and plans again while that is under way, comes to an end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
import pytest
from epochlake.placement.balancing.beginning import begun_first
from epochlake.placement.balancing.model import BalancingPolicy, ClusterLoad, Hold, Ints, Plan
from epochlake.placement.balancing.planner import plan_moves

from tests.support.slices import some

Begin = Callable[[ClusterLoad, Plan, BalancingPolicy], Ints]


class Endless(Exception):
    pass


def cluster(racks: Sequence[int], sizes: Sequence[int], nodes: Sequence[tuple[int, ...]]) -> ClusterLoad:
    """A node in each of `racks`; each tablet has a size, and the nodes of its replicas."""
    replicas = [(tablet, node) for tablet, on in enumerate(nodes) for node in on]
    return ClusterLoad.of(
        node_rack=racks,
        volume_node=list(range(len(racks))),
        volume_capacity=[10**12] * len(racks),
        tablet_table=[0] * len(sizes),
        replica_tablet=[tablet for tablet, _ in replicas],
        replica_volume=[node for _, node in replicas],
        replica_size=[sizes[tablet] for tablet, _ in replicas],
    )


def small_cluster(chance: random.Random) -> ClusterLoad:
    """Up to three racks with up to three nodes each, a few tablets of very different sizes, some of them empty."""
    racks = [rack for rack in range(chance.randint(1, 3)) for _ in range(chance.randint(1, 3))]
    sizes = [chance.choice([1, 3900, chance.randint(3000, 10_000)]) for _ in range(chance.randint(2, 10))]
    of_rack = [[node for node, of in enumerate(racks) if of == rack] for rack in range(max(racks) + 1)]
    return cluster(racks, sizes, [tuple(map(chance.choice, of_rack)) for _ in sizes])


def moves_until_the_end(
    load: ClusterLoad, streams: int, begin: Begin, ends: Callable[[int], int], shared: int = 0
) -> int:
    """How many tablets begin to move until none does. Raises Endless.

    `ends`: how many of those that are under way end before the next plan, oldest first. `shared`: the bytes of a stream
    that several tablets share.
    """
    policy = BalancingPolicy(streams_per_volume=streams, shared_stream_bytes=shared)
    placed = load.replica_volume.copy()
    under_way: list[tuple[int, int, int]] = []
    begun = 0
    while begun <= 6 * len(placed):
        moving = [replica for replica, _, _ in under_way]
        hold = np.full(len(load.tablet_table), Hold.FREE, np.int8)
        hold[load.replica_tablet[moving]] = Hold.IN_TRANSITION
        busy_out, busy_in = (Counter(move[end] for move in streams_of(under_way, shared)) for end in (1, 2))
        volumes = range(len(load.volume_node))
        seen = msgspec.structs.replace(
            load,
            replica_volume=placed.copy(),
            tablet_hold=hold,
            busy_out=np.array([busy_out[volume] for volume in volumes]),
            busy_in=np.array([busy_in[volume] for volume in volumes]),
        )
        plan = plan_moves(seen, policy)
        first = begin(seen, plan, policy)
        assert len({*first.tolist()}) == len(first) <= len(plan)
        before = len(under_way)
        for row in first.tolist():
            move = int(plan.replica[row]), int(plan.source[row]), int(plan.target[row])
            under_way.append(move)
            placed[move[0]] = move[2]
        for volume, count in Counter(end for move in streams_of(under_way, shared) for end in move[1:]).items():
            assert count <= streams, f"{count} streams at volume {volume}"
        begun += len(first)
        if not under_way:
            return begun
        del under_way[: max(1, ends(before)) if not len(first) else ends(before)]
    raise Endless


def streams_of(under_way: list[tuple[int, int, int]], shared: int) -> Collection[tuple[int, int, int]]:
    """The moves that are under way; where streams are shared one for each way."""
    return {move[1:]: move for move in under_way}.values() if shared else under_way


@pytest.mark.parametrize("shared", [0, 12_000])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_small_clusters_come_to_rest_whatever_ends_first(streams: int, shared: int, seed: int) -> None:
    for number in range(some(100, 10)):
        chance = random.Random(f"{seed} {number}")
        load = small_cluster(chance)
        try:
            moves_until_the_end(load, streams, begun_first, lambda count: chance.randint(0, count), shared)  # noqa: B023
        except Endless:
            pytest.fail(f"cluster {number} goes to and fro: {load}")


TO_AND_FRO = [
    ([3900, 3900, 5263, 3900, 3988, 1, 1, 3900, 5167], [1, 1, 1, 1, 1, 1, 0, 0, 1]),
    ([3900, 8241, 4354, 5339, 5931, 1, 1, 3900], [0, 0, 1, 0, 0, 1, 1, 0]),
    ([1, 4979, 1, 1, 3900, 3900], [1, 1, 0, 1, 1, 1]),
    ([6861, 3900, 1, 9772, 7925, 1], [0, 0, 0, 0, 0, 0]),
]
"""Sizes of tablets, and on which of two nodes each is: what some began with led back, again and again."""


def first_wave(load: ClusterLoad, plan: Plan, policy: BalancingPolicy) -> Ints:
    return np.flatnonzero(plan.wave == 1)


@pytest.mark.parametrize(("sizes", "nodes"), TO_AND_FRO)
def test_a_wave_that_would_lead_back_is_not_begun(sizes: list[int], nodes: list[int]) -> None:
    load = cluster([0, 0], sizes, [(node,) for node in nodes])
    with pytest.raises(Endless):
        moves_until_the_end(load, 1, first_wave, lambda count: count)
    assert 0 < moves_until_the_end(load, 1, begun_first, lambda count: count) <= len(sizes)
