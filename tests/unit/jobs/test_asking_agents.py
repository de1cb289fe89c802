"""The command line asks all agents that it was told of at once, and none of them holds it up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from epochlake.jobs.agent import asking
from epochlake.jobs.agent.asking import AgentRefused
from epochlake.jobs.agent.documents import EnsembleKnown
from epochlake.jobs.agent.http_client import AgentUnreachable
from epochlake.jobs.agent.messages import Tag
from epochlake.jobs.cli import asking_agents
from epochlake.jobs.cli.asking_agents import all_asked, ensemble_heard
from epochlake.metastore.configuration import AgentsSettings, Configuration
from epochlake.metastore.coordination.publication import Heard, PublishedEnsemble

SECONDS = 300.0
TAG = Tag("lake", "c1")


def publication(number: int, cluster_id: str = TAG.id) -> PublishedEnsemble:
    return PublishedEnsemble(number, cluster_id, "e1", f"seal-{number}", f"zk{number}:2181", "100000000")


def asked(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Callable[[], EnsembleKnown]]) -> list[Heard]:
    """What is heard of agents that answer so."""
    monkeypatch.setattr(asking, "ensemble_of", lambda address, client: answers[address]())
    monkeypatch.setattr(asking_agents, "_client", lambda session: None)
    configuration = Configuration(root="unused", agents=AgentsSettings(ask=" , ".join(answers)))
    session: Any = SimpleNamespace(configuration=configuration)
    heard = ensemble_heard(session)
    assert heard is not None
    return list(heard())


def test_all_agents_are_asked_and_what_each_knows_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the others to be asked."""
    all_at_once = threading.Barrier(5)

    def says(known: EnsembleKnown | Exception) -> Callable[[], EnsembleKnown]:
        def answer() -> EnsembleKnown:
            all_at_once.wait(SECONDS)
            if isinstance(known, Exception):
                raise known
            return known

        return answer

    old = EnsembleKnown(TAG, publication(3), ("zk4:2181",))
    newer = EnsembleKnown(TAG, publication(7))
    monkeypatch.setattr(asking, "SECONDS", SECONDS)
    found = asked(
        monkeypatch,
        {
            "blank:1": says(EnsembleKnown(None)),
            "old:1": says(old),
            "strange:1": says(EnsembleKnown(TAG, publication(9, "c2"))),
            "refuses:1": says(AgentRefused("it wants a token")),
            "newer:1": says(newer),
        },
    )
    assert found == [Heard(old.published, old.servers), Heard(newer.published)]


def test_where_nobody_knows_all_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen() -> EnsembleKnown:
        raise UnicodeError("label too long")

    with pytest.raises(AgentUnreachable) as unreachable:
        asked(monkeypatch, {"blank:1": lambda: EnsembleKnown(None), "odd:1": unforeseen})
    assert unreachable.value.statement == (
        "the agent at blank:1 knows of no ensemble that was published; "
        "the agent at odd:1 cannot be asked (UnicodeError)"
    )


def test_an_agent_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the hang is of no kind that a request's own time limit ends, as in a look-up of its name."""
    released = threading.Event()
    # The time is over when the other one has answered.
    clock = iter((0.0, 0.0, SECONDS))
    monkeypatch.setattr(asking_agents, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def ask(address: str) -> str:
        if address == "hangs:1":
            assert released.wait(SECONDS)
        return address

    try:
        late, well = all_asked(["hangs:1", "well:1"], ask, SECONDS)
    finally:
        released.set()
    assert well == "well:1"
    assert isinstance(late, AgentUnreachable)
    assert late.statement == "the agent at hangs:1 did not answer within 300 s"
