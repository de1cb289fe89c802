"""Read and write placements of one replication setting, and the deltas that change them.

A cover of the ring is a sorted array of starts, so splitting inserts a start, merging takes one out,
and a change replaces rows. A delta says what it expects to find (`before`) as well as what it puts there (`after`):
it can be turned round exactly, and applied to anything else than what it was computed for it fails instead of
corrupting.

Replicas of a range are compared as sets; their order is ring order when they were calculated.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.errors import InvariantViolated
from epochlake.placement.ring.strategies import Replication, natural_replicas
from epochlake.placement.ring.tokens import MIN_TOKEN, NodeIds, Ring, Tokens, ends_of, missing_from, with_starts
from numpy.typing import NDArray


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """Replicas of every range of a cover: `starts` (n) ascending from `MIN`, `replicas` (n, width) padded with -1.

    An empty ring is one range, all of it, without replicas.
    """

    starts: Tokens
    replicas: NodeIds

    @property
    def ends(self) -> Tokens:
        return ends_of(self.starts)

    def ranges(self) -> list[tuple[int, int, list[int]]]:
        """(start, end, replicas) of each range, for people and documents; not for whole big rings."""
        rows = zip(self.starts.tolist(), self.ends.tolist(), self.replicas.tolist(), strict=True)
        return [(start, end, [node for node in row if node >= 0]) for start, end, row in rows]


class Placements(msgspec.Struct, frozen=True, eq=False):
    """Which replicas serve reads, and which must get writes. One and the same object when they do not differ."""

    reads: Assignment
    writes: Assignment


class AssignmentChange(msgspec.Struct, frozen=True, eq=False):
    """New replicas for some ranges: `starts`, `ends` (k), `before` and `after` (k, width) padded with -1."""

    starts: Tokens
    ends: Tokens
    before: NodeIds
    after: NodeIds


class Delta(msgspec.Struct, frozen=True, eq=False):
    """One step: starts to insert, then changes of reads and of writes, then starts to take out."""

    split: Tokens
    reads: AssignmentChange
    writes: AssignmentChange
    merge: Tokens


NO_TOKENS: Tokens = np.empty(0, dtype=np.int64)
NO_CHANGE = AssignmentChange(NO_TOKENS, NO_TOKENS, np.empty((0, 0), dtype=np.int32), np.empty((0, 0), dtype=np.int32))
NO_DELTA = Delta(NO_TOKENS, NO_CHANGE, NO_CHANGE, NO_TOKENS)


def calculated(ring: Ring, replication: Replication) -> Assignment:
    """The placement that the strategy gives to this ring."""
    if len(ring.tokens) == 0:
        return Assignment(np.array([MIN_TOKEN], dtype=np.int64), np.empty((1, 0), dtype=np.int32))
    return Assignment(ring.starts, natural_replicas(ring, replication))


def settled(assignment: Assignment) -> Placements:
    """Placements that read and write the same replicas."""
    return Placements(assignment, assignment)


def applied(placements: Placements, *deltas: Delta) -> Placements:
    """The placements after these deltas, one after the other; raises `InvariantViolated` when they are not what the
    deltas were computed for."""
    reads, writes = placements.reads, placements.writes
    for delta in deltas:
        alike = writes is reads and delta.writes is delta.reads
        reads = applied_to_reads(reads, delta)
        writes = reads if alike else _applied(writes, delta.split, delta.writes, delta.merge)
    return settled(reads) if same(reads, writes) else Placements(reads, writes)


def applied_to_reads(reads: Assignment, delta: Delta) -> Assignment:
    """What `applied` makes of the reads, for whoever needs nothing else; raises like it."""
    return _applied(reads, delta.split, delta.reads, delta.merge)


def inverse(delta: Delta) -> Delta:
    """The delta that leads back."""
    reads = turned(delta.reads)
    writes = reads if delta.writes is delta.reads else turned(delta.writes)
    return Delta(delta.merge, reads, writes, delta.split)


def turned(change: AssignmentChange) -> AssignmentChange:
    return AssignmentChange(change.starts, change.ends, change.after, change.before)


def same(left: Assignment, right: Assignment) -> bool:
    """Whether two assignments have the same ranges with the same sets of replicas."""
    if left is right:
        return True
    return np.array_equal(left.starts, right.starts) and bool(same_sets(left.replicas, right.replicas).all())


def same_sets(left: NodeIds, right: NodeIds) -> NDArray[np.bool_]:
    """Row by row, whether two padded arrays hold the same nodes."""
    width = max(left.shape[1], right.shape[1])
    left, right = widened(left, width), widened(right, width)
    alike: NDArray[np.bool_] = (left == right).all(axis=1)
    if alike.all():
        return alike
    others = np.flatnonzero(~alike)  # Only what stands there in another order has to be sorted.
    alike[others] = (np.sort(left[others], axis=1) == np.sort(right[others], axis=1)).all(axis=1)
    return alike


def widened(replicas: NodeIds, width: int) -> NodeIds:
    """The same rows with padding up to `width`."""
    if replicas.shape[1] >= width:
        return replicas
    padding = np.full((len(replicas), width - replicas.shape[1]), -1, dtype=np.int32)
    return np.concatenate([replicas, padding], axis=1)


def narrowed(replicas: NodeIds) -> NodeIds:
    """The same rows without columns of nothing but padding at their end."""
    if replicas.shape[1] and (replicas[:, -1] >= 0).any():
        return replicas
    used = (replicas >= 0).any(axis=0)
    return replicas[:, : int(np.flatnonzero(used).max(initial=-1)) + 1]


def united(left: NodeIds, right: NodeIds) -> NodeIds:
    """Row by row the nodes of `left`, then those of `right` that are not among them."""
    known = (right[:, :, None] == left[:, None, :]).any(axis=2)
    return _closed_up(np.concatenate([left, np.where(known, np.int32(-1), right)], axis=1))


def without_node(replicas: NodeIds, node_id: int) -> NodeIds:
    """The same rows without one node."""
    return _closed_up(np.where(replicas == node_id, np.int32(-1), replicas))


def on_grid(assignment: Assignment, starts: Tokens) -> NodeIds:
    """Replicas of the ranges of a finer cover."""
    if starts is assignment.starts:
        return assignment.replicas
    return assignment.replicas[assignment.starts.searchsorted(starts, side="right") - 1]


def _closed_up(replicas: NodeIds) -> NodeIds:
    """Rows with their padding at the end; the order of the nodes stays."""
    order = np.argsort(replicas < 0, axis=1, kind="stable")
    return narrowed(replicas[np.arange(len(replicas))[:, None], order])


def _applied(assignment: Assignment, split: Tokens, change: AssignmentChange, merge: Tokens) -> Assignment:
    if not (len(split) or len(change.starts) or len(merge)):
        return assignment
    return _merged(_changed(_split(assignment, split), change), merge)


def _split(assignment: Assignment, tokens: Tokens) -> Assignment:
    if not len(tokens):
        return assignment
    if len(missing_from(tokens, assignment.starts)) != len(tokens):
        raise InvariantViolated(
            "a range is to be split where a range starts already: the plan is for another placement."
        )
    starts = with_starts(assignment.starts, tokens)
    return Assignment(starts, on_grid(assignment, starts))


def _changed(assignment: Assignment, change: AssignmentChange) -> Assignment:
    if not len(change.starts):
        return assignment
    count = len(assignment.starts)
    rows = assignment.starts.searchsorted(change.starts)
    at = np.minimum(rows, count - 1)
    known = assignment.starts[at] == change.starts
    known &= assignment.starts[(at + 1) % count] == change.ends
    known &= same_sets(assignment.replicas[at], change.before)
    if not known.all():
        wrong = int(np.flatnonzero(~known)[0])
        raise InvariantViolated(
            f"range ({change.starts[wrong]}, {change.ends[wrong]}] is not placed as the plan expects "
            f"({change.before[wrong].tolist()}): the plan is for another placement."
        )
    width = max(assignment.replicas.shape[1], change.after.shape[1])
    replicas = widened(assignment.replicas, width).copy()
    replicas[rows] = widened(change.after, width)
    return Assignment(assignment.starts, narrowed(replicas))


def _merged(assignment: Assignment, tokens: Tokens) -> Assignment:
    if not len(tokens):
        return assignment
    at = np.minimum(assignment.starts.searchsorted(tokens), len(assignment.starts) - 1)
    gone = np.zeros(len(assignment.starts), dtype=np.bool_)
    gone[at] = assignment.starts[at] == tokens
    if np.count_nonzero(gone) != len(tokens):
        raise InvariantViolated("ranges are to be merged where no range starts: the plan is for another placement.")
    pieces = np.flatnonzero(gone)
    alike = same_sets(assignment.replicas[pieces], assignment.replicas[pieces - 1])
    if not alike.all():
        token = assignment.starts[pieces[np.flatnonzero(~alike)[0]]]
        raise InvariantViolated(f"the ranges on both sides of {token} have different replicas: they cannot be merged.")
    # Of the pieces of a merged range the last one stays: its order begins with the owner of the range's end.
    last = np.ones(len(gone), dtype=np.bool_)
    last[:-1] = ~gone[1:]
    return Assignment(assignment.starts[~gone], assignment.replicas[last])
