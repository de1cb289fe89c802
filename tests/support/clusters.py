"""Real clusters for tests that start no ZooKeeper: a Delta log and volumes in a directory, the line of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs import cluster as clusters
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.configuration import ClusterSettings, Configuration
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.local_queue import LocalQueue
from epochlake.metastore.metadata.events import FinishRequest, StartRequest

NODES = (("n1", "r1"), ("n2", "r2"), ("n3", "r3"))
COLUMNS = [("id", "bigint", False), ("note", "string", True)]


def without_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on clusters of this process queue up in it, and ZooKeeper cannot be asked for anything."""
    queue = LocalQueue()

    def away(cluster: Cluster) -> Coordination:
        raise CoordinationUnavailable("ZooKeeper is away: this test has none")

    monkeypatch.setattr(clusters, "ZooKeeperQueue", lambda connect: queue)
    monkeypatch.setattr(Cluster, "coordination", away)


def begin(root: Path, name: str = "") -> Cluster:
    """A new, empty cluster below `root`, open."""
    configuration = Configuration(root=str(root / "root"), cluster=ClusterSettings(name))
    clusters.initialise(configuration)
    return Cluster(configuration)


def join(cluster: Cluster, directory: Path, name: str, rack: str, capacity: int | None = 1 << 30) -> None:
    """A node that has joined, with one volume in `directory`; what a coordinator would do is committed here."""
    volumes = [("d1", str(directory / name), capacity)]
    request = administration.add_node(cluster, name, "dc1", rack, volumes).request_id
    finish(cluster, request)


def finish(cluster: Cluster, request_id: str) -> None:
    """Commit the start and the end of a topology request."""
    cluster.commit(StartRequest(request_id))
    cluster.commit(FinishRequest(request_id))


def grow(root: Path, name: str = "") -> Cluster:
    """A cluster of three normal nodes in three racks, with keyspace `air` at three replicas."""
    cluster = begin(root, name)
    for node, rack in NODES:
        join(cluster, root / "volumes", node, rack)
    administration.create_keyspace(cluster, "air", {"dc1": 3})
    return cluster
