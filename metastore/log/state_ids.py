"""State ids: time-ordered UUIDs (version 7), each greater than the one before it (seed 001).

Strings in canonical form compare like the numbers they spell, so `<` on state ids is `<` in time.
"""

from __future__ import annotations

import secrets
import time
import uuid


def next_state_id(previous: str) -> str:
    """A new id, greater than `previous` even when this machine's clock is behind the one that made it."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    number |= 0b10 << 62 | secrets.randbits(62)
    if previous:
        number = max(number, uuid.UUID(previous).int + 1)
    return str(uuid.UUID(int=number))
