"""The line in front of the log, in ZooKeeper: commit lock, proposals and head together, as committing needs them.

Nothing here can fail a commit: whatever ZooKeeper does not do is only slower for somebody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.head import Head, publish_head
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.coordination.proposals import Batch, Proposals
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.log.entry import Position

logger = logging.getLogger(__name__)


class ZooKeeperQueue:
    """One process's place in the line. Its lock is used by one thread at a time.

    `connect` gives the session; it is called when something is first asked for, and again while it has failed.
    """

    def __init__(self, connect: Callable[[], Coordination]) -> None:
        self._connect = connect
        self._lock: CommitLock | None = None
        self._proposals: Proposals | None = None

    def acquire(self, timeout: float) -> bool:
        started = time.monotonic()
        if self._lock is None:
            coordination = self._connect()
            self._lock, self._proposals = CommitLock(coordination), Proposals(coordination)
        return self._lock.acquire(max(0.0, timeout - (time.monotonic() - started)))

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def offer(self, proposals: bytes) -> Batch | None:
        return self._proposals.publish(proposals) if self._proposals is not None else None

    def withdraw(self, ticket: Batch) -> bool:
        return self._proposals.withdraw(ticket) if self._proposals is not None else False

    def claim(self) -> list[bytes]:
        if self._proposals is None:
            return []
        try:
            return [batch.data for batch in self._proposals.claim(self._proposals.pending())]
        except CoordinationUnavailable as error:
            logger.debug("no proposals of others: %s", error)
            return []

    def publish(self, position: Position) -> None:
        try:
            publish_head(self._connect(), Head(position.epoch, position.state_id, position.hash))
        except CoordinationUnavailable as error:
            logger.warning("epoch %d is committed but not announced: %s", position.epoch, error)
