"""What operators say of nodes and want of tables: maintenance, weights and tags; sizes of tablets, their places, and
how tables are compacted.

Nothing moves when it is said. The coordinator keeps to it from the next plan on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

import msgspec
from epochlake.jobs.administration.durations import require_kept_for
from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterNode, AlterTable, SetMaintenance
from epochlake.metastore.metadata.model import CompactionOptions, TabletOptions
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


class OptionChanges(msgspec.Struct, frozen=True):
    """What is to change of a table's options; None: stays. `max_count` 0 and `target_bytes` 0: the default again.

    `apart_from` names tables, as `keyspace.table`. `compaction`: all that is said of it from now on.
    """

    target_bytes: int | None = None
    min_count: int | None = None
    max_count: int | None = None
    tags: Sequence[str] | None = None
    apart_from: Sequence[str] | None = None
    # Not among the words of a request that says nothing of it: they stay what they always were.
    compaction: CompactionOptions | msgspec.UnsetType = msgspec.UNSET


def set_maintenance(cluster: Cluster, name: str, on: bool, **options: Unpack[Options]) -> Committed:
    """Put a node into maintenance, where it keeps its replicas and gets no new ones, or take it out."""
    return cluster.commit(NodeMaintenance(name, on), **options)


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
    return cluster.commit(NodeAlteration(name, weight=weight, tags=tags), **options)


class NodeMaintenance(Change[SetMaintenance], frozen=True):
    """What `set_maintenance` commits."""

    verb: ClassVar[str] = "set maintenance"
    name: str
    on: bool

    def plan(self, metadata: ClusterMetadata, call: Call) -> SetMaintenance:
        return SetMaintenance(metadata.node(self.name).node_id, self.on, call.reason)


class NodeAlteration(Change[AlterNode], frozen=True):
    """What `alter_node` commits."""

    verb: ClassVar[str] = "alter node"
    name: str
    weight: float | None = None
    tags: Sequence[str] | None = None

    def plan(self, metadata: ClusterMetadata, call: Call) -> AlterNode:
        if self.weight is not None and not math.isfinite(self.weight):
            # The log could not hold it.
            raise InvalidRequest(
                f"node {self.name!r} cannot have the weight {self.weight}", hint="Give a number above 0"
            )
        tags = None if self.tags is None else tuple(self.tags)
        return AlterNode(metadata.node(self.name).node_id, self.weight, tags)


class TableAlteration(Change[AlterTable], frozen=True):
    """What `alter_table` commits where no column changes."""

    verb: ClassVar[str] = "alter table"
    full_name: str
    changes: OptionChanges

    def plan(self, metadata: ClusterMetadata, call: Call) -> AlterTable:
        table = metadata.table(self.full_name)
        now, wanted = table.options, self.changes
        apart = wanted.apart_from
        options = TabletOptions(
            target_bytes=now.target_bytes if wanted.target_bytes is None else wanted.target_bytes or None,
            min_count=now.min_count if wanted.min_count is None else wanted.min_count,
            max_count=now.max_count if wanted.max_count is None else wanted.max_count or None,
            tags=now.tags if wanted.tags is None else tuple(sorted(set(wanted.tags))),
            apart_from=now.apart_from
            if apart is None
            else tuple(sorted({metadata.table(other).table_id for other in apart})),
        )
        said = None if wanted.compaction is msgspec.UNSET else wanted.compaction
        grace = None if said is None else said.tombstone_grace_seconds
        # What the table has stays, also what was said before there was a limit.
        if grace is not None and grace != table.compacting.tombstone_grace_seconds:
            require_kept_for(f"deletes of table {self.full_name}", grace)
        return AlterTable(table.table_id, table.full_name, options, said)
