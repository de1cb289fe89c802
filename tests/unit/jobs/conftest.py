"""The command line on clusters without ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.configuration import Configuration

from tests.support import clusters
from tests.support.command_line import CommandLine


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No ZooKeeper, no configuration but the defaults, a terminal of 80 columns."""
    clusters.without_zookeeper(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def empty(alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line at a root where nothing is yet."""
    return CommandLine(tmp_path / "root", capsys)


@pytest.fixture
def grown(alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on three normal nodes and keyspace `air`; `cluster` opens the same."""
    clusters.grow_at_once(tmp_path).close()
    return CommandLine(tmp_path / "root", capsys)


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster of `unchanged` is, with a table."""
    directory = tmp_path_factory.mktemp("unchanged")
    with pytest.MonkeyPatch.context() as patched:
        clusters.without_zookeeper(patched)
        with clusters.grow_at_once(directory) as cluster:
            administration.create_table(cluster, "air.flights", clusters.COLUMNS, ["id"])
    return directory


@pytest.fixture
def unchanged(
    alone: None, _kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Like `grown`, with table `air.flights`; one cluster for all tests that must not change it."""
    monkeypatch.chdir(_kept)
    return CommandLine(_kept / "root", capsys)


@pytest.fixture
def cluster(grown: CommandLine, tmp_path: Path) -> Cluster:
    """The cluster of `grown`, for what no command does."""
    return Cluster(Configuration(root=str(tmp_path / "root")))
