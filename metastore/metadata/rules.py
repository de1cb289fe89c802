"""Placement rules of tables: which nodes may get replicas of their tablets, and which tables share no node.

Tags are strict: no event gives a replica to a node that lacks one. Keeping tables apart is a goal of the balancer,
which moves what lies together; nothing is refused for it, or two tables that are everywhere could never be parted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlake.metastore.metadata.model import Node, Table, TableId

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


def has_tags(table: Table, node: Node) -> bool:
    return set(table.options.tags) <= set(node.tags)


def kept_apart(metadata: ClusterMetadata, table: Table) -> list[TableId]:
    """The tables with tablets that a table asks to share no node with."""
    return [key for key in table.options.apart_from if key in metadata.tablets.maps]
