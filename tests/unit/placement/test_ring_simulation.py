"""The simulators pass on production code, and catch it when it is broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from epochlake.placement.ring import checks, movement, operations, strategies
from epochlake.placement.ring.movement import Movement
from epochlake.placement.ring.placements import NO_CHANGE, NO_DELTA, Assignment, Delta
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import Operation, RingState
from epochlake.placement.ring.steps import accepted, advanced, cancelled, retreated
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.simulation import quorums
from epochlake.placement.simulation.histories import STEPS, QuorumsDisjoint, simulate_quorums
from epochlake.placement.simulation.placements import (
    CONFIGURATIONS,
    SimulationFailure,
    SimulationSettings,
    simulate_placements,
)
from epochlake.placement.simulation.quorums import (
    RangeView,
    all_views,
    disjoint_in_history,
    disjoint_in_step,
    disjoint_quorums,
)
from msgspec.structs import replace

from tests.support.slices import sliced, some
from tests.unit.placement.ring_rings import KS, cluster, in_a_row, member, network, simple

SMALL = 18


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """What sound production has chosen must not hide what broken production chooses, nor the other way round."""
    strategies.chosen_before.cache_clear()
    yield
    strategies.chosen_before.cache_clear()


@sliced(at_least=4)
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: f"{c.operations}-{c.factor}-{c.datacenters}")
def test_random_range_movements_hold_every_invariant(configuration: SimulationSettings) -> None:
    nodes = max(SMALL, 3 * (configuration.factor + 1) + 6)
    for seed in range(1, some(2, 1) + 1):
        report = simulate_placements(replace(configuration, nodes=nodes), seed)
        assert report.nodes >= nodes
        assert report.done["advance"] > report.done["join"] > 0


def test_random_range_movements_with_many_tokens_a_node_hold_every_invariant() -> None:
    for seed in (1, 2):
        simulate_placements(SimulationSettings(operations=3, factor=3, datacenters=1, nodes=10, tokens=4), seed)


@sliced()
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_operations_at_once_that_are_often_cancelled_hold_every_invariant(seed: int) -> None:
    """One datacenter, as many racks as replicas: there plans on disjoint ranges depend on each other most."""
    report = simulate_placements(SimulationSettings(5, 3, 1, nodes=24, cancelling=0.1), seed)
    assert report.done["cancel"] > 20


def test_a_run_is_a_function_of_its_seed_and_configuration() -> None:
    configuration = SimulationSettings(operations=3, factor=2, datacenters=0, nodes=SMALL)
    assert simulate_placements(configuration, 7) == simulate_placements(configuration, 7)
    assert simulate_placements(configuration, 7) != simulate_placements(configuration, 8)


# Production broken on purpose. Each function takes what production computes and spoils it.


def without_split(old: Assignment, new: Assignment) -> Movement:
    return replace(SOUND_MOVEMENT(old, new), prepare=NO_DELTA)


def reads_before_writes(old: Assignment, new: Assignment) -> Movement:
    sound = SOUND_MOVEMENT(old, new)
    return replace(sound, start=sound.mid, mid=sound.start)


def without_racks(owners: np.ndarray, racks: np.ndarray, factor: int) -> np.ndarray:
    return strategies.first_distinct(owners, min(factor, len(np.unique(owners))))


def without_locks(state: RingState, asked: Operation) -> None:
    return None


def write_replica_dropped_early(old: Assignment, new: Assignment) -> Movement:
    sound = SOUND_MOVEMENT(old, new)
    early = Delta(sound.mid.split, sound.mid.reads, sound.finish.writes, sound.mid.merge)
    return replace(sound, mid=early, finish=replace(sound.finish, writes=NO_CHANGE))


SOUND_MOVEMENT = movement.movement
BROKEN: list[tuple[str, object, str, Callable[..., object], str]] = [
    ("the split is skipped", operations, "movement", without_split, "placed as the plan expects"),
    ("reads move before writes", operations, "movement", reads_before_writes, "reads of|no writers before"),
    ("the rack rule is wrong", strategies, "_one_datacenter", without_racks, "by the model"),
    ("a lock is forgotten", checks, "ranges_free", without_locks, "alters .* too|another placement"),
    ("a write replica goes a step early", operations, "movement", write_replica_dropped_early, "writes of"),
]


@pytest.mark.parametrize(("what", "module", "name", "broken", "message"), BROKEN, ids=[row[0] for row in BROKEN])
def test_the_placement_simulator_catches_production_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, what: str, module: object, name: str, broken: Callable[..., object], message: str
) -> None:
    monkeypatch.setattr(module, name, broken)
    found = first_failure(range(10))
    assert re.search(message, found.what)
    again = first_failure([found.seed])
    assert (again.step, again.what) == (found.step, found.what)


def first_failure(seeds: Iterable[int]) -> SimulationFailure:
    configuration = SimulationSettings(operations=5, factor=3, datacenters=1, nodes=SMALL, quorums=False)
    for seed in seeds:
        try:
            simulate_placements(configuration, seed)
        except SimulationFailure as failure:
            return failure
    raise AssertionError("the simulator has found nothing")


QUORUM_BREAKERS = [row for row in BROKEN if row[0] in ("reads move before writes", "a write replica goes a step early")]


@pytest.mark.parametrize(
    ("what", "module", "name", "broken", "message"), QUORUM_BREAKERS, ids=[row[0] for row in QUORUM_BREAKERS]
)
def test_the_quorum_simulator_catches_steps_that_are_broken(
    monkeypatch: pytest.MonkeyPatch, what: str, module: object, name: str, broken: Callable[..., object], message: str
) -> None:
    monkeypatch.setattr(module, name, broken)
    state = cluster([*in_a_row(6), member(20)], simple(3))
    history = steps_of(state, operations.plan_join(state, "x", 20, [150]))
    assert list(disjoint_in_history(history))


@pytest.mark.parametrize(
    ("what", "module", "name", "broken", "message"), QUORUM_BREAKERS, ids=[row[0] for row in QUORUM_BREAKERS]
)
def test_random_histories_of_quorums_catch_steps_that_are_broken_and_can_be_run_again(
    monkeypatch: pytest.MonkeyPatch, what: str, module: object, name: str, broken: Callable[..., object], message: str
) -> None:
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(QuorumsDisjoint) as found:
        list(map(simulate_quorums, range(20)))
    with pytest.raises(QuorumsDisjoint) as again:
        simulate_quorums(found.value.seed)
    assert str(again.value) == str(found.value)


def test_random_histories_keep_every_quorum_meeting_every_other() -> None:
    reports = [simulate_quorums(seed) for seed in range(1, 9)]
    assert all(report.steps == STEPS for report in reports)
    assert min(report.pairs for report in reports) > 50


def steps_of(state: RingState, operation: Operation) -> list[RingState]:
    history = [state, accepted(state, operation)]
    while history[-1].operations:
        history.append(advanced(history[-1], operation.operation_id))
    return history


def test_every_quorum_meets_every_other_through_every_kind_of_operation() -> None:
    for factor in (1, 2, 3, 4, 5):
        state = cluster([*in_a_row(7, racks=3), member(20), member(21, dc="dc2")], network(dc1=factor))
        plans = [
            operations.plan_join(state, "x", 20, [150, 420]),
            operations.plan_leave(state, "x", 3, force=True),
            operations.plan_move(state, "x", 2, [620]),
            operations.plan_replace(state, "x", 4, 20),
            operations.plan_replace(state, "x", 4, 21),
            *([plan_rebuild(state, "x", 5)] if factor > 1 else []),
        ]
        for plan in plans:
            assert list(disjoint_in_history(steps_of(state, plan))) == [], (factor, plan)


@pytest.mark.parametrize(
    ("current", "target"),
    [(network(dc1=2), network(dc1=5)), (network(dc1=3), network(dc2=3)), (simple(3), network(dc1=2, dc2=2))],
)
def test_every_quorum_meets_every_other_on_the_way_to_another_replication(
    current: Replication, target: Replication
) -> None:
    others = [member(30 + number, 100 * number + 50, dc="dc2") for number in range(1, 5)]
    history = [cluster([*in_a_row(6, racks=3), *others], current)]
    for step in replication_path(current, target):
        history += steps_of(history[-1], plan_replication_change(history[-1], "x", KS, step))[1:]
    assert list(disjoint_in_history(history)) == []
    assert history[-1].keyspaces[KS] == target


def test_cancelling_a_step_at_a_time_is_safe_where_going_all_the_way_back_at_once_is_not() -> None:
    state = cluster([*in_a_row(6), member(20)], simple(3))
    moved = advanced(advanced(accepted(state, operations.plan_join(state, "x", 20, [150])), "x"), "x")
    assert list(disjoint_in_history([moved, cancelled(moved, "x")]))
    back = [moved]
    while back[-1].operations:
        back.append(retreated(back[-1], "x"))
    assert len(back) == 4
    assert list(disjoint_in_history(back)) == []


A, B, C, X = 1, 2, 3, 4
OLD, NEW, BOTH = frozenset({A, B, C}), frozenset({B, C, X}), frozenset({A, B, C, X})
BOOTSTRAP = {
    100: RangeView(OLD, OLD, OLD, OLD),
    101: RangeView(OLD, BOTH, OLD, NEW),
    102: RangeView(NEW, BOTH, OLD, NEW),
    103: RangeView(NEW, NEW, NEW, NEW),
}


@pytest.mark.parametrize("epoch", [100, 101, 102])
def test_epochs_one_apart_are_safe_together_as_in_seed_002(epoch: int) -> None:
    assert disjoint_quorums(BOOTSTRAP[epoch], BOOTSTRAP[epoch + 1], dict.fromkeys(BOTH, "dc1")) is None


@pytest.mark.parametrize(("earlier", "later", "reader"), [(101, 103, A), (100, 102, X)])
def test_the_two_accidents_that_seed_002_tells_of_are_found(earlier: int, later: int, reader: int) -> None:
    """Without barriers: 101 reads A, B while 103 writes C, X; and 100 writes A, B while 102 reads C, X."""
    found = disjoint_quorums(BOOTSTRAP[earlier], BOOTSTRAP[later], dict.fromkeys(BOTH, "dc1"))
    assert found is not None
    assert reader in found.quorum


LOST_BETWEEN = RangeView(OLD, BOTH, OLD, NEW), RangeView(NEW, BOTH, OLD, NEW, frozenset({A}))


def test_storage_that_is_declared_lost_between_two_views_is_safe_though_it_comes_back() -> None:
    assert disjoint_quorums(*LOST_BETWEEN, dict.fromkeys(BOTH, "dc1")) is None


def test_a_barrier_that_took_lost_storage_for_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A and C, which no fence has reached, are a quorum for who planned before A was declared lost."""
    quorums._avoided_somewhere.cache_clear()
    quorums._avoided.cache_clear()
    monkeypatch.setattr(
        quorums, "_may_leave_out", lambda group, quorum, lost: quorums._has_majority(group, quorum & ~lost)
    )
    found = disjoint_quorums(*LOST_BETWEEN, dict.fromkeys(BOTH, "dc1"))
    quorums._avoided_somewhere.cache_clear()
    quorums._avoided.cache_clear()
    assert found is not None
    assert A in found.quorum
    assert "barrier" in found.what


def test_lost_storage_is_in_no_quorum_of_who_knows_of_it() -> None:
    """Without A, which both know to be lost, every read of two of A, B and C is of B and C."""
    reads, writes = RangeView(OLD, OLD, OLD, OLD, frozenset({A})), RangeView(NEW, NEW, NEW, NEW, frozenset({X}))
    assert disjoint_quorums(reads, writes, dict.fromkeys(BOTH, "dc1")) is None
    known = RangeView(OLD, OLD, OLD, OLD), RangeView(NEW, NEW, NEW, NEW)
    assert disjoint_quorums(*known, dict.fromkeys(BOTH, "dc1")) is not None


def test_a_datacenter_that_loses_its_quorum_is_found_though_the_whole_ring_keeps_its_own() -> None:
    datacenters = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b", 7: "a", 8: "a"}
    rest = frozenset({4, 5, 6})
    before, after = frozenset({1, 2, 3}) | rest, frozenset({3, 7, 8}) | rest
    found = disjoint_quorums(
        RangeView(before, before, before, before), RangeView(after, after, after, after), datacenters
    )
    assert found is not None


def test_views_that_did_not_change_are_checked_once() -> None:
    state = cluster(in_a_row(5), simple(3))
    known: set[tuple[RangeView, RangeView]] = set()
    views = all_views(state)
    assert disjoint_in_step(views, views, dict.fromkeys(range(10), "dc1"), known) is None
    assert len(known) == 5
