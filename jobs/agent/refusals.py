"""What an agent's log says of refusals: one line for each peer, kind and minute, however many there are.

Whoever scans ports, or has the wrong certificate and tries again and again, fills neither the log nor the memory.
"""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger(__name__)

SECONDS = 60.0
MOST = 256
"""So many peers and kinds are told apart at a time."""

LONGEST = 300
"""Characters of a reason: parts of it may come from whoever was refused."""

_Kind = tuple[str, str, str]
_OTHERS = ("others", "several", f"more than {MOST} peers and kinds at a time, which are counted by kind in /metrics")


class RefusalLog:
    """Used in one event loop. Of a kind the first is told at once, and how many followed when the time is over."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._more: dict[_Kind, int] = {}
        self._timers: dict[_Kind, asyncio.TimerHandle] = {}

    def note(self, peer: str, code: str, reason: str) -> None:
        """A refusal: tell it, or count it."""
        kind = (peer, code, reason[:LONGEST])
        if kind not in self._more and len(self._more) >= MOST:
            kind = _OTHERS
        if kind in self._more:
            self._more[kind] += 1
            return
        logger.warning("refused %s (%s): %s", *kind)
        self._begin(kind)

    def end(self) -> None:
        """Tell what was counted until now."""
        for kind in [*self._timers]:
            self._timers.pop(kind).cancel()
            self._told(kind)

    def _begin(self, kind: _Kind) -> None:
        self._more[kind] = 0
        self._timers[kind] = asyncio.get_running_loop().call_later(self._seconds, self._over, kind)

    def _over(self, kind: _Kind) -> None:
        del self._timers[kind]
        if self._told(kind):
            self._begin(kind)  # it goes on: the next line is due in a minute

    def _told(self, kind: _Kind) -> bool:
        """Tell how many there were more of a kind, if there were."""
        more = self._more.pop(kind)
        if more:
            peer, code, reason = kind
            logger.warning("refused %s (%s) %s more within %g s: %s", peer, code, f"{more:,}", self._seconds, reason)
        return more > 0
