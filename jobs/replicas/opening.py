"""Who a replica is, and snapshots of many replicas at once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from epochlake.jobs.replicas.receipts import Receipts, went_back
from epochlake.jobs.replicas.replica import DeclaredColumns, ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.jobs.replicas.schema import delta_schema
from epochlake.jobs.replicas.states import forget_state
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.metastore.storage.storage import Storage

THREADS = 16


def address_of(storage: Storage, metadata: ClusterMetadata, table: Table, volume: VolumeId) -> ReplicaAddress:
    """Where the replicas of `table` on `volume` are; who opens it is refused where the volume is declared lost."""
    return ReplicaAddress(
        storage,
        cluster_id=metadata.identity.cluster_id,
        volume_id=volume,
        volume_uri=metadata.directory.volumes[volume].uri,
        directory=table.directory,
        table_id=table.table_id,
        lost=metadata.directory.why_lost(volume),
        columns=_declared(metadata, table.table_id),
    )


def _declared(metadata: ClusterMetadata, table_id: TableId) -> DeclaredColumns | None:
    """What replica tables declare as of `metadata`; None for a table that was never altered, or is not there."""
    table = metadata.schema.tables.get(table_id)
    if table is None or table.alterations is msgspec.UNSET:
        return None
    return DeclaredColumns(table.version, metadata.fence_at(table.alterations.epoch), delta_schema(table))


def unfilled(snapshot: ReplicaSnapshot) -> str:
    """Why a replica is not read although it answers; empty where it is."""
    if not snapshot.unfilled:
        return ""
    return (
        f"the replica table {snapshot.address.uri} was made in the place of a lost one by rebuild {snapshot.unfilled}, "
        "which has not brought all rows. Rebuild its node"
    )


def open_to_read(
    storage: Storage,
    metadata: ClusterMetadata,
    table: Table,
    volumes: Iterable[VolumeId],
    receipts: Receipts | None = None,
) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]:
    """Like `open_all`, without replicas that do not have their rows yet."""
    opened, failed = open_all(storage, metadata, table, volumes, receipts)
    not_yet = {volume: unfilled(snapshot) for volume, snapshot in opened.items() if snapshot.unfilled}
    return {v: snapshot for v, snapshot in opened.items() if v not in not_yet}, failed | not_yet


def forget_all(storage: Storage, metadata: ClusterMetadata, table: Table, volumes: Iterable[VolumeId]) -> None:
    """Have these replicas read from their beginnings when they are opened next, and not as this process knows them."""
    for volume in volumes:
        forget_state(storage, address_of(storage, metadata, table, volume).uri)


def open_all(
    storage: Storage,
    metadata: ClusterMetadata,
    table: Table,
    volumes: Iterable[VolumeId],
    receipts: Receipts | None = None,
) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]:
    """Snapshots of the replicas that answer, and what the others said.

    With `receipts`, a replica that lacks what it has acknowledged does not count as one that answers.
    """
    acknowledged = {} if receipts is None else receipts.of(table.table_id)

    def attempt(volume: VolumeId) -> tuple[VolumeId, ReplicaSnapshot | str]:
        try:
            snapshot = open_snapshot(address_of(storage, metadata, table, volume))
            snapshot.all_files  # noqa: B018  what is listed lazily is listed here, in parallel
            return volume, went_back(snapshot, acknowledged.get(volume, ())) or snapshot
        except (StorageUnavailable, WrongCluster) as error:
            return volume, str(error)

    results = dict(ThreadWorkers(THREADS).run(attempt, volumes))
    opened = {v: result for v, result in results.items() if isinstance(result, ReplicaSnapshot)}
    return opened, {v: result for v, result in results.items() if isinstance(result, str)}
