"""A server of the model of ZooKeeper that lags behind: what who is connected to it sees, and what it never sees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from epochlake.jobs.testing.scheduler import Process, Scheduler, ended_afterwards
from epochlake.jobs.testing.stdlib import Threading
from epochlake.jobs.testing.zookeeper import Ensemble
from epochlake.jobs.testing.zookeeper_client import Client
from kazoo.exceptions import NoNodeError

BEHIND = 5.0
LONG = 1000.0


class Two:
    """Two processes with a client each: the server of `late` lags behind, that of `first` does not."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.ensemble = Ensemble(self.scheduler, 1)
        self.threads = Threading(self.scheduler)
        self.process = Process("late")
        self.first: Client
        self.late: Client

    def begin(self) -> None:
        self.first, self.late = self._client(Process("first")), self._client(self.process)
        self.first.create_async("/a", b"0").get()
        assert self.ensemble.lag(self.process, LONG, BEHIND)

    def _client(self, process: Process) -> Client:
        def connect() -> Client:
            client = Client(self.ensemble, self.threads, 10.0)
            client.start_async().wait(60.0)
            return client

        actor = self.scheduler.spawn(process, "connect", connect)
        self.scheduler.join(actor)
        client: Client = actor.result
        return client


def in_two(work: Callable[[Two], Any]) -> Any:
    two = Two()

    def main() -> Any:
        two.begin()
        return work(two)

    with ended_afterwards(two.scheduler):
        actor = two.scheduler.spawn(Process("main"), "main", main)
        two.scheduler.run(lambda: actor.done)
    if actor.error is not None:
        raise actor.error
    assert not two.scheduler.failed
    return actor.result


def test_reads_show_the_past_until_the_server_has_come_that_far() -> None:
    def work(two: Two) -> None:
        two.first.set_async("/a", b"1").get()
        assert two.first.get_async("/a").get()[0] == b"1"
        assert two.late.get_async("/a").get()[0] == b"0"
        two.scheduler.sleep(BEHIND + 1.0)
        assert two.late.get_async("/a").get()[0] == b"1"

    in_two(work)


@pytest.mark.parametrize("asked", ["a write", "a write that fails", "sync"])
def test_what_goes_through_the_server_brings_it_up_to_date(asked: str) -> None:
    def work(two: Two) -> None:
        two.first.set_async("/a", b"1").get()
        match asked:
            case "a write":
                two.late.create_async("/b").get()
            case "a write that fails":
                with pytest.raises(NoNodeError):
                    two.late.delete_async("/not-there").get()
            case "sync":
                two.late.sync_async("/").get()
        assert two.late.get_async("/a").get()[0] == b"1"

    in_two(work)


def test_a_watch_is_told_when_the_server_has_come_that_far_and_before_anything_newer_is_shown() -> None:
    def work(two: Two) -> None:
        told: list[float] = []
        seen = two.late.get_children_async("/", lambda _: told.append(two.scheduler.now)).get()
        began = two.scheduler.now
        two.first.create_async("/b").get()
        assert sorted(two.late.get_children_async("/").get()) == sorted(seen)
        two.scheduler.sleep(BEHIND - 1.0)
        assert told == []
        two.scheduler.sleep(2.0)
        assert [at - began > BEHIND - 1.0 for at in told] == [True]
        assert "b" in two.late.get_children_async("/").get()

    in_two(work)


def test_watches_of_before_and_after_the_lag_are_told_once() -> None:
    def work(two: Two) -> None:
        told: list[str] = []
        two.ensemble.heal()
        two.late.get_async("/a", lambda _: told.append("before")).get()
        assert two.ensemble.lag(two.process, 20.0, BEHIND)
        assert not two.ensemble.lag(two.process, 20.0, BEHIND), "it lags already"
        two.first.set_async("/a", b"1").get()
        two.scheduler.sleep(1.0)
        assert told == []
        two.ensemble.heal()
        two.scheduler.sleep(1.0)
        assert told == ["before"]
        assert two.ensemble.lag(two.process, 20.0, BEHIND)
        two.late.get_async("/a", lambda _: told.append("during")).get()
        two.scheduler.sleep(30.0)
        two.first.set_async("/a", b"2").get()
        two.scheduler.sleep(1.0)
        assert told == ["before", "during"]

    in_two(work)


def test_ephemeral_znodes_of_a_session_that_has_ended_are_seen_for_a_while() -> None:
    def work(two: Two) -> None:
        two.first.create_async("/e", ephemeral=True).get()
        two.late.sync_async("/").get()
        two.first.stop()
        assert two.late.exists_async("/e").get() is not None
        two.scheduler.sleep(BEHIND + 1.0)
        assert two.late.exists_async("/e").get() is None

    in_two(work)


def test_whatever_is_asked_a_late_server_shows_each_state_of_the_others_in_their_order() -> None:
    chance = random.Random(7)

    def work(two: Two) -> None:
        written, shown = 0, []
        for _ in range(200):
            if chance.random() < 0.5:
                written += 1
                two.first.set_async("/a", str(written).encode()).get()
            if chance.random() < 0.1:
                two.late.sync_async("/").get()
                assert int(two.late.get_async("/a").get()[0]) == written
            two.scheduler.sleep(chance.uniform(0, 1.0))
            shown.append((int(two.late.get_async("/a").get()[0]), written))
        assert [one for one, _ in shown] == sorted(one for one, _ in shown)
        assert all(one <= newest for one, newest in shown)
        assert any(one < newest for one, newest in shown)

    in_two(work)
