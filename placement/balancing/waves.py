"""Moves in waves, so that no volume sends or gets more than a few streams at once.

A wave is a bit. Each volume keeps one number per stream whose bits are the waves taken; a move runs in
the lowest wave that is free at both ends (and in which its tablet has no other move), found with one bit operation.
Small tablets that go the same way share a stream, as they are streamed and committed together.
"""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import BalancingPolicy, ClusterLoad, Ints

STREAM_TABLETS = 64
"""So many tablets share a stream at most."""


def schedule(load: ClusterLoad, moved: Ints, target: Ints, policy: BalancingPolicy) -> Ints:
    """The wave (1 and up) of each move (M,), first fit in the given order.

    `moved`: the rows of the replicas that move; `target`: the volumes that they move to. Streams in
    flight (`load.busy_out`, `load.busy_in`) count in wave 1.
    """
    streams, most = policy.streams_per_volume, policy.shared_stream_bytes
    source, tablet, size = load.replica_volume[moved], load.replica_tablet[moved], load.replica_size[moved]
    busy = (load.busy_out + load.busy_in).tolist()
    # taken[v][k]: bits of the waves in which volume v has more than k streams; the last one: those in which it is full.
    taken = [[1 if count > k else 0 for k in range(streams)] for count in busy]
    same = np.unique(tablet, return_counts=True)
    tablet_taken = dict.fromkeys(same[0][same[1] > 1].tolist(), 0)
    # The newest stream of each way: the bit of its wave, and what it has room for.
    open_streams: dict[tuple[int, int], tuple[int, float, int]] = {}
    waves: list[int] = []
    for a, b, t, bytes_ in zip(source.tolist(), target.tolist(), tablet.tolist(), size.tolist(), strict=True):
        bit, room, places = open_streams.get((a, b), (0, 0.0, 0))
        shared = bool(bit) and most > 0 and bytes_ <= room and places > 0 and not tablet_taken.get(t, 0) & bit
        if not shared:
            at_source, at_target = taken[a], taken[b]
            used = at_source[-1] | at_target[-1] | tablet_taken.get(t, 0)
            bit, room, places = ~used & (used + 1), float(most), STREAM_TABLETS
            for levels in (at_source, at_target):
                k = 0
                while levels[k] & bit:
                    k += 1
                levels[k] |= bit
        open_streams[(a, b)] = (bit, room - bytes_, places - 1)
        waves.append(bit.bit_length())
        if t in tablet_taken:
            tablet_taken[t] |= bit
    return np.array(waves, np.int64)
