"""What waits to be committed: submissions of this process, proposals of others, and a batch of them made into entries.

The one idea: a result is worked out before the append and told only after it. `Prepared` is pure bookkeeping on the
metadata that it was made on; nobody hears of it until the committer has appended its entries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from epochlake.metastore.errors import CommitTimeout, LogUnreadable, Rejected
from epochlake.metastore.follower import Follower
from epochlake.metastore.log.entry import EncodedEvent, Entry, decode_event, encode_event, position_of, seal
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, TakeSnapshot

logger = logging.getLogger(__name__)

Planner = Callable[[ClusterMetadata], Event]


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


class Submission:
    """An event or a planner on its way into the log, and what became of it.

    Two things keep a failure from being told. `in_line`: it is offered, and somebody may take it still. `in_doubt`:
    somebody may have taken it before, and may be about to append it; so may an append whose answer was lost.
    """

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
        self.in_line = False
        self.in_doubt = False
        self.planned = _as_followers_see_it(what) if isinstance(what, Event) else None
        _require_text(request_id=request_id, reason=reason, author=author)

    def plan(self, metadata: ClusterMetadata) -> tuple[Event, EncodedEvent]:
        """The event on top of `metadata`. Raises Rejected, or whatever the planner raises."""
        if self.expect_epoch is not None and metadata.epoch != self.expect_epoch:
            raise Rejected(
                "epoch-moved",
                f"epoch {self.expect_epoch} was expected, the cluster is at epoch {metadata.epoch}: look again",
            )
        if self.planned is not None:
            return self.planned
        assert not isinstance(self.what, Event)
        return _as_followers_see_it(self.what(metadata))


def timed_out(submission: Submission) -> CommitTimeout:
    return CommitTimeout(
        f"the commit lock was not had in the time given; nothing was proposed for request {submission.request_id}. "
        "Is ZooKeeper up? Try again, or give more time"
    )


def encode_proposals(submissions: Iterable[Submission]) -> bytes:
    """Events for another process to append. Planners are left out: only their own process can plan again."""
    proposals = [
        Proposal(s.request_id, encoded.event, encoded.payload, encoded.attachment, s.author, s.reason)
        for s in submissions
        if s.planned is not None
        for _, encoded in [s.planned]
    ]
    return msgspec.msgpack.encode(proposals)


def decode_proposals(data: bytes) -> list[Submission]:
    """Submissions of another process. What this version cannot read is left out: its owner proposes it itself."""
    submissions = []
    try:
        proposals = msgspec.msgpack.decode(data, type=list[Proposal])
    except msgspec.MsgspecError as error:
        logger.warning("proposals of another process cannot be read: %s", error)
        return []
    for proposal in proposals:
        try:
            event = decode_event(proposal.event, proposal.payload, proposal.attachment, epoch=0)
            submission = Submission(event, proposal.request_id, proposal.author, proposal.reason, float("inf"), None)
        except (LogUnreadable, Rejected) as error:
            logger.warning("request %s of another process cannot be read: %s", proposal.request_id, error)
            continue
        submissions.append(submission)
    return submissions


class Prepared:
    """A batch as entries on top of the follower's metadata, and what to tell each submission once they are appended."""

    def __init__(self, follower: Follower, batch: Sequence[Submission], snapshot_every: int, author: str) -> None:
        self.base = follower.position
        self.metadata = follower.metadata
        self.entries: list[Entry] = []
        self._position = follower.position
        self._results: list[tuple[Submission, Committed | Exception]] = []
        in_batch: dict[str, int] = {}
        for submission in batch:
            epoch = in_batch.get(submission.request_id) or follower.request_epoch(submission.request_id)
            if epoch is not None:
                # What was appended on this one's behalf was not there before it was asked for.
                already = not (submission.in_line or submission.in_doubt)
                self._results.append((submission, Committed(epoch, submission.request_id, already=already)))
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

    def fails_what_others_may_append(self) -> bool:
        """Whether it holds a failure of a submission that somebody may still be about to append."""
        return any(submission.in_doubt and isinstance(result, Exception) for submission, result in self._results)

    def settle(self) -> None:
        """Tell everybody, but no failure to one that somebody may still take: that one stays without an outcome."""
        for submission, result in self._results:
            if not (submission.in_line and isinstance(result, Exception)):
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
        self._position = position_of(entry)


def _as_followers_see_it(event: Event) -> tuple[Event, EncodedEvent]:
    """The event as it will be read from the log, which is what has to be checked: an entry that cannot be read would
    stop every follower for good. Raises Rejected (invalid-event).
    """
    if not isinstance(event, Event):
        raise Rejected("invalid-event", f"a planner returns an event, not {type(event).__name__}")
    try:
        encoded = encode_event(event)
        return decode_event(encoded.event, encoded.payload, encoded.attachment, epoch=0), encoded
    except (LogUnreadable, msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Rejected("invalid-event", f"{type(event).__name__} holds what the log cannot keep: {error}") from error


def _require_text(**texts: str) -> None:
    for name, text in texts.items():
        try:
            text.encode()
        except (UnicodeEncodeError, AttributeError) as error:
            raise Rejected("invalid-text", f"{name} {text!r} is not text that the log can keep: {error}") from error
