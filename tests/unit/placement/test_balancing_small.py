"""Plans for small clusters, as a coordinator without Spark asks for them: the sensible thing, case by case."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from epochlake.placement.balancing.model import BalancingPolicy, Cause, ClusterLoad, Hold, Obstacle, Role
from epochlake.placement.balancing.planner import plan_moves
from epochlake.placement.errors import InvalidRequest

from tests.unit.placement.balancing_clusters import (
    GIB,
    Outline,
    after,
    allocated,
    load_of,
    most_in_a_rack,
    nodes_of,
    replicas_per_node,
)

A, D, X, M, N = Role.ACTIVE, Role.DRAINING, Role.EXCLUDED, Role.MAINTENANCE, Role.NO_STATISTICS


def grown(first: tuple[int, ...], later: tuple[int, ...], tablets: int = 16, **options: tuple[int, ...]) -> ClusterLoad:
    """RF 3 tablets allocated on nodes in the racks `first`, and further empty nodes in the racks `later`."""
    return load_of(Outline(first + later, **options), allocated(first, tablets, 3, 2, ()))


@pytest.mark.parametrize(
    ("first", "later", "tablets", "replicas"),
    [
        ((0, 1, 2), (3,), 16, [12, 12, 12, 12]),  # a rack of its own: it takes from all
        ((0, 1, 2), (2,), 16, [16, 16, 8, 8]),  # with three racks, only its neighbour can give
        ((0, 1, 2), (2, 1), 16, [16, 8, 8, 8, 8]),
        ((0, 0, 0), (0,), 64, [48, 48, 48, 48]),
        ((0, 1, 2), (0, 1, 2), 8, [4, 4, 4, 4, 4, 4]),
        ((0, 0, 1, 1), (2, 2), 64, [32, 32, 32, 32, 32, 32]),
    ],
)
def test_new_nodes_get_their_share_and_no_more_moves_than_that(
    first: tuple[int, ...], later: tuple[int, ...], tablets: int, replicas: list[int]
) -> None:
    load = grown(first, later, tablets)
    plan = plan_moves(load)
    between_nodes = load.volume_node[plan.source] != load.volume_node[plan.target]
    assert replicas_per_node(after(load, plan)) == replicas
    assert between_nodes.sum() == sum(replicas[len(first) :])


def test_a_fourth_and_then_a_fifth_node_join_one_after_the_other() -> None:
    load = grown((0, 1, 2), (3, 3))
    four = msgspec.structs.replace(load, node_role=np.array([A, A, A, A, X], np.int8))
    load = msgspec.structs.replace(after(four, plan_moves(four)), node_role=load.node_role)
    assert replicas_per_node(load) == [12, 12, 12, 12, 0]
    done = after(load, plan_moves(load))
    # A rack holds a tablet once: two nodes in one of four racks share at most 16, and the others hold the rest evenly.
    assert sorted(replicas_per_node(done)[:3]) == [10, 11, 11]
    assert replicas_per_node(done)[3:] == [8, 8]


def test_empty_tablets_are_spread_by_number() -> None:
    load = grown((0, 1, 2), (3,))
    load = msgspec.structs.replace(load, replica_size=np.zeros(48))
    counts = replicas_per_node(after(load, plan_moves(load)))
    assert max(counts) - min(counts) <= 2


def test_a_cluster_in_balance_is_left_alone() -> None:
    load = load_of(Outline((0, 1, 2, 0, 1, 2)), allocated((0, 1, 2, 0, 1, 2), 64, 3, 2, ()))
    assert len(plan_moves(load)) == 0


def test_a_cluster_without_tablets_or_without_nodes_has_an_empty_plan() -> None:
    assert len(plan_moves(load_of(Outline((0, 1, 2)), np.zeros((0, 3), np.int64)))) == 0
    assert len(plan_moves(load_of(Outline(()), np.zeros((0, 3), np.int64)))) == 0


def test_a_difference_of_less_than_the_tolerance_moves_nothing() -> None:
    sizes = np.full(1000, GIB)
    sizes[:4] = 2 * GIB  # 0.4 % more on the first of two nodes
    replicas = np.repeat([0, 1], 500)[:, None]
    load = load_of(Outline((0, 0), volumes=1), replicas, sizes)
    assert len(plan_moves(load)) == 0
    assert len(plan_moves(load, BalancingPolicy(bytes_tolerance=0.001))) > 0


def test_utilisation_counts_relative_to_capacity_and_weight() -> None:
    load = load_of(Outline((0, 0, 0), volumes=1, capacity=(1, 2, 3)), np.zeros((60, 1), np.int64))
    assert replicas_per_node(after(load, plan_moves(load))) == [10, 20, 30]
    load = msgspec.structs.replace(load, node_weight=np.array([3.0, 1.5, 1.0]))
    assert replicas_per_node(after(load, plan_moves(load))) == [20, 20, 20]


def test_draining_comes_before_balancing_and_says_so() -> None:
    load = grown((0, 1, 2, 0, 1, 2), (0,), 32, role=(D, A, A, A, A, A, A))
    plan = plan_moves(load)
    done = after(load, plan)
    assert replicas_per_node(done) == [0, 16, 16, 16, 16, 16, 16]
    drained = np.flatnonzero(plan.cause == Cause.DRAIN)
    assert set(load.volume_node[plan.source[drained]].tolist()) == {0}
    assert len(drained) == 16
    assert (np.diff(plan.wave) >= 0).all()


def test_a_draining_node_is_not_kept_waiting_by_balancing_of_the_same_tablet() -> None:
    """Whoever drains takes nothing but that from the plan: the first wave must have some of it."""
    load = ClusterLoad.of(
        node_rack=[0, 1, 2, 0, 1, 2, 0, 2, 1],
        node_role=[A, D, A, A, A, A, A, A, A],
        volume_node=range(9),
        volume_capacity=[GIB] * 9,
        tablet_table=[0, 0, 0, 0],
        replica_tablet=[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],
        replica_volume=[5, 4, 3, 4, 2, 3, 1, 5, 3, 2, 8, 3],
        replica_size=[6082, 6082, 6082, 4575, 4575, 4575, 1552, 3059, 3059, 4568, 1554, 4568],
    )
    plan = plan_moves(load)
    assert 1 in plan.source[plan.wave == 1]


def test_the_last_node_of_a_rack_cannot_drain_when_every_other_rack_holds_a_replica() -> None:
    load = grown((0, 1, 2), (1, 2), role=(D, A, A, A, A))
    plan = plan_moves(load)
    assert not (load.volume_node[plan.source] == 0).any()
    stuck = plan.stay_node == 0
    assert stuck.sum() == 16
    assert set(plan.stay_why[stuck].tolist()) == {Obstacle.NO_TARGET}


def test_a_drained_rack_moves_to_a_rack_that_holds_no_replica() -> None:
    load = grown((0, 1, 2), (3,), role=(D, A, A, A))
    assert replicas_per_node(after(load, plan_moves(load))) == [0, 16, 16, 16]


@pytest.mark.parametrize(
    ("role", "why"),
    [
        (X, Obstacle.NODE_EXCLUDED),
        (M, Obstacle.NODE_MAINTENANCE),
        (N, Obstacle.NODE_NO_STATISTICS),
    ],
)
def test_some_nodes_are_no_target_and_the_plan_says_why(role: Role, why: Obstacle) -> None:
    load = grown((0, 1, 2), (3,), role=(A, A, A, role))
    plan = plan_moves(load)
    assert len(plan) == 0
    assert plan.stay_node.tolist() == [3]
    assert plan.stay_why.tolist() == [why]


def test_a_node_in_maintenance_keeps_what_it_has_also_when_it_has_too_much() -> None:
    load = grown((0, 1, 2), (3,), role=(A, A, M, A))
    done = after(load, plan_moves(load))
    assert replicas_per_node(done)[2] == 16
    assert replicas_per_node(done)[3] > 8


@pytest.mark.parametrize("hold", [Hold.IN_TRANSITION, Hold.PENDING_REQUEST])
def test_held_tablets_stay_and_on_a_draining_node_the_plan_says_why(hold: Hold) -> None:
    load = grown((0, 1, 2), (0,), role=(D, A, A, A))
    held = np.zeros(16, np.int8)
    held[:5] = hold
    load = msgspec.structs.replace(load, tablet_hold=held)
    plan = plan_moves(load)
    assert set(load.replica_tablet[plan.replica].tolist()).isdisjoint(range(5))
    assert replicas_per_node(after(load, plan)) == [5, 16, 16, 11]
    assert sorted(load.replica_tablet[plan.stay_replica].tolist()) == list(range(5))
    assert len(set(plan.stay_why.tolist())) == 1


def test_streams_in_flight_count_in_the_first_wave() -> None:
    load = grown((0, 1, 2), (2,))
    into = np.zeros(8, np.int64)
    into[6:] = 2  # both volumes of the new node are busy
    load = msgspec.structs.replace(load, busy_in=into)
    assert plan_moves(load).wave.min() == 2


def test_doubled_racks_are_relieved_first_when_a_rack_joins() -> None:
    """How many depends on the order of tablets: of a new table those on the same nodes are neighbours."""
    relieved = []
    for order in range(6):
        replicas = allocated((0, 0, 1, 1), 64, 3, 2, ())
        shuffled = np.random.default_rng(order).permutation(64) if order else np.arange(64)
        load = load_of(Outline((0, 0, 1, 1, 2, 2)), replicas[shuffled])
        assert (most_in_a_rack(load) == 2).all()
        relieved.append((most_in_a_rack(after(load, plan_moves(load))) == 1).mean())
    assert min(relieved) > 0.6
    assert np.mean(relieved) > 0.75


def test_replicas_never_leave_their_datacenter() -> None:
    load = grown((0, 1, 2), (0, 1, 2))
    load = msgspec.structs.replace(load, node_datacenter=np.array(["a", "a", "a", "b", "b", "b"]))
    assert len(plan_moves(load)) == 0


def test_datacenters_are_balanced_each_by_itself() -> None:
    replicas = np.concatenate([allocated((0, 1), 20, 2, 1, ()), 4 + allocated((0, 1), 20, 2, 1, ())], axis=1)
    load = load_of(Outline((0, 1, 0, 1, 0, 1, 0, 1), volumes=1), replicas)
    load = msgspec.structs.replace(load, node_datacenter=np.repeat(["a", "b"], 4))
    assert replicas_per_node(after(load, plan_moves(load))) == [10] * 8


def test_uneven_volumes_are_evened_out_inside_the_node() -> None:
    replicas = np.zeros((20, 1), np.int64)
    load = load_of(Outline((0,), volumes=4), replicas)
    plan = plan_moves(load)
    assert np.bincount(after(load, plan).replica_volume.astype(np.int64)).tolist() == [5, 5, 5, 5]
    assert len(plan) == 15
    assert set(plan.cause.tolist()) == {Cause.VOLUMES}


def test_a_table_on_few_nodes_is_spread_though_the_nodes_are_even() -> None:
    table = np.repeat([0, 1], 60)
    replicas = np.where(table == 0, np.arange(120) % 3, 3 + np.arange(120) % 3)[:, None]
    load = load_of(Outline((0,) * 6, volumes=1), replicas, table=table)
    plan = plan_moves(load)
    done = after(load, plan)
    assert set(plan.cause.tolist()) == {Cause.TABLE}
    assert replicas_per_node(done) == [20] * 6
    held = np.bincount(nodes_of(done)[table == 0], minlength=6)
    assert held.min() >= 5
    assert held.max() <= 15
    assert len(plan_moves(done)) == 0


def test_tables_that_were_even_stay_even_when_nodes_join() -> None:
    table = np.repeat(np.arange(10), 48)
    replicas = np.concatenate([allocated((0, 1, 2) * 2, 48, 3, 1, ()) for _ in range(10)])
    load = load_of(Outline((0, 1, 2) * 4, volumes=1), replicas, table=table)
    done = after(load, plan_moves(load))
    cells = np.bincount(nodes_of(done) * 10 + table[done.replica_tablet], minlength=120)
    assert set(cells.tolist()) == {12}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"volume_capacity": [1, 0]}, "above zero"),
        ({"replica_volume": [0, 7]}, "replica_volume names rows from 0 to 7, there are 2"),
        ({"replica_tablet": [1, 0]}, "sorted by tablet"),
        ({"replica_size": [1]}, "need one length"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(change: dict, message: str) -> None:
    columns = {
        "node_rack": [0, 1],
        "volume_node": [0, 1],
        "volume_capacity": [1, 1],
        "tablet_table": [0, 0],
        "replica_tablet": [0, 1],
        "replica_volume": [0, 1],
        "replica_size": [1, 1],
    }
    with pytest.raises(InvalidRequest, match=message):
        ClusterLoad.of(**{**columns, **change})
