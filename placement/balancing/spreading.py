"""Tables that sit on few nodes, although the nodes are even: their replicas change places with others.

Chance is fair. A table whose replicas were dealt out at random has a known concentration; only one that
is clearly above it is spread, by exchanges with replicas of about the same size, so that nodes stay as even as they
are. Without that bar a cluster would move bytes for ever to even out what no reader notices.
"""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import BalancingPolicy, Floats, Ints
from epochlake.placement.balancing.refining import allowed
from epochlake.placement.balancing.state import Shares, State

_CLEARLY = 1.6
_GOAL = 1.15
_PAIRS = 12


def spread_tables(state: State, shares: Shares, policy: BalancingPolicy, most_steps: int) -> Ints:
    """Spread what is clearly concentrated, in `state`; the rows that moved."""
    fair, grid = _fair(state, shares), _grid(state)
    worst = _concentration(grid, fair)
    tables = np.flatnonzero(worst > _CLEARLY)
    moved: list[int] = []
    if len(tables) == 0:
        return np.zeros(0, np.int64)
    by_node = np.argsort(state.node, kind="stable")
    ends = np.append(0, np.cumsum(np.bincount(state.node, minlength=state.node_count)))
    on_node = [by_node[ends[n] : ends[n + 1]] for n in range(state.node_count)]
    for table in tables[np.argsort(-worst[tables], kind="stable")].tolist():
        while _concentration(grid[:, [table]], fair[:, [table]])[0] > _GOAL and len(moved) < most_steps:
            pair = _exchange(state, shares, policy, table, grid - fair, on_node)
            if not pair:
                break
            for row, target in pair:
                source = int(state.node[row])
                grid[source, state.replica_table[row]] -= 1
                grid[target, state.replica_table[row]] += 1
                state.move(np.array([row]), np.array([target]))
                on_node[source] = on_node[source][on_node[source] != row]
                on_node[target] = np.append(on_node[target], row)
                moved.append(row)
    return np.unique(np.array(moved, np.int64))


def _grid(state: State) -> Floats:
    held = np.bincount(state.cells(), minlength=state.node_count * state.tables).astype(np.float64)
    grid = held.reshape(state.node_count, state.tables)
    grid[~state.active] = 0.0
    return grid


def _fair(state: State, shares: Shares) -> Floats:
    """Each active node's fair number of replicas of each table, (N, tables)."""
    per_table = _grid(state).sum(axis=0)
    return (shares.count / max(float(shares.count.sum()), 1e-300))[:, None] * per_table[None, :]


def _concentration(grid: Floats, fair: Floats) -> Floats:
    """Sum of squares relative to fair numbers, over what chance gives: 1 where the table lies as if by chance."""
    total = grid.sum(axis=0)
    squares = np.divide(grid**2, fair, out=np.zeros_like(grid), where=fair > 0).sum(axis=0)
    by_chance = total + (fair > 0).sum(axis=0) - 1
    return np.divide(squares, by_chance, out=np.ones(len(total)), where=total > 1)


def _exchange(
    state: State, shares: Shares, policy: BalancingPolicy, table: int, height: Floats, on_node: list[Ints]
) -> list[tuple[int, int]]:
    """A replica of `table` from a node with much of it, and one of about its size that comes back."""
    active = np.flatnonzero(state.active)
    by_height = active[np.argsort(-height[active, table], kind="stable")]
    off = state.bytes_per_node - shares.bytes
    band = shares.bytes * policy.bytes_tolerance / 2
    pairs = [(int(a), int(b)) for a in by_height[:_PAIRS] for b in by_height[::-1][:_PAIRS]]
    pairs.sort(key=lambda pair: height[pair[1], table] - height[pair[0], table])
    for high, low in pairs[: 4 * _PAIRS]:
        if height[high, table] - height[low, table] < 2:
            return []
        mine = on_node[high][state.replica_table[on_node[high]] == table]
        mine = mine[state.free[mine]]
        back = on_node[low]
        other = state.replica_table[back]
        back = back[state.free[back] & (other != table) & (height[low, other] >= 1 + height[high, other])]
        mine = mine[allowed(state, mine, np.array([low]))[:, 0]] if len(mine) else mine
        back = back[allowed(state, back, np.array([high]))[:, 0]] if len(back) else back
        if len(mine) == 0 or len(back) == 0:
            continue
        difference = state.size[mine][:, None] - state.size[back][None, :]
        # The same tablet may not be on both ends: its two replicas would pass each other.
        difference[state.tablet[mine][:, None] == state.tablet[back][None, :]] = np.inf
        i, k = np.unravel_index(int(np.argmin(np.abs(difference))), difference.shape)
        shift = float(difference[i, k])
        leave, enter = abs(off[high] - shift), abs(off[low] + shift)
        if leave <= max(band[high], abs(off[high])) and enter <= max(band[low], abs(off[low])):
            return [(int(mine[i]), low), (int(back[k]), high)]
    return []
