"""Keeping a follower up to date: a watch on the head brings the news, a slow look at the log covers for a lost watch.

The watch only sets a flag; a thread of its own reads the log, so listeners of the follower never run in a thread that
ZooKeeper's client needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.head import Head, watch_head
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.follower import Follower

logger = logging.getLogger(__name__)


class Watcher:
    """Catches a follower up on news, or after `poll_seconds` without; until `stop`, or until the follower stops."""

    def __init__(self, follower: Follower, coordination: Coordination | None, poll_seconds: float) -> None:
        self._follower = follower
        self._poll_seconds = poll_seconds
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._arrived = threading.Condition()
        self._unwatch: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._follow, name="epochlake-watcher", daemon=True)
        self._thread.start()
        if coordination is not None:
            self._unwatch = watch_head(coordination, self._head_moved)

    def wait(self, after: int, timeout: float) -> bool:
        """Wait until an epoch greater than `after` is known; False after `timeout` seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self._follower.metadata.epoch > after, timeout)

    def stop(self) -> None:
        """Stop watching. Does not close the session that the watch is in."""
        self._stopping.set()
        self._unwatch()
        self._news.set()
        self._thread.join(timeout=10)

    def _head_moved(self, head: Head) -> None:
        if head.epoch > self._follower.metadata.epoch:
            self._news.set()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self._news.wait(self._poll_seconds)
            self._news.clear()
            if self._stopping.is_set():
                return
            try:
                self._follower.catch_up()
            except StorageUnavailable as error:
                logger.warning("the log is not followed for now: %s", error)
            except LogUnreadable as error:
                logger.error("the log is not followed any more: %s", error)
                return
            with self._arrived:
                self._arrived.notify_all()
