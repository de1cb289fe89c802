"""The line in front of the log, in ZooKeeper: commit lock, proposals and head together, as committing needs them.

Nothing here can fail a commit: whatever ZooKeeper does not do is only slower for somebody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.coordination.client import CONNECT_TIMEOUT_SECONDS, Coordination, Value
from epochlake.metastore.coordination.head import HEAD, Head, decode_head, position_of_head, publish_head_soon
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.coordination.proposals import Proposals, PublishedBatch
from epochlake.metastore.coordination.root import ROOT
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.log.entry import Position
from kazoo.exceptions import KazooException, NoNodeError

logger = logging.getLogger(__name__)

SHORTEST_CONNECT_SECONDS = 1.0
"""Even a commit that may not wait for the lock has to wait for a first answer."""

ANSWER_SECONDS = 1.0
"""How long an answer is awaited about what only saves time, or is asked again: offers, claims, the head."""

PATIENCE_SECONDS = 0.05
"""Who has made an offer waits for its answer before it lines up, so long for each of the others that were in the line
when it lined up last: one of them leads, and a place in the line costs all of them more than the offer does."""

LONGEST_PATIENCE_SECONDS = 0.5
"""Then it lines up, whoever else there is: nobody counts on others to lead."""


class ZooKeeperQueue:
    """One process's place in the line. Its lock is used by one thread at a time.

    `connect` gives the session, waiting at most as many seconds as it is given; it is called when something is first
    asked for, and again while it has failed. `require_root` is given the root that ZooKeeper knows, or None, and raises
    WrongCluster when that is another one.
    """

    def __init__(
        self,
        connect: Callable[[float], Coordination],
        require_root: Callable[[Coordination, str | None], None] = lambda _coordination, _known: None,
    ) -> None:
        self._connect = connect
        self._require_root = require_root
        self._asked: list[Any] = []
        self._coordination: Coordination | None = None
        self._lock: CommitLock | None = None
        self._proposals: Proposals | None = None
        self._claimed: list[PublishedBatch] = []
        self._head: Value | None = None
        self._has_offered = False
        self._news = threading.Event()
        self._unannounced: Head | None = None
        """What was told before there was a connection."""

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        started = time.monotonic()
        if self._lock is None:
            self._coordination = self._connect(min(CONNECT_TIMEOUT_SECONDS, max(timeout, SHORTEST_CONNECT_SECONDS)))
            self._proposals = Proposals(self._coordination)
            self._lock = CommitLock(self._coordination)
            # Who has an answer does not need the lock any more, or asks for it again.
            self._proposals.answers.arrived = self._answered
            if (told := self._unannounced) is not None:
                publish_head_soon(self._coordination, told, None)
        assert self._proposals is not None
        answers = self._proposals.answers
        offered, self._has_offered = self._has_offered, False
        if offered:
            patience = min(PATIENCE_SECONDS * (self._lock.contenders - 1), LONGEST_PATIENCE_SECONDS, timeout / 2)
            self._news.clear()
            if answers or self._news.wait(max(0.0, patience)):
                return False
        self._head = None
        self._asked = self._ask()
        left = max(0.0, timeout - (time.monotonic() - started))
        try:
            acquired = self._lock.acquire(left, lambda: bool(answers), meanwhile)
        finally:
            self._has_offered = False  # what was offered in the line was waited for there
        if acquired and (self._lock.contenders > 1 or any(map(_has_failed, self._asked))):
            # Those before us have published since; or the connection broke, and is there again.
            self._asked = self._ask()
        return acquired

    def _answered(self) -> None:
        assert self._lock is not None
        self._news.set()
        self._lock.interrupt()

    def seconds_in_line(self) -> float:
        return 0.0 if self._lock is None else self._lock.seconds_waited

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def offer(self, proposals: bytes) -> str | None:
        """The ticket is the path of the batch."""
        batch = self._proposals.publish(proposals, ANSWER_SECONDS) if self._proposals is not None else None
        self._has_offered = batch is not None
        return None if batch is None else batch.path

    def withdraw(self, ticket: str) -> bool:
        """True: nobody has taken it nor will; False: it is gone. CoordinationUnavailable: no answer."""
        assert self._proposals is not None
        return self._proposals.withdraw(PublishedBatch(ticket, b""), ANSWER_SECONDS)

    def claim(self) -> list[bytes]:
        self._claimed = []
        if self._proposals is None:
            return []
        try:
            pending = self._proposals.pending(ANSWER_SECONDS)
            self._claimed = self._proposals.claim(pending, ANSWER_SECONDS)
            return [batch.data for batch in self._claimed]
        except (CoordinationUnavailable, KazooException) as error:
            logger.debug("no proposals of others: %s", error)
            return []

    def drop(self, holds: Callable[[bytes], bool]) -> bool:
        coordination = self._coordination
        if self._proposals is None or coordination is None or not coordination.connected:
            return False
        try:
            found = [batch for batch in self._proposals.pending(ANSWER_SECONDS) if holds(batch.data)]
            self._proposals.claim(found, ANSWER_SECONDS)
        except (CoordinationUnavailable, KazooException) as error:
            logger.debug("offers of others are not looked for: %s", error)
            return False
        return True

    def answer(self, epochs: Sequence[dict[str, int]]) -> None:
        if self._proposals is not None:
            for batch, told in zip(self._claimed, epochs, strict=True):
                self._proposals.answer(batch, told)

    def answers(self) -> dict[Any, dict[str, int]]:
        return dict(self._proposals.answers.take()) if self._proposals is not None else {}

    def announced(self) -> Position | None:
        """What was announced before the lock was asked for: nobody waits for these answers, they came before it.

        Who had to wait in line for others hears what was announced when it was had.
        """
        coordination = self._coordination
        if coordination is None or not self._asked:
            return None
        try:
            self._head, root = (_value(coordination, result) for result in self._asked)
            self._require_root(coordination, None if root is None else root.data.decode(errors="replace"))
        except (CoordinationUnavailable, KazooException) as error:
            logger.warning("the log is not compared with what ZooKeeper knows: %s", error)
            return None
        found = None if self._head is None else decode_head(self._head.data)
        return None if found is None else position_of_head(found)

    def _ask(self) -> list[Any]:
        """Ask for head and root without waiting: the requests go ahead of those for the lock."""
        coordination = self._coordination
        if coordination is None or coordination.closed:
            return []
        return [coordination.client.get_async(coordination.path(name)) for name in (HEAD, ROOT)]

    def publish(self, position: Position) -> None:
        head = Head(position.epoch, position.state_id, position.hash, position.incarnation)
        if self._coordination is None:
            # What is known already is told without ZooKeeper: it hears of it when this process comes to the line.
            self._unannounced = head
        coordination = self._coordination
        if coordination is not None and not coordination.closed:
            publish_head_soon(coordination, head, self._head)


def _has_failed(result: Any) -> bool:
    return bool(result.ready() and not result.successful())


def _value(coordination: Coordination, result: Any) -> Value | None:
    """What a znode holds that was asked for; None when there is no such znode."""
    try:
        data, stat = coordination.answer("read head and root", result, ANSWER_SECONDS)
    except NoNodeError:
        return None
    return Value(bytes(data), stat.version)
