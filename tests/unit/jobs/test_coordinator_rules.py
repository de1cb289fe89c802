"""Maintenance, weights and placement rules, from what the operator says to where the tablets are in the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.metastore.configuration import Configuration, CoordinatorSettings
from epochlake.metastore.errors import Rejected

from tests.support.clusters import SmallCluster, join, placed, without_zookeeper

SIX = {name: ("dc1", f"r{number % 3 + 1}") for number, name in enumerate("ABCDEF")}
QUICK = Configuration(coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=8))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    """Eight tablets of `air.flights` on the first three of six nodes; balancing is on."""
    without_zookeeper(monkeypatch)
    made = placed(tmp_path, SIX, dict.fromkeys(range(8), "ABC"), configuration=QUICK)
    administration.alter_table(made.cluster, "air.flights", OptionChanges(min_count=8))
    administration.resume_balancing(made.cluster)
    return made


def held(cluster: SmallCluster, table: str = "air.flights") -> Counter[str]:
    """How many tablets of a table each node has."""
    metadata = cluster.metadata
    volumes = metadata.tablets.maps[metadata.table(table).table_id].to_array().ravel().tolist()
    return Counter(metadata.directory.node_of_volume[volume].name for volume in volumes)


def test_a_node_in_maintenance_keeps_its_tablets_and_gets_none(cluster: SmallCluster) -> None:
    administration.set_maintenance(cluster.cluster, "D", True)
    administration.set_maintenance(cluster.cluster, "B", True)
    cluster.settle()
    assert held(cluster) == {"A": 8, "B": 8, "C": 4, "F": 4}
    administration.set_maintenance(cluster.cluster, "D", False)
    administration.set_maintenance(cluster.cluster, "B", False)
    cluster.settle()
    assert held(cluster) == dict.fromkeys("ABCDEF", 4)


def test_a_node_that_drains_sends_nothing_to_one_in_maintenance(cluster: SmallCluster) -> None:
    administration.set_maintenance(cluster.cluster, "D", True)
    administration.decommission(cluster.cluster, "A")
    for _ in range(10):
        cluster.round()
    assert held(cluster)["A"] == 8
    assert any("tablets of node A stay" in reason for reason in cluster.coordinator._blocked)
    administration.set_maintenance(cluster.cluster, "D", False)
    cluster.settle()
    assert held(cluster)["A"] == 0


def test_a_node_of_threefold_weight_gets_three_times_as_much(cluster: SmallCluster) -> None:
    administration.alter_node(cluster.cluster, "D", weight=3.0)
    cluster.settle()
    assert (held(cluster)["A"], held(cluster)["D"]) == (2, 6)


def test_a_table_moves_to_the_nodes_with_its_tags_and_its_replacement_inherits_them(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    for node in "DEF":
        administration.alter_node(cluster.cluster, node, tags=["ssd"])
    administration.alter_table(cluster.cluster, "air.flights", OptionChanges(tags=["ssd"]))
    cluster.settle()
    assert held(cluster) == dict.fromkeys("DEF", 8)
    with pytest.raises(Rejected, match="asks for nodes with the tags ssd"):
        cluster.start("D", "A")
    cluster.lose("E")
    administration.replace_node(cluster.cluster, "E", "G", [("d1", str(tmp_path / "volumes" / "G"), 1 << 30)])
    cluster.settle()
    assert held(cluster) == dict.fromkeys("DFG", 8)


def test_tables_that_are_kept_apart_end_on_different_nodes_of_every_rack(cluster: SmallCluster) -> None:
    administration.create_table(cluster.cluster, "air.crews", [("id", "bigint", False)], ["id"], tablets=8)
    cluster.settle()
    assert set(held(cluster)) & set(held(cluster, "air.crews"))
    administration.alter_table(cluster.cluster, "air.flights", OptionChanges(apart_from=["air.crews"]))
    cluster.settle()
    flights, crews = held(cluster), held(cluster, "air.crews")
    assert not set(flights) & set(crews)
    assert sum(flights.values()) == sum(crews.values()) == 24


def test_a_rule_that_cannot_be_kept_is_refused_when_it_is_said(cluster: SmallCluster, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="0 normal node"):
        administration.alter_table(cluster.cluster, "air.flights", OptionChanges(tags=["gpu"]))
    join(cluster.cluster, tmp_path / "volumes", "H", "r9")
    administration.create_table(cluster.cluster, "air.crews", [("id", "bigint", False)], ["id"], tablets=8)
    with pytest.raises(Rejected, match="rack r9 of dc1 has one node only"):
        administration.alter_table(cluster.cluster, "air.flights", OptionChanges(apart_from=["air.crews"]))
