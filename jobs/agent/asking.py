"""Asking an agent from a program that has no event loop: the command line."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from epochlake.jobs.agent.documents import AgentState, NodeSeen
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.joining import JoinState
from epochlake.jobs.agent.messages import Refusal
from epochlake.placement.errors import EpochlakeError

D = TypeVar("D")

SECONDS = 5.0


class AgentRefused(EpochlakeError):
    """An agent does not answer this: it wants a token, or is none of this version."""


def state_of(address: str, client: HttpClient) -> AgentState:
    """The state of the agent at HOST:PORT. Raises AgentUnreachable, AgentRefused, InvalidRequest."""
    return _asked(address, "/state", AgentState, client)


def nodes_of(address: str, client: HttpClient) -> list[NodeSeen]:
    """The nodes as the log has them and as the agent at HOST:PORT sees them. Raises as `state_of`."""
    return _asked(address, "/nodes", list[NodeSeen], client)


def cancel_join(address: str, client: HttpClient) -> JoinState:
    """Let the agent at HOST:PORT ask no more that its node may join. Raises as `state_of`."""
    return _asked(address, "/cancel-join", JoinState, client, b"{}")


def _asked(address: str, path: str, kind: type[D], client: HttpClient, body_sent: bytes | None = None) -> D:
    status, body = asyncio.run(client.ask(address, path, body_sent, timeout=SECONDS))
    try:
        if status == 200:
            return msgspec.json.decode(body, type=kind)
        refusal = msgspec.json.decode(body, type=Refusal)
    except msgspec.MsgspecError:
        raise AgentUnreachable(
            f"what is at {address} does not answer as an agent", hint="Correct the address"
        ) from None
    hint = "Give --token-file" if refusal.code == "token" else ""
    raise AgentRefused(f"the agent at {address} refuses: {refusal.reason}", hint=hint)
