"""How big keyspaces on the ring are now, from the files of their replica tables: best effort, for plans."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.reachability import THREADS
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.metastore.metadata.placements import highs
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.metastore.storage.storage import Storage

_TURN = 2.0**64


def keyspace_sizes(storage: Storage, metadata: ClusterMetadata) -> dict[str, int]:
    """Bytes of each keyspace on the ring, all replicas of a row counted once.

    Volumes that do not answer are made up for by what those that do hold of the same ring; a keyspace of which none
    answers is left out, one without tables has no bytes.
    """
    held = ring_replica_sizes(storage, metadata)
    sizes = {}
    for name in ring_keyspaces(metadata):
        tables = [table.table_id for table in metadata.schema.tables.values() if table.keyspace == name]
        shares = _shares(metadata, name) if tables else {}
        found = [_size(held, table_id, shares) for table_id in tables]
        known = [size for size in found if size is not None]
        if len(known) == len(tables):
            sizes[name] = sum(known)
    return sizes


def ring_replica_sizes(storage: Storage, metadata: ClusterMetadata) -> dict[tuple[TableId, VolumeId], int]:
    """Bytes of the live files of every replica table of tables on the ring; those that do not answer are left out."""
    places = [
        (table, volume)
        for table in metadata.schema.tables.values()
        if metadata.is_on_ring(table.table_id)
        for volume in metadata.ring_volumes(table.table_id)
    ]

    def measure(place: tuple[Table, VolumeId]) -> int | None:
        table, volume = place
        try:
            snapshot = open_snapshot(address_of(storage, metadata, table, volume))
            return sum(file.size for file in snapshot.all_files.values())
        except (StorageUnavailable, WrongCluster):
            return None

    found = zip(places, ThreadWorkers(THREADS).run(measure, places), strict=True)
    return {(table.table_id, volume): size for (table, volume), size in found if size is not None}


def _size(
    held: Mapping[tuple[TableId, VolumeId], int], table_id: TableId, shares: Mapping[VolumeId, float]
) -> int | None:
    """Bytes of a table, each row counted once; None when no replica table of it was measured."""
    measured = [volume for volume in shares if (table_id, volume) in held]
    covered = sum(shares[volume] for volume in measured)
    return round(sum(held[table_id, volume] for volume in measured) / covered) if covered else None


def _shares(metadata: ClusterMetadata, keyspace: str) -> dict[VolumeId, float]:
    """How much of all tokens each volume serves reads of: 1.0 is all of them."""
    placements = metadata.ring_placements(keyspace)
    lengths = (highs(placements.lows).astype(np.float64) - placements.lows.astype(np.float64) + 1) / _TURN
    held = placements.read_volumes >= 0  # a volume at most once in each row
    volumes = placements.read_volumes[held]
    totals = np.bincount(volumes, np.broadcast_to(lengths[:, None], held.shape)[held])
    return {volume: float(totals[volume]) for volume in np.unique(volumes).tolist()}
