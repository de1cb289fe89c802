"""Tokens for a joining node, so that ownership evens out.

What a node will hold is decided by the sub-ring in which it competes. Where a datacenter keeps at least
as many replicas as it has racks, every rack holds every range, and only nodes of the same rack share the work; else
all nodes of the datacenter do. In that sub-ring the newcomer is due an equal share, and takes it in equal pieces,
each from whoever owns most at that moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

import numpy as np
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.placements import Assignment
from epochlake.placement.ring.state import RingState
from epochlake.placement.ring.steps import settled_tokens
from epochlake.placement.ring.strategies import SIMPLE, Replication
from epochlake.placement.ring.streaming import RING_SIZE, lengths
from epochlake.placement.ring.tokens import MIN_TOKEN

_TURN = 2**64


def allocate_tokens(
    state: RingState,
    datacenter: str,
    rack: str,
    count: int,
    replication: Replication,
    reserved: Collection[int] = (),
) -> tuple[int, ...]:
    """`count` free tokens for a node that is to join there, ascending; the same state gives the same tokens.

    Operations in flight are taken as finished. `replication` is the setting whose ownership is to even out: usually
    that of the biggest keyspace. `reserved`: tokens that are somebody else's, though no node owns them. Raises
    `InvalidRequest` when `count` is not positive.
    """
    if count < 1:
        raise InvalidRequest(f"{count} tokens were asked for: a node that joins needs at least one.")
    owned = settled_tokens(state)
    taken = {token for tokens in owned.values() for token in tokens} | {*reserved}
    rivals = _rivals(state, owned, datacenter, rack, replication)
    if not rivals:
        return _free([MIN_TOKEN + (2 * index + 1) * _TURN // (2 * count) for index in range(count)], taken)
    return _free(_pieces(rivals, count), taken)


def ownership(assignment: Assignment) -> dict[int, float]:
    """How much of the ring each node holds: 1.0 is all of it."""
    share = lengths(assignment.starts, assignment.ends) / RING_SIZE
    held = assignment.replicas >= 0  # a node at most once in each row
    nodes = assignment.replicas[held]
    totals = np.bincount(nodes, np.broadcast_to(share[:, None], held.shape)[held])
    return {int(node): float(totals[node]) for node in np.unique(nodes)}


def _rivals(
    state: RingState, owned: Mapping[int, tuple[int, ...]], datacenter: str, rack: str, replication: Replication
) -> dict[int, tuple[int, ...]]:
    """Tokens of the nodes that the newcomer shares the work with; empty in an empty datacenter.

    The first node of a rack may have to hold every range whatever its tokens are. They are spread among those of its
    datacenter then: keyspaces with fewer replicas, now or later, would be placed by them.
    """
    if replication.strategy == SIMPLE:
        return dict(owned)
    there = {node: tokens for node, tokens in owned.items() if state.nodes[node].datacenter == datacenter}
    racks = {state.nodes[node].rack for node in there} | {rack}
    if len(racks) > replication.factor(datacenter):
        return there
    return {node: tokens for node, tokens in there.items() if state.nodes[node].rack == rack} or there


def _pieces(rivals: Mapping[int, tuple[int, ...]], count: int) -> list[int]:
    """Ends of the pieces: each is the lower part of the biggest range of the node that owns most."""
    tokens = sorted((token, node) for node, owned in rivals.items() for token in owned)
    ranges: dict[int, list[tuple[int, int]]] = {node: [] for node in rivals}
    for (before, _), (token, node) in zip([tokens[-1], *tokens[:-1]], tokens, strict=True):
        heapq.heappush(ranges[node], (-((token - before) % _TURN or _TURN), before))
    load = [(sum(length for length, _ in held), node) for node, held in ranges.items()]
    heapq.heapify(load)
    due = _TURN // (len(rivals) + 1)
    ends = []
    for left in range(count, 0, -1):
        owns, node = heapq.heappop(load)
        length, start = heapq.heappop(ranges[node])
        piece = max(1, min(due // left, -length - 1))
        end = start + piece
        ends.append(end)
        due -= piece
        heapq.heappush(ranges[node], (length + piece, end))
        heapq.heappush(load, (owns + piece, node))
    return [(end - MIN_TOKEN) % _TURN + MIN_TOKEN for end in ends]


def _free(wanted: list[int], taken: Collection[int]) -> tuple[int, ...]:
    """The wanted tokens, each moved up to the next one that nobody has."""
    chosen: set[int] = set()
    for token in wanted:
        while token in taken or token in chosen:
            token = (token + 1 - MIN_TOKEN) % _TURN + MIN_TOKEN
        chosen.add(token)
    return tuple(sorted(chosen))
