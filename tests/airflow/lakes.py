"""A cluster for tests of Airflow: in a directory, with the embedded ZooKeeper that all processes share."""

from __future__ import annotations

import json
from pathlib import Path

import epochlake

EVENTS = "air.events"
FLIGHTS = "air.flights"
COLUMNS = [("id", "bigint", False), ("note", "string", True)]


def lake_below(directory: Path, nodes: int = 3) -> epochlake.Configuration:
    """A cluster with the tables of the DAGs; balancing is paused, as the weekly review wants it."""
    configuration = epochlake.Configuration(root=str(directory / "root"))
    epochlake.init_cluster(configuration, name="lake")
    with epochlake.open_cluster(configuration) as cluster:
        for number in range(1, nodes + 1):
            add_node(cluster, directory, number)
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        epochlake.create_keyspace(cluster, "air", {"dc1": 3})
        epochlake.create_table(cluster, FLIGHTS, COLUMNS, ["id"], tablets=8)
        epochlake.create_table(cluster, EVENTS, COLUMNS, ["id"], tablets=2, append_only=True)
        epochlake.pause_balancing(cluster, reason="moves are reviewed")
    return configuration


def add_node(cluster: epochlake.Cluster, directory: Path, number: int) -> None:
    place = str(directory / f"n{number}")
    epochlake.add_node(cluster, f"n{number}", "dc1", f"r{number}", [("d1", place, 1 << 34)], request_id=f"n{number}")


def connection(configuration: epochlake.Configuration) -> str:
    """The connection to a cluster, as a variable of the environment holds it."""
    return json.dumps({"conn_type": "epochlake", "host": configuration.root})
