"""Workers in agents, as the configuration names these."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from epochlake.metastore import threads
from epochlake.metastore.coordination.publication import Heard
from epochlake.placement.errors import EpochlakeError, InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.agent.agent_workers import AgentWorkers
    from epochlake.jobs.agent.http_client import HttpClient
    from epochlake.jobs.cli.session import Session
    from epochlake.metastore.coordination.whereabouts import Asked

T = TypeVar("T")

SPARE_SECONDS = 1.0
"""How much longer than an agent may take its answer is waited for: what finds its address can hang as well."""


def agent_workers(session: Session, given: Sequence[str] | None = None) -> AgentWorkers:
    """`given`: whom to ask instead of those of the configuration.

    Raises InvalidRequest where no agent is named, or what they want to see cannot be shown.
    """
    addresses = [*(given or ())] or _configured(session)
    if not addresses:
        raise InvalidRequest(
            "no agent is named that could be asked to stream", hint="Give --agent, or set [agents] ask"
        )
    client = _client(session)
    from epochlake.jobs.agent.agent_workers import AgentWorkers
    from epochlake.jobs.agent.http_client import split_address
    from epochlake.jobs.replicas.streaming import THREADS
    from epochlake.jobs.workers.threads import ThreadWorkers

    for address in addresses:
        split_address(address)
    cluster = session.cluster
    return AgentWorkers(addresses, client, lambda: cluster.metadata, ThreadWorkers(THREADS))


def coordination_offers(session: Session) -> Callable[[], list[tuple[str, str]]]:
    """What asks the agents of the configuration which ZooKeeper servers agents run: by node, as ZooKeeper writes them.
    The first that answers is believed, whoever it has heard of. It raises AgentUnreachable where none answers.

    Raises InvalidRequest where no agent is named, or what they want to see cannot be shown.
    """
    addresses = _configured(session)
    if not addresses:
        raise InvalidRequest(
            "[zookeeper] members is 'auto', and no agent is named that knows which servers there are",
            hint="Set [agents] ask",
        )
    client = _client(session)
    from epochlake.jobs.agent.asking import nodes_of
    from epochlake.jobs.agent.http_client import AgentUnreachable, split_address

    for address in addresses:
        split_address(address)

    def offers() -> list[tuple[str, str]]:
        said = []
        for address in addresses:
            try:
                nodes = nodes_of(address, client)
            except AgentUnreachable as error:
                said.append(error.statement)
                continue
            return [(node.name, node.coordination_server) for node in nodes if node.coordination_server]
        raise AgentUnreachable("; ".join(said), hint="Name other agents in [agents] ask")

    return offers


def ensemble_heard(session: Session) -> Asked | None:
    """What asks all agents of the configuration where the ZooKeeper ensemble is, at once; None where none are named.
    It raises AgentUnreachable where none answers that knows.
    """
    addresses = _configured(session)
    if not addresses:
        return None

    def heard() -> list[Heard]:
        client = _client(session)
        from epochlake.jobs.agent.asking import SECONDS, ensemble_of
        from epochlake.jobs.agent.http_client import AgentUnreachable

        answers = all_asked(addresses, lambda address: ensemble_of(address, client), SECONDS + SPARE_SECONDS)
        found, said = [], []
        for address, known in zip(addresses, answers, strict=True):
            if isinstance(known, EpochlakeError):
                said.append(known.statement)
            elif known.tag is None or known.published is None or known.published.cluster_id != known.tag.id:
                said.append(f"the agent at {address} knows of no ensemble that was published")
            else:
                found.append(Heard(known.published, known.servers))
        if not found:
            raise AgentUnreachable("; ".join(said), hint="Name other agents in [agents] ask")
        return found

    return heard


def all_asked(addresses: Sequence[str], ask: Callable[[str], T], seconds: float) -> list[T | EpochlakeError]:
    """What each of them says, or why it says nothing; who has said nothing after `seconds` is not waited for."""
    from epochlake.jobs.agent.http_client import AgentUnreachable

    answers: SimpleQueue[tuple[int, T | EpochlakeError]] = SimpleQueue()

    def asked(at: int, address: str) -> None:
        try:
            answers.put((at, ask(address)))
        except EpochlakeError as error:
            answers.put((at, error))
        except Exception as error:  # of whatever kind: it is this agent's alone
            answers.put((at, AgentUnreachable(f"the agent at {address} cannot be asked ({type(error).__name__})")))

    found: dict[int, T | EpochlakeError] = {}
    for at, address in enumerate(addresses):
        try:
            threads.begin(partial(asked, at, address))
        except RuntimeError:
            found[at] = AgentUnreachable(f"the agent at {address} was not asked: there are no threads left")
    deadline = time.monotonic() + seconds
    with suppress(Empty):
        while len(found) < len(addresses):
            at, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[at] = answer
    late = [AgentUnreachable(f"the agent at {address} did not answer within {seconds:g} s") for address in addresses]
    return [found.get(at, late[at]) for at in range(len(addresses))]


def _configured(session: Session) -> list[str]:
    return [address.strip() for address in session.configuration.agents.ask.split(",") if address.strip()]


def _client(session: Session) -> HttpClient:
    settings = session.configuration.agents
    return asking(
        settings.token_file or None,
        settings.tls_certificate or None,
        settings.tls_key or None,
        settings.tls_authority or None,
    )


def asking(
    token_file: str | None = None, certificate: str | None = None, key: str | None = None, authority: str | None = None
) -> HttpClient:
    """A client that shows what the agents want to see. Raises InvalidRequest."""
    require_h11()
    from epochlake.jobs.agent.http_client import HttpClient
    from epochlake.jobs.agent.running import tls_of, token_of

    _, tls = tls_of(certificate, key, authority)
    return HttpClient(token=token_of(token_file), tls=tls)


def require_h11() -> None:
    """Raise EpochlakeError where what agents speak by is not installed."""
    try:
        import h11  # noqa: F401
    except ModuleNotFoundError:
        raise EpochlakeError(
            "agents need h11, which is not installed here", hint="Run `pip install 'epochlake[agent]'`"
        ) from None
