"""What a request would do to the ring: the operations that it becomes, planned on the metadata of now.

A dry run plans as the coordinator will, and carries the plan out on the state of the ring alone, so that
every step of a long way is planned on what the steps before it lead to. Nothing is committed and no file is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from epochlake.jobs.views.operations import described
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events.plans import with_names
from epochlake.metastore.metadata.model import RequestKind, TopologyRequest
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.metastore.planning.ring import node_operation
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import STEPS, Operation, RingState
from epochlake.placement.ring.steps import accepted, advanced
from epochlake.placement.ring.strategies import Replication, replication_of
from epochlake.placement.ring.streaming import streams
from epochlake.placement.showing import Shown


class KeyspaceMoved(msgspec.Struct, frozen=True):
    """What an operation moves of a keyspace: `ranges` come to a node, `share` of all tokens, `bytes` of rows.

    Bytes are reckoned from the files of now, null when no replica table could be measured. `locked` are ranges
    `(start, end]` that no other operation may touch meanwhile.
    """

    keyspace: str
    ranges: int
    share: float
    bytes: int | None
    locked: tuple[tuple[int, int], ...]


class MovementPlanned(msgspec.Struct, frozen=True):
    """An operation as it would be prepared; `tokens` are those that its node owns afterwards. Each step is an epoch."""

    what: str
    steps: tuple[str, ...]
    tokens: tuple[int, ...]
    keyspaces: tuple[KeyspaceMoved, ...]


class RingPlan(Shown, msgspec.Struct, frozen=True):
    """The operations that a request would become, one after another.

    Where one cannot be prepared now, `obstacle` says why (with the code of the rejection): the request would wait.
    """

    operations: tuple[MovementPlanned, ...]
    obstacle: str | None = None
    obstacle_code: str | None = None


def plan_on_ring(
    metadata: ClusterMetadata, request: TopologyRequest, tokens_per_node: int, sizes: Mapping[str, int]
) -> RingPlan:
    """What a pending `request` of `metadata` would do; `sizes` are bytes of keyspaces, each row counted once."""
    planned: list[MovementPlanned] = []
    try:
        for operation, state in _operations(metadata, request, tokens_per_node):
            planned.append(_described(metadata, operation, state, sizes))
    except (PlanRejected, InvalidRequest) as error:
        code = error.code if isinstance(error, PlanRejected) else None
        return RingPlan(tuple(planned), with_names(metadata, error.text), code)
    return RingPlan(tuple(planned))


def _operations(
    metadata: ClusterMetadata, request: TopologyRequest, tokens_per_node: int
) -> Iterator[tuple[Operation, RingState]]:
    """The operations in their order, each with the state on which it is planned."""
    state = ring_state(metadata)
    if request.kind is not RequestKind.KEYSPACE_RF_CHANGE:
        yield node_operation(metadata, request, tokens_per_node), state
        return
    target = replication_of(request.strategy, request.replication)
    for number, step in enumerate(_path(state, request.keyspace, target), 1):
        name = f"{request.request_id}/{number}"
        operation = plan_replication_change(state, name, request.keyspace, step, force=request.force)
        yield operation, state
        state = _carried_out(state, operation)


def _path(state: RingState, keyspace: str, target: Replication) -> list[Replication]:
    now = state.keyspaces[keyspace]
    return replication_path(msgspec.structs.replace(now, changing=""), target)


def _carried_out(state: RingState, operation: Operation) -> RingState:
    state = accepted(state, operation)
    for _ in STEPS[1:]:
        state = advanced(state, operation.operation_id)
    return state


def _described(
    metadata: ClusterMetadata, operation: Operation, state: RingState, sizes: Mapping[str, int]
) -> MovementPlanned:
    streamed = streams(operation)
    moved = []
    for name, setting in sorted(state.keyspaces.items()):
        own = next((key for key in operation.deltas if key.changing == name), setting)
        if own not in operation.deltas or own.changing not in ("", name):
            continue
        ranges, locks = streamed[own], operation.locks.get(own, operation.locks.get(setting))
        moved.append(
            KeyspaceMoved(
                keyspace=name,
                ranges=len(ranges.starts),
                share=ranges.share,
                bytes=round(sizes[name] * ranges.share) if name in sizes else None,
                locked=() if locks is None else tuple(locks.pairs()),
            )
        )
    return MovementPlanned(described(metadata, operation), STEPS, operation.tokens, tuple(moved))
