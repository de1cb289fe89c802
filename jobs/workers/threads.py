"""Workers in threads of this process: the one place that makes threads for storage.

An access to storage ends by its deadline (metastore/deadlines.py), so a task that only waits for storage
ends too, and whoever runs tasks may wait for all of them. The threads are daemons all the same: neither an error nor an
interrupted caller waits for tasks that are under way, nor does the end of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

from epochlake.metastore import threads

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16


class ThreadWorkers:
    """At most so many tasks at a time. No JVM, and enough where storage is the limit.

    Results stay as they are: `returns` may be left out.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads

    def run(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R] | None = None) -> list[R]:
        """See `Workers.run`."""
        asked = list(items)
        results: dict[int, R] = {}
        errors: dict[int, BaseException] = {}
        for number, result, error in self._ended(task, asked):
            if error is None:
                results[number] = result  # type: ignore[assignment]
            else:
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        return [results[number] for number in range(len(asked))]

    def each(
        self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R] | None = None
    ) -> Iterator[tuple[T, R]]:
        """See `Workers.each`."""
        asked = list(items)
        for number, result, error in self._ended(task, asked):
            if error is not None:
                raise error
            yield asked[number], result  # type: ignore[misc]

    def _ended(self, task: Callable[[T], R], asked: list[T]) -> Iterator[tuple[int, R | None, BaseException | None]]:
        if len(asked) == 1 or self._threads == 1:
            for number, item in enumerate(asked):
                yield number, task(item), None
            return
        ended: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
        waiting = iter(range(len(asked)))
        given_up = threading.Event()
        turn = threading.Lock()

        def work() -> None:
            while not given_up.is_set():
                with turn:
                    number = next(waiting, None)
                if number is None:
                    return
                try:
                    ended.put((number, task(asked[number]), None))
                except BaseException as error:
                    ended.put((number, None, error))

        for _ in range(min(self._threads, len(asked))):
            threads.begin(work)
        try:
            for _ in asked:
                yield ended.get()
        finally:
            given_up.set()
