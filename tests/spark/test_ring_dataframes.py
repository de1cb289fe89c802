"""Placements of a ring as DataFrames: those of the whole-ring functions, for all oracle cases."""

from __future__ import annotations

import pytest
from epochlake.placement.dataframes.ring import read_placements, write_placements
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.operations import plan_join
from epochlake.placement.ring.state import RingState
from epochlake.placement.ring.steps import accepted, advanced
from pyspark.sql import DataFrame, SparkSession

from tests.unit.placement.ring_oracles import PLACEMENT_FILES, cases, settings_of_case
from tests.unit.placement.ring_rings import cluster, in_a_row, member, simple

pytestmark = pytest.mark.connect

NODES = "node_id int, datacenter string, rack string"
TOKENS = "node_id int, token bigint"


def rows(frame: DataFrame) -> list[list]:
    return sorted([row.start_token, row.end_token, list(row.replicas)] for row in frame.collect())


def frames(spark: SparkSession, state: RingState) -> tuple[DataFrame, DataFrame]:
    nodes = [(node.node_id, node.datacenter, node.rack) for node in state.nodes.values()]
    tokens = [(node, token) for node, owned in state.tokens().items() for token in owned]
    return spark.createDataFrame(nodes, NODES), spark.createDataFrame(tokens, TOKENS)


def test_placements_are_those_of_the_oracle(spark: SparkSession) -> None:
    """Every fifth case, in one query; tests/unit/placement/test_ring_slices.py goes through all of them."""
    asked, expected = None, []
    for case in cases(*PLACEMENT_FILES)[::5]:
        joined = [node for node in case["nodes"] if node["state"] == "JOINED"]
        nodes = spark.createDataFrame([(node["id"], node["dc"], node["rack"]) for node in joined], NODES)
        tokens = spark.createDataFrame([(node["id"], token) for node in joined for token in node["tokens"]], TOKENS)
        found = read_placements(nodes, tokens, settings_of_case(case)[0], slices=2)
        asked = found if asked is None else asked.unionAll(found)
        expected += case["keyspaces"][0]["ranges"]
    assert asked is not None
    assert rows(asked) == sorted(expected)


def test_operations_in_flight_are_in_reads_and_writes(spark: SparkSession) -> None:
    state = cluster([*in_a_row(6), member(20)], simple(3))
    moved = advanced(accepted(state, plan_join(state, "x", 20, [150])), "x")
    nodes, tokens = frames(spark, moved)
    operations = list(moved.operations.values())
    placements = moved.placements[simple(3)]
    for found, side in (
        (read_placements(nodes, tokens, simple(3), operations, slices=3), placements.reads),
        (write_placements(nodes, tokens, simple(3), operations, slices=3), placements.writes),
    ):
        assert [[*row[:2], sorted(row[2])] for row in rows(found)] == [
            [start, end, sorted(replicas)] for start, end, replicas in side.ranges()
        ]


def test_columns_that_are_missing_and_nodes_that_are_unknown_are_named(spark: SparkSession) -> None:
    nodes, tokens = frames(spark, cluster(in_a_row(3), simple(2)))
    with pytest.raises(InvalidRequest, match="rack missing"):
        read_placements(nodes.drop("rack"), tokens, simple(2))
    with pytest.raises(InvalidRequest, match=r"nodes \[3\] own tokens"):
        read_placements(nodes.where("node_id < 3"), tokens, simple(2))
