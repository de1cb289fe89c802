"""Running a ZooKeeper server beside an agent that was asked to, for as long as the agent runs.

The server is a child of the agent, in a directory of its home, and ends with it. One that has ended is started again
after a pause that grows. Before each start it is looked what the ensemble says: a server that is no member any more, or
not yet, is prepared anew and follows without a vote. Whether it gets one is not decided here.
(docs/decisions/147-agents-that-run-zookeeper.md)
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec
from epochlake.jobs.agent.home import TAG, Home, HomeDamaged
from epochlake.jobs.agent.looking import Look
from epochlake.jobs.agent.messages import Tag
from epochlake.jobs.agent.processes import configured, ended
from epochlake.metastore.coordination.ensemble import Server, parse_server, require_preparable
from epochlake.metastore.coordination.server_answers import LOOK_SECONDS, Answer, ask
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest

logger = logging.getLogger(__name__)

DIRECTORY = "coordination"
"""Below a home: the files of the server. `epochlake metadata prepare-server` may have written them."""
LOCK = "server.lock"
LOG = "server.log"

PROCESS = "epochlake.jobs.agent.server_process"
PREPARING_SECONDS = 180.0
"""How long a server may take to be made ready. The ensemble, Java and the disk are asked meanwhile."""
LOOK_EVERY_SECONDS = 2.0
STOP_SECONDS = 5.0

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A server that has run for so long has not failed to start: the next pause is the first one again."""

LAST_WORDS_BYTES = 4096
LARGEST_LOG_BYTES = 1_000_000


class NotStarted(msgspec.Struct, frozen=True):
    """Why no server can be started now."""

    reason: str
    hint: str = ""


class ServerState(StrEnum):
    """How a ZooKeeper server is. The last three are its own words."""

    PREPARING = "preparing"
    WAITING = "waiting"
    """It does not run, and is started again after a pause."""
    STARTING = "starting"
    SILENT = "silent"
    """It runs and does not answer: any more, or not yet after a minute."""
    LEADER = "leader"
    FOLLOWER = "follower"
    OBSERVER = "observer"

    @property
    def serves(self) -> bool:
        return self in (ServerState.LEADER, ServerState.FOLLOWER, ServerState.OBSERVER)


class CoordinationServerSeen(msgspec.Struct, frozen=True):
    """A ZooKeeper server beside an agent. `server`: as ZooKeeper writes it; `role`: voter or observer, empty where it
    is no member of the ensemble as it knows that. `reason`: why it does not serve, else empty. `starts`: how often it
    was started since the agent was.
    """

    server: str
    state: ServerState
    role: str
    reason: str
    starts: int

    @property
    def problem(self) -> str:
        """What people should look at, else empty."""
        bad = self.state in (ServerState.WAITING, ServerState.SILENT)
        return f"its ZooKeeper server is {self.state}: {self.reason}" if bad else ""


class CoordinationServer:
    """The server of one agent; `run` it until that is cancelled."""

    def __init__(self, home: Home, server: Server, conf: str | None, root: str | None) -> None:
        self.server = server
        self._home = home
        self._directory = Path(os.path.abspath(home.directory)) / DIRECTORY
        self._words = configured(conf, root)
        self._state = ServerState.PREPARING
        self._reason = ""
        self._starts = 0
        self._started_at: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._look: Look[Answer] | None = None

    @property
    def pid(self) -> int | None:
        """The process that is the server, or is about to be; while there is one."""
        return None if self._process is None else self._process.pid

    def seen(self) -> CoordinationServerSeen:
        state, role, reason = self._state, "", self._reason
        answer = None if self._look is None else self._look.last[0]
        if state is ServerState.STARTING and isinstance(answer, Answer) and not answer.trouble:
            state, role, reason = self._said(answer)
        return CoordinationServerSeen(str(self.server), state, role, reason, self._starts)

    def members(self) -> tuple[str, ...]:
        """Where clients reach the members of the ensemble, as the server says; none while it does not."""
        answer = None if self._look is None else self._look.last[0]
        known = answer.configuration if isinstance(answer, Answer) else None
        return () if known is None else tuple(one.reached_at for one in known.servers if one.reached_at)

    def _said(self, answer: Answer) -> tuple[ServerState, str, str]:
        if answer.number != self.server.number:
            return ServerState.SILENT, "", f"server {answer.number} answers at {self.server.reached_at}"
        found = None if answer.configuration is None else answer.configuration.find(self.server.number)
        role = "" if found is None else ("voter" if found.votes else "observer")
        try:
            return ServerState(answer.state), role, ""
        except ValueError:
            return ServerState.STARTING, role, f"it says that it is {answer.state[:40]}"

    async def run(self) -> None:
        """Keep the server up until this is cancelled, and take it along."""
        try:
            await self._keep_up()
        finally:
            await self._stop()

    async def _keep_up(self) -> None:
        pause = 0.0
        while True:
            self._started_at = None
            try:
                self._reason = await self._until_it_ends()
            except (OSError, HomeDamaged) as error:
                self._reason = f"it cannot be started: {error}"
            await self._stop()
            self._state, self._look = ServerState.WAITING, None
            ran = 0.0 if self._started_at is None else time.monotonic() - self._started_at
            pause = next_pause(pause, ran)
            logger.warning("the ZooKeeper server is started again in %g s: %s", pause, self._reason)
            await asyncio.sleep(pause)

    async def _until_it_ends(self) -> str:
        """Start the server and wait for its end; why it has ended."""
        if self._state is not ServerState.WAITING:
            self._state = ServerState.PREPARING
        words = ["--directory", str(self._directory), "--server", str(self.server), "--agent", str(os.getpid())]
        tag = await asyncio.to_thread(self._home.read, TAG, Tag)
        words += [] if tag is None else ["--cluster", tag.id]
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", PROCESS, *words, *self._words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        logged = _size_of(self._directory / LOG)
        assert process.stdout is not None
        try:
            said = await asyncio.wait_for(process.stdout.read(), PREPARING_SECONDS)
        except TimeoutError:
            return f"it was not ready to be started within {PREPARING_SECONDS:g} s"
        if said.strip():
            return _why(said)
        self._starts, self._started_at = self._starts + 1, time.monotonic()
        self._look = Look(lambda: ask(self.server, LOOK_SECONDS), "zookeeper")
        self._state, self._reason = ServerState.STARTING, ""
        logger.info("ZooKeeper server %d is started as process %d", self.server.number, process.pid)
        ending = asyncio.ensure_future(process.wait())
        try:
            await self._watch(self._look, ending)
        finally:
            ending.cancel()
        return f"it ended with {process.returncode}{_last_words(self._directory / LOG, logged)}"

    async def _watch(self, look: Look[Answer], ending: asyncio.Future[int]) -> None:
        """Ask the server how it is, until it has ended."""
        answered = False
        began = time.monotonic()
        log = Look(lambda: keep_small(self._directory / LOG), "zookeeper-log")
        while not ending.done():
            look.begin()
            log.begin()
            await asyncio.wait({ending}, timeout=LOOK_EVERY_SECONDS)
            answer = look.last[0]
            if isinstance(answer, Answer):
                answered = answered or not answer.trouble
                silent = bool(answer.trouble) and (answered or time.monotonic() - began > STEADY_SECONDS)
                self._state = ServerState.SILENT if silent else ServerState.STARTING
                self._reason = answer.trouble

    async def _stop(self) -> None:
        """Let the server end, by force if it does not go."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
        await ended(process)
        if process.stdout is not None:
            # Nobody writes there any more; the loop closes its end once that is read to the end.
            with suppress(TimeoutError):
                await asyncio.wait_for(process.stdout.read(), STOP_SECONDS)
        # Only now: whoever is cancelled before begins with it anew.
        self._process = None


def next_pause(before: float, ran: float) -> float:
    """Seconds until the next start of a server that ran for so long. `before`: the last pause, 0 for none."""
    if ran >= STEADY_SECONDS or not before:
        return FIRST_PAUSE_SECONDS
    return min(2 * before, LONGEST_PAUSE_SECONDS)


def asked_for(text: str) -> Server:
    """The server that an agent is asked to run. Raises InvalidRequest."""
    server = parse_server(text)
    require_preparable(server)
    if not server.reached_at:
        raise InvalidRequest(
            f"server {server.number} has no address for clients without TLS, by which its agent could ask how it is",
            hint="Name its port after a semicolon: '4=zk4:2888:3888;2181'",
        )
    return server


def keep_small(log: Path) -> None:
    """Put the end of what a server has written aside once it is too much, in place of what was put aside before:
    whoever reaches its ports makes it write. It goes on in the same file, to which it appends. Raises OSError.
    """
    size = _size_of(log)
    if size <= LARGEST_LOG_BYTES:
        return
    try:
        with open(log, "rb") as file:
            file.seek(size - LARGEST_LOG_BYTES)
            log.with_suffix(".log.1").write_bytes(file.read(LARGEST_LOG_BYTES))
    finally:
        # Also on a disk that is full.
        os.truncate(log, 0)


def _why(said: bytes) -> str:
    try:
        found = msgspec.json.decode(said, type=decodable(NotStarted))
    except msgspec.MsgspecError:
        return f"it says what cannot be understood: {said[:200]!r}"
    return f"{found.reason}. {found.hint}" if found.hint else found.reason


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_words(log: Path, logged: int) -> str:
    """The last line that a server has written since its start, after a colon; empty where there is none."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            # It may have begun a new one meanwhile.
            file.seek(max(logged if logged <= size else 0, size - LAST_WORDS_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip() and not line.startswith(("\t", " "))]
    return f": {said[-1][:300]}" if said else ""
