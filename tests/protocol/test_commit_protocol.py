"""The commit protocol with real processes, a real ZooKeeper and a real log (design, section 5).

Afterwards, whatever happened: no gap, no fork, each request id at most once; what was reported as committed is in the
log with that content, what was reported as rejected or timed out is not; every request that was begun by a process that
lives was reported.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.configuration import ClusterSettings, Configuration, LogSettings, ZooKeeperSettings
from epochlake.metastore.coordination.head import Head, read_head
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.errors import CommitTimeout, CommitUnknown, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.events import FinishRequest, StartRequest
from epochlake.metastore.metastore import init_cluster

from tests.support.committing import assert_sound
from tests.support.committing_process import (
    AFTER_APPEND,
    AFTER_CLAIM,
    AFTER_HEAD,
    BEFORE_APPEND,
    BEFORE_LOCK,
    TAKEN,
    Process,
    Task,
    a_keyspace,
)
from tests.support.histories import register
from tests.support.slices import some
from tests.support.storages import STORAGE
from tests.support.zookeeper import Ensemble

SESSION_SECONDS = 1.0
POINTS = [BEFORE_LOCK, BEFORE_APPEND, AFTER_APPEND, AFTER_HEAD]
LANDED = {AFTER_APPEND, AFTER_HEAD}

Starter = Callable[..., Process]


def configured(root: Path, connect: str) -> Configuration:
    return Configuration(
        root=str(root),
        cluster=ClusterSettings(name="test"),
        zookeeper=ZooKeeperSettings(connect=connect, session_timeout_seconds=SESSION_SECONDS),
        log=LogSettings(commit_timeout_seconds=240),
    )


def begin(configuration: Configuration) -> Configuration:
    """A cluster with one node and the keyspace `taken`."""
    init_cluster(configuration)
    with Cluster(configuration) as cluster:
        cluster.commit(lambda metadata: register(metadata, "n1"))
        cluster.commit(StartRequest("join-n1"))
        cluster.commit(FinishRequest("join-n1"))
        cluster.commit(a_keyspace(TAKEN))
    return configuration


@pytest.fixture
def configuration(tmp_path: Path, zookeeper: str) -> Configuration:
    return begin(configured(tmp_path / "root", zookeeper))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts processes that commit, and ends them after the test."""
    with ExitStack() as stack:

        def start(name: str, configuration: Configuration, **options: object) -> Process:
            report = str(tmp_path / f"{name}.jsonl")
            return stack.enter_context(Process(Task(name, configuration, report, **options)))  # type: ignore[arg-type]

        yield start


def entries_of(configuration: Configuration) -> list[Entry]:
    return DeltaLog(STORAGE, f"{configuration.root}/log").read(0)


def assert_reports_are_true(
    configuration: Configuration, *processes: Process, dead: tuple[Process, ...] = ()
) -> Counter:
    """What the module's docstring says; how often there was which outcome."""
    entries = entries_of(configuration)
    assert_sound(entries)
    assert Follower(DeltaLog(STORAGE, f"{configuration.root}/log")).catch_up().epoch == len(entries)
    by_request = {entry.request_id: entry for entry in entries}
    outcomes: Counter[str] = Counter()
    for process in processes + dead:
        begun, ended = process.begun(), process.ended()
        assert set(ended) <= set(begun)
        assert len(begun) == len(set(begun))
        if process not in dead:
            assert set(begun) == set(ended)
            assert len(begun) == process.task.requests * process.task.threads
        for request_id, line in ended.items():
            outcomes[line.outcome] += 1
            if line.outcome == "Committed":
                assert by_request[request_id].epoch == line.epoch
                assert by_request[request_id].decode() == a_keyspace(request_id)
            else:
                assert line.outcome in ("Rejected", "CommitTimeout"), line
                assert request_id not in by_request, line
    return outcomes


def assert_goes_on(configuration: Configuration) -> None:
    """The next one commits, and the head is the log's tail again."""
    with Cluster(configuration) as cluster:
        cluster.commit(a_keyspace("afterwards"), timeout=120)
        tail = entries_of(configuration)[-1]
        assert tail.decode() == a_keyspace("afterwards")
        assert read_head(cluster.coordination()) == Head(tail.epoch, tail.state_id, tail.hash)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_has_committed_or_not_and_the_others_go_on(
    configuration: Configuration, start: Starter, point: str
) -> None:
    # Alone: in company somebody may have taken what it had offered, and committed it for the dead one.
    killed = start("killed", configuration, requests=6, point=point, nth=3, signal=signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    other = start("other", configuration, requests=8, threads=2)
    assert other.wait() == 0
    outcomes = assert_reports_are_true(configuration, other, dead=(killed,))
    assert outcomes == {"Committed": 2 + 14, "Rejected": 2}
    [open_request] = set(killed.begun()) - set(killed.ended())
    landed = open_request in {entry.request_id for entry in entries_of(configuration)}
    assert landed == (point in LANDED)
    assert_goes_on(configuration)


@pytest.mark.timing
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_paused_until_its_session_has_expired_tells_the_truth_when_it_goes_on(
    configuration: Configuration, start: Starter, point: str
) -> None:
    paused = start("paused", configuration, requests=6, point=point, nth=3, signal=signal.SIGSTOP)
    paused.wait_stopped()
    other = start("other", configuration, requests=8)
    # It gets the lock only when the session of the paused one has expired.
    assert other.wait() == 0
    time.sleep(SESSION_SECONDS)
    paused.go_on()
    assert paused.wait() == 0
    outcomes = assert_reports_are_true(configuration, paused, other)
    assert outcomes == {"Committed": 6 + 7, "Rejected": 1}
    assert_goes_on(configuration)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_process_that_has_taken_the_proposals_of_others_and_does_not_append_them_harms_nobody(
    configuration: Configuration, start: Starter, end: signal.Signals
) -> None:
    others = [start(f"other-{number}", configuration, requests=30, threads=3) for number in range(2)]
    claimer = start("claimer", configuration, requests=60, threads=2, point=AFTER_CLAIM, signal=end)
    if end is signal.SIGKILL:
        assert claimer.wait() == -signal.SIGKILL
    else:
        claimer.wait_stopped()
    assert [other.wait() for other in others] == [0, 0]
    if end is signal.SIGSTOP:
        claimer.go_on()
        assert claimer.wait() == 0
        assert_reports_are_true(configuration, claimer, *others)
    else:
        assert_reports_are_true(configuration, *others, dead=(claimer,))
    assert_goes_on(configuration)


def test_eight_processes_that_commit_at_once_share_appends_and_lose_nothing(
    configuration: Configuration, start: Starter
) -> None:
    processes = [start(f"p{number}", configuration, requests=14, threads=4) for number in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    outcomes = assert_reports_are_true(configuration, *processes)
    assert outcomes == {"Committed": 8 * 4 * 12, "Rejected": 8 * 4 * 2}
    versions = len(entries_of(configuration)) / DeltaLog(STORAGE, f"{configuration.root}/log")._open().version()
    assert versions > 1.5, "epochs for each version of the log"
    assert_goes_on(configuration)


def test_processes_with_one_thread_each_share_appends_as_well(configuration: Configuration, start: Starter) -> None:
    processes = [start(f"p{number}", configuration, requests=21) for number in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    outcomes = assert_reports_are_true(configuration, *processes)
    assert outcomes == {"Committed": 8 * 18, "Rejected": 8 * 3}
    versions = len(entries_of(configuration)) / DeltaLog(STORAGE, f"{configuration.root}/log")._open().version()
    assert versions > 1.5, "epochs for each version of the log"
    assert_goes_on(configuration)


def test_a_member_of_the_ensemble_that_dies_and_comes_back_costs_only_time(
    tmp_path: Path, ensemble: Ensemble, start: Starter
) -> None:
    configuration = begin(configured(tmp_path / "root", ensemble.connect_string))
    requests = some(30, 16)
    options = {"requests": requests, "threads": 2, "pause_seconds": 0.1}
    processes = [start(f"p{number}", configuration, **options) for number in range(4)]
    eventually_begun(processes[0], 5)
    leader = ensemble.leader_index()
    ensemble.kill(leader)
    time.sleep(1)
    ensemble.restart(leader)
    assert [process.wait() for process in processes] == [0] * 4
    outcomes = assert_reports_are_true(configuration, *processes)
    rejected = requests // 7
    assert outcomes == {"Committed": 4 * 2 * (requests - rejected), "Rejected": 4 * 2 * rejected}
    assert_goes_on(configuration)


def eventually_begun(process: Process, requests: int) -> None:
    deadline = time.monotonic() + 300
    while len(process.begun()) < requests:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timing
def test_without_zookeeper_commits_wait_and_time_out_and_reading_goes_on(tmp_path: Path, server: Ensemble) -> None:
    configuration = begin(configured(tmp_path / "root", server.connect_string))
    with Cluster(configuration) as connected, Cluster(configuration) as late:
        connected.commit(a_keyspace("before"))
        server.kill()
        for cluster in (connected, late):
            started = time.monotonic()
            with pytest.raises(CommitTimeout):
                cluster.commit(a_keyspace("nobody"), timeout=1.5)
            assert 1.4 <= time.monotonic() - started < 60
            with pytest.raises(CommitUnknown):  # another process may have offered it before
                cluster.commit(a_keyspace("nobody"), request_id="nobody", timeout=0.1)
            started = time.monotonic()
            assert cluster.catch_up().schema.keyspaces.keys() == {TAKEN, "before"}
            assert time.monotonic() - started < 30
        with Cluster(configuration) as opened:
            assert opened.metadata.epoch == connected.metadata.epoch
        committed = []
        waiting = [
            threading.Thread(target=lambda c=cluster, n=name: committed.append(c.commit(a_keyspace(n), timeout=240)))
            for cluster, name in ((connected, "one"), (late, "two"))
        ]
        for thread in waiting:
            thread.start()
        time.sleep(0.5)
        server.restart()
        for thread in waiting:
            thread.join()
        assert {result.epoch for result in committed} == {7, 8}
        assert "nobody" not in {entry.request_id for entry in entries_of(configuration)}


@pytest.mark.timing
def test_a_commit_that_is_interrupted_while_it_waits_is_not_committed_and_blocks_nobody(
    configuration: Configuration,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Cluster(configuration) as holder, Cluster(configuration) as interrupted, Cluster(configuration) as third:
        interrupted.commit(a_keyspace("before"))
        lock = CommitLock(holder.coordination())
        assert lock.acquire(60)
        proper = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                interrupted.commit(a_keyspace("interrupted"), timeout=120)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, proper)
        lock.release()
        third.commit(a_keyspace("third"), timeout=120)
        interrupted.commit(a_keyspace("after"), timeout=120)
        assert third.catch_up().schema.keyspaces.keys() == {TAKEN, "before", "third", "after"}


def test_of_two_that_initialise_at_once_one_wins_and_one_is_rejected(tmp_path: Path, start: Starter) -> None:
    roots = tuple(str(tmp_path / f"root-{number}") for number in range(6))
    configuration = Configuration(root=roots[0])
    processes = [start(name, configuration, requests=len(roots), roots=roots) for name in ("left", "right")]
    assert [process.wait() for process in processes] == [0, 0]
    for number, root in enumerate(roots):
        pair = [process.ended()[f"{process.task.name}-{number}"] for process in processes]
        assert sorted(line.outcome for line in pair) == ["Committed", "Rejected"]
        [loser] = [line for line in pair if line.outcome == "Rejected"]
        assert loser.text == "already-initialised"
        [entry] = DeltaLog(STORAGE, f"{root}/log").read(0)
        [winner] = [process.task.name for process, line in zip(processes, pair, strict=True) if line.epoch]
        assert Follower(DeltaLog(STORAGE, f"{root}/log")).catch_up().identity.name == winner
        assert entry.epoch == 1


def test_an_initialisation_that_was_killed_half_way_can_be_run_again(tmp_path: Path) -> None:
    configuration = Configuration(root=str(tmp_path / "root"))
    create_log_table(STORAGE, f"{configuration.root}/log")
    assert init_cluster(configuration).epoch == 1
    with pytest.raises(Rejected, match="already-initialised"):
        init_cluster(msgspec.structs.replace(configuration))
