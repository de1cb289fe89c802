"""What replica tables know of the log: the epoch that each is fenced at, and tables that the log has never heard of.

A fence is raised to epochs that were committed, and rows go only to tables that were created. So a fence beyond the end
of the log, or rows in a table that is not in it, say for certain that the log went back; that there is neither says
nothing. The directory of an unknown table alone says nothing either: a table is made before the epoch that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.volumes import MARKER_FILE, require_volume
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateTable
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import Node, TableId, Volume
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError

THREADS = 16

Address = tuple[str, TableId, ReplicaAddress]
"""A replica table: its name for people, the id of its table, and where it is."""


class Stranger(msgspec.Struct, frozen=True):
    """A replica table of a table that the metadata does not have. `has_rows`: something was written to it."""

    name: str
    table_id: TableId
    fence: Fence
    has_rows: bool


def addresses(storage: Storage, metadata: ClusterMetadata) -> list[Address]:
    """Every replica table there may be: each table with each volume, by name."""
    return [
        (
            f"{table.full_name} on {node.name}/{volume.name}",
            table.table_id,
            ReplicaAddress(
                storage, metadata.identity.cluster_id, volume.volume_id, volume.uri, table.directory, table.table_id
            ),
        )
        for table in metadata.schema.tables.values()
        for node in metadata.directory.members()
        for volume in node.volumes
    ]


def fences(storage: Storage, metadata: ClusterMetadata) -> list[tuple[str, Fence | str]]:
    """The fence of each replica table that is there, or why it cannot be told."""

    def look(place: Address) -> tuple[str, Fence | str] | None:
        name, _, address = place
        try:
            return (name, open_snapshot(address).fence) if storage.exists(address.uri) else None
        except EpochlakeError as error:
            return name, str(error)

    return [found for found in ThreadWorkers(THREADS).run(look, addresses(storage, metadata)) if found is not None]


def strangers(storage: Storage, metadata: ClusterMetadata) -> list[Stranger]:
    """The replica tables of this cluster on volumes of members whose table the metadata does not have; volumes and
    tables that cannot be read are left out.
    """
    known = {*metadata.schema.tables, *metadata.dropped.tables}

    def on_volume(place: tuple[Node, Volume]) -> list[Stranger]:
        node, volume = place
        try:
            require_volume(storage, volume.uri, metadata.identity.cluster_id, volume.volume_id)
            directories = [name for name in storage.list_names(volume.uri) if name != MARKER_FILE]
        except (EpochlakeError, OSError):
            return []
        found = []
        for directory in directories:
            for table_id in _names(storage, places.join(volume.uri, directory)):
                if table_id not in known and not table_id.startswith("."):
                    address = ReplicaAddress(
                        storage, metadata.identity.cluster_id, volume.volume_id, volume.uri, directory, table_id
                    )
                    found += _stranger(address, f"{directory}/{table_id} on {node.name}/{volume.name}")
        return found

    volumes = [
        (node, volume)
        for node in metadata.directory.members()
        for volume in node.volumes
        if volume.volume_id not in metadata.directory.lost
    ]
    return [one for found in ThreadWorkers(THREADS).run(on_volume, volumes) for one in found]


def with_rows(
    metadata: ClusterMetadata, log: Callable[[], EpochLog], found: Sequence[Stranger]
) -> list[tuple[str, Fence]]:
    """Those of them that have rows though their table is in no epoch of the log, each with the epoch that it must have
    been created in at the earliest. Of an earlier incarnation that is known already.
    """
    written = [one for one in found if one.has_rows and one.fence.incarnation == metadata.identity.incarnation]
    if not written:
        return []
    created = set()  # dropped tables as well
    for entry in log().read(0):
        if entry.event == CreateTable.kind():
            event = entry.decode()
            assert isinstance(event, CreateTable)
            created.add(event.table.table_id)
    return [
        (one.name, Fence(one.fence.epoch + 1, one.fence.incarnation)) for one in written if one.table_id not in created
    ]


def newest_beyond(storage: Storage, metadata: ClusterMetadata, log: Callable[[], EpochLog]) -> tuple[str, Fence] | None:
    """The replica table that knows the latest epoch of those that the log cannot have, and that epoch; None: there is
    none. Who asks holds the lock of the log, so that nothing is appended meanwhile.
    """
    found = strangers(storage, metadata)
    told = [(name, fence) for name, fence in fences(storage, metadata) if isinstance(fence, Fence)]
    told += [(one.name, one.fence) for one in found]
    beyond = [(name, fence) for name, fence in told if fence > metadata.fence]
    return max([*beyond, *with_rows(metadata, log, found)], key=lambda one: one[1], default=None)


def _names(storage: Storage, directory: str) -> list[str]:
    try:
        return sorted(storage.list_names(directory))
    except (EpochlakeError, OSError):
        return []


def _stranger(address: ReplicaAddress, name: str) -> list[Stranger]:
    try:
        if not address.storage.exists(places.join(address.uri, "_delta_log")):
            return []
        snapshot = open_snapshot(address)
        return [Stranger(name, address.table_id, snapshot.fence, bool(snapshot.all_files))]
    except (EpochlakeError, OSError):
        return []
