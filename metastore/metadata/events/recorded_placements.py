"""Placements on the ring as an event records them: computed once, by who appends it, and read back ever after.

The ranges of the ring are known from the tokens that nodes own, so of a new placement only the replicas
have to be recorded, a row for each range in the order of the ring. For 1,000 nodes of 256 tokens each these take 0.8 MB
(docs/decisions/033-frozen-formats.md).
"""

from __future__ import annotations

import numpy as np
from epochlake.metastore.metadata.attachments import decode_replicas, encode_replicas
from epochlake.metastore.metadata.events.base import require
from epochlake.placement.rejections import Code
from epochlake.placement.ring.placements import Assignment, Placements, calculated, settled
from epochlake.placement.ring.state import RingState
from epochlake.placement.ring.strategies import SIMPLE, Replication
from epochlake.placement.tablets.tablet_map import NO_REPLICA
from numpy.typing import NDArray


def recorded(state: RingState, setting: Replication) -> bytes:
    """The placement that the strategy gives to the ring now, to be kept by an event; nothing for an empty ring."""
    ring = state.ring()
    return encode_replicas(calculated(ring, setting).replicas) if len(ring.tokens) else b""


def placed(state: RingState, setting: Replication, attachment: bytes) -> Placements:
    """The placement that an event has recorded. Entries from before it was recorded leave it to the strategy."""
    ring = state.ring()
    if not attachment:
        return settled(calculated(ring, setting))
    return settled(Assignment(ring.starts, decode_replicas(attachment)))


def check_recorded(state: RingState, setting: Replication, attachment: bytes) -> None:
    """Raise Rejected unless the attachment is a placement of this setting on the ring of now.

    Which nodes the strategy chooses is not looked at: a strategy that was mended since must not make old entries wrong.
    """
    require(
        setting not in state.placements,
        Code.INVALID_EVENT,
        "the event records a placement that the ring has already",
    )
    replicas, owners = decode_replicas(attachment), state.tokens()
    require(
        len(replicas) == len(state.ring().starts) and bool(np.isin(replicas, [NO_REPLICA, *owners]).all()),
        Code.STALE_PLAN,
        "the placement that the event records is not one of the ring of now",
        hint="Let the committer record it",
    )
    ordered = np.sort(replicas, axis=1)
    doubled = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_REPLICA)
    require(
        not doubled.any() and _has_factors(state, setting, replicas, list(owners)),
        Code.INVALID_EVENT,
        "the placement that the event records does not have the replicas that the keyspace asks for",
    )


def _has_factors(state: RingState, setting: Replication, replicas: NDArray[np.int32], owners: list[int]) -> bool:
    datacenters: dict[str, list[int]] = {}
    for node in owners:
        where = "" if setting.strategy == SIMPLE else state.nodes[node].datacenter
        datacenters.setdefault(where, []).append(node)
    return all(
        bool((np.isin(replicas, nodes).sum(axis=1) == setting.factor(name)).all())
        for name, nodes in datacenters.items()
    )
