"""Coordinators that are killed between any two of their steps, and two at once: the next one goes on from the log."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings, ZooKeeperSettings
from epochlake.metastore.metadata.model import RequestState
from epochlake.placement.tablets.transitions import Kind

from tests.support import rings
from tests.support.clusters import FOUR, SmallCluster, assert_at_rest, placed, without_zookeeper
from tests.support.killing import run_coordinator, steps_of
from tests.support.rings import RingCluster, assert_settled, ringed
from tests.support.slices import some
from tests.support.zookeeper import Ensemble

KILLS = some(6, 3)
QUICK = Configuration(
    pipeline=PipelineSettings(attempts=5, shared_file_bytes=0),
    coordinator=CoordinatorSettings(backoff_seconds=0.05, streams_per_volume=4),
)


@contextmanager
def writing(cluster: SmallCluster) -> Iterator[list[str]]:
    """Rows are written through one pipeline all the time; the ids that were acknowledged."""
    acknowledged: list[str] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def write() -> None:
        pipeline = cluster.pipeline("writer")
        while not stop.is_set():
            try:
                acknowledged.append(cluster.write(pipeline))
            except BaseException as error:
                failures.append(error)
                return
            stop.wait(0.02)  # the coordinators need the processor more

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()
    assert not failures


@pytest.mark.parametrize("kind", [Kind.MIGRATION, Kind.REBUILD])
def test_a_coordinator_killed_at_any_step_is_followed_by_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, seed: int
) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    leaving, pending = "A", "X"
    cluster.start(leaving, pending, kind)
    steps = steps_of(cluster.cluster.configuration)
    chance = random.Random(seed)
    for step in sorted(chance.sample(range(1, steps + 1), KILLS)):
        leaving, pending = pending, leaving
        cluster.start(leaving, pending, kind)
        with writing(cluster) as written:
            first = run_coordinator(cluster.cluster.configuration, die_at=step)
            first.join(60)
            assert first.exitcode in (-signal.SIGKILL, 0)
            second = run_coordinator(cluster.cluster.configuration)
            second.join(60)
            assert second.exitcode == 0
        acknowledged += written
        assert_at_rest(cluster, acknowledged)
        assert cluster.files_on(leaving) == set(), f"killed at step {step} of {steps}"


def test_of_two_coordinators_one_leads_and_the_other_takes_over_when_it_is_killed_or_stopped(tmp_path: Path) -> None:
    with Ensemble(tmp_path / "zookeeper", size=1) as server:
        settings = ZooKeeperSettings(connect=server.connect_string, session_timeout_seconds=1.0)
        configuration = msgspec.structs.replace(QUICK, zookeeper=settings)
        cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, configuration=configuration)
        try:
            acknowledged = [cluster.write(cluster.pipeline())]
            administration.decommission(cluster.cluster, "A")
            with writing(cluster) as written:
                take_over(cluster, signal.SIGKILL, die_at=9)
                take_over(cluster, signal.SIGSTOP, die_at=16)
            assert_at_rest(cluster, acknowledged + written)
            assert cluster.metadata.node("A").state.value == "left"
        finally:
            cluster.cluster.close()


def test_coordinators_that_are_killed_at_random_carry_out_operations_on_the_ring(tmp_path: Path, seed: int) -> None:
    """Each of them is a process that ZooKeeper elects; rows are written all the time."""
    chance = random.Random(seed)
    with Ensemble(tmp_path / "zookeeper", size=1) as server:
        settings = ZooKeeperSettings(connect=server.connect_string, session_timeout_seconds=1.0)
        configuration = msgspec.structs.replace(QUICK, zookeeper=settings)
        ring = ringed(tmp_path, rings.FOUR, configuration=configuration)
        try:
            acknowledged = set(rings.SPREAD)
            for begin in (rings.join, rings.move, rings.leave):
                request = begin(ring)
                for _ in range(2):
                    doomed = run_coordinator(ring.cluster.configuration, die_at=chance.randint(1, 60), zookeeper=True)
                    acknowledged |= write_until_it_ends(ring, doomed, max(acknowledged) + 1)
                    assert doomed.exitcode in (-signal.SIGKILL, 0)
                last = run_coordinator(ring.cluster.configuration, zookeeper=True)
                acknowledged |= write_until_it_ends(ring, last, max(acknowledged) + 1)
                assert last.exitcode == 0
                assert ring.request(request).state is RequestState.DONE
                assert_settled(ring, acknowledged)
        finally:
            ring.cluster.close()


def write_until_it_ends(ring: RingCluster, process: BaseProcess, first: int) -> set[int]:
    """Write a row after the other, through one pipeline, while a process runs; those that were acknowledged."""
    pipeline = ring.pipeline("writer")
    acknowledged: set[int] = set()
    deadline = time.monotonic() + 300
    while process.is_alive():
        assert time.monotonic() < deadline
        row = first + len(acknowledged)
        acknowledged |= ring.write_rows(pipeline, {row: (row % 16 - 8) * rings.TURN + row})
        time.sleep(0.05)
    process.join()
    return acknowledged


def take_over(cluster: SmallCluster, how: signal.Signals, die_at: int) -> None:
    """A coordinator ends or stops in the middle; another one does all the rest; a stopped one is let go afterwards."""
    configuration = cluster.cluster.configuration
    first = run_coordinator(configuration, die_at=die_at, how=how, zookeeper=True)
    if how is signal.SIGKILL:
        first.join(60)
        assert first.exitcode == -signal.SIGKILL
        return
    assert first.pid is not None
    wait_until_stopped(first.pid)
    with Cluster(configuration) as other:
        report = Coordinator(other).run(True)
    assert report.idle, report.blocked
    before = cluster.metadata.epoch
    os.kill(first.pid, signal.SIGCONT)
    first.join(60)
    assert first.exitcode == 0
    assert cluster.metadata.epoch == before


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 300
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.02)
