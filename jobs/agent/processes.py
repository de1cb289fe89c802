"""Having a process of its own do what takes memory, or may hang: it is given words, and says one document."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

logger = logging.getLogger(__name__)

ENDED_SECONDS = 5.0
"""How long a process that was killed is waited for: one that hangs in a mount ends when that does."""


def tell_agent(line: str) -> None:
    """Say a line to the agent that has started this process. Where it is gone this process ends: nobody listens."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


def configured(conf: str | None, root: str | None) -> list[str]:
    """The words by which such a process finds the cluster."""
    return [word for option, value in (("--conf", conf), ("--root", root)) if value for word in (option, value)]


async def said_by(module: str, words: list[str], seconds: float, body: bytes | None = None) -> bytes:
    """What a module of the agent prints as a process. It is killed when it is late. Raises TimeoutError, OSError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"epochlake.jobs.agent.{module}", *words),
        stdin=asyncio.subprocess.DEVNULL if body is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(body), seconds)
        return said
    finally:
        await ended(process)


async def ended(process: asyncio.subprocess.Process) -> None:
    """Kill a process if it lives, and wait until it is gone.

    `Popen.kill`, and the end of an event loop, ask first whether the process lives, and reap one that has just ended
    behind the back of asyncio, which then tells in the log of a child that it does not know.
    """
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    try:
        await asyncio.wait_for(process.wait(), ENDED_SECONDS)
    except TimeoutError:
        logger.warning("process %d was killed and is not gone yet", process.pid)
