"""Work of a coordinator's track that goes on in a thread of its own, while rounds go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from epochlake.metastore import threads
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StoodDown(EpochlakeError):
    """The coordinator does not lead any more: what was begun is left to the next one."""


class Aside(Generic[T]):
    """At most one piece of work at a time. `woken` is set whenever one has ended; `begin` begins it elsewhere."""

    def __init__(
        self,
        woken: threading.Event | None = None,
        begin: Callable[[Callable[[], None]], None] = threads.begin,
    ) -> None:
        self._woken = woken or threading.Event()
        self._begin = begin
        self._lock = threading.Lock()
        self._working = False
        self._ended: list[tuple[T | None, Exception | None]] = []
        self._leads = True

    @property
    def working(self) -> bool:
        """Whether something goes on, or has ended and was not taken yet."""
        with self._lock:
            return self._working or bool(self._ended)

    def start(self, work: Callable[[], T]) -> bool:
        """Begin `work`; False where something goes on, or was not taken."""
        with self._lock:
            if self._working or self._ended:
                return False
            self._working, self._leads = True, True
        try:
            self._begin(lambda: self._run(work))
        except BaseException:
            with self._lock:
                self._working = False
            raise
        return True

    def take(self) -> tuple[T | None, Exception | None] | None:
        """What has ended since the last call: its result, or its error; None where nothing has."""
        with self._lock:
            return self._ended.pop() if self._ended else None

    def stand_down(self) -> None:
        """Let what goes on end at the next point at which it asks. Does not wait."""
        self._leads = False

    def require_leading(self) -> None:
        """Raise StoodDown when the coordinator has stood down since the work was begun."""
        if not self._leads:
            raise StoodDown("another coordinator goes on with it")

    def _run(self, work: Callable[[], T]) -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # told by the round that takes it
            error = raised
        with self._lock:
            self._working = False
            self._ended.append((result, error))
        self._woken.set()
