"""What an agent has seen of what was published leads to the ensemble when the root says nothing any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from epochlake.jobs.agent.asking import ensemble_of
from epochlake.jobs.agent.documents import EnsembleKnown
from epochlake.jobs.agent.http_client import AgentUnreachable
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.configuration import load
from epochlake.metastore.coordination.published import newest, publish

from tests.support import clusters
from tests.support.agents import AgentProcess
from tests.support.command_line import CommandLine
from tests.support.ports import free_port
from tests.support.storages import STORAGE
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble

pytestmark = [pytest.mark.timing, pytest.mark.timeout(1800)]

PATIENCE = 300.0


def test_an_agent_tells_what_was_published_and_the_command_line_finds_the_ensemble_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        clusters.without_zookeeper(patched)
        clusters.grow_at_once(tmp_path).close()
    root = tmp_path / "root"
    line = CommandLine(root, capsys)
    agent = AgentProcess(tmp_path / "homes" / "n1", "n1", free_port(), "--root", str(root))
    with Ensemble(tmp_path / "servers", size=1, changeable=True) as servers:
        try:
            agent.start()
            monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", servers.connect_string)
            monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__SESSION_TIMEOUT_SECONDS", "30")
            with Cluster(load(root=str(root))) as cluster:
                directory, cluster_id = cluster.root.coordination, cluster.metadata.identity.cluster_id
                published = publish(cluster.coordination(PATIENCE), STORAGE, directory, cluster_id)
            assert published is not None
            line.done("balance", "pause")  # news for the agent, which looks at what was published along with it

            def known() -> EnsembleKnown | None:
                try:
                    said = ensemble_of(agent.address, agent.client)
                except AgentUnreachable:
                    return None
                return said if said.published == published else None

            said = eventually(known, PATIENCE)
            assert said.tag.id == cluster_id
            shutil.rmtree(directory)
            monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", "auto")
            lost = line.json("balance", "resume")
            assert "was not published at" in lost.error["message"]
            monkeypatch.setenv("EPOCHLAKE__AGENTS__ASK", f"127.0.0.1:{free_port()},{agent.address}")
            assert line.done("balance", "resume")["epoch"]
            described = line.done("metadata", "describe", "--coordination")
            assert (described["connect"], described["published"]) == (servers.connect_string, "")
            # A coordinator publishes it anew, at the root that has lost it.
            line.done("coordinator", "run", "--until-idle")
            again = newest(STORAGE, directory)
            assert again is not None
            assert (again.connect, again.ensemble) == (published.connect, published.ensemble)
            assert again.seal != published.seal
            # The agent does not take it for older than what it knows.
            assert again.number > published.number
        finally:
            agent.kill()
