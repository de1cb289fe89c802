"""Writes that take long beside operations on the ring, and coordinators that come late: what is acknowledged stays."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.effects import ring as ring_effects
from epochlake.jobs.coordinator.effects.sweeping import Sweeper
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase, WriteBatch
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.planning.ring import started
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.ring.state import Step

from tests.support.clusters import without_zookeeper
from tests.support.rings import (
    FOUR,
    QUICK,
    SPREAD,
    RingCluster,
    assert_settled,
    fewer_replicas,
    join,
    rebuild,
    ringed,
)
from tests.support.storages import STORAGE

ROW = {100: SPREAD[-1] + 1}
"""A row of a range that is on B, C and D; a `JOINER` takes it over from B."""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


def land_slowly(ring: RingCluster, away: str, meanwhile: Callable[[], None]) -> None:
    """Write `ROW` at QUORUM. The nodes `away` do not answer in the first round; `meanwhile` comes after it."""
    pipeline = ring.pipeline()
    staged = ring.staged(pipeline, ROW)
    rounds = 0

    def catch_up(epoch: int) -> ClusterMetadata:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            for node in away:
                ring.bring_back(node)
            meanwhile()
        return ring.metadata

    for node in away:
        ring.lose(node)
    batch = WriteBatch(ring.table, pipeline.pipeline_id, 0, staged, ConsistencyLevel.QUORUM, None, time.time())
    CommitPhase(STORAGE, batch, pipeline.gate.planning.metadata, catch_up, attempts=2).land()
    assert rounds > 1


def test_a_late_sweep_leaves_alone_what_an_operation_that_was_prepared_then_has_got_since(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    first = join(ring)
    ring.until(Step.START)
    administration.cancel_request(ring.cluster, first)
    second = ring.add("Y", ("dc1", "r2", (1,)))
    ring.cluster.commit(lambda now: started(now, now.requests[second], 1))
    of_the_late = ring.metadata
    _, operations, *_ = ring.coordinator.tracks
    operations.advance(of_the_late)
    assert ring.step() == (Step.START, False)

    def sweep_late() -> None:
        Sweeper(STORAGE).sweep(of_the_late, of_the_late.requests[first])
        with ring.without("B"):
            ring.until(Step.MID)
        ring.lose("C")

    land_slowly(ring, "BCD", sweep_late)
    ring.bring_back("C")
    ring.settle()
    assert_settled(ring, {*SPREAD, *ROW})


def rebuild_lost(ring: RingCluster, step: Step | None) -> None:
    """D loses its disk and is rebuilt, up to that step or altogether; then B does not answer."""
    shutil.rmtree(ring.address("D").uri)
    rebuild(ring)
    ring.until(Step.PREPARE)
    ring.until(step)
    ring.lose("B")


@pytest.mark.parametrize("step", [Step.MID, None])
def test_what_a_disk_had_acknowledged_is_brought_again_when_it_was_lost_and_is_rebuilt(
    tmp_path: Path, step: Step | None
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    land_slowly(ring, "BC", lambda: rebuild_lost(ring, step))
    ring.bring_back("B")
    ring.settle()
    assert_settled(ring, {*SPREAD, *ROW})


@pytest.mark.parametrize("step", [Step.PREPARE, Step.START])
def test_what_a_disk_had_acknowledged_does_not_count_before_it_is_rebuilt(tmp_path: Path, step: Step) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    with pytest.raises(ConsistencyNotReached, match=r"D/d1: .* was lost"):
        land_slowly(ring, "BC", lambda: rebuild_lost(ring, step))
    ring.bring_back("B")
    ring.settle()
    assert_settled(ring, SPREAD)


def test_a_replica_table_is_fenced_from_the_moment_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who reads at an epoch at which the volume was a replica would take the empty table for that one."""
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    join(ring)
    ring.until(Step.PREPARE)
    epoch = ring.metadata.epoch
    monkeypatch.setattr(ring_effects, "drop_before", lambda *_, **__: None)
    ring.round()
    assert open_snapshot(ring.address("X")).fence >= epoch


@pytest.mark.parametrize("away", "ABCD")
def test_what_a_replica_that_goes_has_is_brought_to_those_that_stay(tmp_path: Path, away: str) -> None:
    """Two of three have acknowledged it; one of them goes, and the other one is no quorum of two."""
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    with ring.without(away):
        acknowledged = ring.write_rows(ring.pipeline(), {200 + row: token + 1 for row, token in SPREAD.items()})
    fewer_replicas(ring)
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


def test_what_only_a_datacenter_has_acknowledged_is_kept_when_its_replicas_go(tmp_path: Path) -> None:
    nodes = {name: ("dc1", f"r{index}", (index - 6,)) for index, name in enumerate("ABC")}
    nodes |= {name: ("dc2", f"r{index}", (index + 1,)) for index, name in enumerate("DEF")}
    ring = ringed(tmp_path, nodes, {"dc1": 3, "dc2": 3}, configuration=QUICK)
    with ring.without("ABCD"):
        acknowledged = ring.write_rows(ring.pipeline(dc="dc2"), {100: 0}, "LOCAL_QUORUM")
    administration.change_replication(ring.cluster, "air", {"dc1": 3})
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD), "dc1")
