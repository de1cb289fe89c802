"""Making the volume of a node that has left a place for another one: `node add --reuse`.

Only what provably was this cluster's is deleted. The marker says which volume it was, the log says that
its node has left and that nothing names it, and each table is asked whose it is (upkeep/clearing.py). The marker is
taken away first, and put anew by who gets the place; everything else stays.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.given_up import address_at, left_at_ms, names, tables_ever
from epochlake.jobs.replicas.volumes import MARKER_FILE, VolumeMarker, marker_uri, read_marker
from epochlake.jobs.upkeep.clearing import clear
from epochlake.metastore.announcing import live_leases
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node, Volume
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from msgspec.structs import replace

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore

_ASIDE = f".{MARKER_FILE}-"


def clear_left_volume(metastore: Metastore, metadata: ClusterMetadata, uri: str) -> None:
    """Delete the replica tables of a node that has left at `uri`, and its marker; does nothing where none is.

    Raises WrongCluster for a volume that is not such a one, StorageUnavailable, and CoordinationUnavailable when it
    cannot be asked which pipelines may still read it.
    """
    storage = metastore.storage
    rest = asides(storage, uri)
    if storage.exists(marker_uri(uri)):
        marker = read_marker(storage, uri)
    elif rest:
        marker = decode_marker(storage, rest[0])
    else:
        return
    node, volume = left_volume(metadata, uri, marker)
    if places.local_path(uri) is None:
        raise WrongCluster(
            f"{uri} is no directory of a file system", hint=f"Delete what is there by yourself, {MARKER_FILE} last"
        )
    left = left_at_ms(metastore, node)
    readers = [lease.name for lease in live_leases(metastore) if lease.started_at <= left]
    if readers:
        raise StorageUnavailable(
            f"{uri} cannot be used again yet: {', '.join(readers)} began before node {node.name!r} left, and "
            "may still read from it",
            hint="Wait for the end of it, see `epochlake pipeline list`",
        )
    aside = places.join(uri, f"{_ASIDE}{uuid.uuid4().hex}")
    if not rest:
        # Asking may have taken long: somebody else may have cleared the place meanwhile, and taken it.
        if not storage.exists(marker_uri(uri)) or read_marker(storage, uri) != marker:
            raise _taken(uri)
        # While it has no marker nobody takes it for a volume; the next one goes on where this one was killed.
        if not storage.move_file(marker_uri(uri), aside):
            return
        if decode_marker(storage, aside) != marker:
            _put_back(storage, aside, uri)
            raise _taken(uri)
    there = replace(volume, uri=uri)
    for table in tables_ever(metastore):
        clear(address_at(storage, metadata, table, there))
    for done in (*rest, aside):
        storage.delete_file(done)


def _taken(uri: str) -> WrongCluster:
    return WrongCluster(f"{uri} became another volume while it was looked at: it is not cleared", hint="Look again")


def _put_back(storage: Storage, aside: str, uri: str) -> None:
    """Give a volume the marker again that was moved aside, unless it has one by now: then that one counts."""
    storage.put_if_absent(marker_uri(uri), storage.read_bytes(aside))
    storage.delete_file(aside)


def asides(storage: Storage, uri: str) -> list[str]:
    """Markers of a volume that is being cleared: it is not finished, or who did it was killed."""
    if places.local_path(uri) is None or not storage.exists(uri):
        return []
    return sorted(places.join(uri, name) for name in storage.list_names(uri) if name.startswith(_ASIDE))


def decode_marker(storage: Storage, uri: str) -> VolumeMarker:
    """The marker at `uri`. Raises StorageUnavailable when it cannot be read."""
    try:
        return msgspec.json.decode(storage.read_bytes(uri), type=decodable(VolumeMarker))
    except msgspec.MsgspecError as error:
        raise StorageUnavailable(f"the marker {uri} cannot be read: {error}", hint="Restore the file") from error


def left_volume(metadata: ClusterMetadata, uri: str, marker: VolumeMarker) -> tuple[Node, Volume]:
    """The volume that the marker names, when its node has left. Raises WrongCluster."""
    whose = f"{uri} is volume {marker.volume!r} (number {marker.volume_id}) of node {marker.node!r}"
    if marker.cluster_id != metadata.identity.cluster_id:
        raise WrongCluster(f"{whose} in another cluster, {marker.cluster!r} ({marker.cluster_id}): it is not cleared")
    node = metadata.directory.node_of_volume.get(marker.volume_id)
    if node is None or node.host_id != marker.host_id:
        raise WrongCluster(f"{whose}, which the log of this cluster does not know: it is not cleared")
    if names(metadata, node):
        raise WrongCluster(
            f"{whose}, which is {node.state}, or still named by what is rebuilt from it: it is not cleared. It can be "
            "used again when the node has left"
        )
    return node, metadata.directory.volumes[marker.volume_id]
