"""What an operation streams: which ranges go to which node, and from whom.

A range is streamed from the replica that gives it up, so that a newcomer holds what that replica held and every later
quorum still meets every earlier one; where that one is dead, from a quorum of the old replicas, merged.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.ring.placements import AssignmentChange
from epochlake.placement.ring.state import STEPS, Operation, Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import NodeIds, Tokens

RING_SIZE = 2.0**64


class Streams(msgspec.Struct, frozen=True, eq=False):
    """A row for each range that a node gains: `starts`, `ends`, `targets`, `givers` (n); `sources` (n, width).

    `givers` is the replica that gives the range up to this target, -1 where nobody does (more replicas than before).
    `sources` are all replicas that serve reads of it until then, padded with -1.
    """

    starts: Tokens
    ends: Tokens
    targets: NodeIds
    givers: NodeIds
    sources: NodeIds

    @property
    def share(self) -> float:
        """Streamed copies of tokens, as a multiple of the whole ring."""
        return float(lengths(self.starts, self.ends).sum() / RING_SIZE)


def streams(operation: Operation) -> dict[Replication, Streams]:
    """What must be streamed after START is acknowledged and before MID is committed, by replication setting."""
    mid = STEPS.index(Step.MID)
    return {replication: _streams(deltas[mid].reads) for replication, deltas in operation.deltas.items()}


def lengths(starts: Tokens, ends: Tokens) -> np.ndarray:
    """Tokens in each range, as floats; a range from a token to itself is the whole ring."""
    counts = (ends.view(np.uint64) - starts.view(np.uint64)).astype(np.float64)
    return np.where(counts == 0, RING_SIZE, counts)


def _streams(change: AssignmentChange) -> Streams:
    """The k-th node that comes takes over from the k-th that goes, in the order in which the replicas are listed."""
    before, after = change.before, change.after
    comes = ~(after[:, :, None] == before[:, None, :]).any(axis=2) & (after >= 0)
    goes = ~(before[:, :, None] == after[:, None, :]).any(axis=2) & (before >= 0)
    rows, columns = np.nonzero(comes)
    rank = (np.cumsum(comes, axis=1) - 1)[rows, columns]
    # Those that go first, in their order: column k is then the k-th of them.
    going = np.take_along_axis(before, np.argsort(~goes, axis=1, kind="stable"), axis=1)
    paired = rank < goes.sum(axis=1)[rows]
    givers = np.full(len(rows), -1, dtype=np.int32)
    givers[paired] = going[rows[paired], rank[paired]]
    return Streams(change.starts[rows], change.ends[rows], after[rows, columns], givers, before[rows])
