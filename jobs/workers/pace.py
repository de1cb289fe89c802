"""Limits on the bytes per second that tasks move, whoever does the tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Pace:
    """At most so many bytes per second, for all threads that share it; 0: no limit.

    A file is let through at once and those after it wait until its time is over: over a few files that is the rate.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Wait until `size` more bytes may be moved."""
        if not self._rate:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + size / self._rate
        time.sleep(max(0.0, start - time.monotonic()))


class Paced(Generic[T, R]):
    """A task for workers that asks a pace before it moves bytes: all that is done of it keeps to `bytes_per_second`.

    Threads share its pace, over all calls. In another process it begins with a pace of its own: see `divided`.
    """

    def __init__(self, task: Callable[[T, Pace], R], bytes_per_second: float) -> None:
        self.task = task
        self.bytes_per_second = bytes_per_second
        self.turn = threading.Lock()
        self._pace = Pace(bytes_per_second)

    def __call__(self, item: T) -> R:
        return self.task(item, self._pace)

    def __reduce__(self) -> tuple[object, ...]:
        return Paced, (self.task, self.bytes_per_second)


@contextmanager
def divided(task: Callable[[T], R], processes: int) -> Iterator[Callable[[T], R]]:
    """The task that each of so many processes does: its share of the limit, where there is one.

    Processes know nothing of each other's pace. So with a limit, callers wait for each other.
    """
    if not isinstance(task, Paced) or not task.bytes_per_second:
        yield task
        return
    with task.turn:
        yield Paced(task.task, task.bytes_per_second / processes)
