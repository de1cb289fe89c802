"""Storage that was declared lost and comes back: for nobody a replica, neither to read nor to count nor to open."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator import fencing
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas import volumes
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.metadata.model import NodeState
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import BarrierLevel
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import (
    FOUR,
    SmallCluster,
    assert_at_rest,
    placed,
    reads_trust_fences_alone,
    without_zookeeper,
)
from tests.support.rings import FOUR as FOUR_ON_RING
from tests.support.rings import TURN, replace, ringed
from tests.support.storages import STORAGE

S = Stage
QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1),
    coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4, barrier_level=BarrierLevel.QUORUM),
)
LOST = "was declared lost"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)


def declared_lost(cluster: SmallCluster, node: str) -> None:
    """`node` is away, and the coordinator has taken up that it is removed; nothing of it is rebuilt yet."""
    cluster.lose(node)
    administration.remove_node(cluster.cluster, node)
    while cluster.metadata.node(node).state is NodeState.NORMAL:
        cluster.round()


def test_lost_storage_that_is_back_is_neither_read_nor_counted(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    first = cluster.write(cluster.pipeline())
    with cluster.without("BC"):  # nothing can be rebuilt
        declared_lost(cluster, "A")
    cluster.bring_back("A")
    with cluster.without("B"):
        with pytest.raises(ConsistencyNotReached, match=LOST):
            cluster.read(cluster.pipeline())
        with pytest.raises(ConsistencyNotReached, match=LOST):
            cluster.write(cluster.pipeline())
    second = cluster.write(cluster.pipeline(), ids=[2])
    assert cluster.read(cluster.pipeline()) >= {first, second}
    with pytest.raises(ConsistencyNotReached, match=LOST):
        cluster.read(cluster.pipeline(), "ALL")


def test_a_write_that_was_planned_before_does_not_count_the_lost_storage(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    early = cluster.pipeline()
    staged = cluster.staged(early, {1: 0})
    with cluster.without("BC"):
        declared_lost(cluster, "A")
    cluster.bring_back("A")
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=LOST):
        cluster.land(early, staged)


def rebuilt_with_c_away(cluster: SmallCluster) -> tuple[Pipeline, set[str]]:
    """A is lost and rebuilt on X, with C away in the middle; a pipeline of before that, and what was written then."""
    cluster.write(cluster.pipeline())
    declared_lost(cluster, "A")
    cluster.until(S.STREAMING)
    early = cluster.pipeline()
    cluster.until(S.WRITE_BOTH_READ_NEW)
    with cluster.without("C"):
        for _ in range(6):
            cluster.round()
        try:
            written = {cluster.write(cluster.pipeline(), ids=[2])}
        except ConsistencyNotReached:
            written = set()
    cluster.bring_back("A")
    return early, written


def test_a_barrier_does_not_take_lost_storage_for_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A, back, and C, which no fence has reached, are a quorum for who planned before."""
    reads_trust_fences_alone(monkeypatch)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    early, written = rebuilt_with_c_away(cluster)
    with cluster.without("B"):
        assert written <= cluster.read(early), "a stale read at QUORUM of a write at QUORUM"
    assert not written
    assert cluster.stage() is S.WRITE_BOTH_READ_NEW
    cluster.settle()
    assert_at_rest(cluster, [cluster.write(cluster.pipeline(), ids=[3])])


def test_a_reader_asks_the_log_before_it_chooses_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a barrier has let a step pass: of all but one replica the storage was declared lost."""
    monkeypatch.setattr(fencing, "barrier_passed", lambda *arguments: True)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    early, written = rebuilt_with_c_away(cluster)
    assert written
    with cluster.without("B"):
        assert written <= cluster.read(early)


def test_a_barrier_of_the_ring_does_not_take_lost_storage_for_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D is replaced by X. The row is on D, B and C before, on X, B and C after."""
    reads_trust_fences_alone(monkeypatch)
    ring = ringed(tmp_path, FOUR_ON_RING, {"dc1": 3}, configuration=QUICK)
    replace(ring)
    ring.until(Step.START)
    early = ring.pipeline()
    ring.until(Step.MID)
    with ring.without("B"):
        for _ in range(6):
            ring.round()
        try:
            written = ring.write_rows(ring.pipeline(), {100: 3 * TURN})
        except ConsistencyNotReached:
            written = set()
    ring.bring_back("D")
    with ring.without("C"):
        assert written <= set(ring.read_rows(early)), "a stale read at QUORUM of a write at QUORUM"
    assert not written
    ring.settle()


def test_lost_storage_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang: not even its marker is read, by pipelines, rounds, repair, vacuum and verification."""
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    cluster.write(cluster.pipeline())
    with cluster.without("BC"):
        declared_lost(cluster, "A")
    cluster.bring_back("A")
    opened: list[str] = []

    def read_marker(storage: Storage, uri: str) -> volumes.VolumeMarker:
        opened.append(Path(uri).name)
        return asked(storage, uri)

    asked = volumes.read_marker
    monkeypatch.setattr(volumes, "read_marker", read_marker)
    cluster.write(cluster.pipeline())
    cluster.read(cluster.pipeline())
    repair(cluster.cluster, "air.flights")
    verify_replicas(STORAGE, cluster.metadata)
    cluster.settle()
    assert {"B", "C", "X"} <= set(opened)
    assert "A" not in opened
