"""A volume knows whose it is: a marker file at its root names the cluster, the node and the volume.

A place without its marker is *unreachable*, never empty. An unmounted disk leaves an empty directory
behind, and taking that for a volume without replicas would lose every acknowledged row on it.
"""

from __future__ import annotations

import msgspec
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.model import VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest

MARKER_FILE = "epochlake-volume.json"
MARKER_FORMAT = 1

_GLOB_CHARACTERS = frozenset("*?[]{}\\,")
"""Spark and Hadoop read them in a path as a pattern."""


class VolumeMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Whose volume it is. `created` is an ISO 8601 time, for people."""

    cluster: str
    cluster_id: str
    node: str
    host_id: str
    volume_id: VolumeId
    volume: str
    created: str
    format: int = MARKER_FORMAT


def marker_uri(volume_uri: str) -> str:
    return places.join(volume_uri, MARKER_FILE)


def prepare_volume(storage: Storage, uri: str, marker: VolumeMarker) -> VolumeMarker:
    """Create the volume's directory and marker; does nothing when they are there for the same volume.

    Returns the marker that is there now. Raises WrongCluster for a volume of another cluster, of another node or with
    another number, InvalidRequest for a URI that Spark would take for a pattern, StorageUnavailable.
    """
    odd = sorted(_GLOB_CHARACTERS.intersection(uri))
    if odd:
        raise InvalidRequest(
            f"a volume cannot be at {uri}: Spark reads {' '.join(odd)} in a path as a pattern",
            hint="Choose a URI without",
        )
    storage.watch(uri)
    storage.create_directory(uri, parents=True)
    if storage.put_if_absent(marker_uri(uri), msgspec.json.format(msgspec.json.encode(marker), indent=2)):
        return marker
    there = read_marker(storage, uri)
    if (there.cluster_id, there.host_id, there.volume_id) == (marker.cluster_id, marker.host_id, marker.volume_id):
        return there
    raise WrongCluster(
        f"{uri} cannot become volume {marker.volume!r} (number {marker.volume_id}) of node {marker.node!r} in "
        f"cluster {marker.cluster!r} ({marker.cluster_id}): it is volume {there.volume!r} (number "
        f"{there.volume_id}) of node {there.node!r} in cluster {there.cluster!r} ({there.cluster_id})",
        hint=f"Give another place, or remove {MARKER_FILE} there when nothing on it is needed any more",
    )


def require_volume(storage: Storage, uri: str, cluster_id: str, volume_id: VolumeId) -> VolumeMarker:
    """The marker, read now. Raises StorageUnavailable when it is missing or torn, WrongCluster when foreign."""
    there = read_marker(storage, uri)
    if (there.cluster_id, there.volume_id) == (cluster_id, volume_id):
        return there
    raise WrongCluster(
        f"{uri} should be volume {volume_id} of cluster {cluster_id}, but its marker says volume "
        f"{there.volume_id} of cluster {there.cluster_id} ({there.cluster})",
        hint="Check which disk is mounted there",
    )


def read_marker(storage: Storage, uri: str) -> VolumeMarker:
    """The marker of the volume at `uri`, whoever's it is."""
    storage.watch(uri)
    try:
        data = storage.read_bytes(marker_uri(uri))
    except failures.MissingFile as error:
        raise StorageUnavailable(
            f"the volume at {uri} is unreachable: its marker {MARKER_FILE} is missing, as on a disk that is "
            "not mounted. Its replicas count as missing",
            hint="Mount it and retry",
        ) from error
    try:
        marker = msgspec.json.decode(data, type=decodable(VolumeMarker))
    except msgspec.MsgspecError as error:
        raise failures.StorageDamaged(
            f"the marker {marker_uri(uri)} cannot be read: {error}", hint="Restore the file"
        ) from error
    if marker.format != MARKER_FORMAT:
        raise StorageUnavailable(
            f"the marker {marker_uri(uri)} has format {marker.format}, and this version knows {MARKER_FORMAT}",
            hint="Upgrade",
        )
    return marker
