"""A node asks to join: who may, who is told why not, and what a kill, a replay, a full disk or an operator change."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.agent.admission import admit
from epochlake.jobs.agent.admitting import AT_ONCE, Admitting
from epochlake.jobs.agent.home import AgentIdentity, Home, HomeUnwritable
from epochlake.jobs.agent.http_client import AgentUnreachable
from epochlake.jobs.agent.join_messages import JoinAnswer, JoinRequest, Outcome, WantedVolume, join_refusal
from epochlake.jobs.agent.joining import Joining, JoinState, Phase, WantedNode
from epochlake.jobs.agent.messages import PROTOCOL, Introduction, Refusal, Tag
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.testing import local_cluster

TAG, OTHER = Tag("lake", "1"), Tag("sea", "2")
MEMBER = Introduction("m", "n1", "h1:1", TAG, PROTOCOL, "0.1.0")
BLANK = Introduction("b", "n4", "h4:1", None, PROTOCOL, "0.1.0", features=SUPPORTED)
ASKED = JoinRequest(BLANK, "n-1", "join-b", "dc1", "r4", (WantedVolume("d1", "/d1", 1 << 30),))

changed = msgspec.structs.replace


@pytest.mark.parametrize(
    ("member", "admits", "sender", "more", "open_as", "code"),
    [
        (MEMBER, True, {}, {}, None, None),
        (MEMBER, True, {}, {}, "join-b", None),
        (MEMBER, True, {}, {"cluster": "lake"}, None, None),
        (MEMBER, True, {}, {"cluster": "sea"}, None, "cluster-name"),
        (MEMBER, True, {}, {}, "join-x", "join-open"),
        (MEMBER, False, {}, {}, None, "admits-nobody"),
        (changed(MEMBER, tag=None), True, {}, {}, None, "not-a-member"),
        (MEMBER, True, {"tag": TAG}, {}, None, "already-a-member"),
        (MEMBER, True, {"tag": OTHER}, {}, None, "cluster-tag"),
        (MEMBER, True, {"protocol": 9}, {}, None, "protocol"),
        (MEMBER, True, {"product_version": "7.0"}, {}, None, "version"),
    ],
)
def test_a_member_refuses_what_it_can_judge_by_itself(
    member: Introduction,
    admits: bool,
    sender: dict[str, Any],
    more: dict[str, Any],
    open_as: str | None,
    code: str | None,
) -> None:
    asked = changed(ASKED, sender=changed(BLANK, **sender), **more)
    why = join_refusal(member, admits, asked, open_as)
    assert (None if why is None else why.code) == code


def test_the_log_lets_a_node_in_once_and_says_why_not(tmp_path: Path) -> None:
    with local_cluster(tmp_path, nodes=1, replication=1) as lake:
        asked = changed(ASKED, volumes=(WantedVolume("d1", str(tmp_path / "d4")),))
        first = admit(lake.cluster, asked)
        assert (first.outcome, first.epoch) == (Outcome.ACCEPTED, lake.epoch)
        assert admit(lake.cluster, changed(asked, nonce="n-2")) == changed(first, nonce="n-2")
        assert lake.cluster.catch_up().node("n4").rack == "r4"
        # Another agent of the same name, as one whose home was cleared is.
        again = admit(lake.cluster, changed(asked, request_id="join-c"))
        assert again.outcome is Outcome.REJECTED
        assert "node-exists" in again.reason
        assert lake.epoch == first.epoch
        lake.coordinate()
        assert str(lake.cluster.catch_up().node("n4").state) == "normal"


def test_an_agent_whose_node_was_removed_is_not_let_in_from_an_old_copy_of_its_home(tmp_path: Path) -> None:
    with local_cluster(tmp_path, nodes=1, replication=1) as lake:
        asked = changed(ASKED, volumes=(WantedVolume("d1", str(tmp_path / "d4")),))
        epoch = admit(lake.cluster, asked).epoch
        lake.coordinate()
        administration.decommission(lake.cluster, "n4")
        lake.coordinate()
        refused = admit(lake.cluster, asked)
        assert refused.outcome is Outcome.REJECTED
        assert f"was added in epoch {epoch} under this request, and was removed since" in refused.reason
        administration.unregister_nodes(lake.cluster, "n4")
        assert admit(lake.cluster, asked) == refused
        # Nor one whose home was cleared: the marker of its volume says whose it was.
        again = admit(lake.cluster, changed(asked, request_id="join-c"))
        assert again.outcome is not Outcome.ACCEPTED
        assert "which has left" in again.reason
        assert "n4" not in lake.cluster.catch_up().directory.by_name


def test_a_member_asks_the_log_once_however_often_it_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    answers = iter([Outcome.PENDING, Outcome.REJECTED])

    async def admission(request: JoinRequest) -> JoinAnswer:
        calls.append(request.request_id)
        await asyncio.sleep(0.01)
        return JoinAnswer(request.nonce, next(answers), "too few racks")

    async def decided(admitting: Admitting) -> None:
        while admitting.open_as("n4") is not None:
            await asyncio.sleep(0.001)

    async def scene() -> None:
        admitting = Admitting(admission)
        for nonce in ("1", "2", "3"):
            assert admitting.asked(changed(ASKED, nonce=nonce)) == JoinAnswer(nonce, Outcome.PENDING)
        assert admitting.open_as("n4") == "join-b"
        await decided(admitting)
        assert admitting.asked(ASKED) == JoinAnswer("n-1", Outcome.PENDING, "too few racks")
        await decided(admitting)
        assert admitting.asked(changed(ASKED, nonce="9")) == JoinAnswer("9", Outcome.REJECTED, "too few racks")
        assert calls == ["join-b", "join-b"]

    asyncio.run(asyncio.wait_for(scene(), 120))
    assert "is not let in: too few racks" in caplog.text


def test_of_many_nodes_that_join_at_once_some_are_decided_at_a_time_and_all_in_the_end() -> None:
    going, most = [], []

    async def admission(request: JoinRequest) -> JoinAnswer:
        going.append(request.request_id)
        most.append(len(going))
        await asyncio.sleep(0.01)
        going.remove(request.request_id)
        return JoinAnswer(request.nonce, Outcome.ACCEPTED, "", 7)

    async def scene() -> None:
        admitting = Admitting(admission)
        asked = [changed(ASKED, request_id=f"join-{number}") for number in range(9)]
        assert {admitting.asked(one).outcome for one in asked} == {Outcome.PENDING}
        while any(admitting.asked(one).outcome is Outcome.PENDING for one in asked):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert len(most) == 9
    assert max(most) == AT_ONCE


class Member:
    """In place of the network: answers each question as `says` does."""

    def __init__(self, says: Callable[[JoinRequest], object]) -> None:
        self.says = says
        self.asked: list[JoinRequest] = []

    async def ask(self, address: str, path: str, body: bytes, *, timeout: float) -> tuple[int, bytes]:
        assert path == "/join"
        self.asked.append(msgspec.json.decode(body, type=JoinRequest))
        answer = self.says(self.asked[-1])
        if isinstance(answer, Exception):
            raise answer
        return 409 if isinstance(answer, Refusal) else 200, msgspec.json.encode(answer)


def joining(home: Home, member: Member, *, seconds: float = 60.0, members: tuple[str, ...] = ("h1:1",)) -> Joining:
    wanted = WantedNode("dc1", "r4", (WantedVolume("d1", "/d1"),))
    return Joining(
        home,
        AgentIdentity("b", "n4"),
        wanted,
        member,  # type: ignore[arg-type]
        introduction=lambda: BLANK,
        members=lambda: members,
        seconds=seconds,
        period=0.001,
    )


def says(*outcomes: Outcome) -> Callable[[JoinRequest], object]:
    left = iter(outcomes)
    return lambda request: JoinAnswer(request.nonce, next(left), "because", 7)


def run(made: Joining) -> JoinState:
    asyncio.run(asyncio.wait_for(made.run(), 120))
    return made.state


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_node_that_is_accepted_waits_until_then_under_one_request_id(home: Home) -> None:
    member = Member(says(Outcome.PENDING, Outcome.PENDING, Outcome.ACCEPTED))
    state = run(joining(home, member))
    assert (state.phase, state.epoch) == (Phase.ACCEPTED, 7)
    assert {request.request_id for request in member.asked} == {"join-b"}
    assert len({request.nonce for request in member.asked}) == 3


@pytest.mark.parametrize("why", [says(Outcome.REJECTED), lambda _: Refusal("cluster-name", "because of its name")])
def test_a_rejection_is_final_until_the_home_is_cleared_and_says_so(
    home: Home, why: Callable[[JoinRequest], object]
) -> None:
    state = run(joining(home, Member(why)))
    assert state.phase is Phase.REJECTED
    assert "because" in state.reason
    assert "clear the home" in state.reason
    again = Member(says(Outcome.ACCEPTED))
    assert run(joining(home, again)) == state
    assert not again.asked


def test_members_that_do_not_answer_or_admit_nobody_are_not_the_last_word(home: Home) -> None:
    answers = iter([AgentUnreachable("gone"), Refusal("admits-nobody", "not here"), {"rubbish": 1}, None])

    def one_after_the_other(request: JoinRequest) -> object:
        return next(answers) or JoinAnswer(request.nonce, Outcome.ACCEPTED, "", 7)

    assert run(joining(home, Member(one_after_the_other), members=("h1:1", "h2:1"))).phase is Phase.ACCEPTED


class Members(Member):
    """Several, of which each has its own answers."""

    def __init__(self, **answers: list[object]) -> None:
        self.answers = {f"{name}:1": iter(said) for name, said in answers.items()}
        self.order: list[str] = []
        super().__init__(lambda _: None)

    async def ask(self, address: str, path: str, body: bytes, *, timeout: float) -> tuple[int, bytes]:
        self.order.append(address.partition(":")[0])
        said = next(self.answers[address])
        self.says = lambda asked: changed_answer(said, asked.nonce) if isinstance(said, JoinAnswer) else said
        return await super().ask(address, path, body, timeout=timeout)


def changed_answer(said: JoinAnswer, nonce: str) -> JoinAnswer:
    return msgspec.structs.replace(said, nonce=nonce)


NOBODY = Refusal("admits-nobody", "not here")
ASKS = JoinAnswer("", Outcome.PENDING)
UNCLEAR = JoinAnswer("", Outcome.PENDING, "it could not find out")
ACCEPTS = JoinAnswer("", Outcome.ACCEPTED, "", 7)


def test_who_asks_the_log_is_asked_for_what_came_of_it_and_who_admits_nobody_is_left_out(home: Home) -> None:
    gone = AgentUnreachable("gone")
    member = Members(h1=[NOBODY], h2=[ASKS, ASKS, UNCLEAR, ASKS, ACCEPTS], h3=[NOBODY], h4=[ASKS, gone])
    state = run(joining(home, member, members=("h1:1", "h2:1", "h3:1", "h4:1")))
    assert state.phase is Phase.ACCEPTED
    assert member.order == ["h1", "h3", "h2", "h2", "h2", "h4", "h4", "h2", "h2"]


def test_where_all_admit_nobody_they_are_asked_again(home: Home) -> None:
    member = Members(h1=[NOBODY, NOBODY, ACCEPTS], h2=[NOBODY, NOBODY, NOBODY])
    assert run(joining(home, member, members=("h1:1", "h2:1"))).phase is Phase.ACCEPTED


def test_an_answer_to_an_earlier_question_is_not_taken(home: Home) -> None:
    def replays(request: JoinRequest) -> JoinAnswer:
        if len(member.asked) == 3:
            made._deadline = 0.0
        return JoinAnswer("of an earlier attempt", Outcome.ACCEPTED, "", 7)

    member = Member(replays)
    made = joining(home, member)
    state = run(made)
    assert state.phase is Phase.TIMED_OUT
    assert "repeats an answer" in state.reason
    assert len(member.asked) == 3


def test_after_a_kill_the_same_question_is_asked_again(home: Home) -> None:
    class Killed(BaseException):
        pass

    def kills(request: JoinRequest) -> object:
        raise Killed

    first = joining(home, Member(kills))
    with pytest.raises(Killed):
        asyncio.run(first._once())
    assert home.read("join", JoinState) == JoinState(asked=True)
    again = Member(says(Outcome.ACCEPTED))
    assert run(joining(home, again)).phase is Phase.ACCEPTED
    assert again.asked[0].request_id == "join-b"


def test_what_cannot_be_written_down_is_not_asked(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(says(Outcome.ACCEPTED))
    made = joining(home, member)

    def full(*_: object) -> None:
        raise HomeUnwritable("the home cannot be written to")

    with monkeypatch.context() as patched:
        patched.setattr(Home, "write", full)
        with pytest.raises(HomeUnwritable):
            asyncio.run(made._once())
    assert not member.asked
    assert run(made).phase is Phase.ACCEPTED


def test_a_join_that_waits_for_its_disk_says_so_once_and_asks_when_there_is_room(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(says(Outcome.ACCEPTED))
    made = joining(home, member)
    tries: list[str] = []
    written = Home.write

    def full(self: Home, document: str, value: Any) -> None:
        tries.append(document)
        if len(tries) < 20:
            raise home.unwritable(OSError(errno.ENOSPC, "No space left on device"))
        assert "No space left on device. Make room on its disk" in made.state.reason
        written(self, document, value)

    monkeypatch.setattr(Home, "write", full)
    assert run(made).phase is Phase.ACCEPTED
    assert (len(member.asked), caplog.text.count("the join waits")) == (1, 1)
    assert home.read("join", JoinState) == made.state


def test_an_agent_that_finds_its_node_in_the_log_before_it_hears_the_answer_has_joined(home: Home) -> None:
    mine = BLANK
    member = Member(lambda request: JoinAnswer(request.nonce, Outcome.PENDING))
    made = joining(home, member)
    made._introduction = lambda: mine
    asyncio.run(made._once())
    mine = changed(BLANK, tag=TAG)
    # Found between two steps: who belongs to a cluster already would be refused, for good.
    asyncio.run(made._once())
    assert len(member.asked) == 1
    state = run(made)
    assert (state.phase, state.reason, len(member.asked)) == (Phase.ACCEPTED, "", 1)
    assert home.read("join", JoinState) == state


def test_an_operator_ends_what_hangs_and_is_told_what_the_log_may_have(home: Home) -> None:
    member = Member(lambda request: JoinAnswer(request.nonce, Outcome.PENDING))
    made = joining(home, member)

    async def scene() -> None:
        task = asyncio.ensure_future(made.run())
        while not member.asked:
            await asyncio.sleep(0.001)
        state = await made.cancel()
        assert state.phase is Phase.CANCELLED
        assert "request cancel" in state.reason
        await task

    asyncio.run(asyncio.wait_for(scene(), 120))
    assert run(joining(home, Member(says(Outcome.ACCEPTED)))).phase is Phase.CANCELLED


def cancelled_while(phase: Phase, made: Joining, monkeypatch: pytest.MonkeyPatch) -> JoinState:
    """What an operator is told who cancels while the home is being written to with a state of this phase."""
    begun, may_end = threading.Event(), threading.Event()
    written = Home.write

    def slow(self: Home, document: str, value: Any) -> None:
        if value.phase is phase:
            begun.set()
            assert may_end.wait(60)
        written(self, document, value)

    monkeypatch.setattr(Home, "write", slow)

    async def scene() -> JoinState:
        asking = asyncio.ensure_future(made._once())
        assert await asyncio.to_thread(begun.wait, 60)
        cancelling = asyncio.ensure_future(made.cancel())
        for _ in range(10):
            await asyncio.sleep(0)  # it has begun, and waits
        may_end.set()
        state = await cancelling
        await asking
        return state

    return asyncio.run(asyncio.wait_for(scene(), 120))


def test_an_operator_who_cancels_while_the_question_is_written_down_lets_nobody_be_asked(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else he would be told that it is cancelled, and the node would join."""
    member = Member(says(Outcome.ACCEPTED))
    made = joining(home, member)
    state = cancelled_while(Phase.ASKING, made, monkeypatch)
    assert state.phase is Phase.CANCELLED
    assert run(made) == state
    assert home.read("join", JoinState) == state
    assert not member.asked


def test_of_an_acceptance_and_an_operator_who_cancels_at_once_the_first_stands_and_both_say_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = joining(home, Member(says(Outcome.ACCEPTED)))
    state = cancelled_while(Phase.ACCEPTED, made, monkeypatch)
    assert (state.phase, state.epoch) == (Phase.ACCEPTED, 7)
    assert made.state == state == home.read("join", JoinState)


def test_a_node_that_has_nobody_to_ask_says_why_also_when_its_time_is_over(home: Home) -> None:
    made = joining(home, Member(says()), members=())
    made._nobody = lambda: "members of several clusters answer"
    asyncio.run(made._once())
    assert (made.state.phase, made.state.reason) == (Phase.ASKING, "members of several clusters answer")
    made._deadline = 0.0
    state = run(made)
    assert state.phase is Phase.TIMED_OUT
    assert "within 60 s: members of several clusters answer" in state.reason
