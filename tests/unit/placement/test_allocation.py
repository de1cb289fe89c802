"""Allocation of new tablets: distinct nodes, spread racks, shares by free capacity."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from epochlake.placement.errors import InvalidRequest, PlacementImpossible
from epochlake.placement.tablets.allocation import VolumeTable, allocate_tablets, apportion

from tests.support.slices import some

TIB = 1 << 40


def cluster(racks: list[int], volumes_per_node: int = 2, datacenter: str = "dc1", first: int = 0) -> VolumeTable:
    """One node per entry of `racks`, with equal volumes; volume ids and node ids count up from `first`."""
    count = len(racks) * volumes_per_node
    node = first + np.arange(count) // volumes_per_node
    names = [f"rack{racks[i // volumes_per_node]}" for i in range(count)]
    return VolumeTable.of(first + np.arange(count), node, [datacenter] * count, names, [TIB] * count)


def joined(*tables: VolumeTable) -> VolumeTable:
    return VolumeTable(*(np.concatenate([getattr(t, f) for t in tables]) for f in VolumeTable.__struct_fields__))


def lookup(table: VolumeTable, column: str, replicas: np.ndarray) -> np.ndarray:
    order = np.argsort(table.volume_id)
    return getattr(table, column)[order][np.searchsorted(table.volume_id[order], replicas)]


def most_per_group(groups: np.ndarray) -> int:
    """The largest number of equal values in a row."""
    return max(int(np.unique(row, return_counts=True)[1].max()) for row in groups)


CASES = [
    # tablets, replication factor, racks of the nodes
    (16, 3, [0, 1, 2]),
    (16, 3, [0, 1, 2, 2]),
    (1, 3, [0, 0, 0, 0, 0]),
    (100, 3, [0, 0, 0, 0, 0]),
    (100, 3, [0, 0, 0]),
    (64, 3, [0, 0, 1, 1]),
    (64, 4, [0, 1, 1, 1]),
    (37, 5, [0, 0, 1, 1, 1, 2, 2]),
    (1024, 2, [i % 5 for i in range(23)]),
    (0, 3, [0, 1, 2]),
]


@pytest.mark.parametrize(("tablets", "factor", "racks"), CASES)
def test_replicas_are_on_distinct_nodes_and_on_as_many_racks_as_there_are(
    tablets: int, factor: int, racks: list[int]
) -> None:
    table = cluster(racks)
    replicas = allocate_tablets(tablets, {"dc1": factor}, table)
    assert replicas.shape == (tablets, factor)
    assert replicas.dtype == np.int32
    nodes = lookup(table, "node_id", replicas)
    assert all(len(set(row)) == factor for row in nodes.tolist())
    names = lookup(table, "rack", replicas)
    assert all(len(set(row)) == min(factor, len(set(racks))) for row in names.tolist())


def test_with_more_replicas_than_racks_the_racks_get_as_even_a_number_as_their_nodes_allow() -> None:
    table = cluster([0, 0, 0, 1, 1, 1])
    names = lookup(table, "rack", allocate_tablets(50, {"dc1": 4}, table))
    assert most_per_group(names) == 2
    lone = cluster([0, 1, 1, 1])
    names = lookup(lone, "rack", allocate_tablets(50, {"dc1": 4}, lone))
    assert all(row.tolist().count("rack0") == 1 for row in names)


def test_equal_nodes_and_volumes_get_even_counts() -> None:
    table = cluster([i % 3 for i in range(12)], volumes_per_node=4)
    replicas = allocate_tablets(1001, {"dc1": 3}, table)
    nodes = np.bincount(lookup(table, "node_id", replicas).reshape(-1), minlength=12)
    volumes = np.bincount(replicas.reshape(-1), minlength=48)
    assert np.ptp(nodes) <= 1
    assert np.ptp(volumes) <= 1


def test_shares_follow_free_capacity_on_nodes_and_on_volumes() -> None:
    table = VolumeTable.of([0, 1, 2], [0, 0, 1], ["dc1"] * 3, ["r"] * 3, [4 * TIB, TIB, 5 * TIB], used=[0, 0, 2 * TIB])
    replicas = allocate_tablets(800, {"dc1": 1}, table)
    assert np.bincount(replicas.reshape(-1)).tolist() == [400, 100, 300]


def test_many_small_tables_fill_the_nodes_evenly_one_after_another() -> None:
    table = cluster([0, 0, 0, 0, 0], volumes_per_node=2)
    for _ in range(20):
        replicas = allocate_tablets(1, {"dc1": 3}, table)
        counts = table.replicas + np.bincount(replicas.reshape(-1), minlength=len(table))
        table = VolumeTable(*(counts if f == "replicas" else getattr(table, f) for f in VolumeTable.__struct_fields__))
    assert np.ptp(table.replicas) <= 1


def test_each_datacenter_gets_its_own_replicas_in_the_order_of_the_replication() -> None:
    table = joined(cluster([0, 1, 2], datacenter="east"), cluster([0, 1], datacenter="west", first=100))
    replicas = allocate_tablets(8, {"west": 2, "east": 3}, table)
    assert set(lookup(table, "datacenter", replicas[:, :2]).reshape(-1)) == {"west"}
    assert set(lookup(table, "datacenter", replicas[:, 2:]).reshape(-1)) == {"east"}


def test_the_same_input_gives_the_same_placement() -> None:
    table = cluster([i % 3 for i in range(9)])
    first, second = (allocate_tablets(256, {"dc1": 3}, table) for _ in range(2))
    assert np.array_equal(first, second)


def test_the_first_replica_of_a_tablet_is_on_every_rack_now_and_then() -> None:
    table = cluster([0, 1, 2])
    first = allocate_tablets(300, {"dc1": 3}, table)[:, 0]
    assert np.bincount(lookup(table, "node_id", first), minlength=3).min() > 60


def test_tablets_with_the_same_volumes_are_neighbours() -> None:
    sets = np.sort(allocate_tablets(1024, {"dc1": 2}, cluster([0, 1, 0, 1], volumes_per_node=1)), axis=1)
    changes = int((sets[1:] != sets[:-1]).any(axis=1).sum())
    assert changes == len(np.unique(sets, axis=0)) - 1 > 1


def test_a_node_shares_its_tablets_with_many_others() -> None:
    table = cluster([0] * 20, volumes_per_node=1)
    nodes = np.sort(allocate_tablets(2000, {"dc1": 2}, table), axis=1)
    assert len(np.unique(nodes, axis=0)) > 0.9 * (20 * 19 // 2)


def test_too_few_nodes_is_refused_with_the_datacenter_and_both_numbers() -> None:
    with pytest.raises(PlacementImpossible, match=r"asks for 3 replicas in datacenter 'dc1', which has 2 nodes"):
        allocate_tablets(8, {"dc1": 3}, cluster([0, 1]))
    with pytest.raises(PlacementImpossible, match=r"'dc9', which has 0 nodes .*dc1"):
        allocate_tablets(8, {"dc9": 1}, cluster([0, 1]))


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="negative"):
        allocate_tablets(-1, {"dc1": 1}, cluster([0]))
    with pytest.raises(InvalidRequest, match="negative"):
        allocate_tablets(1, {"dc1": -1}, cluster([0]))


def test_random_clusters_get_distinct_nodes_spread_racks_and_shares_within_one_replica_of_the_weights() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        racks = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
        factor = rng.randint(1, len(racks))
        tablets = rng.randint(1, 200)
        table = cluster(racks, volumes_per_node=rng.randint(1, 3))
        replicas = allocate_tablets(tablets, {"dc1": factor}, table)
        nodes = lookup(table, "node_id", replicas)
        assert most_per_group(nodes) == 1
        assert all(len(set(r)) == min(factor, len(set(racks))) for r in lookup(table, "rack", replicas).tolist())
        volumes = np.bincount(replicas.reshape(-1), minlength=len(table)).reshape(len(racks), -1)
        assert np.ptp(volumes, axis=1).max() <= 1


@pytest.mark.parametrize(
    ("total", "weights", "limit", "present", "shares"),
    [
        (10, [1.0, 1.0], 10, [0, 0], [5, 5]),
        (10, [3.0, 1.0], 10, [0, 0], [8, 2]),
        (10, [3.0, 1.0], 10, [9, 0], [7, 3]),
        (10, [9.0, 1.0], 6, [0, 0], [6, 4]),
        (3, [1.0, 1.0, 1.0, 1.0], 3, [5, 0, 0, 0], [0, 1, 1, 1]),
        (4, [0.0, 0.0], 2, [0, 0], [2, 2]),
    ],
)
def test_shares_follow_weights_up_to_the_limit_and_rounding_follows_what_is_there(
    total: int, weights: list[float], limit: int, present: list[int], shares: list[int]
) -> None:
    assert apportion(total, np.array(weights), limit, np.array(present)).tolist() == shares


def test_very_many_tablets_over_a_thousand_nodes_take_seconds() -> None:
    tablets = some(1_000_000, 100_000)
    table = cluster([i % 10 for i in range(1000)], volumes_per_node=4)
    start = time.process_time()
    replicas = allocate_tablets(tablets, {"dc1": 3}, table)
    assert time.process_time() - start < 60  # of a processor; it would be hours if it grew with the square
    assert np.ptp(np.bincount(replicas.reshape(-1), minlength=4000)) <= 1
