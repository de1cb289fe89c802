"""Pipelines held at old epochs while a tablet moves from A, B, C to B, C, X: seed 002, "Consistency Guarantees".

Every stage with every stage before it, every set of replicas that answers: what was acknowledged is seen by every
quorum read that succeeds, now and afterwards. Without fences and without the look at the newest epoch it is not, and
these tests say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.gate import commit_phase, planning
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas import commits
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.opening import open_all, open_to_read
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support.clusters import FOUR, SmallCluster, placed, reads_trust_fences_alone, without_zookeeper
from tests.support.slices import THOROUGH, sliced

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))
PAIRS = [set(chosen) for chosen in combinations("ABCX", 2)]
"""Every quorum of three that there can be."""
TRIPLES = [set(chosen) for chosen in combinations("ABCX", 3)]

Opened = tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]

S = Stage
FORWARD = [S.WRITE_BOTH_READ_OLD, S.STREAMING, S.WRITE_BOTH_READ_NEW, S.USE_NEW, S.CLEANUP, None]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    reads_trust_fences_alone(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    return placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)


def without_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines do not look at fences, neither when they commit nor when they read."""

    def commit(*args: object, epoch: int, **named: object) -> object:
        return commits.commit_files(*args, epoch=1 << 40, **named)  # type: ignore[arg-type]

    def blindly(open_: Callable[..., Opened]) -> Callable[..., Opened]:
        def opening(*args: object) -> Opened:
            opened, failed = open_(*args)
            for snapshot in opened.values():
                snapshot.fence = Fence(0)
            return opened, failed

        return opening

    monkeypatch.setattr(commit_phase, "commit_files", commit)
    monkeypatch.setattr(planning, "open_all", blindly(open_all))
    monkeypatch.setattr(planning, "open_to_read", blindly(open_to_read))


def without_a_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines judge their acknowledgements by the epoch that they planned at."""

    def init(self: CommitPhase, storage: object, batch: object, metadata: ClusterMetadata, *rest: object) -> None:
        original(self, storage, batch, metadata, lambda epoch: metadata, *rest[1:])  # type: ignore[arg-type]

    original = CommitPhase.__init__
    monkeypatch.setattr(CommitPhase, "__init__", init)


@dataclass
class Adversary:
    """Pipelines pinned at every epoch that there was, writing and reading with whatever replicas answer."""

    cluster: SmallCluster
    acknowledged: set[str] = field(default_factory=set)
    refused: int = 0
    unseen: list[str] = field(default_factory=list)
    held: list[ClusterMetadata] = field(default_factory=list)

    def hold(self) -> None:
        self.held.append(self.cluster.metadata)

    def pipeline_at(self, metadata: ClusterMetadata) -> Pipeline:
        pipeline = self.cluster.pipeline()
        pipeline.gate.planning.metadata = metadata
        return pipeline

    def attack(self) -> None:
        """Write and read at every epoch held so far: with two replicas, at the last two with every two and three."""
        self.hold()
        for number, then in enumerate(self.held):
            others = PAIRS if THOROUGH else PAIRS[number % 2 :: 2]
            for nodes in PAIRS + TRIPLES if then in self.held[-2:] else others:
                with self.cluster.without(set("ABCX") - nodes):
                    self.write(then)
        self.check(self.held[-3:])

    def write(self, then: ClusterMetadata) -> None:
        try:
            self.acknowledged.add(self.cluster.write(self.pipeline_at(then)))
        except ConsistencyNotReached:
            self.refused += 1

    def check(self, epochs: Sequence[ClusterMetadata]) -> None:
        """Read at these epochs with every two replicas."""
        for then in epochs:
            for nodes in PAIRS:
                with self.cluster.without(set("ABCX") - nodes):
                    try:
                        seen = self.cluster.read(self.pipeline_at(then))
                    except ConsistencyNotReached:
                        continue
                if lost := self.acknowledged - seen:
                    now = self.cluster.stage()
                    self.unseen.append(f"{len(lost)} by a read of epoch {then.epoch} at {now} with {sorted(nodes)}")


JOURNEYS = {
    "B is away": (Kind.MIGRATION, "B", FORWARD),
    "A is away": (Kind.REBUILD, "A", FORWARD[:4]),
}


@sliced()
@pytest.mark.parametrize("journey", JOURNEYS)
def test_what_is_acknowledged_at_any_epoch_is_seen_by_every_quorum_on_the_way_there(
    cluster: SmallCluster, journey: str
) -> None:
    kind, away, stages = JOURNEYS[journey]
    adversary = Adversary(cluster)
    adversary.hold()
    cluster.start("A", "X", kind)
    adversary.attack()
    for stage in stages:
        with cluster.without(away):
            cluster.until(stage)
        adversary.attack()
    adversary.check(adversary.held)
    assert adversary.unseen == []
    assert len(adversary.acknowledged) > 20
    assert adversary.refused > 20


@sliced()
@pytest.mark.parametrize("last", [S.STREAMING, S.WRITE_BOTH_READ_NEW])
def test_what_is_acknowledged_at_any_epoch_is_seen_by_every_quorum_on_the_way_back(
    cluster: SmallCluster, last: Stage
) -> None:
    adversary = Adversary(cluster)
    adversary.hold()
    cluster.start("A", "X")
    adversary.hold()
    for stage in FORWARD[: FORWARD.index(last) + 1]:
        cluster.until(stage)
        adversary.hold()
    adversary.attack()
    with cluster.without("X"):
        cluster.until(S.CLEANUP_TARGET)
    adversary.attack()
    cluster.until(None)
    adversary.attack()
    assert adversary.unseen == []
    assert len(adversary.acknowledged) > 20
    assert cluster.files_on("X") == set()
    cluster.start("B", "X")
    cluster.until(None)
    adversary.check(adversary.held)
    assert adversary.unseen == []


def test_coordinators_1_and_2_a_read_at_101_sees_a_write_at_103(cluster: SmallCluster) -> None:
    assert unseen_by_coordinator_1(cluster) == set()


def test_coordinators_1_and_2_disagree_when_nobody_is_fenced(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fences(monkeypatch)
    assert len(unseen_by_coordinator_1(cluster)) == 1


def unseen_by_coordinator_1(cluster: SmallCluster) -> set[str]:
    """Coordinator 1 is held where X is a write replica, 2 where A is none any more; each finds two replicas."""
    cluster.start("A", "X")
    cluster.until(S.WRITE_BOTH_READ_OLD)
    one = cluster.pipeline("coordinator 1")
    cluster.until(S.CLEANUP)
    two = cluster.pipeline("coordinator 2")
    with cluster.without("AB"):
        written = cluster.write(two)
    with cluster.without("CX"):
        try:
            return {written} - cluster.read(one)
        except ConsistencyNotReached:
            return set()


GUARDS: dict[str, list[Callable[[pytest.MonkeyPatch], None]]] = {
    "with all guards": [],
    "without fences": [without_fences],
    "without a last look": [without_a_last_look],
    "without both": [without_fences, without_a_last_look],
}


@pytest.mark.parametrize(("guards", "lost"), [*[(name, 0) for name in list(GUARDS)[:3]], ("without both", 1)])
def test_coordinators_3_and_4_a_read_at_102_sees_a_write_at_100_unless_both_guards_are_off(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, guards: str, lost: int
) -> None:
    for switch_off in GUARDS[guards]:
        switch_off(monkeypatch)
    three = cluster.pipeline("coordinator 3")
    cluster.start("A", "X")
    cluster.until(S.WRITE_BOTH_READ_NEW)
    four = cluster.pipeline("coordinator 4")
    with cluster.without("CX"):
        try:
            written = {cluster.write(three)}
        except ConsistencyNotReached:
            written = set()
    with cluster.without("AB"):
        assert len(written - cluster.read(four)) == lost


def test_a_write_held_at_100_lands_where_it_belongs_now(cluster: SmallCluster) -> None:
    held = cluster.pipeline()
    cluster.start("A", "X")
    cluster.until(None)
    written = cluster.write(held)
    assert held.epoch == cluster.metadata.epoch
    assert [node for node in "ABCX" if written in cluster.files_on(node)] == ["B", "C", "X"]


def test_an_acknowledgement_of_a_replica_that_gave_the_tablet_up_in_between_does_not_count(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A and X acknowledge; X gives the tablet up, and gets it again from B, which has not seen the file."""
    cluster.start("A", "X")
    cluster.until(S.WRITE_BOTH_READ_OLD)
    writer = cluster.pipeline()

    def meanwhile(self: CommitPhase, number: int) -> int:
        with cluster.without("BC" if number == 1 else "B"):
            fence = original(self, number)
        if number == 1:
            with cluster.without("X"):
                cluster.until(S.CLEANUP_TARGET)
            cluster.until(None)
            cluster.start("B", "X")
            cluster.until(None)
        return fence

    original = CommitPhase._round
    monkeypatch.setattr(CommitPhase, "_round", meanwhile)
    written = cluster.write(writer)
    assert [node for node in "ABCX" if written in cluster.files_on(node)] in (["A", "C", "X"], ["A", "X"], ["A", "C"])
    for nodes in ("AC", "AX", "CX"):
        with cluster.without(set("ABCX") - set(nodes)):
            assert written in cluster.read(cluster.pipeline())


def test_placement_that_moves_for_ever_ends_in_an_error(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = cluster.pipeline()

    def meanwhile(self: CommitPhase, number: int) -> int:
        cluster.cluster.commit(SwitchBalancing(number % 2 == 1))
        return original(self, number)

    original = CommitPhase._round
    monkeypatch.setattr(CommitPhase, "_round", meanwhile)
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached, match=r"QUORUM .* tablet"):
        cluster.write(writer)


def test_a_replica_that_only_asks_for_a_newer_epoch_gets_the_rows_too(cluster: SmallCluster) -> None:
    pipeline = cluster.pipeline()
    newer = administration.resume_balancing(cluster.cluster).epoch
    assert raise_fence(cluster.address("A"), newer) == newer
    assert pipeline.epoch < newer
    file = cluster.write(pipeline)
    assert all(file in cluster.files_on(node) for node in "ABC")
