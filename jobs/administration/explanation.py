"""Why a row is where it is: from key to token to tablet to replicas, with the stage and reason of what is under way."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from epochlake.jobs.pipeline.replicas import describe
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.hashing import token_of
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tablet_label, tablet_of, tablet_range
from epochlake.placement.transitions import READS, WRITES


class ReplicaExplained(msgspec.Struct, frozen=True):
    """A replica of the tablet; `role` is `replica`, or `leaving` or `pending` in a transition."""

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


class Explanation(msgspec.Struct, frozen=True):
    """Where a tablet is. `token` is null when the tablet was asked for by number; its range is `(start, end]`."""

    table: str
    table_id: str
    epoch: int
    token: int | None
    tablet: int
    tablets: int
    label: str
    token_start: int
    token_end: int
    replicas: tuple[ReplicaExplained, ...]
    transition: TransitionExplained | None


def explain(
    metadata: ClusterMetadata,
    full_name: str,
    *,
    key: Mapping[str, str] | None = None,
    token: int | None = None,
    tablet: int | None = None,
) -> Explanation:
    """The tablet of a key (`column -> value as text`), of a token, or of this number. Exactly one is given.

    Raises Rejected for an unknown table, InvalidRequest for a key that is not the table's and numbers out of range.
    """
    table = metadata.table(full_name)
    if sum(given is not None for given in (key, token, tablet)) != 1:
        raise InvalidRequest("say which row: give its key, or its token, or its tablet, and only one of them")
    count = metadata.tablets.maps[table.table_id].count
    if key is not None:
        token = token_of(_typed(table, key))
    if token is not None:
        if not MIN_TOKEN <= token <= MAX_TOKEN:
            raise InvalidRequest(f"{token} is no token: tokens are from {MIN_TOKEN} to {MAX_TOKEN}")
        tablet = int(tablet_of(np.array([token]), count)[0])
    assert tablet is not None
    if not 0 <= tablet < count:
        raise InvalidRequest(f"{full_name} has no tablet {tablet}: it has tablets 0 to {count - 1}")
    start, end = tablet_range(tablet, count)
    return Explanation(
        table=full_name,
        table_id=table.table_id,
        epoch=metadata.epoch,
        token=token,
        tablet=tablet,
        tablets=count,
        label=tablet_label(tablet, count),
        token_start=start,
        token_end=end,
        replicas=_replicas(metadata, table, tablet),
        transition=_transition(metadata, table, tablet),
    )


def _typed(table: Table, key: Mapping[str, str]) -> list[tuple[str, str | None]]:
    columns = {column.name: column.type for column in table.columns}
    if set(key) != set(table.primary_key):
        wanted = ", ".join(f"{name} {columns[name]}" for name in table.primary_key)
        given = ", ".join(sorted(key)) or "nothing"
        raise InvalidRequest(f"the key of {table.full_name} is ({wanted}), and {given} was given")
    return [(columns[name], key[name]) for name in table.primary_key]


def _replicas(metadata: ClusterMetadata, table: Table, tablet: int) -> tuple[ReplicaExplained, ...]:
    placement = metadata.placement(table.table_id, tablet)
    transition = metadata.tablets.transitions.get((table.table_id, tablet))
    roles = dict.fromkeys(metadata.tablets.maps[table.table_id].replicas(tablet), "replica")
    if transition is not None:
        roles |= {transition.pending: "pending"}
        if transition.leaving is not None:
            roles |= {transition.leaving: "leaving"}
    explained = []
    for volume_id, role in roles.items():
        node = metadata.directory.node_of_volume[volume_id]
        explained.append(
            ReplicaExplained(
                place=describe(metadata, volume_id),
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
