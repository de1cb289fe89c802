"""Offers between processes: who waits for the lock shows what it would commit, and who holds the lock takes it along.

An offer saves its owner the wait, and decides nothing: the append of the one who takes it does. It is worth its round
trips only while others are there, so a committer offers and claims for a while after it has seen others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.committing.submissions import Committed, Submission, SubmissionStep
from epochlake.metastore.errors import CoordinationUnavailable, LogUnreadable, Rejected
from epochlake.metastore.log.entry import decode_event, words_in
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)

REMEMBERED_SECONDS = 1.0
"""After so long without a sign of others a committer neither offers nor claims any more."""


class Proposal(msgspec.Struct, frozen=True):
    """An event on its way to another process that holds the lock."""

    request_id: str
    event: str
    payload: str
    attachment: bytes | None
    author: str
    reason: str


class _Offer(msgspec.Struct, frozen=True):
    """What was offered in one piece; `joined`: later tries of the same requests, which the offer may still commit."""

    ticket: Any
    submissions: list[Submission]
    joined: list[Submission]

    def __iter__(self) -> Iterator[Submission]:
        yield from self.submissions
        yield from self.joined


class EarlierTries(NamedTuple):
    """Which requests may have earlier tries, and whether these may be in line still, as the line did not answer."""

    requests: frozenset[str] = frozenset()
    are_in_line: bool = False


class Offers:
    """What a committer has offered to others, and takes from them. Used by the thread that leads; `turn` is the lock
    under which submissions wait.
    """

    def __init__(self, queue: CommitQueue, turn: threading.Condition) -> None:
        self.worthwhile = False
        self._queue = queue
        self._turn = turn
        self._others_seen = 0.0
        self._open: list[_Offer] = []

    def look_for_others(self, seen: bool) -> None:
        """Offering is worthwhile from now on when others were `seen`, and for a while after they were seen last."""
        if seen:
            self._others_seen = time.monotonic()
        self.worthwhile = seen or time.monotonic() - self._others_seen < REMEMBERED_SECONDS

    def show(self, waiting: Iterable[Submission], until: float, most: int) -> None:
        """Show what waits here to whoever holds the lock, `most` at a time.

        Not planners: only they can plan again. And not those whose time is over before `until`: the leader does not
        come back to them in time.
        """
        with self._turn:
            able = [
                s
                for s in waiting
                if s.planned is not None and s.expect_epoch is None and not s.offered and s.deadline >= until
            ]
            # Of two calls of one request one is shown, and the other one waits for what becomes of it.
            first: dict[str, Submission] = {}
            for submission in able:
                first.setdefault(submission.request_id, submission)
            shown = list(first.values())[:most]
            ids = {s.request_id for s in shown}
            joined = [s for s in able if s.request_id in ids and s is not first[s.request_id]]
            for submission in (*shown, *joined):
                submission.take(SubmissionStep.OFFER)
            for submission in joined:
                submission.has_joined = True
        if not shown:
            return
        ticket = self._queue.offer(encode_proposals(shown))
        if ticket is not None:
            self._open.append(_Offer(ticket, shown, joined))
            return
        for submission in (*shown, *joined):
            submission.take(SubmissionStep.KEEP)

    def join(self, submission: Submission) -> None:
        """A request may come again while an offer of an earlier try can still be taken: then that offer is its own.

        Called with the turn held.
        """
        for offer in self._open:
            if any(earlier.request_id == submission.request_id for earlier in offer.submissions):
                submission.take(SubmissionStep.OFFER)
                submission.has_joined = True
                offer.joined.append(submission)

    def answered(self) -> list[tuple[Submission, int]]:
        """Submissions that others have committed since the last call, with their epochs. This process reads these
        epochs when it needs them.
        """
        told = self._queue.answers()
        found = [
            (submission, epoch)
            for offer in self._open
            for submission in offer.submissions
            if (epoch := told.get(offer.ticket, {}).get(submission.request_id)) is not None
        ]
        return found

    def forget_settled(self) -> None:
        """What is answered was claimed, and is not there any more. Called with the turn held."""
        self._open = [offer for offer in self._open if any(s.outcome is None for s in offer)]

    def end(self) -> None:
        """Take back what was offered. An offer whose withdrawal is uncertain stays open, whoever waits for it."""
        steps = [(offer, self._withdrawn(offer)) for offer in self._open]
        with self._turn:
            for offer, step in steps:
                for submission in offer:
                    submission.take(step)
            self._open = [offer for offer, step in steps if step is SubmissionStep.OFFER]

    def _withdrawn(self, offer: _Offer) -> SubmissionStep:
        try:
            return SubmissionStep.KEEP if self._queue.withdraw(offer.ticket) else SubmissionStep.LOSE_SIGHT
        except CoordinationUnavailable as error:
            logger.debug("an offer is not taken back: %s", error)
            return SubmissionStep.OFFER

    def claim(self) -> list[list[Submission]]:
        """The proposals of processes that wait for the lock. To be called after the log was read: see outcomes.py."""
        claims = [decode_proposals(data) for data in self._queue.claim()]
        self.look_for_others(bool(claims))
        return claims

    def drop_earlier_tries(self, submissions: Iterable[Submission]) -> EarlierTries:
        """Take away what earlier tries of these requests, by processes that may be gone, have left in line."""
        requests = {s.request_id for s in submissions if s.may_have_been_offered}
        if not requests:
            return EarlierTries()
        seen = self._queue.drop(lambda data: any(s.request_id in requests for s in decode_proposals(data)))
        return EarlierTries(frozenset(requests), are_in_line=not seen)

    def answer(self, claims: Sequence[Sequence[Submission]]) -> None:
        """Tell the owners of the last claims what was committed of them."""
        if claims:
            self._queue.answer([_epochs_of(claim) for claim in claims])


def _epochs_of(claim: Sequence[Submission]) -> dict[str, int]:
    """Which of the requests of a claim this append has committed. Of the others the owner asks the log."""
    return {
        submission.request_id: submission.outcome.epoch
        for submission in claim
        if isinstance(submission.outcome, Committed) and not submission.outcome.already
    }


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
