"""What is noted of the model of ZooKeeper, and what its clients are told when connections break and sessions end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from epochlake.jobs.testing.scheduler import Process, Scheduler, ended_afterwards
from epochlake.jobs.testing.stdlib import Threading
from epochlake.jobs.testing.zookeeper import Ensemble
from epochlake.jobs.testing.zookeeper_client import Client
from epochlake.jobs.testing.zookeeper_recording import (
    Asked,
    Ended,
    Forgot,
    HungUp,
    Opened,
    Recorder,
    Request,
    State,
    Told,
    recorded,
)
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType

from tests.support.random_zookeeper import random_steps

SESSION_SECONDS = 10.0


class Place:
    """An ensemble, and a process whose clients use it."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.ensemble = Ensemble(self.scheduler, seed)
        self.process = Process("p")
        self.threads = Threading(self.scheduler)

    def client(self) -> Client:
        client = Client(self.ensemble, self.threads, SESSION_SECONDS)
        client.start_async().wait(60.0)
        return client


def done(work: Callable[[Place], Any], seed: int = 1) -> tuple[Any, Recorder]:
    """What `work` returns, and the recorder that has noted it."""
    place = Place(seed)
    with recorded() as recorder, ended_afterwards(place.scheduler):
        actor = place.scheduler.spawn(place.process, "main", lambda: work(place))
        place.scheduler.run(lambda: actor.done)
    if actor.error is not None:
        raise actor.error
    assert not place.scheduler.failed
    return actor.result, recorder


def test_requests_answers_and_watches_are_noted_in_the_order_of_the_servers() -> None:
    def work(place: Place) -> int:
        client = place.client()
        session: int = client.client_id[0]
        client.get_async("/a", print)
        client.create_async("/a/s-", b"x", ephemeral=True, sequence=True)
        client.exists_async("/a", print)
        client.create_async("/a", b"data")
        client.create_async("/a/s-", b"x", ephemeral=True, sequence=True)
        with pytest.raises(BadVersionError):
            client.set_async("/a", b"", 7).get()
        client.stop()
        return session

    session, recorder = done(work)
    steps = recorder.steps()
    assert steps[:2] == [Opened(session), State(session, "CONNECTED")]
    numbered = Request("create", "/a/s-", b"x", ephemeral=True, sequence=True)
    assert [step[1:4] for step in steps if isinstance(step, Asked)] == [
        (Request("get", "/a", watch=0), None, "NoNodeError"),
        (numbered, None, "NoNodeError"),
        (Request("exists", "/a", watch=0), None, ""),
        (Request("create", "/a", b"data"), "/a", ""),
        (numbered, "/a/s-0000000000", ""),
        (Request("set", "/a", version=7), None, "BadVersionError"),
    ]
    told = [step.told for step in steps if isinstance(step, Asked) and step.told]
    assert told == [(Told(session, EventType.CREATED, "/a", (0,)),)]
    assert steps[-2:] == [Ended(session, False, ()), State(session, "LOST")]
    assert str(numbered) == "create /a/s- ephemeral sequence"


def test_a_session_that_expires_and_servers_that_forget_are_noted() -> None:
    def work(place: Place) -> None:
        client = place.client()
        client.create_async("/e", ephemeral=True).get()
        client.exists_async("/e", print).get()
        place.ensemble.cut(place.process, 60.0)
        place.scheduler.sleep(61.0)
        client.sync_async("/").get()
        place.ensemble.forget()

    _, recorder = done(work)
    steps = [step for step in recorder.steps() if not isinstance(step, Asked)]
    first, second = dict.fromkeys(step.session for step in steps if isinstance(step, Opened))
    assert steps == [
        Opened(first),
        State(first, "CONNECTED"),
        HungUp(first),
        State(first, "SUSPENDED"),
        Ended(first, True, ()),
        State(first, "LOST"),
        Opened(second),
        State(second, "CONNECTED"),
        HungUp(second),
        Forgot(),
    ]


def test_a_watch_that_is_lost_on_its_way_has_called_nobody() -> None:
    def work(place: Place) -> None:
        one, other = place.client(), place.client()
        one.create_async("/a").get()
        one.get_async("/a", print).get()
        other.set_async("/a", b"x")
        while not any(isinstance(step, Asked) and step.told for step in Ensemble.observer.steps()):  # type: ignore[union-attr]
            place.scheduler.sleep(0.0001)
        place.ensemble.lose_majority(1.0)

    _, recorder = done(work)
    [[told]] = [step.told for step in recorder.steps() if isinstance(step, Asked) and step.told]
    assert told.called is None


def test_nothing_is_noted_outside_of_the_block() -> None:
    with recorded() as recorder:
        assert Ensemble.observer is recorder
    assert Ensemble.observer is None


def test_one_seed_of_random_requests_has_one_course() -> None:
    assert random_steps(3) == random_steps(3)


# --- what the model once did otherwise than kazoo and a server ------------------------------------------------------


def test_watches_end_with_the_connection_and_are_told_so() -> None:
    def work(place: Place) -> list[str]:
        client, other = place.client(), place.client()
        seen: list[str] = []
        client.create_async("/a").get()
        client.get_async("/a", lambda event: seen.append(event.type)).get()
        place.ensemble.lose_majority(1.0)
        place.scheduler.sleep(5.0)
        other.set_async("/a", b"x").get()
        place.scheduler.sleep(5.0)
        return seen

    assert done(work)[0] == [EventType.NONE]


def test_the_same_watch_left_twice_is_called_once() -> None:
    def work(place: Place) -> int:
        client = place.client()
        seen: list[object] = []
        client.create_async("/a").get()
        for _ in range(2):
            client.get_async("/a", seen.append).get()
        client.set_async("/a", b"x").get()
        place.scheduler.sleep(1.0)
        return len(seen)

    # kazoo keeps watches in a set, and a method of one object is one watch.
    assert done(work)[0] == 1


def test_a_session_hears_of_its_own_change_before_the_answer() -> None:
    def work(place: Place) -> list[bool]:
        client = place.client()
        client.create_async("/a").get()
        client.get_async("/a", print).get()
        answered: list[bool] = []
        dispatch = client.handler.dispatch_callback
        client.handler.dispatch_callback = lambda call: (answered.append(result.ready()), dispatch(call))
        result = client.set_async("/a", b"x")
        result.get()
        return answered

    # The replay takes this order for granted, and compares it with what arrives from a server.
    assert done(work)[0] == [False]


def test_of_what_was_sent_before_a_connection_broke_any_beginning_may_be_carried_out() -> None:
    def work(place: Place) -> int:
        client = place.client()
        sent = [client.create_async(f"/{number}") for number in range(4)]
        place.scheduler.sleep(place.scheduler.random.uniform(0.0, 0.004))
        place.ensemble.cut(place.process, 1.0)
        place.scheduler.sleep(5.0)
        answers = [result.successful() for result in sent]
        there = sorted(client.get_children_async("/").get())
        assert there == [str(number) for number in range(len(there))], "a beginning"
        assert len(there) >= answers.count(True)
        assert all(result.successful() or isinstance(result.exception, ConnectionLoss) for result in sent)
        return len(there)

    assert {done(work, seed)[0] for seed in range(200)} == {0, 1, 2, 3, 4}


def test_what_waits_for_a_connection_fails_when_the_session_has_expired() -> None:
    def work(place: Place) -> None:
        client = place.client()
        place.ensemble.cut(place.process, 30.0)
        place.scheduler.sleep(20.0)
        waits = client.create_async("/a")
        with pytest.raises(SessionExpiredError):
            waits.get()
        place.scheduler.sleep(5.0)
        with pytest.raises(NoNodeError):
            client.get_async("/a").get()

    done(work)


def test_what_was_sent_before_a_client_stops_is_carried_out_and_nothing_after_it() -> None:
    def work(place: Place) -> None:
        client, other = place.client(), place.client()
        client.create_async("/a")
        client.stop()
        assert other.exists_async("/a").get() is not None
        with pytest.raises(ConnectionClosedError):
            client.create_async("/b").get()

    done(work)


def test_the_session_of_a_client_that_stops_without_a_connection_ends_by_silence() -> None:
    def work(place: Place) -> list[bool]:
        client = place.client()
        client.create_async("/e", ephemeral=True).get()
        place.ensemble.lose_majority(3.0)
        place.scheduler.sleep(1.0)
        client.stop()
        place.scheduler.sleep(5.0)
        other = place.client()
        there = [other.exists_async("/e").get() is not None]
        place.scheduler.sleep(3 * SESSION_SECONDS)
        return [*there, other.exists_async("/e").get() is not None]

    assert done(work)[0] == [True, False]


def test_what_a_process_has_sent_arrives_though_it_is_killed_then() -> None:
    def work(place: Place) -> bool:
        victim = Process("victim")

        def send() -> None:
            client = Client(place.ensemble, place.threads, SESSION_SECONDS)
            client.start_async().wait(60.0)
            client.create_async("/a")
            place.scheduler.sleep(0.0004)  # it is on its way, and not there
            place.scheduler.kill(victim)

        place.scheduler.join(place.scheduler.spawn(victim, "main", send), 5.0)
        return place.client().exists_async("/a").get() is not None

    assert done(work)[0]


def test_an_error_of_a_callback_is_not_hidden_and_others_are_called_all_the_same() -> None:
    place = Place(1)
    called: list[object] = []

    def work() -> None:
        client = place.client()
        client.sync_async("/").rawlink(lambda result: 1 / 0)
        client.sync_async("/").rawlink(called.append)
        place.scheduler.sleep(1.0)

    with ended_afterwards(place.scheduler):
        actor = place.scheduler.spawn(place.process, "main", work)
        place.scheduler.run(lambda: actor.done)
    assert len(called) == 1
    assert [type(failed.error) for failed in place.scheduler.failed] == [ZeroDivisionError]
