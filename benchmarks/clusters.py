"""The small cluster on which the data plane is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochlake.jobs.administration.nodes import add_node
from epochlake.jobs.administration.schema import create_keyspace
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.metastore import configuration
from epochlake.metastore.metastore import init_cluster


@contextmanager
def opened() -> Iterator[tuple[Cluster, Path]]:
    """`three_nodes` below a directory of temporary files, until the end of the block; and that directory."""
    with tempfile.TemporaryDirectory(prefix="epochlake-benchmark-") as directory:
        cluster = three_nodes(Path(directory))
        try:
            yield cluster, Path(directory)
        finally:
            cluster.close()


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
