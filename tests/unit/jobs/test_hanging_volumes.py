"""A volume that hangs is unreachable like any other, and everything else goes on: nobody waits for it for ever.

The places that hang are named pipes: opening one blocks a thread in the kernel, below Python, Arrow and delta-rs alike.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.jobs.views.status import status
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.delta_commits import commit_uri
from epochlake.metastore.storage import deadlines
from epochlake.placement.consistency import BarrierLevel
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import FOUR, SmallCluster, assert_at_rest, placed, without_zookeeper
from tests.support.hanging import hanging
from tests.support.storages import STORAGE

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1),
    coordinator=CoordinatorSettings(backoff_seconds=0.0, barrier_level=BarrierLevel.QUORUM),
)
TABLE = "air.flights"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    return placed(tmp_path, FOUR, "ABC", configuration=QUICK)


def next_commit(table: SmallCluster, node: str) -> str:
    """The commit that whoever opens the replica table looks for."""
    address = table.address(node)
    uri = commit_uri(address.uri, open_snapshot(address).version + 1)
    return str(Path(uri).relative_to(table.directory / node))


@pytest.mark.parametrize("where", ["marker", "log"])
def test_a_quorum_is_written_and_read_and_all_is_refused_by_name(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    pipeline = table.pipeline()
    before = table.write(pipeline)
    name = MARKER_FILE if where == "marker" else next_commit(table, "B")
    with hanging(monkeypatch, table.directory / "B", name):
        written = table.write(pipeline)
        assert {before, written} <= table.read(pipeline)
        with pytest.raises(ConsistencyNotReached, match="has not answered for"):
            table.write(pipeline, "ALL")
        assert [late.place for late in table.cluster.storage.deadlines.late_places()] == [str(table.directory / "B")]
    assert table.write(pipeline, "ALL") in table.read(pipeline, "ALL")
    assert repair(table.cluster, TABLE).complete
    assert table.files_on("A") == table.files_on("B") == table.files_on("C")


def test_a_late_volume_costs_a_process_the_deadline_once_and_not_each_time(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(monkeypatch, table.directory / "B", MARKER_FILE):
        for _ in range(5):
            table.write(table.pipeline())
        assert deadlines.left_behind() <= 3


def test_the_coordinator_moves_a_tablet_although_another_replica_hangs(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged = [table.write(table.pipeline())]
    with hanging(monkeypatch, table.directory / "B", next_commit(table, "B")):
        table.start("A", "X")
        table.settle()
        acknowledged.append(table.write(table.pipeline()))
    assert_at_rest(table, acknowledged)


@pytest.mark.parametrize("stage", [Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING])
def test_a_pending_replica_that_hangs_is_given_up_when_its_node_is_removed(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    acknowledged = [table.write(table.pipeline())]
    table.start("A", "X")
    table.until(stage)
    with hanging(monkeypatch, table.directory / "X", MARKER_FILE):
        for _ in range(3):
            table.round()
        acknowledged.append(table.write(table.pipeline()))
        administration.remove_node(table.cluster, "X")
        table.settle()
    assert_at_rest(table, acknowledged)


def test_a_node_that_hangs_can_be_removed_while_it_hangs(table: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = [table.write(table.pipeline())]
    with hanging(monkeypatch, table.directory / "A", MARKER_FILE):
        acknowledged.append(table.write(table.pipeline()))
        administration.remove_node(table.cluster, "A")
        table.settle()
        acknowledged.append(table.write(table.pipeline(), "ALL"))
    assert_at_rest(table, acknowledged)


def test_status_repair_and_verification_say_who_does_not_answer(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.write(table.pipeline())
    with hanging(monkeypatch, table.directory / "B", next_commit(table, "B")):
        report = verify_replicas(STORAGE, table.metadata, table.cluster.ledger)
        assert any("has not answered for" in finding.detail for finding in report.unreachable)
        done = repair(table.cluster, TABLE)
        assert not done.complete
        document = status(table.cluster)
        assert [volume.place for volume in document.late_volumes] == [str(table.directory / "B")]
        assert document.threads_left_behind == deadlines.left_behind()


def test_a_commit_that_lands_after_its_deadline_was_not_counted_and_does_no_harm(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence was raised meanwhile by everybody else: what wakes up commits as a process would that was paused."""
    pipeline = table.pipeline()
    with hanging(monkeypatch, table.directory / "B", next_commit(table, "B")):
        with pytest.raises(ConsistencyNotReached):
            table.write(pipeline, "ALL")
        table.start("A", "X")
        table.settle()
        written = table.write(table.pipeline())
    assert repair(table.cluster, TABLE).complete
    for node in "BCX":
        assert written in table.files_on(node)


def test_an_hour_of_pause_of_the_process_itself_makes_nothing_late(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic
    jumped = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: clock() + next(jumped))
    assert open_snapshot(table.address("B")).fence >= 0
    assert table.cluster.storage.deadlines.late_places() == []
