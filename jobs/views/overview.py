"""A cluster at a glance, from the metadata that is known: nobody is asked."""

from __future__ import annotations

import msgspec
from epochlake.jobs.views.nodes import node_rows
from epochlake.jobs.views.schema import TableRow, table_rows
from epochlake.jobs.views.status import NodeStatus
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.showing import Listing, Shown


class Overview(Shown, msgspec.Struct, frozen=True):
    """What a notebook shows of an open cluster."""

    cluster: str
    epoch: int
    root: str
    nodes: Listing[NodeStatus]
    tables: Listing[TableRow]


def overview(root: str, storage: Storage, metadata: ClusterMetadata) -> Overview:
    """A cluster whose metadata is known."""
    return Overview(metadata.identity.name, metadata.epoch, root, node_rows(storage, metadata), table_rows(metadata))
