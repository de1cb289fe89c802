"""`metadata … --coordination` from the first server on: prepared, chosen by racks, exchanged, and commits go on."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep import coordination_members
from epochlake.metastore.configuration import load
from epochlake.metastore.coordination.embedded.files import is_serving
from epochlake.metastore.coordination.embedded.server import die_with_parent
from epochlake.metastore.metadata.events import SwitchBalancing

from tests.support import clusters
from tests.support.command_line import CommandLine
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, OPERATOR

pytestmark = pytest.mark.timing

PATIENCE = 300.0


class Servers:
    """ZooKeeper servers that are prepared and started as an operator does it."""

    def __init__(self, directory: Path, line: CommandLine) -> None:
        self._directory = directory
        self._line = line
        self._ports: dict[int, tuple[int, int, int]] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def written(self, number: int) -> str:
        """As ZooKeeper writes it."""
        if number not in self._ports:
            self._ports[number] = (free_port(), free_port(), free_port())
        peer, vote, port = self._ports[number]
        return f"server.{number}={HOST}:{peer}:{vote}:participant;{HOST}:{port}"

    def address(self, number: int) -> str:
        self.written(number)
        return f"{HOST}:{self._ports[number][2]}"

    def start(self, number: int, *options: str) -> None:
        """Prepare it and start it; returns when it serves."""
        place = self._directory / f"server-{number}"
        prepared = self._line.done("metadata", "prepare-server", place, self.written(number), *options)
        assert prepared["server"] == self.written(number)
        with (self._directory / f"{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                shlex.split(prepared["command"]), stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        eventually(lambda: is_serving(HOST, self._ports[number][2], place / "data"), PATIENCE)

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on three nodes in racks r1 to r3, n1 to n3, that is to have ZooKeeper servers of its own."""
    with pytest.MonkeyPatch.context() as patched:
        clusters.without_zookeeper(patched)
        clusters.grow_at_once(tmp_path).close()
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__OPERATOR", OPERATOR)
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__SESSION_TIMEOUT_SECONDS", "30")
    monkeypatch.setattr(coordination_members, "STEP_SECONDS", PATIENCE)
    monkeypatch.setattr(coordination_members, "LOOK_SECONDS", PATIENCE)
    return CommandLine(tmp_path / "root", capsys)


@pytest.fixture
def servers(tmp_path: Path, line: CommandLine) -> Iterator[Servers]:
    started = Servers(tmp_path, line)
    yield started
    for number in list(started.processes):
        started.kill(number)


def roles(document: dict[str, list[dict[str, str]]]) -> dict[int, tuple[str, str]]:
    return {int(row["server"]): (row["role"], row["node"]) for row in document["members"]}


def test_an_ensemble_grows_with_its_cluster_and_moves_away_from_its_first_server(
    line: CommandLine, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.start(1, "--alone")
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", servers.address(1))
    with Cluster(load(root=str(line.root))) as lives_on:
        assert line.done("balance", "pause")["epoch"]
        lives_on.coordination(PATIENCE)
        servers.start(2)
        servers.start(3)
        few = line.json("metadata", "reconfigure", "--coordination", "--auto", "1@n1")
        assert "3 normal nodes is to have 3 coordination members" in few.error["message"]
        named = ["1@n1", f"{servers.written(2)}@n2", f"{servers.written(3)}@n3"]
        planned = line.done("metadata", "reconfigure", "--coordination", "--auto", *named, "--dry-run")
        assert planned["members"] == [servers.written(number) for number in (1, 2, 3)]
        assert planned["steps"] == ["server 2 becomes a voter", "server 3 becomes a voter"]
        grown = line.done("metadata", "reconfigure", "--coordination", "--auto", *named)
        assert roles(grown) == {1: ("voter", "n1"), 2: ("voter", "n2"), 3: ("voter", "n3")}
        assert (grown["change"], grown["configured"]) == (None, servers.address(1))
        assert grown["connect"] == ",".join(map(servers.address, (1, 2, 3)))
        shown = line.text("metadata", "describe", "--coordination").out
        assert grown["published"] == grown["connect"]
        assert f"published: {grown['connect']}\n" in shown
        assert line.done("metadata", "reconfigure", "--coordination", "--auto")["version"] == grown["version"]

        elsewhere = servers.written(1).replace(f"{HOST}:", f"{HOST}1:")
        for impossible in (["1", "2"], ["1", "1", "2"], ["1:observer"], [elsewhere]):
            for dry in (["--dry-run"], []):
                assert line.json("metadata", "reconfigure", "--coordination", *impossible, *dry).code == 2
        for words in (["--auto", "1@nosuchnode"], ["1@nosuchnode", "2", "3"]):
            refused = line.json("metadata", "reconfigure", "--coordination", *words)
            assert refused.code == 2
            assert "server 1 is said to run on nosuchnode, and the log names no" in refused.error["message"]
        assert line.done("metadata", "describe", "--coordination")["version"] == grown["version"]

        servers.start(4)
        moved = line.done("metadata", "reconfigure", "--coordination", "2", "3", f"{servers.written(4)}@n1")
        assert roles(moved) == {2: ("voter", "n2"), 3: ("voter", "n3"), 4: ("voter", "n1")}
        eventually(lambda: servers.address(4) in lives_on.coordination().connect_string.split(","), PATIENCE)
        servers.kill(1)
        # What was started with the first address alone goes on all the same, and so does what starts with it now.
        assert lives_on.commit(SwitchBalancing(on=True), timeout=PATIENCE).epoch
    for connect in (servers.address(1), "auto"):
        monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", connect)
        described = line.done("metadata", "describe", "--coordination")
        assert (described["published"], described["configured"]) == (moved["connect"], connect)
        assert line.done("balance", "resume" if connect == "auto" else "pause")["epoch"]
        assert moved["connect"] in line.text("status").out


def test_a_server_that_left_comes_back_when_it_is_prepared_again(
    line: CommandLine, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.start(1, "--alone")
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", servers.address(1))
    servers.start(2)
    observer = servers.written(2).replace("participant", "observer")
    observing = line.done("metadata", "reconfigure", "--coordination", "1", observer)
    assert roles(observing) == {1: ("voter", ""), 2: ("observer", "")}
    gone = line.done("metadata", "reconfigure", "--coordination", "1")
    assert roles(gone) == {1: ("voter", "")}
    servers.kill(2)
    refused = line.json("metadata", "reconfigure", "--coordination", "1", "2:observer")
    assert (refused.code, refused.error["message"][:24]) == (2, "server 2 is not known to")
    servers.start(2)
    assert roles(line.done("metadata", "reconfigure", "--coordination", "1", observer)) == roles(observing)
    even = line.json("metadata", "reconfigure", "--coordination", "1", "2")
    assert "2 of the servers would vote" in even.error["message"]
