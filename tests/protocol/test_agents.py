"""Agents as processes: they see each other and follow the log; of those that start at once one founds."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from epochlake.jobs.agent.messages import Seen
from epochlake.jobs.cli.main import main
from epochlake.metastore.log.delta import DeltaLog
from epochlake.testing import local_cluster

from tests.support.agents import agents
from tests.support.storages import STORAGE
from tests.support.waiting import eventually


def test_agents_follow_the_log_and_show_who_answers_beside_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        local_cluster(tmp_path / "lake") as lake,
        agents(tmp_path / "homes", 2, "--root", str(lake.cluster.root.uri)) as (first, second),
    ):
        first.start()
        second.start()
        for agent in (first, second):
            state = agent.until(lambda state: state.log.epoch == lake.epoch)
            assert state.tag is not None
            assert state.tag.id == lake.cluster.metadata.identity.cluster_id
            assert [volume.uri for volume in state.volumes] == [str(lake.volume(agent.name))]
            assert agent.memory() < 100 * 2**20
        seen = eventually(lambda: {n: s for n, s in first.nodes().items() if len(first.nodes()) == 3 and s.state})
        assert {name: (node.state, node.seen) for name, node in seen.items()} == {
            "n1": ("normal", Seen.ALIVE),
            "n2": ("normal", Seen.ALIVE),
            "n3": ("normal", None),
        }
        epoch = lake.epoch
        second.send(signal.SIGSTOP)
        eventually(lambda: first.nodes()["n2"].seen is Seen.UNREACHABLE)
        assert first.nodes()["n2"].state == "normal"
        second.send(signal.SIGCONT)
        eventually(lambda: first.nodes()["n2"].seen is Seen.ALIVE)
        second.kill()
        eventually(lambda: first.nodes()["n2"].seen is Seen.UNREACHABLE)
        second.start()
        eventually(lambda: first.nodes()["n2"].seen is Seen.ALIVE)
        since = {entry.event for entry in lake.cluster.log().read(epoch)}
        assert since <= {"AnnounceVersion"}, "what agents see has changed the metadata"
        assert main(["-o", "json", "agent", "nodes", first.address]) == 0
        assert {node["name"] for node in json.loads(capsys.readouterr().out)} == {"n1", "n2", "n3"}
        assert main(["node", "list", "--agent", first.address]) == 0
        assert "alive" in capsys.readouterr().out
        assert main(["agent", "show", second.address]) == 0
        first.send(signal.SIGTERM)
        assert first.process is not None
        assert first.process.wait(60) == 0


def test_of_agents_that_start_at_once_exactly_one_founds_also_when_some_are_killed(tmp_path: Path) -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print("seed", seed)
    root = tmp_path / "root"
    with agents(tmp_path / "homes", 5, "--root", str(root), "--found") as all_of_them:
        for agent in chance.sample(all_of_them, len(all_of_them)):
            agent.start()
        for agent in chance.sample(all_of_them, 3):
            time.sleep(chance.random())
            agent.kill()
            agent.start()
        tags = {agent.until(lambda state: state.discovered is not None).discovered for agent in all_of_them}
        assert len(tags) == 1
        [entry] = DeltaLog(STORAGE, f"{root}/log").read(0)
        [tag] = tags
        assert tag is not None
        assert (entry.event, json.loads(entry.payload)["cluster_id"]) == ("Initialise", tag.id)
        assert all(state.tag is None for agent in all_of_them if (state := agent.state()) is not None)


def test_init_begins_a_cluster_on_all_named_nodes_or_says_which_failed_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    with agents(tmp_path / "homes", 2, "--root", str(root)) as (first, second):
        first.start()
        second.start()
        for agent in (first, second):
            agent.until(lambda state: state.log.outcome == "no-cluster")
        eventually(lambda: len(first.nodes()) == len(second.nodes()) == 2)
        assert main(["agent", "init", second.address, "--metadata-nodes", "n1,n9"]) == 3
        said = capsys.readouterr().err
        assert "nothing has begun. n9: no agent of this name is known here" in said
        assert not (root / "log").exists()
        call = ["-o", "json", "agent", "init", second.address, "--metadata-nodes", "n1,n2", "--name", "lake"]
        assert main(call) == 0
        tag = json.loads(capsys.readouterr().out)["tag"]
        assert main([word.replace(second.address, first.address) for word in call]) == 0
        assert json.loads(capsys.readouterr().out)["tag"] == tag
        for agent in (first, second):
            agent.until(lambda state: state.discovered is not None and state.discovered.id == tag["id"])
        assert main(["agent", "init", first.address, "--metadata-nodes", "n2"]) == 3
        assert "is running already" in capsys.readouterr().err
        [entry] = DeltaLog(STORAGE, f"{root}/log").read(0)
        assert (entry.event, entry.reason) == ("Initialise", "metadata nodes n1, n2")
