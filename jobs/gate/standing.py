"""Gates that stay announced between the calls of one cluster, so that a small write does not pay for a lease.

A gate is for one thread at a time: threads that write at once have a gate each. A lease keeps vacuum from clearing what
came after its beginning, so no gate stands for long: after a minute the next write has a new one, and an idle one ends
by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochlake.jobs.gate.gate import Gate

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

NAME = "direct"
"""How operators see these gates."""

STANDS_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
"""So long a cluster that is closed waits for a gate whose storage hangs."""


class StandingGates:
    """The gates of one cluster, by the datacenter that they are in. Safe for use by several threads; close it."""

    def __init__(self, cluster: Store) -> None:
        self._cluster = cluster
        # A gate is also put back when a stream of rows is forgotten, which may happen anywhere, in here as well.
        self._lock = threading.RLock()
        self._idle: list[tuple[float, Gate]] = []
        """Each with the time at which it ends."""
        self._clock: threading.Timer | None = None
        self._enders: set[threading.Thread] = set()
        self._closed = False

    @contextmanager
    def gate(self, datacenter: str | None = None) -> Iterator[Gate]:
        """A gate for the block alone, which knows what was committed before. Raises InvalidRequest when the cluster was
        closed, CoordinationUnavailable.
        """
        self._cluster.require_open()
        ends_at, gate = self._taken(datacenter) or self._opened(datacenter)
        try:
            # It has stood for a while: a table may have been dropped since, and made anew.
            gate.planning.catch_up(0)
            yield gate
        finally:
            self._put_back(ends_at, gate)

    def close(self) -> None:
        """End the gates; those that are in use end with their writes. Those that are just ending are waited for."""
        with self._lock:
            self._closed = True
            ending, self._idle = self._idle, []
            if self._clock is not None:
                self._clock.cancel()
            enders = self._enders - {threading.current_thread()}
        for _, gate in ending:
            gate.__exit__(None, None, None)
        for ender in enders:
            ender.join(PATIENCE_SECONDS)

    def _opened(self, datacenter: str | None) -> tuple[float, Gate]:
        gate = Gate(self._cluster, NAME, datacenter)
        return time.monotonic() + STANDS_SECONDS, gate.__enter__()

    def _taken(self, datacenter: str | None) -> tuple[float, Gate] | None:
        now = time.monotonic()
        with self._lock:
            for number, (ends_at, gate) in enumerate(self._idle):
                if ends_at > now and gate.planning.datacenter == datacenter:
                    return self._idle.pop(number)
        return None

    def _put_back(self, ends_at: float, gate: Gate) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((ends_at, gate))
                if self._clock is None:
                    self._wind()
                return
        gate.__exit__(None, None, None)

    def _wind(self) -> None:
        """Look for gates that have stood long enough, in a while."""
        self._clock = threading.Timer(STANDS_SECONDS, self._end_old)
        self._clock.daemon = True
        self._clock.start()

    def _end_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            old = [one for one in self._idle if one[0] <= now]
            self._idle = [one for one in self._idle if one[0] > now]
            self._clock = None
            if self._idle and not self._closed:
                self._wind()
            self._enders.add(threading.current_thread())
        try:
            for _, gate in old:
                gate.__exit__(None, None, None)
        finally:
            with self._lock:
                self._enders.discard(threading.current_thread())
