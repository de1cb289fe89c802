"""Deleting what no pipeline can need any more, on every replica table that can be reached.

Live leases say what a pipeline may still read. Most are in ZooKeeper: without it nothing is deleted. Processes that are
cut off from it keep theirs at the root (`metastore/announcing.py`). As a process that was paused has none for a moment,
nothing young is deleted either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.dropped import forget_dropped
from epochlake.jobs.administration.given_up import DROPPED, GivenUp, address_at, given_up, on_members, over_at
from epochlake.jobs.gate.spilled_rows import forget_old_spills
from epochlake.jobs.replicas.reachability import THREADS
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.upkeep.change_sweeping import sweep_root
from epochlake.jobs.upkeep.clearing import Cleared, clear, counted
from epochlake.jobs.upkeep.vacuum import Vacuumed, kept_origins, unused_files, vacuum
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.announcing import forget_expired, live_leases
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage.clocks import behind
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

OLDER_THAN_SECONDS = 3600.0


class SweptReplica(msgspec.Struct, frozen=True):
    """One replica table: `files` of `size` bytes were deleted, `kept` unused ones may still be needed.

    `obstacle` says why it could not be swept; then nothing was deleted there. `history` files of `history_size` bytes
    stay for reads as of an earlier time.
    """

    table: str
    volume: str
    files: int = 0
    size: int = 0
    kept: int = 0
    obstacle: str | None = None
    history: int = 0
    history_size: int = 0


class Sweep(msgspec.Struct, frozen=True):
    """What `sweep` did. `keep_newer_than_ms`: since when files are kept, Unix epoch; `leases`: live pipelines.

    `root_files` of `root_size` bytes were deleted at the root: of change streams that have ended, of writes that did
    not come to land, and of merges and streams of dropped tables. `root_obstacle` says why they could not be.
    """

    dry_run: bool
    keep_newer_than_ms: int
    leases: int
    replicas: tuple[SweptReplica, ...]
    root_files: int = 0
    root_size: int = 0
    root_obstacle: str | None = None


def sweep(cluster: Cluster, *, older_than_seconds: float = OLDER_THAN_SECONDS, dry_run: bool = False) -> Sweep:
    """Delete files that were dropped, replaced or never committed, `older_than_seconds` ago or longer.

    So are all files of tables that were dropped, and all on volumes of nodes that were drained, as long ago.

    With `dry_run` they are only counted.

    Nothing that a live pipeline may read is deleted, however old, also where it reads as of an earlier time. Nothing is
    old by the clock of this machine alone, where that is ahead of the root's. Raises CoordinationUnavailable when it
    cannot be asked which pipelines live.
    """
    if older_than_seconds < 0:
        raise InvalidRequest(f"files cannot be older than {older_than_seconds:g} seconds", hint="Give 0 or more")
    there = behind(cluster.storage, cluster.root.uri)
    now = time.time_ns() // 1_000_000 if there is None else there // 1000
    # The leases first: a pipeline that begins later finds the files of the newest snapshot, which are never deleted.
    leases = live_leases(cluster)
    metadata = cluster.catch_up()
    keep = max(0, min([now - int(older_than_seconds * 1000), *(lease.needs_from for lease in leases)]))

    def sweep_one(place: tuple[Table, VolumeId]) -> SweptReplica | None:
        table, volume = place
        clean = _counted if dry_run else vacuum
        return _sweep_replica(
            cluster.storage, metadata, table, volume, partial(_history_kept, cluster, table, now, keep, clean)
        )

    def clear_one(one: GivenUp) -> SweptReplica | None:
        return _clear(cluster.storage, metadata, one, counted if dry_run else clear)

    swept = [one for one in ThreadWorkers(THREADS).run(sweep_one, _places(metadata)) if one is not None]
    over = over_at(cluster, metadata, now, keep)
    if over and not dry_run:
        forget_dropped(cluster, over)
        metadata = cluster.catch_up()
    old = [one for one in given_up(cluster, metadata) if one.since_ms <= keep]
    old += on_members(metadata, over) if dry_run else []
    swept += [one for one in ThreadWorkers(THREADS).run(clear_one, old) if one is not None]
    if not dry_run:
        forget_expired(cluster.storage, cluster.root.leases)
        forget_old_spills(cluster.storage, cluster.root.spills, keep)
    gone = {one.table.table_id for one in old if one.why == DROPPED}
    try:
        at_root, obstacle = sweep_root(cluster, metadata, gone, keep, dry_run=dry_run), None
    except StorageUnavailable as error:
        at_root, obstacle = Cleared(), str(error)
    return Sweep(dry_run, keep, len(leases), tuple(swept), at_root.files, at_root.size, obstacle)


def _clear(
    storage: Storage, metadata: ClusterMetadata, one: GivenUp, clean: Callable[[ReplicaAddress], Cleared]
) -> SweptReplica | None:
    """Delete a replica table that was given up; None where there is none, or where it can wait: nobody needs it."""
    volume, node = metadata.directory.volumes[one.volume_id], metadata.directory.node_of_volume[one.volume_id]
    address = address_at(storage, metadata, one.table, volume)
    table, place = f"{one.table.full_name} ({one.why})", f"{node.name}/{volume.name}"
    try:
        # A volume that has left may be somebody else's place by now, or gone with its disk.
        require_volume(storage, volume.uri, metadata.identity.cluster_id, one.volume_id)
    except (StorageUnavailable, WrongCluster):
        return None
    try:
        done = clean(address)
    except StorageUnavailable as error:
        return SweptReplica(table, place, obstacle=str(error))
    return SweptReplica(table, place, done.files, done.size) if done.files else None


def _places(metadata: ClusterMetadata) -> list[tuple[Table, VolumeId]]:
    """Every table with every volume that is not declared lost: one whose last tablet has moved away has files to
    delete as well.
    """
    tables = sorted(metadata.schema.tables.values(), key=lambda table: table.full_name)
    volumes = [volume.volume_id for node in metadata.directory.members() for volume in node.volumes]
    return [(table, volume) for table in tables for volume in volumes if volume not in metadata.directory.lost]


def _history_kept(
    cluster: Cluster, table: Table, now: int, keep: int, clean: Callable[..., Vacuumed], address: ReplicaAddress
) -> Vacuumed:
    """Clean a replica table of all but what reads as of an earlier time need."""
    return clean(address, keep, history=kept_origins(cluster.ledger, table, now * 1000))


def _counted(address: ReplicaAddress, keep_newer_than_ms: int, *, history: Collection[str] = ()) -> Vacuumed:
    """What `vacuum` would report, without deleting."""
    found = unused_files(address, keep_newer_than_ms, history=history)
    size, past = (sum(entry.size for entry in entries) for entries in (found.deletable, found.history))
    return Vacuumed(len(found.deletable), size, found.kept, len(found.history), past)


def _sweep_replica(
    storage: Storage,
    metadata: ClusterMetadata,
    table: Table,
    volume_id: VolumeId,
    clean: Callable[[ReplicaAddress], Vacuumed],
) -> SweptReplica | None:
    """None when the table has nothing to do with that volume."""
    node, volume = metadata.directory.node_of_volume[volume_id], metadata.directory.volumes[volume_id]
    name = f"{node.name}/{volume.name}"
    address = ReplicaAddress(
        storage, metadata.identity.cluster_id, volume_id, volume.uri, table.directory, table.table_id
    )
    try:
        if not _holds(metadata, table, volume_id) and not storage.exists(address.uri):
            return None
        done = clean(address)
    except (StorageUnavailable, WrongCluster) as error:
        return SweptReplica(table.full_name, name, obstacle=str(error))
    return SweptReplica(
        table.full_name,
        name,
        done.files,
        done.size,
        done.kept_for_leases,
        history=done.kept_for_history,
        history_size=done.history_size,
    )


def _holds(metadata: ClusterMetadata, table: Table, volume: VolumeId) -> bool:
    """Whether a tablet or range of the table is on that volume, or on its way to it or away from it."""
    if metadata.is_on_ring(table.table_id):
        return volume in metadata.ring_volumes(table.table_id)
    return bool(len(metadata.tablets.maps[table.table_id].tablets_on([volume]))) or any(
        volume in (*transition.replicas, *transition.new_replicas)
        for transition in metadata.tablets.transitions.values()
        if transition.table_id == table.table_id
    )
