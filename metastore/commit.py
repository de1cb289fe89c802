"""Committing: the one way by which the cluster metadata changes (design, section 5).

The lock, the queue and the head make it rare that two processes try to append at once; whether an epoch is committed
is decided by the append alone, which is made against exactly the tail that was read. Threads of a process, and
processes that wait for the lock, share appends: who holds the lock takes everybody's events, checks each against the
metadata after the one before it, and appends them together.

Four outcomes, four results: `Committed`; `Rejected`; `CommitTimeout`, when nothing was proposed; `CommitUnknown`, when
it may have landed. None is a guess: a rejection is reported only when the entries that it rests on are committed, and
a failed append is looked up in the log before anything is said about it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from epochlake.metastore.errors import (
    CommitTimeout,
    CommitUnknown,
    CoordinationUnavailable,
    LogUnreadable,
    Rejected,
    StorageUnavailable,
)
from epochlake.metastore.follower import Follower
from epochlake.metastore.log.entry import EncodedEvent, Entry, Position, decode_event, encode_event, seal
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, TakeSnapshot
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)

Planner = Callable[[ClusterMetadata], Event]

BATCH = 256
"""The most events in one append: it bounds how long the lock is held."""

GRACE_SECONDS = 60.0
"""How long a caller waits, after its own deadline, for an append that is under way."""

CONTENDED_SECONDS = 0.02
"""A lock that took longer than this was waited for: then offering and claiming proposals is worth its round trips."""

RETRY_SECONDS = 0.2
"""The pause before asking again while ZooKeeper or the storage does not answer."""


class Committed(msgspec.Struct, frozen=True):
    """The change is in the log at `epoch`; `already` when an earlier try with this request id had committed it."""

    epoch: int
    request_id: str
    already: bool = False


class Proposal(msgspec.Struct, frozen=True):
    """An event on its way to another process that holds the lock."""

    request_id: str
    event: str
    payload: str
    attachment: bytes | None
    author: str
    reason: str
    expect_epoch: int | None = None


class CommitQueue(Protocol):
    """The line in front of the log: a fair lock, proposals that wait in it, and news of the head.

    A ticket, whatever its type, stands for proposals that were offered to whoever holds the lock.
    """

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock. False after `timeout`; CoordinationUnavailable when there is nobody to ask."""
        ...

    def release(self) -> None:
        """Never raises."""
        ...

    def offer(self, proposals: bytes) -> Any | None:
        """Show proposals to whoever holds the lock; None when that is not possible."""
        ...

    def withdraw(self, ticket: Any) -> bool:
        """Take an offer back. True: nobody has taken it nor will. False: somebody may have."""
        ...

    def claim(self) -> list[bytes]:
        """Take the offers of others; each offer is claimed once, or withdrawn, never both. Lock holders only."""
        ...

    def publish(self, position: Position) -> None:
        """Announce the newest epoch. Never raises: the log is the truth, and the next one to commit repairs this."""
        ...


class _Submission:
    def __init__(
        self,
        what: Event | Planner,
        request_id: str,
        author: str,
        reason: str,
        deadline: float,
        expect_epoch: int | None,
    ) -> None:
        self.what = what
        self.request_id = request_id
        self.author = author
        self.reason = reason
        self.deadline = deadline
        self.expect_epoch = expect_epoch
        self.outcome: Committed | BaseException | None = None
        self.offered = False
        self.encoded = encode_event(what) if isinstance(what, Event) else None

    def plan(self, metadata: ClusterMetadata) -> tuple[Event, EncodedEvent]:
        if self.expect_epoch is not None and metadata.epoch != self.expect_epoch:
            raise Rejected(
                "epoch-moved",
                f"epoch {self.expect_epoch} was expected, the cluster is at epoch {metadata.epoch}: look again",
            )
        if self.encoded is not None:
            assert isinstance(self.what, Event)
            return self.what, self.encoded
        assert not isinstance(self.what, Event)
        event = self.what(metadata)
        return event, encode_event(event)


class _Offer(msgspec.Struct, frozen=True):
    ticket: Any
    submissions: list[_Submission]


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
        self._waiting: deque[_Submission] = deque()
        self._turn = threading.Condition()
        self._leading = False
        self._contended = False

    def commit(
        self,
        what: Event | Planner,
        *,
        request_id: str | None = None,
        reason: str = "",
        timeout: float = 120.0,
        expect_epoch: int | None = None,
    ) -> Committed:
        """Commit an event, or what a planner makes of the newest metadata (it is called again on each retry).

        `request_id` is the idempotence key: submitting it twice commits once. `expect_epoch` rejects the event unless
        it becomes the one right after that epoch. Raises Rejected, CommitTimeout or CommitUnknown; AppendFailed,
        LogUnreadable or StorageUnavailable when nothing was written because the log cannot be.
        """
        submission = _Submission(
            what,
            request_id or next_state_id(""),
            self._author,
            reason,
            time.monotonic() + timeout,
            expect_epoch,
        )
        with self._turn:
            self._waiting.append(submission)
        while submission.outcome is None:
            with self._turn:
                if submission.outcome is not None:
                    break
                if self._leading:
                    self._wait_for_leader(submission)
                    continue
                self._leading = True
            try:
                self._lead(submission)
            finally:
                with self._turn:
                    self._leading = False
                    self._turn.notify_all()
        if isinstance(submission.outcome, BaseException):
            raise submission.outcome
        return submission.outcome

    def _wait_for_leader(self, submission: _Submission) -> None:
        """Wait until the thread that leads is done or has an outcome. Called with the turn held."""
        remaining = submission.deadline - time.monotonic()
        if remaining > 0:
            self._turn.wait(remaining)
        elif submission in self._waiting and not submission.offered:
            self._waiting.remove(submission)
            submission.outcome = _timed_out(submission)
        elif remaining < -GRACE_SECONDS:
            submission.outcome = CommitUnknown(submission.request_id, "the append it is part of has not ended")
        else:
            self._turn.wait(GRACE_SECONDS + remaining)

    def _lead(self, mine: _Submission) -> None:
        """Take the lock once and commit what waits; on return `mine` has an outcome, or its time is not over."""
        offer = self._offer() if self._contended else None
        asked_at = time.monotonic()
        try:
            acquired = self._queue.acquire(max(0.0, mine.deadline - asked_at))
        except CoordinationUnavailable as error:
            logger.debug("the commit lock cannot be asked for: %s", error)
            acquired = False
            time.sleep(max(0.0, min(RETRY_SECONDS, mine.deadline - time.monotonic())))
        if offer is not None:
            self._withdraw(offer)
        if not acquired:
            self._settle_overdue()
            return
        self._contended = time.monotonic() - asked_at > CONTENDED_SECONDS
        try:
            self._commit_waiting(mine)
            self._compact()
        finally:
            self._queue.release()

    def _offer(self) -> _Offer | None:
        """Show what waits here to whoever holds the lock. Planners are not shown: only they can plan again."""
        with self._turn:
            plain = [s for s in self._waiting if s.encoded is not None and s.expect_epoch is None][:BATCH]
        if not plain:
            return None
        proposals = [
            Proposal(s.request_id, s.encoded.event, s.encoded.payload, s.encoded.attachment, s.author, s.reason)
            for s in plain
            if s.encoded is not None
        ]
        ticket = self._queue.offer(msgspec.msgpack.encode(proposals))
        if ticket is None:
            return None
        for submission in plain:
            submission.offered = True
        return _Offer(ticket, plain)

    def _withdraw(self, offer: _Offer) -> None:
        if self._queue.withdraw(offer.ticket):
            for submission in offer.submissions:
                submission.offered = False

    def _settle_overdue(self) -> None:
        """The lock was not had: give those whose time is over their outcome, never `CommitTimeout` in doubt."""
        with self._turn:
            overdue = [s for s in self._waiting if s.deadline <= time.monotonic()]
            for submission in overdue:
                self._waiting.remove(submission)
        for submission in overdue:
            submission.outcome = self._look_up(submission) if submission.offered else _timed_out(submission)

    def _look_up(self, submission: _Submission) -> Committed | CommitUnknown | CommitTimeout:
        """What became of a proposal that another process has claimed and may be about to append.

        A claim is made after the log was read, and its append is against what was read then. So moving the log's
        version makes it fail if it has not happened yet, and after that the log tells.
        """
        try:
            with self._follower.exclusively():
                self._follower.catch_up()
                self._follower.log.fence()
                self._follower.catch_up()
                epoch = self._follower.request_epoch(submission.request_id)
        except EpochlakeError as error:
            return CommitUnknown(submission.request_id, f"another process has taken it, and {error}")
        return Committed(epoch, submission.request_id) if epoch is not None else _timed_out(submission)

    def _commit_waiting(self, mine: _Submission) -> None:
        with self._turn:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            self._commit_batch(batch, mine.deadline)
        except CommitTimeout as timeout:
            for submission in batch:
                if submission.outcome is None and submission.deadline <= time.monotonic():
                    submission.outcome = self._look_up(submission) if submission.offered else timeout
        except EpochlakeError as error:
            for submission in batch:
                submission.outcome = submission.outcome or error
        except BaseException:
            for submission in batch:
                interrupted = CommitUnknown(submission.request_id, "the thread that was appending it was interrupted")
                submission.outcome = submission.outcome or interrupted
            raise
        finally:
            with self._turn:
                self._waiting.extendleft(s for s in reversed(batch) if s.outcome is None)
                self._turn.notify_all()

    def _claim(self) -> list[_Submission]:
        """The proposals of processes that wait for the lock, claimed after the log was read: see `_look_up`."""
        if not self._contended:
            return []
        claimed = []
        for data in self._queue.claim():
            for proposal in msgspec.msgpack.decode(data, type=list[Proposal]):
                event = decode_event(proposal.event, proposal.payload, proposal.attachment, epoch=0)
                claimed.append(
                    _Submission(event, proposal.request_id, proposal.author, proposal.reason, float("inf"), None)
                )
        return claimed

    def _commit_batch(self, batch: Sequence[_Submission], deadline: float) -> None:
        """Append the batch; conflicts are planned again on what came in between, until the leader's time is over."""
        may_claim = True
        while True:
            with self._follower.exclusively():
                try:
                    self._follower.catch_up()
                except StorageUnavailable as error:
                    if time.monotonic() > deadline:
                        raise CommitTimeout(f"nothing was proposed: {error}") from error
                    time.sleep(RETRY_SECONDS)
                    continue
                # What was claimed is tried once: after a conflict its owner, who cannot know, may be trying it too.
                claimed = self._claim() if may_claim else []
                may_claim = False
                prepared = _Prepared(self._follower, [*batch, *claimed], self._snapshot_every, self._author)
                try:
                    if prepared.entries:
                        self._follower.log.append(prepared.entries)
                    elif prepared.rejects_what_others_may_append():
                        self._follower.log.fence()
                        for submission in batch:
                            submission.offered = False
                        continue
                except AppendConflict as conflict:
                    logger.debug("%s", conflict)
                    if time.monotonic() > deadline:
                        raise CommitTimeout("nothing was committed: others were always faster; try again") from conflict
                    continue
                except AppendUncertain as error:
                    if not self._read_back(prepared.entries, error, batch):
                        continue
                else:
                    if prepared.entries:
                        self._follower.appended(prepared.entries, prepared.metadata)
                prepared.settle()
                self._queue.publish(self._follower.position)
                return

    def _read_back(self, entries: Sequence[Entry], error: AppendUncertain, batch: Sequence[_Submission]) -> bool:
        """Whether entries whose append failed strangely are in the log; when that cannot be told, nobody is told so."""
        for _ in range(5):
            try:
                self._follower.catch_up()
            except (StorageUnavailable, LogUnreadable) as unreadable:
                logger.warning("reading the log back after %s: %s", error, unreadable)
                time.sleep(RETRY_SECONDS)
                continue
            landed = self._follower.request_epoch(entries[0].request_id) == entries[0].epoch
            logger.warning("%s; reading the log back: %s", error, "it landed" if landed else "it did not land")
            return landed
        for submission in batch:
            submission.outcome = CommitUnknown(submission.request_id, str(error))
        raise CommitUnknown(entries[0].request_id, str(error))

    def _compact(self) -> None:
        try:
            with self._follower.exclusively():
                self._follower.log.compact_if_due()
        except EpochlakeError as error:
            logger.warning("the log was not compacted: %s", error)


class _Prepared:
    """A batch as entries on top of the follower's metadata, and what to tell each submission once they are appended."""

    def __init__(self, follower: Follower, batch: Sequence[_Submission], snapshot_every: int, author: str) -> None:
        self.metadata = follower.metadata
        self.entries: list[Entry] = []
        self._position = follower.position
        self._results: list[tuple[_Submission, Committed | BaseException]] = []
        in_batch: dict[str, int] = {}
        now = time.monotonic()
        for submission in batch:
            epoch = in_batch.get(submission.request_id) or follower.request_epoch(submission.request_id)
            if epoch is not None:
                # What another process has appended on this one's behalf was not there before it was asked for.
                self._results.append(
                    (submission, Committed(epoch, submission.request_id, already=not submission.offered))
                )
                continue
            if submission.deadline < now:
                self._results.append((submission, _timed_out(submission)))
                continue
            try:
                event, encoded = submission.plan(self.metadata)
                self.metadata.check(event)
                self._add(event, encoded, submission.request_id, submission.author, submission.reason)
            except Exception as error:
                self._results.append((submission, error))
                continue
            in_batch[submission.request_id] = self.metadata.epoch
            self._results.append((submission, Committed(self.metadata.epoch, submission.request_id)))
        if self.entries and 0 < snapshot_every <= self.metadata.epoch - self.metadata.last_snapshot_epoch:
            snapshot = TakeSnapshot()
            self._add(snapshot, encode_event(snapshot), next_state_id(""), author, "due")

    def rejects_what_others_may_append(self) -> bool:
        """Whether an error would be reported for a submission that a claimer, paused since, may still append."""
        return any(submission.offered and isinstance(result, Exception) for submission, result in self._results)

    def settle(self) -> None:
        for submission, result in self._results:
            submission.outcome = result

    def _add(self, event: Event, encoded: EncodedEvent, request_id: str, author: str, reason: str) -> None:
        state_id = next_state_id(self._position.state_id)
        metadata = self.metadata.apply(event, state_id)
        entry = seal(
            encoded,
            epoch=metadata.epoch,
            request_id=request_id,
            state_id=state_id,
            previous_state_id=self._position.state_id,
            author=author,
            reason=reason,
            committed_at=time.time_ns() // 1000,
            incarnation=metadata.identity.incarnation,
            previous_hash=self._position.hash,
        )
        self.entries.append(entry)
        self.metadata = metadata
        self._position = Position(entry.epoch, entry.state_id, entry.hash)


def _timed_out(submission: _Submission) -> CommitTimeout:
    return CommitTimeout(
        f"the commit lock was not had in the time given; nothing was proposed for request {submission.request_id}. "
        "Is ZooKeeper up? Try again, or give more time"
    )
