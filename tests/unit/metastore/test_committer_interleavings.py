"""Every place where another process may act while one commits: what is reported is what the log says, for ever.

The owner of a proposal offers it, waits for the lock, takes the offer back and commits or gives up. A claimer takes the
offer before any step of the owner, and appends what it has prepared before any later step, or after the owner has its
outcome. All pairs of steps are tried; nothing here is random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from epochlake.metastore.committing import committer as commit
from epochlake.metastore.committing.committer import Committed, Committer
from epochlake.metastore.errors import CommitTimeout, CommitUnknown, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendConflict
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries
from epochlake.metastore.metadata.events import Event, PauseChanges, ResumeChanges, SwitchBalancing

from tests.support.committing import (
    Claimer,
    Outcome,
    SteppedLog,
    SteppedQueue,
    Steps,
    assert_sound,
    assert_true_to,
    outcome_of,
)
from tests.support.logs import chain, put

MANY_STEPS = 40
VALID = SwitchBalancing(on=False)
VALID_ONLY_AFTER_THE_CLAIMERS = ResumeChanges()
FOR_EVER = 10**6


class Clock:
    """The committer's clock: it goes on a little with every look at it, so that a busy machine changes no outcome."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.0005
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CONTENDED_SECONDS", -1.0)
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(commit, "time", clock)
    return clock


class Race:
    """One owner that commits `event`, on a log that has begun, and what others do meanwhile."""

    def __init__(self, event: Event, *, lock: Sequence[bool], silent: int = 0, timeout: float = 30.0) -> None:
        self.event = event
        self.timeout = timeout
        self.shared = SharedEntries()
        put(InMemoryLog(self.shared), chain(1))
        self.steps = Steps()
        self.queue = SteppedQueue(self.steps, lock=lock, silent_withdrawals=silent)
        self.log = SteppedLog(InMemoryLog(self.shared), self.steps)
        self.owner = Committer(Follower(self.log), self.queue, author="owner")
        self.owner._offers.worthwhile = True  # so that it offers at once

    def before(self, step: int, action: Callable[[], None]) -> None:
        self.steps.before.setdefault(step, []).append(action)

    def run(self) -> Outcome:
        """The owner's outcome, after which everybody else does what they still had in mind."""
        outcome = outcome_of(lambda: self.owner.commit(self.event, request_id="owned", timeout=self.timeout))
        self.steps.finish()
        assert_sound(self.shared.entries)
        assert_true_to(outcome, "owned", self.shared.entries)
        return outcome


def races(run: Callable[[int, int], tuple[Outcome, Race]]) -> Iterator[tuple[Outcome, Race]]:
    """Let the claimer claim before each step, and append before each later one, until steps run out."""
    for claims in range(MANY_STEPS):
        for appends in range(claims, MANY_STEPS):
            outcome, race = run(claims, appends)
            yield outcome, race
            if appends > len(race.steps.done):
                break
        if claims > len(race.steps.done):
            return


LOCKS = {"had": (True,), "not had": (False,), "had the second time": (False, True)}
EVENTS = {"valid": VALID, "valid only after the claimer's": VALID_ONLY_AFTER_THE_CLAIMERS}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("silent", [0, 1, FOR_EVER], ids=["answers", "one without answer", "no answers"])
def test_a_paused_claimer_never_makes_an_outcome_wrong(event: Event, lock: Sequence[bool], silent: int) -> None:
    seen: set[type] = set()

    def run(claims: int, appends: int) -> tuple[Outcome, Race]:
        patience = 0.0 if lock == (False,) else 0.005 if silent == FOR_EVER else 30.0
        race = Race(event, lock=lock, silent=silent, timeout=patience)
        claimer = Claimer(race.shared, race.queue, own=[PauseChanges(why="claimer")] if event is not VALID else [])
        race.before(claims, claimer.claim)
        race.before(appends, claimer.append)
        return race.run(), race

    for outcome, _ in races(run):
        seen.add(type(outcome))
        if silent == 0:
            assert not isinstance(outcome, CommitUnknown), "the log could have been asked"
    assert Committed in seen
    if silent == 0:
        assert seen - {Committed} <= {Rejected, CommitTimeout}


class LateAppend:
    """An append whose answer was lost, and that lands later if nothing has come in between."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self._wait = wait
        self._kept: list[tuple[InMemoryLog, Sequence[Entry]]] = []

    def keep(self, log: InMemoryLog, entries: Sequence[Entry]) -> None:
        handle = InMemoryLog(log.shared)
        handle._seen = log._seen
        self._kept.append((handle, entries))
        self._wait()

    def land(self) -> None:
        for handle, entries in self._kept:
            with suppress(AppendConflict):
                handle.append(entries)
        self._kept.clear()


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_an_append_without_an_answer_that_lands_late_never_makes_an_outcome_wrong(event: Event) -> None:
    for lands in range(MANY_STEPS):
        for commits in range(lands + 1):
            race, late = Race(event, lock=(True,)), LateAppend()
            other = Claimer(race.shared, race.queue, own=[PauseChanges(why="other")])
            race.log.unanswered = late.keep
            race.before(lands, late.land)
            race.before(commits, other.claim)
            race.before(commits, other.append)
            assert isinstance(race.run(), Committed | Rejected)
        if lands > len(race.steps.done):
            return
    raise AssertionError("the owner does not come to an end")


def test_an_append_without_an_answer_that_lands_after_the_time_is_over_is_not_called_a_timeout(clock: Clock) -> None:
    seen = set()
    for lands in range(MANY_STEPS):
        race, late = Race(VALID, lock=(True,), timeout=1.0), LateAppend(wait=lambda: clock.sleep(2.0))
        race.log.unanswered = late.keep
        race.before(lands, late.land)
        seen.add(type(race.run()))
        if lands > len(race.steps.done):
            break
    assert seen == {Committed, CommitTimeout}


@pytest.mark.parametrize("landed", [True, False])
def test_an_append_without_an_answer_is_read_back_and_committed_once(landed: bool) -> None:
    race = Race(VALID, lock=(True,))
    race.log.unanswered = (lambda log, entries: log.append(entries)) if landed else (lambda *_: None)
    assert race.run() == Committed(2, "owned")
    assert race.steps.done.count("append") == (1 if landed else 2)


def test_what_another_process_has_appended_on_ones_behalf_is_not_called_already_committed() -> None:
    race = Race(VALID, lock=(True,))
    claimer = Claimer(race.shared, race.queue)
    race.before(1, claimer.claim)
    race.before(1, claimer.append)
    assert race.steps.done == []
    assert race.run() == Committed(2, "owned", already=False)
    assert race.shared.entries[1].author == "owner"
