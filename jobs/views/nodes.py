"""Nodes as lists show them, and a node in full."""

from __future__ import annotations

import msgspec
from epochlake.jobs.administration.topology_changes import subjects
from epochlake.jobs.views.requests import RequestRow, request_row
from epochlake.jobs.views.status import NodeStatus, node_statuses
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.showing import Listing, Shown


class NodeShown(Shown, msgspec.Struct, frozen=True):
    """A node in full: how it is, the tokens that it owns, and the open requests that it takes part in."""

    node: NodeStatus
    tokens: tuple[int, ...]
    requests: tuple[RequestRow, ...]
    epoch: int


def node_rows(storage: Storage, metadata: ClusterMetadata, *, everything: bool = False) -> Listing[NodeStatus]:
    """The nodes by number, or with `everything` those that have left as well; no volume is asked."""
    return Listing(node for node in node_statuses(storage, metadata) if everything or node.state != "left")


def shown_node(storage: Storage, metadata: ClusterMetadata, name: str) -> NodeShown:
    """A node by its name. Raises Rejected for one that there is not."""
    node = metadata.node(name)
    requests = [request for request in metadata.open_requests() if name in subjects(metadata, request)]
    return NodeShown(
        node=next(found for found in node_statuses(storage, metadata) if found.node_id == node.node_id),
        tokens=node.tokens,
        requests=tuple(request_row(metadata, request) for request in requests),
        epoch=node.epoch,
    )
