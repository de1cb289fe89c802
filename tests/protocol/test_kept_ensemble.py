"""A coordinator keeps the servers of a real ensemble: it grows, replaces, yields, and goes on where one was killed.

Server 1 is the ensemble, and servers 2 to 4 follow it without a vote, as those of agents do; four nodes are to have
three members. Each test leaves it so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from epochlake.jobs.upkeep import coordination_members
from epochlake.jobs.upkeep.coordination_member_track import RETRY_SECONDS, CoordinationMemberTrack
from epochlake.metastore import threads
from epochlake.metastore.configuration import Configuration, ZooKeeperSettings
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.ensemble import Server
from epochlake.metastore.coordination.keeping import KEPT, KeeperState, Keeping, KeptChange
from epochlake.metastore.coordination.reconfiguring import EnsembleMover
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.metadata.model import Node, NodeId, NodeState

from tests.support.waiting import eventually
from tests.support.zookeeper import OPERATOR, Ensemble, expire_session

pytestmark = pytest.mark.timing

PATIENCE = 300.0
GRACE = 150.0
NODES = (1, 2, 3, 4)
ALONE = {1: "voter"}
THREE = {1: "voter", 2: "voter", 3: "voter"}


class CutOff(Exception):
    """The coordinator was killed here."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """The ensemble, and coordinators that keep it."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        settings = ZooKeeperSettings(
            connect=ensemble.connect_string.split(",")[0],
            operator=OPERATOR,
            members="auto",
            replace_after_seconds=GRACE,
            session_timeout_seconds=30.0,
        )
        self.cluster: Any = SimpleNamespace(configuration=Configuration(root="unused", zookeeper=settings), others=None)
        self.clock = Clock()

    def server(self, number: int) -> Server:
        return self.ensemble.server(number - 1)

    def offers(self) -> list[tuple[str, str]]:
        return [(f"n{number}", str(self.server(number))) for number in NODES]

    def track(
        self,
        offers: Callable[[], Iterable[tuple[str, str]]] | None = None,
        begin: Callable[[Callable[[], None]], None] | None = None,
    ) -> CoordinationMemberTrack:
        """One whose looks are not in a thread of their own, so that a test knows when they have ended."""
        return CoordinationMemberTrack(
            self.cluster, offers or self.offers, self.clock, begin=begin or (lambda task: task())
        )

    def look(self, track: CoordinationMemberTrack, nodes: Iterable[int] = NODES, cluster: str = "kept") -> list[str]:
        """One look of a coordinator, a minute later; what it waits for."""
        self.clock.now += RETRY_SECONDS
        directory = SimpleNamespace(
            nodes={n: Node(NodeId(n), f"n{n}", f"h{n}", "dc1", f"r{n}", (), NodeState.NORMAL) for n in nodes}
        )
        metadata: Any = SimpleNamespace(directory=directory, identity=SimpleNamespace(cluster_id=cluster))
        track.blocked.clear()
        assert track.advance(metadata) is False
        return list(track.blocked)

    def members(self) -> dict[int, str]:
        with coordination_members.Ensemble(self.cluster.configuration, "kept") as found:
            described = found.describe()
            return {row.server: row.role for row in described.members}

    def operator(self, what: Callable[[EnsembleMover], object]) -> None:
        """What somebody does by hand."""
        with coordination_members.Ensemble(self.cluster.configuration, "kept") as found:
            what(found.mover)


@pytest.fixture(scope="module")
def _ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("kept"), size=1, changeable=True, beside=3) as ensemble:
        yield ensemble


@pytest.fixture
def kept(_ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr(coordination_members, "STEP_SECONDS", PATIENCE)
    monkeypatch.setattr(coordination_members, "LOOK_SECONDS", PATIENCE)
    made = Kept(_ensemble)
    yield made
    _ensemble.heal()
    with Coordination(_ensemble.connect_string, "/heal", operator=OPERATOR, connect_timeout=PATIENCE) as session:
        EnsembleMover(session, PATIENCE, PATIENCE).begin([made.server(1)])
        session.call("forget", lambda client: client.delete_async(KEPT), PATIENCE)


def test_an_ensemble_grows_replaces_who_is_silent_for_long_and_shrinks(kept: Kept) -> None:
    track = kept.track()
    assert kept.look(track) == []
    assert kept.members() == THREE
    assert track.advance(None) is False, "the next look comes in a minute"  # type: ignore[arg-type]
    kept.ensemble.kill(2)
    for _ in range(3):
        [waits] = kept.look(track)
        assert waits.startswith("coordination members: server 3 may come back (it does not answer)")
        assert kept.members() == THREE
    assert kept.look(track) == []
    replaced = {1: "voter", 2: "voter", 4: "voter"}
    assert kept.members() == replaced
    # Back from the dead it follows, and gets no vote: nobody needs it.
    kept.ensemble.restart(2)
    assert kept.look(track) == kept.look(kept.track()) == []
    assert kept.members() == replaced
    assert kept.look(track, nodes=(1, 2)) == []
    assert kept.members() == ALONE


@pytest.mark.parametrize("at", ["claimed", "noted", "said", "half way", "done"])
def test_a_coordinator_that_is_killed_anywhere_is_followed_by_one_that_goes_on(
    kept: Kept, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise CutOff

    with monkeypatch.context() as patched:
        if at == "claimed":
            patched.setattr(EnsembleMover, "note_from", killed)
        elif at in ("noted", "done"):
            writing, last = Keeping.write, at == "done"

            def write(keeping: Keeping, change: KeptChange) -> None:
                if change.noted or (last and not change.target):
                    raise CutOff
                writing(keeping, change)

            def write_all_but_the_last(keeping: Keeping, change: KeptChange) -> None:
                if not change.target:
                    raise CutOff
                writing(keeping, change)

            patched.setattr(Keeping, "write", write_all_but_the_last if last else write)
        elif at == "said":
            patched.setattr(EnsembleMover, "go_on", killed)
        else:
            waiting, seen = EnsembleMover._wait_until_caught_up, list[int]()

            def wait(mover: EnsembleMover, server: Server) -> None:
                seen.append(server.number)
                # Before a note for both, and before and after the step of the first.
                if seen.count(2) == 3:
                    raise CutOff
                waiting(mover, server)

            patched.setattr(EnsembleMover, "_wait_until_caught_up", wait)
        with pytest.raises(CutOff):
            kept.look(kept.track())
    half_way = {1: "voter", 2: "voter"}
    assert kept.members() == {"half way": half_way, "done": THREE}.get(at, ALONE)
    assert kept.look(kept.track()) == []
    assert kept.members() == THREE


STEPS = (
    "it is claimed",
    "the version is raised",
    "it is noted",
    "the note is its own",
    "the second server gets a vote",
    "the third server gets a vote",
    "the version is raised at the end",
    "it is not noted any more",
    "it is not claimed any more",
)
"""What a coordinator writes when one server becomes three, in this order."""


@pytest.mark.parametrize("step", STEPS)
def test_a_coordinator_that_stands_still_before_any_step_until_its_session_is_over_undoes_nothing_later(
    kept: Kept, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one ends the change; an operator has taken it back when the first one goes on where it stood."""
    left = [STEPS.index(step)]
    pauses, may_go_on, sessions = threading.Event(), threading.Event(), list[Coordination]()

    def before(kind: type, name: str, session: str) -> None:
        doing = getattr(kind, name)

        def stands_still(of: Any, *arguments: object) -> object:
            if threading.current_thread().name == "stands-still":
                left[0] -= 1
                if left[0] == -1:
                    sessions.append(getattr(of, session))
                    pauses.set()
                    assert may_go_on.wait(PATIENCE)
            return doing(of, *arguments)

        monkeypatch.setattr(kind, name, stands_still)

    for kind, name in ((Keeping, "write"), (EnsembleMover, "_take"), (EnsembleMover, "_write")):
        before(kind, name, "_coordination")
    said: list[list[str]] = []
    paused = threading.Thread(target=lambda: said.append(kept.look(kept.track())), name="stands-still", daemon=True)
    paused.start()
    try:
        assert pauses.wait(PATIENCE)
        expire_session(sessions[0])
        assert kept.look(kept.track()) == []
        assert kept.members() == THREE
        kept.operator(lambda mover: mover.begin([kept.server(1)]))
    finally:
        may_go_on.set()
    paused.join(PATIENCE)
    assert len(said) == 1, "it has come to an end"
    assert all("somebody else has" in waits for waits in said[0]), said
    assert kept.members() == ALONE
    with coordination_members.Ensemble(kept.cluster.configuration, "kept") as found:
        assert found.mover.notes().change is None
        assert found.keeping.read() == KeptChange("kept")


def test_what_an_operator_has_begun_is_left_alone_and_what_one_has_taken_back_is_not_begun_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise CutOff

    track = kept.track()
    with monkeypatch.context() as patched:
        patched.setattr(EnsembleMover, "_carry_out", killed)
        with pytest.raises(CutOff):
            kept.operator(lambda mover: mover.begin([kept.server(4)]))
    for one in (track, kept.track()):
        assert kept.look(one) == ["coordination members: somebody has begun a change of them that is unfinished"]
    assert kept.members() == ALONE
    kept.operator(lambda mover: mover.cancel())
    with monkeypatch.context() as patched:
        patched.setattr(EnsembleMover, "go_on", killed)
        with pytest.raises(CutOff):
            kept.look(track)
    kept.operator(lambda mover: mover.cancel())
    for one in (track, kept.track()):
        [waits] = kept.look(one)
        assert waits.startswith("coordination members: somebody has taken back the change to server.1=")
    assert kept.members() == ALONE
    # Other circumstances, another choice.
    assert kept.look(track, nodes=(1, 2, 4)) == []
    assert kept.members() == {1: "voter", 2: "voter", 4: "voter"}


def test_a_coordinator_that_stood_still_after_it_had_looked_changes_nothing(kept: Kept) -> None:
    def meanwhile() -> list[tuple[str, str]]:
        assert kept.look(kept.track()) == []
        kept.operator(lambda mover: mover.begin([kept.server(1)]))
        return kept.offers()

    [waits] = kept.look(kept.track(meanwhile))
    assert waits == "coordination members: somebody else has changed the coordination members meanwhile"
    assert kept.members() == ALONE


def test_of_two_coordinators_at_once_none_undoes_what_the_other_does(kept: Kept) -> None:
    both = threading.Barrier(2)

    def offers() -> list[tuple[str, str]]:
        both.wait(PATIENCE)
        return kept.offers()

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: kept.look(kept.track(offers)), range(2)))
    assert [] in said
    assert all("somebody else has" in waits for one in said for waits in one)
    assert kept.look(kept.track()) == []
    assert kept.members() == THREE


def test_a_change_whose_server_dies_goes_back_and_who_keeps_it_for_another_cluster_is_told(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, seen = EnsembleMover._wait_until_caught_up, list[int]()

    def dies(mover: EnsembleMover, server: Server) -> None:
        seen.append(server.number)
        if seen.count(3) == 2:
            raise CoordinationUnavailable("server 3 does not follow the ensemble")
        waiting(mover, server)

    track = kept.track()
    with monkeypatch.context() as patched:
        patched.setattr(EnsembleMover, "_wait_until_caught_up", dies)
        assert kept.look(track) == ["coordination members: server 3 does not follow the ensemble"]
    assert kept.members() == {1: "voter", 2: "voter"}
    [waits] = kept.look(kept.track(), cluster="other")
    assert waits == "coordination members: the ensemble is kept by another cluster, kept"
    kept.ensemble.kill(2)
    kept.ensemble.kill(3)
    [waits] = kept.look(track)
    assert waits == "coordination members: 2 of 3 servers are there on normal nodes"
    assert kept.members() == ALONE
    kept.ensemble.restart(3)
    assert kept.look(track) == []
    assert kept.members() == {1: "voter", 2: "voter", 4: "voter"}


def test_a_change_holds_up_no_round_says_what_it_does_and_is_left_by_who_leads_no_more(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, waits, may_go_on = EnsembleMover._wait_until_caught_up, threading.Event(), threading.Event()

    def wait(mover: EnsembleMover, server: Server) -> None:
        mover.on_step(f"server {server.number} catches up")
        waits.set()
        assert may_go_on.wait(PATIENCE)
        waiting(mover, server)

    def described() -> KeeperState | None:
        with coordination_members.Ensemble(kept.cluster.configuration, "kept") as found:
            return found.describe().keeper

    def ended() -> bool:
        track._take()
        return not track.working

    monkeypatch.setattr(EnsembleMover, "_wait_until_caught_up", wait)
    track = kept.track(begin=threads.begin)
    kept.look(track)
    assert waits.wait(PATIENCE)
    for _ in range(3):
        assert kept.look(track) == ["coordination members: server 2 catches up"]
    assert (track.working, track.idle(None)) == (True, False)  # type: ignore[arg-type]
    said = eventually(described, PATIENCE)
    assert (said.doing, said.waits) == ("server 2 catches up", "")
    track.stand_down()
    may_go_on.set()
    eventually(ended, PATIENCE)
    assert kept.members() == ALONE
    # It leads again, and goes on with what it has left.
    kept.look(track)
    eventually(ended, PATIENCE)
    assert kept.members() == THREE
    eventually(lambda: (found := described()) is not None and not found.doing and not found.waits, PATIENCE)


def test_nobody_is_asked_for_more_than_a_word_by_what_agents_make_up(kept: Kept) -> None:
    wrong = [("n2", "no server"), ("n3", str(kept.server(3)) + "9" * 300), ("n4", str(kept.server(2)))]
    [waits] = kept.look(kept.track(lambda: [*wrong, ("n1", str(kept.server(1)))]))
    assert waits == "coordination members: 2 of 3 servers are there on normal nodes"

    def unreachable() -> list[tuple[str, str]]:
        raise CoordinationUnavailable("no agent answers")

    assert kept.look(kept.track(unreachable)) == ["coordination members: no agent answers"]
    configuration = msgspec.structs.replace(
        kept.cluster.configuration, zookeeper=msgspec.structs.replace(kept.cluster.configuration.zookeeper, operator="")
    )
    kept.cluster.configuration = configuration
    [waits] = kept.look(kept.track())
    assert waits == "coordination members: ZooKeeper lets only its operator change the ensemble"
    assert kept.members() == ALONE
