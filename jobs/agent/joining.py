"""A blank agent asks that its node may join, and waits for the answer; how it ends is in its home.

Each question has a nonce, and only the answer to it counts: an answer to an earlier attempt is none. The request id is
made of the agent's id and is the same after a kill, so the node is added once whoever is asked. A rejection is final: a
new attempt needs a cleared home, which is another agent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from enum import StrEnum

import msgspec
from epochlake.jobs.agent.home import AgentIdentity, Home, HomeUnwritable
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.join_messages import JoinAnswer, JoinRequest, Outcome, WantedVolume
from epochlake.jobs.agent.messages import Introduction, Refusal
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest

logger = logging.getLogger(__name__)

JOIN = "join"
NOBODY = "no member of a cluster is known yet"
CLEAR = "clear the home to try again"

WAIT_ON = frozenset({"not-a-member", "admits-nobody", "late", "slow", "too-many", "failed", "unknown", "token"})
"""Refusals that say nothing of this node: another member may let it in."""


class Phase(StrEnum):
    ASKING = "asking"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"


class JoinState(msgspec.Struct, frozen=True):
    """How far a join is. `asked`: whether a member may have been asked, so that the log may have the node."""

    phase: Phase = Phase.ASKING
    reason: str = ""
    epoch: int | None = None
    asked: bool = False


class WantedNode(msgspec.Struct, frozen=True):
    """What the node is to be."""

    datacenter: str
    rack: str
    volumes: tuple[WantedVolume, ...]
    cluster: str | None = None


class Joining:
    """The join of one agent. `members` says whom to ask, `introduction` who asks, and `nobody` why there is nobody."""

    def __init__(
        self,
        home: Home,
        identity: AgentIdentity,
        wanted: WantedNode,
        client: HttpClient,
        *,
        introduction: Callable[[], Introduction],
        members: Callable[[], tuple[str, ...]],
        seconds: float,
        period: float,
        nobody: Callable[[], str] = lambda: NOBODY,
    ) -> None:
        self.state = home.read(JOIN, JoinState) or JoinState()
        self.request_id = f"join-{identity.agent_id}"
        self._home = home
        self._wanted = wanted
        self._client = client
        self._introduction = introduction
        self._members = members
        self._nobody = nobody
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._period = period
        self._turn = 0
        self._asks_log = ""
        """The member that is asking the log, and is asked again for what came of it."""
        self._admit_nobody: set[str] = set()
        self._cancelling = False
        self._writing = asyncio.Lock()
        """What is written down is decided and written by one at a time: an operator may cancel in the midst of it."""

    async def run(self) -> None:
        """Ask one member after the other until there is an outcome."""
        while self.state.phase is Phase.ASKING:
            try:
                if self._introduction().tag is not None:
                    # The log has the node, and this agent has found it there before it heard the answer.
                    await self._end(Phase.ACCEPTED, "")
                    return
                await self._once()
            except HomeUnwritable as error:
                if self.state.reason != str(error):  # else a disk that stays full would get a line each time
                    logger.warning("the join waits: %s", error)
                self._waits(str(error))
            await asyncio.sleep(5 * self._period)

    async def cancel(self) -> JoinState:
        """Ask no more. What a member was asked for already may be in the log, and is said."""
        self._cancelling = True  # from now on nobody is asked, also while another word is being written down
        try:
            return await self._cancel()
        finally:
            self._cancelling = False

    async def _cancel(self) -> JoinState:
        async with self._writing:
            if self.state.phase is Phase.ASKING:
                asked = "; if the node is in the log, `epochlake request cancel` takes it back"
                reason = f"an operator has cancelled it{asked if self.state.asked else ''}"
                await self._ended(Phase.CANCELLED, reason)
        return self.state

    async def _once(self) -> None:
        if time.monotonic() > self._deadline:
            await self._end(
                Phase.TIMED_OUT, f"no outcome within {self._seconds:g} s: {self.state.reason or 'no member'}"
            )
            return
        members = self._members()
        if not members:
            self.state = msgspec.structs.replace(self.state, reason=self._nobody())
            return
        address = self._next(members)
        if not self.state.asked:
            # Written before it is sent: after a kill it is known that the log may have the node.
            async with self._writing:
                if self.state.phase is Phase.ASKING:
                    await self._keep(msgspec.structs.replace(self.state, asked=True))
        if self._cancelling or self.state.phase is not Phase.ASKING:
            return  # cancelled while it was written down
        wanted, nonce, mine = self._wanted, secrets.token_hex(8), self._introduction()
        if mine.tag is not None:
            return  # the log has had its node meanwhile: a member would refuse, and that would be final
        request = JoinRequest(
            mine,
            nonce,
            self.request_id,
            wanted.datacenter,
            wanted.rack,
            wanted.volumes,
            wanted.cluster,
        )
        try:
            status, body = await self._client.ask(address, "/join", msgspec.json.encode(request), timeout=10.0)
            if self.state.phase is not Phase.ASKING:
                return  # cancelled while the answer was on its way
            if status != 200:
                await self._refused(address, msgspec.json.decode(body, type=decodable(Refusal)))
                return
            answer = msgspec.json.decode(body, type=decodable(JoinAnswer))
        except (AgentUnreachable, InvalidRequest, msgspec.MsgspecError) as error:
            self._waits(f"the agent at {address} gave no answer: {error}")
            return
        if answer.nonce != nonce:
            self._waits(f"the agent at {address} repeats an answer to another question")
        elif answer.outcome is Outcome.ACCEPTED:
            await self._end(Phase.ACCEPTED, "", answer.epoch)
        elif answer.outcome is Outcome.REJECTED:
            await self._end(Phase.REJECTED, answer.reason)
        else:
            # One that could not find out says why, and then another one is asked.
            self._asks_log = "" if answer.reason else address
            self._waits(answer.reason or f"the agent at {address} is asking the log")

    def _next(self, members: tuple[str, ...]) -> str:
        """Whom to ask now: who has begun to find out, then one after the other of those that may let nodes in."""
        address, self._asks_log = self._asks_log, ""
        if address in members:
            return address
        admitting = [member for member in members if member not in self._admit_nobody]
        if not admitting:
            self._admit_nobody.clear()  # they may have been started otherwise meanwhile
        asked = admitting or members
        self._turn += 1
        return asked[(self._turn - 1) % len(asked)]

    async def _refused(self, address: str, why: Refusal) -> None:
        if why.code == "admits-nobody":
            self._admit_nobody.add(address)
        if why.code in WAIT_ON:
            self._waits(f"the agent at {address}: {why.reason}")
        else:
            await self._end(Phase.REJECTED, f"the agent at {address}: {why.reason}")

    def _waits(self, reason: str) -> None:
        if self.state.phase is Phase.ASKING:
            self.state = msgspec.structs.replace(self.state, reason=reason)

    async def _end(self, phase: Phase, reason: str, epoch: int | None = None) -> None:
        """Write down how it has ended, unless it has ended already: of two ends the first one stands."""
        async with self._writing:
            if self.state.phase is Phase.ASKING:
                await self._ended(phase, reason, epoch)

    async def _ended(self, phase: Phase, reason: str, epoch: int | None = None) -> None:
        said = f"{reason}; {CLEAR}" if phase is not Phase.ACCEPTED else reason
        await self._keep(msgspec.structs.replace(self.state, phase=phase, reason=said, epoch=epoch))
        logger.info("joining: %s %s", phase, said)

    async def _keep(self, state: JoinState) -> None:
        await asyncio.to_thread(self._home.write, JOIN, state)
        self.state = state
