"""Looking at what may hang: in a thread that is left alone when it does, at most one for each thing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Look(Generic[T]):
    """Looks at one thing again and again. `begin` never waits, and does nothing while a look is under way."""

    def __init__(self, looking: Callable[[], T], name: str) -> None:
        self._looking = looking
        self._name = name
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._last: T | Exception | None = None
        self._took: float | None = None

    def begin(self) -> bool:
        """Begin a look; False when the last one has not come back."""
        with self._lock:
            if self._begun is not None:
                return False
            self._begun = time.monotonic()
        # A daemon: a mount that hangs does not keep the agent from ending.
        threading.Thread(target=self._look, name=f"look-{self._name}", daemon=True).start()
        return True

    @property
    def under_way(self) -> float | None:
        """For how many seconds the look that is under way has not come back; None when there is none."""
        with self._lock:
            return None if self._begun is None else time.monotonic() - self._begun

    @property
    def last(self) -> tuple[T | Exception | None, float | None]:
        """What the last look that came back has found or raised, and the seconds that it took."""
        with self._lock:
            return self._last, self._took

    def _look(self) -> None:
        began = time.monotonic()
        found: T | Exception
        try:
            found = self._looking()
        except Exception as error:
            found = error
        with self._lock:
            self._last, self._took, self._begun = found, time.monotonic() - began, None
