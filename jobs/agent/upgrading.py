"""The upgrade of a described cluster, started at one agent and watched at any (seed 000, "Upgrade from legacy …").

The work is done by a process of its own. What it is, the log says: killed with its agent, it is started again at any
other one, and goes on.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
from epochlake.jobs.agent.processes import configured, said_by
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)

UPGRADE_SECONDS = 86_400.0


class UpgradeSaid(msgspec.Struct, frozen=True):
    """`upgrade_state` by the names of seed 000, as far as this agent has followed the log; None: it has not yet.

    `running`: whether this agent has the upgrade carried out now. `reason`: why its last attempt came to nothing.
    """

    upgrade_state: str | None
    running: bool = False
    reason: str = ""


class Upgrading:
    """The attempts that one agent was asked for: one at a time."""

    def __init__(self, conf: str | None, root: str | None) -> None:
        self._words = configured(conf, root)
        self._task: asyncio.Task[None] | None = None
        self._reason = ""

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def ordered(self) -> None:
        """Start it, unless it is running here already."""
        if not self.running:
            self._reason = ""
            self._task = asyncio.ensure_future(self._run())

    def said(self, followed: str | None) -> UpgradeSaid:
        return UpgradeSaid(followed, self.running, self._reason)

    async def _run(self) -> None:
        try:
            said = await said_by("upgrade_process", self._words, UPGRADE_SECONDS)
            self._reason = msgspec.json.decode(said, type=decodable(UpgradeSaid)).reason
        except TimeoutError:
            self._reason = f"no end within {UPGRADE_SECONDS:g} s"
        except (OSError, msgspec.MsgspecError):
            self._reason = "the process that carries it out ended without a word"
        if self._reason:
            logger.warning("the upgrade has not ended: %s", self._reason)
