"""A batch of submissions as entries on top of the newest metadata.

A result is worked out before the append and told only after it. `Prepared` is pure bookkeeping on the metadata that it
was made on; nobody hears of it until the committer has appended its entries.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from epochlake.metastore.committing.outcomes import committed_at, succeeded
from epochlake.metastore.committing.submissions import Committed, Submission
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import EncodedEvent, Entry, encode_event, position_of, seal
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, TakeSnapshot


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

    def fails_what_others_may_append(self, own: Collection[Submission]) -> bool:
        """Whether it holds a failure of an own submission that somebody may still be about to append."""
        return any(
            submission.may_be_landing and isinstance(result, Exception) and submission in own
            for submission, result in self._results
        )

    def fails_an_earlier_try(self) -> bool:
        """Whether it holds a failure of a request of which somebody may have offered an earlier try."""
        return any(submission.named and isinstance(result, Exception) for submission, result in self._results)

    def settle(self) -> None:
        """Tell everybody, but no failure to one that somebody may still take: that one stays without an outcome."""
        for submission, result in self._results:
            if not (submission.offered and isinstance(result, Exception)):
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


def _completed(
    event: Event, encoded: EncodedEvent, asked: str, metadata: ClusterMetadata
) -> tuple[Event, EncodedEvent]:
    completed = event.completed(metadata)
    return (event, encoded) if completed is event else (completed, encode_event(completed, asked))
