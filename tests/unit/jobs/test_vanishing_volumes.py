"""A volume that fails between any two accesses of a piece of work: with two good replicas the work goes on.

Each test counts the accesses to one of three replicas, then lets the volume fail right before each of them in turn.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.replicas.reachability import probe
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.upkeep.vacuum import vacuum
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.errors import StorageUnavailable

from tests.support.clusters import FOUR, SmallCluster, assert_at_rest, placed, without_zookeeper
from tests.support.hanging import Fault, come_back, vanish
from tests.support.slices import sliced
from tests.support.storages import STORAGE

QUICK = Configuration(pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0))
TABLE = "air.flights"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    return placed(tmp_path, FOUR, "ABC", configuration=QUICK)


def device_error() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def words_of_a_library() -> None:
    raise DeltaError("Kernel error: something that nobody has seen before")


def at_each_access(volume: Path, work: Callable[[], None], happen: Callable[[], None], step: int = 1) -> int:
    """Do the work again and again; each time the volume fails `step` accesses later. At how many accesses it has."""
    failed = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(volume, happen)
            fault.at = failed
            fault.install(patch)
            try:
                work()
            finally:
                come_back(volume)
        if fault.accesses <= failed:
            return failed
        failed += step


@pytest.mark.parametrize("how", ["vanishes", "device", "library"])
def test_a_quorum_write_succeeds(table: SmallCluster, how: str) -> None:
    volume = table.directory / "B"
    happen = {"vanishes": lambda: vanish(volume), "device": device_error, "library": words_of_a_library}[how]
    written: list[str] = []

    def write() -> None:
        written.append(table.write(table.pipeline()))

    assert at_each_access(volume, write, happen) > 5
    assert set(written) <= table.read(table.pipeline())
    assert repair(table.cluster, TABLE).complete
    assert set(written) <= table.files_on("B")


def test_a_quorum_read_succeeds(table: SmallCluster) -> None:
    volume = table.directory / "B"
    written = table.write(table.pipeline())

    def read() -> None:
        assert written in table.read(table.pipeline())

    assert at_each_access(volume, read, lambda: vanish(volume)) > 1


@sliced()
@pytest.mark.parametrize("node", ["A", "B", "X"])
def test_rounds_of_the_coordinator_go_on(table: SmallCluster, node: str) -> None:
    """A is given up, X comes: whoever fails, the tablet arrives or goes back, and no round ends with a raw error."""
    volume = table.directory / node
    acknowledged = [table.write(table.pipeline())]
    going, coming = "A", "X"

    def move() -> None:
        nonlocal going, coming
        table.start(going, coming)
        for _ in range(14):
            table.round()
            come_back(volume)
        table.settle()
        holders = {
            table.metadata.directory.node_of_volume[v].name
            for v in table.metadata.placements(table.table.table_id).placement(0).writes
        }
        if coming in holders:
            going, coming = coming, going

    assert at_each_access(volume, move, lambda: vanish(volume), step=25) > 25
    assert_at_rest(table, acknowledged)


def test_repair_and_verification_say_what_stands_in_the_way(table: SmallCluster) -> None:
    volume = table.directory / "B"
    table.write(table.pipeline())

    def look() -> None:
        repair(table.cluster, TABLE)
        verify_replicas(STORAGE, table.metadata, table.cluster.ledger)
        probe(STORAGE, table.metadata, table.metadata.directory.volumes.values())

    assert at_each_access(volume, look, lambda: vanish(volume)) > 5


def test_vacuum_says_what_stands_in_the_way(table: SmallCluster) -> None:
    volume = table.directory / "B"
    table.write(table.pipeline())
    outcomes: list[str] = []

    def clean() -> None:
        try:
            vacuum(table.address("B"), 1 << 60)
            outcomes.append("done")
        except StorageUnavailable as error:
            outcomes.append(str(error))

    assert at_each_access(volume, clean, lambda: vanish(volume)) > 3
    assert outcomes[-1] == "done"
    assert not any("Kernel error" in said for said in outcomes)
