"""Where replicas that leave go: to nodes that lack bytes, in numbers and by tables as well.

Largest first, to the node that lacks most of what the smaller ones will not bring. In each class of
sizes a node's need is its missing bytes less what its missing number of smaller replicas will bring on average; so
the large ones go where large ones are needed, and in the end bytes and numbers run out together. Among the neediest
few, the node that has the least of the table gets it, and none gets so much of a table that the table would be worse
spread than before.
"""

from __future__ import annotations

from bisect import insort

import numpy as np
from epochlake.placement.balancing.model import Floats, Ints
from epochlake.placement.balancing.state import Shares, State

_CLASS_ENDS = (0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.82, 0.9, 0.95, 0.98, 1.0)
_EVENNESS = 0.995
_CHOICES = 3


def place(state: State, rows: Ints, shares: Shares) -> Ints:
    """The node for each of the replicas in `rows`, (P,), -1 where none may take it. Changes nothing in `state`."""
    if len(rows) == 0:
        return rows
    size = state.size[rows]
    table = state.table[state.tablet[rows]]
    order = np.lexsort((rows, table, -size))
    target = np.full(len(rows), -1, np.int64)
    gone_bytes = np.bincount(state.node[rows], size, state.node_count)
    gone_count = np.bincount(state.node[rows], minlength=state.node_count)
    lack_bytes = shares.bytes - state.bytes_per_node + gone_bytes
    lack_count = shares.count - state.count_per_node + gone_count
    spread = _Spread(state, rows)
    racks = _Racks(state, rows)
    ends = [round(len(rows) * part) for part in _CLASS_ENDS]
    sorted_size = size[order]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        if begin < end:
            smaller = float(sorted_size[end:].mean()) if end < len(rows) else 0.0
            part = order[begin:end]
            target[part] = _place_class(state, rows[part], part, smaller, lack_bytes, lack_count, spread, racks)
    return target


class _Spread:
    """How much of each table the nodes hold (flat lists, node * tables + table), and how much more they may get.

    A node may get as much of a table as the fullest active node held of it, relative to capacity, or its fair part.
    """

    def __init__(self, state: State, leaving: Ints) -> None:
        self.tables = state.tables
        cells = state.node_count * state.tables
        cell = state.cells()
        before = np.bincount(cell, minlength=cells), np.bincount(cell, state.size, cells)
        after = (
            before[0] - np.bincount(cell[leaving], minlength=cells),
            before[1] - np.bincount(cell[leaving], state.size[leaving], cells),
        )
        fraction = np.where(state.active, state.capacity, 0.0)
        fraction = fraction / max(fraction.sum(), 1e-300)
        held = []
        for was, now, rounding in zip(before, after, (np.ceil, np.positive), strict=True):
            grid = was.reshape(state.node_count, state.tables)[state.active]
            relative = (grid / fraction[state.active][:, None]).max(axis=0, initial=0.0)
            fair = fraction[:, None] * grid_total(was, state)[None, :]
            limit = np.maximum(relative[None, :] * fraction[:, None] * (1 + 1e-9), rounding(fair))
            held.append((now.reshape(fair.shape) - fair, limit - now.reshape(fair.shape)))
        self.level: list[float] = held[0][0].reshape(-1).tolist()
        self.room_count: list[float] = (held[0][1] + 1e-6).reshape(-1).tolist()
        self.room_bytes: list[float] = held[1][1].reshape(-1).tolist()


def grid_total(cells: Floats, state: State) -> Floats:
    """What there is of each table, (tables,), of flat cells by node and table."""
    return cells.reshape(state.node_count, state.tables).sum(axis=0)


class _Racks:
    """Which racks a leaving replica may go to, as bits; every move of a tablet that is planned together counts as if
    both its ends still held a replica, so that the moves may be carried out in any order.
    """

    def __init__(self, state: State, rows: Ints) -> None:
        count = int(state.rack.max(initial=-1)) + 1
        dtype = np.int64 if count <= 62 else object
        bit = np.array([1 << r for r in range(count)], dtype)[state.rack]
        tablets, slot = np.unique(state.tablet[rows], return_inverse=True)
        held = np.zeros(len(tablets), dtype)
        total = np.zeros(len(tablets), dtype)
        copies = state.copies[tablets]
        for width in np.unique(copies).tolist():
            these = np.flatnonzero(copies == width)
            for k in range(width):
                bits = bit[state.node[state.first[tablets[these]] + k]]
                held[these] |= bits
                total[these] += bits
        self.slot: list[int] = slot.tolist()
        self.own: list[int] = bit[state.node[rows]].tolist()
        self.held: list[int] = held.tolist()
        self.count = count
        self.rack: list[int] = state.rack.tolist()
        self.members: dict[int, tuple[int, ...]] = {}
        self.crowded = {int(j): _Crowd(state, int(tablets[j])) for j in np.flatnonzero(held != total).tolist()}

    def learn(self, bits: int) -> tuple[int, ...]:
        """The racks in `bits`, kept in `members` for the next time."""
        self.members[bits] = tuple(r for r in range(self.count) if bits >> r & 1)
        return self.members[bits]


class _Crowd:
    """A tablet with several replicas in a rack: a move may go to a rack that stays below what the source rack had."""

    def __init__(self, state: State, tablet: int) -> None:
        first = int(state.first[tablet])
        self.nodes = set(state.node[first : first + int(state.copies[tablet])].tolist())
        self.most: dict[int, int] = {}
        for n in self.nodes:
            r = int(state.rack[n])
            self.most[r] = self.most.get(r, 0) + 1
        self.least = dict(self.most)

    def open_bits(self, source_rack: int, racks: int) -> int:
        """The own rack; and of the others those that relieve a crowded rack, or else those that make it no worse."""
        had = self.least[source_rack]
        better = sum(1 << r for r in range(racks) if self.most.get(r, 0) + 1 < had)
        same = sum(1 << r for r in range(racks) if self.most.get(r, 0) < had)
        return (better or same) | 1 << source_rack

    def moved(self, source_rack: int, target_rack: int, target: int) -> None:
        self.nodes.add(target)
        if source_rack != target_rack:
            self.least[source_rack] -= 1
            self.most[target_rack] = self.most.get(target_rack, 0) + 1


def _place_class(
    state: State,
    rows: Ints,
    positions: Ints,
    smaller: float,
    lack_bytes: Floats,
    lack_count: Floats,
    spread: _Spread,
    racks: _Racks,
) -> Ints:
    """Targets of one class of sizes, largest first; `lack_bytes` and `lack_count` (N,) are brought up to date."""
    need = lack_bytes - _EVENNESS * smaller * lack_count
    queues: list[list[tuple[float, int]]] = [[] for _ in range(racks.count)]
    for n in np.flatnonzero(state.active & (lack_bytes > 0)).tolist():
        queues[racks.rack[n]].append((float(need[n]), n))
    for queue in queues:
        queue.sort()
    lack = lack_bytes.tolist()
    level, room_count, room_bytes = spread.level, spread.room_count, spread.room_bytes
    held, own, slot, tables = racks.held, racks.own, racks.slot, spread.tables
    crowded, members, home_of = racks.crowded, racks.members, racks.rack
    everywhere = (1 << racks.count) - 1
    targets: list[int] = []
    columns = (
        positions.tolist(),
        state.size[rows].tolist(),
        state.table[state.tablet[rows]].tolist(),
        state.node[rows].tolist(),
        state.draining[state.node[rows]].tolist(),
    )
    for p, bytes_, table, source, must in zip(*columns, strict=True):
        j, home = slot[p], own[p]
        crowd = crowded.get(j) if crowded else None
        bits = everywhere & ~(held[j] ^ home) if crowd is None else crowd.open_bits(home_of[source], racks.count)
        allowed = members.get(bits) or racks.learn(bits)
        top = -1e300
        neediest: list[tuple[float, int]] | None = None
        for r in allowed:
            if queues[r]:
                wish = queues[r][-1][0]
                if wish > top:
                    top, neediest = wish, queues[r]
        weight = bytes_ - _EVENNESS * smaller
        best = -1
        if neediest is not None:
            least, seen, k = 1e300, 0, len(neediest) - 1
            reach = top - 2 * weight
            while k >= 0 and seen < _CHOICES:
                wish, n = neediest[k]
                if wish < reach:
                    break
                cell = n * tables + table
                if (
                    lack[n] > 0
                    and room_count[cell] >= 1
                    and room_bytes[cell] >= bytes_
                    and n != source
                    and (crowd is None or n not in crowd.nodes)
                ):
                    seen += 1
                    height = level[cell]
                    if height < least:
                        least, best = height, k
                k -= 1
        if best >= 0 and neediest is not None:
            wish, target = neediest.pop(best)
            insort(neediest, (wish - weight, target))
        else:
            target = _any_target(state, allowed, source, table, bytes_, lack, spread, crowd, must)
        targets.append(target)
        if target < 0:
            continue
        cell = target * tables + table
        lack[target] -= bytes_
        level[cell] += 1
        room_count[cell] -= 1
        room_bytes[cell] -= bytes_
        if crowd is None:
            held[j] |= 1 << home_of[target]
        else:
            crowd.moved(home_of[source], home_of[target], target)
    result = np.array(targets, np.int64)
    found = result >= 0
    lack_bytes -= np.bincount(result[found], state.size[rows[found]], state.node_count)
    lack_count -= np.bincount(result[found], minlength=state.node_count)
    return result


def _any_target(
    state: State,
    allowed: tuple[int, ...],
    source: int,
    table: int,
    bytes_: float,
    lack: list[float],
    spread: _Spread,
    crowd: _Crowd | None,
    must: bool,
) -> int:
    """The node that lacks most, anywhere in the racks `allowed`; only what must leave may crowd a table or a node."""
    fallback, fallback_lack, best, best_lack = -1, -1e300, -1, -1e300
    candidates = np.flatnonzero(state.active & np.isin(state.rack, allowed)).tolist()
    for n in candidates:
        if n == source or (crowd is not None and n in crowd.nodes) or (lack[n] <= 0 and not must):
            continue
        relative = lack[n] / state.capacity[n]
        if relative > fallback_lack:
            fallback, fallback_lack = n, relative
        cell = n * spread.tables + table
        if relative > best_lack and spread.room_count[cell] >= 1 and spread.room_bytes[cell] >= bytes_:
            best, best_lack = n, relative
    return best if best >= 0 else (fallback if must else -1)
