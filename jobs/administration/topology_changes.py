"""Topology requests: asking for them, holding them up, taking them back.

Each of these only asks: the request is in the log when the function returns, and the coordinator carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.jobs.administration.schema import strategy_of
from epochlake.jobs.administration.tokens import allocated
from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AlterTabletReplication,
    CancelRequest,
    PauseRequest,
    RequestReplication,
    RequestStreamCheck,
    RequestTopology,
    ResumeRequest,
)
from epochlake.metastore.metadata.events.losses import loss_of
from epochlake.metastore.metadata.lost_rows import require_rows_elsewhere
from epochlake.metastore.metadata.model import PlacementKind, RequestKind, TopologyRequest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


STREAMS = "streams"
"""What a check of the streams of changes is about: those of all tables. No node and no keyspace need be called so."""


def decommission(cluster: Cluster, name: str, *, force: bool = False, **options: Unpack[Options]) -> Committed:
    """Ask that a node whose storage is alive hands over its tablets and ranges and leaves.

    `force`: also where keyspaces on the ring would keep fewer replicas than their replication asks for. Raises Rejected
    for an unknown node, or where another open request is in the way.
    """
    return cluster.commit(Decommission(name, force=force), **options)


def remove_node(cluster: Cluster, name: str, *, force: bool = False, **options: Unpack[Options]) -> Committed:
    """Ask that a node whose storage is gone is taken out; what it held is rebuilt on other nodes.

    `force`: also where it held the only replica of a range, whose rows are lost then. Raises Rejected for an unknown
    node, or where rows would be lost.
    """
    return cluster.commit(NodeRemoval(name, force=force), **options)


def rebuild_node(cluster: Cluster, name: str, *, datacenter: str = "", **options: Unpack[Options]) -> Committed:
    """Ask that a node gets all rows of its ranges again, from replicas of `datacenter` where one is named."""
    return cluster.commit(NodeRebuild(name, datacenter=datacenter), **options)


def move_node(
    cluster: Cluster, name: str, *, tokens: Sequence[int] = (), count: int | None = None, **options: Unpack[Options]
) -> Committed:
    """Ask that a node gives up its tokens for others: for `tokens`, or for `count` that even out ownership."""
    return cluster.commit(NodeMove(name, tokens=tokens, count=count), **options)


def change_replication(
    cluster: Cluster,
    keyspace: str,
    replication: Mapping[str, int],
    *,
    strategy: str | None = None,
    force: bool = False,
    **options: Unpack[Options],
) -> Committed:
    """Ask that a keyspace gets another replication; the coordinator goes there a replica at a time.

    On tablets it holds for new tables at once, and may be changed again before every tablet has it; only the numbers of
    datacenters that have replicas can be changed. `strategy` and `force` are for the ring.
    """
    return cluster.commit(ReplicationChange(keyspace, replication, strategy=strategy, force=force), **options)


def cancel_request(cluster: Cluster, request: str, **options: Unpack[Options]) -> Committed:
    """Take an open request back; `request` is its id, or the node or the keyspace that it is about."""
    return cluster.commit(RequestCancellation(request), **options)


def pause_request(cluster: Cluster, request: str, **options: Unpack[Options]) -> Committed:
    """Let the coordinator begin nothing new for an open request until `resume_request`."""
    return cluster.commit(RequestPause(request), **options)


def resume_request(cluster: Cluster, request: str, **options: Unpack[Options]) -> Committed:
    """Let the coordinator go on with a paused request."""
    return cluster.commit(RequestResumption(request), **options)


def check_and_repair_cdc_streams(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Ask that the streams of all tables that keep their changes are what they should be: divided by the ranges of now,
    and published. The coordinator does it, and ends the request then.
    """
    return cluster.commit(StreamCheck(), **options)


class StreamCheck(Change[RequestStreamCheck], frozen=True):
    """What `check_and_repair_cdc_streams` commits."""

    verb: ClassVar[str] = "check and repair cdc streams"

    def plan(self, metadata: ClusterMetadata, call: Call) -> RequestStreamCheck:
        return RequestStreamCheck(call.request_id, call.reason)


class Decommission(Change[RequestTopology], frozen=True):
    """What `decommission` commits."""

    verb: ClassVar[str] = "decommission"
    name: str
    force: bool = False

    def plan(self, metadata: ClusterMetadata, call: Call) -> RequestTopology:
        node = metadata.node(self.name)
        return RequestTopology(call.request_id, RequestKind.LEAVE, node.node_id, call.reason, force=self.force)


class NodeRemoval(Change[RequestTopology], frozen=True):
    """What `remove_node` commits."""

    verb: ClassVar[str] = "remove node"
    name: str
    force: bool = False

    def plan(self, metadata: ClusterMetadata, call: Call) -> RequestTopology:
        node = metadata.node(self.name)
        if not self.force:
            require_rows_elsewhere(metadata, node)
        loss = loss_of(metadata, node, RequestKind.REMOVE)
        return RequestTopology(
            call.request_id,
            RequestKind.REMOVE,
            node.node_id,
            call.reason,
            force=self.force,
            takes_back=loss.takes_back,
            takes_over=loss.takes_over,
            declares_lost=True,
        )


class NodeRebuild(Change[RequestTopology], frozen=True):
    """What `rebuild_node` commits."""

    verb: ClassVar[str] = "rebuild node"
    name: str
    datacenter: str = ""

    def plan(self, metadata: ClusterMetadata, call: Call) -> RequestTopology:
        node = metadata.node(self.name)
        return RequestTopology(
            call.request_id, RequestKind.REBUILD, node.node_id, call.reason, source_datacenter=self.datacenter
        )


class NodeMove(Change[RequestTopology], frozen=True):
    """What `move_node` commits; exactly one of tokens and count is given."""

    verb: ClassVar[str] = "move node"
    name: str
    tokens: Sequence[int] = ()
    count: int | None = None

    def plan(self, metadata: ClusterMetadata, call: Call) -> RequestTopology:
        node = metadata.node(self.name)
        if bool(self.tokens) == (self.count is not None):
            raise InvalidRequest(
                f"it is not clear where node {self.name!r} is to move",
                hint="Give its new tokens, or how many, and one of the two",
            )
        if self.count is None:
            wanted = tuple(self.tokens)
        else:
            wanted = allocated(metadata, node.datacenter, node.rack, self.count, node)
        return RequestTopology(call.request_id, RequestKind.MOVE, node.node_id, call.reason, tokens=wanted)


class ReplicationChange(Change[RequestReplication | AlterTabletReplication], frozen=True):
    """What `change_replication` commits; without a strategy it is the one whose options `replication` are."""

    verb: ClassVar[str] = "change replication"
    keyspace: str
    replication: Mapping[str, int]
    strategy: str | None = None
    force: bool = False

    def plan(self, metadata: ClusterMetadata, call: Call) -> RequestReplication | AlterTabletReplication:
        if metadata.keyspace(self.keyspace).placement is not PlacementKind.RING:
            if self.force or strategy_of(self.replication, self.strategy) != NETWORK_TOPOLOGY:
                raise Rejected(
                    Code.UNSUPPORTED_PLACEMENT,
                    f"keyspace {self.keyspace!r} is placed by tablets: they have {NETWORK_TOPOLOGY}, and every replica "
                    "needs a node",
                    hint="Give replicas by datacenter, such as dc1=3, without --strategy and --force",
                )
            return AlterTabletReplication(self.keyspace, dict(self.replication), call.reason)
        return RequestReplication(
            request_id=call.request_id,
            keyspace=self.keyspace,
            strategy=strategy_of(self.replication, self.strategy),
            replication=dict(self.replication),
            force=self.force,
            why=call.reason,
        )


class RequestCancellation(Change[CancelRequest], frozen=True):
    """What `cancel_request` commits."""

    verb: ClassVar[str] = "cancel request"
    request: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> CancelRequest:
        return CancelRequest(open_request(metadata, self.request).request_id, call.reason)


class RequestPause(Change[PauseRequest], frozen=True):
    """What `pause_request` commits."""

    verb: ClassVar[str] = "pause request"
    request: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> PauseRequest:
        return PauseRequest(open_request(metadata, self.request).request_id, call.reason)


class RequestResumption(Change[ResumeRequest], frozen=True):
    """What `resume_request` commits."""

    verb: ClassVar[str] = "resume request"
    request: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> ResumeRequest:
        return ResumeRequest(open_request(metadata, self.request).request_id)


def open_request(metadata: ClusterMetadata, said: str) -> TopologyRequest:
    """The request of this id (ended or not: the event says so), or the open one of a node or a keyspace.

    Raises Rejected (unknown-request) where there is none.
    """
    if said in metadata.requests:
        return metadata.requests[said]
    about = [request for request in metadata.open_requests() if said in subjects(metadata, request)]
    if len(about) == 1:
        return about[0]
    if about:
        ids = ", ".join(request.request_id for request in about)
        raise Rejected(Code.UNKNOWN_REQUEST, f"{said!r} has several open requests", hint=f"Name one of them, {ids}")
    if said in metadata.directory.by_name or said in metadata.schema.keyspaces:
        what = "node" if said in metadata.directory.by_name else "keyspace"
        raise Rejected(
            Code.UNKNOWN_REQUEST, f"{what} {said!r} has no open request", hint="See `epochlake request list`"
        )
    raise Rejected(
        Code.UNKNOWN_REQUEST,
        f"{said!r} is neither a topology request nor a node or keyspace of this cluster",
        hint="See `epochlake request list`",
    )


def subjects(metadata: ClusterMetadata, request: TopologyRequest) -> tuple[str, ...]:
    """The names of what a request is about: its node first, then the one that this replaces; or its keyspace."""
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return (request.keyspace,)
    if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return (STREAMS,)
    node = metadata.directory.known[request.node_id]
    if request.kind is RequestKind.REPLACE and node.replaces is not None:
        return (node.name, metadata.directory.known[node.replaces].name)
    return (node.name,)
