"""Committing: four outcomes, shared appends, request ids, deadlines, and trouble at random."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from epochlake.metastore.committing import committer as commit
from epochlake.metastore.committing.committer import Committed, Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.committing.offers import encode_proposals
from epochlake.metastore.committing.submissions import Submission
from epochlake.metastore.errors import (
    CommitTimeout,
    CommitUnknown,
    CoordinationUnavailable,
    LogUnreadable,
    Rejected,
    StorageUnavailable,
    WrongCluster,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Position
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    CreateKeyspace,
    Event,
    Initialise,
    PauseChanges,
    RegisterNode,
    ResumeChanges,
    SwitchBalancing,
    TakeSnapshot,
)
from epochlake.metastore.metadata.model import Keyspace, PlacementKind, Volume

from tests.support.committing import (
    BusyLine,
    BusyPlace,
    SteppedLog,
    SteppedQueue,
    Steps,
    TroubledLog,
    assert_sound,
    assert_true_to,
    outcome_of,
)
from tests.support.logs import (
    INITIALISE,
    OFF,
    ON,
    ScriptedLog,
    StartingAt,
    all_of,
    begun,
    chain_to_snapshot,
    committer,
    put,
    toggle,
)


def raising(error: Exception) -> Callable:
    def instead(*_: object) -> None:
        raise error

    return instead


# The four outcomes


def test_a_commit_is_in_the_log_with_what_was_asked() -> None:
    log = begun()
    result = committer(log).commit(OFF, request_id="mine", reason="because")
    assert result == Committed(2, "mine", already=False)
    [_, entry] = log.shared.entries
    assert (entry.decode(), entry.author, entry.reason) == (OFF, "test", "because")
    assert_sound(log.shared.entries)


def test_what_the_metadata_does_not_allow_is_rejected_and_not_logged() -> None:
    log = begun()
    with pytest.raises(Rejected, match="nothing-to-do"):
        committer(log).commit(ON)
    assert len(log.shared.entries) == 1


def test_the_second_beginning_is_rejected() -> None:
    log = InMemoryLog()
    assert committer(log).commit(INITIALISE).epoch == 1
    with pytest.raises(Rejected, match="already-initialised"):
        committer(InMemoryLog(log.shared)).commit(INITIALISE)


class NoLock(LocalQueue):
    """A line whose lock somebody else has, for ever."""

    def acquire(self, timeout: float, *_: object) -> bool:
        time.sleep(timeout)
        return False


class NoZooKeeper(LocalQueue):
    def acquire(self, timeout: float, *_: object) -> bool:
        raise CoordinationUnavailable("nobody answers.")


@pytest.mark.parametrize(
    ("queue", "said"), [(NoLock(), r"\. Is ZooKeeper up\? Try"), (NoZooKeeper(), r": nobody answers\. Try")]
)
def test_without_the_lock_a_commit_times_out_in_its_time_says_why_and_nothing_is_logged(
    queue: LocalQueue, said: str
) -> None:
    log = begun()
    started = time.monotonic()
    with pytest.raises(CommitTimeout, match=said):
        Committer(Follower(log), queue, author="a").commit(OFF, timeout=0.3)
    assert 0.3 <= time.monotonic() - started < 15
    assert len(log.shared.entries) == 1


def test_without_the_lock_a_request_that_is_in_the_log_is_not_called_a_timeout() -> None:
    log = begun()
    result = Committer(Follower(log), NoLock(), author="a").commit(toggle, request_id="request-1", timeout=0.05)
    assert result == Committed(1, "request-1", already=True)


def test_commits_go_on_when_zookeeper_is_back() -> None:
    class Back(LocalQueue):
        refusals = 3

        def acquire(self, timeout: float, *_: object) -> bool:
            self.refusals -= 1
            if self.refusals >= 0:
                raise CoordinationUnavailable("away")
            return super().acquire(timeout, *_)

    assert Committer(Follower(begun()), Back(), author="a").commit(OFF, timeout=10).epoch == 2


def test_an_append_of_which_nothing_can_be_known_is_called_unknown_and_the_same_request_id_tells() -> None:
    shared = begun().shared
    log = ScriptedLog(InMemoryLog(shared))
    commits = committer(log)
    commits.commit(OFF)

    def lands_without_answer(append: Callable, entries: list) -> None:
        append(entries)
        log.plan("read", *[raising(StorageUnavailable("gone"))] * 1000)
        raise AppendUncertain("no answer")

    log.plan("append", lands_without_answer)
    with pytest.raises(CommitUnknown, match="same request id") as unknown:
        commits.commit(toggle, request_id="mine", timeout=0.3)
    assert unknown.value.request_id == "mine"
    assert committer(InMemoryLog(shared)).commit(toggle, request_id="mine") == Committed(3, "mine", already=True)
    assert len(shared.entries) == 3


def test_a_failed_append_that_certainly_did_not_land_is_reported_as_it_is() -> None:
    log = ScriptedLog(begun())
    log.plan("append", raising(AppendFailed("disk full")))
    commits = committer(log)
    with pytest.raises(AppendFailed, match="disk full"):
        commits.commit(OFF, request_id="mine")
    assert commits.commit(OFF, request_id="mine").epoch == 2


def test_a_log_that_cannot_be_trusted_is_reported_and_nothing_is_written() -> None:
    log = begun(3)
    del log.shared.entries[1]
    with pytest.raises(LogUnreadable, match="epoch 2 is missing"):
        committer(log).commit(OFF, timeout=5)
    assert len(log.shared.entries) == 2


# Storage and conflicts


def test_storage_that_comes_back_in_time_costs_only_time() -> None:
    log = ScriptedLog(begun())
    log.plan("read", *[raising(StorageUnavailable("gone"))] * 2)
    assert committer(log).commit(OFF, timeout=10).epoch == 2


def test_storage_that_stays_away_times_out_each_commit_in_its_own_time() -> None:
    log = ScriptedLog(begun())
    log.plan("read", *[raising(StorageUnavailable("gone"))] * 1000)
    commits = committer(log)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(outcome_of, lambda: commits.commit(OFF, timeout=4.0))
        time.sleep(0.1)
        follower = pool.submit(outcome_of, lambda: commits.commit(OFF, timeout=0.5))
        assert isinstance(follower.result(), CommitTimeout)
        # It came while the leader was at it, and is in line for the next turn.
        assert not leader.done()
        assert isinstance(leader.result(), CommitTimeout)
    assert "gone" in str(leader.result())


def test_a_conflict_is_planned_again_on_what_came_in_between() -> None:
    shared = begun().shared
    log = ScriptedLog(InMemoryLog(shared))
    seen: list[int] = []

    def planner(metadata: ClusterMetadata) -> Event:
        seen.append(metadata.epoch)
        return toggle(metadata)

    def overtaken(append: Callable, entries: list) -> None:
        committer(InMemoryLog(shared)).commit(toggle)
        append(entries)

    log.plan("append", overtaken, overtaken)
    assert committer(log).commit(planner).epoch == 4
    assert seen == [1, 2, 3]
    assert [entry.decode() for entry in shared.entries[1:]] == [OFF, ON, OFF]


def test_a_conflict_can_turn_a_valid_event_into_a_rejected_one() -> None:
    shared = begun().shared
    log = ScriptedLog(InMemoryLog(shared))

    def overtaken(append: Callable, entries: list) -> None:
        committer(InMemoryLog(shared)).commit(OFF, request_id="faster")
        append(entries)

    log.plan("append", overtaken)
    with pytest.raises(Rejected, match="nothing-to-do"):
        committer(log).commit(OFF, request_id="slower")
    assert [entry.request_id for entry in shared.entries] == ["request-1", "faster"]


def test_who_is_always_overtaken_times_out() -> None:
    log = ScriptedLog(begun())
    log.plan("append", *[raising(AppendConflict("others were faster"))] * 100_000)
    with pytest.raises(CommitTimeout, match="others were faster"):
        committer(log).commit(OFF, timeout=0.2)


def test_a_planner_that_reads_the_log_itself_does_not_let_its_event_overtake_what_it_found() -> None:
    shared = begun().shared
    follower = Follower(InMemoryLog(shared))

    def planner(metadata: ClusterMetadata) -> Event:
        if len(shared.entries) == 1:
            committer(InMemoryLog(shared)).commit(PauseChanges(why="in between"))
            follower.catch_up()
        return PauseChanges(why="planned") if metadata.switches.changes else ResumeChanges()

    assert Committer(follower, LocalQueue(), author="a").commit(planner).epoch == 3
    assert_sound(shared.entries)
    assert shared.entries[2].decode() == ResumeChanges()


def test_an_error_of_a_planner_is_its_callers_alone() -> None:
    log = begun()
    commits = committer(log)
    with pytest.raises(ZeroDivisionError):
        commits.commit(lambda metadata: 1 // 0)  # type: ignore[arg-type, return-value]
    assert commits.commit(OFF).epoch == 2


def test_an_error_that_nobody_expected_leaves_nothing_waiting() -> None:
    class Refusing(LocalQueue):
        refuses = True

        def acquire(self, timeout: float, *_: object) -> bool:
            if self.refuses:
                raise WrongCluster("this is another cluster's ZooKeeper")
            return super().acquire(timeout, *_)

    log, queue = begun(), Refusing()
    commits = Committer(Follower(log), queue, author="a")
    with pytest.raises(WrongCluster):
        commits.commit(OFF, request_id="refused")
    queue.refuses = False
    commits.commit(OFF, request_id="accepted")
    assert all_of(log) == [(1, "request-1"), (2, "accepted")]


def test_an_interrupt_leaves_nothing_waiting_and_gives_the_lock_back() -> None:
    class Interrupted(LocalQueue):
        interrupts = True

        def acquire(self, timeout: float, *_: object) -> bool:
            if self.interrupts:
                self.interrupts = False
                super().acquire(timeout, *_)
                raise KeyboardInterrupt
            return super().acquire(timeout, *_)

    log = begun()
    commits = Committer(Follower(log), Interrupted(), author="a")
    with pytest.raises(KeyboardInterrupt):
        commits.commit(OFF, request_id="interrupted")
    commits.commit(OFF, request_id="next", timeout=2)
    assert all_of(log) == [(1, "request-1"), (2, "next")]


def test_an_error_after_the_append_does_not_hide_that_it_is_committed() -> None:
    class Mute(LocalQueue):
        def publish(self, position: Position) -> None:
            raise OSError("no head")

    log = ScriptedLog(begun())
    log.plan("compact_if_due", raising(StorageUnavailable("cannot compact")))
    assert committer(log).commit(OFF).epoch == 2
    assert Committer(Follower(begun()), Mute(), author="a").commit(OFF).epoch == 2


def test_where_the_log_ends_is_announced_once_and_before_others_hear_of_it() -> None:
    steps = Steps()
    queue = SteppedQueue(steps)
    Committer(Follower(SteppedLog(begun(), steps)), queue, author="a").commit(OFF)
    assert [position.epoch for position in queue.published] == [2]
    assert steps.done.index("append") < steps.done.index("publish") < steps.done.index("release")


def test_where_the_log_ends_is_announced_before_those_are_answered_for_whom_it_was_appended() -> None:
    class Asked(SteppedQueue):
        def claim(self) -> list[bytes]:
            super().claim()
            return [encode_proposals([Submission(OFF, "theirs", "other", "", 0.0, None)])] if not self.published else []

        def seconds_in_line(self) -> float:
            return 10.0

    steps = Steps()
    Committer(Follower(begun()), Asked(steps), author="a").commit(toggle)
    assert steps.done.index("publish") < steps.done.index("answer")


def test_what_is_found_in_the_log_is_announced_as_who_has_appended_it_may_be_gone() -> None:
    queue = SteppedQueue(Steps(), lock=[False])
    result = Committer(Follower(begun()), queue, author="a").commit(toggle, request_id="request-1", timeout=0.05)
    assert result.already
    assert [position.epoch for position in queue.published] == [1]


# What is asked


@pytest.mark.parametrize(
    "wrong",
    [
        SwitchBalancing(on="yes"),  # type: ignore[arg-type]
        PauseChanges(why=None),  # type: ignore[arg-type]
        PauseChanges(why=object()),  # type: ignore[arg-type]
        PauseChanges(why=2**70),  # type: ignore[arg-type]
        Initialise(name="x", cluster_id="y", product_version=1),  # type: ignore[arg-type]
        RegisterNode("r", 1, "n", "h", "dc", "rack", (Volume(1, "d1", "/d1", 1.5),)),  # type: ignore[arg-type]
        RegisterNode("r", 1, "n", "h", "dc", "rack", ({"volume_id": 1},)),  # type: ignore[arg-type]
    ],
)
def test_an_event_that_could_not_be_read_back_is_rejected_before_it_stops_every_follower(wrong: Event) -> None:
    log = begun()
    commits = committer(log)
    for what in (wrong, lambda metadata: wrong):
        with pytest.raises(Rejected, match="invalid-event"):
            commits.commit(what)
    assert committer(InMemoryLog(log.shared)).commit(OFF).epoch == 2


def test_what_is_checked_is_what_followers_will_read() -> None:
    log = begun()
    commits = committer(log)
    volumes = [Volume(1, "d1", "/d1", 10)]
    commits.commit(RegisterNode("r", 1, "n", "h", "dc", "rack", volumes))  # type: ignore[arg-type]
    assert commits._follower.metadata == Follower(InMemoryLog(log.shared)).catch_up()
    assert isinstance(commits._follower.metadata.directory.nodes[1].volumes, tuple)


def test_a_planner_has_to_return_an_event() -> None:
    with pytest.raises(Rejected, match="invalid-event"):
        committer(begun()).commit(lambda metadata: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("field", ["request_id", "reason"])
def test_text_that_the_log_cannot_keep_is_rejected(field: str) -> None:
    log = begun()
    with pytest.raises(Rejected, match="invalid-text"):
        committer(log).commit(OFF, **{field: "\udcff"})
    assert len(log.shared.entries) == 1


def test_the_expected_epoch_is_the_one_right_before() -> None:
    log = begun(3)
    commits = committer(log)
    for expected in (2, 4):
        with pytest.raises(Rejected, match="epoch-moved"):
            commits.commit(toggle, expect_epoch=expected)
    assert commits.commit(toggle, expect_epoch=3).epoch == 4


def test_of_two_that_expect_the_same_epoch_one_is_rejected_also_after_a_conflict() -> None:
    shared = begun().shared
    log = ScriptedLog(InMemoryLog(shared))

    def overtaken(append: Callable, entries: list) -> None:
        committer(InMemoryLog(shared)).commit(toggle, expect_epoch=1)
        append(entries)

    log.plan("append", overtaken)
    with pytest.raises(Rejected, match="epoch-moved"):
        committer(log).commit(toggle, expect_epoch=1)
    assert len(shared.entries) == 2


# Request ids


def test_a_request_id_is_committed_once_whoever_submits_it_again() -> None:
    log = begun()
    commits = committer(log)
    assert commits.commit(OFF, request_id="mine") == Committed(2, "mine")
    assert commits.commit(OFF, request_id="mine") == Committed(2, "mine", already=True)
    other = committer(InMemoryLog(log.shared))
    assert other.commit(OFF, request_id="mine", expect_epoch=1) == Committed(2, "mine", already=True)
    assert len(log.shared.entries) == 2


def test_request_ids_from_before_a_snapshot_are_known() -> None:
    log = InMemoryLog()
    put(log, chain_to_snapshot(6))
    later = Committer(Follower(InMemoryLog(log.shared), StartingAt(log.shared.entries)), LocalQueue(), author="a")
    assert later.commit(toggle, request_id="request-3") == Committed(3, "request-3", already=True)
    assert later.commit(toggle, request_id="new") == Committed(7, "new")


def test_looking_up_old_request_ids_does_not_fork_the_log() -> None:
    log = InMemoryLog()
    put(log, chain_to_snapshot(6))
    stepped, start = ScriptedLog(InMemoryLog(log.shared)), StartingAt(log.shared.entries)

    def overtaken(request_epochs: Callable, up_to: int) -> dict[str, int]:
        committer(InMemoryLog(log.shared)).commit(toggle)
        found: dict[str, int] = request_epochs(up_to)
        return found

    stepped.plan("request_epochs", overtaken)
    assert Committer(Follower(stepped, start), LocalQueue(), author="a").commit(toggle).epoch == 8
    assert_sound(log.shared.entries)


# Sharing appends


class Gate(LocalQueue):
    """A line whose lock is had when the test opens it."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.asked = threading.Event()

    def acquire(self, timeout: float, *_: object) -> bool:
        self.asked.set()
        return self.opened.wait(timeout) and super().acquire(timeout, *_)


def in_one_batch(
    log: ScriptedLog, submissions: list[dict], when_over: dict[int, Callable[[], None]] | None = None, **options: int
) -> list:
    """The outcomes of submissions that all wait when the lock is had, in the order in which they came.

    What `when_over` names for the place of a submission is called when its outcome is there.
    """
    queue = Gate()
    commits = Committer(Follower(log), queue, author="test", **options)
    with ThreadPoolExecutor(len(submissions)) as pool:
        waiting = []
        for number, submission in enumerate(submissions, 1):
            waiting.append(pool.submit(outcome_of, lambda s=submission: commits.commit(**s)))
            if (over := (when_over or {}).get(number - 1)) is not None:
                waiting[-1].add_done_callback(lambda _, over=over: over())
            while len(commits._waiting) < number:
                time.sleep(0.001)
        queue.opened.set()
        return [future.result() for future in waiting]


def test_threads_share_one_append_and_each_is_checked_after_the_one_before_it() -> None:
    log = ScriptedLog(begun())
    outcomes = in_one_batch(
        log,
        [
            {"what": OFF, "request_id": "a"},
            {"what": OFF, "request_id": "b"},
            {"what": PauseChanges(why="x"), "request_id": "c"},
            {"what": ON, "request_id": "d"},
            {"what": ResumeChanges(), "request_id": "e"},
            {"what": toggle, "request_id": "f"},
            {"what": toggle, "request_id": "a"},
        ],
    )
    assert log.calls.count("append") == 1
    assert [getattr(outcome, "epoch", None) or outcome.code for outcome in outcomes] == [
        2,
        "nothing-to-do",
        3,
        "changes-paused",
        4,
        5,
        2,
    ]
    assert outcomes[6] == Committed(2, "a", already=True)
    assert_sound(log.log.shared.entries)


def test_a_rejection_that_rests_on_an_entry_ahead_of_it_is_told_only_if_that_entry_is_committed() -> None:
    log = ScriptedLog(begun())
    log.plan("append", raising(AppendFailed("disk full")))
    outcomes = in_one_batch(log, [{"what": OFF, "request_id": "a"}, {"what": OFF, "request_id": "b"}])
    assert [type(outcome) for outcome in outcomes] == [AppendFailed, AppendFailed]


def test_an_entry_ahead_that_is_overtaken_is_planned_again_with_those_that_rest_on_it() -> None:
    shared = begun().shared
    log = ScriptedLog(InMemoryLog(shared))

    def overtaken(append: Callable, entries: list) -> None:
        committer(InMemoryLog(shared)).commit(PauseChanges(why="x"))
        append(entries)

    log.plan("append", overtaken)
    outcomes = in_one_batch(log, [{"what": PauseChanges(why="y")}, {"what": ResumeChanges(), "request_id": "r"}])
    # Without the conflict both would have been committed; after it the first is rejected, and the second still right.
    assert isinstance(outcomes[0], Rejected)
    assert outcomes[1] == Committed(3, "r")


def test_a_snapshot_is_asked_for_when_it_is_due_in_the_same_append() -> None:
    log = ScriptedLog(begun())
    in_one_batch(log, [{"what": toggle} for _ in range(5)], snapshot_every=5)
    kinds = [entry.event for entry in log.log.shared.entries]
    assert kinds == ["Initialise", *["SwitchBalancing"] * 5, TakeSnapshot.kind()]
    assert log.calls.count("append") == 1


def test_more_than_a_batch_takes_several_appends_and_nobody_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "BATCH", 4)
    log = ScriptedLog(begun())
    outcomes = in_one_batch(log, [{"what": toggle} for _ in range(10)])
    assert sorted(outcome.epoch for outcome in outcomes) == list(range(2, 12))
    assert 3 <= log.calls.count("append") <= 10


# Deadlines of several threads


def test_a_follower_whose_time_is_over_before_the_leaders_times_out_in_its_own_time() -> None:
    queue = Gate()
    commits = Committer(Follower(begun()), queue, author="a")
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(outcome_of, lambda: commits.commit(OFF, request_id="leader", timeout=20))
        queue.asked.wait()
        started = time.monotonic()
        follower = outcome_of(lambda: commits.commit(OFF, request_id="follower", timeout=0.3))
        assert 0.3 <= time.monotonic() - started < 15
        assert isinstance(follower, CommitTimeout)
        queue.opened.set()
        assert leader.result() == Committed(2, "leader")


def test_a_follower_that_has_more_time_than_the_leader_takes_over() -> None:
    queue = Gate()
    commits = Committer(Follower(begun()), queue, author="a")
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(outcome_of, lambda: commits.commit(OFF, request_id="leader", timeout=0.3))
        queue.asked.wait()
        follower = pool.submit(outcome_of, lambda: commits.commit(OFF, request_id="follower", timeout=20))
        assert isinstance(leader.result(), CommitTimeout)
        queue.opened.set()
        assert follower.result() == Committed(2, "follower")


@pytest.mark.parametrize(("patience", "held_for", "expected"), [(60, 4, Committed), (0.2, 60, CommitUnknown)])
def test_a_follower_waits_beyond_its_time_for_an_append_that_is_under_way_but_not_for_ever(
    patience: float, held_for: float, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "GRACE_SECONDS", patience)
    log, told = ScriptedLog(begun()), threading.Event()
    # The append lasts longer than the follower has time; where it is not waited for, until the follower was told.
    log.plan("append", lambda append, entries: (told.wait(held_for), append(entries)))

    outcomes = in_one_batch(
        log,
        [{"what": OFF, "timeout": 90}, {"what": toggle, "timeout": 3, "request_id": "late"}],
        when_over={1: told.set},
    )
    assert isinstance(outcomes[0], Committed)
    assert isinstance(outcomes[1], expected)
    assert log.log.shared.entries[2].request_id == "late"


# At random


def test_committers_in_trouble_tell_the_truth_about_every_request(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", 0.0)
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.001)
    line = BusyLine(random.Random(seed))
    shared = begun().shared
    keyspace = Keyspace("k", PlacementKind.TABLETS, "NetworkTopologyStrategy", {})
    choices: list[Callable] = [
        lambda: toggle,
        lambda: SwitchBalancing(on=line.chance(0.5)),
        lambda: PauseChanges(why="x"),
        lambda: ResumeChanges(),
        lambda: CreateKeyspace(keyspace),
    ]
    processes = [
        Committer(Follower(TroubledLog(shared, line)), BusyPlace(line), author=f"p{number}") for number in range(4)
    ]
    outcomes: dict[str, list] = {}

    def work(number: int) -> None:
        dice = random.Random(seed + number)
        for turn in range(250):
            if turn >= 25 and line.answered:  # mostly some are by then
                break
            request_id = f"{number}-{turn}"
            what = dice.choice(choices)()
            timeout = dice.choice([0.01, 0.05, 30.0])
            tries = outcomes.setdefault(request_id, [])
            tries.append(outcome_of(lambda: processes[number % 4].commit(what, request_id=request_id, timeout=timeout)))  # noqa: B023
            if isinstance(tries[-1], CommitUnknown | CommitTimeout) and dice.random() < 0.5:
                again = processes[dice.randrange(4)]
                tries.append(outcome_of(lambda: again.commit(what, request_id=request_id, timeout=30)))  # noqa: B023

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line.settle()
    assert_sound(shared.entries)
    assert Follower(InMemoryLog(shared)).catch_up().epoch == len(shared.entries)
    for request_id, tries in outcomes.items():
        assert_true_to(tries[-1], request_id, shared.entries)
    kinds = {type(outcome).__name__ for tries in outcomes.values() for outcome in tries}
    assert {"Committed", "Rejected", "CommitTimeout"} <= kinds
    assert len(outcomes) >= 16 * 25
    assert line.claimed > 0
    assert line.answered > 0
