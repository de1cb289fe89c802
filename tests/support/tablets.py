"""What tests of single tablets look at: where they are, and which rows a table has."""

from __future__ import annotations

from epochlake.jobs.cluster import Cluster

EVENTS = "test.events"
"""The table whose tablets they move."""


def nodes_of(cluster: Cluster, tablet: int) -> list[str]:
    """The names of the nodes that hold a tablet of EVENTS, as its replicas are ordered."""
    metadata = cluster.catch_up()
    tablet_map = metadata.tablets.maps[metadata.table(EVENTS).table_id]
    return [metadata.directory.node_of_volume[volume].name for volume in tablet_map.replicas(tablet)]


def ids(cluster: Cluster, level: str) -> list[int]:
    """The ids of the rows of EVENTS as they are read at a level, ascending."""
    return sorted(row["id"] for row in cluster.scan(EVENTS, consistency=level).read_all().to_pylist())
