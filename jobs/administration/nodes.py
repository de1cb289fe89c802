"""New nodes with their volumes: adding one, or putting it in the place of another.

Both only ask: the request is in the log when the function returns, and the coordinator carries it out. The volumes'
markers are written first. A marker is only believed together with the log: one that names a node which was never
registered is what a killed try has left, and the next try of the same node takes it over. A try whose name somebody
else was faster to register takes its own markers back.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import msgspec
from epochlake.jobs.administration.changes import Options, commit_prepared, identified, in_words
from epochlake.jobs.administration.places import require_known_scheme, require_places_apart
from epochlake.jobs.administration.reusing import asides, clear_left_volume
from epochlake.jobs.administration.tokens import allocated
from epochlake.jobs.replicas.volumes import VolumeMarker, marker_uri, prepare_volume, read_marker
from epochlake.metastore import storage
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.configuration import at_home
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import RegisterNode
from epochlake.metastore.metadata.events.losses import loss_of
from epochlake.metastore.metadata.events.nodes import next_node_id, next_volume_id
from epochlake.metastore.metadata.lost_rows import require_rows_elsewhere
from epochlake.metastore.metadata.model import NodeState, RequestKind, Volume
from epochlake.placement.errors import EpochlakeError, InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)


class VolumeSpec(NamedTuple):
    """A volume to be: a place and its `capacity` in bytes; None: all of the file system that it is on."""

    name: str
    uri: str
    capacity: int | None = None


Volumes = Sequence[VolumeSpec | tuple[str, str, int | None]]


@in_words
def add_node(
    cluster: Cluster,
    name: str,
    datacenter: str,
    rack: str,
    volumes: Volumes,
    *,
    tokens: Sequence[int] = (),
    count: int | None = None,
    replaces: str | None = None,
    force: bool = False,
    reuse: bool = False,
    **options: Unpack[Options],
) -> Committed:
    """Prepare the volumes of a new node and register it; the coordinator lets it join.

    `volumes` are (name, place, capacity): the place is a directory or URI, the capacity is in bytes, None is all of
    the file system. `add_node(cluster, "n4", "dc1", "r1", [("d1", "/data/d1", None)])` is a node with one of them.
    On the ring it gets `tokens`, or `count` of them that even out ownership; without either the coordinator allocates
    as many as are configured, or those of the node that it `replaces`: a lost one of the same rack, whose replicas are
    rebuilt on the new one. With `reuse` volumes of nodes that have left are cleared first. The markers are written
    before the commit. Raises Rejected, InvalidRequest, WrongCluster (a volume is somebody else's), StorageUnavailable.
    """
    request_id, options = identified(options)
    specs = measured(volumes)
    written: dict[str, str] = {}

    def plan(metadata: ClusterMetadata) -> RegisterNode:
        require_places_apart(cluster.root.uri, metadata, [spec.uri for spec in specs], besides=(name, replaces))
        host_id = _host_id_of_earlier_try(metadata, name, specs) or str(uuid.uuid4())
        return plan_add_node(
            metadata,
            name,
            datacenter,
            rack,
            specs,
            tokens=tokens,
            count=count,
            replaces=replaces,
            force=force,
            request_id=request_id,
            host_id=host_id,
        )

    def prepare(event: RegisterNode, metadata: ClusterMetadata) -> None:
        for volume in event.volumes:
            if reuse and not _is_of(volume, event, metadata):
                clear_left_volume(cluster, metadata, volume.uri)
            if _claim(volume, event, metadata):
                written[volume.uri] = event.host_id

    try:
        committed, _ = commit_prepared(cluster, plan, prepare, **options)
    except Rejected:
        _take_back(cluster, name, written)
        raise
    finally:
        _let_markers_follow_the_log(cluster, name)
    return committed


@in_words
def replace_node(
    cluster: Cluster,
    lost: str,
    name: str,
    volumes: Volumes,
    *,
    tokens: Sequence[int] = (),
    count: int | None = None,
    force: bool = False,
    **options: Unpack[Options],
) -> Committed:
    """Register a node in the place of `lost`, whose storage is gone; what it held is rebuilt on the new one.

    It takes over the tokens of `lost` unless others are given, or asked for by `count`. `force`: also where rows are
    lost, because other storage that had them is lost as well. `volumes` and errors are those of `add_node`.
    """
    node = cluster.catch_up().node(lost)
    return add_node(
        cluster,
        name,
        node.datacenter,
        node.rack,
        volumes,
        tokens=tokens,
        count=count,
        replaces=lost,
        force=force,
        **options,
    )


def plan_add_node(
    metadata: ClusterMetadata,
    name: str,
    datacenter: str,
    rack: str,
    volumes: Sequence[VolumeSpec],
    *,
    tokens: Sequence[int] = (),
    count: int | None = None,
    replaces: str | None = None,
    force: bool = False,
    request_id: str,
    host_id: str,
) -> RegisterNode:
    """The event of `add_node`; `volumes` are `measured` ones."""
    if tokens and count is not None:
        raise InvalidRequest(f"node {name!r} cannot get given tokens and a number of them: give one of the two")
    lost = None if replaces is None else metadata.node(replaces)
    if lost is not None and not force:
        require_rows_elsewhere(metadata, lost)
    if count is not None:
        tokens = allocated(metadata, datacenter, rack, count, lost)
    first = next_volume_id(metadata)
    return RegisterNode(
        request_id=request_id,
        node_id=next_node_id(metadata),
        name=name,
        host_id=host_id,
        datacenter=datacenter,
        rack=rack,
        volumes=tuple(
            Volume(first + index, spec.name, spec.uri, spec.capacity or 0) for index, spec in enumerate(volumes)
        ),
        replaces=None if lost is None else lost.node_id,
        tokens=tuple(sorted(tokens)),
        force=force,
        takes_back=() if lost is None else loss_of(metadata, lost, RequestKind.REPLACE).takes_back,
        declares_lost=lost is not None,
    )


def measured(volumes: Volumes) -> list[VolumeSpec]:
    """The volumes with absolute places and with capacities; nothing is created.

    Raises InvalidRequest for a place that is given twice, or whose capacity can only be told by who asks.
    """
    specs: list[VolumeSpec] = []
    for name, uri, capacity in (VolumeSpec(*volume) for volume in volumes):
        require_known_scheme(uri)
        uri = uri if "://" in uri else at_home(uri)
        local = storage.local_path(uri)
        place = uri.rstrip("/") if local is None else os.path.abspath(local)
        if any(place == other.uri for other in specs):
            raise InvalidRequest(f"two volumes cannot be at one place: {place} is given twice")
        if capacity is None:
            capacity = _file_system_size(place)
        specs.append(VolumeSpec(name, place, capacity))
    return specs


def placed(
    cluster: Cluster, metadata: ClusterMetadata, volumes: Volumes, replaces: str | None = None
) -> list[VolumeSpec]:
    """The volumes as `measured`, none of them inside or around what has a place already. Raises InvalidRequest."""
    specs = measured(volumes)
    require_places_apart(cluster.root.uri, metadata, [spec.uri for spec in specs], besides=(replaces,))
    return specs


def _file_system_size(place: str) -> int:
    local = storage.local_path(place)
    if local is None:
        raise InvalidRequest(f"the capacity of {place} cannot be measured: give it, in bytes")
    path = Path(local)
    while not path.exists() and path != path.parent:
        path = path.parent
    space = storage.space(str(path))
    assert space is not None
    return space.total


def _host_id_of_earlier_try(metadata: ClusterMetadata, name: str, volumes: Sequence[VolumeSpec]) -> str | None:
    """The host id in a marker that was written for this node by a try whose registration did not land."""
    registered = {node.host_id for node in metadata.directory.nodes.values()}
    for spec in volumes:
        there = _marker_at(spec.uri)
        if (
            there is not None
            and (there.cluster_id, there.node) == (metadata.identity.cluster_id, name)
            and there.host_id not in registered
        ):
            return there.host_id
    return None


def _marker_at(uri: str) -> VolumeMarker | None:
    try:
        return read_marker(uri)
    except StorageUnavailable:
        return None


def _is_of(volume: Volume, event: RegisterNode, metadata: ClusterMetadata) -> bool:
    """Whether the volume has the marker of an earlier try of this registration."""
    there = _marker_at(volume.uri)
    return there is not None and (there.cluster_id, there.host_id) == (metadata.identity.cluster_id, event.host_id)


def _claim(volume: Volume, event: RegisterNode, metadata: ClusterMetadata) -> bool:
    """Make `volume` carry the marker of this registration; whether there was none before.

    Raises WrongCluster when it is somebody else's.
    """
    marker = VolumeMarker(
        cluster=metadata.identity.name,
        cluster_id=metadata.identity.cluster_id,
        node=event.name,
        host_id=event.host_id,
        volume_id=volume.volume_id,
        volume=volume.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if asides(volume.uri):
        raise WrongCluster(
            f"{volume.uri} cannot become a volume of node {event.name!r} as it is: somebody began to clear it and has "
            "not finished. Add it with --reuse"
        )
    try:
        there = prepare_volume(volume.uri, marker)
    except WrongCluster:
        there = read_marker(volume.uri)
        if (there.cluster_id, there.host_id) != (marker.cluster_id, marker.host_id):
            node = metadata.directory.node_of_volume.get(there.volume_id)
            if there.cluster_id == marker.cluster_id and node is not None and node.state is NodeState.LEFT:
                raise WrongCluster(
                    f"{volume.uri} cannot become a volume of node {event.name!r} as it is: it was volume "
                    f"{there.volume!r} of node {there.node!r}, which has left. Add it with --reuse, which clears it"
                ) from None
            raise
    if (there.volume_id, there.volume) != (marker.volume_id, marker.volume):
        _replace_marker(volume.uri, marker)
    return there is marker


def _take_back(cluster: Cluster, name: str, written: Mapping[str, str]) -> None:
    """Delete the markers that a rejected registration has written, by the host id in them, so that the places can be
    used by others.

    Only when the node's name is another host's by now: then no other try of this registration, which would rely on the
    same markers, can land any more. Best effort: a marker that stays is taken over by the next try of this name.
    """
    try:
        directory = cluster.catch_up().directory
        node = directory.by_name.get(name)
        registered = {one.host_id for one in directory.nodes.values()}
        for uri, host_id in written.items():
            there = _marker_at(uri)
            if node is not None and host_id not in registered and there is not None and there.host_id == host_id:
                storage.delete_file(marker_uri(uri))
    except EpochlakeError as error:
        logger.info("the markers of node %s were not taken back: %s", name, error)


def _let_markers_follow_the_log(cluster: Cluster, name: str) -> None:
    """Correct markers that a racing try of the same node has numbered after this node was registered.

    Two tries share a host id, and one that was slow may have written numbers that it had planned before the other's
    commit. Whoever ends last sees the registration and puts it right. Best effort: a wrong number is found out by
    whoever opens the volume, never believed.
    """
    try:
        node = cluster.catch_up().directory.by_name.get(name)
        for volume in node.volumes if node is not None else ():
            there = _marker_at(volume.uri)
            if node is not None and there is not None and there.host_id == node.host_id:
                right = msgspec.structs.replace(there, volume_id=volume.volume_id, volume=volume.name)
                if there != right:
                    _replace_marker(volume.uri, right)
    except EpochlakeError:
        return


def _replace_marker(uri: str, marker: VolumeMarker) -> None:
    storage.replace_bytes(marker_uri(uri), msgspec.json.format(msgspec.json.encode(marker), indent=2))
