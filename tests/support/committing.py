"""A line in front of an in-memory log, in which whatever other processes may do happens where a test wants it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from epochlake.metastore.committing.batches import Prepared
from epochlake.metastore.committing.offers import decode_proposals
from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.committing.submissions import Committed, Submission
from epochlake.metastore.errors import CommitTimeout, CommitUnknown, CoordinationUnavailable, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Entry, Position, verify_next
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries
from epochlake.metastore.metadata.events import Event


class Steps:
    """Counts what one process does to the log and the line, and runs what others do right before a given step."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.before: dict[int, list[Callable[[], None]]] = {}

    def step(self, name: str) -> None:
        for action in self.before.pop(len(self.done), []):
            action()
        self.done.append(name)

    def finish(self) -> None:
        """Whatever was planned for a step that did not come happens now."""
        for number in sorted(self.before):
            for action in self.before[number]:
                action()
        self.before.clear()


class SteppedLog:
    """A handle on an in-memory log, whose next append can be made to end without an answer."""

    def __init__(self, log: InMemoryLog, steps: Steps) -> None:
        self._log = log
        self._steps = steps
        self.unanswered: Callable[[InMemoryLog, Sequence[Entry]], None] | None = None

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        self._steps.step("read")
        return self._log.read(after, up_to)

    def version(self) -> int | None:
        return self._log.version()

    def entry(self, epoch: int) -> Entry:
        return self._log.entry(epoch)

    def append(self, entries: Sequence[Entry]) -> None:
        self._steps.step("append")
        unanswered, self.unanswered = self.unanswered, None
        if unanswered is None:
            return self._log.append(entries)
        unanswered(self._log, entries)
        raise AppendUncertain("no answer")

    def fence(self) -> None:
        self._steps.step("fence")
        self._log.fence()

    def request_epochs(self, up_to: int) -> dict[str, int]:
        return self._log.request_epochs(up_to)

    def compact_if_due(self) -> bool:
        return False


class SteppedQueue:
    """One process's place in the line; `lock` says how each wait for it ends, the last one for ever."""

    def __init__(self, steps: Steps, *, lock: Iterable[bool] = (True,), silent_withdrawals: int = 0) -> None:
        self._steps = steps
        self._lock = list(lock)
        self._silent = silent_withdrawals
        self.offers: dict[int, bytes] = {}
        self.told: dict[int, dict[str, int]] = {}
        self.published: list[Position] = []
        self._tickets = 0

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        self._steps.step("acquire")
        time.sleep(0 if self._lock[0] else min(timeout, 0.001))
        return self._lock.pop(0) if len(self._lock) > 1 else self._lock[0]

    def release(self) -> None:
        self._steps.step("release")

    def offer(self, proposals: bytes) -> int:
        self._steps.step("offer")
        self._tickets += 1
        self.offers[self._tickets] = proposals
        return self._tickets

    def seconds_in_line(self) -> float:
        return 0.0

    def answer(self, epochs: Sequence[dict[str, int]]) -> None:
        self._steps.step("answer")

    def answers(self) -> dict[int, dict[str, int]]:
        told, self.told = self.told, {}
        return told

    def announced(self) -> None:
        return None

    def withdraw(self, ticket: int) -> bool:
        self._steps.step("withdraw")
        if self._silent > 0:
            self._silent -= 1
            raise CoordinationUnavailable("no answer")
        return self.offers.pop(ticket, None) is not None

    def drop(self, holds: Callable[[bytes], bool]) -> bool:
        """The offers of others are not in this line."""
        return True

    def claim(self) -> list[bytes]:
        self._steps.step("claim")
        return []

    def publish(self, position: Position) -> None:
        self._steps.step("publish")
        self.published.append(position)


class Claimer:
    """Another process that holds the lock, or believes so: it takes what is in line, and appends it when it likes."""

    def __init__(self, shared: SharedEntries, queue: SteppedQueue, own: Sequence[Event] = ()) -> None:
        self._follower = Follower(InMemoryLog(shared))
        self._queue = queue
        self._own = own
        self._prepared: Prepared | None = None

    def claim(self) -> None:
        self._follower.catch_up()
        offers = [self._queue.offers.pop(ticket) for ticket in list(self._queue.offers)]
        own = [
            Submission(event, f"claimer-{number}", "claimer", "", float("inf"), None)
            for number, event in enumerate(self._own)
        ]
        claimed = [submission for data in offers for submission in decode_proposals(data)]
        self._prepared = Prepared(self._follower, [*own, *claimed], 0, "claimer")

    def append(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.entries:
            with suppress(AppendConflict):
                self._follower.log.append(prepared.entries)


class BusyLine:
    """A line that several committers of one test share, each by a place of its own, with offers and random trouble."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.lock = threading.Lock()
        self.guard = threading.Lock()
        self.offers: dict[int, tuple[BusyPlace, bytes]] = {}
        self.tickets = 0
        self.claimed = self.answered = 0
        self._late: list[threading.Timer] = []

    def later(self, action: Callable[[], None]) -> None:
        timer = threading.Timer(0.015, action)
        with self.guard:
            self._late.append(timer)
        timer.start()

    def settle(self) -> None:
        """Wait for everything that comes late."""
        for timer in self._late:
            timer.join()

    def chance(self, probability: float) -> bool:
        with self.guard:
            return self.dice.random() < probability


class BusyPlace:
    """A process's place in a `BusyLine`. Locks may be lost without notice: then two believe that they hold it."""

    def __init__(self, line: BusyLine) -> None:
        self._line = line
        self._held = False
        self._claimed: list[tuple[BusyPlace, int]] = []
        self.told: dict[int, dict[str, int]] = {}

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        line = self._line
        if line.chance(0.05):
            time.sleep(min(0.002, timeout))
            raise CoordinationUnavailable("away")
        if line.chance(0.2):
            return True  # the lock of another session, which has expired
        self._held = line.lock.acquire(timeout=timeout)
        return self._held

    def release(self) -> None:
        if self._held:
            self._held = False
            self._line.lock.release()

    def offer(self, proposals: bytes) -> int | None:
        line = self._line
        if line.chance(0.1):
            return None
        with line.guard:
            line.tickets += 1
            line.offers[line.tickets] = (self, proposals)
            return line.tickets

    def withdraw(self, ticket: int) -> bool:
        line = self._line
        silent, carried_out = line.chance(0.2), line.chance(0.5)
        if silent and not carried_out:
            raise CoordinationUnavailable("no answer")
        with line.guard:
            found = line.offers.pop(ticket, None) is not None
        if silent:
            raise CoordinationUnavailable("no answer")
        return found

    def seconds_in_line(self) -> float:
        return 1.0

    def answer(self, epochs: Sequence[dict[str, int]]) -> None:
        line = self._line
        with line.guard:
            for (owner, ticket), told in zip(self._claimed, epochs, strict=True):
                if line.dice.random() < 0.8:
                    owner.told[ticket] = told
                    line.answered += len(told)

    def answers(self) -> dict[int, dict[str, int]]:
        with self._line.guard:
            told, self.told = self.told, {}
        return told

    def announced(self) -> None:
        return None

    def drop(self, holds: Callable[[bytes], bool]) -> None:
        line = self._line
        with line.guard:
            for ticket in [t for t, (owner, data) in line.offers.items() if owner is not self and holds(data)]:
                line.offers.pop(ticket)

    def claim(self) -> list[bytes]:
        line = self._line
        with line.guard:
            others = [ticket for ticket, (owner, _) in line.offers.items() if owner is not self]
            found = [line.offers.pop(ticket) for ticket in others]
            line.claimed += len(found)
        self._claimed = [(owner, ticket) for (owner, _), ticket in zip(found, others, strict=True)]
        return [proposals for _, proposals in found]

    def publish(self, position: Position) -> None:
        """Nobody looks."""


class TroubledLog:
    """A handle on an in-memory log that sleeps at times, and whose appends may end without an answer, or land late."""

    def __init__(self, shared: SharedEntries, line: BusyLine) -> None:
        self._log = InMemoryLog(shared)
        self._line = line

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        return self._log.read(after, up_to)

    def version(self) -> int | None:
        return self._log.version()

    def entry(self, epoch: int) -> Entry:
        return self._log.entry(epoch)

    def append(self, entries: Sequence[Entry]) -> None:
        line = self._line
        if line.chance(0.1):
            raise AppendUncertain("did not land")
        if line.chance(0.1):
            late = InMemoryLog(self._log.shared)
            late._seen = self._log._seen
            line.later(lambda: _append_if_nothing_came(late, entries))
            raise AppendUncertain("lands later, if at all")
        if line.chance(0.3):
            time.sleep(0.02)
        self._log.append(entries)
        if line.chance(0.1):
            raise AppendUncertain("landed")

    def fence(self) -> None:
        if self._line.chance(0.1):
            raise AppendUncertain("no fence")
        self._log.fence()

    def request_epochs(self, up_to: int) -> dict[str, int]:
        return self._log.request_epochs(up_to)

    def compact_if_due(self) -> bool:
        return False


def _append_if_nothing_came(log: InMemoryLog, entries: Sequence[Entry]) -> None:
    with suppress(AppendConflict):
        log.append(entries)


Outcome = Committed | BaseException


def outcome_of(commit: Callable[[], Committed]) -> Outcome:
    try:
        return commit()
    except Exception as error:
        return error


def assert_sound(entries: Sequence[Entry]) -> None:
    """No gap, no fork, an unbroken chain, each request id at most once."""
    position = Position()
    for entry in entries:
        position = verify_next(position, entry)
    request_ids = [entry.request_id for entry in entries]
    assert len(request_ids) == len(set(request_ids))


def assert_true_to(outcome: Outcome, request_id: str, entries: Sequence[Entry]) -> None:
    """A success is in the log at its epoch; a failure is not in the log at all; no outcome is of another sort."""
    found = [entry.epoch for entry in entries if entry.request_id == request_id]
    if isinstance(outcome, Committed):
        assert found == [outcome.epoch], f"{outcome} but {found}"
    elif isinstance(outcome, Rejected | CommitTimeout):
        assert found == [], f"{outcome!r} but {found}"
    else:
        assert isinstance(outcome, CommitUnknown), repr(outcome)
