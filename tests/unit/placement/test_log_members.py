"""Which nodes keep copies of the log: as many as the cluster asks for, apart from each other, with few changes."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import msgspec
import pytest
from epochlake.placement.log_members import Candidate, choose_members, member_count
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("nodes", "count"),
    [(0, 0), (1, 1), (2, 1), (3, 3), (5, 3), (6, 5), (100, 5), (101, 10), (5_000, 10)],
)
def test_members_are_as_many_as_the_size_of_the_cluster_asks_for(nodes: int, count: int) -> None:
    assert member_count(nodes) == count


places = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans())
clusters = st.lists(places, min_size=1, max_size=7).map(
    lambda drawn: [
        Candidate(f"n{number}", datacenter, rack, f"/disks/{number}", is_member)
        for number, (datacenter, rack, is_member) in enumerate(drawn)
    ]
)


def unevenness(chosen: tuple[Candidate, ...] | list[Candidate]) -> tuple[int, int]:
    datacenters = Counter(one.datacenter for one in chosen)
    racks = Counter((one.datacenter, one.rack) for one in chosen)
    return sum(count**2 for count in datacenters.values()), sum(count**2 for count in racks.values())


@given(clusters, st.integers(1, 10))
def test_no_choice_is_spread_better_and_none_that_is_spread_alike_keeps_more_members(
    candidates: list[Candidate], count: int
) -> None:
    chosen = choose_members(candidates, count)
    assert len(chosen) == min(count, len(candidates))
    every = combinations(candidates, len(chosen))
    assert (*unevenness(chosen), -kept(chosen)) == min((*unevenness(one), -kept(one)) for one in every)


def kept(chosen: tuple[Candidate, ...] | list[Candidate]) -> int:
    return sum(one.is_member for one in chosen)


@given(clusters, st.integers(1, 10), st.randoms(use_true_random=False))
def test_the_same_are_chosen_whoever_asks_and_nothing_changes_once_they_are_members(
    candidates: list[Candidate], count: int, dice: random.Random
) -> None:
    chosen = choose_members(candidates, count)
    assert choose_members(dice.sample(candidates, len(candidates)), count) == chosen
    now = [msgspec.structs.replace(one, is_member=one in chosen) for one in candidates]
    assert [one.name for one in choose_members(now, count)] == [one.name for one in chosen]


def test_a_node_that_joins_a_rack_with_a_member_changes_nothing() -> None:
    members = [Candidate(f"n{number}", "dc1", f"r{number}", f"/{number}", True) for number in (1, 2, 3)]
    assert choose_members([Candidate("n0", "dc1", "r1", "/0"), *members], 3) == members
