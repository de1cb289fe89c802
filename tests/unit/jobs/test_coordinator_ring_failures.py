"""Operations on the ring when something fails: storage that dies, coordinators that die, stop, or come late."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects import ring as ring_effects
from epochlake.jobs.coordinator.effects.sources import Sources
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.tracks.operations import if_unmoved
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas import streaming
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.streaming import Copied, Copier
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import AdvanceOperation
from epochlake.metastore.metadata.model import NodeState, RequestState
from epochlake.placement.ring.state import Step
from epochlake.placement.tokens import range_label

from tests.support.clusters import COLUMNS, lead_at_once, stored_by_hand, without_zookeeper
from tests.support.killing import STEPS
from tests.support.rings import (
    CANCELLABLE,
    FOUR,
    JOINER,
    KINDS,
    QUICK,
    SPREAD,
    STEPS_IN_FLIGHT,
    TURN,
    RingCluster,
    assert_settled,
    fewer_replicas,
    join,
    leave,
    more_replicas,
    move,
    rebuild,
    remove,
    ringed,
)
from tests.support.slices import sliced
from tests.support.storages import STORAGE

pytestmark = sliced(at_least=2)

Begin = Callable[[RingCluster], str]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(ring_effects, "GROUP_FILES", 1)


def some_rounds(ring: RingCluster, count: int = 5) -> None:
    for _ in range(count):
        ring.round()


def write(ring: RingCluster, first: int) -> set[int]:
    return ring.write_rows(ring.pipeline(), {first + row: at + 1 for row, at in SPREAD.items()})


# --- storage that dies ------------------------------------------------------------------------------------------------


@sliced("step", "away")
@pytest.mark.parametrize("step", STEPS_IN_FLIGHT)
@pytest.mark.parametrize("away", "ABCX")
def test_a_node_that_is_away_during_a_join_comes_back(tmp_path: Path, step: Step, away: str) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    join(ring)
    ring.until(step)
    with ring.without(away):
        some_rounds(ring)
        acknowledged = write(ring, 100)
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


@pytest.mark.parametrize("step", STEPS_IN_FLIGHT)
def test_an_operation_whose_newcomer_dies_waits_until_an_operator_cancels_it(tmp_path: Path, step: Step) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = join(ring)
    ring.until(step)
    acknowledged = write(ring, 100)
    ring.lose("X")
    some_rounds(ring)
    before = ring.metadata.epoch
    some_rounds(ring)
    assert ring.metadata.epoch == before
    assert any("X/d1" in why or "node 'X'" in why for why in ring.coordinator._blocked)
    acknowledged |= write(ring, 200)
    administration.cancel_request(ring.cluster, request)
    ring.settle()
    assert ring.metadata.node("X").state is NodeState.LEFT
    assert_settled(ring, acknowledged | set(SPREAD))


@pytest.mark.parametrize("begin", [leave, move])
def test_where_the_giver_is_dead_rows_are_merged_from_a_quorum(tmp_path: Path, begin: Begin) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    with ring.without("B"):
        acknowledged = write(ring, 100)
    with ring.without("C"):
        acknowledged |= write(ring, 200)
    request = begin(ring)
    ring.until(Step.START)
    ring.lose("D")
    ring.until(Step.MID)
    assert ring.request(request).state is RequestState.RUNNING
    if begin is leave:
        ring.settle()
    ring.bring_back("D")
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


def test_a_merge_waits_for_a_replica_that_may_have_rows_alone(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    with ring.without("B"):
        acknowledged = write(ring, 100)
    remove(ring)
    ring.until(Step.START)
    ring.lose("C")
    some_rounds(ring, 10)
    assert ring.step()[0] is Step.START
    ring.bring_back("C")
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


def test_a_merge_does_not_lose_what_only_a_local_quorum_has(tmp_path: Path) -> None:
    nodes = {name: ("dc1", "r0", (index - 6,)) for index, name in enumerate("ABCZ")}
    nodes |= {name: ("dc2", f"r{index}", (index + 1,)) for index, name in enumerate("DEF")}
    ring = ringed(tmp_path, nodes, {"dc1": 3, "dc2": 3}, configuration=QUICK)
    token = -5 * TURN - 7  # of B, C and Z
    with ring.without("CDEF"):
        acknowledged = ring.write_rows(ring.pipeline(dc="dc1"), {100: token}, "LOCAL_QUORUM")
    holders = [name for name in "ABCZ" if 100 in ring.rows_on(name)]
    assert len(holders) == 2
    gone, only = holders
    ring.lose(gone)
    administration.remove_node(ring.cluster, gone)
    ring.until(Step.START)
    ring.round()
    ring.lose(only)
    some_rounds(ring, 10)
    assert ring.step()[0] is Step.START
    ring.bring_back(only)
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD), datacenter="dc1")


def test_a_rebuild_does_not_lose_what_the_lost_disk_and_one_more_have_acknowledged_locally(tmp_path: Path) -> None:
    nodes = {name: ("dc1", f"r{index}", (index - 6,)) for index, name in enumerate("ABC")}
    nodes |= {name: ("dc2", f"r{index}", (index + 1,)) for index, name in enumerate("DEF")}
    ring = ringed(tmp_path, nodes, {"dc1": 3, "dc2": 3}, configuration=QUICK)
    with ring.without("CDEF"):
        acknowledged = ring.write_rows(ring.pipeline(dc="dc1"), {100: 0}, "LOCAL_QUORUM")
    shutil.rmtree(ring.address("A").uri)
    administration.rebuild_node(ring.cluster, "A")
    with ring.without("B"):
        some_rounds(ring, 8)
        assert ring.step() == (Step.START, False)
        assert any("2 of the 2 replicas in dc1" in why for why in ring.coordinator._blocked)
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD), "dc1")


def test_a_member_that_cannot_be_cleaned_up_holds_the_request_until_it_is_back(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = join(ring)
    ring.until(Step.MID)
    ring.lose("B")
    some_rounds(ring)
    assert ring.step()[0] is None
    assert ring.request(request).state is RequestState.RUNNING
    assert any("not owned any more" in why and "B/d1" in why for why in ring.coordinator._blocked)
    ring.bring_back("B")
    ring.settle()
    assert_settled(ring, SPREAD)


@pytest.mark.parametrize("begin", [leave, move, rebuild])
def test_a_node_that_dies_in_its_own_operation_can_be_replaced_after_a_cancel(tmp_path: Path, begin: Begin) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = begin(ring)
    ring.until(Step.START)
    ring.lose("D")
    acknowledged = write(ring, 100)
    administration.cancel_request(ring.cluster, request)
    ring.settle()
    assert ring.request(request).state is RequestState.CANCELLED
    ring.add("X", ("dc1", "r1", ()), replaces="D")
    ring.settle()
    assert ring.metadata.node("D").state is NodeState.LEFT
    assert_settled(ring, acknowledged | set(SPREAD))


@pytest.mark.parametrize("step", [Step.START, Step.MID])
def test_a_barrier_holds_while_a_quorum_of_before_is_free_of_fences(tmp_path: Path, step: Step) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    held = ring.pipeline()
    join(ring)
    ring.until(step)
    with ring.without("BC"):
        some_rounds(ring)
        assert ring.step()[0] is step
        assert any(f"waits for fences after {step}" in why for why in ring.coordinator._blocked)
    acknowledged = ring.write_rows(held, {100: -TURN})
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


def test_a_replica_that_is_fenced_below_the_epoch_is_no_source(tmp_path: Path) -> None:
    """A pipeline of before might still write to it, and to nobody who streams from it."""
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    metadata, volume = ring.metadata, ring.volume("A")
    fence = open_snapshot(ring.address("A")).fence
    assert Sources(STORAGE, metadata, ring.table.table_id, fence).answers(volume)
    with pytest.raises(SideEffectFailed, match=f"fenced at {fence} only"):
        Sources(STORAGE, metadata, ring.table.table_id, fence + 1).of(volume)


def test_what_was_left_behind_in_a_range_is_dropped_before_it_is_gained(tmp_path: Path) -> None:
    """A row that everybody else has forgotten would be there again."""
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    low, high = -6 * TURN + 1, -2 * TURN
    assert not ring.rows_on("A", low, high)
    file = stored_by_hand(Path(ring.address("A").uri), range_label(low, high), [999], 1, [-4 * TURN])
    left = commit_files(ring.address("A"), [file], epoch=ring.metadata.epoch, app_id="left", app_version=1)
    assert isinstance(left, Acknowledged)
    leave(ring)
    ring.until(Step.START)
    assert not ring.rows_on("A", low, high)
    ring.settle()
    assert 999 not in ring.read_rows(ring.pipeline(), "ALL")
    assert_settled(ring, SPREAD)


@pytest.mark.parametrize("begin", [leave, move, more_replicas])
def test_cancelling_in_the_middle_of_streaming_closes_the_session_where_it_was_open(
    tmp_path: Path, begin: Begin
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    acknowledged = write(ring, 100) | write(ring, 200)
    request = begin(ring)
    ring.until(Step.START)
    [session] = ring.metadata.open_sessions()
    ring.round()
    assert ring.step()[0] is Step.START
    assert any(session in open_snapshot(ring.address(node)).sessions for node in "ABCD")
    administration.cancel_request(ring.cluster, request)
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


# --- coordinators that die, stop or come late -------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process: nothing that it does afterwards counts."""


class Lives:
    """Kills the coordinator at its n-th step from now on, before or after it; everything after that fails too."""

    def __init__(self) -> None:
        self._left = 0
        self._armed = False
        self._lock = threading.Lock()

    def arm(self, steps: int) -> None:
        self._left, self._armed = steps, True

    def disarm(self) -> None:
        self._armed = False

    def step(self) -> None:
        with self._lock:
            if self._armed:
                self._left -= 1
                if self._left <= 0:
                    raise Killed

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **named: Any) -> Any:
            self.step()
            result = function(*args, **named)
            self.step()
            return result

        return stepping


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Lives:
    found = Lives()
    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, found.around(getattr(owner, name)))
    monkeypatch.setattr(streaming, "copy_data_file", found.around(streaming.copy_data_file))
    return found


def settle_with_many_lives(ring: RingCluster, lives: Lives, chance: random.Random) -> tuple[set[int], int]:
    """Coordinators one after the other, each killed after a few steps; rows are written in between."""
    acknowledged: set[int] = set()
    for life in itertools.count(1):
        ring.__dict__["coordinator"] = Coordinator(ring.cluster, Copier(how=streaming.copy_data_file))
        lives.arm(chance.randint(1, 8 + life))
        try:
            while ring.round() or not ring.coordinator._is_idle(ring.metadata):
                pass
        except Killed:
            continue
        finally:
            lives.disarm()
            acknowledged |= ring.write_rows(ring.pipeline(), {100 + life: (life % 16 - 8) * TURN + 7})
        return acknowledged, life
    raise AssertionError


@sliced(at_least=3)
@pytest.mark.parametrize("begin", KINDS)
def test_coordinators_that_are_killed_one_after_the_other_end_an_operation(
    tmp_path: Path, begin: Begin, lives: Lives, seed: int
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = begin(ring)
    acknowledged, count = settle_with_many_lives(ring, lives, random.Random(seed))
    assert count > 2
    assert ring.request(request).state is RequestState.DONE
    assert_settled(ring, acknowledged | set(SPREAD))


@sliced(at_least=3)
@pytest.mark.parametrize("begin", CANCELLABLE)
def test_coordinators_that_are_killed_one_after_the_other_take_an_operation_back(
    tmp_path: Path, begin: Begin, lives: Lives, seed: int
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = begin(ring)
    ring.until(Step.MID)
    administration.cancel_request(ring.cluster, request)
    acknowledged, _ = settle_with_many_lives(ring, lives, random.Random(seed))
    assert ring.request(request).state is RequestState.CANCELLED
    if begin is remove:
        ring.bring_back("D")
    assert_settled(ring, acknowledged | set(SPREAD))


def test_coordinators_that_are_killed_one_after_the_other_drain_tablets_and_ranges(
    tmp_path: Path, lives: Lives, seed: int
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    administration.create_keyspace(ring.cluster, "land", {"dc1": 3})
    administration.create_table(ring.cluster, "land.trips", COLUMNS, ["id"], tablets=4)
    leave(ring)
    acknowledged, _ = settle_with_many_lives(ring, lives, random.Random(seed))
    assert ring.metadata.node("D").state is NodeState.LEFT
    assert_settled(ring, acknowledged | set(SPREAD))


@pytest.mark.parametrize("begin", [join, leave, fewer_replicas])
def test_two_coordinators_at_once_are_harmless(tmp_path: Path, begin: Begin) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    begin(ring)
    lead_at_once(ring.cluster, 30)
    ring.settle()
    assert_settled(ring, SPREAD)


class HeldCopier(Copier):
    """Copies, and then does not come back until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.copied, self.let_go = threading.Event(), threading.Event()

    def copy(self, copies: Sequence[PartCopy], progress: object = None) -> Copied:
        result = super().copy(copies)
        self.copied.set()
        assert self.let_go.wait(60)
        return result


@contextmanager
def streaming_that_is_held(ring: RingCluster) -> Iterator[Coordinator]:
    """A coordinator that has copied files and commits them only at the end of the block."""
    copier = HeldCopier()
    coordinator = Coordinator(ring.cluster, copier)
    late = threading.Thread(target=coordinator._round_safely)
    late.start()
    try:
        assert copier.copied.wait(60)
        yield coordinator
    finally:
        copier.let_go.set()
        late.join()


def test_streaming_that_comes_after_a_cancel_brings_nothing(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = join(ring)
    ring.until(Step.START)
    with streaming_that_is_held(ring) as late:
        administration.cancel_request(ring.cluster, request)
        ring.settle()
    assert not ring.files_within("X")
    assert any("newer coordinator" in why for why in late._blocked)
    assert_settled(ring, SPREAD)


def test_streaming_that_comes_after_its_operation_has_ended_brings_nothing(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    join(ring)
    ring.until(Step.START)
    with streaming_that_is_held(ring) as late:
        ring.settle()
        before = {file.file_id for file in ring.files_within("X")}
    assert {file.file_id for file in ring.files_within("X")} == before
    assert any("newer coordinator" in why or "moved it on" in why for why in late._blocked)
    assert_settled(ring, SPREAD)


def test_a_step_is_not_made_for_an_operation_that_has_moved_since(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = join(ring)
    ring.until(Step.START)
    fenced = ring.metadata.rings.running[request]
    administration.cancel_request(ring.cluster, request)
    ring.settle()
    ring.add("Y", JOINER)
    ring.until(Step.START)
    with pytest.raises(Rejected, match="stale-plan"):
        ring.cluster.commit(if_unmoved(fenced, AdvanceOperation(request, Step.MID)))
    ring.settle()
    assert_settled(ring, SPREAD)


@pytest.mark.parametrize("begin", [more_replicas, rebuild])
def test_side_effects_that_fail_are_tried_again(tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    Path(ring.address("D").uri).rename(tmp_path / "broken")
    begin(ring)
    if begin is more_replicas:
        some_rounds(ring)
        assert any("was lost" in why for why in ring.coordinator._blocked)
        (tmp_path / "broken").rename(ring.address("D").uri)
    ring.settle()
    assert_settled(ring, SPREAD)


def test_a_table_that_a_rebuild_has_made_anew_is_not_read_before_it_has_its_rows(tmp_path: Path) -> None:
    """Empty, it would say that there is nothing, and a quorum with it would miss what the lost disk acknowledged."""
    ring = ringed(tmp_path, FOUR, configuration=QUICK, rows={})
    with ring.without("C"):
        ring.write_rows(ring.pipeline(), SPREAD)
    Path(ring.address("D").uri).rename(tmp_path / "broken")
    request = rebuild(ring)
    ring.until(Step.START)
    with ring.without("B"):
        some_rounds(ring)
    assert Path(ring.address("D").uri).exists()
    administration.cancel_request(ring.cluster, request)
    ring.settle()
    with ring.without("B"), pytest.raises(ConsistencyNotReached, match=r"rebuild .* has not brought all rows"):
        ring.read_rows(ring.pipeline())
    rebuild(ring)
    ring.settle()
    with ring.without("B"):
        assert set(ring.read_rows(ring.pipeline())) == set(SPREAD)
    assert_settled(ring, SPREAD)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_change_of_replication_has_given_up_goes_though_it_is_cancelled_between_two_steps(
    tmp_path: Path, restarts: bool
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = fewer_replicas(ring)
    ring.until(Step.MID)
    _, *others = ring.coordinator.tracks
    while ring.step()[0] is not None:
        for track in others:
            track.advance(ring.metadata)
    assert ring.metadata.schema.keyspaces["air"].replication == {"dc1": 2}
    assert verify_replicas(STORAGE, ring.metadata).unswept
    administration.cancel_request(ring.cluster, request)
    assert ring.request(request).state is RequestState.CANCELLED
    if restarts:
        ring.restart()
    with ring.without("C"):
        some_rounds(ring)
    ring.settle()
    assert ring.metadata.schema.keyspaces["air"].replication == {"dc1": 2}
    assert_settled(ring, SPREAD)
