"""Workers in agents, as the configuration names these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochlake.jobs.cli.commands.agent import asking
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.agent.agent_workers import AgentWorkers
    from epochlake.jobs.cli.session import Session


def agent_workers(session: Session, given: Sequence[str] | None = None) -> AgentWorkers:
    """`given`: whom to ask instead of those of the configuration.

    Raises InvalidRequest where no agent is named, or what they want to see cannot be shown.
    """
    settings = session.configuration.agents
    addresses = [*(given or ())] or [address.strip() for address in settings.ask.split(",") if address.strip()]
    if not addresses:
        raise InvalidRequest(
            "no agent is named that could be asked to stream", hint="Give --agent, or set [agents] ask"
        )
    client = asking(
        settings.token_file or None,
        settings.tls_certificate or None,
        settings.tls_key or None,
        settings.tls_authority or None,
    )
    from epochlake.jobs.agent.agent_workers import AgentWorkers
    from epochlake.jobs.agent.http_client import split_address
    from epochlake.jobs.replicas.streaming import THREADS
    from epochlake.jobs.workers.threads import ThreadWorkers

    for address in addresses:
        split_address(address)
    cluster = session.cluster
    return AgentWorkers(addresses, client, lambda: cluster.metadata, ThreadWorkers(THREADS))
