"""Deleting a whole replica table that nobody can need any more: moved aside, proved to be the one meant, then deleted.

A path says nothing about who owns it now. The same directory may have become another volume meanwhile,
with a living replica under the same name. So a table is first given a name that nobody opens, then asked whose it is
(cluster, table and volume are in its own properties), and put back when it is another one.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

import msgspec
from deltalake import DeltaTable
from epochlake.jobs.replicas.replica import CLUSTER, TABLE, VOLUME, ReplicaAddress
from epochlake.metastore.metadata.model import VolumeId
from epochlake.metastore.storage import places
from epochlake.metastore.storage.dead_ends import is_directory
from epochlake.metastore.storage.storage import Storage

ASIDE = ".given-up-"
"""Part of the name of a table that is being deleted; what is left of it after a kill is deleted next time."""


class Cleared(msgspec.Struct, frozen=True):
    """What was deleted: `files` of `size` bytes."""

    files: int = 0
    size: int = 0


def counted(address: ReplicaAddress) -> Cleared:
    """What `clear` would delete. Raises StorageUnavailable."""
    if not address.storage.exists(address.uri):
        return Cleared()
    files = address.storage.list_files(address.uri) if _is_ours(address, address.uri) else []
    return Cleared(len(files), sum(file.size for file in files))


def tables_of_volume(storage: Storage, uri: str, cluster_id: str, volume_id: VolumeId) -> list[str]:
    """The replica tables of a volume, in a directory, that say that they are of it; those that are half deleted count.
    Raises StorageUnavailable.
    """
    disk = storage.disk

    def below(directory: str) -> list[str]:
        found = disk.names(directory) if is_directory(disk, directory) else []
        return [os.path.join(directory, name) for name in sorted(found)]

    def found() -> list[str]:
        tables = [table for keyspace in below(places.local_path(uri) or "") for table in below(keyspace)]
        return [table for table in tables if ASIDE in table or disk.status(os.path.join(table, "_delta_log"))]

    whose = {table: _said(storage, table) for table in storage.within_deadline("look for tables on", uri, found)}
    ours = (cluster_id, str(volume_id))
    return [table for table, said in whose.items() if ASIDE in table or (said.get(CLUSTER), said.get(VOLUME)) == ours]


def clear(address: ReplicaAddress) -> Cleared:
    """Delete a replica table, when it is the one of this table, volume and cluster. Raises StorageUnavailable.

    Only on file systems, where a directory gets another name in one step; elsewhere nothing is deleted.
    """
    path = places.local_path(address.uri)
    if path is None:
        return Cleared()
    _delete_rests(path, address)
    if not address.storage.exists(address.uri) or not _is_ours(address, address.uri):
        return Cleared()
    aside = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}{ASIDE}{uuid.uuid4().hex}")
    if not address.storage.move_file(path, aside):
        return Cleared()
    if not _is_ours(address, aside):
        # Another volume has come here, with a replica of this table: it is back after a moment.
        address.storage.move_file(aside, path)
        return Cleared()
    files = address.storage.list_files(aside)
    _delete_directory(address.storage, aside)
    _delete_if_empty(address.storage, os.path.dirname(path))
    return Cleared(len(files), sum(file.size for file in files))


def _delete_if_empty(storage: Storage, keyspace: str) -> None:
    """Delete the directory of a keyspace when this was the last of its tables."""
    with suppress(OSError):
        storage.disk.delete_directory(keyspace)


def _delete_rests(path: str, address: ReplicaAddress) -> None:
    """Delete what a kill has left of this table under the other name."""
    directory, name = os.path.split(path)
    disk = address.storage.disk
    rests = address.storage.within_deadline(
        "list", directory, lambda: disk.names(directory) if is_directory(disk, directory) else []
    )
    for rest in rests:
        whole = os.path.join(directory, rest)
        if rest.startswith(f".{name}{ASIDE}") and (
            not address.storage.exists(os.path.join(whole, "_delta_log")) or _is_ours(address, whole)
        ):
            _delete_directory(address.storage, whole)
            _delete_if_empty(address.storage, directory)


def _delete_directory(storage: Storage, path: str) -> None:
    """Delete a directory with all that is in it; links in it are deleted, never followed. `_delta_log` goes last."""

    def delete() -> None:
        for name in sorted(storage.disk.names(path), key=lambda one: one == "_delta_log"):
            storage.delete_tree(os.path.join(path, name))
        storage.disk.delete_directory(path)

    storage.within_deadline("delete", path, delete)


def _is_ours(address: ReplicaAddress, uri: str) -> bool:
    """Whether the table at `uri` says that it is the replica at `address`."""

    said = _said(address.storage, uri)
    return (said.get(CLUSTER), said.get(TABLE), said.get(VOLUME)) == (
        address.cluster_id,
        address.table_id,
        str(address.volume_id),
    )


def _said(storage: Storage, uri: str) -> dict[str, str]:
    """What a table says of itself; nothing where there is no table."""

    def properties() -> dict[str, str]:
        if not DeltaTable.is_deltatable(uri):
            return {}
        return dict(DeltaTable(places.delta_uri(uri)).metadata().configuration)

    return storage.within_deadline("look whose it is:", uri, properties)
