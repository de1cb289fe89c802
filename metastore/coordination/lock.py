"""The commit lock: who may propose the next epochs.

The lock keeps committers from wasting their work on each other; it does not keep the log safe. A holder
that was paused, or whose session expired, goes on believing that it holds the lock (kazoo's `is_acquired` stays true).
Then there are two holders, and only the conditional append of the log decides between them (design, section 5, step 6).
So there is deliberately no way here to ask whether the lock is held.
"""

from __future__ import annotations

from collections.abc import Callable

from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.contention import Contention


class CommitLock:
    """A fair lock: those who wait get it in the order in which they came.

    Use it from one thread at a time, as often as wanted. Without contention it takes two round trips to get and none
    that is waited for to give back. It is lost, without a sign, when the session expires.
    """

    def __init__(self, coordination: Coordination, name: str = "lock") -> None:
        self._contention = Contention(coordination, name)

    @property
    def seconds_waited(self) -> float:
        """How long the last attempt has waited for others; requests do not count."""
        return self._contention.seconds_waited

    @property
    def contenders(self) -> int:
        """How many were in the queue when the last attempt looked, itself included."""
        return self._contention.contenders

    def interrupt(self) -> None:
        """Let the attempt that waits now, if there is one, end with False. From any thread; does not block."""
        self._contention.interrupt()

    def acquire(
        self, timeout: float, unless: Callable[[], bool] = lambda: False, meanwhile: Meanwhile | None = None
    ) -> bool:
        """Wait for the lock for at most `timeout` seconds; False when others had it all that time.

        `unless`: what makes the lock needless, see `interrupt`. After False, and after `CoordinationUnavailable`
        (ZooKeeper did not answer in that time), no contender of ours stays in the queue.
        """
        return self._contention.acquire(timeout, unless, meanwhile)

    def release(self) -> None:
        """Give the lock back; does nothing if it was not acquired. Never raises."""
        self._contention.release()
