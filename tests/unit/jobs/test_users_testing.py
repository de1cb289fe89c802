"""`epochlake.testing`: what is held back lands after its release and never before, and what is broken is broken."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import epochlake
import pytest
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.volumes import MARKER_FILE, read_marker
from epochlake.jobs.testing.rows import COLUMNS, WorldRows, shown
from epochlake.metastore.announcing import announced, live_leases
from epochlake.metastore.configuration import LogSettings, PipelineSettings, StorageSettings
from epochlake.metastore.coordination.election import Candidacy, current_leader
from epochlake.metastore.metadata.model import NodeState
from epochlake.testing import LocalCluster, local_cluster

from tests.support.storages import STORAGE

SHORT = 0.3
"""Seconds in which something that is held does not happen."""
LONG = 60.0


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path) as lake:
        yield lake


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def create(cluster: epochlake.Cluster, name: str, **options: Any) -> int:
    return epochlake.create_keyspace(cluster, name, {"dc1": 3}, **options).epoch


def keyspaces(lake: LocalCluster) -> set[str]:
    """Those that are in the log, as somebody knows it who has just come."""
    with epochlake.open_cluster(lake.configuration) as fresh:
        return set(fresh.metadata.schema.keyspaces)


def write(cluster: epochlake.Cluster, notes: dict[int, str], level: str = "QUORUM") -> None:
    with Gate(cluster, "load") as gate:
        gate.write(WorldRows(notes), gate.planning.table("test.events"), level, None)


def read(cluster: epochlake.Cluster, level: str = "QUORUM") -> dict[int, list[str | None]]:
    with Gate(cluster, "look") as gate:
        return shown(cluster.storage, gate.plan_read(gate.planning.table("test.events"), level))


def replace_by_another(lake: LocalCluster, leaving: str) -> None:
    """A node n4 gets what another one has, which leaves."""
    epochlake.add_node(lake.cluster, "n4", "dc1", "r1", [("d1", str(lake.volume("n4")), None)])
    assert lake.coordinate().idle
    epochlake.decommission(lake.cluster, leaving)
    assert lake.coordinate().idle


@pytest.fixture
def table(lake: LocalCluster) -> str:
    epochlake.create_table(lake.cluster, "test.events", COLUMNS, ["id"], tablets=1)
    return "test.events"


# --- the cluster itself ---------------------------------------------------------------------------------------


def test_a_cluster_has_the_nodes_racks_and_keyspace_that_were_asked_for(tmp_path: Path) -> None:
    with local_cluster(tmp_path, nodes=4, racks=2, replication=2, keyspace="air") as lake:
        members = {node.name: node for node in lake.cluster.metadata.directory.members()}
        assert {name: node.rack for name, node in members.items()} == {"n1": "r1", "n2": "r2", "n3": "r1", "n4": "r2"}
        assert {node.state for node in members.values()} == {NodeState.NORMAL}
        assert keyspaces(lake) == {"air"}
        assert all(lake.volume(name).joinpath(MARKER_FILE).exists() for name in members)
    with local_cluster(tmp_path / "bare", nodes=0, keyspace=None) as bare:
        assert not bare.cluster.metadata.directory.nodes
    with pytest.raises(epochlake.Rejected, match="already"), local_cluster(tmp_path):
        pass


def test_it_starts_neither_spark_nor_zookeeper_nor_needs_the_simulator(tmp_path: Path) -> None:
    program = (
        "import sys; from epochlake.testing import local_cluster\n"
        f"with local_cluster({str(tmp_path)!r}) as lake: lake.coordinate()\n"
        "print({'pyspark', 'greenlet'} & {*sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert ended.stdout.strip() == "set()"
    assert not list((tmp_path / "root").glob("*zookeeper*"))


def test_participants_are_clusters_of_their_own_on_one_log(lake: LocalCluster) -> None:
    job = lake.participant("job")
    assert job is lake.participant("job") is not lake.cluster
    epoch = create(job, "one")
    assert lake.cluster.metadata.epoch < epoch == lake.epoch == lake.cluster.catch_up().epoch
    assert create(lake.cluster, "two") == epoch + 1


def test_participants_that_commit_at_once_each_get_an_epoch(lake: LocalCluster, threads: ThreadPoolExecutor) -> None:
    before = lake.epoch
    jobs = [lake.participant(f"job {number}") for number in range(4)]
    asked = [threads.submit(create, job, f"k{number}_{i}") for number, job in enumerate(jobs) for i in range(3)]
    assert sorted(one.result(LONG) for one in asked) == list(range(before + 1, before + 13))


def test_news_of_a_commit_wake_who_waits_for_them(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    hardly_looks = epochlake.Configuration(log=LogSettings(poll_seconds=10 * LONG))
    with local_cluster(tmp_path, configuration=hardly_looks) as lake:
        job = lake.participant("job")
        waits = threads.submit(job.wait_for_news, job.metadata.epoch, LONG)
        create(lake.cluster, "one")
        assert waits.result(LONG)
        assert "one" in job.metadata.schema.keyspaces


def test_leases_and_elections_work_without_zookeeper(lake: LocalCluster) -> None:
    job = lake.participant("job")
    with announced(job, "nightly-load", "test.events"):
        assert [lease.name for lease in live_leases(lake.cluster)] == ["nightly-load"]
        assert not list((Path(lake.configuration.root) / "leases").glob("*.json"))
    assert not live_leases(lake.cluster)
    first, second = (Candidacy(one.coordination(), name) for one, name in ((job, "a"), (lake.cluster, "b")))
    assert first.acquire(5.0)
    assert not second.acquire(0.1)
    assert current_leader(lake.cluster.coordination()) == "a"
    first.release()
    assert second.acquire(5.0)


def test_leases_end_with_the_participant(lake: LocalCluster) -> None:
    job = lake.participant("job")
    gate = Gate(job, "left behind").__enter__()
    assert live_leases(lake.cluster)
    job.coordination().close()
    assert not live_leases(lake.cluster)
    gate.__exit__(None, None, None)


def test_a_node_that_joins_gets_tablets_from_a_coordinator(lake: LocalCluster, table: str) -> None:
    write(lake.cluster, {1: "one", 2: "two"})
    replace_by_another(lake, "n1")
    assert lake.cluster.catch_up().node("n1").state is NodeState.LEFT
    assert read(lake.cluster, "ALL") == {1: ["one"], 2: ["two"]}


# --- commits that are held, refused and lost --------------------------------------------------------------------


def test_no_held_commit_lands_before_its_release_and_each_does_afterwards(
    lake: LocalCluster, threads: ThreadPoolExecutor
) -> None:
    before, job = lake.epoch, lake.participant("job")
    with lake.hold_commits(job) as held:
        asked = [threads.submit(create, job, f"held{number}") for number in range(3)]
        held.wait_for(3)
        assert create(lake.cluster, "others") == before + 1
        time.sleep(SHORT)
        assert lake.epoch == before + 1
        assert not any(one.done() for one in asked)
        assert job.catch_up().epoch == before + 1, "who commits late still reads"
        held.release()
        assert sorted(one.result(LONG) for one in asked) == [before + 2, before + 3, before + 4]
        assert create(job, "later") == before + 5
    assert keyspaces(lake) == {"test", "others", "held0", "held1", "held2", "later"}


def test_held_commits_are_released_one_by_one(lake: LocalCluster, threads: ThreadPoolExecutor) -> None:
    before, job = lake.epoch, lake.participant("job")
    with lake.hold_commits(job) as held:
        asked: list[Future[int]] = []
        for number in range(3):
            asked.append(threads.submit(create, job, f"held{number}"))
            held.wait_for(number + 1)
        for number in range(3):
            held.release(1)
            assert asked[number].result(LONG) == before + 1 + number
            assert held.waiting == 2 - number
            assert lake.epoch == before + 1 + number
        again = threads.submit(create, job, "again")
        held.wait_for(1)
        assert not again.done()
    assert again.result(LONG) == before + 4


def test_a_held_commit_is_planned_on_what_others_have_committed(
    lake: LocalCluster, threads: ThreadPoolExecutor
) -> None:
    job = lake.participant("job")
    with lake.hold_commits(job) as held:
        asked = threads.submit(create, job, "both")
        held.wait_for()
        create(lake.cluster, "both")
    with pytest.raises(epochlake.Rejected, match="both"):
        asked.result(LONG)


def test_a_commit_that_is_held_too_long_ends_with_a_timeout_and_never_lands(lake: LocalCluster) -> None:
    before, job = lake.epoch, lake.participant("job")
    with lake.hold_commits(job) as held:
        with pytest.raises(epochlake.CommitTimeout, match="'job' were held"):
            create(job, "late", timeout=SHORT)
        with pytest.raises(epochlake.CommitUnknown, match="'job' were held"):
            create(job, "late", timeout=SHORT, request_id="an earlier try may have landed")
        assert held.waiting == 0
    assert lake.epoch == before
    assert create(job, "next") == before + 1


def test_two_holds_both_have_to_end(lake: LocalCluster, threads: ThreadPoolExecutor) -> None:
    before, job = lake.epoch, lake.participant("job")
    with lake.hold_commits(job) as first, lake.hold_commits(job) as second:
        asked = threads.submit(create, job, "held")
        first.wait_for()
        first.release()
        second.wait_for()
        time.sleep(SHORT)
        assert lake.epoch == before
    assert asked.result(LONG) == before + 1


def test_waiting_for_a_commit_that_does_not_come_says_so(lake: LocalCluster) -> None:
    with lake.hold_commits(lake.cluster) as held, pytest.raises(AssertionError, match="0 of 1 commits of 'test'"):
        held.wait_for(timeout=0.05)


def test_a_refused_commit_is_not_in_the_log(lake: LocalCluster) -> None:
    before, job = lake.epoch, lake.participant("job")
    with lake.refuse_commits(job):
        with pytest.raises(epochlake.CommitTimeout, match="refused"):
            create(job, "one")
        with pytest.raises(epochlake.CommitUnknown, match="refused"):
            create(job, "one", request_id="an earlier try may have landed")
        assert create(lake.cluster, "others") == before + 1
    assert create(job, "one") == before + 2


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_commit_is_unknown_and_the_same_request_tells(lake: LocalCluster, landed: bool) -> None:
    before, job = lake.epoch, lake.participant("job")
    with lake.lose_commits(job, landed=landed), pytest.raises(epochlake.CommitUnknown, match="lost"):
        create(job, "one", request_id="the one")
    assert lake.epoch == before + landed
    told = epochlake.create_keyspace(job, "one", {"dc1": 3}, request_id="the one")
    assert (told.epoch, told.already) == (before + 1, landed)


def test_a_rejection_can_be_lost_as_well(lake: LocalCluster) -> None:
    with lake.lose_commits(lake.cluster, landed=True), pytest.raises(epochlake.CommitUnknown):
        create(lake.cluster, "test")


def test_the_innermost_of_refusing_and_losing_counts_and_holding_comes_before(
    lake: LocalCluster, threads: ThreadPoolExecutor
) -> None:
    before, job = lake.epoch, lake.participant("job")
    outer, middle, inner = lake.refuse_commits(job), lake.lose_commits(job, landed=True), lake.refuse_commits(job)
    with outer, middle, inner, pytest.raises(epochlake.CommitTimeout):
        create(job, "one")
    with lake.hold_commits(job) as held:
        asked = threads.submit(create, job, "one")
        held.wait_for()
        with lake.refuse_commits(job):
            held.release()
            with pytest.raises(epochlake.CommitTimeout):
                asked.result(LONG)
    assert lake.epoch == before


def test_a_coordinator_that_is_held_between_two_steps_moves_nothing(lake: LocalCluster, table: str) -> None:
    coordinator = lake.participant("coordinator")
    epochlake.add_node(lake.cluster, "n4", "dc1", "r1", [("d1", str(lake.volume("n4")), None)])
    before = lake.epoch
    with lake.hold_commits(coordinator) as held, ThreadPoolExecutor() as pool:
        runs = pool.submit(lake.coordinate)
        held.wait_for()
        assert lake.cluster.catch_up().node("n4").state is not NodeState.NORMAL
        held.release(1)
        held.wait_for()
        assert lake.epoch == before + 1
        held.release()
        assert runs.result(LONG).idle
    assert lake.cluster.catch_up().node("n4").state is NodeState.NORMAL


# --- news that are held -------------------------------------------------------------------------------------------


def test_who_gets_no_news_sees_no_epoch_before_the_release_and_all_afterwards(
    lake: LocalCluster, threads: ThreadPoolExecutor
) -> None:
    job, before = lake.participant("job"), lake.epoch
    stop = threading.Event()

    def look() -> set[int]:
        seen = set()
        while not stop.is_set():
            seen.add(job.catch_up().epoch)
        return seen

    with lake.hold_news(job):
        looks = threads.submit(look)
        try:
            for number in range(5):
                create(lake.cluster, f"k{number}")
            assert not job.wait_for_news(before, SHORT)
        finally:
            stop.set()
        assert looks.result(LONG) == {before}
        with pytest.raises(epochlake.InvalidRequest):
            job.at(before + 1)
        assert lake.epoch == lake.cluster.metadata.epoch == before + 5
        assert job.log().read(before - 1)[-1].epoch == before
    assert job.metadata.epoch == before + 5


def test_who_gets_no_news_commits_until_others_have(lake: LocalCluster) -> None:
    job, before = lake.participant("job"), lake.epoch
    with lake.hold_news(job):
        assert create(job, "own") == before + 1
        assert create(job, "again") == before + 2
        epochlake.drop_keyspace(lake.cluster, "own")
        # On what it sees it would be rejected: the keyspace is there.
        with pytest.raises(epochlake.CommitTimeout, match="not to see"):
            create(job, "own")
        with pytest.raises(epochlake.CommitUnknown):
            create(job, "own", request_id="named")
        assert lake.epoch == before + 3
    assert create(job, "own") == before + 4


def test_news_are_held_until_the_last_hold_ends(lake: LocalCluster) -> None:
    job, before = lake.participant("job"), lake.epoch
    with lake.hold_news(job):
        with lake.hold_news(job):
            create(lake.cluster, "one")
        assert job.catch_up().epoch == before
    assert job.metadata.epoch == before + 1


def test_a_write_that_was_planned_at_an_old_epoch_waits_at_the_fence_and_is_planned_again(
    lake: LocalCluster, table: str, threads: ThreadPoolExecutor
) -> None:
    job = lake.participant("job")
    with Gate(job, "load") as gate:
        with lake.hold_news(job):
            replace_by_another(lake, "n1")
            planned = gate.epoch
            writes = threads.submit(gate.write, WorldRows({1: "one"}), gate.planning.table(table), "QUORUM", None)
            time.sleep(SHORT)
            assert not writes.done()
            assert gate.epoch == planned < lake.epoch
            assert not read(lake.cluster, "ALL")
        assert writes.result(LONG).epoch == gate.epoch == lake.epoch
    assert read(lake.cluster, "ALL") == {1: ["one"]}


def test_only_participants_of_the_cluster_are_held_back(lake: LocalCluster, tmp_path: Path) -> None:
    holds: list[Callable[[epochlake.Cluster], object]] = [
        lake.hold_commits,
        lake.hold_news,
        lake.refuse_commits,
        lambda other: lake.lose_commits(other, landed=True),
    ]
    with (
        epochlake.open_cluster(lake.configuration) as other,
        local_cluster(tmp_path / "b", nodes=0, keyspace=None) as b,
    ):
        for hold in holds:
            for stranger in (other, b.cluster):
                with pytest.raises(epochlake.InvalidRequest, match="no participant"):
                    hold(stranger)


# --- volumes -----------------------------------------------------------------------------------------------------


QUICK = epochlake.Configuration(
    pipeline=PipelineSettings(attempts=2), storage=StorageSettings(deadline_seconds=1.0, durability="replicas")
)


@pytest.mark.timing
@pytest.mark.parametrize("fault", ["away", "full", "hangs"])
def test_a_quorum_does_without_one_volume_and_all_replicas_do_not(tmp_path: Path, fault: str) -> None:
    with local_cluster(tmp_path, configuration=QUICK) as lake:
        epochlake.create_table(lake.cluster, "test.events", COLUMNS, ["id"], tablets=1)
        with getattr(lake, fault)("n2"):
            write(lake.cluster, {1: "one"})
            assert read(lake.cluster) == {1: ["one"]}
            with pytest.raises(epochlake.ConsistencyNotReached, match="n2"):
                write(lake.cluster, {2: "two"}, "ALL")
        afterwards = lake.participant("afterwards")
        write(afterwards, {3: "three"}, "ALL")
        assert epochlake.repair(afterwards, "test.events").complete
        found = read(afterwards, "ALL")
        found.pop(2, None)  # a write that has failed may have landed
        assert found == {1: ["one"], 3: ["three"]}


def test_a_volume_that_is_away_is_an_empty_directory_and_comes_back_as_it_was(lake: LocalCluster, table: str) -> None:
    write(lake.cluster, {1: "one"})
    volume = lake.volume("n2")
    before = sorted(volume.rglob("*"))
    with lake.away("n2"):
        assert not list(volume.iterdir())
        volume.joinpath("written into the mount point").touch()
    assert sorted(volume.rglob("*")) == before
    assert read(lake.cluster, "ALL") == {1: ["one"]}


def test_a_volume_that_hangs_does_so_for_other_processes_too_and_lets_them_go_on(lake: LocalCluster) -> None:
    marker = lake.volume("n2") / MARKER_FILE
    before = marker.read_bytes()
    program = f"open({str(marker)!r}, 'rb').read()"
    with lake.hangs("n2"):
        other = subprocess.Popen([sys.executable, "-c", program])
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
    assert other.wait(LONG) == 0
    assert marker.read_bytes() == before


def test_a_slow_volume_is_slow_and_answers(lake: LocalCluster) -> None:
    volume = str(lake.volume("n2"))
    with lake.slow("n2", 0.2):
        began = time.monotonic()
        assert read_marker(lake.cluster.storage, volume).node == "n2"
        assert time.monotonic() - began >= 0.2
        assert read_marker(STORAGE, volume).node == "n2"


def test_a_full_volume_has_no_room_and_is_read(lake: LocalCluster) -> None:
    storage, volume = lake.cluster.storage, str(lake.volume("n2"))
    with lake.full("n2"):
        assert read_marker(storage, volume).node == "n2"
        space = storage.space(volume)
        assert space is not None
        assert space.free == 0
        with pytest.raises(epochlake.StorageUnavailable, match="No space"):
            storage.replace_bytes(f"{volume}/file", b"bytes")
        storage.replace_bytes(f"{lake.volume('n3')}/file", b"bytes")
    storage.replace_bytes(f"{volume}/file", b"bytes")


def test_storage_that_was_killed_is_replaced_and_no_row_is_lost(lake: LocalCluster, table: str) -> None:
    write(lake.cluster, {1: "one", 2: "two"})
    lake.kill("n2")
    assert not list(lake.volume("n2").iterdir())
    with pytest.raises(epochlake.ConsistencyNotReached):
        read(lake.cluster, "ALL")
    epochlake.replace_node(lake.cluster, "n2", "n4", [("d1", str(lake.volume("n4")), None)])
    assert lake.coordinate().idle
    assert read(lake.cluster, "ALL") == {1: ["one"], 2: ["two"]}


def test_faults_are_of_nodes_that_are_there(lake: LocalCluster) -> None:
    for fault in (lake.away, lake.full, lake.hangs):
        with pytest.raises(epochlake.Rejected, match="n9"), fault("n9"):
            pass
    with pytest.raises(epochlake.Rejected, match="n9"):
        lake.kill("n9")
