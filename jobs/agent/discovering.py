"""Discovery with a home and a network: what `discovery.py` decides is written down before anybody is told of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys

import msgspec
from epochlake.jobs.agent.discovery import Ask, Discovery, DiscoveryState, Phase, Told
from epochlake.jobs.agent.home import DISCOVERY, AgentIdentity, Home, HomeUnwritable
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.messages import Tag
from epochlake.placement.errors import InvalidRequest

logger = logging.getLogger(__name__)

FOUNDING_SECONDS = 300.0


class Discovering:
    """The discovery of one agent. `may_found`: whether it was started to found a cluster where there is none."""

    def __init__(
        self,
        home: Home,
        identity: AgentIdentity,
        client: HttpClient,
        *,
        address: str,
        seeds: tuple[str, ...],
        conf: str | None,
        root: str | None,
        may_found: bool,
        period: float,
    ) -> None:
        self.discovery = Discovery(identity.agent_id, address, seeds, home.read(DISCOVERY, DiscoveryState))
        self.problem = ""
        self.may_found = may_found
        self._home = home
        self._client = client
        self._words = [
            word for option, value in (("--conf", conf), ("--root", root)) if value for word in (option, value)
        ]
        self._can_found = root is not None
        self._period = period
        self._kept: DiscoveryState | None = None
        self._lock = asyncio.Lock()

    async def answer(self, ask: Ask) -> Told:
        """Answer somebody who searches, once it is written down. Raises HomeUnwritable."""
        async with self._lock:
            told = self.discovery.asked(ask)
            await self._keep()
            return told

    async def found(self, tag: Tag) -> None:
        """There is a cluster: the root has it, or this agent belongs to it."""
        async with self._lock:
            if self.discovery.state.tag != tag:
                self.discovery.found(tag)
                await self._keep()

    async def run(self) -> None:
        """Search until there is a cluster."""
        while self.may_found and self.discovery.state.phase is not Phase.FOUND:
            try:
                await self._once()
                self.problem = ""
            except HomeUnwritable as error:
                self.problem = str(error)
            await asyncio.sleep(self._period)

    async def _once(self) -> None:
        async with self._lock:
            founds = self._can_found and self.discovery.may_found()
            await self._keep()
        if founds:
            await self._found()
            return
        places = [place for place in self.discovery.to_ask() if place != self.discovery.address]
        answers = await asyncio.gather(*(self._ask(place) for place in places))
        async with self._lock:
            for place, number, told in answers:
                if told is not None:
                    self.discovery.told(told, at=place, number=number)
            await self._keep()

    async def _ask(self, place: str) -> tuple[str, str, Told | None]:
        number = secrets.token_hex(8)
        body = msgspec.json.encode(self.discovery.ask(number))
        try:
            status, answer = await self._client.ask(place, "/discover", body, timeout=2.0)
            return place, number, msgspec.json.decode(answer, type=Told) if status == 200 else None
        except (AgentUnreachable, InvalidRequest, msgspec.MsgspecError) as error:
            logger.debug("discovery: %s", error)
            return place, number, None

    async def _found(self) -> None:
        """Begin the cluster, in a process of its own."""
        logger.info("no cluster was found, and this agent has the lowest id: it founds one")
        words = ["-m", "epochlake.jobs.agent.founding", "--agent-id", self.discovery.agent_id, *self._words]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), FOUNDING_SECONDS)
            answer = msgspec.json.decode(said or b"{}")
            reason, tag = answer.get("reason") or "the process that founds ended without a word", answer.get("tag")
        except (TimeoutError, msgspec.MsgspecError) as error:
            reason, tag = f"founding came to no end: {error or type(error).__name__}", None
        finally:
            if process.returncode is None:
                process.kill()
        if tag is None:
            logger.warning("no cluster could be founded: %s", reason)
            self.problem = f"no cluster could be founded: {reason}"
            await asyncio.sleep(5 * self._period)
            return
        await self.found(msgspec.convert(tag, Tag))

    async def _keep(self) -> None:
        """Write the state down unless it is. Nothing is sent that is not written."""
        state = self.discovery.state
        if state != self._kept:
            await asyncio.to_thread(self._home.write, DISCOVERY, state)
            self._kept = state
