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
from epochlake.metastore.following.follower import Follower

logger = logging.getLogger(__name__)


class Watcher:
    """Catches a follower up on news, or after `poll_seconds` without; until `stop`.

    `connect` gives the session that the watch on the head is set in. It is called in a thread of its own, again and
    again until it succeeds: following the log does not wait for ZooKeeper.
    """

    def __init__(self, follower: Follower, connect: Callable[[], Coordination] | None, poll_seconds: float) -> None:
        self._follower = follower
        self._poll_seconds = poll_seconds
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._arrived = threading.Condition()
        self._unwatch: Callable[[], None] = lambda: None
        self._trouble = ""
        self._threads = [threading.Thread(target=self._follow, name="epochlake-watcher", daemon=True)]
        if connect is not None:
            watch = threading.Thread(target=self._watch, args=(connect,), name="epochlake-watch", daemon=True)
            self._threads.append(watch)
        for thread in self._threads:
            thread.start()

    def wait(self, after: int, timeout: float) -> bool:
        """Wait until an epoch greater than `after` is known; False after `timeout` seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self._follower.metadata.epoch > after, timeout)

    def stop(self) -> None:
        """Stop watching. Does not close the session that the watch is in."""
        self._stopping.set()
        self._news.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._unwatch()

    def _watch(self, connect: Callable[[], Coordination]) -> None:
        while not self._stopping.is_set():
            try:
                self._unwatch = watch_head(connect(), self._head_moved)
                return
            except Exception as error:
                logger.debug("no watch on the head yet: %s", error)
                self._stopping.wait(self._poll_seconds)

    def _head_moved(self, head: Head) -> None:
        if head.epoch > self._follower.metadata.epoch:
            self._news.set()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self._news.wait(self._poll_seconds)
            self._news.clear()
            if self._stopping.is_set():
                return
            self._look()
            with self._arrived:
                self._arrived.notify_all()

    def _look(self) -> None:
        """One look at the log. Whatever is wrong with it now may be mended when it is looked at next."""
        try:
            self._follower.catch_up()
        except Exception as error:
            if str(error) != self._trouble:
                logger.warning("the log is not followed for now: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
