"""Placements of a part of a ring, from as little of the ring as that takes.

Walks are short. The replicas of a slice of ranges are those that the strategy gives to a *window* of the
ring, the slice's tokens and some after them, taken for a ring of its own: as soon as the window shows every rack, and
no walk from the slice leaves it. Where one does the window is made longer. So tasks that share nothing compute the
placement of one ring together, and operations in flight change in each slice what lies in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec
import numpy as np
from epochlake.placement.ring.placements import (
    Assignment,
    AssignmentChange,
    Delta,
    Placements,
    applied,
    calculated,
    settled,
)
from epochlake.placement.ring.state import Operation
from epochlake.placement.ring.strategies import SIMPLE, Replication, walked_positions
from epochlake.placement.ring.tokens import MIN_TOKEN, NodeIds, Ring
from numpy.typing import NDArray

_FIRST_REACH = 64


def slices_of(ring: Ring, count: int) -> list[tuple[int, int]]:
    """The ranges of the ring in `count` slices of about the same size: first range, and the one after the last."""
    ranges = max(1, len(ring.starts))
    ends = np.linspace(0, ranges, min(count, ranges) + 1).astype(int).tolist()
    return list(pairwise(ends))


def slice_placements(
    ring: Ring, replication: Replication, begin: int, end: int, operations: Iterable[Operation] = ()
) -> tuple[Placements, int]:
    """Reads and writes of the ranges `begin` to `end` (exclusive) of the ring, and the token at which the last ends.

    `ring` is that of the tokens that are owned now; `operations` are those in flight, in the order in which they were
    prepared. Their splits cut ranges finer.
    """
    starts = calculated(ring, replication).starts if not len(ring.tokens) else ring.starts
    low, high = int(starts[begin]), int(starts[end]) if end < len(starts) else MIN_TOKEN
    rows = _replicas(ring, replication, begin, end)
    part = settled(_framed(Assignment(starts[begin:end], rows), high))
    for operation in operations:
        deltas = operation.deltas.get(replication, ())[: operation.next_step]
        part = applied(part, *(_within(delta, low, high) for delta in deltas))
    reads = _unframed(part.reads, low, high)
    return Placements(reads, reads if part.writes is part.reads else _unframed(part.writes, low, high)), high


def _replicas(ring: Ring, replication: Replication, begin: int, end: int) -> NodeIds:
    """Replicas of the ranges `begin` to `end`, as `natural_replicas` has them in these rows."""
    size = len(ring.tokens)
    if not size:
        return np.empty((end - begin, 0), dtype=np.int32)
    # The range that ends at the top belongs to the first token's owner, and where MIN is a token the first range
    # begins there.
    first = begin + int(ring.tokens[0] == MIN_TOKEN)
    count = min(end - begin, size)
    reach = _FIRST_REACH
    while True:
        length = min(size, count + reach)
        at = (first + np.arange(length)) % size
        window = msgspec.structs.replace(ring, tokens=np.arange(length, dtype=np.int64), owners=ring.owners[at])
        if length == size or _shows_enough(window, ring, replication):
            walked = walked_positions(window, replication)[:count]
            if length == size or not walked.size or int(walked.max()) < length:
                nodes = ring.node_ids[window.owners[walked % length]]
                return nodes[np.arange(end - begin) % count]
        reach *= 4


def _shows_enough(window: Ring, ring: Ring, replication: Replication) -> bool:
    """Whether the strategy chooses in the window as in the ring: it counts racks, and nodes up to the factor."""
    there, here = np.unique(ring.owners), np.unique(window.owners)
    for index, name in enumerate(ring.datacenter_names):
        factor = replication.factor(name)
        everywhere = replication.strategy == SIMPLE
        all_nodes, nodes = (side if everywhere else side[ring.datacenters[side] == index] for side in (there, here))
        if factor and len(nodes) <= factor and len(nodes) < len(all_nodes):
            return False
        if factor and not everywhere and len(np.unique(ring.racks[nodes])) < len(np.unique(ring.racks[all_nodes])):
            return False
    return True


def _framed(part: Assignment, high: int) -> Assignment:
    """The part with a range before it and one after it that nobody holds: so it is a cover of the whole ring."""
    nobody = np.full((1, part.replicas.shape[1]), -1, dtype=np.int32)
    starts, rows = [part.starts], [part.replicas]
    if part.starts[0] != MIN_TOKEN:
        starts, rows = [_one(MIN_TOKEN), *starts], [nobody, *rows]
    if high != MIN_TOKEN:
        starts, rows = [*starts, _one(high)], [*rows, nobody]
    return Assignment(np.concatenate(starts), np.concatenate(rows))


def _unframed(framed: Assignment, low: int, high: int) -> Assignment:
    mine = _inside(framed.starts, low, high)
    return Assignment(framed.starts[mine], framed.replicas[mine])


def _within(delta: Delta, low: int, high: int) -> Delta:
    """What of a delta lies between two starts of ranges that it does not take away."""
    return Delta(
        delta.split[_inside(delta.split, low, high)],
        _change_within(delta.reads, low, high),
        _change_within(delta.writes, low, high),
        delta.merge[_inside(delta.merge, low, high)],
    )


def _change_within(change: AssignmentChange, low: int, high: int) -> AssignmentChange:
    mine = _inside(change.starts, low, high)
    return AssignmentChange(change.starts[mine], change.ends[mine], change.before[mine], change.after[mine])


def _inside(starts: NDArray[np.int64], low: int, high: int) -> NDArray[np.bool_]:
    return (starts >= low) & ((starts < high) | (high == MIN_TOKEN))


def _one(token: int) -> NDArray[np.int64]:
    return np.array([token], dtype=np.int64)
