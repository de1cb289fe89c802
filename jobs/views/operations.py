"""Operations on the ring as people see them: what each does to whom, how far it has come, what it does to a range.

An operation is data in the metadata, so everything here follows from one epoch and asks nobody; what
has been streamed by now is for `jobs/coordinator/progress.py` to say.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.jobs.views.streamed import Streamed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeId
from epochlake.metastore.metadata.replication import replication_setting
from epochlake.placement.ring.locks import Ranges
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import MIN_TOKEN


class OperationStatus(msgspec.Struct, frozen=True):
    """An operation in flight. `step` is the last one that is done, `next_step` the one that comes (null: taken back).

    `locked_ranges` are those that no other operation may touch; `keyspaces` those whose ranges move. `session` is open
    while ranges are streamed, `streamed` is how far that is (null when the volumes were not asked).
    """

    operation_id: str
    request_id: str
    kind: str
    what: str
    step: str | None
    next_step: str | None
    cancelling: bool
    session: str | None
    keyspaces: tuple[str, ...]
    locked_ranges: int
    started_epoch: int
    epoch: int
    streamed: Streamed | None = None


class RangeChange(msgspec.Struct, frozen=True):
    """What an operation does to one range: the nodes that come and those that go, by number."""

    operation: Operation
    comes: frozenset[NodeId]
    goes: frozenset[NodeId]


def operation_statuses(metadata: ClusterMetadata) -> tuple[OperationStatus, ...]:
    """The operations in flight, in the order in which they were prepared."""
    return tuple(_status(metadata, operation) for operation in metadata.rings.operations.values())


def described(metadata: ClusterMetadata, operation: Operation) -> str:
    """What an operation is, with the names of nodes: `join of node n4`."""
    if operation.kind is OperationKind.CHANGE_REPLICATION:
        wanted = "" if operation.replication is None else f" to {factors(operation.replication)}"
        return f"change of keyspace {operation.keyspace}{wanted}"
    node = _name(metadata, operation.node_id)
    if operation.replaced is not None:
        return f"replace of node {_name(metadata, operation.replaced)} by node {node}"
    return f"{operation.kind} of node {node}" + (f" from {operation.datacenter}" if operation.datacenter else "")


def factors(replication: Replication) -> str:
    """A replication setting as it is written on the command line."""
    return ",".join(f"{name}={count}" for name, count in replication.factors)


def last_step(operation: Operation) -> Step | None:
    """The step that was done last and not taken back, None when even PREPARE is not."""
    return STEPS[operation.next_step - 1] if operation.next_step else None


def coming_step(operation: Operation) -> Step | None:
    """The step that comes next, None for an operation that only goes back."""
    return None if operation.cancelling or operation.next_step >= len(STEPS) else STEPS[operation.next_step]


def change_at(metadata: ClusterMetadata, keyspace: str, token: int) -> RangeChange | None:
    """The operation in flight that changes the replicas of the range that `token` is in; None when none does."""
    setting = replication_setting(metadata, keyspace)
    for operation in metadata.rings.operations.values():
        if setting not in operation.deltas:
            continue
        deltas = operation.deltas[setting]
        for change in (deltas[STEPS.index(Step.MID)].reads, deltas[STEPS.index(Step.START)].reads):
            row = _row_of(Ranges(change.starts, change.ends), token)
            if row is not None:
                before, after = ({*side[row].tolist()} - {-1} for side in (change.before, change.after))
                return RangeChange(operation, frozenset(after - before), frozenset(before - after))
    return None


def locked_ranges(operation: Operation) -> int:
    """How many ranges it locks; those of several replication settings count each."""
    return sum(len(ranges.starts) for ranges in operation.locks.values())


def _row_of(ranges: Ranges, token: int) -> int | None:
    """The row of the range that holds `token`; ranges ascend by their starts and do not overlap."""
    if not len(ranges.starts):
        return None
    # As everywhere in the metadata the lowest token is in the first range, not at the top.
    start = token if token == MIN_TOKEN else token - 1
    row = int(np.searchsorted(ranges.starts, start, side="right")) - 1
    inside = row >= 0 and (token <= ranges.ends[row] or ranges.ends[row] == MIN_TOKEN)
    return row if inside else None


def _status(metadata: ClusterMetadata, operation: Operation) -> OperationStatus:
    running = metadata.rings.running[operation.operation_id]
    settings = {*operation.deltas}
    return OperationStatus(
        operation_id=operation.operation_id,
        request_id=running.request_id,
        kind=operation.kind.value,
        what=described(metadata, operation),
        step=_value(last_step(operation)),
        next_step=_value(coming_step(operation)),
        cancelling=operation.cancelling,
        session=running.session,
        keyspaces=tuple(
            name
            for name, keyspace in sorted(metadata.schema.keyspaces.items())
            if keyspace.placement == "ring" and replication_setting(metadata, name) in settings
        ),
        locked_ranges=locked_ranges(operation),
        started_epoch=running.started_epoch,
        epoch=running.epoch,
    )


def _value(step: Step | None) -> str | None:
    return None if step is None else step.value


def _name(metadata: ClusterMetadata, node_id: NodeId) -> str:
    node = metadata.directory.known.get(node_id)
    return str(node_id) if node is None else node.name
