"""Locked ranges: what keeps two operations apart.

Locked are all ranges of any delta of a plan, with those before splitting and those after merging: the merged range is
what keeps apart two leaves that share no replica. Ranges that touch `MIN` all conflict: the pieces below the first
and above the last token belong to one owner.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.ring.tokens import MIN_TOKEN, Tokens
from numpy.typing import NDArray


class Ranges(msgspec.Struct, frozen=True, eq=False):
    """Ranges `(start, end]`, in ring order by end; they may overlap."""

    starts: Tokens
    ends: Tokens

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))


NOTHING = Ranges(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def ranges_of(starts: Tokens, ends: Tokens) -> Ranges:
    """Distinct ranges, those around the top first, then by end, smaller ones first."""
    order = np.lexsort((~starts, ends))
    starts, ends = starts[order], ends[order]
    distinct = np.ones(len(starts), dtype=np.bool_)
    distinct[1:] = (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
    return Ranges(starts[distinct], ends[distinct])


def first_conflict(asked: Ranges, held: Ranges) -> tuple[int, int] | None:
    """A range of `asked` that must not be touched while `held` is locked; None when there is none."""
    if not len(asked.starts) or not len(held.starts):
        return None
    low, high = _spans(asked)
    lows, highs = _covered(held)
    # The last locked stretch that begins at or before the asked range's last token overlaps it, or none does.
    at = np.searchsorted(lows, high, side="right") - 1
    overlaps = (at >= 0) & (highs[np.maximum(at, 0)] >= low)
    if _touches_top(held).any():
        overlaps |= _touches_top(asked)
    hits = np.flatnonzero(overlaps)
    return (int(asked.starts[hits[0]]), int(asked.ends[hits[0]])) if len(hits) else None


def _touches_top(ranges: Ranges) -> NDArray[np.bool_]:
    return (ranges.starts == MIN_TOKEN) | (ranges.ends == MIN_TOKEN)


def _spans(ranges: Ranges) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Ranges as closed intervals of unsigned numbers, `MIN` as an end being the highest of all."""
    low = ranges.starts.view(np.uint64) ^ np.uint64(1 << 63)
    high = (ranges.ends.view(np.uint64) ^ np.uint64(1 << 63)) - np.uint64(1)
    return low, high


def _covered(ranges: Ranges) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The intervals joined where they overlap, ascending."""
    low, high = _spans(ranges)
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    new = np.concatenate([[True], low[1:] > high[:-1]])
    return low[new], high[np.append(np.flatnonzero(new)[1:] - 1, len(high) - 1)]
