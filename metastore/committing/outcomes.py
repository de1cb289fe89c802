"""What a submission is told: `Committed`, `Rejected`, `CommitTimeout` or `CommitUnknown`; none is a guess.

A failure is told only when nobody can append the submission any more. A claim of another process is made after it has
read the log, and its append is against what it has read then. So moving the log's version (`EpochLog.fence`) makes that
append fail if it has not happened yet, and after that the log tells.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from epochlake.metastore.committing.offers import EarlierTries
from epochlake.metastore.committing.submissions import Committed, Submission, described
from epochlake.metastore.errors import LOG_CONTRADICTS, CommitTimeout, CommitUnknown, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Entry, Position
from epochlake.metastore.log.epoch_log import AppendFailed
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code

logger = logging.getLogger(__name__)


class Outcomes:
    """Gives submissions their outcomes, by what the log of `follower` says.

    `publish` is told where the log ends before anybody hears that it was found there: who has appended it may be gone.
    `drop_earlier_tries` takes away what earlier tries of submissions may have left in line.
    """

    def __init__(
        self,
        follower: Follower,
        publish: Callable[[Position], None],
        drop_earlier_tries: Callable[[Iterable[Submission]], EarlierTries],
    ) -> None:
        self._follower = follower
        self._publish = publish
        self._drop_earlier_tries = drop_earlier_tries

    def settle_if_known(self, submission: Submission) -> None:
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
            return
        if entry is None:
            return
        submission.outcome = committed_at(submission, entry)
        # Who has appended it may have died before he announced it, and nobody else may have looked since.
        self._publish(self._follower.position)

    def conclude(self, submissions: Iterable[Submission], failure: Callable[[Submission], BaseException]) -> None:
        """Give submissions that are not waiting any more their outcome: what the log says of them, else `failure`.

        A claim is made after the log was read, and the claimer's append is against what it has read then. So moving
        the log's version makes it fail if it has not happened yet, and after that the log tells. That does not help
        with an offer that may still be claimed: of such a one only a success can be known. What earlier tries of the
        same requests have left in line is dropped first; where ZooKeeper does not tell what is in line, one of them may
        still be claimed.
        """
        submissions = list(submissions)
        if not submissions:
            return
        earlier = self._drop_earlier_tries(submissions)
        unreadable = self._look_up(submissions, fence=bool(earlier.requests))
        for submission in submissions:
            if submission.outcome is None:
                in_line = earlier.are_in_line and submission.request_id in earlier.requests
                submission.outcome = _without_entry(submission, failure(submission), unreadable, in_line)

    def _look_up(self, submissions: Sequence[Submission], *, fence: bool) -> EpochlakeError | None:
        """Give those that are in the log their outcome; the error when the log could not tell it of the others.

        With `fence` nobody appends what he may have claimed before, not even what is not known to be claimed.
        """
        unreadable: EpochlakeError | None = None
        try:
            with self._follower.exclusively():
                self._follower.catch_up()
                self.settle_committed(submissions)
                if any((submission.taken or fence) and submission.outcome is None for submission in submissions):
                    self._follower.log.fence()
                    self._follower.catch_up()
        except LOG_CONTRADICTS as error:
            # What was known before may not be in the log any more.
            return error
        except EpochlakeError as error:
            unreadable = error
        try:
            # Also what is known without the log: it may be away, or its disk full.
            self.settle_committed(submissions)
        except EpochlakeError as error:
            unreadable = unreadable or error
        return unreadable

    def settle_committed(self, submissions: Sequence[Submission]) -> None:
        """Give those that are known to be in the log their outcome. Raises as `Follower.request_entry` does."""
        for submission in submissions:
            if submission.outcome is not None:
                continue
            epoch = self._follower.request_epoch(submission.request_id)
            if epoch is None:
                continue
            entry = self._follower.request_entry(submission.request_id) if submission.named else None
            submission.outcome = succeeded(submission, epoch) if entry is None else committed_at(submission, entry)
            self._publish(self._follower.position)


def committed_at(submission: Submission, entry: Entry) -> Committed | Rejected:
    """The outcome of a submission whose request id `entry` has."""
    if submission.named and submission.is_for_another_change(entry):
        return used_for_another_change(submission, entry)
    if entry.author != submission.author:
        # Who appends for another process keeps its author: this entry is of an earlier try of somebody else.
        return Committed(entry.epoch, submission.request_id, already=True)
    return succeeded(submission, entry.epoch)


def succeeded(submission: Submission, epoch: int) -> Committed:
    """What was appended on a submission's behalf was not there before it was asked for: not `already`.

    One that is not where it was expected to come was appended for another call of the same process; so was, as far as
    anybody can tell, what an earlier call has offered.
    """
    was_there = not (submission.offered or submission.taken)
    already = was_there or submission.has_joined or submission.is_elsewhere(epoch)
    return Committed(epoch, submission.request_id, already=already)


def used_for_another_change(submission: Submission, entry: Entry) -> Rejected:
    """The rejection of a request id that comes again with another change."""
    then = entry.asked or described(entry.event, entry.payload)
    return Rejected(
        Code.REQUEST_ID_USED,
        f"request id {submission.request_id} was used at epoch {entry.epoch} for: {then}. Now it comes with: "
        f"{submission.description()}",
        hint="Use another request id for another change",
    )


def timed_out(submission: Submission, obstacle: str = "") -> CommitTimeout:
    """The lock was not had; `obstacle` is what ZooKeeper, or who starts it, said last."""
    said = f": {obstacle.rstrip('. ')}" if obstacle else ". Is ZooKeeper up?"
    return CommitTimeout(
        "the commit lock was not had in the time given; nothing was proposed for request "
        f"{submission.request_id}{said}",
        hint="Try again, or give more time",
    )


def _without_entry(
    submission: Submission, failure: BaseException, unreadable: EpochlakeError | None, in_line: bool
) -> BaseException:
    """The outcome of a submission that was not found in the log, or for which the log could not be asked; `in_line`:
    an earlier try may still be offered.
    """
    if submission.offered:
        return CommitUnknown(
            submission.request_id, "it was offered to other processes, and ZooKeeper does not say who has it"
        )
    if submission.taken and unreadable is not None:
        return CommitUnknown(
            submission.request_id, f"somebody may be appending it, and the log does not tell ({unreadable})"
        )
    if submission.named and unreadable is not None and isinstance(failure, CommitTimeout | AppendFailed):
        # Nothing came of this try. An earlier one with the same id may be in the log.
        return CommitUnknown(submission.request_id, f"the log does not tell whether an earlier try landed ({failure})")
    if in_line and isinstance(failure, CommitTimeout | AppendFailed):
        return CommitUnknown(
            submission.request_id, f"ZooKeeper does not tell whether an earlier try is in line ({failure})"
        )
    return failure


def always(error: Exception) -> Callable[[Submission], Exception]:
    return lambda _: error


def nothing_committed(cause: EpochlakeError) -> Callable[[Submission], CommitTimeout]:
    def failure(submission: Submission) -> CommitTimeout:
        return CommitTimeout(
            f"request {submission.request_id} was not committed in the time given: {cause.statement}", hint=cause.hint
        )

    return failure
