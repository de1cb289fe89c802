"""docs/agents.md typed along: what it tells operators to type is accepted, with agents in the background."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs.agent.asking import state_of
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.cli.main import main

from tests.support.ports import free_ports
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"


class Background:
    """Commands of the page that end with `&`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, words: list[str]) -> None:
        with open(self._directory / f"background-{len(self.running)}.out", "wb") as out:
            command = [sys.executable, "-P", "-m", "epochlake.jobs.cli.entry", *words]
            self.running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out))


@pytest.fixture
def background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    monkeypatch.chdir(tmp_path)
    made = Background(tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def commands() -> Iterator[str]:
    """The command lines of the page; ports are exchanged for free ones."""
    text = PAGE.read_text(encoding="utf-8")
    ports = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))
    for port, free in zip(ports, free_ports(len(ports)), strict=True):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    return (line.strip() for line in text.splitlines() if line.startswith("    epochlake "))


def test_the_page_of_agents_can_be_typed_along(background: Background, capsys: pytest.CaptureFixture[str]) -> None:
    addresses: list[str] = []
    for line in commands():
        words = shlex.split(line)[1:]
        if words[-1] == "&":
            background.start(words[:-1])
            addresses.append(words[words.index("--listen") + 1])
            continue
        eventually(lambda: all(_state(address, "discovered") for address in addresses))
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
    assert len(addresses) == 4
    eventually(lambda: all(_state(address, "tag") for address in addresses))
    assert main(["coordinator", "run", "--until-idle"]) == 0
    capsys.readouterr()
    assert main(["-o", "json", "agent", "nodes", addresses[0]]) == 0
    nodes = json.loads(capsys.readouterr().out)
    assert [(node["name"], node["seen"]) for node in nodes] == [(f"n{n}", "alive") for n in (1, 2, 3, 4)]
    assert [process.poll() for process in background.running] == [None] * 4
    before = _ticks(background)
    time.sleep(5)
    # Idle agents take a small part of a core, also here, where probes are answered by processes beside them.
    assert (_ticks(background) - before) / 100 / 5 / 4 < 0.05


def _state(address: str, key: str) -> object:
    try:
        return msgspec.to_builtins(state_of(address, HttpClient()))[key]
    except AgentUnreachable:
        return None


def _ticks(background: Background) -> int:
    """Hundredths of a second of processor time that the agents have taken, without the processes that they started."""
    fields = [
        Path(f"/proc/{one.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        for one in background.running
    ]
    return sum(int(field[11]) + int(field[12]) for field in fields)
