"""How much each node should hold: in proportion to capacity, as far as the racks allow.

Water. A level rises over all racks at once, each as wide as its capacity; a rack stops rising where it
holds as many replicas of every tablet as it may, and never stands below what the other racks cannot take. Then the
same inside each rack. What is called balanced is measured against these shares, never against an average that nobody
can reach.
"""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import Bools, Floats, Ints


def water(total: float, width: Floats, low: Floats, high: Floats) -> Floats:
    """Split `total` in proportion to `width` with each part within [low, high]; clipped where that cannot be."""
    if total <= low.sum():
        return low * (total / low.sum()) if low.sum() > 0 else low
    if total >= high.sum():
        return high.copy()
    bottom, top = 0.0, float((high / width).max()) if len(width) else 0.0
    for _ in range(100):
        level = (bottom + top) / 2
        if np.clip(level * width, low, high).sum() < total:
            bottom = level
        else:
            top = level
    return np.clip(top * width, low, high)


def node_shares(
    amount: Floats,
    copies: Ints,
    doubled: Ints,
    fewest: Ints,
    node_amount: Floats,
    rack: Ints,
    active: Bools,
    draining: Bools,
    capacity: Floats,
) -> Floats:
    """What each node should hold, (N,), zero for those that are not active.

    `amount` (T,): bytes (or 1, for counts) of one replica of each tablet; `copies` (T,): its replicas; `doubled` (T,):
    how many of them share a rack at most; `fewest` (T,): how many of them each rack has at least. `node_amount` (N,):
    what the nodes hold now.
    """
    racks = int(rack.max(initial=-1)) + 1
    kind = (copies * 1024 + doubled) * 1024 + fewest
    if len(kind) and (kind == kind[0]).all():
        kinds, sums = kind[:1], np.array([amount.sum()])
    else:
        kinds, which = np.unique(kind, return_inverse=True)
        sums = np.bincount(which, amount, len(kinds))
    nodes = np.bincount(rack, active, racks)
    copies_of, doubled_of, fewest_of = kinds // 1024**2, kinds // 1024 % 1024, kinds % 1024
    most = np.minimum(nodes[:, None], doubled_of[None, :])
    least = np.maximum(fewest_of[None, :], copies_of[None, :] - (most.sum(axis=0)[None, :] - most))
    resident = np.bincount(rack, np.where(active | draining, 0.0, node_amount), racks)
    high = np.maximum(most @ sums - resident, 0.0)
    low = np.clip(np.minimum(least, most) @ sums - resident, 0.0, high)
    width = np.bincount(rack, np.where(active, capacity, 0.0), racks)
    total = float(node_amount[active | draining].sum())
    share = np.zeros(len(rack))
    open_racks = np.flatnonzero(width > 0)
    rack_share = np.zeros(racks)
    rack_share[open_racks] = water(total, width[open_racks], low[open_racks], high[open_racks])
    everything = float(sums.sum())
    for r in open_racks.tolist():
        mine = np.flatnonzero((rack == r) & active)
        full = np.full(len(mine), max(everything, rack_share[r] / len(mine)))
        share[mine] = water(float(rack_share[r]), capacity[mine], np.zeros(len(mine)), full)
    return share
