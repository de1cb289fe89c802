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
from collections import OrderedDict, deque

import msgspec
from epochlake.metastore.committing.batches import Prepared
from epochlake.metastore.committing.offers import Offers
from epochlake.metastore.committing.outcomes import Outcomes, always, nothing_committed, timed_out
from epochlake.metastore.committing.queue import CommitQueue, Meanwhile
from epochlake.metastore.committing.submissions import Committed, Planner, Submission, SubmissionStep
from epochlake.metastore.errors import (
    CommitTimeout,
    CommitUnknown,
    CoordinationUnavailable,
    StorageUnavailable,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Position
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain
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

RETRY_SECONDS = 0.2
"""The pause before asking again while ZooKeeper or the storage does not answer."""


REMEMBERED_REQUESTS = 10_000
"""So many request ids that were told as committed are remembered. What is older this process has read in the log."""


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
        self._offers = Offers(queue, self._turn)
        self._outcomes = Outcomes(follower, queue.publish, self._offers.drop_earlier_tries)
        self._leading = False
        # Used by the thread that leads only.
        self._led_last = False
        self._announced: Position | None = None
        self._has_heard = False
        self._has_published = False
        self._told_epoch = 0
        self._told_requests: OrderedDict[str, bool] = OrderedDict()
        """The requests that calls were told are committed, and whether one of them was told that it was the first."""
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
        named: bool = True,
    ) -> Committed:
        """Commit an event, or what a planner makes of the newest metadata (it is called again on each retry).

        `request_id` is the idempotence key: submitting it twice commits once, and submitting it for another change is
        rejected (request-id-used). Events are compared; a planner plans something else later, so `asked` says in words
        what it is for: the words are kept in the log and compared. `named`: False when the id was made up for this
        call, so that no earlier try of it is possible. `expect_epoch` rejects the event unless it becomes
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
            named=named and request_id is not None,
        )
        # Who has committed it for this process may be known before this process has read the log so far.
        told_before = submission.named and submission.request_id in self._told_requests
        self._outcomes.settle_if_known(submission)
        # Whatever happens, nobody waits for it any more afterwards: it must not be left waiting and be appended later.
        try:
            if submission.outcome is None:
                self._wait_or_lead(submission)
        except Exception as error:
            self._take_out(submission)
            self._outcomes.conclude([submission], always(error))
        except BaseException:
            self._take_out(submission)
            raise
        assert submission.outcome is not None
        if isinstance(submission.outcome, BaseException):
            raise submission.outcome
        if submission.named:
            told_before |= self._remember(submission.outcome)
        return msgspec.structs.replace(submission.outcome, already=True) if told_before else submission.outcome

    def _remember(self, outcome: Committed) -> bool:
        """That a call has heard of its commit: one that comes later under this request id is told `already`.

        Whether another one, of those that were on their way at the same time, was told that it is the first.
        """
        with self._turn:
            has_first = self._told_requests.get(outcome.request_id, False)
            self._told_requests[outcome.request_id] = has_first or not outcome.already
            if len(self._told_requests) > REMEMBERED_REQUESTS:
                self._told_requests.popitem(last=False)
            return has_first

    def _wait_or_lead(self, submission: Submission) -> None:
        with self._turn:
            self._offers.join(submission)
            self._waiting.append(submission)
        while submission.outcome is None:
            with self._turn:
                leads = submission.outcome is None and not self._leading
                if leads:
                    self._leading = True
                gave_up = not leads and submission.outcome is None and self._wait_for_leader(submission)
            if gave_up:
                self._outcomes.conclude([submission], self._timed_out)
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
            patience = WITHDRAWAL_SECONDS if submission.offered else 0.0
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
        self._offers.end()
        # Who has led last has read the log to its end: it leads again at less cost than anybody else, if it is here.
        if self._offers.worthwhile and not self._led_last:
            self._show(mine)
        self._led_last = False
        try:
            acquired = self._queue.acquire(
                max(0.0, mine.deadline - time.monotonic()),
                Meanwhile(CONTENDED_SECONDS, lambda: self._offer_in_line(mine)),
            )
        except CoordinationUnavailable as error:
            logger.debug("the commit lock cannot be asked for: %s", error)
            acquired, self._obstacle = False, error.reason
            time.sleep(max(0.0, min(RETRY_SECONDS, mine.deadline - time.monotonic())))
        except BaseException:
            self._queue.release()
            raise
        else:
            self._obstacle = ""
        finally:
            self._take_answers()
            self._offers.end()
        if not acquired:
            self._settle_overdue()
            return
        try:
            self._offers.look_for_others(self._queue.seconds_in_line() > CONTENDED_SECONDS)
            if mine.outcome is not None:
                return
            self._led_last = True
            self._announced, self._has_heard, self._has_published = None, False, False
            self._commit_waiting(mine)
            if not self._has_published:
                # Somebody before us may have died with it.
                self._queue.publish(self._follower.position)
            self._compact()
        finally:
            self._queue.release()

    def _offer_in_line(self, mine: Submission) -> None:
        self._offers.look_for_others(True)
        self._show(mine)

    def _show(self, mine: Submission) -> None:
        self._offers.show(self._waiting, mine.deadline, BATCH)

    def _take_answers(self) -> None:
        """Tell those whose offers somebody else has committed."""
        answered = self._offers.answered()
        if not answered:
            return
        with self._turn:
            for submission, epoch in answered:
                if submission.outcome is None and submission in self._waiting:
                    self._waiting.remove(submission)
                    submission.outcome = Committed(epoch, submission.request_id)
                    self._told_epoch = max(self._told_epoch, epoch)
            self._offers.forget_settled()
            self._turn.notify_all()

    def _timed_out(self, submission: Submission) -> CommitTimeout:
        return timed_out(submission, self._obstacle)

    def _settle_overdue(self) -> None:
        """The lock was not had: give those whose time is over their outcome."""
        with self._turn:
            overdue = [s for s in self._waiting if s.deadline <= time.monotonic()]
            for submission in overdue:
                self._waiting.remove(submission)
        self._outcomes.conclude(overdue, self._timed_out)

    def _commit_waiting(self, mine: Submission) -> None:
        with self._turn:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            self._commit_batch(batch, mine.deadline)
        except EpochlakeError as error:
            self._outcomes.conclude([s for s in batch if s.outcome is None], always(error))
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
            self._outcomes.conclude(overdue, self._timed_out if trouble is None else nothing_committed(trouble))
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
        if not self._has_heard:
            # Asked for before the log was read: the answer is here by now.
            self._announced, self._has_heard = self._queue.announced(), True
        self._follower.require_reached(self._announced)
        read = self._follower.log.version()
        # What is claimed is tried once: after a conflict its owner, who cannot know, may have given up on it.
        looked = self._offers.worthwhile
        claims = self._offers.claim() if looked else []
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
            self._offers.look_for_others(True)
            return False
        if prepared.entries:
            try:
                self._follower.log.append(prepared.entries)
            except AppendUncertain:
                for submission in batch:
                    submission.take(SubmissionStep.LOSE_ANSWER)
                raise
            self._follower.appended(prepared.entries, prepared.metadata)
        elif prepared.fails_what_others_may_append(batch):
            self._follower.log.fence()
            # It may have landed right before: of this call, as long as it counts as taken.
            self._follower.catch_up()
            self._outcomes.settle_committed(batch)
        else:
            prepared.settle()
            return True
        # The log has moved on: what somebody had taken before this try, and has not appended, cannot land any more.
        for submission in batch:
            submission.take(SubmissionStep.MOVE_LOG)
        if prepared.entries:
            prepared.settle()
            # Before anybody hears of it: a log that comes back without what was told is noticed by whoever comes.
            self._queue.publish(self._follower.position)
            self._has_published = True
            self._offers.answer(claims)
        return bool(prepared.entries)

    def _compact(self) -> None:
        try:
            with self._follower.exclusively():
                self._follower.log.compact_if_due()
        except EpochlakeError as error:
            logger.warning("the log was not compacted: %s", error)
