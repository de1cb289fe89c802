"""Threads that wait for work, so that a task which only waits for storage does not pay for a thread of its own.

A task is handed to a thread that is idle, or to a new one when none is; so tasks never wait for each
other. The threads are daemons: the end of the process does not wait long for one that hangs. It does wait for those
that are at work: a thread that is within a library when the interpreter goes takes the process with it (SIGSEGV), and
what was done would look as if it had failed.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

MOST_IDLE = 64
"""So many threads wait for work at most; those beyond end with their tasks."""

END_SECONDS = 3.0
"""How long the end of the process waits for tasks: more than any takes that does not hang."""


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="epochlake-worker", daemon=True)
        self.tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self) -> None:
        while True:
            task = self.tasks.get()
            task()
            del task
            with _ended:
                global _busy
                _busy -= 1
                _ended.notify_all()
                if len(_idle) >= MOST_IDLE:
                    return
                _idle.append(self)


_ended = threading.Condition()
_idle: list[_Thread] = []
_busy = 0


def begin(task: Callable[[], None]) -> None:
    """Run a task in another thread, at once; it must not raise."""
    global _busy
    with _ended:
        _busy += 1
        thread = _idle.pop() if _idle else None
    if thread is None:
        thread = _Thread()
        try:
            thread.start()
        except RuntimeError:  # the system has none left
            with _ended:
                _busy -= 1
            raise
    thread.tasks.put(task)


def _forget_threads() -> None:
    """In a forked process: the threads are those of the parent."""
    global _ended, _busy
    _ended, _busy = threading.Condition(), 0
    _idle.clear()


@atexit.register
def wait_until_idle(seconds: float = END_SECONDS) -> bool:
    """Wait for the tasks that are under way, but not longer than so many seconds; whether all have ended."""
    deadline = time.monotonic() + seconds
    with _ended:
        while _busy and (left := deadline - time.monotonic()) > 0:
            _ended.wait(left)
        return not _busy


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
