"""Natural replicas of whole rings, against the oracle cases and against a plain walk."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.strategies import (
    NETWORK_TOPOLOGY,
    SIMPLE,
    first_distinct,
    natural_replicas,
    replication_of,
)
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN, Location, Ring, ends_of, ring_of

from tests.unit.placement.ring_oracles import PLACEMENT_FILES, cases

CASES = cases(*PLACEMENT_FILES)


def ranges(ring: Ring, strategy: str, options: dict[str, int]) -> list[list[Any]]:
    replicas = natural_replicas(ring, replication_of(strategy, options))
    starts = ring.starts.tolist()
    return [
        [start, end, [node for node in row if node >= 0]]
        for start, end, row in zip(starts, ends_of(ring.starts).tolist(), replicas.tolist(), strict=True)
    ]


def test_the_oracles_hold_52_placement_cases() -> None:
    assert len(CASES) == 52


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_replicas_and_their_order_are_those_of_the_oracle(case: dict[str, Any]) -> None:
    joined = [node for node in case["nodes"] if node["state"] == "JOINED"]
    ring = ring_of(
        {node["id"]: node["tokens"] for node in joined},
        {node["id"]: Location(node["dc"], node["rack"]) for node in joined},
    )
    for keyspace in case["keyspaces"]:
        options = {name: int(factor) for name, factor in keyspace["replication"].items()}
        assert ranges(ring, keyspace["strategy"], options) == keyspace["ranges"], keyspace["name"]


def walk(keys: list[int], start: int, count: int) -> list[int]:
    met: list[int] = []
    offsets: list[int] = []
    for offset in range(len(keys)):
        key = keys[(start + offset) % len(keys)]
        if key not in met and len(met) < count:
            met.append(key)
            offsets.append(offset)
    return offsets


@pytest.mark.parametrize("seed", range(60))
def test_the_first_distinct_keys_are_those_that_a_walk_meets(seed: int) -> None:
    random_source = random.Random(seed)
    kinds = random_source.randint(1, 9)
    keys = [random_source.choice([0, random_source.randrange(kinds)]) for _ in range(random_source.randint(1, 60))]
    count = random_source.randint(0, len(set(keys)))
    found = first_distinct(np.array(keys, dtype=np.int32), count)
    assert found.tolist() == [walk(keys, start, count) for start in range(len(keys))], f"seed {seed}"


def test_a_rack_with_one_token_in_a_ring_of_many_costs_no_walk_of_the_whole_ring_per_token() -> None:
    keys = np.arange(200_000, dtype=np.int32) % 2
    keys[100_000] = 2
    found = first_distinct(keys, 3)
    assert found[0].tolist() == [0, 1, 100_000]
    assert found[100_001].tolist() == [0, 1, 199_999]


def test_an_empty_ring_has_no_ranges() -> None:
    ring = ring_of({}, {})
    assert len(ring.starts) == 0
    assert natural_replicas(ring, replication_of(SIMPLE, {"replication_factor": 3})).shape == (0, 0)


def test_a_node_without_tokens_counts_neither_as_node_nor_as_rack() -> None:
    places = {1: Location("dc1", "r1"), 2: Location("dc1", "r1"), 3: Location("dc1", "r2")}
    ring = ring_of({1: [0], 2: [10], 3: []}, places)
    assert ranges(ring, NETWORK_TOPOLOGY, {"dc1": 2})[0] == [MIN_TOKEN, 0, [1, 2]]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({1: [5], 2: [5]}, "token 5 is given to node 1 and to node 2"),
        ({1: [MAX_TOKEN + 1]}, "no signed 64-bit number"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(tokens: dict[int, list[int]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ring_of(tokens, {1: Location("dc1", "r1"), 2: Location("dc1", "r1")})


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("OldStrategy", {}, "is not known"),
        (SIMPLE, {"dc1": 3}, "nothing else"),
        (NETWORK_TOPOLOGY, {"dc1": -1}, "0 or more"),
    ],
)
def test_a_replication_setting_that_cannot_be_is_refused(strategy: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        replication_of(strategy, options)
