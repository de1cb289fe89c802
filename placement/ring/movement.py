"""From one assignment to another in four steps (seed 002, Bootstrap and Decommission).

PREPARE splits ranges; START widens writes to the old and the new replicas; MID moves reads to the new ones; FINISH
narrows writes to them and merges ranges. No step changes reads and writes beyond that, so that for any two views one
step apart every read quorum meets every write quorum.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.ring.locks import Ranges, ranges_of
from epochlake.placement.ring.placements import (
    NO_CHANGE,
    NO_DELTA,
    NO_TOKENS,
    Assignment,
    AssignmentChange,
    Delta,
    narrowed,
    on_grid,
    same_sets,
    turned,
    united,
    without_node,
)
from epochlake.placement.ring.tokens import Tokens, ends_of, missing_from, with_starts


class Movement(msgspec.Struct, frozen=True, eq=False):
    """The plan for one replication setting: a delta for each step, and the ranges that it locks."""

    prepare: Delta
    start: Delta
    mid: Delta
    finish: Delta
    locks: Ranges

    @property
    def deltas(self) -> tuple[Delta, Delta, Delta, Delta]:
        return (self.prepare, self.start, self.mid, self.finish)


def movement(old: Assignment, new: Assignment) -> Movement:
    """The four steps from `old` to `new`."""
    split, merge, changed = _compared(old, new)
    starts, ends, before, after = changed.starts, changed.ends, changed.before, changed.after
    both = united(before, after)
    return Movement(
        prepare=Delta(split, NO_CHANGE, NO_CHANGE, NO_TOKENS),
        start=Delta(NO_TOKENS, NO_CHANGE, AssignmentChange(starts, ends, before, both), NO_TOKENS),
        mid=Delta(NO_TOKENS, AssignmentChange(starts, ends, before, after), NO_CHANGE, NO_TOKENS),
        finish=Delta(NO_TOKENS, NO_CHANGE, AssignmentChange(starts, ends, both, after), merge),
        locks=_locked(old, new, changed),
    )


def founding(old: Assignment, new: Assignment) -> Movement:
    """The first node's join: nobody reads or writes yet, so PREPARE places it at once."""
    split, merge, changed = _compared(old, new)
    return Movement(Delta(split, changed, changed, merge), NO_DELTA, NO_DELTA, NO_DELTA, _locked(old, new, changed))


def refilling(old: Assignment, node_id: int) -> Movement:
    """A node keeps its ranges but gets their rows again: START takes its reads away, MID gives them back.

    It goes on getting writes. Reads of one replica fewer still meet every write quorum: of n replicas, a majority of
    n-1 and a majority of n are n+1 together.
    """
    rows = np.flatnonzero((old.replicas == node_id).any(axis=1))
    starts, ends, whole = old.starts[rows], old.ends[rows], narrowed(old.replicas[rows])
    without = AssignmentChange(starts, ends, whole, without_node(whole, node_id))
    return Movement(
        prepare=NO_DELTA,
        start=Delta(NO_TOKENS, without, NO_CHANGE, NO_TOKENS),
        mid=Delta(NO_TOKENS, turned(without), NO_CHANGE, NO_TOKENS),
        finish=NO_DELTA,
        locks=ranges_of(starts, ends),
    )


def _compared(old: Assignment, new: Assignment) -> tuple[Tokens, Tokens, AssignmentChange]:
    """Starts that come, starts that go, and the ranges of the finer of both covers whose replicas differ."""
    split, merge = missing_from(new.starts, old.starts), missing_from(old.starts, new.starts)
    grid = with_starts(old.starts, split)
    before, after = on_grid(old, grid), on_grid(new, grid)
    rows = np.flatnonzero(~same_sets(before, after))
    return (
        split,
        merge,
        AssignmentChange(grid[rows], ends_of(grid)[rows], narrowed(before[rows]), narrowed(after[rows])),
    )


def _locked(old: Assignment, new: Assignment, changed: AssignmentChange) -> Ranges:
    """Changed ranges; ranges that are split, with their pieces; ranges that are merged, with theirs."""
    starts, ends = [changed.starts], [changed.ends]
    grid = with_starts(old.starts, missing_from(new.starts, old.starts))
    for coarse in (old, new):
        whole = np.searchsorted(coarse.starts, grid, side="right") - 1
        in_pieces = np.bincount(whole, minlength=len(coarse.starts)) > 1
        # A range that nobody holds is neither split nor merged for anybody.
        in_pieces &= (coarse.replicas >= 0).any(axis=1)
        pieces = in_pieces[whole]
        starts += [coarse.starts[in_pieces], grid[pieces]]
        ends += [coarse.ends[in_pieces], ends_of(grid)[pieces]]
    return ranges_of(np.concatenate(starts), np.concatenate(ends))
