"""Keeping the follower of the log alive when there may be news, and away when there are none."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time

import msgspec
from epochlake.jobs.agent.home import Home
from epochlake.jobs.agent.looking import Look
from epochlake.jobs.agent.messages import StreamSeen
from epochlake.jobs.agent.processes import ended
from epochlake.jobs.agent.volumes import local_path
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)

FOLLOWING = "epochlake.jobs.agent.following"
SILENT_SECONDS = 60.0
"""A follower that says nothing for so long hangs, and is killed."""

EVERY_SECONDS = 300.0
"""How often the log is followed when nothing tells of news: its root is in an object store, say."""

STREAMS_SECONDS = 60.0
"""And how often where tables keep their changes: what is kept, and how far readers are, is no news in the log."""

AT_MOST_EVERY_SECONDS = 5.0


class Told(msgspec.Struct, frozen=True):
    """The last word of a follower; see `following.Followed`."""

    outcome: str = "never"
    reason: str = ""
    tag: dict[str, str] | None = None
    epoch: int = 0
    damaged: str | None = None
    streams: tuple[StreamSeen, ...] = ()


class LogFollower:
    """Starts the follower, listens to it, and kills it when it hangs."""

    def __init__(self, home: Home, name: str, conf: str | None, root: str) -> None:
        self.told = Told()
        self.told_at: float | None = None
        self.news = asyncio.Event()
        self._home = home
        arguments = ["--home", str(home.directory), "--name", name, "--root", root]
        self._arguments = arguments + (["--conf", conf] if conf else [])
        self._verified = False
        self._started_at: float | None = None
        self._fingerprint: object = None
        self._process: asyncio.subprocess.Process | None = None
        path = local_path(root)
        self._look = None if path is None else Look(lambda: _fingerprint(path), "log")

    async def run(self) -> None:
        """Follow for ever; ends when it is cancelled, and takes its process along."""
        try:
            while True:
                if self._look is not None:
                    self._look.begin()
                if self._due():
                    await self._follow()
                await asyncio.sleep(1.0)
        finally:
            await self._end()

    def _due(self) -> bool:
        now = time.monotonic()
        if self._started_at is None:
            return True
        since = now - self._started_at
        if since < AT_MOST_EVERY_SECONDS:
            return False
        moved = self._look is not None and self._look.last[0] not in (None, self._fingerprint)
        every = STREAMS_SECONDS if self.told.streams else EVERY_SECONDS
        again = every if self.told.outcome == "followed" else 6 * AT_MOST_EVERY_SECONDS
        return moved or since >= again

    async def _follow(self) -> None:
        self._started_at = time.monotonic()
        # What is seen before is older than what is followed: an epoch in between is looked at twice, never missed.
        self._fingerprint = None if self._look is None else self._look.last[0]
        options = [] if self._verified else ["--verify"]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", FOLLOWING, *self._arguments, *options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            self._tell(Told("failed", f"no follower can be started: {error}"))
            return
        assert self._process.stdout is not None
        try:
            while line := await asyncio.wait_for(self._process.stdout.readline(), SILENT_SECONDS):
                if self._look is not None and self._look.begin():
                    self._fingerprint = self._look.last[0]
                if line.strip():
                    self._verified = True
                    self._tell(msgspec.json.decode(line, type=decodable(Told)))
            code = await asyncio.wait_for(self._process.wait(), SILENT_SECONDS)
            if code:
                self._tell(Told("failed", f"the follower ended with {code}"))
        except TimeoutError:
            self._tell(Told("hanging", f"the follower said nothing for {SILENT_SECONDS:g} s"))
        except (ValueError, msgspec.MsgspecError) as error:
            self._tell(Told("failed", f"the follower said what cannot be understood: {error}"))
        finally:
            await self._end()

    def _tell(self, told: Told) -> None:
        if told.outcome != self.told.outcome:
            logger.info("following the log: %s %s", told.outcome, told.reason)
        if told.damaged:
            logger.warning("%s", told.damaged)
        # What the first follower has found wrong with the copy stays known until the agent starts anew.
        self.told = msgspec.structs.replace(told, damaged=told.damaged or self.told.damaged)
        if told.outcome == "followed":
            self.told_at = time.monotonic()
        self.news.set()

    async def _end(self) -> None:
        """Kill the process if it lives. It holds nothing that a kill harms."""
        if self._process is not None:
            await ended(self._process)


def _fingerprint(root: str) -> tuple[int, int]:
    """What changes when something is committed: the directory of the log's commits; zeros while it is not there."""
    try:
        found = os.stat(os.path.join(root, "log", "_delta_log"))
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino
