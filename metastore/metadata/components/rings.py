"""The component `rings`: placements of every replication setting, and the operations in flight on the ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.metastore.arrays import array_of
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.differences import WHOLE, Difference, later
from epochlake.metastore.metadata.model import Node, NodeId
from epochlake.metastore.metadata.names import node_names
from epochlake.metastore.metadata.placements import Moving, RingPlacements
from epochlake.metastore.metadata.replication import replication_setting, ring_keyspaces
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.placements import ring_ranges
from epochlake.metastore.tables.rows import rows_of
from epochlake.placement.ring.codec import decode_state, encode_state
from epochlake.placement.ring.placements import Assignment, Placements, on_grid, same_sets
from epochlake.placement.ring.state import STEPS, Operation, RingState, Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import ends_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

RING_PLACEMENT = "ring placement"
RING_RANGE = "ring range"
OPERATION = "operation"

_START, _FINISH = STEPS.index(Step.START), STEPS.index(Step.FINISH)
_STATE = pa.schema([("state", pa.large_binary())])


class Running(msgspec.Struct, frozen=True):
    """How far the metadata has come with an operation.

    `session` is open from START until MID or the way back, for streaming; `started_epoch` is that of PREPARE, `epoch`
    that of the last step, in either direction.
    """

    operation_id: str
    request_id: str
    session: str | None
    started_epoch: int
    epoch: int


class Rings(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Placements by replication setting, and the operations in flight, in the order in which they were prepared.

    `changing` are the keyspaces whose replication an operation changes, with the setting of their own that they have
    until then; `placed` is the epoch in which the replicas of a setting last became what they are: when it came to be,
    or when an operation on it ended.
    """

    placements: Mapping[Replication, Placements] = {}
    operations: Mapping[str, Operation] = {}
    running: Mapping[str, Running] = {}
    changing: Mapping[str, Replication] = {}
    placed: Mapping[Replication, int] = {}
    epoch: int = 0

    def placements_for(self, replication: Replication, nodes: Mapping[NodeId, Node]) -> RingPlacements:
        """Where every token is read and written with a replication setting; made once, as volumes never change."""
        known: dict[Replication, RingPlacements] = self.__dict__.setdefault("known", {})
        if replication not in known:
            known[replication] = RingPlacements(
                self.placements[replication], self._moving(replication), nodes, self.placed[replication]
            )
        return known[replication]

    def _moving(self, replication: Replication) -> tuple[Moving, ...]:
        return tuple(
            Moving(
                operation.next_step in (_START + 1, _FINISH),
                operation.deltas[replication][_START].writes,
                operation.deltas[replication][_FINISH].writes,
                self.running[name].started_epoch,
            )
            for name, operation in self.operations.items()
            if replication in operation.deltas
        )

    def encoded(self) -> bytes:
        """Placements and operations as bytes: the same for equal ones."""
        return encode_state(RingState({}, {}, self.placements, self.operations))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rings):
            return NotImplemented
        if self is other:
            return True
        mine = (self.epoch, self.running, self.changing, self.placed)
        return mine == (other.epoch, other.running, other.changing, other.placed) and self.encoded() == other.encoded()

    __hash__ = None  # type: ignore[assignment]


class _Rings(msgspec.Struct, frozen=True):
    running: list[Running] = []
    changing: list[tuple[str, Replication]] = []
    placed: list[tuple[Replication, int]] = []
    epoch: int = 0


class _Stored(msgspec.Struct, frozen=True):
    rings: _Rings


def _encode(state: Rings) -> _Stored:
    return _Stored(
        _Rings(
            running=list(state.running.values()),
            changing=sorted(state.changing.items()),
            placed=sorted(state.placed.items()),
            epoch=state.epoch,
        )
    )


def _arrays(state: Rings) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array_of([state.encoded()], pa.large_binary())], schema=_STATE)


def _decode(stored: _Stored, table: pa.Table | None) -> Rings:
    if table is None:
        return Rings()
    state = decode_state(table["state"][0].as_py())
    small = stored.rings
    return Rings(
        placements=state.placements,
        operations=state.operations,
        running={running.operation_id: running for running in small.running},
        changing=dict(small.changing),
        placed=dict(small.placed),
        epoch=small.epoch,
    )


def _facts(state: Rings) -> Facts:
    small = {
        "running": [plain(running) for running in state.running.values()],
        "changing": plain(sorted(state.changing.items())),
        "placed": plain(sorted(state.placed.items())),
    }
    return Facts(small, (state.encoded(),), state.epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    yield from _ring_ranges(before, after)
    yield from _operations(before, after)


def _ring_ranges(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    """Ranges whose reads or writes differ; where a range was split or merged, the pieces that differ."""
    if before.rings is after.rings:
        return
    names = node_names(later(before, after).directory)
    old, new = (
        {name: m.rings.placements[replication_setting(m, name)] for name in ring_keyspaces(m)} for m in (before, after)
    )
    for keyspace in sorted({*old, *new}):
        was, now = old.get(keyspace), new.get(keyspace)
        if was is None or now is None:
            yield Difference(RING_PLACEMENT, keyspace, WHOLE, _ranges(was), _ranges(now))
        elif was is not now:
            for start, end, field, one, other in _moved(was, now):
                label = f"{keyspace}/({start}, {end}]"
                yield Difference(RING_RANGE, label, field, _nodes(one, names), _nodes(other, names))


def _ranges(placements: Placements | None) -> dict[str, Any] | None:
    return None if placements is None else {"ranges": len(placements.reads.starts)}


def _moved(was: Placements, now: Placements) -> list[tuple[int, int, str, list[NodeId], list[NodeId]]]:
    """Start, end, `reads` or `writes`, and the nodes before and after; in ring order."""
    found = []
    for field in ("reads", "writes"):
        old: Assignment = getattr(was, field)
        new: Assignment = getattr(now, field)
        if old is not new:
            grid = np.union1d(old.starts, new.starts)
            left, right, ends = on_grid(old, grid), on_grid(new, grid), ends_of(grid)
            found += [
                (int(grid[row]), int(ends[row]), field, left[row].tolist(), right[row].tolist())
                for row in np.flatnonzero(~same_sets(left, right)).tolist()
            ]
    return sorted(found, key=lambda change: (change[0], change[2]))


def _nodes(row: list[NodeId], names: Mapping[NodeId, str]) -> list[str]:
    return [names[node] for node in row if node >= 0]


def _operations(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    if before.rings is after.rings:
        return
    names = node_names(later(before, after).directory)
    old, new = ({name: _operation(m, one, names) for name, one in m.rings.operations.items()} for m in (before, after))
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            yield Difference(OPERATION, name, WHOLE, was, now)
            continue
        for field in was:
            if was[field] != now[field]:
                yield Difference(OPERATION, name, field, was[field], now[field])


def _operation(metadata: ClusterMetadata, operation: Operation, names: Mapping[NodeId, str]) -> dict[str, Any]:
    """An operation as far as it changes or names itself; its deltas are known by what they do to the ranges."""
    return {
        "kind": operation.kind.value,
        "request_id": metadata.rings.running[operation.operation_id].request_id,
        "node": names.get(operation.node_id),
        "replaced": None if operation.replaced is None else names[operation.replaced],
        "keyspace": operation.keyspace or None,
        "tokens": list(operation.tokens),
        "step": STEPS[operation.next_step - 1].value,
        "cancelling": operation.cancelling,
        "session": metadata.rings.running[operation.operation_id].session,
    }


def operations(metadata: ClusterMetadata) -> pa.Table:
    """A row for each operation in flight on the ring, in the order in which they were prepared."""
    known, running = metadata.directory.nodes, metadata.rings.running
    return rows_of(
        c.OPERATIONS_SCHEMA,
        (
            (
                name,
                running[name].request_id,
                operation.kind.value,
                operation.node_id if operation.node_id in known else None,
                known[operation.node_id].name if operation.node_id in known else None,
                operation.replaced,
                operation.keyspace or None,
                list(operation.tokens),
                STEPS[operation.next_step - 1].value,
                None if operation.cancelling else STEPS[operation.next_step].value,
                operation.cancelling,
                sum(len(ranges.starts) for ranges in operation.locks.values()),
                running[name].session,
                running[name].started_epoch,
                running[name].epoch,
            )
            for name, operation in metadata.rings.operations.items()
        ),
    )


RINGS = Component(
    empty=Rings(),
    since=2,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    arrays=_arrays,
    last_change=lambda state: state.epoch,
    facts=_facts,
    differences=_differences,
    tables=(ring_ranges, operations),
)
