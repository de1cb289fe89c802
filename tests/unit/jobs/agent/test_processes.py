"""Processes of an agent: when the agent ends they are gone, and asyncio knows it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from epochlake.jobs.agent import log_follower, processes, tasking
from epochlake.jobs.agent.home import Home
from epochlake.jobs.agent.log_follower import LogFollower
from epochlake.jobs.agent.task_messages import ToProcess
from epochlake.jobs.agent.tasking import Tasking


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that does nothing for ever."""
    (tmp_path / "hanging_module.py").write_text("import time\nwhile True:\n    time.sleep(60)\n", encoding="ascii")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "hanging_module"


async def process_of(kept: Callable[[], asyncio.subprocess.Process | None]) -> asyncio.subprocess.Process:
    while (found := kept()) is None:
        await asyncio.sleep(0.01)
    return found


async def cancelled(running: Awaitable[None]) -> None:
    task = asyncio.ensure_future(running)
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_the_process_that_does_tasks_is_gone_when_its_agent_ends(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasking, "PROCESS", hangs)

    async def scene() -> None:
        tasks = Tasking([])
        await tasks._tell([ToProcess(stop=(1,))])
        process = await process_of(lambda: tasks._process)
        await cancelled(tasks.run())
        assert process.returncode == -9

    asyncio.run(scene())


def test_the_follower_is_gone_when_its_agent_ends(tmp_path: Path, hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "FOLLOWING", hangs)

    async def scene() -> None:
        follower = LogFollower(Home(tmp_path / "home"), "n1", None, str(tmp_path / "root"))
        running = asyncio.ensure_future(follower.run())
        process = await process_of(lambda: follower._process)
        await cancelled(running)
        assert process.returncode == -9

    asyncio.run(scene())


def test_a_process_that_has_just_ended_is_no_unknown_child(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("true", stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            await process.stdout.read()
            # It is dead or dies now, and two are about to end it.
            await asyncio.gather(processes.ended(process), processes.ended(process))
            assert process.returncode in (0, -9)

    asyncio.run(scene())
    assert "Unknown child" not in caplog.text


@pytest.mark.parametrize("module", ["processes", "admission"])
def test_a_process_whose_agent_is_gone_ends_without_a_word(tmp_path: Path, module: str) -> None:
    words = {
        "processes": ["-c", "from epochlake.jobs.agent.processes import tell_agent as t; [t('x') for _ in range(9)]"],
        "admission": ["-m", "epochlake.jobs.agent.admission", "--root", str(tmp_path)],
    }
    nobody, out = os.pipe()
    os.close(nobody)
    said = b'{"sender": {"agent_id"'  # it was killed while it asked
    ended = subprocess.run(
        [sys.executable, "-P", *words[module]], input=said, stdout=out, stderr=subprocess.PIPE, check=False, timeout=300
    )
    os.close(out)
    assert (ended.stderr, ended.returncode) == (b"", {"processes": 0, "admission": 1}[module])


def test_a_process_that_is_killed_and_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "ENDED_SECONDS", 0.05)

    async def scene() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda *_: None)  # as where it hangs in a mount
            await processes.ended(process)
        assert process.returncode is None
        assert "is not gone yet" in caplog.text
        monkeypatch.setattr(processes, "ENDED_SECONDS", 300.0)
        await processes.ended(process)
        assert process.returncode == -9
        await processes.ended(process)

    asyncio.run(scene())
