"""Committing: the one way by which the cluster metadata changes (design, section 5).

The lock, the queue and the head make it rare that two processes try to append at once; whether an epoch is committed
is decided by the append alone, which is made against exactly the tail that was read. Threads of a process, and
processes that wait for the lock, share appends: who holds the lock takes everybody's events, checks each against the
metadata after the one before it, and appends them together.

Four outcomes, four results: `Committed`; `Rejected`; `CommitTimeout`, when nothing was proposed; `CommitUnknown`, when
it may have landed. None is a guess: a rejection is reported only when the entries that it rests on are committed, and
no failure is reported of what somebody else may still append. What was offered to other processes is taken back
first, and if somebody had taken it the log's version is moved (`EpochLog.fence`), so that his append fails; then the
log tells.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from epochlake.metastore.committing.queue import CommitQueue, Meanwhile
from epochlake.metastore.committing.submissions import (
    Committed,
    Planner,
    Prepared,
    Submission,
    committed_at,
    decode_proposals,
    encode_proposals,
    succeeded,
    timed_out,
)
from epochlake.metastore.errors import (
    LOG_CONTRADICTS,
    CommitTimeout,
    CommitUnknown,
    CoordinationUnavailable,
    StorageUnavailable,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Position
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.events import Event
from epochlake.placement.errors import EpochlakeError

__all__ = ["Committed", "Committer", "Planner"]

logger = logging.getLogger(__name__)

BATCH = 256
"""The most events in one append: it bounds how long the lock is held."""

GRACE_SECONDS = 60.0
"""How long a caller waits, after its own deadline, for an append that is under way."""

WITHDRAWAL_SECONDS = 5.0
"""How long a caller waits, after its own deadline, until what was offered for it is taken back."""

CONTENDED_SECONDS = 0.02
"""A lock that took longer than this was waited for: then offering and claiming proposals is worth its round trips."""

REMEMBERED_SECONDS = 1.0
"""After so long without a sign of others a committer neither offers nor claims any more."""

RETRY_SECONDS = 0.2
"""The pause before asking again while ZooKeeper or the storage does not answer."""


class _Offer(msgspec.Struct, frozen=True):
    """What was offered in one piece; `joined`: later tries of the same requests, which the offer may still commit."""

    ticket: Any
    submissions: list[Submission]
    joined: list[Submission]

    def __iter__(self) -> Iterator[Submission]:
        yield from self.submissions
        yield from self.joined


class Committer:
    """Commits events to the log that `follower` follows. Safe for use by several threads.

    `snapshot_every`: after that many epochs without one an epoch that asks for a snapshot is added; 0 adds none.
    """

    def __init__(
        self,
        follower: Follower,
        queue: CommitQueue,
        *,
        author: str,
        snapshot_every: int = 0,
    ) -> None:
        self._follower = follower
        self._queue = queue
        self._author = author
        self._snapshot_every = snapshot_every
        self._waiting: deque[Submission] = deque()
        self._turn = threading.Condition()
        self._leading = False
        # Used by the thread that leads only.
        self._contended = False
        self._others_seen = 0.0
        self._led_last = False
        self._announced: Position | None = None
        self._offers: list[_Offer] = []
        self._told_epoch = 0
        self._obstacle = ""

    @property
    def told_epoch(self) -> int:
        """The newest epoch that somebody else has committed for this process. The follower may not know it yet."""
        return self._told_epoch

    def commit(
        self,
        what: Event | Planner,
        *,
        request_id: str | None = None,
        reason: str = "",
        timeout: float = 120.0,
        expect_epoch: int | None = None,
        asked: str = "",
    ) -> Committed:
        """Commit an event, or what a planner makes of the newest metadata (it is called again on each retry).

        `request_id` is the idempotence key: submitting it twice commits once, and submitting it for another change is
        rejected (request-id-used). Events are compared; a planner plans something else later, so `asked` says in words
        what it is for: the words are kept in the log and compared. `expect_epoch` rejects the event unless it becomes
        the one right after that epoch. A planner may be called by another thread than its own, and must not commit.
        Raises Rejected, CommitTimeout or CommitUnknown; AppendFailed, LogUnreadable or StorageUnavailable when
        nothing was written because the log cannot be; and what the planner raises.
        """
        submission = Submission(
            what,
            request_id or next_state_id(""),
            self._author,
            reason,
            time.monotonic() + timeout,
            expect_epoch,
            asked,
            named=request_id is not None,
        )
        self._settle_if_known(submission)
        # Whatever happens, nobody waits for it any more afterwards: it must not be left waiting and be appended later.
        try:
            if submission.outcome is None:
                self._wait_or_lead(submission)
        except Exception as error:
            self._take_out(submission)
            self._conclude([submission], _always(error))
        except BaseException:
            self._take_out(submission)
            raise
        assert submission.outcome is not None
        if isinstance(submission.outcome, BaseException):
            raise submission.outcome
        return submission.outcome

    def _settle_if_known(self, submission: Submission) -> None:
        """A request that is known here to be in the log needs neither ZooKeeper nor storage.

        A log that answers is asked all the same: it may have gone back behind the request.
        """
        if not submission.named or self._follower.known_request(submission.request_id) is None:
            return
        try:
            with self._follower.exclusively():
                self._follower.catch_up()
        except LOG_CONTRADICTS as error:
            submission.outcome = error
            return
        except EpochlakeError as error:
            logger.debug("request %s is known without the log: %s", submission.request_id, error)
        try:
            entry = self._follower.request_entry(submission.request_id)
        except EpochlakeError as error:
            logger.debug("request %s is committed, what it was is not known yet: %s", submission.request_id, error)
        else:
            submission.outcome = None if entry is None else committed_at(submission, entry)

    def _wait_or_lead(self, submission: Submission) -> None:
        with self._turn:
            self._open_offer_again(submission)
            self._waiting.append(submission)
        while submission.outcome is None:
            with self._turn:
                leads = submission.outcome is None and not self._leading
                if leads:
                    self._leading = True
                gave_up = not leads and submission.outcome is None and self._wait_for_leader(submission)
            if gave_up:
                self._conclude([submission], self._timed_out)
            if leads:
                try:
                    self._lead(submission)
                except Exception as error:
                    if submission.outcome is None:
                        raise
                    logger.warning("after request %s had its outcome: %s", submission.request_id, error)
                finally:
                    with self._turn:
                        self._leading = False
                        self._turn.notify_all()

    def _wait_for_leader(self, submission: Submission) -> bool:
        """Wait for news of the thread that leads. Called with the turn held. True: its time is over, and nobody but
        the caller will give it an outcome.
        """
        overtime = time.monotonic() - submission.deadline
        if overtime < 0:
            patience = 0.0
        elif submission in self._waiting:
            patience = WITHDRAWAL_SECONDS if submission.in_line else 0.0
        else:
            patience = GRACE_SECONDS
        if overtime < patience:
            self._turn.wait(patience - overtime)
        elif submission in self._waiting:
            self._waiting.remove(submission)
            return True
        else:
            submission.outcome = CommitUnknown(submission.request_id, "the append it is part of has not ended")
        return False

    def _take_out(self, submission: Submission) -> None:
        with self._turn:
            if submission in self._waiting:
                self._waiting.remove(submission)

    def _lead(self, mine: Submission) -> None:
        """Take the lock once and commit what waits; on return `mine` has an outcome, or its time is not over."""
        self._end_offers()
        # Who has led last has read the log to its end: it leads again at less cost than anybody else, if it is here.
        if self._contended and not self._led_last:
            self._offer(mine)
        self._led_last = False
        try:
            acquired = self._queue.acquire(
                max(0.0, mine.deadline - time.monotonic()),
                Meanwhile(CONTENDED_SECONDS, lambda: self._offer_in_line(mine)),
            )
        except CoordinationUnavailable as error:
            logger.debug("the commit lock cannot be asked for: %s", error)
            acquired, self._obstacle = False, str(error)
            time.sleep(max(0.0, min(RETRY_SECONDS, mine.deadline - time.monotonic())))
        except BaseException:
            self._queue.release()
            raise
        else:
            self._obstacle = ""
        finally:
            self._take_answers()
            self._end_offers()
        if not acquired:
            self._settle_overdue()
            return
        try:
            self._look_for_others(self._queue.seconds_in_line() > CONTENDED_SECONDS)
            if mine.outcome is not None:
                return
            self._led_last = True
            self._announced = self._queue.announced()
            self._commit_waiting(mine)
            self._queue.publish(self._follower.position)
            self._compact()
        finally:
            self._queue.release()

    def _offer_in_line(self, mine: Submission) -> None:
        self._look_for_others(True)
        self._offer(mine)

    def _look_for_others(self, seen: bool) -> None:
        """Offer and claim from now on when others were `seen`, and for a while after they were seen last."""
        if seen:
            self._others_seen = time.monotonic()
        self._contended = seen or time.monotonic() - self._others_seen < REMEMBERED_SECONDS

    def _offer(self, mine: Submission) -> None:
        """Show what waits here to whoever holds the lock.

        Not planners: only they can plan again. And not those whose time is over before that of `mine`: the leader does
        not come back to them in time.
        """
        with self._turn:
            shown = [
                s
                for s in self._waiting
                if s.planned is not None and s.expect_epoch is None and not s.in_line and s.deadline >= mine.deadline
            ][:BATCH]
            for submission in shown:
                submission.in_line = True
        if not shown:
            return
        ticket = self._queue.offer(encode_proposals(shown))
        if ticket is not None:
            self._offers.append(_Offer(ticket, shown, []))
            return
        for submission in shown:
            submission.in_line = False

    def _open_offer_again(self, submission: Submission) -> None:
        """A request may come again while an offer of an earlier try can still be taken: then that offer is its own."""
        for offer in self._offers:
            if any(earlier.request_id == submission.request_id for earlier in offer.submissions):
                submission.in_line = True
                offer.joined.append(submission)

    def _take_answers(self) -> None:
        """Tell those whose offers somebody else has committed. This process reads these epochs when it needs them."""
        told = self._queue.answers()
        if not told:
            return
        with self._turn:
            for offer in self._offers:
                epochs = told.get(offer.ticket, {})
                for submission in offer.submissions:
                    epoch = epochs.get(submission.request_id)
                    if epoch is not None and submission.outcome is None and submission in self._waiting:
                        self._waiting.remove(submission)
                        submission.outcome = Committed(epoch, submission.request_id)
                        self._told_epoch = max(self._told_epoch, epoch)
            # What is answered was claimed, and is not there any more.
            self._offers = [offer for offer in self._offers if any(s.outcome is None for s in offer)]
            self._turn.notify_all()

    def _end_offers(self) -> None:
        """Take back what was offered. An offer whose withdrawal is uncertain stays open, whoever waits for it."""
        remaining = []
        for offer in self._offers:
            try:
                untouched = self._queue.withdraw(offer.ticket)
            except CoordinationUnavailable as error:
                logger.debug("an offer is not taken back: %s", error)
                remaining.append(offer)
                continue
            for submission in offer:
                submission.in_doubt = submission.in_doubt or not untouched
                submission.in_line = False
        with self._turn:
            self._offers = remaining
            for offer in remaining:
                for submission in offer:
                    submission.in_line = True

    def _timed_out(self, submission: Submission) -> CommitTimeout:
        return timed_out(submission, self._obstacle)

    def _settle_overdue(self) -> None:
        """The lock was not had: give those whose time is over their outcome."""
        with self._turn:
            overdue = [s for s in self._waiting if s.deadline <= time.monotonic()]
            for submission in overdue:
                self._waiting.remove(submission)
        self._conclude(overdue, self._timed_out)

    def _conclude(self, submissions: Iterable[Submission], failure: Callable[[Submission], BaseException]) -> None:
        """Give submissions that are not waiting any more their outcome: what the log says of them, else `failure`.

        A claim is made after the log was read, and the claimer's append is against what it has read then. So moving
        the log's version makes it fail if it has not happened yet, and after that the log tells. That does not help
        with an offer that may still be claimed: of such a one only a success can be known.
        """
        submissions = list(submissions)
        if not submissions:
            return
        unreadable = self._look_up(submissions)
        for submission in submissions:
            if submission.outcome is None:
                submission.outcome = _without_entry(submission, failure(submission), unreadable)

    def _look_up(self, submissions: Sequence[Submission]) -> EpochlakeError | None:
        """Give those that are in the log their outcome; the error when the log could not tell it of the others."""
        unreadable: EpochlakeError | None = None
        try:
            with self._follower.exclusively():
                self._follower.catch_up()
                self._settle_committed(submissions)
                if any(submission.in_doubt and submission.outcome is None for submission in submissions):
                    self._follower.log.fence()
                    self._follower.catch_up()
        except LOG_CONTRADICTS as error:
            # What was known before may not be in the log any more.
            return error
        except EpochlakeError as error:
            unreadable = error
        try:
            # Also what is known without the log: it may be away, or its disk full.
            self._settle_committed(submissions)
        except EpochlakeError as error:
            unreadable = unreadable or error
        return unreadable

    def _settle_committed(self, submissions: Sequence[Submission]) -> None:
        for submission in submissions:
            if submission.outcome is not None:
                continue
            epoch = self._follower.request_epoch(submission.request_id)
            if epoch is None:
                continue
            entry = self._follower.request_entry(submission.request_id) if submission.named else None
            submission.outcome = succeeded(submission, epoch) if entry is None else committed_at(submission, entry)

    def _commit_waiting(self, mine: Submission) -> None:
        with self._turn:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            self._commit_batch(batch, mine.deadline)
        except EpochlakeError as error:
            self._conclude([s for s in batch if s.outcome is None], _always(error))
        except BaseException as error:
            for submission in batch:
                interrupted = CommitUnknown(submission.request_id, f"committing was interrupted ({error!r})")
                submission.outcome = submission.outcome or interrupted
            raise
        finally:
            with self._turn:
                self._waiting.extendleft(s for s in reversed(batch) if s.outcome is None)
                self._turn.notify_all()

    def _commit_batch(self, batch: list[Submission], deadline: float) -> None:
        """Append the batch; conflicts are planned again on what came in between, until the leader's time is over.

        Those whose time is over before get their outcome. Some may be left without one: their time is not over, or
        they are still in line.
        """
        trouble: EpochlakeError | None = None
        while True:
            now = time.monotonic()
            overdue = [submission for submission in batch if submission.deadline <= now]
            self._conclude(overdue, self._timed_out if trouble is None else _nothing_committed(trouble))
            batch = [submission for submission in batch if submission.outcome is None]
            if now >= deadline or not batch:
                return
            with self._turn:
                self._turn.notify_all()
            try:
                with self._follower.exclusively():
                    if self._try(batch):
                        return
            except AppendConflict as conflict:
                logger.debug("%s", conflict)
                trouble = conflict
            except (StorageUnavailable, AppendUncertain) as error:
                logger.warning("%s", error)
                trouble = error
                time.sleep(RETRY_SECONDS)

    def _try(self, batch: list[Submission]) -> bool:
        """One try, on the log as it is now. False: that had to be changed first; try again.

        Raises AppendConflict, AppendUncertain, AppendFailed and what reading the log raises.
        """
        self._follower.catch_up()
        self._follower.require_reached(self._announced)
        read = self._follower.log.version()
        # What is claimed is tried once: after a conflict its owner, who cannot know, may have given up on it.
        looked = self._contended
        claims = self._claim() if looked else []
        # An offer of an earlier try of one's own request, by a process that is gone or cut off, is claimed and dropped.
        own = {submission.request_id for submission in batch}
        claimed = [submission for claim in claims for submission in claim if submission.request_id not in own]
        prepared = Prepared(self._follower, [*batch, *claimed], self._snapshot_every, self._author)
        # The append is against what was read before the claim. A planner may have read the log since: an owner that
        # has fenced the log in between, and told a failure, is only seen by the version.
        if self._follower.log.version() != read:
            raise AppendConflict("a planner has read the log by itself")
        if not looked and prepared.fails_an_earlier_try():
            # Nobody else has been looked for in line: the next try does.
            self._look_for_others(True)
            return False
        if prepared.entries:
            try:
                self._follower.log.append(prepared.entries)
            except AppendUncertain:
                for submission in batch:
                    submission.in_doubt = True
                raise
            self._follower.appended(prepared.entries, prepared.metadata)
        elif prepared.fails_what_others_may_append():
            self._follower.log.fence()
        else:
            prepared.settle()
            return True
        # The log has moved on: what somebody had taken before this try, and has not appended, cannot land any more.
        for submission in batch:
            submission.in_doubt = False
        if prepared.entries:
            prepared.settle()
            if claims:
                self._queue.answer([_epochs_of(claim) for claim in claims])
        return bool(prepared.entries)

    def _claim(self) -> list[list[Submission]]:
        """The proposals of processes that wait for the lock; claimed after the log was read: see `_conclude`."""
        claims = [decode_proposals(data) for data in self._queue.claim()]
        self._look_for_others(bool(claims))
        return claims

    def _compact(self) -> None:
        try:
            with self._follower.exclusively():
                self._follower.log.compact_if_due()
        except EpochlakeError as error:
            logger.warning("the log was not compacted: %s", error)


def _epochs_of(claim: Sequence[Submission]) -> dict[str, int]:
    """Which of the requests of a claim this append has committed. Of the others the owner asks the log."""
    return {
        submission.request_id: submission.outcome.epoch
        for submission in claim
        if isinstance(submission.outcome, Committed) and not submission.outcome.already
    }


def _without_entry(submission: Submission, failure: BaseException, unreadable: EpochlakeError | None) -> BaseException:
    """The outcome of a submission that was not found in the log, or for which the log could not be asked."""
    if submission.in_line:
        return CommitUnknown(
            submission.request_id, "it was offered to other processes, and ZooKeeper does not say who has it"
        )
    if submission.in_doubt and unreadable is not None:
        return CommitUnknown(
            submission.request_id, f"somebody may be appending it, and the log does not tell ({unreadable})"
        )
    if submission.named and unreadable is not None and isinstance(failure, CommitTimeout | AppendFailed):
        # Nothing came of this try. An earlier one with the same id may be in the log.
        return CommitUnknown(submission.request_id, f"the log does not tell whether an earlier try landed ({failure})")
    return failure


def _always(error: Exception) -> Callable[[Submission], Exception]:
    return lambda _: error


def _nothing_committed(cause: EpochlakeError) -> Callable[[Submission], CommitTimeout]:
    def failure(submission: Submission) -> CommitTimeout:
        return CommitTimeout(f"request {submission.request_id} was not committed in the time given: {cause}")

    return failure
