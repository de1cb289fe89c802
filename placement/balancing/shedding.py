"""Which replicas leave a node that holds more than its share.

A score per replica, the level at which its table stands on the node plus a factor times its size; the
highest leave. Levels make the tables even, as water does; the factor is searched so that the given number of replicas
carries the given bytes. So bytes, counts and tables come out right together, with as few bytes moved as possible.
"""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import Bools, Floats, Ints
from epochlake.placement.balancing.state import Shares, State

_SEED = 20_240_301
_SEARCH_STEPS = 8
_CROWDING = 1e3
_EXCHANGE_CHOICES = 1_000


def leaving(state: State, shares: Shares, relieve: Bools, spare: Floats) -> Ints:
    """Rows of the replicas that leave: all free ones of draining nodes, the excess of the nodes in `relieve` (N,).

    Nodes in `relieve` shed the bytes above their share, in about as many replicas as they have above theirs; those that
    hold no excess of bytes shed `spare` (N,) of their smallest replicas.
    """
    chosen = [np.flatnonzero(state.free & state.draining[state.node])] if state.draining.any() else []
    if relieve.any():
        rows = np.flatnonzero(relieve[state.node])
        if not state.free.all():
            rows = rows[state.free[rows]]
        rows = rows[_by_node_and_table(state, rows)]
        level = _levels(state, shares, rows)
        ends = np.append(0, np.cumsum(np.bincount(state.node[rows], minlength=state.node_count)))
        excess_bytes = state.bytes_per_node - shares.bytes
        excess_count = state.count_per_node - shares.count
        for n in np.flatnonzero(relieve).tolist():
            part = slice(int(ends[n]), int(ends[n + 1]))
            mine, size = rows[part], state.size[rows[part]]
            if excess_bytes[n] > 0:
                chosen.append(mine[pick(size, level[part], float(excess_bytes[n]), float(excess_count[n]))])
            elif spare[n] >= 1 and len(mine):
                few = min(int(spare[n]), len(mine))
                chosen.append(mine[np.argpartition(size, few - 1)[:few]])
    return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


def _by_node_and_table(state: State, rows: Ints) -> Ints:
    """An order of `rows` by node, within it by table."""
    node = state.node[rows].astype(np.uint16 if state.node_count < 65_536 else np.int64)
    table = state.replica_table[rows]
    if (table[1:] >= table[:-1]).all():
        return np.argsort(node, kind="stable")
    return np.lexsort((table, node))


def _levels(state: State, shares: Shares, rows: Ints) -> Floats:
    """How far its table stands above the table's fair count on the node when this replica is the next to go."""
    node, table = state.node[rows], state.replica_table[rows]
    change = np.ones(len(rows), bool)
    change[1:] = (node[1:] != node[:-1]) | (table[1:] != table[:-1])
    start = np.flatnonzero(change)
    length = np.diff(np.append(start, len(rows)))
    # Which replica of a table goes first differs from node to node: else the same tablets would leave everywhere.
    turn = (node[start].astype(np.int64) * 7919 + table[start].astype(np.int64) * 104_729) % length
    group = np.repeat(np.arange(len(start)), length)
    rank = np.arange(len(rows)) - start[group] + turn[group]
    wide = length[group]
    rank -= np.where(rank >= wide, wide, 0)
    per_table = np.bincount(state.table, state.copies, state.tables)
    fair = per_table[table[start]] * (shares.count / max(shares.count.sum(), 1.0))[node[start]]
    noise = np.random.default_rng(_SEED).random(len(rows), dtype=np.float32)
    return (length - fair)[group] - rank + noise + (_crowding(state, rows) if shares.crowded else 0.0)


def _crowding(state: State, rows: Ints) -> Floats:
    """What is added to the level of replicas that share their rack with another of the tablet: these go first."""
    tablet = state.tablet[rows]
    home = state.rack[state.node[rows]]
    sharing = -np.ones(len(rows), np.int64)
    for k in range(int(state.copies[tablet].max(initial=0))):
        there = k < state.copies[tablet]
        other = np.minimum(state.first[tablet] + k, len(state.node) - 1)
        sharing += there & (state.rack[state.node[other]] == home)
    return _CROWDING * sharing


def pick(size: Floats, level: Floats, excess: float, count: float) -> Ints:
    """Indexes of about `count` replicas with about `excess` bytes together; none of them is larger than that."""
    fits = np.flatnonzero(size <= excess)
    if len(fits) == 0:
        return fits
    size, level = size[fits], level[fits]
    mean = float(size.mean())
    number = _reachable_number(size, excess, count, mean)
    if number <= 0:
        return fits[:0]
    if number >= len(fits):
        return fits
    tolerance = max(excess * 1e-4, mean / 2)  # one exchange at the end closes a gap of this size
    relative = size / mean if mean > 0 else size

    def highest(factor: float) -> Ints:
        score = level + factor * relative if factor else level
        return np.argpartition(score, len(score) - number)[len(score) - number :]

    chosen = highest(0.0)
    gap = excess - float(size[chosen].sum())
    best, best_gap = chosen, gap
    low, high, low_gap, high_gap = 0.0, 0.0, gap, gap
    step = (0.5 if gap > 0 else -0.5) * max(float(level.std()), 1e-3)
    bracketed = False
    for _ in range(_SEARCH_STEPS):
        if abs(best_gap) <= tolerance:
            break
        if bracketed:
            blend = min(max(low_gap / (low_gap - high_gap), 0.1), 0.9)
            factor = low + (high - low) * blend
        else:
            factor, step = low + step, step * 3
        chosen = highest(factor)
        gap = excess - float(size[chosen].sum())
        if abs(gap) < abs(best_gap):
            best, best_gap = chosen, gap
        if bracketed:
            if (gap > 0) == (low_gap > 0):
                low, low_gap = factor, gap
            else:
                high, high_gap = factor, gap
        elif (gap > 0) == (low_gap > 0):
            low, low_gap = factor, gap
        else:
            high, high_gap, bracketed = factor, gap, True
    return fits[_exchanged(size, best, best_gap)]


def _reachable_number(size: Floats, excess: float, count: float, mean: float) -> int:
    """The number nearest to `count` of replicas that can carry `excess` bytes."""
    wanted = round(count)
    if wanted > 0 and wanted < len(size) and 0.6 * mean <= excess / wanted <= 1.6 * mean and wanted > 20:
        return wanted
    ascending = np.sort(size)
    most = int(np.searchsorted(np.cumsum(ascending), excess, side="right"))
    descending = np.cumsum(ascending[::-1])
    fewest = int(np.searchsorted(descending, excess, side="right"))
    return min(max(wanted, fewest + 2), most)


def _exchanged(size: Floats, chosen: Ints, gap: float) -> Ints:
    """`chosen` after exchanging one of them for one that stays, so that the gap of bytes closes best."""
    inside = np.zeros(len(size), bool)
    inside[chosen] = True
    staying = np.flatnonzero(~inside)
    if len(staying) == 0:
        return chosen
    staying = staying[:: max(1, len(staying) // _EXCHANGE_CHOICES)]
    order = staying[np.argsort(size[staying])]
    sorted_sizes = size[order]
    wish = size[chosen] + gap
    at = np.clip(np.searchsorted(sorted_sizes, wish), 0, len(order) - 1)
    at = np.where((at > 0) & (np.abs(sorted_sizes[at - 1] - wish) < np.abs(sorted_sizes[at] - wish)), at - 1, at)
    error = np.abs(sorted_sizes[at] - wish)
    i = int(np.argmin(error))
    if error[i] < abs(gap):
        chosen = chosen.copy()
        chosen[i] = order[at[i]]
    return chosen
