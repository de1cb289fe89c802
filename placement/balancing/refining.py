"""The last step to even: single moves and exchanges, each of which pays.

A potential, the squares of what each node is off its share, in bytes relative to capacity. A move is
made only when a node is outside the tolerance and the potential falls by a good part of that node's; so it ends, it
never makes anything worse, and what it leaves it will leave again. Of moves that are equally good, the one that
spreads its table best.
"""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import BalancingPolicy, Bools, Cause, Floats, Ints
from epochlake.placement.balancing.state import Shares, State

_MOST_CANDIDATES = 4_000
_MOST_PER_EXCHANGE = 400
_PARTNERS = 4
_WORTH = 0.02
STARVED = 5.0
_WORTH_EXCHANGE = 0.1


def refine(state: State, shares: Shares, policy: BalancingPolicy, most_steps: int) -> list[tuple[int, int, Cause]]:
    """Change `state.node` by single moves; the moves in order (row, node, cause), at most about `most_steps`."""
    work = _Work(state, shares, policy)
    steps: list[tuple[int, int, Cause]] = []
    settled: set[int] = set()
    while len(steps) < most_steps:
        node = work.worst_in_bytes(settled)
        if node < 0:
            break
        found = work.best_move(node) or work.best_exchange(node)
        if not found:
            settled.add(node)
            continue
        for row, target in found:
            work.move(row, target)
            steps.append((row, target, Cause.BYTES))
        settled.clear()
    settled = set()
    while len(steps) < most_steps:
        node = work.most_crowded(settled)
        if node < 0:
            break
        found = work.best_for_counts(node)
        if not found:
            settled.add(node)
            continue
        for row, target in found:
            work.move(row, target)
            steps.append((row, target, Cause.COUNTS))
        settled.clear()
    return steps


def allowed(state: State, rows: Ints, targets: Ints) -> Bools:
    """Which of `rows` (P,) may go to which of `targets` (Q,), (P, Q): to another node without a replica of the tablet,
    and no rack gets as many of its replicas as the rack that it comes from had.
    """
    tablet = state.tablet[rows]
    width = int(state.copies[tablet].max(initial=1))
    index = state.first[tablet][:, None] + np.arange(width)
    there = (np.arange(width) < state.copies[tablet][:, None]) & (index != rows[:, None])
    other = np.where(there, state.node[np.minimum(index, len(state.node) - 1)], -1)
    other_rack = np.where(there, state.rack[other], -1)
    home = state.rack[state.node[rows]]
    had = 1 + (other_rack == home[:, None]).sum(axis=1)
    target_rack = state.rack[targets]
    fits = targets[None, :] != state.node[rows][:, None]
    in_target = np.zeros(fits.shape, np.int64)
    for k in range(width):
        fits &= other[:, k, None] != targets[None, :]
        in_target += other_rack[:, k, None] == target_rack[None, :]
    same_rack = target_rack[None, :] == home[:, None]
    return fits & (same_rack | (in_target < had[:, None]))


def _heights(state: State, shares: Shares) -> Floats:
    """How many replicas of each table are on each node above its fair part, flat (node * tables + table)."""
    cell = state.cells()
    fraction = shares.count / max(float(shares.count.sum()), 1e-300)
    per_table = np.bincount(state.table, state.copies, state.tables)
    held = np.bincount(cell, minlength=state.node_count * state.tables)
    return held - (fraction[:, None] * per_table[None, :]).reshape(-1)


class _Work:
    """The sums that a step changes, kept up to date."""

    def __init__(self, state: State, shares: Shares, policy: BalancingPolicy) -> None:
        self.state = state
        self.off = np.where(state.active, state.bytes_per_node - shares.bytes, 0.0)
        self.count_off = np.where(state.active, state.count_per_node - shares.count, 0.0)
        self.width = np.maximum(state.capacity / max(float(state.capacity.mean()), 1e-300), 1e-9)
        self.band = shares.bytes * policy.bytes_tolerance / 2
        self.count_rate = shares.count * policy.counts_tolerance
        self.count_band = np.maximum(1.0, self.count_rate)
        self.active = np.flatnonzero(state.active)
        self.one = float(state.size.mean()) if len(state.size) else 0.0
        self.cells = np.zeros(0)
        if self.worst_in_bytes(set()) >= 0 or self.most_crowded(set()) >= 0:
            self.cells = _heights(state, shares)

    def move(self, row: int, target: int) -> None:
        state, size, source = self.state, float(self.state.size[row]), int(self.state.node[row])
        table = int(state.table[state.tablet[row]])
        state.move(np.array([row]), np.array([target]))
        self.cells[source * state.tables + table] -= 1
        self.cells[target * state.tables + table] += 1
        for node, sign in ((source, -1.0), (target, 1.0)):
            if state.active[node]:
                self.off[node] += sign * size
                self.count_off[node] += sign

    def worst_in_bytes(self, settled: set[int]) -> int:
        beyond = np.abs(self.off) / self.width - self.band / self.width
        return self._first(beyond, settled)

    def most_crowded(self, settled: set[int]) -> int:
        """The node with too many replicas; or while one has far too few, the one with the most above its share."""
        starved = (self.count_off < -np.maximum(1.0, STARVED * self.count_rate))[self.active].any()
        return self._first(self.count_off - (1e-9 if starved else self.count_band + 1e-9), settled)

    def _first(self, beyond: Floats, settled: set[int]) -> int:
        beyond = np.where(self.state.active, beyond, -1.0)
        if settled:
            beyond[list(settled)] = -1.0
        worst = int(np.argmax(beyond)) if len(beyond) else -1
        return worst if worst >= 0 and beyond[worst] > 0 else -1

    def best_move(self, node: int) -> list[tuple[int, int]]:
        """The single move to or from `node` that lowers the potential most, if it is worth it."""
        others = self.active[self.active != node]
        if self.off[node] > 0:
            rows, targets = self._free_rows(np.array([node])), others
        else:
            rows, targets = self._free_rows(others[self.off[others] > self.off[node]]), np.array([node])
        if len(rows) == 0 or len(targets) == 0:
            return []
        size, source = self.state.size[rows], self.state.node[rows]
        gain = self._change(source[:, None], targets[None, :], size[:, None])
        gain = np.where(allowed(self.state, rows, targets), gain, 0.0)
        if gain.min() > -_WORTH * self.off[node] ** 2 / self.width[node]:
            return []
        # Of moves within a tenth of the best, the one that spreads its table best.
        table = self.state.table[self.state.tablet[rows]]
        height = self.cells.reshape(-1, self.state.tables)
        spread = height[source, table][:, None] - height[targets][:, table].T
        good = gain <= 0.9 * gain.min()
        choice = np.argmin(np.where(good, -spread + 1e-3 * gain / gain.min() * -1.0, np.inf))
        i, k = np.unravel_index(int(choice), gain.shape)
        return [(int(rows[i]), int(targets[k]))]

    def best_exchange(self, node: int) -> list[tuple[int, int]]:
        """Two replicas of `node` and another node that change places, if the two differ by more than one tablet."""
        sign = 1.0 if self.off[node] > 0 else -1.0
        others = self.active[self.active != node]
        order = others[np.argsort(sign * self.off[others] / self.width[others])][:_PARTNERS]
        best: tuple[float, list[tuple[int, int]]] = (-_WORTH_EXCHANGE * self.off[node] ** 2 / self.width[node], [])
        for other in order.tolist():
            apart = abs(self.off[node] / self.width[node] - self.off[other] / self.width[other])
            if apart <= max(2 * self.band[node], self.one):
                break
            high, low = (node, other) if sign > 0 else (other, node)
            mine, theirs = self._few(self._free_rows(np.array([high]))), self._few(self._free_rows(np.array([low])))
            if len(mine) == 0 or len(theirs) == 0:
                continue
            difference = self.state.size[mine][:, None] - self.state.size[theirs][None, :]
            change = self._change(np.array([[high]]), np.array([[low]]), difference)
            fits = allowed(self.state, mine, np.array([low])) & allowed(self.state, theirs, np.array([high])).T
            change = np.where(fits & (difference > 0), change, 0.0)
            i, k = np.unravel_index(int(np.argmin(change)), change.shape)
            if change[i, k] < best[0]:
                best = (float(change[i, k]), [(int(mine[i]), low), (int(theirs[k]), high)])
        return best[1]

    def best_for_counts(self, node: int) -> list[tuple[int, int]]:
        """The smallest replica that can leave the crowded `node` for one with fewer, without harm to the bytes."""
        targets = self.active[self.count_off[self.active] < self.count_off[node] - 1 - 1e-9]
        rows = self._free_rows(np.array([node]))
        if len(rows) == 0 or len(targets) == 0:
            return []
        size = self.state.size[rows][:, None]
        leave = np.abs(self.off[node] - size) / self.width[node]
        enter = np.abs(self.off[targets] + size) / self.width[targets]
        worst = np.maximum(abs(self.off[node]) / self.width[node], np.abs(self.off[targets]) / self.width[targets])
        band = self.band[node] / self.width[node]
        fits = np.maximum(leave, enter) <= np.maximum(worst * (1 + 1e-9), band)[None, :]
        fits &= allowed(self.state, rows, targets)
        if not fits.any():
            return []
        cost = np.where(fits, size / max(self.one, 1.0) + self.count_off[targets][None, :] * 1e-3, np.inf)
        i, k = np.unravel_index(int(np.argmin(cost)), cost.shape)
        return [(int(rows[i]), int(targets[k]))]

    def _change(self, source: Ints, target: Ints, size: Floats) -> Floats:
        """How the potential changes when `size` bytes go from `source` to `target`."""
        leave = size * (size - 2 * self.off[source]) / self.width[source]
        enter = size * (size + 2 * self.off[target]) / self.width[target]
        return leave + enter

    def _free_rows(self, nodes: Ints) -> Ints:
        chosen = np.zeros(self.state.node_count, bool)
        chosen[nodes] = True
        rows = np.flatnonzero(chosen[self.state.node] & self.state.free)
        if len(rows) > _MOST_CANDIDATES:
            rows = rows[np.linspace(0, len(rows) - 1, _MOST_CANDIDATES).astype(np.int64)]
        return rows

    def _few(self, rows: Ints) -> Ints:
        """At most `_MOST_PER_EXCHANGE` of `rows`, of all sizes."""
        if len(rows) <= _MOST_PER_EXCHANGE:
            return rows
        by_size = rows[np.argsort(self.state.size[rows], kind="stable")]
        return by_size[np.linspace(0, len(rows) - 1, _MOST_PER_EXCHANGE).astype(np.int64)]
