"""The volume of a node for reads and for writes of a token, in every stage of every kind of transition."""

from __future__ import annotations

import msgspec
import pytest
from epochlake.jobs.gate.lookups import volume_for_reads, volumes_for_writes
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.tablets import Tablets
from epochlake.metastore.metadata.events import CreateKeyspace
from epochlake.metastore.metadata.model import Transition
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Kind, Stage
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.histories import (
    INITIALISE,
    applied,
    joined,
    keyspace,
    register,
    ring_cluster,
    start,
    steps,
    table,
)

S = Stage
FLIGHTS = "id-flights"
LOW, HIGH = -5, 5
"""Tokens of tablets 0 and 1."""

WITHIN_A_NODE = {
    # stage: the volume that is read, the volumes that are written; 1 is left for 2
    None: (1, (1,)),
    S.ALLOW_WRITE_BOTH_READ_OLD: (1, (1,)),
    S.WRITE_BOTH_READ_OLD: (1, (1, 2)),
    S.STREAMING: (1, (1, 2)),
    S.WRITE_BOTH_READ_NEW: (2, (1, 2)),
    S.USE_NEW: (2, (2,)),
    S.CLEANUP: (2, (2,)),
    S.END_MIGRATION: (2, (2,)),
    S.CLEANUP_TARGET: (1, (1,)),
    S.REVERT_MIGRATION: (1, (1,)),
}


@pytest.fixture(scope="module")
def metadata() -> ClusterMetadata:
    """Nodes 1, 2, 3 with volumes (1, 2), (3, 4), (5, 6); both tablets are on volumes 1 and 3."""
    nodes = joined(applied([INITIALISE]), "n1", "n2", "n3", volumes=2)
    return applied([CreateKeyspace(keyspace()), table("flights", [[1, 3], [1, 3]])], nodes)


def moving(metadata: ClusterMetadata, kind: Kind, stage: Stage | None, leaving: int, pending: int) -> ClusterMetadata:
    """Tablet 0 on its way from `leaving` to `pending`."""
    if stage is None:
        return metadata
    new = tuple(pending if volume == leaving else volume for volume in (1, 3))
    transition = Transition(FLIGHTS, 0, kind, stage, (1, 3), new, leaving, pending)
    tablets = Tablets(metadata.tablets.maps, {(FLIGHTS, 0): transition})
    return msgspec.structs.replace(metadata, tablets=tablets)


@pytest.mark.parametrize("stage", WITHIN_A_NODE)
def test_between_volumes_of_a_node_the_stage_says_which_is_read_and_which_are_written(
    metadata: ClusterMetadata, stage: Stage | None
) -> None:
    now = moving(metadata, Kind.INTRANODE_MIGRATION, stage, 1, 2)
    for token in (MIN_TOKEN, LOW):
        assert (volume_for_reads(now, FLIGHTS, token, 1), volumes_for_writes(now, FLIGHTS, token, 1)) == (
            WITHIN_A_NODE[stage]
        )
    for token in (LOW, HIGH):
        assert (volume_for_reads(now, FLIGHTS, token, 2), volumes_for_writes(now, FLIGHTS, token, 2)) == (3, (3,))
    assert (volume_for_reads(now, FLIGHTS, HIGH, 1), volumes_for_writes(now, FLIGHTS, MAX_TOKEN, 1)) == (1, (1,))


@pytest.mark.parametrize("kind", [Kind.MIGRATION, Kind.REBUILD])
@pytest.mark.parametrize("stage", Stage)
def test_between_nodes_either_side_answers_in_every_stage(metadata: ClusterMetadata, kind: Kind, stage: Stage) -> None:
    now = moving(metadata, kind, stage, 1, 6)
    for node, volume in {1: 1, 2: 3, 3: 6}.items():
        assert volume_for_reads(now, FLIGHTS, LOW, node) == volume
        assert volumes_for_writes(now, FLIGHTS, LOW, node) == (volume,)
    assert volume_for_reads(now, FLIGHTS, HIGH, 3) is None
    assert volumes_for_writes(now, FLIGHTS, HIGH, 3) == ()


def test_every_stage_is_in_the_table() -> None:
    assert set(WITHIN_A_NODE) == {None, *Stage}


def test_on_the_ring_a_node_answers_with_the_one_volume_that_a_token_is_on_while_ranges_move() -> None:
    now = ring_cluster(volumes=2)
    now = applied([register(now, "m7", rack="r1", volumes=2)], now)
    for event in [start(now, "join-m7"), *steps("join-m7", Step.START, Step.MID)]:
        now = applied([event], now)
        placements = now.placements("id-stars")
        lows = placements.lows.tolist()
        for index, low in enumerate(lows):
            asked = {*placements.placement(index).reads, *placements.placement(index).writes}
            for node in now.directory.nodes.values():
                own = asked & {volume.volume_id for volume in node.volumes}
                assert len(own) <= 1
                assert volume_for_reads(now, "id-stars", low, node.node_id) == next(iter(own), None)
                assert set(volumes_for_writes(now, "id-stars", low, node.node_id)) == own
