"""The line in front of a log that only one process uses: a lock of that process, for in-memory logs and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.log.entry import Position


class LocalQueue:
    """Shared by the committers of one process, or one for each of them with one `lock`; nobody offers proposals."""

    def __init__(self, lock: threading.Lock | None = None) -> None:
        self._waited = 0.0
        self._lock = lock or threading.Lock()
        self._holder: int | None = None

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        started = time.monotonic()
        acquired = self._lock.acquire(timeout=timeout)
        self._waited = time.monotonic() - started
        if acquired:
            self._holder = threading.get_ident()
        return acquired

    def release(self) -> None:
        if self._holder == threading.get_ident():
            self._holder = None
            self._lock.release()

    def offer(self, proposals: bytes) -> None:
        return None

    def withdraw(self, ticket: object) -> bool:
        return True

    def drop(self, holds: Callable[[bytes], bool]) -> bool:
        return True

    def claim(self) -> list[bytes]:
        return []

    def seconds_in_line(self) -> float:
        return self._waited

    def answer(self, epochs: Sequence[dict[str, int]]) -> None:
        """Nobody was claimed from."""

    def answers(self) -> dict[object, dict[str, int]]:
        return {}

    def announced(self) -> None:
        return None

    def publish(self, position: Position) -> None:
        """Nobody else follows."""
