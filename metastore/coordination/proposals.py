"""The queue of proposals: how processes that wait for the commit lock share one commit of the log.

A published batch is a znode, and **deleting it is the decision**. ZooKeeper lets exactly one delete of a
znode succeed. The lock holder whose delete succeeded (`claim`) may propose the batch; the owner whose delete succeeded
(`withdraw`) knows that nobody has proposed it on its behalf, and that nobody will.

What follows from that:

- At most one of all the claimers and the owner gets a batch, also when a holder of the lock was paused and there are
  two of them.
- A delete whose answer was lost decides for nobody. `claim` leaves such a batch out: the owner may have withdrawn it,
  and may have reported that nothing was proposed. `withdraw` fails for it: it may still be claimed, until withdrawing
  it is asked again and answered. If the delete was carried out after all, the batch is gone and neither has it; the
  owner, for whom "gone" and "claimed by somebody who died" look the same, looks its request ids up in the log and, when
  they are not there, proposes the events itself under the lock. Request ids keep that from committing twice.
- The znode is ephemeral: a batch of a dead owner vanishes with its session. An owner whose session expired sees
  its batch gone, as above.
- Names contain a UUID and are chosen before the request is sent, so that a batch whose publishing was not answered can
  still be withdrawn, and no name is ever used twice, even by a ZooKeeper that was set up anew.

Losing all of this costs nothing but the sharing: every owner ends up proposing for itself.
"""

from __future__ import annotations

import time
import uuid

import msgspec
from epochlake.metastore.coordination.answers import Answers
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.errors import CoordinationUnavailable
from kazoo.exceptions import NoNodeError

PROPOSALS = "proposals"

# ZooKeeper refuses a request of 1 MiB, path and header included.
LARGEST_BATCH_BYTES = 900_000


class PublishedBatch(msgspec.Struct, frozen=True):
    """A published batch: where it is, and the events in it (bytes that only the committer understands)."""

    path: str
    data: bytes


class Proposals:
    """The queue as one process sees it. Safe to use from several threads."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._own: set[str] = set()
        self._answers = Answers(coordination)

    @property
    def answers(self) -> Answers:
        """What others tell this process about its batches."""
        return self._answers

    def publish(self, data: bytes, timeout: float | None = None) -> PublishedBatch | None:
        """Offer a batch to whoever holds the lock.

        None when it is not published: it is too large, or there is no connection. When the answer is lost the
        batch may or may not be there, and is returned all the same: end every batch with `withdraw`.
        """
        coordination = self._coordination
        if len(data) > LARGEST_BATCH_BYTES or not coordination.connected:
            return None
        deadline = time.monotonic() + (coordination.request_timeout if timeout is None else timeout)
        try:
            directory = coordination.ensure(PROPOSALS, timeout)
            mailbox = self._answers.open(deadline - time.monotonic())
        except CoordinationUnavailable:
            return None
        batch = PublishedBatch(f"{directory}/batch-{mailbox}-{uuid.uuid4().hex}", data)
        self._own.add(batch.path)
        request = coordination.client.create_async(batch.path, data, ephemeral=True)
        try:
            coordination.answer("publish a batch", request, deadline - time.monotonic())
        except NoNodeError:
            self._own.discard(batch.path)
            coordination.forget(directory)  # it vanished: a ZooKeeper that was set up anew
            return None
        except CoordinationUnavailable:
            pass  # perhaps it is there: `withdraw` will tell
        return batch

    def withdraw(self, batch: PublishedBatch, timeout: float | None = None) -> bool:
        """Take an own batch back. True: nobody has proposed it on our behalf, and nobody will.

        False: it is not there any more; it was claimed, or it vanished with the session. The owner then looks its
        request ids up in the log before it says anything about them. `CoordinationUnavailable`: no answer; the batch
        may still be claimed, so that the owner can say nothing until it has asked again and was answered.
        """
        self._own.discard(batch.path)
        request = self._coordination.client.delete_async(batch.path)
        try:
            self._coordination.answer("withdraw a batch", request, timeout)
        except NoNodeError:
            return False
        return True

    def answer(self, batch: PublishedBatch, epochs: dict[str, int]) -> None:
        """Tell the owner of a claimed batch at which epochs its requests were committed. Neither waits nor raises."""
        self._answers.send(batch.path, epochs)

    def is_published(self, batch: PublishedBatch, timeout: float | None = None) -> bool:
        """Is an own batch still waiting? False: claimed, or gone with the session."""
        found = self._coordination.call("look for a batch", lambda client: client.exists_async(batch.path), timeout)
        return found is not None

    def pending(self, timeout: float | None = None) -> list[PublishedBatch]:
        """The batches of the others, the oldest first. Two round trips, however many they are."""
        directory = self._coordination.path(PROPOSALS)
        deadline = time.monotonic() + (self._coordination.request_timeout if timeout is None else timeout)
        paths = [f"{directory}/{name}" for name in self._coordination.children(directory, timeout)]
        others = [path for path in paths if path not in self._own]
        found = self._coordination.read_all(others, deadline - time.monotonic())
        batches = [
            (answer[1].czxid, PublishedBatch(path, answer[0]))
            for path, answer in zip(others, found, strict=True)
            if answer
        ]
        return [batch for _, batch in sorted(batches, key=lambda pair: pair[0])]

    def claim(self, batches: list[PublishedBatch], timeout: float | None = None) -> list[PublishedBatch]:
        """Take batches over, to propose them: only those that are returned may be proposed, by this caller.

        One round trip for all. A batch is left out when somebody else has it, and also when the answer was lost, even
        if ours was the delete that removed it: its owner then proposes it itself.
        """
        deadline = time.monotonic() + (self._coordination.request_timeout if timeout is None else timeout)
        requests = [(batch, self._coordination.client.delete_async(batch.path)) for batch in batches]
        claimed = []
        for batch, request in requests:
            try:
                self._coordination.answer("claim a batch", request, deadline - time.monotonic())
            except (NoNodeError, CoordinationUnavailable):
                continue
            claimed.append(batch)
        return claimed
