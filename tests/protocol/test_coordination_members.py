"""Servers of a real ensemble are exchanged while it serves: killed at each step, by two at once, and by who comes late.

The ensemble has servers 1 to 3, and 4 and 5 follow it without a vote. Each test leaves it so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.ensemble import OBSERVER, EnsembleConfiguration, Server, Step
from epochlake.metastore.coordination.keeping import KEPT, Keeping, KeptChange
from epochlake.metastore.coordination.member_addresses import follow_members
from epochlake.metastore.coordination.reconfiguring import NOTES, EnsembleMover, Overtaken
from epochlake.metastore.coordination.server_answers import ask
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable, UnknownFormat
from epochlake.placement.errors import InvalidRequest

from tests.support.waiting import eventually
from tests.support.zookeeper import OPERATOR, Ensemble

pytestmark = pytest.mark.timing

Opener = Callable[..., Coordination]

PATIENCE = 300.0
"""Seconds that a step may take here: of a machine that stands still, not of ZooKeeper."""
IMPATIENCE = 0.0
"""Where what is waited for cannot happen: one look is enough."""
FIRST = (1, 2, 3)


class CutOff(Exception):
    """The process that changed the ensemble was killed here."""


class CutOffMover(EnsembleMover):
    """Is killed at its step number `at`, counted from 0: before ZooKeeper is asked for it, or `after` that."""

    def __init__(self, coordination: Coordination, at: int, *, after: bool) -> None:
        super().__init__(coordination, PATIENCE, PATIENCE)
        self._left = at
        self._after = after
        self.beginning = True

    def _raise_version(self) -> None:
        super()._raise_version()
        self.beginning = False

    def _take(self, step: Step, at: EnsembleConfiguration) -> bool:
        if self.beginning:
            return super()._take(step, at)
        self._left -= 1
        if self._left < 0 and not self._after:
            raise CutOff
        taken = super()._take(step, at)
        if self._left < 0:
            raise CutOff
        return taken


@pytest.fixture(scope="module")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("changeable"), size=3, changeable=True, beside=2) as servers:
        yield servers


@pytest.fixture
def servers(_servers: Ensemble, connect: Opener) -> Iterator[Ensemble]:
    """Servers 1 to 5 of which the first three are the ensemble, also for the next test."""
    yield _servers
    _servers.heal()
    with Coordination(_servers.connect_string, "/heal", operator=OPERATOR, connect_timeout=120.0) as coordination:
        mover_of(coordination).begin(those(_servers, *FIRST))
        assert mover_of(coordination).notes().change is None


@pytest.fixture
def operate(servers: Ensemble, connect: Opener) -> Callable[..., Coordination]:
    """Opens sessions that may change the ensemble, with any of its servers."""

    def opened() -> Coordination:
        return connect(servers.connect_string, operator=OPERATOR)

    return opened


def mover_of(coordination: Coordination, step_seconds: float = PATIENCE) -> EnsembleMover:
    """Servers are given time to say what they are, also where nothing is waited for."""
    return EnsembleMover(coordination, step_seconds, PATIENCE)


def those(ensemble: Ensemble, *numbers: int) -> list[Server]:
    """Servers by their numbers; a negative one is an observer."""
    found = [ensemble.server(abs(number) - 1) for number in numbers]
    return [one.as_role(OBSERVER) if number < 0 else one for one, number in zip(found, numbers, strict=True)]


def numbers(configuration: EnsembleConfiguration) -> tuple[int, ...]:
    return tuple(server.number if server.votes else -server.number for server in configuration.servers)


def test_all_voters_but_one_are_exchanged_under_a_session_that_goes_on(
    servers: Ensemble, operate: Opener, connect: Opener
) -> None:
    with connect(",".join(f"127.0.0.1:{port}" for port in servers.ports[:3])) as client:
        follow_members(client)
        path = client.path("lives")
        client.call("create", lambda kazoo: kazoo.create_async(path, b"", ephemeral=True), PATIENCE)
        mover = mover_of(operate())
        assert numbers(mover.configuration()) == FIRST
        assert numbers(mover.begin(those(servers, 3, 4, 5))) == (3, 4, 5)
        assert (mover.notes().change, client.owner(path, PATIENCE)) == (None, client.session_id)
        wanted = {server.reached_at for server in those(servers, 3, 4, 5)}
        eventually(lambda: wanted <= set(client.connect_string.split(",")), PATIENCE)
        for index in (0, 1):
            servers.kill(index)
        assert client.owner(path, PATIENCE) == client.session_id
        # The session is at a new server now, wherever it was before.
        servers.kill(2)
        client.call("write", lambda kazoo: kazoo.set_async(path, b"still"), PATIENCE)
        servers.restart(2)
        eventually(
            lambda: all(ask(server).state in ("leader", "follower") for server in those(servers, 3, 4, 5)), PATIENCE
        )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("at", "way"), [(0, "resume"), (0, "cancel"), (1, "resume"), (1, "cancel"), (2, "resume")])
def test_a_change_that_was_killed_at_any_step_is_ended_or_taken_back_by_anybody(
    servers: Ensemble, operate: Opener, at: int, way: str, after: bool
) -> None:
    """Server 4 joins, 1 leaves, and the change is called ended."""
    with pytest.raises(CutOff):
        CutOffMover(operate(), at, after=after).begin(those(servers, 2, 3, 4), {4: "n4"})
    somebody = mover_of(operate())
    change = somebody.notes().change
    assert change is not None
    assert numbers(somebody.configuration()) == [FIRST, (1, 2, 3, 4), (2, 3, 4)][min(at + after, 2)]
    assert numbers(getattr(somebody, way)()) == ((2, 3, 4) if way == "resume" else FIRST)
    assert (somebody.notes().change, somebody.notes().nodes) == (None, {"4": "n4"} if way == "resume" else {})
    with pytest.raises(InvalidRequest, match="no change of the coordination members is unfinished"):
        getattr(somebody, way)()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_leader_that_is_killed_at_any_step_holds_up_nothing(servers: Ensemble, operate: Opener, at: int) -> None:
    with pytest.raises(CutOff):
        CutOffMover(operate(), at, after=False).begin(those(servers, 2, 3, 4, 5, 1))
    leader = servers.leader_index()
    servers.kill(leader)
    # A member of before is needed for nothing; who has to join is.
    assert leader < 3
    assert numbers(mover_of(operate()).resume()) == (1, 2, 3, 4, 5)


def test_a_server_that_dies_before_it_joins_leaves_the_ensemble_as_it_is_until_it_is_back(
    servers: Ensemble, operate: Opener
) -> None:
    with pytest.raises(CutOff):
        CutOffMover(operate(), 0, after=False).begin(those(servers, 2, 3, 4))
    servers.kill(3)
    with pytest.raises(CoordinationUnavailable, match=r"server 4 at .* does not follow the ensemble"):
        mover_of(operate(), IMPATIENCE).resume()
    mover = mover_of(operate())
    assert numbers(mover.configuration()) == FIRST
    # What another one is for: a change is given up for a change.
    assert numbers(mover.begin(those(servers, 2, 3, 5))) == (2, 3, 5)
    servers.restart(3)
    assert numbers(mover.begin(those(servers, 2, 3, 4))) == (2, 3, 4)


def test_a_server_that_hangs_is_said_not_to_answer_and_notes_of_others_are_not_guessed_at(
    servers: Ensemble, operate: Opener
) -> None:
    servers.pause(4)
    assert ask(servers.server(4)).trouble == "it does not answer"
    servers.resume(4)
    mover = mover_of(operate())
    assert numbers(mover.begin(those(servers, 1, 2, 4), {4: "n4"})) == (1, 2, 4)
    session = operate()
    kept = session.barrier(NOTES, PATIENCE)
    assert kept is not None
    session.call("spoil", lambda kazoo: kazoo.set_async(NOTES, kept.data[:-3]), PATIENCE)
    with pytest.raises(UnknownFormat, match=NOTES):
        mover.resume()
    session.call("mend", lambda kazoo: kazoo.set_async(NOTES, kept.data), PATIENCE)
    assert mover.notes().nodes == {"4": "n4"}


def test_a_dead_voter_is_replaced(servers: Ensemble, operate: Opener) -> None:
    servers.kill(servers.leader_index())
    (dead,) = [index for index in range(3) if not servers.runs(index)]
    left = [number for number in FIRST if number != dead + 1]
    mover = mover_of(operate())
    assert numbers(mover.begin(those(servers, *left, 4))) == (*left, 4)


def test_a_step_of_somebody_who_stood_still_is_refused_once_the_change_was_taken_back(
    servers: Ensemble, operate: Opener
) -> None:
    """The one case that the version alone does not tell: what was taken back had not got anywhere yet."""
    with pytest.raises(CutOff):
        CutOffMover(operate(), 0, after=False).begin(those(servers, 2, 3, 4))
    late = mover_of(operate())
    seen = late.configuration()
    somebody = mover_of(operate())
    assert numbers(somebody.cancel()) == FIRST
    assert late._take(Step(joining=servers.server(3)), seen) is False
    assert numbers(somebody.configuration()) == FIRST


@pytest.mark.parametrize("when", ["has ended", "goes on", "comes between", "has noted it first"])
def test_a_choice_is_not_begun_when_anybody_has_changed_anything_since_it_was_made(
    servers: Ensemble, operate: Opener, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = mover_of(operate()), mover_of(operate())
    mine, theirs = those(servers, 2, 3, 5), those(servers, 2, 3, 4)
    taking = late._take

    def begun() -> None:
        with pytest.raises(CutOff):
            CutOffMover(operate(), 0, after=False).begin(theirs)

    def taken(step: Step, at: EnsembleConfiguration) -> bool:
        found = taking(step, at)
        if when == "comes between":
            other.begin(theirs)
            other.begin(those(servers, *FIRST))
        else:
            begun()
        return found

    if when == "has noted it first":
        # There are no notes at all yet, or there were none when it was looked.
        operate().call("forget", lambda kazoo: kazoo.ensure_path_async(NOTES), PATIENCE)
        operate().call("forget", lambda kazoo: kazoo.delete_async(NOTES), PATIENCE)
    seen = late.look()
    if when == "has ended":
        other.begin(theirs)
        other.begin(those(servers, *FIRST))
    elif when == "goes on":
        begun()
    else:
        monkeypatch.setattr(late, "_take", taken)
    with pytest.raises(Overtaken, match="somebody else has changed the coordination members meanwhile"):
        late.note_from(seen, mine, {})
    assert numbers(late.configuration()) == FIRST
    change = late.notes().change
    assert (change is not None) == (when in ("goes on", "has noted it first"))
    if change is not None:
        assert change.target == tuple(map(str, theirs))
        other.cancel()
    monkeypatch.setattr(late, "_take", taking)
    late.note_from(late.look(), mine, {5: "n5"})
    assert late.look().notes.nodes == {"5": "n5"}
    # Its own change is replaced by a better choice, and goes back to where both began.
    late.note_from(late.look(), theirs, {})
    assert numbers(other.cancel()) == FIRST


def test_what_was_kept_is_written_by_who_has_read_it_last(servers: Ensemble, operate: Opener) -> None:
    one, other = Keeping(operate()), Keeping(operate())
    assert one.read() is other.read() is None
    mine = KeptChange("lake", tuple(map(str, those(servers, 1, 2))))
    one.write(mine)
    with pytest.raises(Overtaken):
        other.write(KeptChange("other"))
    assert other.read() == mine
    other.write(KeptChange("other"))
    with pytest.raises(Overtaken):
        one.write(KeptChange("lake"))
    session = operate()
    session.call("spoil", lambda kazoo: kazoo.set_async(KEPT, b"{"), PATIENCE)
    with pytest.raises(UnknownFormat, match=KEPT):
        one.read()
    session.call("mend", lambda kazoo: kazoo.delete_async(KEPT), PATIENCE)
    with pytest.raises(Overtaken):
        other.write(KeptChange("other"))


def test_two_who_end_the_same_change_at_once_both_see_it_ended(servers: Ensemble, operate: Opener) -> None:
    with pytest.raises(CutOff):
        CutOffMover(operate(), 0, after=False).begin(those(servers, 3, 4, 5))
    both = threading.Barrier(2)

    def resume() -> tuple[int, ...]:
        mover = mover_of(operate())
        both.wait(PATIENCE)
        try:
            return numbers(mover.resume())
        except InvalidRequest:
            # Who came when it had ended already.
            return numbers(mover.configuration())

    with ThreadPoolExecutor(2) as pool:
        assert [one.result() for one in [pool.submit(resume) for _ in range(2)]] == [(3, 4, 5)] * 2
    assert mover_of(operate()).notes().change is None


def test_a_change_that_another_one_took_the_place_of_says_so(
    servers: Ensemble, operate: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = mover_of(operate()), mover_of(operate())
    waiting = mine._wait_until_caught_up

    def while_it_is_waited_for(server: Server) -> None:
        waiting(server)
        if mine.notes().change is not None:
            monkeypatch.setattr(mine, "_wait_until_caught_up", waiting)
            other.begin(those(servers, 1, 2, 5))

    monkeypatch.setattr(mine, "_wait_until_caught_up", while_it_is_waited_for)
    with pytest.raises(InvalidRequest, match="somebody else has put another change"):
        mine.begin(those(servers, 2, 3, 4))
    assert numbers(other.configuration()) == (1, 2, 5)


def test_roles_change_in_steps_and_an_ensemble_shrinks_to_one_and_grows_again(
    servers: Ensemble, operate: Opener
) -> None:
    mover = mover_of(operate())
    for wanted in [(1, 2, 3, -4), (1, 2, 3, 4, 5), (-1, 2, -3, 4, 5), (5,), (-1, 5), (1, 4, 5)]:
        assert numbers(mover.begin(those(servers, *wanted))) == wanted
        expected = {abs(number): ("observer",) if number < 0 else ("leader", "follower") for number in wanted}
        eventually(
            lambda: all(ask(one).state in expected[one.number] for one in those(servers, *map(abs, wanted))),  # noqa: B023
            PATIENCE,
        )


def test_who_cannot_be_a_member_is_found_out_before_anything_is_begun(
    servers: Ensemble, operate: Opener, tmp_path: Path
) -> None:
    mover = mover_of(operate(), IMPATIENCE)
    four, five = those(servers, 4, 5)
    with Ensemble(tmp_path, size=1, changeable=True) as other:
        stranger = other.server(0)
        wrong = [
            (Server(4, five.address, five.client), "it is server 5"),
            (Server(4, four.address, "127.0.0.1:1"), "it does not answer"),
            (Server(1, stranger.address, stranger.client), "server 1 is at .* already"),
            (Server(6, stranger.address, stranger.client), "it is server 1"),
        ]
        for server, reason in wrong:
            with pytest.raises((CoordinationUnavailable, InvalidRequest), match=reason):
                mover.begin([*those(servers, 2, 3), server])
        # By its number it could be: another cluster has begun to count at 1 as well.
        with pytest.raises(CoordinationUnavailable, match="the servers that it knows are others"):
            mover._wait_until_caught_up(stranger)
    assert (numbers(mover.configuration()), mover.notes().change) == (FIRST, None)


def test_only_the_operator_changes_an_ensemble_and_only_one_that_can_be_changed(
    servers: Ensemble, connect: Opener, zookeeper: str
) -> None:
    mover = mover_of(connect(servers.connect_string))
    with pytest.raises(ConfigurationError, match="only its operator"):
        mover.begin(those(servers, 2, 3, 4))
    assert mover.notes().change is None
    with pytest.raises(ConfigurationError, match="cannot be changed while it serves"):
        mover_of(connect(zookeeper)).begin(those(servers, 1, 2, 3))


def test_a_session_keeps_to_the_addresses_that_it_was_given_when_the_ensemble_knows_itself_by_others(
    servers: Ensemble, connect: Opener
) -> None:
    """As with a proxy in front of it."""
    aliases = ",".join(f"localhost:{port}" for port in servers.ports[:3])
    known = connect(",".join(f"127.0.0.1:{port}" for port in servers.ports[:1]))
    translated = connect(aliases)
    follow_members(known)
    follow_members(translated)
    eventually(lambda: len(known.connect_string.split(",")) == 3, PATIENCE)
    # Both asked in the same moment: once more after the one that has learnt something, so that it had its turn.
    translated.barrier("/zookeeper/config", PATIENCE)
    assert translated.connect_string == aliases
