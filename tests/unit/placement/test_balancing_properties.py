"""Plans for random clusters: what always holds, whatever the load."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import msgspec
import numpy as np
import pytest
from epochlake.placement.balancing.model import BalancingPolicy, Role
from epochlake.placement.balancing.planner import plan_moves

from tests.support.slices import sliced, some
from tests.unit.placement.balancing_clusters import (
    after,
    most_in_a_rack,
    nodes_of,
    random_cluster,
    replicas_per_node,
    shared_nodes,
)

CHANGES = ("none", "doubled", "one", "drained")
CLUSTERS = some(8, 5)


@sliced(at_least=2)
@pytest.mark.parametrize("change", CHANGES)
def test_utilisation_of_nodes_ends_within_one_percent_or_one_tablet(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS):
        load = random_cluster(rng, change)
        plan = plan_moves(load)
        held = np.bincount(nodes_of(after(load, plan)), load.replica_size, len(load.node_rack))
        active = load.node_role == Role.ACTIVE
        share = plan.share_bytes[active]
        used = held[active] / share
        assert np.ptp(used) <= max(0.01, float((load.replica_size.max() / share).max())) + 1e-9


@sliced(at_least=2)
@pytest.mark.parametrize("change", CHANGES)
def test_shares_follow_capacity_where_racks_leave_the_choice(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS):
        load = random_cluster(rng, change)
        plan = plan_moves(load)
        width = np.bincount(load.volume_node, load.volume_capacity, len(load.node_rack))
        everything = load.replica_size.sum()
        assert plan.share_bytes.sum() == pytest.approx(everything)
        for rack in np.unique(load.node_rack):
            mine = (load.node_rack == rack) & (load.node_role == Role.ACTIVE)
            level = plan.share_bytes[mine] / width[mine]
            one_of_each = load.replica_size.sum() / np.bincount(load.replica_tablet)[0]
            assert np.ptp(level) <= 1e-6 * level.max() or plan.share_bytes[mine].max() >= one_of_each * (1 - 1e-6)


@sliced(at_least=2)
@pytest.mark.parametrize("change", CHANGES)
def test_volumes_of_a_node_end_within_one_tablet_by_number_and_by_bytes(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS):
        load = random_cluster(rng, change)
        done = after(load, plan_moves(load))
        nodes, active = len(load.node_rack), load.node_role == Role.ACTIVE
        volumes = len(load.volume_node)
        number = np.bincount(done.replica_volume, minlength=volumes).reshape(nodes, -1)[active]
        held = np.bincount(done.replica_volume, done.replica_size, volumes).reshape(nodes, -1)[active]
        assert np.ptp(number, axis=1).max() <= 1
        assert (np.ptp(held, axis=1) <= np.maximum(load.replica_size.max(), 0.01 * held.mean(axis=1)) + 1).all()


@sliced(at_least=2)
@pytest.mark.parametrize("change", CHANGES)
def test_racks_are_never_doubled_and_nodes_never_shared(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS):
        load = random_cluster(rng, change)
        done = after(load, plan_moves(load))
        assert (most_in_a_rack(done) <= most_in_a_rack(load)).all()
        assert shared_nodes(done) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_racks_are_not_doubled_between_waves_either(change: str, seed: int) -> None:
    """Within a wave the moves may end in any order; here, one by one as they are listed."""
    rng = np.random.default_rng(seed)
    for _ in range(2):
        load = random_cluster(rng, change)
        plan = plan_moves(load)
        volume = load.replica_volume.copy()
        rack_of = load.node_rack[load.volume_node]
        allowed = most_in_a_rack(load)
        for row, target in zip(plan.replica.tolist(), plan.target.tolist(), strict=True):
            volume[row] = target
            tablet = load.replica_tablet[row]
            racks = rack_of[volume[load.replica_tablet == tablet]]
            assert np.bincount(racks).max() <= allowed[tablet]


def test_draining_empties_the_node(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3 * CLUSTERS):
        load = random_cluster(rng, "drained")
        done = after(load, plan_moves(load))
        assert np.array(replicas_per_node(done))[load.node_role == Role.DRAINING].sum() == 0


@sliced(at_least=2)
@pytest.mark.parametrize("change", CHANGES)
def test_planning_again_after_a_plan_gives_an_empty_plan(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS):
        load = random_cluster(rng, change)
        assert len(plan_moves(after(load, plan_moves(load)))) == 0


@sliced(at_least=2)
@pytest.mark.parametrize("change", ["none", "doubled", "one"])
def test_no_node_ends_further_from_its_share_than_the_worst_was_before(change: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS):
        load = random_cluster(rng, change)
        plan = plan_moves(load)
        width = plan.share_bytes
        off = [
            np.abs(np.bincount(nodes_of(state), load.replica_size, len(width)) / width - 1).max()
            for state in (load, after(load, plan))
        ]
        assert off[1] <= max(off[0], BalancingPolicy().bytes_tolerance / 2) + 1e-9


@sliced(at_least=2)
@pytest.mark.parametrize("streams", [1, 2, 5])
def test_no_wave_has_more_streams_at_a_volume_than_allowed_nor_two_moves_of_a_tablet(streams: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERS // 2):
        load = random_cluster(rng, "doubled")
        plan = plan_moves(load, BalancingPolicy(streams_per_volume=streams, shared_stream_bytes=0))
        for ends, limit in ((np.concatenate([plan.source, plan.target]), streams),):
            _, busy = np.unique(np.stack([np.tile(plan.wave, 2), ends]), axis=1, return_counts=True)
            assert busy.max(initial=0) <= limit
        _, moves = np.unique(np.stack([plan.wave, load.replica_tablet[plan.replica]]), axis=1, return_counts=True)
        assert moves.max(initial=0) <= 1


@sliced(at_least=2)
@pytest.mark.parametrize("streams", [1, 2, 5])
def test_small_tablets_that_go_the_same_way_share_a_stream_and_large_ones_do_not(streams: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shared = 0
    for _ in range(CLUSTERS // 2):
        load = random_cluster(rng, "doubled")
        policy = BalancingPolicy(streams_per_volume=streams, shared_stream_bytes=int(3 * load.replica_size.mean()))
        by_themselves = msgspec.structs.replace(policy, shared_stream_bytes=0)
        plan, alone = (plan_moves(load, one) for one in (policy, by_themselves))
        assert {*zip(plan.replica.tolist(), plan.target.tolist(), strict=True)} == {
            *zip(alone.replica.tolist(), alone.target.tolist(), strict=True)
        }
        assert plan.wave.max(initial=0) <= alone.wave.max(initial=0)
        _, moves = np.unique(np.stack([plan.wave, load.replica_tablet[plan.replica]]), axis=1, return_counts=True)
        assert moves.max(initial=0) <= 1
        # What goes one way in one wave has to fit into so many streams, whichever tablet shares with which.
        ways: dict[tuple[int, int, int], list[float]] = defaultdict(list)
        for move in range(len(plan)):
            way = (int(plan.wave[move]), int(plan.source[move]), int(plan.target[move]))
            ways[way].append(float(load.replica_size[plan.replica[move]]))
        busy: Counter[tuple[int, int]] = Counter()
        for (wave, source, target), sizes in ways.items():
            large = sum(size > policy.shared_stream_bytes for size in sizes)
            small = [size for size in sizes if size <= policy.shared_stream_bytes]
            least = large + math.ceil(sum(small) / policy.shared_stream_bytes) if small else large
            busy[(wave, source)] += least
            busy[(wave, target)] += least
            shared += len(sizes) > least
        assert max(busy.values(), default=0) <= streams
    assert shared


def test_the_same_load_gives_the_same_plan(seed: int) -> None:
    load = random_cluster(np.random.default_rng(seed), "doubled")
    first, second = plan_moves(load), plan_moves(load)
    assert np.array_equal(first.replica, second.replica)
    assert np.array_equal(first.target, second.target)
    assert np.array_equal(first.wave, second.wave)
