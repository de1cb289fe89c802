"""The event by which a node becomes known, and what requests need to know of nodes (seed 000, "Node join").

A node is registered with all that never changes: where it stands, its volumes and their numbers. What becomes of it
then is for its request (events/requests.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.events.losses import Loss, check_loss, holds_nothing, with_loss
from epochlake.metastore.metadata.events.plans import allowed
from epochlake.metastore.metadata.model import Node, NodeState, RequestKind, TopologyRequest, Volume
from epochlake.placement.rejections import Code
from epochlake.placement.ring import checks
from epochlake.placement.showing import plural

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata
    from epochlake.metastore.metadata.components.upgrade import Described


class RegisterNode(Event, frozen=True):
    """A node asks to join, or to replace another. Numbers of node and volumes are the next free ones.

    `tokens` are those that it is to own; when none are given they are allocated, or those of the replaced node.

    A replace declares the replaced node lost: `takes_back` are the requests that this ends (losses.py), and `force`
    gives rows up that only lost storage has.
    """

    request_id: str
    node_id: int
    name: str
    host_id: str
    datacenter: str
    rack: str
    volumes: tuple[Volume, ...]
    replaces: int | None = None
    tokens: tuple[int, ...] = ()
    force: bool = False
    takes_back: tuple[str, ...] = ()
    declares_lost: bool = False

    def builds(self, described: Described) -> bool:
        said = next((node for node in described.nodes if node.name == self.name), None)
        if said is None or self.replaces is not None:
            return False
        volumes = {volume.name for volume in self.volumes}
        place = (said.datacenter, said.rack) == (self.datacenter, self.rack)
        return (
            place and volumes == said.volumes.keys() and (not said.tokens or sorted(said.tokens) == sorted(self.tokens))
        )

    def check(self, metadata: ClusterMetadata) -> None:
        directory = metadata.directory
        require_name("node", self.name)
        require_name("datacenter", self.datacenter)
        require_name("rack", self.rack)
        known = directory.by_name.get(self.name)
        require(
            known is None or known.state is NodeState.LEFT,
            Code.NODE_EXISTS,
            f"there is already a node {self.name!r} (state {known.state if known else ''})",
            hint="Choose another name",
        )
        require(
            all(node.host_id != self.host_id for node in directory.known.values()),
            Code.HOST_EXISTS,
            f"host id {self.host_id} is that of a node which is or was in this cluster",
        )
        require(self.node_id == next_node_id(metadata), Code.STALE_PLAN, "the node number was planned on old metadata")
        require(
            bool(self.volumes), Code.NO_VOLUMES, f"node {self.name!r} has no volume", hint="Give at least one --volume"
        )
        first = next_volume_id(metadata)
        require(
            [volume.volume_id for volume in self.volumes] == list(range(first, first + len(self.volumes))),
            Code.STALE_PLAN,
            "the volume numbers were planned on old metadata",
        )
        require(
            len({volume.name for volume in self.volumes}) == len(self.volumes),
            Code.VOLUME_EXISTS,
            f"two volumes of node {self.name!r} have the same name",
        )
        require(
            len({volume.uri.rstrip("/") for volume in self.volumes}) == len(self.volumes),
            Code.VOLUME_EXISTS,
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
            require(
                owner is None, Code.VOLUME_EXISTS, f"{volume.uri} is a volume of node {owner.name if owner else ''!r}"
            )
            require(
                0 < volume.capacity < 2**63,
                Code.INVALID_CAPACITY,
                f"volume {volume.uri} has a capacity of {volume.capacity} B",
                hint="Give one above 0 and below 9.22 EB",
            )
        require(
            self.request_id not in metadata.requests, Code.REQUEST_EXISTS, f"request {self.request_id} exists already"
        )
        if self.replaces is not None:
            self._check_replaces(metadata)
        require_tokens_free(metadata, self.tokens, self.replaces)

    def _check_replaces(self, metadata: ClusterMetadata) -> None:
        replaced = metadata.directory.nodes.get(self.replaces or 0)
        require(replaced is not None, Code.UNKNOWN_NODE, f"there is no node number {self.replaces} to replace")
        assert replaced is not None
        require(
            replaced.state is not NodeState.LEFT,
            Code.WRONG_STATE,
            f"node {replaced.name!r} has left: there is nothing to replace",
        )
        loss = Loss(self.takes_back, declares=self.declares_lost)
        check_loss(metadata, replaced, RequestKind.REPLACE, loss)
        after = with_loss(metadata, replaced.node_id, loss, self.request_id, metadata.epoch + 1)
        require(
            not holds_nothing(after, replaced.node_id),
            Code.WRONG_STATE,
            f"node {replaced.name!r} has not joined yet, and has no place to take",
            hint=f"Run `epochlake node remove {replaced.name}`, and add another one",
        )
        require(
            (replaced.datacenter, replaced.rack) == (self.datacenter, self.rack),
            Code.WRONG_RACK,
            f"node {replaced.name!r} is in {replaced.datacenter}/{replaced.rack}; its replacement must be there too, "
            f"not in {self.datacenter}/{self.rack}",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        replaced = metadata.directory.nodes.get(self.replaces or 0)
        node = Node(
            node_id=self.node_id,
            name=self.name,
            host_id=self.host_id,
            datacenter=self.datacenter,
            rack=self.rack,
            volumes=self.volumes,
            replaces=self.replaces,
            # What rules and the balancer counted on goes on with the node that takes the place.
            weight=replaced.weight if replaced else 1.0,
            tags=replaced.tags if replaced else (),
        )
        kind = RequestKind.JOIN if self.replaces is None else RequestKind.REPLACE
        request = TopologyRequest(
            self.request_id,
            kind,
            self.node_id,
            requested_epoch=epoch,
            epoch=epoch,
            tokens=tuple(sorted(self.tokens)),
            force=self.force,
        )
        if self.replaces is not None:
            metadata = with_loss(
                metadata, self.replaces, Loss(self.takes_back, declares=self.declares_lost), self.request_id, epoch
            )
        return msgspec.structs.replace(
            metadata,
            directory=metadata.directory.with_nodes(node, epoch=epoch),
            requests={**metadata.requests, request.request_id: request},
        )

    def summary(self) -> str:
        what = "asks to join" if self.replaces is None else f"asks to replace node {self.replaces}"
        return f"node {self.name} ({self.datacenter}/{self.rack}, {plural(len(self.volumes), 'volume')}) {what}"


def next_node_id(metadata: ClusterMetadata) -> int:
    """The number that the next node gets: numbers are never used again."""
    return max(metadata.directory.known, default=0) + 1


def next_volume_id(metadata: ClusterMetadata) -> int:
    """The number that the next volume gets: numbers are never used again."""
    return max(metadata.directory.volumes, default=0) + 1


def nodes_given_up(metadata: ClusterMetadata, request: TopologyRequest) -> tuple[Node, ...]:
    """The nodes that hold nothing any more when `request` ends.

    Also those that these had replaced: where the storage of a replacement was lost before it had everything, tablets
    still name the node that it came for.
    """
    node = metadata.directory.nodes[request.node_id]
    match request.kind:
        case RequestKind.LEAVE | RequestKind.REMOVE:
            going: int | None = node.node_id
        case RequestKind.REPLACE:
            going = node.replaces
        case _:
            going = None
    nodes: list[Node] = []
    while going in metadata.directory.nodes:  # what was unregistered held nothing then
        assert going is not None
        nodes.append(metadata.directory.nodes[going])
        going = nodes[-1].replaces
    return tuple(nodes)


def nodes_going(metadata: ClusterMetadata) -> dict[int, TopologyRequest]:
    """The numbers of the nodes that hold nothing any more when the open requests end, each with the one it goes by."""
    return {
        node.node_id: request
        for request in metadata.open_requests()
        if request.node_id in metadata.directory.nodes
        for node in nodes_given_up(metadata, request)
    }


def volumes_given_up(metadata: ClusterMetadata, request: TopologyRequest) -> set[int]:
    """The volumes that no tablet may name when `request` ends."""
    return {volume.volume_id for node in nodes_given_up(metadata, request) for volume in node.volumes}


def require_no_open_request(metadata: ClusterMetadata, node: Node) -> None:
    for request in metadata.open_requests():
        involved = metadata.directory.nodes.get(request.node_id)
        if involved is not None and node.node_id in (involved.node_id, involved.replaces):
            raise Rejected(
                Code.REQUEST_IN_THE_WAY,
                f"node {node.name!r} takes part in request {request.request_id} ({request.kind}, {request.state})",
                hint="Wait for it, or cancel it",
            )


def require_tokens_free(metadata: ClusterMetadata, tokens: tuple[int, ...], exempt: int | None) -> None:
    """That no node owns any of the tokens, or has asked for it; `exempt` is a node that gives its own up."""
    require(
        len(set(tokens)) == len(tokens),
        Code.TOKENS_TAKEN,
        f"tokens {sorted(tokens)} are not all different",
        hint="Give each of them once",
    )
    for request in metadata.open_requests():
        taken = sorted(set(tokens).intersection(request.tokens))
        require(not taken, Code.TOKENS_TAKEN, f"tokens {taken} are asked for by request {request.request_id}")
    allowed(metadata, lambda state: checks.tokens_free(state, tokens, () if exempt is None else (exempt,)))
