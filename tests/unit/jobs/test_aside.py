"""Work beside the rounds of a coordinator: one piece at a time, in no round's way, and left when another one leads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import epochlake
import msgspec
import pytest
from epochlake.jobs.coordinator import coordinator
from epochlake.jobs.coordinator.coordinator import PATIENCE
from epochlake.jobs.coordinator.tracks.track import WorksAside
from epochlake.jobs.testing.local.cluster import CONFIGURATION
from epochlake.jobs.upkeep.aside import Aside, StoodDown
from epochlake.jobs.upkeep.coordination_member_track import CoordinationMemberTrack, PublishingTrack
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.testing import local_cluster
from kazoo.exceptions import MarshallingError

SECONDS = 300.0


class Slow:
    """A track whose work goes on until so many rounds have gone by."""

    def __init__(self, rounds: int, woken: threading.Event) -> None:
        self.blocked: list[str] = []
        self.aside = Aside[str](woken)
        self._rounds = rounds
        self.looked = 0
        self._enough = threading.Event()
        self.ended = ""

    @property
    def working(self) -> bool:
        return self.aside.working

    def stand_down(self) -> None:
        self.aside.stand_down()

    def advance(self, metadata: ClusterMetadata) -> bool:
        self.looked += 1
        if self.looked == 1:
            assert self.aside.start(self._work)
        if self.looked == self._rounds:
            self._enough.set()
        self.settle()
        return False

    def settle(self) -> None:
        if (ended := self.aside.take()) is not None:
            self.ended = ended[0] or str(ended[1])
        if not self.ended:
            self.blocked.append("it is at work")

    def idle(self, metadata: ClusterMetadata) -> bool:
        return not self.aside.working

    def _work(self) -> str:
        return "done" if self._enough.wait(SECONDS) else "no round went by"


def test_rounds_go_by_while_a_track_works_and_a_run_until_idle_waits_for_it(tmp_path: Path) -> None:
    quick = msgspec.structs.replace(
        CONFIGURATION, coordinator=msgspec.structs.replace(CONFIGURATION.coordinator, backoff_seconds=0.001)
    )
    woken = threading.Event()
    slow = Slow(3 * PATIENCE, woken)
    with local_cluster(tmp_path, configuration=quick) as lake:
        done = epochlake.Coordinator(lake.cluster, beside=[slow], woken=woken).run(until_idle=True)
    assert (slow.ended, done.idle, done.blocked) == ("done", True, ())
    assert done.rounds >= 3 * PATIENCE


class AfterTheLastRound(Slow):
    """Its work goes on until it is asked what has come of it after the rounds."""

    asked = False

    def settle(self) -> None:
        if self.asked:
            self._enough.set()
        super().settle()

    def advance(self, metadata: ClusterMetadata) -> bool:
        progressed = super().advance(metadata)
        self.asked = True
        return progressed


def test_what_the_last_round_has_begun_is_ended_by_the_coordinator_within_its_time_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "ASIDE_SECONDS", SECONDS)
    woken = threading.Event()
    with local_cluster(tmp_path) as lake:

        def run(track: Slow, *, stops: bool = False) -> tuple[bool, tuple[str, ...]]:
            made = epochlake.Coordinator(lake.cluster, beside=[track], woken=woken)
            done = made.run(until_idle=False, most_rounds=1, should_stop=lambda: stops and track.looked > 0)
            assert done.rounds == track.looked == 1
            return done.idle, done.blocked

        waited_for = AfterTheLastRound(0, woken)
        assert run(waited_for) == (True, ())
        assert (waited_for.ended, waited_for.working) == ("done", False)
        # Who is asked to stop waits for nobody, nor does anybody for ever: what is left is named.
        stopped, late = Slow(0, woken), Slow(0, woken)
        assert run(stopped, stops=True) == (False, ("it is at work",))
        monkeypatch.setattr(coordinator, "ASIDE_SECONDS", 0.0)
        assert run(late) == (False, ("it is at work",))
        for track in (stopped, late):
            assert track.working
            with pytest.raises(StoodDown):
                track.aside.require_leading()
            track._enough.set()


def test_what_a_track_of_the_ensemble_leaves_it_says() -> None:
    begun: list[Callable[[], None]] = []
    cluster: Any = SimpleNamespace()
    for track in (
        CoordinationMemberTrack(cluster, list, begin=begun.append),
        PublishingTrack(cluster, begin=begun.append),
    ):
        track._look = lambda metadata: ""  # type: ignore[method-assign]
        track.advance(None)  # type: ignore[arg-type]
        track.blocked.clear()
        track.settle()
        assert track.blocked == [f"{track.subject}: it is looked at: left to the next coordinator"]
        track.blocked.clear()
        begun.pop()()
        track.settle()
        assert (track.blocked, track.working) == ([], False)


def test_a_coordinator_that_ends_lets_what_goes_on_beside_it_end_too(tmp_path: Path) -> None:
    begun, stood_down = threading.Event(), threading.Event()

    class Endless(Slow):
        def _work(self) -> str:
            begun.set()
            while True:
                try:
                    self.aside.require_leading()
                except StoodDown:
                    stood_down.set()
                    raise
                threading.Event().wait(0.001)

    track = Endless(0, threading.Event())
    with local_cluster(tmp_path) as lake:
        epochlake.Coordinator(lake.cluster, beside=[track]).run(until_idle=False, should_stop=lambda: begun.wait(0.001))
    assert stood_down.wait(SECONDS)


def test_of_two_pieces_of_work_one_is_begun_and_an_error_is_told_once() -> None:
    begun: list[object] = []
    aside = Aside[str](begin=begun.append)

    def fails() -> str:
        raise ValueError("no")

    assert aside.start(fails)
    assert not aside.start(lambda: "a second one")
    begun.pop()()  # type: ignore[operator]
    assert not aside.start(lambda: "before the first was taken")
    ended = aside.take()
    assert ended is not None
    assert (ended[0], str(ended[1]), aside.take(), aside.working) == (None, "no", None, False)

    def none_left(_: object) -> None:
        raise RuntimeError("can't start new thread")

    crowded = Aside[str](begin=none_left)
    with pytest.raises(RuntimeError):
        crowded.start(fails)
    assert not crowded.working


def test_whatever_zookeeper_answers_to_a_look_ends_no_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    """As where an access list forbids it, or a quota."""

    def refuses(*_: object, **__: object) -> object:
        raise MarshallingError

    cluster: Any = SimpleNamespace(coordination=refuses)
    metadata: Any = SimpleNamespace(identity=SimpleNamespace(cluster_id="c1"))
    publishing = PublishingTrack(cluster, begin=lambda task: task())
    assert publishing.advance(metadata) is False
    assert (publishing.blocked, publishing.working) == ([], False)
    assert "was not published: ZooKeeper answers what nobody has foreseen (MarshallingError)" in caplog.text
    keeping = CoordinationMemberTrack(cluster, list, begin=lambda task: task())
    keeping._look = refuses  # type: ignore[assignment]
    assert keeping.advance(metadata) is False
    [waits] = keeping.blocked
    assert waits == "coordination members: ZooKeeper answers what nobody has foreseen (MarshallingError)"
    # What is a mistake of ours is not passed over.
    keeping._look = lambda metadata: 1 / 0  # type: ignore[assignment,return-value]
    keeping._look_at = 0.0
    with pytest.raises(ZeroDivisionError):
        keeping.advance(metadata)


def test_the_tracks_that_keep_and_publish_an_ensemble_work_beside_the_rounds() -> None:
    assert all(
        isinstance(kind(None, *more), WorksAside)
        for kind, more in (  # type: ignore[arg-type]
            (CoordinationMemberTrack, (list,)),
            (PublishingTrack, ()),
        )
    )
