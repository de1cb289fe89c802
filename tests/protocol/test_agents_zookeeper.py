"""Agents that run ZooKeeper servers: from the first one on, killed, replaced while they are away, and refused."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs.agent.coordination_server import DIRECTORY, LOCK, CoordinationServerSeen, ServerState
from epochlake.jobs.coordinator import coordinator
from epochlake.jobs.upkeep import coordination_members
from epochlake.metastore.coordination.server_files import STATIC

from tests.support import clusters
from tests.support.agents import AgentProcess
from tests.support.command_line import CommandLine
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, OPERATOR

pytestmark = [pytest.mark.timing, pytest.mark.timeout(1800)]
"""Servers are waited for that start one after the other, some of them after a pause of a minute."""

PATIENCE = 300.0


class AgentsWithServers:
    """Agents n1, n2, … each of which runs the ZooKeeper server of its number. All are gone at the end."""

    def __init__(self, directory: Path, line: CommandLine) -> None:
        self._directory = directory
        self.line = line
        self._servers: dict[int, tuple[str, str]] = {}
        self._running: list[AgentProcess] = []
        self._seed = f"{HOST}:{free_port()}"

    def written(self, number: int) -> str:
        if number not in self._servers:
            client = f"{HOST}:{free_port()}"
            self._servers[number] = (f"server.{number}={HOST}:{free_port()}:{free_port()}:participant;{client}", client)
        return self._servers[number][0]

    def address(self, number: int) -> str:
        self.written(number)
        return self._servers[number][1]

    def home(self, number: int) -> Path:
        return self._directory / "homes" / f"n{number}"

    def begin(self) -> None:
        """What an operator does once: the first server of an ensemble."""
        place = self.home(1) / DIRECTORY
        self.line.done("metadata", "prepare-server", place, self.written(1), "--alone")

    def agent(self, number: int, *, home: int | None = None, server: str | None = None) -> AgentProcess:
        words = ["--root", str(self.line.root), "--seed", self._seed]
        words += ["--coordination-server", server or self.written(number)]
        port = int(self._seed.rpartition(":")[2]) if number == 1 else free_port()
        made = AgentProcess(self.home(home or number), f"n{home or number}", port, *words)
        self._running.append(made)
        return made

    def stop(self) -> None:
        for agent in self._running:
            agent.kill()


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__OPERATOR", OPERATOR)
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__SESSION_TIMEOUT_SECONDS", "30")
    monkeypatch.setattr(coordination_members, "STEP_SECONDS", PATIENCE)
    monkeypatch.setattr(coordination_members, "LOOK_SECONDS", PATIENCE)
    monkeypatch.setattr(coordinator, "ASIDE_SECONDS", PATIENCE)
    return CommandLine(tmp_path / "root", capsys)


@pytest.fixture
def those(tmp_path: Path, line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentsWithServers]:
    made = AgentsWithServers(tmp_path, line)
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", made.address(1))
    yield made
    made.stop()


def until(agent: AgentProcess, state: ServerState, role: str = "") -> CoordinationServerSeen:
    """Wait until the server of an agent is so."""

    def said() -> CoordinationServerSeen | None:
        found = agent.state()
        seen = None if found is None else found.coordination
        return seen if seen is not None and (seen.state, seen.role) == (state, role) else None

    found: CoordinationServerSeen = eventually(said, PATIENCE)
    return found


def until_waiting(agent: AgentProcess, reason: str) -> None:
    eventually(lambda: reason in until(agent, ServerState.WAITING).reason, PATIENCE)
    state = agent.state()
    assert state is not None
    assert any(reason in problem for problem in state.problems)


def server_of(agent: AgentProcess) -> int:
    """The process that is the server of an agent."""
    assert agent.process is not None
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    [java] = [pid for pid in map(int, children) if b"QuorumPeerMain" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return java


def is_free(home: Path) -> bool:
    """Whether no server runs in a home: Java keeps the lock as long as it lives."""
    with open(home / DIRECTORY / LOCK, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def members(document: dict[str, list[dict[str, str]]]) -> dict[int, str]:
    return {int(row["server"]): row["role"] for row in document["members"]}


def test_a_server_lives_and_ends_with_its_agent_and_gets_no_vote_back_by_itself(
    those: AgentsWithServers, line: CommandLine
) -> None:
    those.begin()
    first, second = those.agent(1), those.agent(2)
    first.start()
    assert until(first, ServerState.LEADER, "voter").starts == 1
    second.start()
    until(second, ServerState.FOLLOWER)
    observer = those.written(2).replace("participant", "observer")
    assert members(line.done("metadata", "reconfigure", "--coordination", "1", observer)) == {1: "voter", 2: "observer"}
    until(second, ServerState.OBSERVER, "observer")
    eventually(lambda: first.nodes()["n2"].coordination_server == those.written(2))

    os.kill(server_of(second), signal.SIGKILL)
    eventually(lambda: until(second, ServerState.OBSERVER, "observer").starts == 2, PATIENCE)

    java = server_of(second)
    os.kill(java, signal.SIGSTOP)
    until(second, ServerState.SILENT)
    os.kill(java, signal.SIGCONT)
    until(second, ServerState.OBSERVER, "observer")
    second.kill()
    eventually(lambda: is_free(second.home), PATIENCE)
    assert members(line.done("metadata", "reconfigure", "--coordination", "1")) == {1: "voter"}
    second.start()
    until(second, ServerState.FOLLOWER)
    assert members(line.done("metadata", "describe", "--coordination")) == {1: "voter"}

    for agent in (second, first):
        agent.send(signal.SIGTERM)
        assert agent.process is not None
        assert agent.process.wait(PATIENCE) == 0
        assert is_free(agent.home)
    # Nobody answers: the ensemble is back when its servers are, as they were.
    first.start()
    until(first, ServerState.LEADER, "voter")


def test_a_coordinator_makes_the_servers_of_agents_members_where_it_was_told_to(
    those: AgentsWithServers, line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        clusters.without_zookeeper(patched)
        clusters.grow_at_once(tmp_path).close()
    those.begin()
    started = [those.agent(number) for number in (1, 2, 3)]
    for agent in started:
        agent.start()
    until(started[0], ServerState.LEADER, "voter")
    for agent in started[1:]:
        until(agent, ServerState.FOLLOWER)
        eventually(lambda: started[0].nodes().get(agent.name) is not None)  # noqa: B023
    known = {f"n{number}": those.written(number) for number in (1, 2, 3)}
    eventually(lambda: {name: seen.coordination_server for name, seen in started[0].nodes().items()} == known, PATIENCE)

    run = ("coordinator", "run", "--rounds", "1")
    assert line.done(*run)["blocked"] == []
    assert members(line.done("metadata", "describe", "--coordination")) == {1: "voter"}
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__MEMBERS", "auto")
    refused = line.json(*run)
    assert (refused.code, refused.error["hint"]) == (2, "Set [agents] ask")
    nobody = f"{HOST}:{free_port()}"
    monkeypatch.setenv("EPOCHLAKE__AGENTS__ASK", nobody)
    # The agents are asked beside the rounds: the second one hears of it, if that was quick.
    [waits] = eventually(lambda: line.done("coordinator", "run", "--rounds", "2")["blocked"], PATIENCE)
    assert waits.startswith(f"coordination members: the agent at {nobody} cannot be asked")
    monkeypatch.setenv("EPOCHLAKE__AGENTS__ASK", f"{nobody},{started[0].address}")
    assert line.done("coordinator", "run", "--until-idle")["blocked"] == []
    grown = line.done("metadata", "describe", "--coordination")
    assert {row["server"]: (row["role"], row["node"]) for row in grown["members"]} == {
        number: ("voter", f"n{number}") for number in (1, 2, 3)
    }
    for agent in started[1:]:
        eventually(lambda: (seen := agent.state()) is not None and seen.coordination.role == "voter", PATIENCE)  # noqa: B023

    monkeypatch.delenv("EPOCHLAKE__ZOOKEEPER__OPERATOR")
    refused = line.json(*run)
    assert "only the operator of the ensemble can change it" in refused.error["message"]
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", "embedded")
    assert "[zookeeper] connect is 'embedded'" in line.json(*run).error["message"]


def test_a_server_that_may_not_run_here_is_refused_and_says_why(those: AgentsWithServers, line: CommandLine) -> None:
    those.begin()
    first = those.agent(1)
    first.start()
    until(first, ServerState.LEADER, "voter")
    elsewhere = those.agent(7, server=those.written(7).replace("server.7", "server.1"))
    elsewhere.start()
    until_waiting(elsewhere, "server 1 is at ")
    assert not (those.home(7) / DIRECTORY / "data").exists()
    elsewhere.kill()

    second = those.agent(2)
    second.start()
    until(second, ServerState.FOLLOWER)
    second.kill()
    eventually(lambda: is_free(second.home), PATIENCE)
    another = those.agent(3, home=2)
    another.start()
    until_waiting(another, "has the data of server 2, and server 3 is to be prepared there")
    another.kill()

    # The home of a member is cleared: what it has promised is gone, and the ensemble has it.
    first.send(signal.SIGTERM)
    assert first.process is not None
    assert first.process.wait(PATIENCE) == 0
    second = those.agent(2)
    second.start()
    until_waiting(second, "server 2 is to be prepared, and the ensemble does not answer")
    first.start()
    until(second, ServerState.FOLLOWER)
    observer = those.written(2).replace("participant", "observer")
    line.done("metadata", "reconfigure", "--coordination", "1", observer)
    second.kill()
    eventually(lambda: is_free(second.home), PATIENCE)
    subprocess.run(["rm", "-r", str(second.home / DIRECTORY)], check=True)
    second.start()
    until(second, ServerState.OBSERVER, "observer")
    assert "db.autocreate=false" in (second.home / DIRECTORY / STATIC).read_text()


def test_a_member_without_its_data_comes_back_by_itself_and_with_an_ensemble_of_its_own_by_what_its_refusal_advises(
    those: AgentsWithServers, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    those.begin()
    first, second, third = (those.agent(number) for number in (1, 2, 3))
    first.start()
    until(first, ServerState.LEADER, "voter")
    for agent in (second, third):
        agent.start()
        until(agent, ServerState.FOLLOWER)
    ensemble = ("metadata", "reconfigure", "--coordination")
    line.done(*ensemble, "1", *(those.written(number) for number in (2, 3)))
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", ",".join(those.address(number) for number in (1, 2, 3)))
    until(second, ServerState.FOLLOWER, "voter")

    second.kill()
    eventually(lambda: is_free(second.home), PATIENCE)
    data = second.home / DIRECTORY / "data" / "version-2"
    for path in data.iterdir():
        if path.name.startswith(("snapshot.", "log.")):
            path.unlink()
    refused = line.json("metadata", "prepare-server", those.home(9) / DIRECTORY, those.written(2))
    assert "server 2 is a member of the ensemble, and its data is gone" in refused.error["message"]
    # Nobody has data but the first server, which is no majority: the blank one does not elect it.
    third.kill()
    eventually(lambda: is_free(third.home), PATIENCE)
    second.start()
    until_waiting(second, "server 2 has lost its data, and the ensemble does not answer")
    third.start()
    until(second, ServerState.FOLLOWER, "voter")
    assert any(path.name.startswith("snapshot.") for path in data.iterdir())
    # From now on it has what the others have, and is one of the two that are enough.
    third.kill()
    eventually(lambda: is_free(third.home), PATIENCE)
    assert len(members(line.done("metadata", "describe", "--coordination"))) == 3

    # Dead for good, it is taken out, and gets its vote back where it comes back.
    assert members(line.done(*ensemble, "1", "2")) == {1: "voter", 2: "voter"}
    third.start()
    until(third, ServerState.FOLLOWER)
    assert len(members(line.done(*ensemble, "1", "2", those.written(3)))) == 3
    until(third, ServerState.FOLLOWER, "voter")

    # Its disk is that of the first hour, when it was the only one.
    third.kill()
    eventually(lambda: is_free(third.home), PATIENCE)
    subprocess.run(["rm", "-r", str(third.home / DIRECTORY)], check=True)
    line.done("metadata", "prepare-server", third.home / DIRECTORY, those.written(3), "--alone")
    third.start()
    until_waiting(third, "server 3 is a member of the ensemble, and in its directory it is one of its own")
    assert members(line.done(*ensemble, "1", "2")) == {1: "voter", 2: "voter"}
