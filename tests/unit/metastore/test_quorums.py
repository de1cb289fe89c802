"""Quorum intersection over whole histories: it holds for every history of events, and not where a step is left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from epochlake.metastore.errors import LogGap
from epochlake.metastore.following.quorums import QUORUM, quorums_of, verify_quorums
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    CreateKeyspace,
    Event,
    NewTransition,
    RequestTopology,
    StageChange,
    StartTransitions,
)
from epochlake.metastore.metadata.model import NodeState, RequestKind
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support.histories import applied, keyspace, register, ring_cluster, small_cluster, start, steps, table
from tests.support.random_histories import random_history, random_ring_history


def versions_of(metadata: ClusterMetadata, events: Sequence[Event]) -> list[ClusterMetadata]:
    versions = [metadata]
    for event in events:
        versions.append(applied([event], versions[-1]))
    return versions


def joining() -> list[ClusterMetadata]:
    """A join on the ring: asked for, PREPARE, START, MID, FINISH."""
    ring = ring_cluster()
    asked = applied([register(ring, "m7", rack="r1")], ring)
    return versions_of(asked, [start(asked, "join-m7"), *steps("join-m7")])


SMALL = small_cluster()


def moving(metadata: ClusterMetadata = SMALL, table_id: str = "id-flights") -> list[ClusterMetadata]:
    """Tablet 0 of a table, from its beginning to move from volume 1 to 4 until `end_migration`."""
    begin = StartTransitions((NewTransition(table_id, 0, Kind.MIGRATION, 1, 4),))
    stages = list(Stage)[:7]
    changes = [
        StageChange(table_id, 0, stage, then, "s" if then is Stage.STREAMING else None)
        for stage, then in pairwise(stages)
    ]
    return versions_of(metadata, [begin, *(AdvanceTransitions((change,)) for change in changes)])


def test_no_history_of_tablets_lets_a_read_miss_a_write(seed: int) -> None:
    assert verify_quorums(random_history(seed, 150).log()) == ()


def test_no_history_of_the_ring_lets_a_read_miss_a_write(seed: int) -> None:
    assert verify_quorums(random_ring_history(seed, 200).log()) == ()


def test_every_step_of_a_join_and_every_stage_of_a_migration_is_safe_beside_the_next() -> None:
    assert quorums_of(joining()) == ()
    assert quorums_of(moving()) == ()


@pytest.mark.parametrize("left_out", [{Step.START}, {Step.MID}, {Step.START, Step.MID}])
def test_a_step_of_the_ring_that_is_left_out_is_found(left_out: set[Step]) -> None:
    order = [None, Step.PREPARE, Step.START, Step.MID, Step.FINISH]
    kept = [version for version, step in zip(joining(), order, strict=True) if step not in left_out]
    findings = quorums_of(kept)
    assert {finding.code for finding in findings} == {QUORUM}
    assert "m7" in findings[0].message


def test_reads_that_move_together_with_writes_are_found_on_tablets() -> None:
    metadata = applied([CreateKeyspace(keyspace("big", dc1=3)), table("crews", [[1, 2, 3]], keyspace="big")], SMALL)
    versions = moving(metadata, "id-crews")
    stages = {t.stage: version for version in versions for t in version.tablets.transitions.values()}
    [finding] = quorums_of([stages[Stage.ALLOW_WRITE_BOTH_READ_OLD], stages[Stage.USE_NEW]])
    assert finding.epoch == stages[Stage.USE_NEW].epoch
    assert finding.message.startswith("tablet big.crews/0-0: a quorum of the readers")


def test_replicas_that_change_without_a_transition_are_found() -> None:
    before = SMALL
    tablet_map = before.tablets.maps["id-flights"].with_replicas({2: [2, 4]}, epoch=before.epoch + 1)
    tablets = msgspec.structs.replace(before.tablets, maps={"id-flights": tablet_map})
    [finding] = quorums_of([before, msgspec.structs.replace(before, epoch=before.epoch + 1, tablets=tablets)])
    assert "air.flights/2-2" in finding.message


@pytest.mark.parametrize(("changed", "found"), [({}, []), ({5: [2, 4]}, ["air.flights/3-5"])])
def test_a_split_is_safe_and_one_that_moves_a_half_is_found(changed: dict[int, list[int]], found: list[str]) -> None:
    whole = SMALL.tablets.maps["id-flights"]
    doubled = whole.split(SMALL.epoch + 1).with_replicas(changed, SMALL.epoch + 1)
    for before, after in ((whole, doubled), (doubled, whole)):
        versions = [
            msgspec.structs.replace(SMALL, tablets=msgspec.structs.replace(SMALL.tablets, maps={"id-flights": one}))
            for one in (before, after)
        ]
        assert [finding.message.split(":")[0] for finding in quorums_of(versions)] == [
            f"tablet {name}" for name in found
        ]


def test_storage_that_is_declared_lost_is_in_no_quorum() -> None:
    """Tablet 0 goes from volume 1 to 4 in one epoch, without steps: only volumes 2 and 3 are left to read and write."""
    metadata = applied([CreateKeyspace(keyspace("big", dc1=3)), table("crews", [[1, 2, 3]], keyspace="big")], SMALL)
    tablet_map = metadata.tablets.maps["id-crews"].with_replicas({0: [2, 3, 4]}, epoch=metadata.epoch + 1)
    moved = msgspec.structs.replace(metadata.tablets, maps={**metadata.tablets.maps, "id-crews": tablet_map})
    after = msgspec.structs.replace(metadata, epoch=metadata.epoch + 1, tablets=moved)
    assert quorums_of([metadata, after])

    def declared(state: NodeState, version: ClusterMetadata) -> ClusterMetadata:
        nodes = [version.directory.node_of_volume[volume] for volume in (1, 4)]
        gone = [msgspec.structs.replace(node, state=state) for node in nodes]
        return msgspec.structs.replace(version, directory=version.directory.with_nodes(*gone, epoch=version.epoch))

    lost = [declared(NodeState.REMOVING, version) for version in (metadata, after)]
    assert quorums_of(lost) == ()


def test_a_log_that_cannot_be_replayed_is_refused() -> None:
    log = InMemoryLog()
    log.shared.entries.extend(random_history(1, 30).entries[:10])
    del log.shared.entries[4]
    with pytest.raises(LogGap):
        verify_quorums(log)


def test_a_leave_that_is_cancelled_at_once_after_mid_would_be_found() -> None:
    """The reason why MID is taken back in an epoch of its own (docs/decisions/007-ring-operations.md)."""
    ring = ring_cluster()
    asked = applied([RequestTopology("r", RequestKind.LEAVE, 5)], ring)
    versions = versions_of(asked, [start(asked, "r"), *steps("r", Step.START, Step.MID)])
    assert quorums_of(versions) == ()
    assert quorums_of([*versions, asked])
