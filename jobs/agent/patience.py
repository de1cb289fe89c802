"""How long an agent may be told to wait, in seconds: said once for the command line and for the process it becomes."""

from __future__ import annotations

SHORTEST_PERIOD = 0.05
LONGEST_PERIOD = 60.0
SHORTEST_JOIN = 1.0


def beyond(seconds: float, least: float, most: float) -> str | None:
    """Why something cannot be waited for so long, and what to give; None where it can. No number is in no range."""
    if least <= seconds <= most:
        return None
    return f"{seconds:g} is not in the range {least:g}<=x<={most:.10g}: give seconds from {least:g} to {most:,.10g}"
