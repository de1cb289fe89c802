"""Events of nodes: registering, and topology requests from asking to ending (seed 000, "Topology state machine").

A request is taken up by the coordinator; `StartRequest` and `FinishRequest` move the node along the states of the
seed's diagram. A node leaves only when no tablet names its volumes any more, and a replace ends only when the replaced
node's replicas are all rebuilt: both are conditions of the events, so no coordinator can get them wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.model import (
    Node,
    NodeState,
    PlacementKind,
    RequestKind,
    RequestState,
    TopologyRequest,
    Volume,
)

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

STARTED = {
    RequestKind.JOIN: NodeState.BOOTSTRAPPING,
    RequestKind.REPLACE: NodeState.REPLACING,
    RequestKind.LEAVE: NodeState.DECOMMISSIONING,
    RequestKind.REMOVE: NodeState.REMOVING,
    RequestKind.REBUILD: NodeState.REBUILDING,
}
ENDED = {
    RequestKind.JOIN: NodeState.NORMAL,
    RequestKind.REPLACE: NodeState.NORMAL,
    RequestKind.LEAVE: NodeState.LEFT,
    RequestKind.REMOVE: NodeState.LEFT,
    RequestKind.REBUILD: NodeState.NORMAL,
}


class RegisterNode(Event, frozen=True):
    """A node asks to join, or to replace another. Numbers of node and volumes are the next free ones."""

    request_id: str
    node_id: int
    name: str
    host_id: str
    datacenter: str
    rack: str
    volumes: tuple[Volume, ...]
    replaces: int | None = None

    def check(self, metadata: ClusterMetadata) -> None:
        directory = metadata.directory
        require_name("node", self.name)
        require_name("datacenter", self.datacenter)
        require_name("rack", self.rack)
        known = directory.by_name.get(self.name)
        require(
            known is None or known.state is NodeState.LEFT,
            "node-exists",
            f"there is already a node {self.name!r} (state {known.state if known else ''}): choose another name",
        )
        require(
            all(node.host_id != self.host_id for node in directory.nodes.values()),
            "host-exists",
            f"host id {self.host_id} is that of a node which is or was in this cluster",
        )
        require(self.node_id == next_node_id(metadata), "stale-plan", "the node number was planned on old metadata")
        require(bool(self.volumes), "no-volumes", f"node {self.name!r} has no volume: give at least one --volume")
        first = next_volume_id(metadata)
        require(
            [volume.volume_id for volume in self.volumes] == list(range(first, first + len(self.volumes))),
            "stale-plan",
            "the volume numbers were planned on old metadata",
        )
        require(
            len({volume.name for volume in self.volumes}) == len(self.volumes),
            "volume-exists",
            f"two volumes of node {self.name!r} have the same name",
        )
        require(
            len({volume.uri.rstrip("/") for volume in self.volumes}) == len(self.volumes),
            "volume-exists",
            f"two volumes of node {self.name!r} have the same URI",
        )
        # A new disk may be mounted where the dead one was: markers tell the two volumes apart.
        in_use = {
            volume.uri: node
            for node in directory.nodes.values()
            if node.state is not NodeState.LEFT and node.node_id != self.replaces
            for volume in node.volumes
        }
        for volume in self.volumes:
            owner = in_use.get(volume.uri)
            require(owner is None, "volume-exists", f"{volume.uri} is a volume of node {owner.name if owner else ''!r}")
            require(
                volume.capacity > 0, "invalid-capacity", f"volume {volume.uri} has a capacity of {volume.capacity} B"
            )
        require(self.request_id not in metadata.requests, "request-exists", f"request {self.request_id} exists already")
        if self.replaces is not None:
            self._check_replaces(metadata)

    def _check_replaces(self, metadata: ClusterMetadata) -> None:
        replaced = metadata.directory.nodes.get(self.replaces or 0)
        require(replaced is not None, "unknown-node", f"there is no node number {self.replaces} to replace")
        assert replaced is not None
        require(
            replaced.state is NodeState.NORMAL,
            "wrong-state",
            f"node {replaced.name!r} is {replaced.state}, only a normal one can be replaced",
        )
        _require_no_open_request(metadata, replaced)
        require(
            (replaced.datacenter, replaced.rack) == (self.datacenter, self.rack),
            "wrong-rack",
            f"node {replaced.name!r} is in {replaced.datacenter}/{replaced.rack}; its replacement must be there too, "
            f"not in {self.datacenter}/{self.rack}",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        node = Node(
            node_id=self.node_id,
            name=self.name,
            host_id=self.host_id,
            datacenter=self.datacenter,
            rack=self.rack,
            volumes=self.volumes,
            replaces=self.replaces,
        )
        kind = RequestKind.JOIN if self.replaces is None else RequestKind.REPLACE
        request = TopologyRequest(self.request_id, kind, self.node_id, requested_epoch=epoch, epoch=epoch)
        return msgspec.structs.replace(
            metadata,
            directory=metadata.directory.with_nodes(node, epoch=epoch),
            requests={**metadata.requests, request.request_id: request},
        )

    def summary(self) -> str:
        what = "asks to join" if self.replaces is None else f"asks to replace node {self.replaces}"
        return f"node {self.name} ({self.datacenter}/{self.rack}, {len(self.volumes)} volume(s)) {what}"


class RequestTopology(Event, frozen=True):
    """Ask that a node leaves (its storage is alive), or is removed (its storage is gone)."""

    request_id: str
    kind_of_request: RequestKind
    node_id: int
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        node = metadata.directory.nodes.get(self.node_id)
        require(node is not None, "unknown-node", f"there is no node number {self.node_id}")
        assert node is not None
        require(
            self.kind_of_request in (RequestKind.LEAVE, RequestKind.REMOVE),
            "wrong-request",
            f"a {self.kind_of_request} is not asked for this way",
        )
        require(
            node.state is NodeState.NORMAL,
            "wrong-state",
            f"node {node.name!r} is {node.state}: only a normal node can {self.kind_of_request}",
        )
        require(self.request_id not in metadata.requests, "request-exists", f"request {self.request_id} exists already")
        _require_no_open_request(metadata, node)
        _require_enough_nodes_without(metadata, node)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = TopologyRequest(
            self.request_id, self.kind_of_request, self.node_id, reason=self.why, requested_epoch=epoch, epoch=epoch
        )
        return msgspec.structs.replace(metadata, requests={**metadata.requests, request.request_id: request})

    def summary(self) -> str:
        return f"node {self.node_id} is to {self.kind_of_request}"


class StartRequest(Event, frozen=True):
    """The coordinator takes up a request; the node goes into the state of its kind.

    With a replace the replaced node leaves at once and the new one is normal: its tablets are rebuilt after that
    (seed 000, "Node replace with tablets"), and the request goes on until they are.
    """

    request_id: str

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(
            request.state is RequestState.PENDING,
            "wrong-state",
            f"request {self.request_id} is {request.state}, not pending",
        )
        node = metadata.directory.nodes[request.node_id]
        if request.kind in (RequestKind.LEAVE, RequestKind.REMOVE):
            _require_enough_nodes_without(metadata, node)
        if request.kind is RequestKind.REPLACE:
            assert node.replaces is not None
            replaced = metadata.directory.nodes[node.replaces]
            require(
                replaced.state is NodeState.NORMAL,
                "wrong-state",
                f"node {replaced.name!r} is {replaced.state} by now: it cannot be replaced",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        node = metadata.directory.nodes[request.node_id]
        changed = [msgspec.structs.replace(node, state=STARTED[request.kind])]
        if request.kind is RequestKind.REPLACE:
            assert node.replaces is not None
            replaced = metadata.directory.nodes[node.replaces]
            changed = [
                msgspec.structs.replace(node, state=NodeState.NORMAL),
                msgspec.structs.replace(replaced, state=NodeState.LEFT, replaced_by=node.node_id),
            ]
        return _with_request(
            msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(*changed, epoch=epoch)),
            msgspec.structs.replace(request, state=RequestState.RUNNING, started_epoch=epoch, epoch=epoch),
        )

    def summary(self) -> str:
        return f"request {self.request_id} started"


class FinishRequest(Event, frozen=True):
    """A running request is done. Refused while any tablet still names a volume that is to be given up."""

    request_id: str

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(
            request.state is RequestState.RUNNING,
            "wrong-state",
            f"request {self.request_id} is {request.state}, not running",
        )
        waiting = metadata.replicas_in_use(volumes_given_up(metadata, request))
        require(
            not waiting,
            "replicas-left",
            f"{len(waiting)} tablets still have a replica on the node that request {self.request_id} gives up",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        node = metadata.directory.nodes[request.node_id]
        ended = msgspec.structs.replace(node, state=ENDED[request.kind])
        return _with_request(
            msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(ended, epoch=epoch)),
            msgspec.structs.replace(request, state=RequestState.DONE, epoch=epoch),
        )

    def summary(self) -> str:
        return f"request {self.request_id} done"


class CancelRequest(Event, frozen=True):
    """An operator takes a request back; a node on its way out is normal again (seed 000, `rollback_to_normal`).

    Tablets that have moved stay where they are; those on the way end their transition. A replace that has started
    cannot be cancelled: the replaced node has left.
    """

    request_id: str
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        request = metadata.request(self.request_id)
        require(
            request.state in (RequestState.PENDING, RequestState.RUNNING),
            "wrong-state",
            f"request {self.request_id} has ended ({request.state}): it cannot be cancelled",
        )
        require(
            request.kind is not RequestKind.REPLACE or request.state is RequestState.PENDING,
            "cannot-cancel",
            f"replace {self.request_id} has started, the replaced node has left: let it finish",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        request = metadata.requests[self.request_id]
        node = metadata.directory.nodes[request.node_id]
        joining = request.kind in (RequestKind.JOIN, RequestKind.REPLACE)
        back = msgspec.structs.replace(node, state=NodeState.LEFT if joining else NodeState.NORMAL)
        return _with_request(
            msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(back, epoch=epoch)),
            msgspec.structs.replace(request, state=RequestState.CANCELLED, detail=self.why, epoch=epoch),
        )

    def summary(self) -> str:
        return f"request {self.request_id} cancelled"


def next_node_id(metadata: ClusterMetadata) -> int:
    """The number that the next node gets: numbers are never used again."""
    return max(metadata.directory.nodes, default=0) + 1


def next_volume_id(metadata: ClusterMetadata) -> int:
    """The number that the next volume gets: numbers are never used again."""
    return max(metadata.directory.volumes, default=0) + 1


def volumes_given_up(metadata: ClusterMetadata, request: TopologyRequest) -> set[int]:
    """The volumes that no tablet may name when `request` ends."""
    node = metadata.directory.nodes[request.node_id]
    match request.kind:
        case RequestKind.LEAVE | RequestKind.REMOVE:
            return {volume.volume_id for volume in node.volumes}
        case RequestKind.REPLACE if node.replaces is not None:
            return {volume.volume_id for volume in metadata.directory.nodes[node.replaces].volumes}
        case _:
            return set()


def _with_request(metadata: ClusterMetadata, request: TopologyRequest) -> ClusterMetadata:
    return msgspec.structs.replace(metadata, requests={**metadata.requests, request.request_id: request})


def _require_no_open_request(metadata: ClusterMetadata, node: Node) -> None:
    for request in metadata.open_requests():
        involved = metadata.directory.nodes[request.node_id]
        if node.node_id in (involved.node_id, involved.replaces):
            raise Rejected(
                "request-in-the-way",
                f"node {node.name!r} takes part in request {request.request_id} ({request.kind}, {request.state}): "
                "wait for it, or cancel it",
            )


def _require_enough_nodes_without(metadata: ClusterMetadata, leaving: Node) -> None:
    """Refuse a leave after which some keyspace could not keep its replicas, on as many racks as before."""
    going = {r.node_id for r in metadata.open_requests() if r.kind in (RequestKind.LEAVE, RequestKind.REMOVE)}
    staying = [
        node
        for node in metadata.directory.nodes.values()
        if node.datacenter == leaving.datacenter
        and node.state is NodeState.NORMAL
        and node.node_id not in {leaving.node_id, *going}
    ]
    for keyspace in metadata.schema.keyspaces.values():
        wanted = keyspace.replication.get(leaving.datacenter, 0)
        if keyspace.placement is PlacementKind.TABLETS and wanted > len(staying):
            raise Rejected(
                "too-few-nodes",
                f"without node {leaving.name!r} datacenter {leaving.datacenter} would have {len(staying)} normal "
                f"node(s), but keyspace {keyspace.name!r} keeps {wanted} replicas there: add a node first",
            )
        racks = {node.rack for node in staying}
        if keyspace.placement is PlacementKind.TABLETS and len(racks) < min(wanted, len(racks | {leaving.rack})):
            raise Rejected(
                "rack-needed",
                f"node {leaving.name!r} is the last normal one of rack {leaving.rack}, and keyspace {keyspace.name!r} "
                f"keeps {wanted} replicas in {leaving.datacenter}, which would have {len(racks)} rack(s) without it: "
                "its tablets could only go where a rack holds one of their replicas already. Add a node to the rack, "
                "or replace this one",
            )
