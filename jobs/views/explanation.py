"""Why a row is where it is: from key to token to tablet or range to replicas, and what is under way there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from epochlake.jobs.views.operations import RangeChange, change_at, coming_step, described, last_step
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeId, PlacementKind, Table, VolumeId
from epochlake.metastore.metadata.placements import Placement, highs, index_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.hashing import token_of
from epochlake.placement.ring.state import OperationKind, Step
from epochlake.placement.showing import Shown
from epochlake.placement.tablets.transitions import READS, WRITES
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tablet_label, tablet_of, tablet_range


class ReplicaExplained(msgspec.Struct, frozen=True):
    """A replica of the tablet or range; `role` is `replica`, or `leaving` or `pending` while it is on its way."""

    place: str
    volume_id: int
    node: str
    node_state: str
    datacenter: str
    rack: str
    uri: str
    role: str
    reads: bool
    writes: bool


class TransitionExplained(msgspec.Struct, frozen=True):
    """The transition of the tablet; `reads_from` and `writes_to` are `old`, `new` or `both`."""

    kind: str
    stage: str
    reason: str
    error: str | None
    session: str | None
    started_epoch: int
    stage_epoch: int
    reads_from: str
    writes_to: str


class OperationExplained(msgspec.Struct, frozen=True):
    """The operation on the ring that changes the range; `step` is the last one that is done, and since which epoch.

    `reads_from` and `writes_to` are `old`, `new` or `both`; `others` while a node is rebuilt and not read.
    """

    operation_id: str
    request_id: str
    what: str
    reason: str
    step: str | None
    next_step: str | None
    cancelling: bool
    session: str | None
    started_epoch: int
    step_epoch: int
    reads_from: str
    writes_to: str


class Explanation(Shown, msgspec.Struct, frozen=True):
    """Where a tablet or, on the ring, a range is. `token` is null when it was asked for by number.

    Its tokens are `(token_start, token_end]`, the lowest token belongs to the first. `placement` is `tablets` or
    `ring`; on the ring `tablet` and `tablets` are the range's number and how many ranges there are.
    """

    table: str
    table_id: str
    epoch: int
    token: int | None
    placement: str
    tablet: int
    tablets: int
    label: str
    token_start: int
    token_end: int
    replicas: tuple[ReplicaExplained, ...]
    transition: TransitionExplained | None
    operation: OperationExplained | None = None


def explain(
    metadata: ClusterMetadata,
    full_name: str,
    *,
    key: Mapping[str, str] | None = None,
    token: int | None = None,
    tablet: int | None = None,
) -> Explanation:
    """The tablet or range of a key (`column -> value as text`), of a token, or of this number. Exactly one is given.

    Raises Rejected for an unknown table, InvalidRequest for a key that is not the table's and numbers out of range.
    """
    table = metadata.table(full_name)
    if sum(given is not None for given in (key, token, tablet)) != 1:
        raise InvalidRequest(
            "it is not clear which row is meant", hint="Give its key, or its token, or its tablet, and only one of them"
        )
    if key is not None:
        token = token_of(_typed(table, key))
    if token is not None and not MIN_TOKEN <= token <= MAX_TOKEN:
        raise InvalidRequest(f"{token} is no token: tokens are from {MIN_TOKEN} to {MAX_TOKEN}")
    if metadata.is_on_ring(table.table_id):
        return _range(metadata, table, token, tablet)
    return _tablet(metadata, table, token, tablet)


def _tablet(metadata: ClusterMetadata, table: Table, token: int | None, tablet: int | None) -> Explanation:
    count = metadata.tablets.maps[table.table_id].count
    if token is not None:
        tablet = int(tablet_of(np.array([token]), count)[0])
    number = _numbered(table, "tablet", tablet, count)
    start, end = tablet_range(number, count)
    transition = metadata.tablets.transitions.get((table.table_id, number))
    roles = dict.fromkeys(metadata.tablets.maps[table.table_id].replicas(number), "replica")
    if transition is not None:
        if transition.comes:
            roles |= {transition.pending: "pending"}
        if transition.leaving is not None:
            roles |= {transition.leaving: "leaving"}
    return Explanation(
        table=table.full_name,
        table_id=table.table_id,
        epoch=metadata.epoch,
        token=token,
        placement=PlacementKind.TABLETS.value,
        tablet=number,
        tablets=count,
        label=tablet_label(number, count),
        token_start=start,
        token_end=end,
        replicas=_replicas(metadata, metadata.placement(table.table_id, number), roles),
        transition=_transition(metadata, table, number),
    )


def _range(metadata: ClusterMetadata, table: Table, token: int | None, number: int | None) -> Explanation:
    placements = metadata.ring_placements(table.keyspace)
    if token is not None:
        number = int(index_of(placements.lows, np.array([token], dtype=np.int64))[0])
    index = _numbered(table, "range", number, len(placements.lows))
    placement, low = placements.placement(index), int(placements.lows[index])
    change = change_at(metadata, table.keyspace, low)
    roles = {}
    for volume in dict.fromkeys((*placement.reads, *placement.writes)):
        node = metadata.directory.node_of_volume[volume].node_id
        roles[volume] = _role(change, node)
    return Explanation(
        table=table.full_name,
        table_id=table.table_id,
        epoch=metadata.epoch,
        token=token,
        placement=PlacementKind.RING.value,
        tablet=index,
        tablets=len(placements.lows),
        label=placements.label(index),
        token_start=low if low == MIN_TOKEN else low - 1,
        token_end=int(highs(placements.lows)[index]),
        replicas=_replicas(metadata, placement, roles),
        transition=None,
        operation=None if change is None else _operation(metadata, change),
    )


def _role(change: RangeChange | None, node: NodeId) -> str:
    if change is None:
        return "replica"
    return "pending" if node in change.comes else "leaving" if node in change.goes else "replica"


def _numbered(table: Table, what: str, number: int | None, count: int) -> int:
    assert number is not None
    if not 0 <= number < count:
        raise InvalidRequest(f"{table.full_name} has no {what} {number}: it has {what}s 0 to {count - 1}")
    return number


def _typed(table: Table, key: Mapping[str, str]) -> list[tuple[str, str | None]]:
    columns = {column.name: column.type for column in table.columns}
    if set(key) != set(table.primary_key):
        wanted = ", ".join(f"{name} {columns[name]}" for name in table.primary_key)
        given = ", ".join(sorted(key)) or "nothing"
        raise InvalidRequest(f"the key of {table.full_name} is ({wanted}), and {given} was given")
    return [(columns[name], key[name]) for name in table.primary_key]


def _replicas(
    metadata: ClusterMetadata, placement: Placement, roles: Mapping[VolumeId, str]
) -> tuple[ReplicaExplained, ...]:
    explained = []
    for volume_id, role in roles.items():
        node = metadata.directory.node_of_volume[volume_id]
        explained.append(
            ReplicaExplained(
                place=metadata.describe(volume_id),
                volume_id=volume_id,
                node=node.name,
                node_state=node.state.value,
                datacenter=node.datacenter,
                rack=node.rack,
                uri=metadata.directory.volumes[volume_id].uri,
                role=role,
                reads=volume_id in placement.reads,
                writes=volume_id in placement.writes,
            )
        )
    return tuple(explained)


def _transition(metadata: ClusterMetadata, table: Table, tablet: int) -> TransitionExplained | None:
    found = metadata.tablets.transitions.get((table.table_id, tablet))
    if found is None:
        return None
    return TransitionExplained(
        kind=found.kind.value,
        stage=found.stage.value,
        reason=found.reason,
        error=found.error,
        session=found.session,
        started_epoch=found.started_epoch,
        stage_epoch=found.epoch,
        reads_from=READS[found.stage].value,
        writes_to=WRITES[found.stage].value,
    )


def _operation(metadata: ClusterMetadata, change: RangeChange) -> OperationExplained:
    operation = change.operation
    running = metadata.rings.running[operation.operation_id]
    request = metadata.requests.get(running.request_id)
    step, following = last_step(operation), coming_step(operation)
    refilling = operation.kind is OperationKind.REBUILD
    reads = "new" if step in (Step.MID, Step.FINISH) else "others" if refilling and step is Step.START else "old"
    return OperationExplained(
        operation_id=operation.operation_id,
        request_id=running.request_id,
        what=described(metadata, operation),
        reason="" if request is None else request.reason,
        step=None if step is None else step.value,
        next_step=None if following is None else following.value,
        cancelling=operation.cancelling,
        session=running.session,
        started_epoch=running.started_epoch,
        step_epoch=running.epoch,
        reads_from=reads,
        writes_to="both" if step in (Step.START, Step.MID) and not refilling else "old",
    )
