"""Tablets are split and merged by a real coordinator, under pipelines that planned before, and nothing is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.effects import pre_split
from epochlake.jobs.coordinator.effects.pre_split import PreSplit, pre_split_replica
from epochlake.jobs.coordinator.tracks import resizing
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.replicas.commits import straddling
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.workers.pace import Pace
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.metadata.events import Event
from epochlake.placement.consistency import BarrierLevel
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tokens import tablet_ranges

from tests.support.clusters import FOUR, placed, relaxed_in_the_log, without_zookeeper
from tests.support.resizing import ALWAYS_SPLIT, NEVER_SPLIT, Resizable
from tests.support.slices import sliced

QUICK = Configuration(
    pipeline=PipelineSettings(shared_file_bytes=0),
    coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4),
)
THREE = {name: FOUR[name] for name in "ABC"}

Grow = Callable[..., Resizable]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    monkeypatch.setattr(resizing, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(resizing, "RETRY_SECONDS", 0.0)


@pytest.fixture
def resizable(tmp_path: Path, seed: int) -> Grow:
    """Makes the cluster of a test: `replicas` of its table on `nodes`."""

    def grow(replicas: str | dict[int, str] = "ABC", nodes: dict[str, tuple[str, str]] = THREE) -> Resizable:
        return Resizable(placed(tmp_path, nodes, replicas, append_only=True, configuration=QUICK), random.Random(seed))

    return grow


def split_to(story: Resizable, count: int, **options: bool) -> None:
    story.aim(ALWAYS_SPLIT)
    story.until_count(count, **options)
    story.stay()


def test_one_tablet_becomes_eight_and_one_again_while_pipelines_write(resizable: Grow) -> None:
    story = resizable()
    story.write(count=40)
    split_to(story, 8)
    story.cluster.settle()
    story.assert_settled()
    story.aim(NEVER_SPLIT)
    story.until_count(2)
    while story.staged:
        story.land(story.cluster.pipeline())
    story.until_count(1, write=False)
    story.cluster.settle()
    story.assert_settled()
    assert story.tablets.resize_seq_number == 6


def test_what_was_staged_before_two_splits_and_lands_after_them_is_cut_on_the_way(resizable: Grow) -> None:
    story = resizable()
    story.write(count=20)
    story.stage()
    split_to(story, 4, write=False)
    story.land(story.cluster.pipeline())
    story.cluster.settle()
    story.assert_sound()
    for node in "ABC":
        snapshot = open_snapshot(story.cluster.address(node))
        assert straddling(snapshot, tablet_ranges(4)[1].tolist()[:-1]) == []


def test_splits_leave_files_alone_that_few_rows_of_several_tablets_share(tmp_path: Path, seed: int) -> None:
    """Neither a split nor the coordinator that gives labels after it cuts what is written all the time."""
    spared = msgspec.structs.replace(QUICK, pipeline=PipelineSettings())
    placed_there = placed(tmp_path, THREE, dict.fromkeys(range(4), "ABC"), append_only=True, configuration=spared)
    story = Resizable(placed_there, random.Random(seed))
    cluster = placed_there.cluster
    written = 0

    def write() -> int:
        nonlocal written
        rows = [{"id": number, "note": "x"} for number in range(written, written + 50)]
        written += 50
        return cluster.write(story.cluster.table.full_name, rows, consistency="ALL").files

    assert [write() for _ in range(3)] == [1, 1, 1]
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    assert write() == 1
    story.until_count(16, write=False)
    story.stay()
    for _ in range(5):
        assert write() == 1
        story.cluster.round()
    assert not story.cluster.round()
    story.cluster.settle()
    for node in "ABC":
        assert len(open_snapshot(story.cluster.address(node)).all_files) == 9
    assert len(cluster.scan(story.cluster.table.full_name, consistency="ALL").read_all()) == written


def test_a_split_ends_while_a_node_is_away_and_what_it_has_is_cut_when_it_is_back(resizable: Grow) -> None:
    story = resizable()
    story.write(count=40)
    story.cluster.lose("C")
    split_to(story, 8, write=False)
    assert "C/" not in " ".join(story.cluster.coordinator._blocked)
    story.cluster.bring_back("C")
    story.cluster.settle()
    story.assert_settled()


def test_a_split_waits_when_too_few_replicas_answer_and_says_for_whom(resizable: Grow) -> None:
    story = resizable()
    story.write(count=40)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    with story.cluster.without("BC"):
        for _ in range(4):
            story.cluster.round()
        assert story.tablets.count == 1
        assert any(
            "the split of air.flights waits for replicas: B/d1" in why for why in story.cluster.coordinator._blocked
        )
        assert not story.cluster.coordinator._is_idle(story.cluster.metadata)
    story.until(lambda tablets: tablets.count == 2, write=False)
    story.stay()
    story.cluster.settle()
    story.assert_settled()


def test_a_split_waits_for_every_replica_that_answers_however_many_are_ready(
    resizable: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "SLICE_BYTES", 1)
    story = resizable(dict.fromkeys(range(4), "ABC"))
    # C has to be cut at four middles, A and B at two each; a round does one.
    for tablet, away in enumerate("AABB"):
        with story.cluster.without(away):
            story.cluster.write_rows(story.cluster.pipeline(), dict(enumerate(story.cluster.tokens_of(tablet))))
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    story.until_count(8, write=False)
    for node in "ABC":
        assert straddling(open_snapshot(story.cluster.address(node)), tablet_ranges(8)[1].tolist()[:-1]) == []


@sliced()
@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_node_is_lost_on_the_way_to_eight_tablets_and_back(resizable: Grow, way: str) -> None:
    story = resizable(nodes=FOUR if way == "removed" else THREE)
    story.write(count=40)
    split_to(story, 2)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    story.cluster.lose("A")
    if way == "removed":
        administration.remove_node(story.cluster.cluster, "A")
    else:
        volumes = [("d1", str(story.cluster.directory / "W"), 1 << 30)]
        administration.replace_node(story.cluster.cluster, "A", "W", volumes)
    split_to(story, 8)
    story.cluster.settle()
    story.assert_settled()
    story.aim(NEVER_SPLIT)
    story.until_count(1)
    story.cluster.settle()
    story.assert_sound()
    assert story.cluster.metadata.node("A").state.value == "left"


# --- a topology request, a pause, a revoked decision ---------------------------------------------------------------


def test_a_topology_request_comes_before_a_split_that_is_due(resizable: Grow) -> None:
    story = resizable(nodes=FOUR)
    story.write(count=40)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    number = story.tablets.resize_seq_number
    administration.decommission(story.cluster.cluster, "A")
    while list(story.cluster.metadata.open_requests()):
        assert (story.tablets.count, story.tablets.resize_seq_number) == (1, number)
        assert story.cluster.round()
    assert story.cluster.metadata.node("A").state.value == "left"
    story.until_count(2, write=False)
    story.stay()
    story.cluster.settle()
    story.assert_settled()


def test_a_topology_request_does_not_wait_for_cutting_that_is_under_way(
    resizable: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "PATIENCE_SECONDS", 0.05)
    story = resizable(nodes=FOUR)
    story.write(count=40)
    cut, begun, let_go = pre_split.pre_split, threading.Event(), threading.Event()

    def slowly(*asked: object) -> object:
        begun.set()
        assert let_go.wait(60)
        return cut(*asked)

    monkeypatch.setattr(pre_split, "pre_split", slowly)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    assert story.cluster.round()
    assert begun.wait(60)
    administration.decommission(story.cluster.cluster, "A")
    try:
        while list(story.cluster.metadata.open_requests()):
            assert story.cluster.round()
        assert story.cluster.metadata.node("A").state.value == "left"
        assert story.tablets.count == 1
        story.write(count=10)
    finally:
        let_go.set()
    story.until_count(2, write=False)
    story.stay()
    story.cluster.settle()
    story.assert_settled()


def test_nothing_is_decided_or_ended_while_balancing_is_paused(resizable: Grow) -> None:
    story = resizable()
    story.write(count=40)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    administration.pause_balancing(story.cluster.cluster)
    epoch = story.cluster.metadata.epoch
    for _ in range(4):
        assert not story.cluster.round()
    assert story.cluster.metadata.epoch == epoch
    assert story.cluster.coordinator._is_idle(story.cluster.metadata)
    story.assert_sound()


def test_a_decision_is_revoked_when_the_size_crosses_back_and_late_work_for_it_is_refused(
    resizable: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "SLICE_BYTES", 1)
    story = resizable({0: "ABC", 1: "ABC"})
    for _ in range(3):
        story.write(count=20)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    planned = story.cluster.metadata
    story.stay()
    story.until(lambda tablets: tablets.resize_type == "none", write=False)
    assert (story.tablets.count, story.tablets.resize_seq_number) == (2, 2)
    address = story.cluster.address("A")
    late = pre_split_replica(PreSplit(address, 4, planned.epoch, 0, 1 << 40), Pace(0))
    assert "a newer coordinator is at work" in late.failure
    story.cluster.settle()
    story.assert_settled()


def test_a_split_that_is_ready_waits_for_the_transitions_of_its_table_and_no_longer(resizable: Grow) -> None:
    story = resizable({0: "ABC", 1: "ABC"}, FOUR)
    story.write(count=40)
    story.aim(ALWAYS_SPLIT)
    story.decide(Resize.SPLIT)
    story.cluster.start("A", "X", tablet=0)
    held = False
    while story.cluster.metadata.tablets.transitions:
        assert story.tablets.count == 2
        story.cluster.round()
        held |= story.cluster.table.table_id in story.cluster.coordinator.resizing.held
    assert held
    quiet = story.cluster.metadata.epoch
    story.until_count(4, write=False, rounds=3)
    # What was ready before is fenced once more: what was planned while a tablet moved does not land any more.
    assert all(open_snapshot(story.cluster.address(node)).fence >= quiet for node in "BCX")
    story.stay()
    story.cluster.settle()
    story.assert_settled()


# --- merging -------------------------------------------------------------------------------------------------------


def test_siblings_are_brought_together_before_they_are_merged(resizable: Grow) -> None:
    story = resizable({0: "ABC", 1: "XBC", 2: "ABC", 3: "XCB"}, FOUR)
    story.write(count=40)
    story.aim(NEVER_SPLIT)
    story.until(lambda tablets: tablets.resize_type == "merge")
    assert story.tablets.siblings_apart().tolist() == [0, 1]
    story.until_count(1)
    story.cluster.settle()
    story.assert_sound()


def test_a_merge_waits_for_a_volume_that_does_not_answer_and_says_so(resizable: Grow) -> None:
    story = resizable({0: "ABC", 1: "XBC"}, FOUR)
    story.write(count=40)
    story.aim(NEVER_SPLIT)
    with story.cluster.without("A"):
        story.until(lambda tablets: tablets.resize_type == "merge", write=False)
        epoch = story.cluster.metadata.epoch
        for _ in range(4):
            story.cluster.round()
        assert story.cluster.metadata.epoch == epoch
        assert any("tablets 0 and 1 wait for their merge: A/d1" in why for why in story.cluster.coordinator._blocked)
    story.until_count(1, write=False)
    story.cluster.settle()
    story.assert_settled()


def test_a_split_at_all_waits_for_every_replica_until_it_relaxes_in_the_log(resizable: Grow) -> None:
    story = resizable()
    story.write(count=40)
    cluster = story.cluster.cluster
    settings = CoordinatorSettings(backoff_seconds=0.0, barrier_level=BarrierLevel.ALL, barrier_timeout_seconds=0.3)
    cluster.configuration = msgspec.structs.replace(cluster.configuration, coordinator=settings)
    story.aim(ALWAYS_SPLIT)
    with story.cluster.without("C"):
        story.until(lambda tablets: tablets.resize_type == "split", write=False)
        story.cluster.round()
        assert story.tablets.count == 1
        assert any("waits for replicas: C/d1" in why for why in story.cluster.coordinator._blocked)
        story.until(lambda tablets: tablets.count > 1, rounds=5000, write=False)
    told = relaxed_in_the_log(cluster)[0]
    assert (told.what, told.level, told.passed_at) == ("the split of air.flights", "ALL", "QUORUM")
    assert "C/d1" in told.missing


# --- killed at each side effect ------------------------------------------------------------------------------------


class Killed(BaseException):
    """The coordinator's process ends here."""


DEADLY = (1, 3, 6, 12)
"""Which calls kill: any of several in a round, and then none, so that it goes on some time."""

PLACES = ["pre_split", "raise_fence", "relabel", "DecideResize", "FinishResize", "StartTransitions"]


@sliced("when", at_least=2)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_a_coordinator_that_is_killed_at_any_side_effect_is_followed_by_one_that_goes_on(
    resizable: Grow, monkeypatch: pytest.MonkeyPatch, place: str, when: str
) -> None:
    story = resizable({0: "ABC", 1: "XBC"}, FOUR)
    story.write(count=40)
    kills, after = 0, when == "after"

    def deadly(done: Callable) -> Callable:
        def once(*args: object, **options: object) -> object:
            nonlocal kills
            kills += 1
            dies = kills in DEADLY
            if dies and not after:
                raise Killed
            result = done(*args, **options)
            if dies:
                raise Killed
            return result

        return once

    match place:
        case "pre_split":
            monkeypatch.setattr(pre_split, "pre_split", deadly(pre_split.pre_split))
        case "raise_fence" | "relabel":
            monkeypatch.setattr(resizing, place, deadly(getattr(resizing, place)))
        case _:
            commit = story.cluster.cluster.commit
            monkeypatch.setattr(
                story.cluster.cluster,
                "commit",
                lambda what, **options: (deadly(commit) if what_kind(what) == place else commit)(what, **options),
            )
    for target, count in ((NEVER_SPLIT, 1), (ALWAYS_SPLIT, 4)):
        story.aim(target)
        for _ in range(100):
            if (story.tablets.count, story.tablets.resize_type) == (count, "none"):
                break
            held = story.cluster.pipeline()
            try:
                story.cluster.round()
            except Killed:
                story.restart()
            story.write(held, 2)
        else:
            raise AssertionError(story.cluster.coordinator._blocked)
    story.stay()
    assert kills > 0
    for _ in range(20):
        try:
            story.cluster.settle()
            break
        except Killed:
            story.restart()
    story.assert_settled()


def what_kind(what: object) -> str:
    return what.kind() if isinstance(what, Event) else ""
