"""New nodes with their volumes: adding one, or putting it in the place of another.

Both only ask: the request is in the log when the function returns, and the coordinator carries it out. The volumes'
markers are written first (`markers.py`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Unpack

from epochlake.jobs.administration.markers import Markers, host_id_of_earlier_try, require_claimable
from epochlake.jobs.administration.places import require_known_scheme, require_places_apart
from epochlake.jobs.administration.tokens import allocated
from epochlake.metastore.committing.changes import Call, Change, Options, Preparation
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.configuration import at_home
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import RegisterNode
from epochlake.metastore.metadata.events.losses import loss_of
from epochlake.metastore.metadata.events.nodes import next_node_id, next_volume_id
from epochlake.metastore.metadata.lost_rows import require_rows_elsewhere
from epochlake.metastore.metadata.model import RequestKind, Volume
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest
from msgspec.structs import replace

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.metastore import Metastore

UNNAMED_HOST = "(new)"
"""The host id that a dry run shows: a real one is made up when markers are written."""


class VolumeSpec(NamedTuple):
    """A volume to be: a place and its `capacity` in bytes; None: all of the file system that it is on."""

    name: str
    uri: str
    capacity: int | None = None


Volumes = Sequence[VolumeSpec | tuple[str, str, int | None]]


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
    change = NodeAddition(
        name,
        datacenter,
        rack,
        volumes,
        tokens=tokens,
        count=count,
        replaces=replaces,
        force=force,
        reuse=reuse,
    )
    return cluster.commit(change, **options)


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
    change = NodeReplacement(lost, name, volumes, tokens=tokens, count=count, force=force)
    return cluster.commit(change, **options)


class NodeAddition(Change[RegisterNode], frozen=True, dict=True):
    """What `add_node` commits."""

    verb: ClassVar[str] = "add node"
    name: str
    datacenter: str
    rack: str
    volumes: Volumes
    tokens: Sequence[int] = ()
    count: int | None = None
    replaces: str | None = None
    force: bool = False
    reuse: bool = False

    def specs(self, storage: Storage) -> list[VolumeSpec]:
        """Its volumes as `measured`, once for all tries."""
        known: list[VolumeSpec] | None = self.__dict__.get("_specs")
        if known is None:
            known = self.__dict__["_specs"] = measured(storage, self.volumes)
        return known

    def plan(self, metadata: ClusterMetadata, call: Call) -> RegisterNode:
        specs = self.specs(call.storage)
        uris = [spec.uri for spec in specs]
        # An earlier try may have registered the node itself: then these places are its own.
        besides = (self.replaces,) if call.preview else (self.name, self.replaces)
        require_places_apart(call.storage, call.root, metadata, uris, besides=besides)
        host_id = UNNAMED_HOST
        if not call.preview:
            host_id = host_id_of_earlier_try(call.storage, metadata, self.name, uris) or str(uuid.uuid4())
        if self.tokens and self.count is not None:
            raise InvalidRequest(
                f"node {self.name!r} cannot get given tokens and a number of them", hint="Give one of the two"
            )
        lost = None if self.replaces is None else metadata.node(self.replaces)
        if lost is not None and not self.force:
            require_rows_elsewhere(metadata, lost)
        tokens = self.tokens
        if self.count is not None:
            tokens = allocated(metadata, self.datacenter, self.rack, self.count, lost)
        first = next_volume_id(metadata)
        event = RegisterNode(
            request_id=call.request_id,
            node_id=next_node_id(metadata),
            name=self.name,
            host_id=host_id,
            datacenter=self.datacenter,
            rack=self.rack,
            volumes=tuple(
                Volume(first + index, spec.name, spec.uri, spec.capacity or 0) for index, spec in enumerate(specs)
            ),
            replaces=None if lost is None else lost.node_id,
            tokens=tuple(sorted(tokens)),
            force=self.force,
            takes_back=() if lost is None else loss_of(metadata, lost, RequestKind.REPLACE).takes_back,
            declares_lost=lost is not None,
        )
        if call.preview:
            # What preparing would refuse; the places of an earlier try of this node are its own.
            earlier = host_id_of_earlier_try(call.storage, metadata, self.name, uris) or UNNAMED_HOST
            for volume in event.volumes:
                require_claimable(call.storage, volume, replace(event, host_id=earlier), metadata, reuse=self.reuse)
        return event

    def preparation(self, metastore: Metastore) -> Preparation[RegisterNode]:
        return Markers(metastore, self.name, reuse=self.reuse)


class NodeReplacement(Change[RegisterNode], frozen=True):
    """What `replace_node` commits: a node that is added in the rack of the lost one."""

    verb: ClassVar[str] = "replace node"
    lost: str
    name: str
    volumes: Volumes
    tokens: Sequence[int] = ()
    count: int | None = None
    force: bool = False

    def plan(self, metadata: ClusterMetadata, call: Call) -> RegisterNode:
        lost = metadata.node(self.lost)
        addition = NodeAddition(
            self.name,
            lost.datacenter,
            lost.rack,
            self.volumes,
            tokens=self.tokens,
            count=self.count,
            replaces=self.lost,
            force=self.force,
        )
        return addition.plan(metadata, call)

    def preparation(self, metastore: Metastore) -> Preparation[RegisterNode]:
        return Markers(metastore, self.name)


def measured(storage: Storage, volumes: Volumes) -> list[VolumeSpec]:
    """The volumes with absolute places and with capacities; nothing is created.

    Raises InvalidRequest for a place that is given twice, or whose capacity can only be told by who asks.
    """
    specs: list[VolumeSpec] = []
    for name, uri, capacity in (VolumeSpec(*volume) for volume in volumes):
        if not name or "/" in name:
            raise InvalidRequest(f"a volume cannot be called {name!r}", hint="Use letters, digits, '_' or '-'")
        require_known_scheme(uri)
        uri = uri if "://" in uri else at_home(uri)
        local = places.local_path(uri)
        place = uri.rstrip("/") if local is None else os.path.abspath(local)
        if any(place == other.uri for other in specs):
            raise InvalidRequest(f"two volumes cannot be at one place: {place} is given twice")
        if capacity is None:
            capacity = _file_system_size(storage, place)
        specs.append(VolumeSpec(name, place, capacity))
    return specs


def _file_system_size(storage: Storage, place: str) -> int:
    local = places.local_path(place)
    if local is None:
        raise InvalidRequest(f"the capacity of {place} cannot be measured", hint="Give it, in bytes")
    path = local
    while not storage.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    space = storage.space(path)
    assert space is not None
    return space.total
