"""A submission: an event or a planner on its way into the log, and who may append it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec
from epochlake.metastore.errors import LogUnreadable, Rejected
from epochlake.metastore.log.entry import EncodedEvent, Entry, decode_event, encode_event
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event
from epochlake.placement.rejections import Code

LONGEST_DESCRIPTION = 300
"""So many characters of an event are shown in a message."""

Planner = Callable[[ClusterMetadata], Event]


class Committed(msgspec.Struct, frozen=True):
    """The change is in the log at `epoch`; `already` when an earlier try with this request id had committed it."""

    epoch: int
    request_id: str
    already: bool = False


class Standing(Enum):
    """Who may append a submission, besides the thread of its own process that leads."""

    OWN = "nobody"
    OFFERED = "whoever takes it: it is offered"
    TAKEN = "somebody who may have taken it, or an append whose answer was lost"
    OFFERED_AND_TAKEN = "both"


class SubmissionStep(Enum):
    """What happens to a submission on its way."""

    OFFER = "it is shown to other processes, or its withdrawal is uncertain"
    KEEP = "nobody has taken the offer, and nobody will"
    LOSE_SIGHT = "nobody will take the offer, but somebody may have"
    LOSE_ANSWER = "it was appended, or not: no answer came"
    MOVE_LOG = "the log has moved on: what somebody had taken before cannot land any more"


TRANSITIONS: dict[Standing, dict[SubmissionStep, Standing]] = {
    Standing.OWN: {
        SubmissionStep.OFFER: Standing.OFFERED,
        SubmissionStep.KEEP: Standing.OWN,
        SubmissionStep.LOSE_SIGHT: Standing.TAKEN,
        SubmissionStep.LOSE_ANSWER: Standing.TAKEN,
        SubmissionStep.MOVE_LOG: Standing.OWN,
    },
    Standing.OFFERED: {
        SubmissionStep.OFFER: Standing.OFFERED,
        SubmissionStep.KEEP: Standing.OWN,
        SubmissionStep.LOSE_SIGHT: Standing.TAKEN,
        SubmissionStep.LOSE_ANSWER: Standing.OFFERED_AND_TAKEN,
        SubmissionStep.MOVE_LOG: Standing.OFFERED,
    },
    Standing.TAKEN: {
        SubmissionStep.OFFER: Standing.OFFERED_AND_TAKEN,
        SubmissionStep.KEEP: Standing.TAKEN,
        SubmissionStep.LOSE_SIGHT: Standing.TAKEN,
        SubmissionStep.LOSE_ANSWER: Standing.TAKEN,
        SubmissionStep.MOVE_LOG: Standing.OWN,
    },
    Standing.OFFERED_AND_TAKEN: {
        SubmissionStep.OFFER: Standing.OFFERED_AND_TAKEN,
        SubmissionStep.KEEP: Standing.TAKEN,
        SubmissionStep.LOSE_SIGHT: Standing.TAKEN,
        SubmissionStep.LOSE_ANSWER: Standing.OFFERED_AND_TAKEN,
        SubmissionStep.MOVE_LOG: Standing.OFFERED,
    },
}
"""Where each step leads. A success can be told in every standing; a failure only in `OWN`."""


class Submission:
    """An event or a planner on its way into the log, and what became of it.

    Its `standing` says who else may append it: what keeps a failure from being told.

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
        self.standing = Standing.OWN
        self.has_joined = False
        """It came while an offer of an earlier call of its request, by the same process, could still be taken."""
        self._log_has_moved = False
        _require_text(request_id=request_id, reason=reason, author=author, asked=asked)
        self.planned = _as_followers_see_it(what, asked) if isinstance(what, Event) else None

    def take(self, step: SubmissionStep) -> None:
        """Go where a step leads."""
        self.standing = TRANSITIONS[self.standing][step]
        # What it had joined nobody takes any more: from now on whoever commits it does so for its own sake.
        self.has_joined &= self.standing is not Standing.OWN
        self._log_has_moved |= step is SubmissionStep.MOVE_LOG

    @property
    def offered(self) -> bool:
        """Somebody may take it still."""
        return self.standing in (Standing.OFFERED, Standing.OFFERED_AND_TAKEN)

    @property
    def taken(self) -> bool:
        """Somebody may have taken it, and may be about to append it."""
        return self.standing in (Standing.TAKEN, Standing.OFFERED_AND_TAKEN)

    @property
    def may_have_been_offered(self) -> bool:
        """An earlier try of its request, by whichever process, may have been shown to others."""
        return self.named and self.planned is not None and self.expect_epoch is None

    @property
    def may_be_landing(self) -> bool:
        """Somebody may be about to append it, or what he has taken from an earlier try of it: until the log moves."""
        return self.taken or (self.may_have_been_offered and not self._log_has_moved)

    def is_elsewhere(self, epoch: int) -> bool:
        """Whether an epoch is not the one that it was to become."""
        return self.expect_epoch is not None and epoch != self.expect_epoch + 1

    def plan(self, metadata: ClusterMetadata) -> tuple[Event, EncodedEvent]:
        """The event on top of `metadata`. Raises Rejected, or whatever the planner raises."""
        require_epoch(metadata, self.expect_epoch)
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
        return described(self.planned[1].event, self.planned[1].payload)


def require_epoch(metadata: ClusterMetadata, expected: int | None) -> None:
    """Raise Rejected (epoch-moved) where another epoch than the newest one is expected; None: any is right."""
    if expected is not None and metadata.epoch != expected:
        raise Rejected(
            Code.EPOCH_MOVED,
            f"epoch {expected} was expected, the cluster is at epoch {metadata.epoch}",
            hint="Look again",
        )


def described(event: str, payload: str) -> str:
    return f"{event} {payload}" if len(payload) <= LONGEST_DESCRIPTION else f"{event} {payload[:LONGEST_DESCRIPTION]}…"


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


def _require_text(**texts: str) -> None:
    for name, text in texts.items():
        try:
            text.encode()
        except (UnicodeEncodeError, AttributeError) as error:
            raise Rejected(Code.INVALID_TEXT, f"{name} {text!r} is not text that the log can keep: {error}") from error
