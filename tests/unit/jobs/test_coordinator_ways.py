"""The way there and the way back, with storage that dies at every stage: it ends in a legal state, and loses nothing.

"Dies": the volume's marker is gone, as on a disk that is not mounted. An operator then says that the node is to be
removed; before that, a coordinator waits or goes back, and never decides by itself that somebody is dead for good.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import barrier_of
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.coordinator.tracks.tablets import advance_unless_moved
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.fences import close_sessions
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.streaming import Copied, Copier
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import NewTransition, StageChange, StartTransitions
from epochlake.metastore.metadata.model import Transition
from epochlake.placement.consistency import BarrierLevel
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support.clusters import (
    FOUR,
    SmallCluster,
    assert_at_rest,
    lead_at_once,
    placed,
    relaxed_in_the_log,
    without_zookeeper,
)
from tests.support.slices import sliced

S = Stage
QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
FIVE = FOUR | {"Y": ("dc1", "r1")}
STAGES = [
    S.ALLOW_WRITE_BOTH_READ_OLD,
    S.WRITE_BOTH_READ_OLD,
    S.STREAMING,
    S.WRITE_BOTH_READ_NEW,
    S.USE_NEW,
    S.CLEANUP,
]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)


def some_rounds(cluster: SmallCluster, count: int = 6) -> None:
    for _ in range(count):
        cluster.round()


@sliced(at_least=3)
@pytest.mark.parametrize("stage", STAGES)
def test_the_pending_node_dies_and_is_removed(tmp_path: Path, stage: Stage) -> None:
    cluster = placed(tmp_path, FIVE, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(stage)
    acknowledged.append(cluster.write(cluster.pipeline()))
    cluster.lose("X")
    some_rounds(cluster)
    acknowledged.append(cluster.write(cluster.pipeline()))
    administration.remove_node(cluster.cluster, "X")
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


@sliced(at_least=3)
@pytest.mark.parametrize("stage", STAGES)
def test_the_pending_node_dies_and_comes_back(tmp_path: Path, stage: Stage) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    cluster.start("A", "X")
    cluster.until(stage)
    acknowledged = [cluster.write(cluster.pipeline())]
    with cluster.without("X"):
        some_rounds(cluster)
        acknowledged.append(cluster.write(cluster.pipeline()))
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


@sliced(at_least=3)
@pytest.mark.parametrize("stage", STAGES)
def test_the_leaving_node_dies_and_is_removed(tmp_path: Path, stage: Stage) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(stage)
    acknowledged.append(cluster.write(cluster.pipeline()))
    cluster.lose("A")
    some_rounds(cluster)
    acknowledged.append(cluster.write(cluster.pipeline()))
    administration.remove_node(cluster.cluster, "A")
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


@sliced(at_least=3)
@pytest.mark.parametrize("stage", STAGES)
def test_leaving_and_pending_node_die_together_and_are_removed(tmp_path: Path, stage: Stage) -> None:
    cluster = placed(tmp_path, FIVE, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(stage)
    acknowledged.append(cluster.write(cluster.pipeline()))
    cluster.lose("A")
    cluster.lose("X")
    some_rounds(cluster)
    acknowledged.append(cluster.write(cluster.pipeline()))
    for node in "XA":
        administration.remove_node(cluster.cluster, node)
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


@sliced(at_least=3)
@pytest.mark.parametrize("stage", STAGES)
def test_the_pending_node_of_a_table_with_one_replica_dies_and_is_removed(tmp_path: Path, stage: Stage) -> None:
    """From `use_new` on the only replica is the dead one: it can be waited for, or its rows be given up by force."""
    cluster = placed(tmp_path, {n: FOUR[n] for n in "ABX"}, "A", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(stage)
    cluster.lose("X")
    some_rounds(cluster)
    if stage in (S.USE_NEW, S.CLEANUP):
        with pytest.raises(Rejected, match="rows-lost"):
            administration.remove_node(cluster.cluster, "X")
        with pytest.raises(ConsistencyNotReached):
            cluster.read(cluster.pipeline())
        cluster.bring_back("X")
    else:
        administration.remove_node(cluster.cluster, "X")
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


def test_rows_of_the_only_replica_are_given_up_by_force_until_it_is_taken_back(tmp_path: Path) -> None:
    cluster = placed(tmp_path, {n: FOUR[n] for n in "AX"}, "A", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.lose("A")
    administration.remove_node(cluster.cluster, "A", force=True)
    cluster.bring_back("A")
    with pytest.raises(ConsistencyNotReached, match="was declared lost"):
        cluster.read(cluster.pipeline())
    administration.cancel_request(cluster.cluster, "A", reason="the disk is back")
    assert cluster.read(cluster.pipeline()) == set(acknowledged)
    administration.remove_node(cluster.cluster, "A", force=True)
    cluster.settle()
    assert cluster.read(cluster.pipeline()) == set()
    assert_at_rest(cluster, [])


@pytest.mark.parametrize("dead", ["A", "B", "X"])
def test_a_table_with_two_replicas_survives_the_loss_of_one(tmp_path: Path, dead: str) -> None:
    cluster = placed(tmp_path, FOUR, "AB", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(S.WRITE_BOTH_READ_OLD)
    acknowledged.append(cluster.write(cluster.pipeline()))
    cluster.lose(dead)
    some_rounds(cluster)
    administration.remove_node(cluster.cluster, dead)
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


def test_rebuilding_waits_for_a_source_that_may_have_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 1000.0)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    with cluster.without("C"):
        acknowledged = [cluster.write(cluster.pipeline())]
    cluster.lose("A")
    cluster.lose("B")
    administration.remove_node(cluster.cluster, "A")
    some_rounds(cluster, 30)
    assert list(cluster.metadata.open_requests())
    assert any("B/d1" in why for why in cluster.coordinator._blocked), "a quorum of A and B may still be written to"
    assert cluster.files_on("X") == set()
    cluster.bring_back("B")
    cluster.coordinator = Coordinator(cluster.cluster)
    cluster.settle()
    assert_at_rest(cluster, acknowledged)
    assert acknowledged[0] in cluster.files_on("X")


def test_draining_a_node_that_does_not_answer_waits_and_says_so(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.lose("A")
    administration.decommission(cluster.cluster, "A")
    some_rounds(cluster)
    before = cluster.metadata.epoch
    some_rounds(cluster)
    assert cluster.metadata.epoch == before
    assert "does not answer" in cluster.coordinator._blocked[0]
    administration.cancel_request(cluster.cluster, "A")
    administration.remove_node(cluster.cluster, "A")
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


def test_a_volume_that_took_a_tablet_back_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume answers and cannot take a table: trying it again and again would fill the log with epochs."""
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 1000.0)
    cluster = placed(tmp_path, {n: FIVE[n] for n in "ABCXY"}, "ABC", configuration=QUICK)
    for node in "XY":
        (cluster.directory / node / "air").write_text("in the way")
    administration.decommission(cluster.cluster, "A")
    some_rounds(cluster, 40)
    before = cluster.metadata.epoch
    some_rounds(cluster)
    assert cluster.metadata.epoch == before
    assert cluster.stage() is None
    assert cluster.coordinator._blocked
    (cluster.directory / "Y" / "air").unlink()
    cluster.coordinator = Coordinator(cluster.cluster)
    cluster.settle()
    assert_at_rest(cluster, [])


def test_one_tablet_that_two_requests_want_to_move_does_not_stop_both(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FIVE | {"Z": ("dc1", "r2")}, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.lose("A")
    volumes = [("d1", str(cluster.directory / "W"), 1 << 30)]
    administration.replace_node(cluster.cluster, "A", "W", volumes)
    administration.decommission(cluster.cluster, "B")
    cluster.settle()
    assert_at_rest(cluster, acknowledged)
    assert {cluster.metadata.node(n).state.value for n in "AB"} == {"left"}


WAYS = {
    "drained": lambda cluster: administration.decommission(cluster.cluster, "A"),
    "removed": lambda cluster: (cluster.lose("A"), administration.remove_node(cluster.cluster, "A")),
    "replaced": lambda cluster: (
        cluster.lose("A"),
        administration.replace_node(cluster.cluster, "A", "W", [("d1", str(cluster.directory / "W"), 1 << 30)]),
    ),
}


@sliced(at_least=2)
@pytest.mark.parametrize("way", WAYS)
def test_a_node_goes_with_all_its_tablets_while_rows_are_written(tmp_path: Path, way: str) -> None:
    tablets = {0: "ABC", 1: "ABX", 2: "BCX", 3: "ACX"}
    cluster = placed(tmp_path, FIVE, tablets, configuration=QUICK)
    acknowledged: dict[int, list[str]] = {t: [] for t in tablets}
    writer = cluster.pipeline()
    for tablet, replicas in tablets.items():
        for away in replicas:
            with cluster.without(away):
                acknowledged[tablet].append(cluster.write(writer, tablet=tablet))
    WAYS[way](cluster)
    for number in range(200):
        if not cluster.round() and cluster.coordinator._is_idle(cluster.metadata):
            break
        acknowledged[number % 4].append(cluster.write(writer, tablet=number % 4))
    for tablet in tablets:
        assert_at_rest(cluster, acknowledged[tablet], tablet)
    assert cluster.metadata.node("A").state.value == "left"


def test_a_drain_that_is_cancelled_half_way_leaves_a_normal_node(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    administration.decommission(cluster.cluster, "A")
    cluster.until(S.STREAMING)
    administration.cancel_request(cluster.cluster, "A")
    cluster.settle()
    assert cluster.metadata.node("A").state.value == "normal"
    assert_at_rest(cluster, acknowledged)


@sliced(at_least=3)
@pytest.mark.parametrize("stage", STAGES)
def test_changes_that_are_paused_in_the_middle_go_on_when_resumed(tmp_path: Path, stage: Stage) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    cluster.start("A", "X")
    cluster.until(stage)
    administration.pause_changes(cluster.cluster, reason="an audit")
    epoch = cluster.metadata.epoch
    some_rounds(cluster, 3)
    assert cluster.metadata.epoch == epoch
    acknowledged = [cluster.write(cluster.pipeline())]
    assert "paused (an audit)" in cluster.coordinator._blocked[0]
    administration.resume_changes(cluster.cluster)
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


@sliced(at_least=2)
@pytest.mark.parametrize("stage", [s for s in STAGES if s not in (S.STREAMING, S.CLEANUP)])
def test_a_stage_is_not_left_before_no_old_quorum_is_free_of_fences(tmp_path: Path, stage: Stage) -> None:
    """B and C are away while the coordinator raises fences: pipelines of before could still reach both."""
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    cluster.start("A", "X")
    cluster.until(stage)
    held = cluster.pipeline()
    with cluster.without("BC"):
        some_rounds(cluster, 2)
        assert cluster.stage() is stage
        assert "waits for fences" in cluster.coordinator._blocked[0]
    with cluster.without("AX"):
        acknowledged = [cluster.write(held)]
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


def test_a_tablet_that_moved_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    with cluster.without("C"):
        acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(None)
    assert cluster.files_on("A") == set()
    assert_at_rest(cluster, acknowledged)


def test_a_barrier_at_all_waits_for_every_replica_until_it_relaxes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = CoordinatorSettings(backoff_seconds=0.0, barrier_level=BarrierLevel.ALL, barrier_timeout_seconds=0.3)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=Configuration(coordinator=settings))
    cluster.start("A", "X")
    with cluster.without("C"):
        cluster.round()
        assert cluster.stage() is S.ALLOW_WRITE_BOTH_READ_OLD
        assert "waits for fences" in cluster.coordinator._blocked[0]
        cluster.until(None, rounds=5000)
    assert "relaxes from ALL" in caplog.text
    told = relaxed_in_the_log(cluster.cluster)
    assert {(one.level, one.passed_at) for one in told} == {("ALL", "QUORUM")}
    assert len(told) == 4, "each barrier once: two before streaming, two after it"
    assert all("C/d1" in one.missing for one in told)


class HeldCopier(Copier):
    """Copies, and then does not come back until it is let go: the async part of a streaming that was given up."""

    def __init__(self) -> None:
        super().__init__()
        self.copied, self.let_go = threading.Event(), threading.Event()

    def copy(self, copies: Sequence[PartCopy], progress: object = None) -> Copied:
        result = super().copy(copies)
        self.copied.set()
        assert self.let_go.wait(60)
        return result


def test_streaming_that_comes_late_resurrects_nothing(tmp_path: Path) -> None:
    """Seed 000, "Topology guards", steps 1 to 9."""
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    w1 = cluster.write(cluster.pipeline())
    cluster.start("A", "X")
    cluster.until(S.STREAMING)
    copier = HeldCopier()
    first = Coordinator(cluster.cluster, copier)
    late = threading.Thread(target=first._round_safely)
    late.start()
    assert copier.copied.wait(60)
    with cluster.without("X"):
        cluster.until(S.CLEANUP_TARGET)
    cluster.until(None)
    cluster.start("A", "X")
    cluster.until(None)
    w2 = cluster.write(cluster.pipeline())
    assert cluster.files_on("X") == {w1, w2}
    garbage_collect(cluster, "BCX")

    copier.let_go.set()
    late.join()
    assert [cluster.files_on(node) for node in "BCX"] == [set()] * 3
    assert any("newer coordinator" in error for error in first.tablets.errors.values())
    cluster.settle()
    assert_at_rest(cluster, [])


def test_without_session_and_fence_the_late_streaming_would_resurrect_the_row(tmp_path: Path) -> None:
    """What the one above relies on: the same commit, with neither, does land."""
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    w1 = cluster.write(cluster.pipeline())
    file = open_snapshot(cluster.address("A")).all_files[w1]
    cluster.start("A", "X")
    cluster.until(None)
    garbage_collect(cluster, "BCX")
    commit_files(cluster.address("X"), [file], epoch=cluster.metadata.epoch, app_id="late", app_version=1)
    assert cluster.files_on("X") == {w1}


def garbage_collect(cluster: SmallCluster, nodes: str) -> None:
    """The tombstone and what it hides go, as a compaction after repair does it."""
    for node in nodes:
        files = list(open_snapshot(cluster.address(node)).all_files.values())
        commit_files(
            cluster.address(node), [], removes=files, epoch=cluster.metadata.epoch, app_id="compaction", app_version=1
        )


@sliced(at_least=2)
@pytest.mark.parametrize("stage", [S.WRITE_BOTH_READ_OLD, S.STREAMING, S.WRITE_BOTH_READ_NEW, S.USE_NEW])
def test_a_coordinator_that_was_paused_does_not_advance_the_transition_of_its_successor(
    tmp_path: Path, stage: Stage
) -> None:
    """The stage is the same, but it is another transition: its barrier was never passed."""
    cluster = placed(tmp_path, FIVE, "ABC", configuration=QUICK)
    cluster.start("A", "X")
    cluster.until(stage)
    planned = cluster.metadata
    then = {
        S.WRITE_BOTH_READ_OLD: S.STREAMING,
        S.STREAMING: S.WRITE_BOTH_READ_NEW,
        S.WRITE_BOTH_READ_NEW: S.USE_NEW,
        S.USE_NEW: S.CLEANUP,
    }[stage]
    session = "late" if then is S.STREAMING else None
    change = StageChange(cluster.table.table_id, 0, stage, then, session)
    cluster.until(None)
    cluster.start("X", "Y")
    cluster.until(stage)
    with pytest.raises(Rejected, match="stale-plan"):
        cluster.cluster.commit(advance_unless_moved(planned, [change]))
    cluster.settle()
    assert_at_rest(cluster, [])


EIGHT = dict.fromkeys(range(8), "ABC")


def test_small_tablets_of_one_way_are_prepared_streamed_and_cleaned_up_together(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, EIGHT, configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline(), tablet=tablet, ids=(tablet,)) for tablet in EIGHT]
    start_all(cluster, "A", "X")
    pipeline, commits = cluster.pipeline(), Counter[str]()
    while cluster.transition() is not None:
        stage = cluster.stage()
        before = open_snapshot(cluster.address("A")).version, version_of(cluster, "X")
        cluster.round()
        assert {cluster.stage(tablet) for tablet in EIGHT} == {cluster.stage()}
        after = open_snapshot(cluster.address("A")).version, version_of(cluster, "X")
        commits[f"{stage}"] += after[0] - before[0] + after[1] - before[1]
        if cluster.stage() is S.WRITE_BOTH_READ_NEW:
            assert cluster.rows_on("X") == list(EIGHT)
    # A fence is a commit as well; eight tablets would make eight of each.
    assert max(commits.values()) <= 4, commits
    assert cluster.read_rows(pipeline) == list(EIGHT)
    assert (cluster.rows_on("A"), cluster.rows_on("X")) == ([], list(EIGHT))
    cluster.settle()
    all_at_rest(cluster, acknowledged)


def test_tablets_that_cannot_be_prepared_together_are_prepared_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = placed(tmp_path, FOUR, EIGHT, configuration=QUICK)
    prepare = tablet_track.prepare_pending

    def all_but_the_fifth(storage: object, metadata: object, transitions: Sequence[Transition], *given: object) -> None:
        if any(one.tablet == 5 for one in transitions):
            raise SideEffectFailed("a file of it is damaged")
        prepare(storage, metadata, transitions, *given)  # type: ignore[arg-type]

    start_all(cluster, "A", "X")
    monkeypatch.setattr(tablet_track, "prepare_pending", all_but_the_fifth)
    cluster.round()
    stages = {tablet: cluster.stage(tablet) for tablet in EIGHT}
    assert stages == dict.fromkeys(EIGHT, S.WRITE_BOTH_READ_OLD) | {5: S.ALLOW_WRITE_BOTH_READ_OLD}


def test_of_tablets_that_share_a_commit_those_go_on_whose_sessions_are_open(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, EIGHT, configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline(), tablet=tablet, ids=(tablet,)) for tablet in EIGHT]
    start_all(cluster, "A", "X")
    cluster.until(S.STREAMING)
    transitions = list(cluster.metadata.tablets.transitions.values())
    cluster.coordinator.tablets._fences.raise_for(cluster.metadata, map(barrier_of, transitions))
    closed = cluster.transition(5)
    assert closed is not None
    assert closed.session is not None
    close_sessions(cluster.address("X"), cluster.metadata.fence, [closed.session])
    found = cluster.coordinator.tablets._next_stages(cluster.metadata, transitions)
    assert sorted(change.tablet for change in found) == [0, 1, 2, 3, 4, 6, 7]
    assert "closed" in cluster.coordinator.tablets.errors[closed.key]
    assert cluster.rows_on("X") == [0, 1, 2, 3, 4, 6, 7]
    cluster.settle()
    all_at_rest(cluster, acknowledged)


def test_a_coordinator_that_died_behind_the_commit_is_followed_by_one_that_streams_each_by_itself(
    tmp_path: Path,
) -> None:
    cluster = placed(tmp_path, FOUR, EIGHT, configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline(), tablet=tablet, ids=(tablet,)) for tablet in EIGHT]
    start_all(cluster, "A", "X")
    cluster.until(S.STREAMING)
    transitions = list(cluster.metadata.tablets.transitions.values())
    dying = Coordinator(cluster.cluster)
    dying.tablets._fences.raise_for(cluster.metadata, map(barrier_of, transitions))
    assert len(dying.tablets._next_stages(cluster.metadata, transitions[:3])) == 3
    # What was to follow was never committed.
    cluster.settle()
    assert cluster.rows_on("X") == list(EIGHT)
    all_at_rest(cluster, acknowledged)


def all_at_rest(cluster: SmallCluster, acknowledged: Sequence[str]) -> None:
    """As `assert_at_rest`, with a file of each tablet."""
    for tablet, file in enumerate(acknowledged):
        assert_at_rest(cluster, [file], tablet)


def start_all(cluster: SmallCluster, leaving: str, pending: str) -> None:
    """All tablets begin to move in one epoch."""
    table, ends = cluster.table.table_id, (cluster.volume(leaving), cluster.volume(pending))
    count = cluster.metadata.tablets.maps[table].count
    new = tuple(NewTransition(table, tablet, Kind.MIGRATION, *ends, "test") for tablet in range(count))
    cluster.cluster.commit(StartTransitions(new))


def version_of(cluster: SmallCluster, node: str) -> int:
    """The version of a node's replica table; 0 where it has none."""
    address = cluster.address(node)
    return open_snapshot(address).version if Path(address.uri).exists() else 0


def test_two_coordinators_at_once_are_harmless(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FIVE, dict.fromkeys(range(4), "ABC"), configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    administration.decommission(cluster.cluster, "A")
    lead_at_once(cluster.cluster, 60)
    cluster.settle()
    assert_at_rest(cluster, acknowledged)


def test_a_rebuild_takes_what_any_of_a_quorum_has(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    with cluster.without("B"):
        only_ac = cluster.write(cluster.pipeline())
    with cluster.without("C"):
        only_ab = cluster.write(cluster.pipeline())
    cluster.lose("A")
    cluster.start("A", "X", Kind.REBUILD)
    cluster.until(S.WRITE_BOTH_READ_NEW)
    assert cluster.files_on("X") == {only_ac, only_ab}


def test_a_rebuild_does_not_lose_what_only_a_local_quorum_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 1000.0)
    here = {name: ("dc1", f"r{number}") for number, name in enumerate("ABC")} | {"X": ("dc1", "r0")}
    there = {name: ("dc2", f"r{number}") for number, name in enumerate("DEF")}
    cluster = placed(tmp_path, here | there, "ABCDEF", configuration=QUICK)
    with cluster.without("CDEF"):
        written = cluster.write(cluster.pipeline(dc="dc1"), "LOCAL_QUORUM")
    cluster.lose("A")
    cluster.lose("B")
    administration.remove_node(cluster.cluster, "A")
    some_rounds(cluster, 15)
    assert any("B/d1" in why for why in cluster.coordinator._blocked)
    cluster.bring_back("B")
    cluster.coordinator = Coordinator(cluster.cluster)
    cluster.settle()
    for away in "BCX":
        with cluster.without(away):
            assert written in cluster.read(cluster.pipeline(dc="dc1"), "LOCAL_QUORUM")


def test_a_tablet_moves_between_the_volumes_of_a_node_without_being_copied(tmp_path: Path) -> None:
    cluster = placed(tmp_path, {name: FOUR[name] for name in "BC"}, "BC", configuration=QUICK)
    volumes = [(name, str(cluster.directory / name), 1 << 30) for name in ("d1", "d2")]
    administration.add_node(cluster.cluster, "N", "dc1", "r9", volumes)
    cluster.settle()
    first, second = (volume.volume_id for volume in cluster.metadata.node("N").volumes)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("B", "N")
    cluster.until(None)
    new = NewTransition(cluster.table.table_id, 0, Kind.INTRANODE_MIGRATION, first, second, "test")
    cluster.cluster.commit(StartTransitions((new,)))
    cluster.until(S.WRITE_BOTH_READ_NEW)
    acknowledged.append(cluster.write(cluster.pipeline()))
    [one] = (cluster.directory / "d1").rglob(f"{acknowledged[0]}.parquet")
    [other] = (cluster.directory / "d2").rglob(f"{acknowledged[0]}.parquet")
    assert one.samefile(other)
    cluster.settle()
    assert cluster.metadata.tablets.maps[cluster.table.table_id].replicas(0) == (second, cluster.volume("C"))
    assert set(acknowledged) <= cluster.read(cluster.pipeline(), "ALL")
