"""An upgrade that is started at an agent: by whom it may be, once at a time, and what is said of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs.administration.take_over import describe, read_description
from epochlake.jobs.agent import upgrade_process, upgrading
from epochlake.jobs.agent.following import follow_once
from epochlake.jobs.agent.home import VIEW, Home, View
from epochlake.jobs.agent.upgrading import UpgradeSaid, Upgrading
from epochlake.testing import local_cluster

from tests.unit.jobs.agent.test_hostile_peers import Served, play


def test_an_agent_that_admits_nobody_starts_no_upgrade(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        status, body = await served.post("/upgrade", b"{}")
        assert (status, json.loads(body)["code"]) == (409, "admits-nobody")
        assert not served.agent.upgrading.running

    play(tmp_path, scene)


def test_an_agent_that_admits_starts_it_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def said_by(module: str, words: list[str], seconds: float) -> bytes:
        assert module == "upgrade_process"
        return msgspec.json.encode(UpgradeSaid("build_coordinator_state", False, "a disk is full"))

    monkeypatch.setattr(upgrading, "said_by", said_by)

    async def scene(served: Served) -> None:
        served.agent.settings = msgspec.structs.replace(served.agent.settings, admits=True)
        status, body = await served.post("/upgrade", b"")
        assert (status, json.loads(body)["running"]) == (200, True)
        while served.agent.upgrading.running:
            await asyncio.sleep(0)
        assert served.agent.upgrading.said("done") == UpgradeSaid("done", False, "a disk is full")

    play(tmp_path, scene)


def test_two_who_start_it_at_once_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    async def said_by(module: str, words: list[str], seconds: float) -> bytes:
        begun.append(words)
        await asyncio.sleep(0.05)
        return b"not what was asked for"

    monkeypatch.setattr(upgrading, "said_by", said_by)

    async def scene() -> None:
        one = Upgrading(None, "/root")
        one.ordered()
        one.ordered()
        while one.running:
            await asyncio.sleep(0.01)
        assert one.said(None) == UpgradeSaid(None, False, "the process that carries it out ended without a word")
        one.ordered()
        assert one.said(None).reason == ""
        while one.running:
            await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert begun == [["--root", "/root"]] * 2


def test_the_process_carries_it_out_and_agents_see_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_cluster(tmp_path / "lake", nodes=0, keyspace=None) as lake:
        names = iter(("first", "second"))
        monkeypatch.setattr(upgrade_process, "open_cluster", lambda settings: lake.participant(next(names)))
        words = ["--root", str(lake.cluster.root.uri)]

        def process() -> UpgradeSaid:
            assert upgrade_process.main(words) == 0
            return msgspec.json.decode(capsys.readouterr().out, type=UpgradeSaid)

        assert "nothing is described" in process().reason
        node = {"name": "n1", "datacenter": "dc1", "rack": "r1", "volumes": {"d1": str(tmp_path / "d1")}}
        describe(lake.cluster, read_description(json.dumps({"nodes": [node]})))
        assert process() == UpgradeSaid("done")
        home = Home(tmp_path / "home")
        home.identity("n1")
        follow_once(home, lake.cluster, "n1", None)
        view = home.read(VIEW, View)
        assert view is not None
        assert view.upgrade_state == "done"
