"""Agents as real processes on loopback, each killed by its own id."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epochlake.jobs.agent.asking import nodes_of, state_of
from epochlake.jobs.agent.documents import AgentState, NodeSeen
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient

from tests.support.ports import free_ports
from tests.support.waiting import eventually


class AgentProcess:
    """One agent; `words` are more options of its command line."""

    def __init__(self, home: Path, name: str, port: int, *words: str) -> None:
        self.home, self.name, self.address = home, name, f"127.0.0.1:{port}"
        self.words = ["--home", str(home), "--name", name, "--listen", self.address, "--period", "0.2", *words]
        self.client = HttpClient()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with open(self.home.parent / f"{self.name}.out", "ab") as out:
            command = [sys.executable, "-P", "-m", "epochlake.jobs.agent", *self.words]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def state(self) -> AgentState | None:
        try:
            return state_of(self.address, self.client)
        except AgentUnreachable:
            return None

    def nodes(self) -> dict[str, NodeSeen]:
        try:
            return {node.name: node for node in nodes_of(self.address, self.client)}
        except AgentUnreachable:
            return {}

    def until(self, what: Callable[[AgentState], bool]) -> AgentState:
        """Wait until what it says of itself is so."""

        def said() -> AgentState | None:
            state = self.state()
            return state if state is not None and what(state) else None

        found: AgentState = eventually(said)
        return found

    def memory(self) -> int:
        """Bytes of memory that the process has in use."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@contextmanager
def agents(directory: Path, count: int, *words: str) -> Iterator[list[AgentProcess]]:
    """Agents n1, n2, … that have the first as their seed; not started. They are killed at the end."""
    ports = free_ports(count)
    seed = ("--seed", f"127.0.0.1:{ports[0]}")
    made = [
        AgentProcess(directory / f"n{number}", f"n{number}", port, *seed, *words)
        for number, port in enumerate(ports, start=1)
    ]
    try:
        yield made
    finally:
        for agent in made:
            agent.kill()
