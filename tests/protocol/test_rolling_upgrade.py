"""A cluster of two releases: the one before features and this one share a log until this one's features are enabled."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.agents import AgentProcess
from tests.support.ports import free_ports
from tests.support.releases import Release, packages_of
from tests.support.slices import THOROUGH
from tests.support.waiting import eventually

BEFORE = "fd8041b59733"
"""A commit of the release before features; its wheel is made from the history."""

PIPELINE = """
import sys
from epochlake.jobs.cluster import open_cluster
from epochlake.metastore import configuration
from epochlake.metastore.announcing import announced
with open_cluster(configuration.load(None, root=sys.argv[1])) as cluster:
    with announced(cluster, "old-load", "air.flights"):
        print("lives", flush=True)
        sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(not THOROUGH, reason="builds a wheel: EPOCHLAKE_TESTS_THOROUGH")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages of the release before are, from a wheel of its own."""
    return packages_of(BEFORE, tmp_path_factory.mktemp("before"))


class Agent(AgentProcess):
    """An agent of one release."""

    def __init__(self, release: Release, home: Path, name: str, port: int, seed: int) -> None:
        super().__init__(home, name, port, "--root", str(release.root), "--seed", f"127.0.0.1:{seed}")
        self.release = release

    def start(self) -> None:
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with open(self.home.parent / f"{self.name}.out", "ab") as out:
            command = [sys.executable, "-P", "-m", "epochlake.jobs.agent", *self.words]
            # Where no file of settings is: an earlier release refuses sections that it does not know.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.home.parent,
                env=self.release.environment,
            )


def test_two_releases_share_a_cluster_until_the_newer_ones_features_are_enabled(tmp_path: Path, before: Path) -> None:
    root = tmp_path / "root"
    older, newer = Release(root, before), Release(root, None)
    older.done("init", "--name", "lake")
    for number, release in enumerate((older, newer), start=1):
        volume = str(tmp_path / f"disk{number}")
        release.done("node", "add", f"n{number}", "--datacenter", "dc1", "--rack", f"r{number}", "--volume", volume)
        release.done("coordinator", "run", "--until-idle")
    older.done("keyspace", "create", "air", "--replication", "dc1=2")
    newer.done("table", "create", "air.flights", "--column", "id bigint not null", "--primary-key", "id")
    ports = free_ports(2)
    first, second = (
        Agent(release, tmp_path / "homes" / name, name, port, ports[0])
        for release, name, port in ((older, "n1", ports[0]), (newer, "n2", ports[1]))
    )
    pipeline = older.program(PIPELINE)
    try:
        assert pipeline.stdout is not None
        assert pipeline.stdout.readline() == "lives\n"
        for agent in (first, second):
            agent.start()
            agent.until(lambda state: state.log.outcome == "followed")
        eventually(lambda: all(node.seen == "alive" for node in second.nodes().values()) and len(second.nodes()) == 2)

        refused = newer.run("feature", "enable", "--all")
        assert refused.returncode == 3, refused.stderr
        assert "'old-load'" in refused.stderr
        epoch = status(older)
        assert epoch == status(newer), "nothing was logged that the older release does not read"
        assert older.run("log", "verify").returncode == 0

        # The older pipeline and the older agent end; its home is taken over by the newer release.
        assert pipeline.stdin is not None
        pipeline.stdin.write("\n")
        pipeline.stdin.close()
        assert pipeline.wait(60) == 0
        refused = newer.run("feature", "enable", "--all", "--agent", second.address)
        assert refused.returncode == 3, refused.stderr
        assert "the agent of node 'n1'" in refused.stderr
        first.kill()
        first.release = newer
        first.start()
        first.until(lambda state: state.log.outcome == "followed")
        eventually(lambda: all(node.features for node in second.nodes().values()))
        newer.done("feature", "enable", "--all", "--agent", second.address)

        stopped = older.run("status")
        assert stopped.returncode != 0
        error = json.loads(stopped.stderr[stopped.stderr.index("{") :])["error"]
        assert "that this version does not know" in error["message"], error
        assert "Traceback" not in stopped.stderr
        assert newer.run("log", "verify").returncode == 0
        deadline = time.monotonic() + 300
        while len(announced(newer)) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert announced(newer) == {"n1", "n2"}, "each agent says by itself what it supports"
    finally:
        pipeline.kill()
        pipeline.wait()
        for agent in (first, second):
            agent.kill()


def status(release: Release) -> object:
    document = release.done("status")
    assert isinstance(document, dict)
    return document["epoch"]


def announced(release: Release) -> set[str]:
    rows = msgspec.convert(release.done("feature", "list"), list[dict[str, object]])
    silent = rows[0]["unannounced"]
    assert isinstance(silent, list)
    return {"n1", "n2"} - set(silent)
