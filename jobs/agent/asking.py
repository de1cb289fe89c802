"""Asking an agent from a program that has no event loop: the command line."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

import msgspec
from epochlake.jobs.agent.documents import AgentState, EnsembleKnown, NodeSeen
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.initialising import InitAnswer, InitOrder, InitOutcome
from epochlake.jobs.agent.joining import JoinState
from epochlake.jobs.agent.messages import Refusal
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError


class InitFailed(EpochlakeError):
    """An init came to nothing, or it is not known whether it did: the message says which."""

    exit_code = 3


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


def ensemble_of(address: str, client: HttpClient) -> EnsembleKnown:
    """What the agent at HOST:PORT knows of the ZooKeeper ensemble. Raises as `state_of`."""
    return _asked(address, "/coordination", EnsembleKnown, client)


def cancel_join(address: str, client: HttpClient) -> JoinState:
    """Let the agent at HOST:PORT ask no more that its node may join. Raises as `state_of`."""
    return _asked(address, "/cancel-join", JoinState, client, b"{}")


def init(address: str, order: InitOrder, client: HttpClient, seconds: float) -> InitAnswer:
    """Begin a cluster on the nodes of an order, by the agent at HOST:PORT, or none. Raises as `state_of`, and
    AgentUnreachable when there is no outcome in time: the same order may be given to any agent again.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = _asked(address, "/init", InitAnswer, client, msgspec.json.encode(order))
        if answer.outcome is InitOutcome.RUNNING:
            return answer
        if answer.outcome is InitOutcome.FAILED:
            raise InitFailed(f"no cluster begins on {', '.join(order.nodes)}: {answer.reason}")
        if time.monotonic() > deadline:
            raise AgentUnreachable(
                f"the agent at {address} has no outcome within {seconds:g} s", hint="Make the same call to any agent"
            )
        time.sleep(0.5)


def _asked(address: str, path: str, kind: type[D], client: HttpClient, body_sent: bytes | None = None) -> D:
    status, body = asyncio.run(client.ask(address, path, body_sent, timeout=SECONDS))
    try:
        if status == 200:
            return msgspec.json.decode(body, type=decodable(kind))
        refusal = msgspec.json.decode(body, type=decodable(Refusal))
    except msgspec.MsgspecError:
        raise AgentUnreachable(
            f"what is at {address} does not answer as an agent", hint="Correct the address"
        ) from None
    hint = "Give --token-file" if refusal.code == "token" else ""
    raise AgentRefused(f"the agent at {address} refuses: {refusal.reason}", hint=hint)
