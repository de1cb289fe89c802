"""Topology requests: asking for them, holding them up, taking them back.

Each of these only asks: the request is in the log when the function returns, and the coordinator carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from epochlake.jobs.administration.changes import Options, identified, in_words
from epochlake.jobs.administration.schema import strategy_of
from epochlake.jobs.administration.tokens import allocated
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    CancelRequest,
    PauseRequest,
    RequestReplication,
    RequestTopology,
    ResumeRequest,
)
from epochlake.metastore.metadata.events.losses import loss_of
from epochlake.metastore.metadata.lost_rows import require_rows_elsewhere
from epochlake.metastore.metadata.model import PlacementKind, RequestKind, TopologyRequest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


@in_words
def decommission(cluster: Cluster, name: str, *, force: bool = False, **options: Unpack[Options]) -> Committed:
    """Ask that a node whose storage is alive hands over its tablets and ranges and leaves.

    `force`: also where keyspaces on the ring would keep fewer replicas than their replication asks for. Raises Rejected
    for an unknown node, or where another open request is in the way.
    """
    request_id, options = identified(options)
    why = options.get("reason", "")
    return cluster.commit(
        lambda metadata: plan_request(metadata, name, RequestKind.LEAVE, request_id, why, force=force), **options
    )


@in_words
def remove_node(cluster: Cluster, name: str, *, force: bool = False, **options: Unpack[Options]) -> Committed:
    """Ask that a node whose storage is gone is taken out; what it held is rebuilt on other nodes.

    `force`: also where it held the only replica of a range, whose rows are lost then. Raises Rejected for an unknown
    node, or where rows would be lost.
    """
    request_id, options = identified(options)
    why = options.get("reason", "")
    return cluster.commit(
        lambda metadata: plan_request(metadata, name, RequestKind.REMOVE, request_id, why, force=force), **options
    )


@in_words
def rebuild_node(cluster: Cluster, name: str, *, datacenter: str = "", **options: Unpack[Options]) -> Committed:
    """Ask that a node gets all rows of its ranges again, from replicas of `datacenter` where one is named."""
    request_id, options = identified(options)
    why = options.get("reason", "")
    return cluster.commit(lambda metadata: plan_rebuild_node(metadata, name, datacenter, request_id, why), **options)


@in_words
def move_node(
    cluster: Cluster, name: str, *, tokens: Sequence[int] = (), count: int | None = None, **options: Unpack[Options]
) -> Committed:
    """Ask that a node gives up its tokens for others: for `tokens`, or for `count` that even out ownership."""
    request_id, options = identified(options)
    why = options.get("reason", "")
    return cluster.commit(lambda metadata: plan_move_node(metadata, name, tokens, count, request_id, why), **options)


@in_words
def change_replication(
    cluster: Cluster,
    keyspace: str,
    replication: Mapping[str, int],
    *,
    strategy: str | None = None,
    force: bool = False,
    **options: Unpack[Options],
) -> Committed:
    """Ask that a keyspace on the ring gets another replication; the coordinator goes there a replica at a time."""
    request_id, options = identified(options)
    why = options.get("reason", "")
    return cluster.commit(
        lambda metadata: plan_change_replication(metadata, keyspace, replication, strategy, force, request_id, why),
        **options,
    )


@in_words
def cancel_request(cluster: Cluster, request: str, **options: Unpack[Options]) -> Committed:
    """Take an open request back; `request` is its id, or the node or the keyspace that it is about."""
    why = options.get("reason", "")
    return cluster.commit(lambda metadata: plan_cancel_request(metadata, request, why), **options)


@in_words
def pause_request(cluster: Cluster, request: str, **options: Unpack[Options]) -> Committed:
    """Let the coordinator begin nothing new for an open request until `resume_request`."""
    why = options.get("reason", "")
    return cluster.commit(lambda metadata: plan_pause_request(metadata, request, why), **options)


@in_words
def resume_request(cluster: Cluster, request: str, **options: Unpack[Options]) -> Committed:
    """Let the coordinator go on with a paused request."""
    return cluster.commit(lambda metadata: plan_resume_request(metadata, request), **options)


def plan_request(
    metadata: ClusterMetadata, name: str, kind: RequestKind, request_id: str, why: str = "", *, force: bool = False
) -> RequestTopology:
    """The event of `decommission` (`leave`) and of `remove_node` (`remove`)."""
    node = metadata.node(name)
    if kind is not RequestKind.REMOVE:
        return RequestTopology(request_id, kind, node.node_id, why, force=force)
    if not force:
        require_rows_elsewhere(metadata, node)
    loss = loss_of(metadata, node, kind)
    return RequestTopology(
        request_id,
        kind,
        node.node_id,
        why,
        force=force,
        takes_back=loss.takes_back,
        takes_over=loss.takes_over,
        declares_lost=True,
    )


def plan_rebuild_node(
    metadata: ClusterMetadata, name: str, datacenter: str, request_id: str, why: str = ""
) -> RequestTopology:
    """The event of `rebuild_node`."""
    node = metadata.node(name)
    return RequestTopology(request_id, RequestKind.REBUILD, node.node_id, why, source_datacenter=datacenter)


def plan_move_node(
    metadata: ClusterMetadata, name: str, tokens: Sequence[int], count: int | None, request_id: str, why: str = ""
) -> RequestTopology:
    """The event of `move_node`; exactly one of tokens and count is given."""
    node = metadata.node(name)
    if bool(tokens) == (count is not None):
        raise InvalidRequest(
            f"say where node {name!r} is to move: give its new tokens, or how many, and one of the two"
        )
    wanted = tuple(tokens) if count is None else allocated(metadata, node.datacenter, node.rack, count, node)
    return RequestTopology(request_id, RequestKind.MOVE, node.node_id, why, tokens=wanted)


def plan_change_replication(
    metadata: ClusterMetadata,
    keyspace: str,
    replication: Mapping[str, int],
    strategy: str | None,
    force: bool,
    request_id: str,
    why: str = "",
) -> RequestReplication:
    """The event of `change_replication`; the strategy is what the options of `replication` belong to."""
    found = metadata.keyspace(keyspace)
    if found.placement is not PlacementKind.RING:
        raise Rejected(
            Code.UNSUPPORTED_PLACEMENT,
            f"keyspace {keyspace!r} is placed by tablets, whose replication cannot be changed yet: create a keyspace "
            "with the other replication and copy its tables there",
        )
    return RequestReplication(
        request_id=request_id,
        keyspace=keyspace,
        strategy=strategy_of(replication, strategy),
        replication=dict(replication),
        force=force,
        why=why,
    )


def plan_cancel_request(metadata: ClusterMetadata, request: str, why: str = "") -> CancelRequest:
    """The event of `cancel_request`."""
    return CancelRequest(open_request(metadata, request).request_id, why)


def plan_pause_request(metadata: ClusterMetadata, request: str, why: str = "") -> PauseRequest:
    """The event of `pause_request`."""
    return PauseRequest(open_request(metadata, request).request_id, why)


def plan_resume_request(metadata: ClusterMetadata, request: str) -> ResumeRequest:
    """The event of `resume_request`."""
    return ResumeRequest(open_request(metadata, request).request_id)


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
        raise Rejected(Code.UNKNOWN_REQUEST, f"{said!r} has several open requests: name one of them, {ids}")
    if said in metadata.directory.by_name or said in metadata.schema.keyspaces:
        what = "node" if said in metadata.directory.by_name else "keyspace"
        raise Rejected(Code.UNKNOWN_REQUEST, f"{what} {said!r} has no open request: see `epochlake request list`")
    raise Rejected(
        Code.UNKNOWN_REQUEST,
        f"{said!r} is neither a topology request nor a node or keyspace of this cluster: see `epochlake request list`",
    )


def subjects(metadata: ClusterMetadata, request: TopologyRequest) -> tuple[str, ...]:
    """The names of what a request is about: its node first, then the one that this replaces; or its keyspace."""
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return (request.keyspace,)
    node = metadata.directory.nodes[request.node_id]
    if request.kind is RequestKind.REPLACE and node.replaces is not None:
        return (node.name, metadata.directory.nodes[node.replaces].name)
    return (node.name,)
