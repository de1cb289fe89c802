"""Names that were meant: what a hint says where there is no such name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

SHOWN = 20
"""Of more names only so many are told: a cluster may have thousands of tables."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant, upper and lower case aside; None where there is none like it."""
    spelled = {one.lower(): one for one in sorted(known)}
    near = difflib.get_close_matches(name.lower(), spelled, 1)
    return spelled[near[0]] if near else None


def told(names: Iterable[str]) -> str:
    """Names in order, with commas between them, `none` for none; of many the first, and how many more there are."""
    every = sorted(names)
    more = f", … and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more or "none"
