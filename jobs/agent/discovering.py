"""Discovery with a home and a network: what `discovery.py` decides is written down before anybody is told of it."""

from __future__ import annotations

import asyncio
import logging
import secrets

import msgspec
from epochlake.jobs.agent.discovery import Ask, Discovery, DiscoveryState, Phase, Told
from epochlake.jobs.agent.home import DISCOVERY, AgentIdentity, Home, HomeUnwritable
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.initialising import Began
from epochlake.jobs.agent.messages import Tag
from epochlake.jobs.agent.processes import configured, said_by
from epochlake.jobs.agent.sanity import untrue_search
from epochlake.placement.decoding import decodable
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
        self._words = configured(conf, root)
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
            told = msgspec.json.decode(answer, type=decodable(Told)) if status == 200 else None
            if told is not None and untrue_search(told) is not None:
                logger.debug("discovery: what %s answers cannot be true", place)
                told = None
            return place, number, told
        except (AgentUnreachable, InvalidRequest, msgspec.MsgspecError) as error:
            logger.debug("discovery: %s", error)
            return place, number, None

    async def _found(self) -> None:
        """Begin the cluster. Where somebody else has begun one at this root in the meantime, that is the cluster."""
        logger.info("no cluster was found, and this agent has the lowest id: it founds one")
        why = [
            "--request-id",
            f"found-{self.discovery.agent_id}",
            "--reason",
            "founded by agents that found each other",
        ]
        began = await begin([*self._words, *why])
        if began.tag is None:
            logger.warning("no cluster could be founded: %s", began.reason)
            self.problem = f"no cluster could be founded: {began.reason}"
            await asyncio.sleep(5 * self._period)
            return
        await self.found(began.tag)

    async def _keep(self) -> None:
        """Write the state down unless it is. Nothing is sent that is not written."""
        state = self.discovery.state
        if state != self._kept:
            await asyncio.to_thread(self._home.write, DISCOVERY, state)
            self._kept = state


async def begin(words: list[str]) -> Began:
    """Begin the log in a process of its own. What is late, or ends without a word, may have begun it."""
    try:
        return msgspec.json.decode(await said_by("founding", words, FOUNDING_SECONDS), type=decodable(Began))
    except (TimeoutError, OSError, msgspec.MsgspecError) as error:
        return Began(None, f"the process that begins it gave no answer: {error or type(error).__name__}", known=False)
