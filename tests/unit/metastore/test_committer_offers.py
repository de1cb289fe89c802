"""Committing with others in the line: what is offered to them, what is taken from them, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from epochlake.metastore.committing import committer as commit
from epochlake.metastore.committing import offers
from epochlake.metastore.committing.committer import Committed, Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.committing.offers import Proposal, decode_proposals, encode_proposals
from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.committing.submissions import Submission
from epochlake.metastore.errors import (
    CommitUnknown,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.metadata.events import (
    PauseChanges,
    SwitchBalancing,
)

from tests.support.committing import (
    SteppedLog,
    SteppedQueue,
    Steps,
    assert_sound,
    outcome_of,
)
from tests.support.logs import OFF, ON, ScriptedLog, all_of, begun, toggle


def toggle_event(commits: Committer) -> SwitchBalancing:
    return SwitchBalancing(not commits._follower.catch_up().switches.balancing)


class Watched(LocalQueue):
    """A line that writes down what is asked of it; `waited`: how long others were waited for, each time."""

    def __init__(self, *waited: float) -> None:
        super().__init__()
        self._waits = iter(waited)
        self._last = 0.0
        self.calls: list[str] = []

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        self._last = next(self._waits, 0.0)
        if meanwhile is not None and self._last > meanwhile.after:
            meanwhile.do()
        self.calls.append("acquire")
        return super().acquire(timeout)

    def seconds_in_line(self) -> float:
        return self._last

    def offer(self, proposals: bytes) -> None:
        self.calls.append("offer")

    def claim(self) -> list[bytes]:
        self.calls.append("claim")
        return []


def test_planners_and_expectations_and_those_with_less_time_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", -1.0)
    offered: list[list[str]] = []
    waiting = threading.Event()

    class Showing(SteppedQueue):
        def offer(self, proposals: bytes) -> int:
            offered.append([submission.request_id for submission in decode_proposals(proposals)])
            return super().offer(proposals)

        def acquire(self, timeout: float, *_: object) -> bool:
            waiting.wait(1)
            return super().acquire(timeout, *_)

    commits = Committer(Follower(begun()), Showing(Steps()), author="a")
    submissions: list[dict] = [
        {"what": PauseChanges(why="x"), "request_id": "plain", "timeout": 10},
        {"what": toggle, "request_id": "planner", "timeout": 10},
        {"what": ON, "request_id": "expecting", "expect_epoch": 1, "timeout": 10},
        {"what": ON, "request_id": "hasty", "timeout": 0.5},
    ]
    commits._offers.worthwhile = True
    commits._leading = True
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(outcome_of, lambda s=s: commits.commit(**s)) for s in submissions[1:]]
        while len(commits._waiting) < 3:
            time.sleep(0.001)
        commits._leading = False
        futures.append(pool.submit(outcome_of, lambda: commits.commit(**submissions[0])))
        waiting.set()
        for future in futures:
            future.result()
    assert offered[0] == ["plain"]


def test_proposals_that_cannot_be_read_are_left_to_their_owner_and_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", -1.0)
    newer = msgspec.msgpack.encode([Proposal("newer", "Fly", "{}", None, "a", "")])
    torn = encode_proposals([Submission(OFF, "torn", "a", "", 0.0, None)])[:-3]
    sound = encode_proposals([Submission(ON, "sound", "other", "", 0.0, None)])

    class Line(LocalQueue):
        def claim(self) -> list[bytes]:
            return [newer, torn, b"", sound]

    log = begun()
    assert Committer(Follower(log), Line(), author="a").commit(toggle, request_id="mine").epoch == 2
    assert all_of(log) == [(1, "request-1"), (2, "mine"), (3, "sound")]


def test_what_is_claimed_is_appended_behind_ones_own_and_its_rejections_are_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", -1.0)
    claims = [[Submission(event, name, "other", "why", 0.0, None)] for name, event in (("x", ON), ("y", OFF))]

    class Line(LocalQueue):
        def claim(self) -> list[bytes]:
            return [encode_proposals(claim) for claim in claims]

    log = begun()
    assert Committer(Follower(log), Line(), author="a").commit(OFF, request_id="mine").epoch == 2
    assert all_of(log) == [(1, "request-1"), (2, "mine"), (3, "x"), (4, "y")]
    assert [entry.author for entry in log.shared.entries[1:]] == ["a", "other", "other"]
    assert_sound(log.shared.entries)


def test_what_was_claimed_before_a_conflict_is_not_tried_again() -> None:
    """Its owner finds it neither in line nor in the log, moves the log, and tells a failure: then it must not land."""

    class Line(Watched):
        def claim(self) -> list[bytes]:
            super().claim()
            first = self.calls.count("claim") == 1
            return [encode_proposals([Submission(ON, "given up", "other", "", 0.0, None)])] if first else []

    log = ScriptedLog(begun())

    def overtaken(append: Callable, entries: list) -> None:
        assert [entry.request_id for entry in entries] == ["mine", "given up"]
        log.log.fence()
        append(entries)

    log.plan("append", overtaken)
    queue = Line(1.0)
    assert Committer(Follower(log), queue, author="a").commit(OFF, request_id="mine").epoch == 2
    assert queue.calls.count("claim") == 2
    assert all_of(log.log) == [(1, "request-1"), (2, "mine")]


def test_an_offer_that_is_never_taken_back_makes_a_failure_unknown_and_no_success_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", -1.0)
    for event, expected in ((OFF, Committed), (ON, CommitUnknown)):
        queue = SteppedQueue(Steps(), silent_withdrawals=10**6)
        commits = Committer(Follower(SteppedLog(begun(), Steps())), queue, author="a")
        commits._offers.worthwhile = True
        outcome = outcome_of(lambda: commits.commit(event, timeout=0.05))  # noqa: B023
        assert isinstance(outcome, expected)


def test_who_waits_for_others_offers_while_it_waits_and_claims_when_it_leads() -> None:
    queue = Watched(0.0, 1.0)
    commits = Committer(Follower(begun()), queue, author="a")
    commits.commit(toggle_event(commits))
    assert queue.calls == ["acquire"]
    commits.commit(toggle_event(commits))
    assert queue.calls[1:] == ["offer", "acquire", "claim"]


def test_who_has_led_last_makes_no_offer_first_and_goes_on_claiming() -> None:
    queue = Watched(1.0, 0.0)
    commits = Committer(Follower(begun()), queue, author="a")
    commits.commit(toggle_event(commits))
    queue.calls.clear()
    commits.commit(toggle_event(commits))
    assert queue.calls == ["acquire", "claim"]


def test_others_are_forgotten_when_there_was_no_sign_of_them_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "REMEMBERED_SECONDS", 0.0)
    queue = Watched(1.0, 0.0)
    commits = Committer(Follower(begun()), queue, author="a")
    commits.commit(toggle_event(commits))
    queue.calls.clear()
    commits.commit(toggle_event(commits))
    assert queue.calls == ["acquire"]


def test_who_was_served_by_another_one_offers_first_the_next_time() -> None:
    class Answering(Watched):
        answered = 0

        def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
            super().acquire(timeout, meanwhile)
            self.release()
            return False

        def offer(self, proposals: bytes) -> object:
            super().offer(proposals)
            self.shown = decode_proposals(proposals)
            return "ticket"

        def answers(self) -> dict[object, dict[str, int]]:
            return {"ticket": {self.shown[0].request_id: 2}}

    queue = Answering(1.0, 0.0)
    commits = Committer(Follower(begun()), queue, author="a")
    assert commits.commit(OFF).epoch == 2
    queue.calls.clear()
    assert commits.commit(ON).epoch == 2
    assert queue.calls == ["offer", "acquire"]


def test_a_request_that_an_earlier_call_has_heard_of_is_there_already_whoever_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others append it and answer before this process has read the log: the answer cannot tell which call it is for."""
    committer = Committer(Follower(begun()), LocalQueue(), author="a")

    def answered_by_another(submission: Submission) -> None:
        submission.outcome = Committed(7, submission.request_id)

    monkeypatch.setattr(committer, "_wait_or_lead", answered_by_another)
    assert [committer.commit(ON, request_id="nightly").already for _ in range(3)] == [False, True, True]
    assert not committer.commit(ON, request_id="weekly").already
    assert not committer.commit(ON).already
    monkeypatch.setattr(commit, "REMEMBERED_REQUESTS", 2)
    for number in range(4):
        committer.commit(ON, request_id=f"other {number}")
    assert len(committer._told_requests) == 2


@pytest.mark.parametrize("told", [False, True], ids=["the first", "already"])
def test_of_two_calls_of_one_request_at_once_one_at_most_is_told_that_it_is_the_first(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Both wait when others append it, or when an answer of the log is lost: neither is earlier than the other."""
    committer, found = Committer(Follower(begun()), LocalQueue(), author="a"), list[bool]()

    def answered_after_another_call(submission: Submission) -> None:
        if not found:
            found.append(False)
            found[0] = committer.commit(ON, request_id="nightly").already
            submission.outcome = Committed(7, submission.request_id)
        else:
            submission.outcome = Committed(7, submission.request_id, already=told)

    monkeypatch.setattr(committer, "_wait_or_lead", answered_after_another_call)
    assert committer.commit(ON, request_id="nightly").already is not told
    assert found == [told]
    assert committer.commit(ON, request_id="nightly").already


class _OneOffer(LocalQueue):
    """A line that keeps what is offered; nobody takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: list[list[str]] = []

    def offer(self, data: bytes) -> object:
        self.offered.append([one.request_id for one in decode_proposals(data)])
        return len(self.offered)

    def withdraw(self, ticket: object) -> bool:
        return True


def test_of_two_calls_of_one_request_one_is_offered_and_the_other_one_stands_for_itself_when_that_is_taken_back() -> (
    None
):
    line = _OneOffer()
    shown = offers.Offers(line, threading.Condition())
    first, second, other = (
        Submission(SwitchBalancing(on=False), request_id, "me", "", float("inf"), None) for request_id in "rrs"
    )
    shown.show([first, second, other], 0.0, 10)
    assert line.offered == [["r", "s"]]
    assert [one.offered for one in (first, second, other)] == [True] * 3
    assert [one.has_joined for one in (first, second, other)] == [False, True, False]
    third = Submission(SwitchBalancing(on=False), "r", "me", "", float("inf"), None)
    shown.join(third)
    assert (third.offered, third.has_joined) == (True, True)
    shown.end()
    for one in (first, second, other, third):
        assert (one.offered, one.taken, one.has_joined) == (False, False, False)
    # The first one's time is over: the others are tried again, and one of them may be the first to hear of it.
    shown.show([second, third], 0.0, 10)
    assert line.offered[1:] == [["r"]]
    assert [one.has_joined for one in (second, third)] == [False, True]
