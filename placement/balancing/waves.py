"""Moves in waves, so that no volume sends or gets more than a few replicas at once.

The one idea: a wave is a bit. Each volume keeps one number per stream whose bits are the waves taken; a move runs in the
lowest wave that is free at both ends (and in which its tablet has no other move), found with one bit operation.
"""

from __future__ import annotations

import numpy as np

from epochlake.placement.balancing.model import Ints


def schedule(source: Ints, target: Ints, tablet: Ints, streams: int, busy_out: Ints, busy_in: Ints) -> Ints:
    """The wave (1 and up) of each move (M,), first fit in the given order.

    `streams`: replicas that may leave or reach a volume in one wave. `busy_out`, `busy_in` (V,): streams in flight;
    they count in wave 1.
    """
    volumes = len(busy_out)
    # taken[k][v]: bits of the waves in which volume v has more than k streams.
    taken = [np.where(busy_out + busy_in > k, 1, 0).tolist() for k in range(streams)]
    full = taken[-1]
    tablets, slot = np.unique(tablet, return_inverse=True)
    several = np.bincount(slot, minlength=len(tablets)) > 1
    tablet_taken = {int(t): 0 for t in tablets[several].tolist()}
    waves: list[int] = []
    if volumes == 0:
        return np.zeros(0, np.int64)
    for a, b, t, own in zip(source.tolist(), target.tolist(), tablet.tolist(), several[slot].tolist(), strict=True):
        used = full[a] | full[b]
        if own:
            used |= tablet_taken[t]
        bit = ~used & (used + 1)
        waves.append(bit.bit_length())
        if own:
            tablet_taken[t] |= bit
        for v in (a, b):
            for level in taken:
                if not level[v] & bit:
                    level[v] |= bit
                    break
    return np.array(waves, np.int64)
