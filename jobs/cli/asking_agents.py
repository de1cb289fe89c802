"""Workers in agents, as the configuration names these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epochlake.metastore.coordination.publication import Heard
from epochlake.placement.errors import EpochlakeError, InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.agent.agent_workers import AgentWorkers
    from epochlake.jobs.agent.http_client import HttpClient
    from epochlake.jobs.cli.session import Session
    from epochlake.metastore.coordination.whereabouts import Asked


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
    """What asks the agents of the configuration where the ZooKeeper ensemble is; None where none are named. It raises
    AgentUnreachable where none answers that belongs to a cluster.
    """
    addresses = _configured(session)
    if not addresses:
        return None

    def heard() -> Heard:
        client = _client(session)
        from epochlake.jobs.agent.asking import AgentRefused, ensemble_of
        from epochlake.jobs.agent.http_client import AgentUnreachable

        said = []
        for address in addresses:
            try:
                known = ensemble_of(address, client)
            except (AgentUnreachable, AgentRefused) as error:
                said.append(error.statement)
                continue
            if known.tag is not None and known.published is not None and known.published.cluster_id == known.tag.id:
                return Heard(known.published, known.servers)
            said.append(f"the agent at {address} knows of no ensemble that was published")
        raise AgentUnreachable("; ".join(said), hint="Name other agents in [agents] ask")

    return heard


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
