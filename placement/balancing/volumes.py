"""On which volume of its node a replica is stored.

Numbers first. Each volume gets its share of the node's replicas, rounded, so that no volume is more
than one above an even spread; bytes are evened out within that, largest first, then by exchanging. Replicas that
arrive are placed where they help; only what they cannot settle becomes an intranode migration.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from epochlake.placement.balancing.model import BalancingPolicy, Bools, Floats, Ints


def settle(size: Floats, volume: Ints, capacity: Floats, free: Bools, policy: BalancingPolicy) -> Ints:
    """The volume of each replica of a node, (n,), of those with `capacity` (V,).

    `volume` (n,): where it is now, -1 for one that arrives. `free` (n,): may be moved between volumes.
    """
    volume = volume.copy()
    quota = len(size) * capacity / capacity.sum()
    _settle_arrivals(size, volume, capacity, quota)
    _even_numbers(size, volume, capacity, quota, free)
    _even_bytes(size, volume, capacity, free, policy)
    return volume


def _settle_arrivals(size: Floats, volume: Ints, capacity: Floats, quota: Floats) -> None:
    """Place what arrives, largest first, on the volume with the fewest bytes that has room by number."""
    arrivals = np.flatnonzero(volume < 0)
    if len(arrivals) == 0:
        return
    here = np.flatnonzero(volume >= 0)
    count = np.bincount(volume[here], minlength=len(capacity)).tolist()
    filled = (np.bincount(volume[here], size[here], len(capacity)) / capacity).tolist()
    limit = np.ceil(quota - 1e-9).tolist()
    queue = [(filled[v], count[v] - quota[v], v) for v in range(len(capacity)) if count[v] < limit[v]]
    heapq.heapify(queue)
    widths = capacity.tolist()
    order = arrivals[np.argsort(-size[arrivals], kind="stable")]
    for i, bytes_ in zip(order.tolist(), size[order].tolist(), strict=True):
        used, spare, v = queue[0]
        volume[i] = v
        count[v] += 1
        if count[v] < limit[v]:
            heapq.heapreplace(queue, (used + bytes_ / widths[v], spare + 1, v))
        else:
            heapq.heappop(queue)


def _even_numbers(size: Floats, volume: Ints, capacity: Floats, quota: Floats, free: Bools) -> None:
    """Move replicas until no volume has more than its quota rounded up, nor less than rounded down."""
    low, high = np.floor(quota + 1e-9), np.ceil(quota - 1e-9)
    for _ in range(len(size)):
        count = np.bincount(volume, minlength=len(capacity))
        over, under = count - high, low - count
        if over.max() <= 0 and under.max() <= 0:
            return
        source = int(np.argmax(over)) if over.max() > 0 else int(np.argmax(count - quota))
        target = int(np.argmax(under)) if under.max() > 0 else int(np.argmin(count - quota))
        mine = np.flatnonzero((volume == source) & free)
        if len(mine) == 0 or source == target:
            return
        filled = np.bincount(volume, size, len(capacity)) / capacity
        wish = (filled[source] - filled[target]) * capacity[[source, target]].mean() / 2
        volume[mine[np.argmin(np.abs(size[mine] - wish))]] = target


def _even_bytes(size: Floats, volume: Ints, capacity: Floats, free: Bools, policy: BalancingPolicy) -> None:
    """Exchange replicas of the fullest and the emptiest volume while they differ by more than a tablet."""
    if len(size) == 0:
        return
    one = float(size.max()) / capacity
    for _ in range(4 * len(capacity)):
        filled = np.bincount(volume, size, len(capacity)) / capacity
        source, target = int(np.argmax(filled)), int(np.argmin(filled))
        apart = float(filled[source] - filled[target])
        if apart <= max(policy.bytes_tolerance * float(filled.mean()), float(max(one[source], one[target]))):
            return
        mine, theirs = np.flatnonzero((volume == source) & free), np.flatnonzero((volume == target) & free)
        if len(mine) == 0 or len(theirs) == 0:
            return
        ascending = theirs[np.argsort(size[theirs], kind="stable")]
        wish = size[mine] - apart / (1 / capacity[source] + 1 / capacity[target])
        at = np.clip(np.searchsorted(size[ascending], wish), 0, len(ascending) - 1)
        error = np.abs(size[ascending[at]] - wish)
        i = int(np.argmin(error))
        j = ascending[at[i]]
        if size[mine[i]] - size[j] <= 0.05 * apart * min(capacity[source], capacity[target]):
            return
        volume[mine[i]], volume[j] = target, source


def exchange_leavers(
    leaves: Bools, table: Ints, size: Floats, volume: Ints, capacity: Floats, may: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Pairs (a replica that leaves, one that stays) of a node to change roles, so that the volumes stay even by number.

    Both of a pair are of the same table and nearly the same size, so nothing else changes. `leaves` (n,); `may` tells
    whether a pair is allowed. The pairs are meant to be applied in their order.
    """
    staying = np.flatnonzero(~leaves)
    count = np.bincount(volume[staying], minlength=len(capacity))
    quota = len(staying) * capacity / capacity.sum()
    low, high = np.floor(quota + 1e-9), np.ceil(quota - 1e-9)
    by_volume_stay: dict[int, list[int]] = {}
    by_cell_leave: dict[tuple[int, int], list[int]] = {}
    for i, (gone, v, t) in enumerate(zip(leaves.tolist(), volume.tolist(), table.tolist(), strict=True)):
        if gone:
            by_cell_leave.setdefault((v, t), []).append(i)
        else:
            by_volume_stay.setdefault(v, []).append(i)
    near = 0.02 * float(size.mean()) if len(size) else 0.0
    pairs: list[tuple[int, int]] = []
    stuck: set[int] = set()
    while True:
        off = count - quota
        off[list(stuck)] = 0.0
        source = int(np.argmax(off))
        if (count[source] <= high[source] and (count >= low).all()) or off[source] <= 0:
            return pairs
        found = None
        for target in np.argsort(off, kind="stable").tolist():
            if count[target] + 1 > high[target] or count[target] >= count[source] - 1:
                break
            for j in by_volume_stay[source]:
                for i in by_cell_leave.get((target, int(table[j])), ()):
                    if abs(size[i] - size[j]) <= near and may(i, j):
                        found = (i, j, target)
                        break
                if found:
                    break
            if found:
                break
        if not found:
            stuck.add(source)
            continue
        i, j, target = found
        pairs.append((i, j))
        cell = int(table[j])
        by_cell_leave[(target, cell)].remove(i)
        by_cell_leave.setdefault((source, cell), []).append(j)
        by_volume_stay[source].remove(j)
        by_volume_stay.setdefault(target, []).append(i)
        count[source] -= 1
        count[target] += 1
