"""Keyspaces and tables. A table's replica tables are there before the table is: nobody ever finds a table without them.

Tablets of a new table go to volumes of normal nodes that answer now. The replica tables are made with their fence at
the epoch that was planned on; if the commit does not come, they are empty tables that no metadata names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Unpack

import msgspec
import numpy as np
from epochlake.jobs.administration.changes import Options, commit_prepared, identified
from epochlake.jobs.administration.reachability import THREADS, Probed, probe
from epochlake.jobs.dataplane.replica import ReplicaAddress, create_replica
from epochlake.jobs.dataplane.schema import check_columns
from epochlake.metastore.commit import Committed
from epochlake.metastore.metadata.attachments import decode_replicas, encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateKeyspace, CreateTable, DropKeyspace, DropTable
from epochlake.metastore.metadata.model import (
    Column,
    Keyspace,
    Node,
    NodeState,
    PlacementKind,
    Table,
    TableId,
    VolumeId,
)
from epochlake.placement.allocation import VolumeTable, allocate_tablets
from epochlake.placement.errors import InvalidRequest, PlacementImpossible
from epochlake.placement.tablet_map import NO_REPLICA
from epochlake.placement.tokens import tablet_bits

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

STRATEGY = "NetworkTopologyStrategy"

TABLES = uuid.UUID("0d6b3c1a-5b43-5f0e-8f6e-0a4f2c7be311")
"""Namespace of table ids: they follow from the request id, so that a repeated request finds its own replica tables."""

Columns = Sequence[Column | tuple[str, str, bool]]


class TableCreated(msgspec.Struct, frozen=True):
    """A created table. `unreachable`: volumes that got no tablet because they did not answer, with the reason."""

    committed: Committed
    table_id: TableId
    tablets: int
    unreachable: dict[str, str]


def create_keyspace(
    cluster: Cluster, name: str, replication: Mapping[str, int], **options: Unpack[Options]
) -> Committed:
    """Create a keyspace that is placed by tablets, with so many replicas in each datacenter."""
    return cluster.commit(plan_create_keyspace(name, replication), **options)


def drop_keyspace(cluster: Cluster, name: str, **options: Unpack[Options]) -> Committed:
    """Drop a keyspace without tables."""
    return cluster.commit(plan_drop_keyspace(name), **options)


def create_table(
    cluster: Cluster,
    full_name: str,
    columns: Columns,
    primary_key: Sequence[str],
    *,
    append_only: bool = False,
    tablets: int | None = None,
    **options: Unpack[Options],
) -> TableCreated:
    """Create `keyspace.table`: allocate its tablets, make their replica tables, commit.

    `columns` are (name, Spark DDL type, nullable); those of the primary key become not nullable. `tablets` is a power
    of two, default from the configuration. Raises Rejected, InvalidRequest, PlacementImpossible, StorageUnavailable.
    """
    request_id, options = identified(options)
    count = cluster.configuration.tablets.initial_count if tablets is None else tablets
    unreachable: dict[str, str] = {}

    def plan(metadata: ClusterMetadata) -> CreateTable:
        event, missing = plan_create_table(
            metadata, full_name, columns, primary_key, append_only=append_only, tablets=count, request_id=request_id
        )
        unreachable.clear()
        unreachable.update(missing)
        return event

    committed, event = commit_prepared(cluster, plan, _create_replicas, **options)
    if event is None:
        metadata = cluster.metadata
        table_id = table_id_of(metadata, request_id)
        tablet_map = metadata.tablets.maps.get(table_id)
        return TableCreated(committed, table_id, tablet_map.count if tablet_map else count, {})
    return TableCreated(committed, event.table.table_id, event.tablet_count, unreachable)


def drop_table(cluster: Cluster, full_name: str, **options: Unpack[Options]) -> Committed:
    """Drop a table from the metadata; its replica tables stay on their volumes."""
    return cluster.commit(lambda metadata: plan_drop_table(metadata, full_name), **options)


def plan_create_keyspace(name: str, replication: Mapping[str, int]) -> CreateKeyspace:
    """The event of `create_keyspace`."""
    return CreateKeyspace(Keyspace(name, PlacementKind.TABLETS, STRATEGY, dict(replication)))


def plan_drop_keyspace(name: str) -> DropKeyspace:
    """The event of `drop_keyspace`."""
    return DropKeyspace(name)


def plan_drop_table(metadata: ClusterMetadata, full_name: str) -> DropTable:
    """The event of `drop_table`."""
    return DropTable(metadata.table(full_name).table_id, full_name)


def plan_create_table(
    metadata: ClusterMetadata,
    full_name: str,
    columns: Columns,
    primary_key: Sequence[str],
    *,
    append_only: bool,
    tablets: int,
    request_id: str,
) -> tuple[CreateTable, dict[str, str]]:
    """The event of `create_table`, and the volumes left out because they do not answer, each with why.

    Asks the volumes, and so is not a pure function as the other plans are; it changes nothing.
    """
    keyspace_name, _, name = full_name.partition(".")
    if not name:
        raise InvalidRequest(f"a table is named keyspace.table, {full_name!r} has no keyspace")
    tablet_bits(tablets)
    keyspace = metadata.keyspace(keyspace_name)
    table = Table(
        table_id=table_id_of(metadata, request_id),
        keyspace=keyspace_name,
        name=name,
        columns=_with_keys_not_null(columns, primary_key),
        primary_key=tuple(primary_key),
        append_only=append_only,
    )
    check_columns(table.columns, table.primary_key)
    nodes = [
        node
        for node in metadata.directory.nodes.values()
        if node.state is NodeState.NORMAL and keyspace.replication.get(node.datacenter, 0) > 0
    ]
    probed = probe(metadata, (volume for node in nodes for volume in node.volumes))
    unreachable = {
        f"{node.name}/{volume.name}": str(probed[volume.volume_id].obstacle)
        for node in nodes
        for volume in node.volumes
        if probed[volume.volume_id].obstacle is not None
    }
    try:
        replicas = allocate_tablets(tablets, keyspace.replication, _volume_table(metadata, nodes, probed))
    except PlacementImpossible as error:
        if not unreachable:
            raise
        raise PlacementImpossible(f"{error} These volumes do not answer: {'; '.join(unreachable.values())}") from error
    return CreateTable(table, tablets, encode_replicas(replicas)), unreachable


def table_id_of(metadata: ClusterMetadata, request_id: str) -> TableId:
    """The id of the table that this request creates in this cluster."""
    return str(uuid.uuid5(TABLES, f"{metadata.identity.cluster_id}/{request_id}"))


def _with_keys_not_null(columns: Columns, primary_key: Sequence[str]) -> tuple[Column, ...]:
    made = []
    for given in columns:
        column = given if isinstance(given, Column) else Column(*given)
        made.append(msgspec.structs.replace(column, nullable=column.nullable and column.name not in primary_key))
    return tuple(made)


def _volume_table(metadata: ClusterMetadata, nodes: Sequence[Node], probed: Mapping[VolumeId, Probed]) -> VolumeTable:
    rows = [(node, volume) for node in nodes for volume in node.volumes if probed[volume.volume_id].obstacle is None]
    counts = replicas_by_volume(metadata)
    used = []
    for _, volume in rows:
        free = probed[volume.volume_id].free
        used.append(0 if free is None else volume.capacity - min(volume.capacity, free))
    return VolumeTable.of(
        [volume.volume_id for _, volume in rows],
        [node.node_id for node, _ in rows],
        [node.datacenter for node, _ in rows],
        [node.rack for node, _ in rows],
        [volume.capacity for _, volume in rows],
        used,
        [counts.get(volume.volume_id, 0) for _, volume in rows],
    )


def replicas_by_volume(metadata: ClusterMetadata) -> dict[VolumeId, int]:
    """How many tablets have a replica on each volume, by the tablet maps; volumes without one are left out."""
    size = max(metadata.directory.volumes, default=0) + 1
    counts = np.zeros(size, np.int64)
    for tablet_map in metadata.tablets.maps.values():
        replicas = tablet_map.to_array()
        counts += np.bincount(replicas[replicas != NO_REPLICA], minlength=size)
    return {volume: count for volume, count in enumerate(counts.tolist()) if count}


def _create_replicas(event: CreateTable, metadata: ClusterMetadata) -> None:
    replicas = decode_replicas(event.attachment)
    volumes = [int(volume) for volume in np.unique(replicas) if volume != NO_REPLICA]

    def create(volume: VolumeId) -> None:
        address = ReplicaAddress(
            cluster_id=metadata.identity.cluster_id,
            volume_id=volume,
            volume_uri=metadata.directory.volumes[volume].uri,
            keyspace=event.table.keyspace,
            table_id=event.table.table_id,
        )
        create_replica(address, event.table, metadata.epoch)

    with ThreadPoolExecutor(max(1, min(THREADS, len(volumes)))) as pool:
        list(pool.map(create, volumes))
