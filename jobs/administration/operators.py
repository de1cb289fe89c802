"""What operators say of nodes and want of tables: maintenance, weights and tags; sizes of tablets, and their places.

Nothing moves when it is said. The coordinator keeps to it from the next plan on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import msgspec
from epochlake.jobs.administration.changes import Options, in_words
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterNode, AlterTable, SetMaintenance
from epochlake.metastore.metadata.model import TabletOptions
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


class Wanted(msgspec.Struct, frozen=True):
    """What is to change of a table's options; None: stays. `max_count` 0 and `target_bytes` 0: the default again.

    `apart_from` names tables, as `keyspace.table`.
    """

    target_bytes: int | None = None
    min_count: int | None = None
    max_count: int | None = None
    tags: Sequence[str] | None = None
    apart_from: Sequence[str] | None = None


@in_words
def set_maintenance(cluster: Cluster, name: str, on: bool, **options: Unpack[Options]) -> Committed:
    """Put a node into maintenance, where it keeps its replicas and gets no new ones, or take it out."""
    why = options.get("reason", "")
    return cluster.commit(lambda metadata: plan_set_maintenance(metadata, name, on, why), **options)


@in_words
def alter_node(
    cluster: Cluster,
    name: str,
    *,
    weight: float | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> Committed:
    """Give a node another weight (a factor on the capacity of its volumes) or other tags, all of them; None: stays.

    Raises Rejected for an unknown node, InvalidRequest for a weight that is not finite.
    """
    return cluster.commit(lambda metadata: plan_alter_node(metadata, name, weight, tags), **options)


@in_words
def alter_table(cluster: Cluster, full_name: str, changes: Wanted, **options: Unpack[Options]) -> Committed:
    """Change how the tablets of a table are sized, and on which nodes they may be."""
    return cluster.commit(lambda metadata: plan_alter_table(metadata, full_name, changes), **options)


def plan_set_maintenance(metadata: ClusterMetadata, name: str, on: bool, why: str = "") -> SetMaintenance:
    """The event of `set_maintenance`."""
    return SetMaintenance(metadata.node(name).node_id, on, why)


def plan_alter_node(
    metadata: ClusterMetadata, name: str, weight: float | None, tags: Sequence[str] | None
) -> AlterNode:
    """The event of `alter_node`. Raises InvalidRequest for a weight that the log could not hold."""
    if weight is not None and not math.isfinite(weight):
        raise InvalidRequest(f"node {name!r} cannot have the weight {weight}: give a number above 0")
    return AlterNode(metadata.node(name).node_id, weight, None if tags is None else tuple(tags))


def plan_alter_table(metadata: ClusterMetadata, full_name: str, changes: Wanted) -> AlterTable:
    """The event of `alter_table`."""
    table = metadata.table(full_name)
    now = table.options
    apart = changes.apart_from
    options = TabletOptions(
        target_bytes=now.target_bytes if changes.target_bytes is None else changes.target_bytes or None,
        min_count=now.min_count if changes.min_count is None else changes.min_count,
        max_count=now.max_count if changes.max_count is None else changes.max_count or None,
        tags=now.tags if changes.tags is None else tuple(sorted(set(changes.tags))),
        apart_from=now.apart_from
        if apart is None
        else tuple(sorted({metadata.table(other).table_id for other in apart})),
    )
    return AlterTable(table.table_id, table.full_name, options)
