"""The election of the coordinator.

It keeps two coordinators from doing the same work twice; it does not make one of them right. A leader
that was paused, or that is cut off, notices later than the others that it no longer leads. Everything that a
coordinator does is therefore committed through the log and guarded by sessions, and is harmless when done by two.
"""

from __future__ import annotations

import time

from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.contention import Contention, first_in_queue

ELECTION = "election"

_SHORTEST_LOOK_SECONDS = 0.5


def current_leader(coordination: Coordination, timeout: float | None = None) -> str | None:
    """Who leads: the name that the leading candidate gave; None when there is no candidate."""
    return first_in_queue(coordination, ELECTION, timeout)


class Candidacy:
    """One candidate, by `name` (for people: host and process, for instance). Use it from one thread at a time."""

    def __init__(self, coordination: Coordination, name: str) -> None:
        self._coordination = coordination
        self._contention = Contention(coordination, ELECTION, name)
        # How often the connection had been interrupted when leading was last confirmed.
        self._confirmed_at: int | None = None

    @property
    def leader(self) -> bool:
        """Do we lead, as far as we know? False from the moment that the connection is SUSPENDED or LOST.

        It stays False after a reconnect until `acquire` confirms it. A process that does not run, or that does not hear
        that its server is gone, learns it late: by up to the session timeout two can believe that they lead.
        """
        return self._confirmed_at == self._coordination.interruptions and self._coordination.connected

    def acquire(self, timeout: float) -> bool:
        """Wait for at most `timeout` seconds to lead. Calling it again while leading confirms the lead.

        After an interruption the lead is taken up again if the session survived, otherwise the candidate queues up at
        the end. False: another one leads, and we are no candidate any more. `CoordinationUnavailable`: no answer.
        """
        coordination = self._coordination
        deadline = time.monotonic() + timeout
        self._confirmed_at = None
        while True:
            interruptions = coordination.interruptions
            # Who was first once stays first for as long as its znode is there.
            if not self._contention.is_in_queue(max(_SHORTEST_LOOK_SECONDS, deadline - time.monotonic())):
                self._contention.release()
                if not self._contention.acquire(deadline - time.monotonic()):
                    return False
            if coordination.connected and coordination.interruptions == interruptions:
                self._confirmed_at = interruptions
                return True
            if time.monotonic() >= deadline:
                self._contention.release()
                return False

    def current(self, timeout: float | None = None) -> str | None:
        """Who leads: the name of the leading candidate, perhaps ours; None when there is none."""
        return current_leader(self._coordination, timeout)

    def release(self) -> None:
        """Stand down. Never raises."""
        self._confirmed_at = None
        self._contention.release()
