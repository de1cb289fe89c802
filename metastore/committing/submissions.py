"""What waits to be committed: submissions of this process, proposals of others, and a batch of them made into entries.

A result is worked out before the append and told only after it. `Prepared` is pure bookkeeping on the
metadata that it was made on; nobody hears of it until the committer has appended its entries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from epochlake.metastore.errors import CommitTimeout, LogUnreadable, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import EncodedEvent, Entry, decode_event, encode_event, position_of, seal, words_in
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, TakeSnapshot
from epochlake.placement.decoding import decodable
from epochlake.placement.rejections import Code

logger = logging.getLogger(__name__)

LONGEST_DESCRIPTION = 300
"""So many characters of an event are shown in a message."""

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

    `named`: the caller chose the request id, so that earlier tries of it are possible. `asked`: the change in the
    caller's words, for planners, which may plan something else when the same request is tried again.
    """

    def __init__(
        self,
        what: Event | Planner,
        request_id: str,
        author: str,
        reason: str,
        deadline: float,
        expect_epoch: int | None,
        asked: str = "",
        *,
        named: bool = True,
    ) -> None:
        self.what = what
        self.asked = asked
        self.named = named
        self.request_id = request_id
        self.author = author
        self.reason = reason
        self.deadline = deadline
        self.expect_epoch = expect_epoch
        self.outcome: Committed | BaseException | None = None
        self.in_line = False
        self.in_doubt = False
        _require_text(request_id=request_id, reason=reason, author=author, asked=asked)
        self.planned = _as_followers_see_it(what, asked) if isinstance(what, Event) else None

    def plan(self, metadata: ClusterMetadata) -> tuple[Event, EncodedEvent]:
        """The event on top of `metadata`. Raises Rejected, or whatever the planner raises."""
        if self.expect_epoch is not None and metadata.epoch != self.expect_epoch:
            raise Rejected(
                Code.EPOCH_MOVED,
                f"epoch {self.expect_epoch} was expected, the cluster is at epoch {metadata.epoch}: look again",
            )
        if self.planned is not None:
            return self.planned
        assert not isinstance(self.what, Event)
        return _as_followers_see_it(self.what(metadata), self.asked)

    def is_for_another_change(self, entry: Entry) -> bool:
        """Whether the entry with this one's request id is of another change than is asked for now.

        The words of both decide where both have said them. A planner that does not say what it is for is believed: it
        may plan something else on the metadata of now.
        """
        if self.asked and entry.asked:
            return self.asked != entry.asked
        if self.planned is None:
            return False
        event, _ = self.planned
        # Fields may be chosen anew for each try (ids, for instance): then only the words would tell.
        return event.kind() != entry.event if self.asked else event.as_asked() != entry.decode().as_asked()

    def description(self) -> str:
        """What is asked for, for people."""
        if self.asked or self.planned is None:
            return self.asked or "a change that is planned when it is committed"
        return _described(self.planned[1].event, self.planned[1].payload)


def used_for_another_change(submission: Submission, entry: Entry) -> Rejected:
    """The rejection of a request id that comes again with another change."""
    then = entry.asked or _described(entry.event, entry.payload)
    return Rejected(
        Code.REQUEST_ID_USED,
        f"request id {submission.request_id} was used at epoch {entry.epoch} for: {then}. Now it comes with: "
        f"{submission.description()}. Use another request id for another change",
    )


def _described(event: str, payload: str) -> str:
    return f"{event} {payload}" if len(payload) <= LONGEST_DESCRIPTION else f"{event} {payload[:LONGEST_DESCRIPTION]}…"


def timed_out(submission: Submission, obstacle: str = "") -> CommitTimeout:
    """The lock was not had; `obstacle` is what ZooKeeper, or who starts it, said last."""
    said = f": {obstacle.rstrip('. ')}." if obstacle else ". Is ZooKeeper up?"
    return CommitTimeout(
        f"the commit lock was not had in the time given; nothing was proposed for request {submission.request_id}"
        f"{said} Try again, or give more time"
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
        proposals = msgspec.msgpack.decode(data, type=decodable(list[Proposal]))
    except msgspec.MsgspecError as error:
        logger.warning("proposals of another process cannot be read: %s", error)
        return []
    for proposal in proposals:
        try:
            event = decode_event(proposal.event, proposal.payload, proposal.attachment, epoch=0)
            submission = Submission(
                event,
                proposal.request_id,
                proposal.author,
                proposal.reason,
                float("inf"),
                None,
                words_in(proposal.payload),
            )
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
                self._results.append((submission, self._found(submission, epoch, follower)))
                continue
            try:
                event, encoded = submission.plan(self.metadata)
                self.metadata.check(event)
                event, encoded = _completed(event, encoded, submission.asked, self.metadata)
                self._add(event, encoded, submission.request_id, submission.author, submission.reason)
            except Exception as error:
                self._results.append((submission, error))
                continue
            in_batch[submission.request_id] = self.metadata.epoch
            self._results.append((submission, Committed(self.metadata.epoch, submission.request_id)))
        if self.entries and 0 < snapshot_every <= self.metadata.epoch - self.metadata.last_snapshot_epoch:
            snapshot = TakeSnapshot().completed(self.metadata)
            self._add(snapshot, encode_event(snapshot), next_state_id(""), author, "due")

    def _found(self, submission: Submission, epoch: int, follower: Follower) -> Committed | Rejected:
        """The outcome of a submission whose request id is in the log, or ahead of it in this batch."""
        if epoch > self.base.epoch:
            return committed_at(submission, self.entries[epoch - self.base.epoch - 1])
        entry = follower.request_entry(submission.request_id) if submission.named else None
        return committed_at(submission, entry) if entry is not None else succeeded(submission, epoch)

    def fails_what_others_may_append(self) -> bool:
        """Whether it holds a failure of a submission that somebody may still be about to append."""
        return any(submission.in_doubt and isinstance(result, Exception) for submission, result in self._results)

    def fails_an_earlier_try(self) -> bool:
        """Whether it holds a failure of a request of which somebody may have offered an earlier try."""
        return any(submission.named and isinstance(result, Exception) for submission, result in self._results)

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


def committed_at(submission: Submission, entry: Entry) -> Committed | Rejected:
    """The outcome of a submission whose request id `entry` has."""
    if submission.named and submission.is_for_another_change(entry):
        return used_for_another_change(submission, entry)
    return succeeded(submission, entry.epoch)


def succeeded(submission: Submission, epoch: int) -> Committed:
    """What was appended on a submission's behalf was not there before it was asked for: not `already`."""
    already = not (submission.in_line or submission.in_doubt)
    return Committed(epoch, submission.request_id, already=already)


def _as_followers_see_it(event: Event, asked: str) -> tuple[Event, EncodedEvent]:
    """The event as it will be read from the log, which is what has to be checked: an entry that cannot be read would
    stop every follower for good. Raises Rejected (invalid-event).
    """
    if not isinstance(event, Event):
        raise Rejected(Code.INVALID_EVENT, f"a planner returns an event, not {type(event).__name__}")
    try:
        encoded = encode_event(event, asked)
        return decode_event(encoded.event, encoded.payload, encoded.attachment, epoch=0), encoded
    except (LogUnreadable, msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Rejected(Code.INVALID_EVENT, f"{type(event).__name__} holds what the log cannot keep: {error}") from error


def _completed(
    event: Event, encoded: EncodedEvent, asked: str, metadata: ClusterMetadata
) -> tuple[Event, EncodedEvent]:
    completed = event.completed(metadata)
    return (event, encoded) if completed is event else (completed, encode_event(completed, asked))


def _require_text(**texts: str) -> None:
    for name, text in texts.items():
        try:
            text.encode()
        except (UnicodeEncodeError, AttributeError) as error:
            raise Rejected(Code.INVALID_TEXT, f"{name} {text!r} is not text that the log can keep: {error}") from error
