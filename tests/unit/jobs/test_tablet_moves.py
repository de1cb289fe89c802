"""Tablets that people put on other nodes: refused where the balancer would not go, carried out as its moves are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import epochlake
import numpy as np
import pytest
from epochlake.jobs.administration import decommission, move_tablets, set_maintenance
from epochlake.jobs.administration.tablet_moves import TabletMoves, shared_racks
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.metadata.events import StartTransitions
from epochlake.metastore.tables import metadata as tables
from epochlake.metastore.tables.placements import logical_replicas
from epochlake.testing import LocalCluster, local_cluster

from tests.support.command_line import CommandLine
from tests.support.tablets import EVENTS as TABLE
from tests.support.tablets import nodes_of


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path, nodes=4, replication=2, racks=2) as made:
        epochlake.pause_balancing(made.cluster, reason="moves are by hand")
        epochlake.create_table(made.cluster, TABLE, [("id", "bigint", False)], ["id"])
        yield made


def elsewhere(cluster: Cluster, tablet: int, *, same_rack: bool = True) -> tuple[str, str]:
    """A node that holds the tablet, and one in its rack, or in the other one, that does not."""
    metadata, held = cluster.catch_up(), nodes_of(cluster, tablet)
    rack = metadata.node(held[0]).rack
    free = [node.name for node in metadata.directory.members() if node.name not in held]
    return held[0], next(name for name in free if (metadata.node(name).rack == rack) == same_rack)


def test_a_tablet_goes_where_it_is_told_and_keeps_its_rows(lake: LocalCluster) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(200)], consistency="ALL")
    source, target = elsewhere(cluster, 1)
    move_tablets(cluster, TABLE, (1,), source, target, reason="hot")
    assert nodes_of(cluster, 1).count(target) == 0
    cluster.write(TABLE, [{"id": number} for number in range(200, 300)], consistency="ALL")
    lake.coordinate()
    assert target in nodes_of(cluster, 1)
    assert source not in nodes_of(cluster, 1)
    assert not cluster.catch_up().tablets.transitions
    assert sorted(row["id"] for row in cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()) == [*range(300)]


def test_while_it_moves_leaving_and_pending_own_one_logical_replica(lake: LocalCluster) -> None:
    cluster = lake.cluster
    source, target = elsewhere(cluster, 1)
    [staying] = set(nodes_of(cluster, 1)) - {source}
    order = nodes_of(cluster, 1)
    move_tablets(cluster, TABLE, (1,), source, target)
    rows = tables.write_placements(cluster.catch_up()).to_pylist()
    owners = {row["node"]: row["logical_replica"] for row in rows if row["tablet"] == 1}
    assert owners.get(target, owners[source]) == owners[source] == order.index(source)
    assert owners[staying] == order.index(staying)


def test_owners_of_logical_replicas_are_those_of_the_seed() -> None:
    def numbers(*rows: str) -> list[list[int]]:
        sets = np.array([list(row) for row in rows])
        made = logical_replicas(sets != ".", sets == "o", sets == "n")
        return [
            [int(n) for n, mark in zip(line, row, strict=True) if mark != "."]
            for line, row in zip(made, rows, strict=True)
        ]

    assert numbers("ooo.", "obbn", "bobn", "oonn") == [[0, 1, 2], [0, 1, 2, 0], [0, 1, 2, 1], [0, 1, 0, 1]]
    assert numbers("bbbn", "bbo.", "nnn.") == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert numbers("obnn") == [[0, 1, 0, 2]]


@pytest.mark.parametrize("bad", ["same", "unknown tablet", "not held", "maintenance", "leaving", "twice"])
def test_what_the_balancer_would_not_do_is_refused_and_nothing_moves(lake: LocalCluster, bad: str) -> None:
    cluster = lake.cluster
    source, target = elsewhere(cluster, 1)
    other = next(name for name in nodes_of(cluster, 1) if name != source)
    tablets, to, code = (1,), target, ""
    match bad:
        case "same":
            to, code = other, "is-a-replica"
        case "unknown tablet":
            tablets, code = (99,), "unknown-tablet"
        case "not held":
            source, to, code = target, source, "not-a-replica"
        case "maintenance":
            set_maintenance(cluster, target, True)
            code = "in-maintenance"
        case "leaving":
            decommission(cluster, target)
            code = "request-in-the-way"
        case "twice":
            tablets, code = (1, 1), "transition-in-the-way"
    epoch = lake.epoch
    with pytest.raises(epochlake.Rejected, match=code):
        move_tablets(cluster, TABLE, tablets, source, to)
    assert lake.epoch == epoch


def test_a_second_replica_in_a_rack_is_warned_of(lake: LocalCluster) -> None:
    cluster = lake.cluster
    source, target = elsewhere(cluster, 1, same_rack=False)
    preview = cluster.preview(TabletMoves(TABLE, (1,), source, target))
    assert isinstance(preview.event, StartTransitions)
    assert len(shared_racks(preview.metadata, preview.event)) == 1
    source, target = elsewhere(cluster, 1)
    preview = cluster.preview(TabletMoves(TABLE, (1,), source, target))
    assert isinstance(preview.event, StartTransitions)
    assert shared_racks(preview.metadata, preview.event) == []


def test_the_command_shows_moves_and_makes_them(grown: CommandLine, cluster: Cluster) -> None:
    epochlake.create_keyspace(cluster, "one", {"dc1": 1})
    epochlake.create_table(cluster, "one.t", [("id", "bigint", False)], ["id"])
    metadata = cluster.metadata
    [volume] = metadata.tablets.maps[metadata.table("one.t").table_id].replicas(0)
    source = metadata.directory.node_of_volume[volume].name
    target = next(node.name for node in metadata.directory.members() if node.name != source)
    words = ["tablet", "move", "one.t", "0", "--from", source, "--to", target]
    before = grown.log()
    assert grown.text(*words, "--dry-run").code == 0
    assert grown.log() == before
    assert grown.done(*words)["epoch"] == metadata.epoch + 1
    assert grown.text(*words).code == 3
