"""What is told of a request is what the log says of it: late appends, open offers, full disks, ids that come again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
    Rejected,
    StorageUnavailable,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log import delta
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    Event,
    Initialise,
    PauseChanges,
    ResumeChanges,
    SwitchBalancing,
)

from tests.support.committing import Claimer, SteppedLog, SteppedQueue, Steps, assert_sound, outcome_of
from tests.support.logs import (
    INITIALISE,
    ScriptedLog,
    StartingAt,
    begun,
    chain,
    chain_to_snapshot,
    committer,
    put,
    toggle,
)
from tests.support.storages import STORAGE

OFF = SwitchBalancing(on=False)


def raising(error: Exception) -> Callable:
    def instead(*_: object, **__: object) -> None:
        raise error

    return instead


def request_ids(log: InMemoryLog) -> list[str]:
    return [entry.request_id for entry in log.shared.entries]


def offered(event: Event, request_id: str = "owned") -> bytes:
    return encode_proposals([Submission(event, request_id, "owner", "", 0.0, None)])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", -1.0)
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.0)


class OwnerGivesUp(LocalQueue):
    """A line with one offer, whose owner can take it for lost: it fences the log and finds nothing there."""

    def __init__(self, log: InMemoryLog) -> None:
        super().__init__()
        self._log = log
        self._offers = [offered(OFF)]

    def claim(self) -> list[bytes]:
        offers, self._offers = self._offers, []
        return offers

    def give_up(self) -> None:
        owner = InMemoryLog(self._log.shared)
        owner.fence()
        assert "owned" not in [entry.request_id for entry in owner.read(0)]


# An append is against what was read before the claim


def test_a_planner_that_reads_the_log_does_not_let_a_claimed_offer_land_after_its_owner_gave_up() -> None:
    log = begun()
    queue, follower, planned = OwnerGivesUp(log), Follower(log), []

    def planner(metadata: ClusterMetadata) -> Event:
        planned.append(metadata.epoch)
        if len(planned) == 1:
            queue.give_up()
            follower.catch_up()
        return PauseChanges(why="planned")

    assert Committer(follower, queue, author="a").commit(planner, request_id="planner") == Committed(2, "planner")
    assert request_ids(log) == ["request-1", "planner"]


def test_an_offer_that_was_claimed_is_not_tried_again_after_a_conflict() -> None:
    log = ScriptedLog(begun())
    queue = OwnerGivesUp(log.log)  # type: ignore[arg-type]

    def overtaken(append: Callable, entries: list) -> None:
        queue.give_up()
        append(entries)

    log.plan("append", overtaken)
    result = Committer(Follower(log), queue, author="a").commit(PauseChanges(why="x"), request_id="mine")
    assert result == Committed(2, "mine")
    assert request_ids(log.log) == ["request-1", "mine"]  # type: ignore[arg-type]
    assert log.calls.count("append") == 2


def test_offers_are_claimed_only_after_the_log_was_read() -> None:
    log = ScriptedLog(begun())

    class Line(OwnerGivesUp):
        def claim(self) -> list[bytes]:
            offers = super().claim()
            assert log.calls[-1] == "read", "what is appended has to be against a read from before the claim"
            if offers:
                self.give_up()
            return offers

    queue = Line(log.log)  # type: ignore[arg-type]
    result = Committer(Follower(log), queue, author="a").commit(PauseChanges(why="x"), request_id="mine")
    assert result == Committed(2, "mine")
    assert request_ids(log.log) == ["request-1", "mine"]  # type: ignore[arg-type]


# An offer that may still be taken


def test_a_retry_is_not_told_a_failure_while_an_offer_of_the_first_try_may_still_be_taken() -> None:
    steps = Steps()
    queue = SteppedQueue(steps, lock=(False,), silent_withdrawals=10**6)
    log = begun()
    commits = Committer(Follower(SteppedLog(log, steps)), queue, author="a")
    commits._offers.worthwhile = True
    resume = ResumeChanges()
    with pytest.raises(CommitUnknown):
        commits.commit(resume, request_id="resume", timeout=0.01)
    assert queue.offers, "the offer is still there"
    # Now the lock is had, and the change is not valid: but somebody may take the offer when it is.
    queue._lock = [True]
    with pytest.raises(CommitUnknown, match="offered"):
        commits.commit(resume, request_id="resume", timeout=0.05)
    committer(InMemoryLog(log.shared)).commit(PauseChanges(why="an operator"))
    queue._silent = 0
    # Taken back at last, so that the log tells: it is valid now, and the caller asks for it now.
    assert commits.commit(resume, request_id="resume", timeout=5).epoch == 3
    assert not queue.offers


def test_an_offer_whose_withdrawal_failed_is_taken_back_before_a_rejection_is_told() -> None:
    steps = Steps()
    queue = SteppedQueue(steps, lock=(False, True), silent_withdrawals=3)
    log = begun()
    commits = Committer(Follower(SteppedLog(log, steps)), queue, author="a")
    commits._offers.worthwhile = True
    with pytest.raises(CommitUnknown):
        commits.commit(ResumeChanges(), request_id="resume", timeout=0.0)
    with pytest.raises(Rejected, match="not-paused"):
        commits.commit(ResumeChanges(), request_id="resume", timeout=20)
    assert not queue.offers, "nobody can take what was told to be rejected"
    assert request_ids(log) == ["request-1"]


def test_an_offer_that_a_dead_process_has_left_does_not_land_after_its_retry_was_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", 60.0)
    log = begun()

    class Line(LocalQueue):
        left = (offered(PauseChanges(why="an operator"), "pause"), offered(ResumeChanges(), "resume"))

        def claim(self) -> list[bytes]:
            left, self.left = self.left, ()
            return list(left)

    queue = Line()
    with pytest.raises(Rejected, match="not-paused"):
        Committer(Follower(log), queue, author="a").commit(ResumeChanges(), request_id="resume")
    assert queue.left == (), "nobody else can take it any more"
    assert request_ids(log) == ["request-1", "pause"]


def test_what_others_have_appended_right_before_the_fence_is_told_as_committed_by_the_call_that_offered_it() -> None:
    log, steps = begun(), Steps()

    class Line(SteppedQueue):
        def acquire(self, timeout: float, *_: object) -> bool:
            if self.offers:
                claimer.claim()
            return super().acquire(timeout, *_)

    class Log(SteppedLog):
        def fence(self) -> None:
            claimer.append()
            super().fence()

    queue = Line(steps)
    claimer = Claimer(log.shared, queue, own=[PauseChanges(why="an operator")])
    commits = Committer(Follower(Log(log, steps)), queue, author="a")
    commits._offers.worthwhile = True
    assert commits.commit(ResumeChanges(), request_id="resume", timeout=20) == Committed(3, "resume", already=False)


class NeverHad(LocalQueue):
    """A line whose lock is never had, in which other processes have left offers."""

    def __init__(self, *left: bytes) -> None:
        super().__init__()
        self.left = list(left)

    def acquire(self, timeout: float, *_: object) -> bool:
        time.sleep(min(timeout, 0.001))
        return False

    def drop(self, holds: Callable[[bytes], bool]) -> bool:
        self.left = [offer for offer in self.left if not holds(offer)]
        return True


def test_who_never_had_the_lock_is_told_a_failure_only_when_no_earlier_try_can_land_any_more() -> None:
    log = begun()
    claimer = InMemoryLog(log.shared)
    claimer.read(0)  # it may have claimed another offer of the first try
    others = offered(PauseChanges(why="an operator"), "others")
    queue = NeverHad(offered(OFF, "mine"), others)
    with pytest.raises(CommitTimeout):
        Committer(Follower(log), queue, author="a").commit(OFF, request_id="mine", timeout=0.01)
    assert queue.left == [others], "nobody can take what was told to have failed, and all else stays"
    with pytest.raises(AppendConflict):
        claimer.append(chain(2)[1:])
    assert request_ids(log) == ["request-1"]


class Silent(NeverHad):
    """The same line while ZooKeeper does not answer."""

    def drop(self, holds: Callable[[bytes], bool]) -> bool:
        return False


def test_while_nobody_says_what_is_in_line_a_request_that_may_have_been_tried_before_has_no_known_outcome() -> None:
    log = begun()
    queue = Silent(offered(OFF, "mine"))
    commits = Committer(Follower(log), queue, author="a")
    with pytest.raises(CommitUnknown, match="an earlier try is in line"):
        commits.commit(OFF, request_id="mine", timeout=0.01)
    with pytest.raises(CommitTimeout):
        commits.commit(OFF, timeout=0.01)  # an id that was made up for this call
    line = SteppedQueue(Steps())
    line.offers[1] = queue.left[0]
    claimer = Claimer(log.shared, line)
    claimer.claim()  # somebody finds what the earlier try has left
    claimer.append()
    assert commits.commit(OFF, request_id="mine", timeout=0.01) == Committed(2, "mine", already=True)


def test_what_nobody_can_have_tried_before_is_not_looked_for_and_costs_no_fence() -> None:
    log, offer, steps = begun(), offered(OFF, "mine"), Steps()
    queue = NeverHad(offer)
    commits = Committer(Follower(SteppedLog(log, steps)), queue, author="a")
    with pytest.raises(CommitTimeout):
        commits.commit(OFF, timeout=0.01)  # an id that was made up for this call
    with pytest.raises(CommitTimeout):
        commits.commit(toggle, request_id="mine", timeout=0.01)  # planners are not offered
    assert queue.left == [offer]
    assert "fence" not in steps.done


def test_a_rejection_is_not_told_of_what_somebody_has_taken_from_an_earlier_try() -> None:
    """He stands still with it, the process that had offered it is dead, and it is asked for again."""
    log, line, steps = begun(), SteppedQueue(Steps()), Steps()
    line.offers[1] = offered(ResumeChanges(), "mine")
    late = Claimer(log.shared, line, [PauseChanges("x")])
    late.claim()
    commits = Committer(Follower(SteppedLog(log, steps)), LocalQueue(), author="a")
    with pytest.raises(Rejected, match="not-paused"):
        commits.commit(ResumeChanges(), request_id="mine")
    assert steps.done.count("fence") == 1
    late.append()
    assert "mine" not in request_ids(log)
    # Of an id that was made up for the call there is no earlier try, and planners are never offered.
    with pytest.raises(Rejected, match="not-paused"):
        commits.commit(ResumeChanges())
    with pytest.raises(Rejected, match="not-paused"):
        commits.commit(lambda _: ResumeChanges(), request_id="planned")
    assert steps.done.count("fence") == 1


# Answers of those who have committed what was offered


class AnsweredInLine(SteppedQueue):
    """A line in which somebody else commits what is offered, and tells so."""

    def __init__(self, shared: SharedEntries, *, tells: bool = True) -> None:
        super().__init__(Steps())
        self._claimer = Claimer(shared, self)
        self._shared = shared
        self._tells = tells

    def acquire(self, timeout: float, *_: object) -> bool:
        if not self.offers:
            return super().acquire(timeout, *_)
        self._claimer.claim()
        self._claimer.append()
        if self._tells:
            self.told = {self._tickets: {entry.request_id: entry.epoch for entry in self._shared.entries}}
        return False


@pytest.mark.parametrize("tells", [True, False])
def test_who_is_told_needs_neither_the_lock_nor_the_log_and_who_is_not_told_asks_the_log(tells: bool) -> None:
    log = begun()
    queue, stepped = AnsweredInLine(log.shared, tells=tells), Steps()
    commits = Committer(Follower(SteppedLog(log, stepped)), queue, author="a")
    commits._offers.worthwhile = True
    assert commits.commit(OFF, request_id="mine", timeout=2) == Committed(2, "mine", already=False)
    assert (commits.told_epoch, "read" in stepped.done) == ((2, False) if tells else (0, True))
    # It goes on from what the others have committed.
    assert commits.commit(toggle, timeout=20).epoch == 3
    assert_sound(log.shared.entries)


def test_an_answer_for_an_earlier_try_says_nothing_of_another_change_with_its_request_id() -> None:
    log = begun()
    queue = SteppedQueue(Steps(), lock=(False,), silent_withdrawals=1)
    commits = Committer(Follower(log), queue, author="a")
    commits._offers.worthwhile = True
    with pytest.raises(CommitUnknown):
        commits.commit(OFF, request_id="mine", timeout=0.0)
    claimer = Claimer(log.shared, queue)
    claimer.claim()
    claimer.append()
    queue._lock, queue.told = [True], {1: {"mine": 2}}
    with pytest.raises(Rejected, match="request-id-used"):
        commits.commit(PauseChanges(why="x"), request_id="mine", timeout=20)
    assert request_ids(log) == ["request-1", "mine"]


def test_only_what_this_append_has_committed_is_told_to_its_owner() -> None:
    log = begun()
    told: list[dict[str, int]] = []

    class Line(LocalQueue):
        def claim(self) -> list[bytes]:
            on = SwitchBalancing(on=True)
            return [offered(ResumeChanges(), "resume"), offered(on, "on"), offered(OFF, "request-1")]

        def answer(self, epochs: Sequence[dict[str, int]]) -> None:
            told.extend(epochs)

    assert Committer(Follower(log), Line(), author="a").commit(OFF, request_id="mine").epoch == 2
    assert told == [{}, {"on": 3}, {}]


# What is in the log is committed, whatever fails meanwhile


@pytest.mark.parametrize("fails", ["append", "fence", "read"])
def test_a_request_that_is_in_the_log_is_committed_while_the_disk_is_full_or_the_root_is_away(fails: str) -> None:
    log = ScriptedLog(begun())
    commits = committer(log)
    assert commits.commit(OFF, request_id="mine").epoch == 2
    errors = {"append": AppendFailed("disk full"), "fence": AppendUncertain("no"), "read": StorageUnavailable("away")}
    log.plan(fails, *[raising(errors[fails])] * 100)
    assert commits.commit(OFF, request_id="mine", timeout=0.05) == Committed(2, "mine", already=True)
    assert commits.commit(toggle, request_id="mine", timeout=0.05) == Committed(2, "mine", already=True)


def test_an_append_that_landed_is_committed_also_when_the_fence_behind_it_fails() -> None:
    log = ScriptedLog(begun())

    def lands_without_answer(append: Callable, entries: list) -> None:
        append(entries)
        time.sleep(1.0)  # until the caller's time is over
        raise AppendUncertain("no answer")

    log.plan("append", lands_without_answer)
    log.plan("fence", *[raising(AppendUncertain("disk full"))] * 100)
    assert committer(log).commit(OFF, request_id="mine", timeout=1.0).epoch == 2


def test_without_the_log_nothing_is_said_of_a_request_that_may_have_been_tried_before() -> None:
    log = ScriptedLog(begun())
    commits = committer(log)
    log.plan("read", *[raising(StorageUnavailable("away"))] * 10_000)
    with pytest.raises(CommitUnknown, match="earlier try"):
        commits.commit(OFF, request_id="mine", timeout=0.05)
    with pytest.raises(CommitTimeout):
        commits.commit(OFF, timeout=0.05)


def test_a_write_that_landed_and_then_failed_is_not_called_a_failed_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    first, second = chain(2)
    put(DeltaLog(STORAGE, uri), [first])
    write = delta.append_files

    def lands_and_fails(*arguments: object, **options: object) -> None:
        write(*arguments, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(delta, "append_files", lands_and_fails)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    with pytest.raises(AppendUncertain):
        log.append([second])
    assert committer(DeltaLog(STORAGE, uri)).commit(PauseChanges(why="x"), request_id="mine").epoch == 3
    assert [entry.epoch for entry in DeltaLog(STORAGE, uri).read(0)] == [1, 2, 3]


def test_a_write_to_a_store_without_a_directory_that_fails_is_never_called_a_failed_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    monkeypatch.setattr(delta, "append_files", raising(OSError("reset")))
    monkeypatch.setattr(delta.places, "local_path", lambda uri: None)
    with pytest.raises(AppendUncertain):
        log.append(chain(1))


# A request id that comes again


def test_a_request_id_with_another_change_is_rejected_and_both_are_named() -> None:
    log = begun()
    commits = committer(log)
    commits.commit(OFF, request_id="mine")
    other = committer(InMemoryLog(log.shared))
    for again in (commits, other):
        with pytest.raises(Rejected, match=r"request-id-used.*epoch 2.*SwitchBalancing.*PauseChanges") as rejected:
            again.commit(PauseChanges(why="x"), request_id="mine")
        assert rejected.value.code == "request-id-used"
        assert again.commit(OFF, request_id="mine") == Committed(2, "mine", already=True)
    assert len(log.shared.entries) == 2


def test_a_planner_of_the_same_request_that_would_plan_something_else_now_is_done_already() -> None:
    log = begun()
    assert committer(log).commit(toggle, request_id="mine", asked="switch balancing") == Committed(2, "mine")
    again = committer(InMemoryLog(log.shared))
    assert again.commit(toggle, request_id="mine", asked="switch balancing") == Committed(2, "mine", already=True)
    assert again.commit(toggle, request_id="mine") == Committed(2, "mine", already=True)
    with pytest.raises(Rejected, match=r"request-id-used.*switch balancing.*drop keyspace air"):
        again.commit(toggle, request_id="mine", asked="drop keyspace air")


def test_ids_that_are_chosen_anew_for_each_try_do_not_make_another_change_of_what_is_asked_in_words() -> None:
    log = InMemoryLog()
    begin = [Initialise(name="x", cluster_id=str(number), product_version="1") for number in range(2)]
    assert committer(log).commit(begin[0], request_id="mine", asked="initialise x").epoch == 1
    again = committer(InMemoryLog(log.shared)).commit(begin[1], request_id="mine", asked="initialise x")
    assert again == Committed(1, "mine", already=True)


def test_what_was_asked_is_kept_in_the_log_and_changes_no_event() -> None:
    log = begun()
    pause = PauseChanges(why="x")
    committer(log).commit(pause, request_id="mine", asked='pause "changes"')
    entry = log.shared.entries[1]
    assert entry.asked == 'pause "changes"'
    assert entry.decode() == pause
    assert_sound(log.shared.entries)
    assert Follower(InMemoryLog(log.shared)).catch_up().switches.changes is False


def test_two_changes_with_one_request_id_in_one_append_are_told_apart() -> None:
    log = begun()

    class Line(LocalQueue):
        def claim(self) -> list[bytes]:
            return [offered(PauseChanges(why="x"), "mine"), offered(OFF, "mine")]

    assert Committer(Follower(log), Line(), author="a").commit(OFF, request_id="mine") == Committed(2, "mine")
    assert request_ids(log) == ["request-1", "mine"]


def test_a_request_id_from_before_a_snapshot_with_another_change_is_rejected(tmp_path: Path) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    entries = chain_to_snapshot(6)
    put(DeltaLog(STORAGE, uri), entries)
    later = Committer(Follower(DeltaLog(STORAGE, uri), StartingAt(entries)), LocalQueue(), author="a")
    assert later.commit(SwitchBalancing(on=True), request_id="request-3") == Committed(3, "request-3", already=True)
    with pytest.raises(Rejected, match="request-id-used"):
        later.commit(INITIALISE, request_id="request-3")
    assert later.commit(toggle, request_id="new").epoch == 7


def test_nothing_is_asked_of_zookeeper_for_a_request_that_is_known_to_be_done() -> None:
    class Away(LocalQueue):
        away = False

        def acquire(self, timeout: float, *_: object) -> bool:
            if self.away:
                raise CoordinationUnavailable("away")
            return super().acquire(timeout, *_)

    queue = Away()
    commits = Committer(Follower(begun()), queue, author="a")
    commits.commit(OFF, request_id="mine")
    queue.away = True
    assert commits.commit(OFF, request_id="mine", timeout=60) == Committed(2, "mine", already=True)
    assert isinstance(outcome_of(lambda: commits.commit(toggle, timeout=0.01)), CommitTimeout)


def test_who_finds_its_request_in_the_log_announces_what_it_is_told() -> None:
    """Who has appended it may have died before he announced it: a log that goes back then is noticed by nobody."""
    log = begun()
    Committer(Follower(log), LocalQueue(), author="who has died").commit(OFF, request_id="mine")
    queue, follower = SteppedQueue(Steps()), Follower(InMemoryLog(log.shared))
    follower.catch_up()
    again = Committer(follower, queue, author="again")
    assert again.commit(OFF, request_id="mine") == Committed(2, "mine", already=True)
    assert [position.epoch for position in queue.published] == [2]


def test_a_conflict_is_still_a_conflict() -> None:
    log = begun()
    handle = InMemoryLog(log.shared)
    handle.read(0)
    log.fence()
    with pytest.raises(AppendConflict):
        handle.append(chain(2)[1:])
