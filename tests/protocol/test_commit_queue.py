"""The line in front of the log: who waits in it, who is answered there, and what is known when the lock is had."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.coordination import commit_queue
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.commit_queue import ZooKeeperQueue
from epochlake.metastore.coordination.head import read_head
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.coordination.proposals import Proposals
from epochlake.metastore.log.entry import Position

from tests.support.waiting import are_contending, eventually

Opener = Callable[..., Coordination]


@contextmanager
def standing_in_line(connect: Opener, count: int) -> Iterator[None]:
    """So many wait for the lock, of whom the first has it and gives it back at the end."""
    sessions = [connect() for _ in range(count)]
    locks = [CommitLock(session) for session in sessions]
    assert locks[0].acquire(60)
    with ThreadPoolExecutor(count) as pool:
        others = [pool.submit(lock.acquire, 60) for lock in locks[1:]]
        eventually(lambda: len(sessions[0].children(sessions[0].path("lock"))) == count)
        yield
        locks[0].release()
        for lock, other in zip(locks[1:], others, strict=True):
            other.add_done_callback(lambda _, lock=lock: lock.release())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has made an offer waits for its answer longer than any test."""
    monkeypatch.setattr(commit_queue, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(commit_queue, "LONGEST_PATIENCE_SECONDS", 60.0)


def in_a_crowd(connect: Opener, session: Coordination) -> ZooKeeperQueue:
    """A queue that has lined up once behind many others."""
    queue = ZooKeeperQueue(lambda _: session)
    with standing_in_line(connect, 8):
        assert not queue.acquire(0.2)
    return queue


@pytest.mark.usefixtures("patient")
def test_who_has_made_an_offer_in_a_crowd_is_answered_without_a_place_in_the_line(connect: Opener) -> None:
    session, leader = connect(), Proposals(connect())
    queue = in_a_crowd(connect, session)
    ticket = queue.offer(b"events")
    [batch] = leader.claim(leader.pending())
    lined_up = []
    session.client.ensure_path(session.path("lock"))
    session.client.ChildrenWatch(session.path("lock"), lambda children: lined_up.extend(children))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.acquire, 30)
        leader.answer(batch, {"mine": 7})
        assert waiting.result(30) is False
    assert queue.answers() == {ticket: {"mine": 7}}
    assert lined_up == []


def test_who_is_not_answered_in_a_crowd_lines_up_and_leads(connect: Opener) -> None:
    queue = in_a_crowd(connect, connect())
    assert queue.offer(b"events") is not None
    assert queue.acquire(30)
    queue.release()


@pytest.mark.usefixtures("patient")
def test_patience_is_for_one_acquisition_and_not_for_those_after_it(connect: Opener) -> None:
    session, leader = connect(), Proposals(connect())
    queue = in_a_crowd(connect, session)
    queue.offer(b"events")
    [batch] = leader.claim(leader.pending())
    leader.answer(batch, {"mine": 7})
    assert queue.acquire(60) is False
    assert queue.answers()
    started = time.monotonic()
    assert queue.acquire(60)
    assert time.monotonic() - started < 20
    queue.release()


@pytest.mark.usefixtures("patient")
def test_who_makes_no_offer_lines_up_at_once_whatever_the_crowd_was(connect: Opener) -> None:
    queue = in_a_crowd(connect, connect())
    started = time.monotonic()
    assert queue.acquire(60)
    assert time.monotonic() - started < 30
    queue.release()


def test_who_waits_in_line_can_offer_there_and_is_answered_there(connect: Opener) -> None:
    queue, leader, offered = ZooKeeperQueue(lambda _: session), Proposals(connect()), []
    session = connect()

    def offer() -> None:
        offered.append(queue.offer(b"events"))
        [batch] = leader.claim(leader.pending())
        leader.answer(batch, {"mine": 7})

    with standing_in_line(connect, 2):
        started = time.monotonic()
        assert queue.acquire(60, Meanwhile(0.02, offer)) is False
        assert time.monotonic() - started < 30
    assert queue.answers() == {offered[0]: {"mine": 7}}
    assert len(offered) == 1


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_announced_while_one_waits_in_line_is_known_when_the_lock_is_had(connect: Opener, waits: bool) -> None:
    """The log may go back meanwhile: who has asked before the line would not notice."""
    session, before = connect(), connect()
    queue, leader = ZooKeeperQueue(lambda _: session), ZooKeeperQueue(lambda _: before)
    assert leader.acquire(30)
    assert leader.announced() is None
    announced = Position(7, "state-7", "hash-7", 1)
    with ThreadPoolExecutor(1) as pool:
        if waits:
            waiting = pool.submit(queue.acquire, 60)
            eventually(partial(are_contending, session, 2))
        leader.publish(announced)
        leader.release()
        if not waits:
            eventually(lambda: read_head(session) is not None)
            waiting = pool.submit(queue.acquire, 60)
        assert waiting.result(60)
    assert queue.announced() == announced
    queue.release()


def test_the_first_head_is_announced_before_the_lock_is_given_back(connect: Opener) -> None:
    """However late the leader's process hears answers: a second request would come when somebody else has the lock."""
    session, before = connect(), connect()
    queue, leader = ZooKeeperQueue(lambda _: session), ZooKeeperQueue(lambda _: before)
    assert leader.acquire(30)
    assert leader.announced() is None
    announced, hears = Position(7, "state-7", "hash-7", 1), threading.Event()
    before.client.get_async("/").rawlink(lambda _: hears.wait(60))
    try:
        leader.publish(announced)
        leader.release()
        assert queue.acquire(30)
        assert queue.announced() == announced
        queue.release()
    finally:
        hears.set()


def test_what_was_told_before_there_was_a_connection_is_announced_when_there_is_one(connect: Opener) -> None:
    session = connect()
    queue, told = ZooKeeperQueue(lambda _: session), Position(7, "state-7", "hash-7", 1)
    queue.publish(told)
    assert read_head(session) is None
    assert queue.acquire(30)
    assert queue.announced() == told
    queue.release()


def test_what_is_done_while_others_are_waited_for_is_done_once_and_only_after_the_time(connect: Opener) -> None:
    queue, called = ZooKeeperQueue(lambda _: session), []
    session = connect()
    assert queue.acquire(30, Meanwhile(0.0, lambda: called.append("nobody is waited for")))
    queue.release()
    with standing_in_line(connect, 3):
        assert not queue.acquire(0.2, Meanwhile(60.0, lambda: called.append("too early")))
        assert called == []
        assert not queue.acquire(0.5, Meanwhile(0.1, lambda: called.append("once")))
    assert called == ["once"]
    assert queue.acquire(30)
    queue.release()
