"""Moves in waves, so that no volume sends or gets more than a few replicas at once.

A wave is a bit. Each volume keeps one number per stream whose bits are the waves taken; a move runs in
the lowest wave that is free at both ends (and in which its tablet has no other move), found with one bit operation.
"""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import Ints


def schedule(source: Ints, target: Ints, tablet: Ints, streams: int, busy_out: Ints, busy_in: Ints) -> Ints:
    """The wave (1 and up) of each move (M,), first fit in the given order.

    `streams`: replicas that may leave or reach a volume in one wave. `busy_out`, `busy_in` (V,): streams in flight;
    they count in wave 1.
    """
    busy = (busy_out + busy_in).tolist()
    # taken[v][k]: bits of the waves in which volume v has more than k streams; the last one: those in which it is full.
    taken = [[1 if count > k else 0 for k in range(streams)] for count in busy]
    same = np.unique(tablet, return_counts=True)
    tablet_taken = dict.fromkeys(same[0][same[1] > 1].tolist(), 0)
    waves: list[int] = []
    for a, b, t in zip(source.tolist(), target.tolist(), tablet.tolist(), strict=True):
        at_source, at_target = taken[a], taken[b]
        used = at_source[-1] | at_target[-1]
        if t in tablet_taken:
            used |= tablet_taken[t]
        bit = ~used & (used + 1)
        waves.append(bit.bit_length())
        if t in tablet_taken:
            tablet_taken[t] |= bit
        for levels in (at_source, at_target):
            k = 0
            while levels[k] & bit:
                k += 1
            levels[k] |= bit
    return np.array(waves, np.int64)
