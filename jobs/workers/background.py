"""Tasks beside the one that asks for them, whose results it waits for later."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from epochlake.metastore import threads

T = TypeVar("T")
R = TypeVar("R")


class Outcome(Generic[R]):
    """What a task returns or raises, once it has ended."""

    def __init__(self, task: Callable[[], R]) -> None:
        self._task: Callable[[], R] | None = task
        self._result: R | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()

    def result(self) -> R:
        """Wait for it."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return cast(R, self._result)

    def wait(self) -> None:
        """Wait for it, whatever comes of it."""
        self._ended.wait()

    def run(self) -> None:
        task, self._task = self._task, None  # what it holds is not kept longer than it runs
        assert task is not None
        try:
            self._result = task()
        except BaseException as error:  # raised where the result is asked for
            self._error = error
        self._ended.set()


class Background:
    """Runs tasks in threads that the process keeps, at most `most` at a time, begun in the order given.

    A `ThreadPoolExecutor` would do the same with threads of its own: a small write started twelve, which was a
    twentieth of its time (decision 129).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Outcome[Any]] = deque()
        self._open: dict[Outcome[Any], None] = {}  # in their order, which a set has not
        self._running = 0

    def submit(self, task: Callable[..., R], *given: Any) -> Outcome[R]:
        """Have `task(*given)` run."""
        outcome = Outcome(partial(task, *given))
        with self._lock:
            self._open[outcome] = None
            if self._running == self._most:
                self._waiting.append(outcome)
                return outcome
            self._running += 1
        try:
            threads.begin(partial(self._work, outcome))
        except BaseException:
            with self._lock:
                del self._open[outcome]
                self._running -= 1
            raise
        return outcome

    def map(self, task: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """What `task` returns of each, side by side. Raises what the first of those that failed has raised."""
        return [outcome.result() for outcome in [self.submit(task, item) for item in items]]

    def close(self) -> None:
        """Wait until all tasks have ended."""
        with self._lock:
            left = [*self._open]
        for outcome in left:
            outcome.wait()

    def _work(self, outcome: Outcome[Any]) -> None:
        next_one: Outcome[Any] | None = outcome
        while next_one is not None:
            next_one.run()
            with self._lock:
                del self._open[next_one]
                next_one = self._waiting.popleft() if self._waiting else None
                if next_one is None:
                    self._running -= 1
