"""Having a process of its own do what takes memory, or may hang: it is given words, and says one document."""

from __future__ import annotations

import asyncio
import sys


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
        if process.returncode is None:
            process.kill()
