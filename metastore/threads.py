"""Threads that wait for work, so that a task which only waits for storage does not pay for a thread of its own.

A task is handed to a thread that is idle, or to a new one when none is; so tasks never wait for each
other. The threads are daemons: the end of the process does not wait for one that hangs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

MOST_IDLE = 64
"""So many threads wait for work at most; those beyond end with their tasks."""


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="epochlake-worker", daemon=True)
        self.tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self) -> None:
        while True:
            task = self.tasks.get()
            task()
            del task
            with _lock:
                if len(_idle) >= MOST_IDLE:
                    return
                _idle.append(self)


_lock = threading.Lock()
_idle: list[_Thread] = []


def begin(task: Callable[[], None]) -> None:
    """Run a task in another thread, at once; it must not raise."""
    with _lock:
        thread = _idle.pop() if _idle else None
    if thread is None:
        thread = _Thread()
        thread.start()
    thread.tasks.put(task)


def _forget_threads() -> None:
    """In a forked process: the threads are those of the parent."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
