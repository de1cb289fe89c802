"""Pipelines held at old epochs while ranges of the ring move: what was staged before a step lands after it, pieces only
where they belong; what is acknowledged at any epoch is seen by every quorum, and no row twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.metastore.metadata.placements import ranges_within
from epochlake.placement.ring.state import Step

from tests.support.clusters import reads_trust_fences_alone, without_zookeeper
from tests.support.rings import FOUR, SPREAD, TURN, RingCluster, assert_settled, ringed
from tests.support.slices import sliced, some

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
STEPS = [Step.PREPARE, Step.START, Step.MID, None]


def join(ring: RingCluster) -> None:
    ring.add("X", ("dc1", "r2", (0,)))


def leave(ring: RingCluster) -> None:
    administration.decommission(ring.cluster, "D")


def move(ring: RingCluster) -> None:
    administration.move_node(ring.cluster, "D", tokens=[4 * TURN, -4 * TURN])


OPERATIONS: list[Callable[[RingCluster], None]] = [join, leave, move]


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RingCluster:
    without_zookeeper(monkeypatch)
    reads_trust_fences_alone(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    return ringed(tmp_path, FOUR, configuration=QUICK)


def some_rows(number: int) -> dict[int, int]:
    """Rows (id -> token) of a batch: two in each part of the ring, one of them at its very first token."""
    tokens = [part * TURN + offset for part in range(-8, 8, 2) for offset in (0, 1 + number)]
    return {1000 * (number + 1) + n: token for n, token in enumerate(tokens)}


@sliced()
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_was_staged_before_a_step_lands_after_any_later_one(
    ring: RingCluster, operation: Callable[[RingCluster], None]
) -> None:
    held: list[tuple[Pipeline, list[StagedFile]]] = []
    acknowledged = set(SPREAD)

    def stage_for_later(times: int) -> None:
        for _ in range(times):
            pipeline, rows = ring.pipeline(), some_rows(len(acknowledged))
            held.append((pipeline, ring.staged(pipeline, rows)))
            acknowledged.update(rows)

    stage_for_later(len(STEPS))
    operation(ring)
    landed = 0
    for number, step in enumerate(STEPS):
        ring.until(step)
        # One batch of each step before lands now; the others of that step land later.
        for pipeline, staged in [held[at] for at in range(landed % 2, len(held), len(STEPS) - number)]:
            ring.land(pipeline, staged, "QUORUM")
            landed += 1
        stage_for_later(len(STEPS) - 1 - number)
        assert_nothing_twice(ring)
    for pipeline, staged in held:
        ring.land(pipeline, staged, "ALL")
    ring.settle()
    assert_settled(ring, acknowledged)


def assert_nothing_twice(ring: RingCluster) -> None:
    for level in ("ONE", "QUORUM", "ALL"):
        rows = ring.read_rows(ring.pipeline(), level)
        assert len(rows) == len(set(rows))


def test_a_file_of_a_range_that_was_divided_since_is_cut_for_those_who_get_a_part(ring: RingCluster) -> None:
    """X comes between B and C: what was staged for one range belongs to two."""
    writer = ring.pipeline()
    rows = {101: -TURN, 102: TURN}
    [staged] = ring.staged(writer, rows)
    join(ring)
    ring.until(None)
    ring.settle()
    ring.land(writer, [staged], "ALL")
    for row, token in rows.items():
        holders = {ring.volume(node) for node in "ABCDX" if row in ring.rows_on(node, token, token)}
        assert holders == replicas_of(ring, token)
    assert replicas_of(ring, -TURN) != replicas_of(ring, TURN)
    assert_settled(ring, set(SPREAD) | set(rows))


def replicas_of(ring: RingCluster, token: int) -> set[int]:
    placements = ring.metadata.placements(ring.table.table_id)
    [index] = ranges_within(placements.lows, token, token)
    return set(placements.placement(index).writes)


def test_pieces_that_landed_count_when_ranges_are_one_again(ring: RingCluster) -> None:
    """D leaves, and its ranges are their neighbours'; pieces of two ranges are what one range needs."""
    writer = ring.pipeline()
    rows = {101: 5 * TURN, 102: 7 * TURN}
    staged = ring.staged(writer, rows)
    assert len(staged) == 2
    with ring.without("B"):
        ring.land(writer, staged)
    leave(ring)
    ring.settle()
    before = {node: len(ring.files_within(node)) for node in "AC"}
    ring.land(ring.pipeline(), staged, "ALL")
    assert {node: len(ring.files_within(node)) for node in "AC"} == before
    assert_settled(ring, set(SPREAD) | set(rows))


def test_a_level_that_is_not_reached_names_ranges_by_their_tokens(ring: RingCluster) -> None:
    with ring.without("BC"), pytest.raises(ConsistencyNotReached, match=r"1 range \(-\d+ to -?\d+") as missed:
        ring.write_rows(ring.pipeline(), {1: 0})
    assert len(missed.value.tablets) == len(missed.value.ranges.names) == 1
    assert set(missed.value.replicas) <= {"B/d1", "C/d1"}
    with ring.without("ABC"), pytest.raises(ConsistencyNotReached, match=r"[0-9] ranges \("):
        ring.read_rows(ring.pipeline())


def test_a_table_on_the_ring_that_was_dropped_is_an_error(ring: RingCluster) -> None:
    writer = ring.pipeline()
    staged = ring.staged(writer, {1: 0})
    administration.drop_table(ring.cluster, "air.flights")
    with pytest.raises(Rejected, match=r"air\.flights was dropped"):
        ring.land(writer, staged)


# --- pipelines pinned at every epoch that there was, with whatever replicas answer ---------------------------------


@dataclass
class Adversary:
    """Writes and reads at old epochs while up to two nodes are away."""

    ring: RingCluster
    dice: random.Random
    acknowledged: set[int] = field(default_factory=lambda: set(SPREAD))
    held: list[ClusterMetadata] = field(default_factory=list)
    refused: int = 0
    written: int = 0

    def pipeline_at(self, then: ClusterMetadata) -> Pipeline:
        pipeline = self.ring.pipeline()
        pipeline.gate.planning.metadata = then
        return pipeline

    def attack(self) -> None:
        self.held.append(self.ring.metadata)
        nodes = [node.name for node in self.ring.metadata.directory.nodes.values() if node.tokens]
        pairs = [set(pair) for count in (1, 2) for pair in combinations(nodes, count)]
        for then in self.held:
            for away in self.dice.sample(pairs, some(3, 1)):
                with self.ring.without(away):
                    self.write(then)
        for then in self.held[-2:]:
            for away in self.dice.sample(pairs, some(4, 2)):
                with self.ring.without(away):
                    self.read(then, away)

    def write(self, then: ClusterMetadata) -> None:
        self.written += 1
        for part in self.dice.sample(range(-8, 8), 3):
            row = 1000 * self.written + part
            try:
                self.acknowledged |= self.ring.write_rows(self.pipeline_at(then), {row: part * TURN + self.written})
            except ConsistencyNotReached:
                self.refused += 1

    def read(self, then: ClusterMetadata, away: set[str]) -> None:
        try:
            seen = self.ring.read_rows(self.pipeline_at(then))
        except ConsistencyNotReached:
            return
        assert len(seen) == len(set(seen)), f"twice, by a read of epoch {then.epoch} without {away}"
        assert self.acknowledged <= set(seen), f"missed by a read of epoch {then.epoch} without {away}"


@sliced(at_least=2)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_acknowledged_at_any_epoch_is_seen_by_every_quorum(
    ring: RingCluster, operation: Callable[[RingCluster], None], seed: int
) -> None:
    adversary = Adversary(ring, random.Random(seed))
    adversary.attack()
    operation(ring)
    for step in STEPS:
        ring.until(step)
        adversary.attack()
    ring.settle()
    adversary.attack()
    assert_settled(ring, adversary.acknowledged)
    assert adversary.refused
    assert len(adversary.acknowledged) > len(SPREAD) + 10


# --- several datacenters, and replication that changes under a pipeline ---------------------------------------------

TWO_DATACENTERS = {
    name: ("dc1" if name in "ABC" else "dc2", f"r{number % 3}", (2 * number - 6,))
    for number, name in enumerate("ABCDEF")
}


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RingCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    return ringed(tmp_path, TWO_DATACENTERS, {"dc1": 3, "dc2": 3}, configuration=QUICK, rows={})


@pytest.mark.parametrize(
    ("level", "away", "succeeds"),
    [
        ("LOCAL_QUORUM", "ADEF", True),
        ("LOCAL_QUORUM", "AB", False),
        ("EACH_QUORUM", "AF", True),
        ("EACH_QUORUM", "EF", False),
        ("QUORUM", "AB", True),
        ("QUORUM", "ABC", False),
    ],
)
def test_levels_count_by_datacenter_on_the_ring(two: RingCluster, level: str, away: str, succeeds: bool) -> None:
    pipeline, rows = two.pipeline(dc="dc1"), {1: -3 * TURN, 2: 5 * TURN}
    with two.without(away):
        if succeeds:
            two.write_rows(pipeline, rows, level)
            assert two.read_rows(pipeline, level) == [1, 2]
        else:
            with pytest.raises(ConsistencyNotReached, match=f"{level} at epoch"):
                two.write_rows(pipeline, rows, level)


def test_acknowledgements_do_not_outlive_the_replication_that_they_were_given_under(
    ring: RingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is on C and D; then there is one replica only, on B, and three again, while the writer is held up.

    Another keyspace has the same replication all the time, so this placement is as old as before.
    """
    administration.create_keyspace(ring.cluster, "other", {"dc1": 3}, placement=PlacementKind.RING)
    writer, rows = ring.pipeline(), {101: -3 * TURN}
    original = CommitPhase._round

    def meanwhile(self: CommitPhase, number: int) -> int:
        if number > 1:
            return original(self, number)
        with ring.without("B"):
            fence = original(self, number)
        for wanted in (1, 3):
            administration.change_replication(ring.cluster, "air", {"dc1": wanted})
            ring.settle()
        return fence

    monkeypatch.setattr(CommitPhase, "_round", meanwhile)
    ring.write_rows(writer, rows)
    for away in "ABCD":
        with ring.without(away):
            assert 101 in ring.read_rows(ring.pipeline())
