"""What an agent answers, by path. What comes in is checked before it is believed."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from epochlake.jobs.agent.agent import Agent
from epochlake.jobs.agent.discovery import Ask
from epochlake.jobs.agent.documents import EnsembleKnown, health
from epochlake.jobs.agent.home import ENSEMBLE, TAG, HomeDamaged, HomeUnwritable
from epochlake.jobs.agent.http_server import HttpServer, Refused, Request, Response, Streamed
from epochlake.jobs.agent.initialising import InitOrder, Prepare
from epochlake.jobs.agent.join_messages import MOST_VOLUMES, JoinRequest, join_refusal
from epochlake.jobs.agent.log_copy import LogCopy
from epochlake.jobs.agent.messages import (
    LARGEST,
    MOST_SIGHTINGS,
    PROTOCOL,
    Call,
    Introduction,
    Refusal,
    Sighting,
    Tag,
    refusal,
)
from epochlake.jobs.agent.metrics import CONTENT_TYPE, metrics_text
from epochlake.jobs.agent.sanity import LONGEST_WORD, untrue, untrue_search
from epochlake.jobs.agent.task_messages import TaskOrder
from epochlake.jobs.agent.task_orders import served
from epochlake.metastore.coordination.publication import PublishedEnsemble
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)

OPEN_TO_ALL = frozenset({"/health"})
"""Answered without a token: what restarts agents need not know the cluster's."""

LONGEST_URI = 4096
MOST_NODES = 100

_SNAPSHOT = re.compile(r"/snapshots/(\d{1,20})\Z", re.ASCII)

Route = Callable[[Request], Awaitable[Response | Streamed]]


class Routes:
    """The answers of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.server: HttpServer | None = None
        self._gets: dict[str, Route] = {
            "/health": self._health,
            "/state": self._state,
            "/nodes": self._nodes,
            "/peers": self._peers,
            "/coordination": self._coordination,
            "/metrics": self._metrics,
            "/log": self._log,
            "/upgrade": self._upgrade,
            "/file": self._file,
        }
        self._posts: dict[str, Route] = {
            "/handshake": self._handshake,
            "/probe": self._probe,
            "/probe-for": self._probe_for,
            "/discover": self._discover,
            "/join": self._join,
            "/cancel-join": self._cancel_join,
            "/init": self._init,
            "/upgrade": self._start_upgrade,
            "/prepare-init": self._prepare_init,
            "/tasks": self._tasks,
        }

    async def answer(self, request: Request) -> Response | Streamed:
        """Answer a request. Raises Refused."""
        if request.method == "GET" and (snapshot := _SNAPSHOT.match(request.path)) is not None:
            return await self._snapshot(int(snapshot[1]))
        routes = {"GET": self._gets, "POST": self._posts}.get(request.method, {})
        route = routes.get(request.path)
        if route is None:
            raise Refused(404, "unknown", f"there is no {request.method} {request.path[:80]}")
        return await route(request)

    async def _health(self, request: Request) -> Response:
        return _json(health(self._agent.state().problems))

    async def _state(self, request: Request) -> Response:
        return _json(self._agent.state())

    async def _nodes(self, request: Request) -> Response:
        return _json(self._agent.nodes())

    async def _peers(self, request: Request) -> Response:
        return _json(self._agent.addresses())

    async def _coordination(self, request: Request) -> Response:
        agent = self._agent
        try:
            published, tag = await asyncio.to_thread(self._ensemble)
        except HomeDamaged as error:
            raise Refused(500, "home", str(error)) from None
        servers = () if agent.coordinating is None else agent.coordinating.members()
        return _json(EnsembleKnown(tag, published, servers))

    def _ensemble(self) -> tuple[PublishedEnsemble | None, Tag | None]:
        """What was published of the ensemble, and the tag that the follower had written before that."""
        return self._agent.home.read(ENSEMBLE, PublishedEnsemble), self._agent.home.read(TAG, Tag)

    async def _metrics(self, request: Request) -> Response:
        assert self.server is not None
        seen = [peer.seen for peer in self._agent.membership.peers.values()]
        text = metrics_text(self._agent.state(), seen, self.server.refused, self.server.answered)
        return Response(200, text.encode(), CONTENT_TYPE)

    async def _log(self, request: Request) -> Response:
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 20):
            raise Refused(400, "malformed", "after is an epoch")
        copy = LogCopy(self._agent.home)
        try:
            lines = await asyncio.to_thread(copy.read, int(after), LARGEST)
        except (HomeDamaged, OSError) as error:
            raise Refused(500, "copy", str(error)) from None
        return Response(200, lines, "application/jsonl")

    async def _upgrade(self, request: Request) -> Response:
        view = self._agent.view
        return _json(self._agent.upgrading.said(None if view is None else view.upgrade_state))

    async def _start_upgrade(self, request: Request) -> Response:
        """A user's call; it is watched by GET."""
        if not self._agent.settings.admits:
            raise Refused(409, "admits-nobody", "this agent was not started with --admit: it changes no cluster")
        self._agent.upgrading.ordered()
        return await self._upgrade(request)

    async def _snapshot(self, epoch: int) -> Response:
        path = self._agent.home.snapshots / f"{epoch:020}.snapshot"
        try:
            return Response(200, await asyncio.to_thread(path.read_bytes), "application/octet-stream")
        except OSError:
            raise Refused(404, "unknown", f"this agent has no snapshot of epoch {epoch}") from None

    async def _handshake(self, request: Request) -> Response:
        call = self._heard(request)
        return _json(self._agent.answer(call, known=self._agent.addresses()[:MOST_SIGHTINGS]))

    async def _probe(self, request: Request) -> Response:
        return _json(self._agent.answer(self._heard(request)))

    async def _probe_for(self, request: Request) -> Response:
        call = self._heard(request)
        # Only agents that are known: nobody uses this one to knock at doors of others.
        if call.target not in self._agent.addresses() or call.target is None:
            raise Refused(400, "unknown-target", "there is no agent known at the target")
        return _json(self._agent.answer(call, reached=await self._agent.reach(call.target) is not None))

    async def _discover(self, request: Request) -> Response:
        ask = understood(request.body, Ask)
        why = untrue_search(ask)
        if why is not None:
            raise Refused(400, "malformed", why)
        if ask.protocol != PROTOCOL:
            raise Refused(409, "protocol", f"this agent speaks protocol {PROTOCOL}, not {ask.protocol}")
        try:
            return _json(await self._agent.discovering.answer(ask))
        except HomeUnwritable as error:
            # Who is not remembered must not be answered.
            raise Refused(503, "home", str(error)) from None

    async def _join(self, request: Request) -> Response:
        """JOIN_NODE_REQUEST: refused at once, or the log is asked and the answer is waited for."""
        asked = understood(request.body, JoinRequest)
        require_sane(asked.sender)
        words = (asked.request_id, asked.datacenter, asked.rack, *(volume.name for volume in asked.volumes))
        short = all(0 < len(word) <= LONGEST_WORD for word in words)
        if (
            not short
            or not 0 < len(asked.volumes) <= MOST_VOLUMES
            or any(len(v.uri) > LONGEST_URI for v in asked.volumes)
        ):
            raise Refused(400, "malformed", f"a node has a place, and 1 to {MOST_VOLUMES} volumes")
        agent = self._agent
        open_as = agent.admitting.open_as(asked.sender.name)
        enabled = () if agent.view is None else agent.view.features
        why = join_refusal(agent.introduction(), agent.settings.admits, asked, open_as, enabled)
        if why is not None:
            agent.admitting.refused(asked, why.reason)
            raise Refused(409, why.code, why.reason)
        return _json(agent.admitting.asked(asked))

    async def _cancel_join(self, request: Request) -> Response:
        if self._agent.joining is None:
            raise Refused(409, "no-join", "this agent does not ask to join")
        try:
            return _json(await self._agent.joining.cancel())
        except HomeUnwritable as error:
            raise Refused(503, "home", str(error)) from None

    async def _init(self, request: Request) -> Response:
        """A user's call; it is asked again until it has come to an end."""
        order = understood(request.body, InitOrder)
        words = (*order.nodes, order.name or "cluster")
        if not 0 < len(order.nodes) <= MOST_NODES or any(not 0 < len(word) <= LONGEST_WORD for word in words):
            raise Refused(400, "malformed", f"an init names 1 to {MOST_NODES} nodes")
        return _json(self._agent.initialising.ordered(order))

    async def _prepare_init(self, request: Request) -> Response:
        asked = understood(request.body, Prepare)
        require_sane(asked.sender)
        if len(asked.request_id) > LONGEST_WORD or len(asked.root) > LONGEST_URI:
            raise Refused(400, "malformed", "a request id or a root is too long")
        try:
            answer = await self._agent.initialising.prepare(asked)
        except (HomeDamaged, HomeUnwritable) as error:
            raise Refused(503, "home", str(error)) from None
        if isinstance(answer, Refusal):
            raise Refused(409, answer.code, answer.reason)
        return _json(answer)

    async def _tasks(self, request: Request) -> Response:
        """An order of a coordinator or a job; it is asked again until nothing of it is open."""
        return _json(await self._agent.orders.answer(understood(request.body, TaskOrder)))

    async def _file(self, request: Request) -> Streamed:
        """A data file for the agent that streams it."""
        agent = self._agent
        return await served(request, agent.serving, agent.tag, agent.view, agent.identity.name)

    def _heard(self, request: Request) -> Call:
        """The call in a request, believed. Raises Refused."""
        call = understood(request.body, Call)
        require_sane(call.sender)
        why = refusal(self._agent.introduction(), call.sender)
        if why is not None:
            if why.code == "same-id":
                self._agent.met_itself(call.sender.address)
            raise Refused(409, why.code, why.reason)
        self._agent.heard(call)
        return call


def understood(body: bytes, kind: type[Any]) -> Any:
    """A document from another agent. Raises Refused."""
    try:
        found = msgspec.json.decode(body, type=decodable(kind))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(400, "malformed", f"this is no {kind.__name__.lower()}: {error}"[:300]) from None
    for one in getattr(found, "sightings", ()):
        require_sane(one)
    if len(getattr(found, "sightings", ())) > MOST_SIGHTINGS:
        raise Refused(400, "malformed", f"a message has at most {MOST_SIGHTINGS} sightings")
    return found


def require_sane(who: Introduction | Sighting) -> None:
    """That what somebody says of an agent can be true, and does not fill the memory. Raises Refused."""
    why = untrue(who)
    if why is not None:
        raise Refused(400, "malformed", why)


def _json(document: Any) -> Response:
    return Response(200, msgspec.json.encode(document))
