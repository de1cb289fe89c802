"""Init, sent to any agent: the cluster begins on all named nodes or on none, and the error says which failed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs.agent.home import Home, HomeUnwritable
from epochlake.jobs.agent.initialising import (
    FORGOTTEN_AFTER,
    INIT,
    Began,
    Idle,
    InitAnswer,
    Initialising,
    InitOrder,
    InitOutcome,
    Prepare,
    Prepared,
    Ready,
)
from epochlake.jobs.agent.messages import PROTOCOL, Introduction, Refusal, Tag

TAG, OTHER = Tag("lake", "1"), Tag("sea", "2")
IDLE = Idle(None, "/lake", "no-cluster")


class Cluster:
    """Agents n1, n2, n3 that reach each other, and the log at their root."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.log: dict[str, Tag] = {}
        self.why, self.known = "", True
        self.silent: set[str] = set()
        self.idle = dict.fromkeys(("n1", "n2", "n3"), IDLE)
        self.homes = {name: Home(directory / name) for name in self.idle}
        self.agents = {name: self._agent(name) for name in self.idle}

    def _agent(self, name: str) -> Initialising:
        def introduction() -> Introduction:
            return Introduction(name, name, f"{name}:1", None, PROTOCOL, "1")

        return Initialising(
            self.homes[name],
            introduction=introduction,
            idle=lambda: self.idle[name],
            ask=self.ask,
            found=self.found,
            clock=lambda: self.now,
        )

    async def ask(self, name: str, asked: Prepare) -> Refusal | Ready:
        if name not in self.agents or name in self.silent:
            return Refusal("unknown", "no agent of this name answers")
        return await self.agents[name].prepare(asked)

    async def found(self, order: InitOrder) -> Began:
        if self.why:
            return Began(None, self.why, known=self.known)
        if self.log and order.request_id not in self.log:
            return Began(None, "already-initialised")
        return Began(self.log.setdefault(order.request_id, Tag(order.name or "epochlake", str(len(self.log)))))

    def init(self, at: str, *nodes: str, name: str | None = None) -> InitAnswer:
        async def called() -> InitAnswer:
            for _ in range(1000):
                answer = self.agents[at].ordered(InitOrder(nodes, name))
                if answer.outcome is not InitOutcome.PENDING:
                    return answer
                await asyncio.sleep(0.001)
            raise AssertionError("it comes to no end")

        return asyncio.run(called())

    def prepared(self) -> set[str]:
        return {name for name, home in self.homes.items() if (home.read(INIT, Prepared) or Prepared()).request_id}


@pytest.fixture
def agents(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_empty_nodes_of_an_idle_cluster_begin_together(agents: Cluster) -> None:
    answer = agents.init("n3", "n1", "n2", name="lake")
    assert answer == InitAnswer(InitOutcome.RUNNING, Tag("lake", "0"))
    assert agents.prepared() == {"n1", "n2"}


def test_the_same_call_to_another_agent_begins_nothing_twice(agents: Cluster) -> None:
    first = agents.init("n1", "n1", "n2")
    assert agents.init("n3", "n2", "n1") == first
    agents.idle = dict.fromkeys(agents.idle, msgspec.structs.replace(IDLE, tag=first.tag))
    assert agents.init("n2", "n1", "n2") == first
    assert len(agents.log) == 1


def test_the_same_call_to_an_agent_that_has_not_heard_of_it_begins_nothing_twice(agents: Cluster) -> None:
    first = agents.init("n1", "n1", "n2")
    agents.idle["n2"] = msgspec.structs.replace(IDLE, tag=first.tag)
    assert agents.init("n3", "n1", "n2") == first
    assert len(agents.log) == 1


def test_another_call_to_a_running_cluster_is_told_so(agents: Cluster) -> None:
    first = agents.init("n1", "n1", "n2")
    agents.idle = dict.fromkeys(agents.idle, msgspec.structs.replace(IDLE, tag=first.tag))
    answer = agents.init("n2", "n3")
    assert answer.outcome is InitOutcome.FAILED
    assert "is running already" in answer.reason


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (Idle(OTHER, "/lake", "another-cluster"), "n2: it belongs to cluster sea (2), or knows of it"),
        (Idle(None, "/elsewhere", "no-cluster"), "n2: its root is /elsewhere, not /lake"),
        (Idle(None, None, "no-root"), "n2: its root is not given, not /lake"),
        (Idle(None, "/lake", "failed"), "n2: it has not found its root empty yet (failed)"),
    ],
)
def test_a_node_that_cannot_be_part_of_it_is_named_and_nothing_begins(agents: Cluster, idle: Idle, said: str) -> None:
    agents.idle["n2"] = idle
    answer = agents.init("n1", "n1", "n2", "n3")
    assert answer == InitAnswer(InitOutcome.FAILED, None, f"nothing has begun. {said}")
    assert not agents.log
    assert not agents.prepared()


def test_all_nodes_that_failed_are_named(agents: Cluster) -> None:
    agents.silent = {"n2"}
    answer = agents.init("n1", "n1", "n2", "n9")
    assert answer.reason == ("nothing has begun. n2: no agent of this name answers; n9: no agent of this name answers")


def test_a_log_that_cannot_begin_leaves_no_node_prepared(agents: Cluster) -> None:
    agents.why = "the storage is away"
    assert "the log: the storage is away" in agents.init("n1", "n1", "n2").reason
    assert not agents.prepared()
    agents.why = ""
    assert agents.init("n1", "n1", "n2").outcome is InitOutcome.RUNNING


def test_what_may_have_begun_is_never_called_not_begun(agents: Cluster) -> None:
    agents.why, agents.known = "no answer of the storage", False
    answer = agents.init("n1", "n1", "n2")
    assert answer.outcome is InitOutcome.FAILED
    assert "may have begun" in answer.reason
    assert "the same call" in answer.reason
    assert "another init is under way" in agents.init("n3", "n2", "n3").reason
    agents.why = ""
    assert agents.init("n2", "n1", "n2").outcome is InitOutcome.RUNNING


def test_a_full_disk_is_the_reason_of_its_node(agents: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Home.write

    def full(home: Home, document: str, value: object) -> None:
        if home.directory.name == "n2":
            raise HomeUnwritable("its home is full")
        write(home, document, value)

    with monkeypatch.context() as patched:
        patched.setattr(Home, "write", full)
        assert "n2: its home is full" in agents.init("n1", "n1", "n2").reason
    assert not agents.prepared()


def test_a_node_that_was_left_prepared_waits_for_the_same_call_and_in_the_end_for_none(agents: Cluster) -> None:
    order = InitOrder(("n1", "n2"))
    killed = Prepare(Introduction("n1", "n1", "n1:1", None, PROTOCOL, "1"), "1", order.request_id, "/lake")
    assert asyncio.run(agents.agents["n2"].prepare(killed)) == Ready("1")
    assert "n2: another init is under way" in agents.init("n3", "n2", "n3").reason
    agents.now += FORGOTTEN_AFTER
    assert agents.init("n3", "n2", "n3").outcome is InitOutcome.RUNNING


def test_two_calls_at_once_begin_one_cluster(agents: Cluster) -> None:
    async def both() -> list[InitAnswer]:
        async def called(at: str, order: InitOrder) -> InitAnswer:
            while (answer := agents.agents[at].ordered(order)).outcome is InitOutcome.PENDING:
                await asyncio.sleep(0.001)
            return answer

        return list(
            await asyncio.gather(
                called("n1", InitOrder(("n1", "n2"), "lake")), called("n2", InitOrder(("n2", "n3"), "sea"))
            )
        )

    answers = asyncio.run(both())
    assert len(agents.log) <= 1
    assert sum(answer.outcome is InitOutcome.RUNNING for answer in answers) == len(agents.log)


def test_a_node_that_two_inits_ask_at_once_is_ready_for_one_of_them(
    agents: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one asks while the first one is being written down, and has not found it in the home."""
    begun, may_end = threading.Event(), threading.Event()
    written = Home.write

    def slow(self: Home, document: str, value: Prepared) -> None:
        begun.set()
        assert may_end.wait(60)
        written(self, document, value)

    monkeypatch.setattr(Home, "write", slow)
    sender = Introduction("n2", "n2", "n2:1", None, PROTOCOL, "1")

    async def scene() -> list[Refusal | Ready]:
        first = asyncio.ensure_future(agents.agents["n1"].prepare(Prepare(sender, "n-1", "init-1", "/lake")))
        assert await asyncio.to_thread(begun.wait, 60)
        second = asyncio.ensure_future(agents.agents["n1"].prepare(Prepare(sender, "n-2", "init-2", "/lake")))
        for _ in range(10):
            await asyncio.sleep(0)
        may_end.set()
        return [await first, await second]

    first, second = asyncio.run(asyncio.wait_for(scene(), 120))
    assert first == Ready("n-1")
    assert isinstance(second, Refusal)
    assert second.code == "init-open"
    assert (agents.homes["n1"].read(INIT, Prepared) or Prepared()).request_id == "init-1"
