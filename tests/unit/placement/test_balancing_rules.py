"""Placement rules of the balancer: tables that may be on some nodes only."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from epochlake.placement.balancing.model import Cause, ClusterLoad, Obstacle, Role
from epochlake.placement.balancing.planner import plan_moves
from epochlake.placement.balancing.reasons import move_reasons, stay_reasons
from epochlake.placement.errors import InvalidRequest

from tests.support.slices import sliced, some
from tests.unit.placement.balancing_clusters import (
    Outline,
    after,
    allocated,
    load_of,
    most_in_a_rack,
    nodes_of,
    random_cluster,
    shared_nodes,
)


def ruled(load: ClusterLoad, nodes_of_table: dict[int, list[int]]) -> ClusterLoad:
    """The load where some tables may be on some nodes only."""
    allowed = np.ones((int(load.tablet_table.max()) + 1, len(load.node_rack)), bool)
    for table, nodes in nodes_of_table.items():
        allowed[table] = np.isin(np.arange(len(load.node_rack)), nodes)
    return msgspec.structs.replace(load, table_nodes=allowed)


def misplaced(load: ClusterLoad) -> np.ndarray:
    """Rows of the replicas on nodes that their table may not use."""
    assert load.table_nodes is not None
    return np.flatnonzero(~load.table_nodes[load.tablet_table[load.replica_tablet], nodes_of(load)])


def two_tables() -> ClusterLoad:
    """Two tables of 32 tablets with three replicas on six nodes in three racks."""
    racks = (0, 1, 2, 0, 1, 2)
    return load_of(Outline(racks), allocated(racks, 64, 3, 2, ()), table=np.repeat([0, 1], 32))


def test_a_table_goes_to_the_nodes_that_its_rule_allows_and_the_others_make_room() -> None:
    load = ruled(two_tables(), {0: [3, 4, 5]})
    plan = plan_moves(load)
    done = after(load, plan)
    assert len(misplaced(done)) == 0
    table, node = done.tablet_table[done.replica_tablet], nodes_of(done)
    assert np.bincount(node[table == 0], minlength=6).tolist() == [0, 0, 0, 32, 32, 32]
    assert np.bincount(node, minlength=6).tolist() == [32] * 6
    forced = load.tablet_table[load.replica_tablet[plan.replica]] == 0
    assert set(plan.cause[forced].tolist()) == {Cause.RULE}
    reasons, which = move_reasons(load, plan, [f"n{n}" for n in range(6)])
    assert reasons[which[int(np.flatnonzero(forced)[0])]].startswith("placement rules: node n")


def test_a_rule_that_leaves_too_few_nodes_moves_what_it_can_and_says_what_stays() -> None:
    load = ruled(two_tables(), {0: [3, 4]})
    plan = plan_moves(load)
    done = after(load, plan)
    stays = plan.stay_replica[plan.stay_replica >= 0]
    assert sorted(misplaced(done).tolist()) == sorted(stays.tolist())
    assert set(plan.stay_why[plan.stay_replica >= 0].tolist()) == {Obstacle.PLACEMENT_RULE}
    reasons, _ = stay_reasons(load, plan, list(range(6)))
    assert "which the placement rules of its table exclude" in reasons[0]
    assert len(plan_moves(done)) == 0


def test_a_node_that_drains_gives_its_replicas_to_nodes_that_the_rules_allow() -> None:
    racks = (0, 1, 2, 0, 1, 2, 0)
    load = load_of(
        Outline(racks, role=(0, 0, 0, int(Role.DRAINING), 0, 0, 0)),
        allocated(racks[3:6], 16, 3, 2, ()) + 6,
        table=np.zeros(16, np.int64),
    )
    load = ruled(load, {0: [3, 4, 5, 6]})
    plan = plan_moves(load)
    assert set(load.volume_node[plan.target].tolist()) == {6}
    assert set(plan.cause.tolist()) == {Cause.DRAIN}
    assert 3 not in nodes_of(after(load, plan))


@sliced(at_least=2)
@pytest.mark.parametrize("change", ["none", "doubled", "one", "drained"])
def test_rules_are_kept_racks_are_never_loosened_and_a_second_plan_brings_nothing_new(change: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(change)])
    for _ in range(some(8, 4)):
        load = random_cluster(rng, change)
        tables = int(load.tablet_table.max()) + 1
        rules = {}
        for table in rng.choice(tables, min(tables, 3), replace=False).tolist():
            rules[table] = np.flatnonzero(rng.random(len(load.node_rack)) < 0.7).tolist()
        load = ruled(load, rules)
        plan = plan_moves(load)
        done = after(load, plan)
        assert (most_in_a_rack(done) <= most_in_a_rack(load)).all()
        assert shared_nodes(done) == 0
        kept = set(plan.stay_replica[plan.stay_replica >= 0].tolist())
        assert set(misplaced(done).tolist()) <= kept
        assert not set(misplaced(done).tolist()) - set(misplaced(load).tolist())
        assert len(plan_moves(done)) == 0


def test_rules_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="table_nodes has the shape"):
        ClusterLoad.of(
            node_rack=[0],
            volume_node=[0],
            volume_capacity=[1],
            tablet_table=[1],
            replica_tablet=[0],
            replica_volume=[0],
            replica_size=[1],
            table_nodes=[[True]],
        )
