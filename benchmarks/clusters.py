"""The small cluster on which the data plane is measured."""

from __future__ import annotations

from pathlib import Path

from epochlake.jobs.administration.nodes import add_node
from epochlake.jobs.administration.schema import create_keyspace
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.metastore import configuration
from epochlake.metastore.metastore import init_cluster


def three_nodes(directory: Path) -> Cluster:
    """A new cluster below `directory`: three nodes in three racks, with keyspace `air` at three replicas."""
    settings = configuration.load(
        None,
        {"EPOCHLAKE__ROOT": str(directory / "root"), "EPOCHLAKE__COORDINATOR__BACKOFF_SECONDS": "0.05"},
        directory,
    )
    init_cluster(settings)
    cluster = Cluster(settings)
    for number in (1, 2, 3):
        place = str(directory / f"node-{number}")
        add_node(cluster, f"n{number}", "dc1", f"r{number}", [("v1", place, 10**12)])
    Coordinator(cluster).run(until_idle=True)
    create_keyspace(cluster, "air", {"dc1": 3})
    return cluster
