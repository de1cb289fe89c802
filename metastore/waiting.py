"""How long may be waited for anything: said once for callers, for settings and for agents."""

from __future__ import annotations

MOST_SECONDS = 1e9
"""More than anybody waits. Clocks and locks cannot wait longer, and what waits for ever is never told as timed out."""
