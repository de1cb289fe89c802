"""Events by which operators say what is true of nodes and wanted of tables: the balancer and the events keep to it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.hours import parse_hours
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.model import CompactionOptions, Node, NodeState, PlacementKind, Table, TabletOptions
from epochlake.metastore.metadata.rules import has_tags
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

MOST_WEIGHT = 1000.0


class SetMaintenance(Event, frozen=True):
    """A node goes into maintenance, where it keeps its replicas and gets no new ones, or comes out of it."""

    node_id: int
    on: bool
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        node = _member(metadata, self.node_id)
        state = "in" if node.maintenance else "not in"
        require(node.maintenance != self.on, Code.NOTHING_TO_DO, f"node {node.name!r} is {state} maintenance already")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        node = metadata.directory.nodes[self.node_id]
        changed = msgspec.structs.replace(node, maintenance=self.on)
        return msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(changed, epoch=epoch))

    def summary(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"node {self.node_id} {'goes into' if self.on else 'comes out of'} maintenance{why}"


class AlterNode(Event, frozen=True):
    """A node gets another weight for the balancer, or other tags for placement rules; None: as it is."""

    node_id: int
    weight: float | None = None
    tags: tuple[str, ...] | None = None

    def check(self, metadata: ClusterMetadata) -> None:
        node = _member(metadata, self.node_id)
        require(
            self.weight is None or (math.isfinite(self.weight) and 0 < self.weight <= MOST_WEIGHT),
            Code.INVALID_WEIGHT,
            f"node {node.name!r} cannot have the weight {self.weight}",
            hint=f"Give one above 0 and up to {MOST_WEIGHT:g}; a node that should get nothing is put into maintenance",
        )
        for tag in self.tags or ():
            require_name("tag", tag)
        after = self._altered(node)
        require(
            (after.weight, after.tags) != (node.weight, node.tags),
            Code.NOTHING_TO_DO,
            f"node {node.name!r} has this weight and these tags already",
        )
        if self.tags is not None:
            for table in metadata.schema.tables.values():
                if has_tags(table, node) and not has_tags(table, after):
                    require_enough_tagged(metadata, table, after)

    def _altered(self, node: Node) -> Node:
        return msgspec.structs.replace(
            node,
            weight=node.weight if self.weight is None else self.weight,
            tags=node.tags if self.tags is None else tuple(sorted(set(self.tags))),
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        changed = self._altered(metadata.directory.nodes[self.node_id])
        return msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(changed, epoch=epoch))

    def summary(self) -> str:
        weight = [] if self.weight is None else [f"weight {self.weight:g}"]
        tags = [] if self.tags is None else [f"tags {', '.join(sorted(self.tags)) or 'none'}"]
        return f"node {self.node_id}: {'; '.join(weight + tags)}"


class AlterTable(Event, frozen=True):
    """How the tablets of a table are sized, where they may go, and how it is compacted, from now on.

    `compaction`: None, where nothing of it changes. What has no tablets keeps its `options`.
    """

    table_id: str
    name: str
    options: TabletOptions
    compaction: CompactionOptions | None = None

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        if self.compaction is not None:
            _require_compaction(table, self.compaction)
            if self.options == table.options:
                return
        placement = metadata.schema.keyspaces[table.keyspace].placement
        require(
            placement is PlacementKind.TABLETS,
            Code.UNSUPPORTED_PLACEMENT,
            f"table {self.name} is placed on the {placement}: it has no tablets to size or to place",
        )
        require(self.options != table.options, Code.NOTHING_TO_DO, f"table {self.name} has these options already")
        _require_sizes(self.name, self.options)
        for tag in self.options.tags:
            require_name("tag", tag)
        for other in self.options.apart_from:
            require(
                other != self.table_id and other in metadata.tablets.maps,
                Code.UNKNOWN_TABLE,
                f"table {self.name} cannot be kept apart from {other!r}",
                hint="Name another table with tablets, by its id",
            )
        require_enough_tagged(metadata, msgspec.structs.replace(table, options=self.options))
        if self.options.apart_from:
            _require_partable(metadata, table)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        altered = msgspec.structs.replace(metadata.schema.tables[self.table_id], options=self.options, epoch=epoch)
        if self.compaction is not None:
            altered = msgspec.structs.replace(altered, compaction=self.compaction)
        tables = {**metadata.schema.tables, self.table_id: altered}
        return msgspec.structs.replace(
            metadata, schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch)
        )

    def summary(self) -> str:
        return f"table {self.name} altered"


def require_enough_tagged(metadata: ClusterMetadata, table: Table, changed: Node | None = None) -> None:
    """That in every datacenter as many normal nodes have a table's tags as it keeps replicas there.

    `changed`: a node as it is going to be.
    """
    if not table.options.tags:
        return
    tagged: dict[str, int] = defaultdict(int)
    for known in metadata.directory.nodes.values():
        node = changed if changed is not None and changed.node_id == known.node_id else known
        tagged[node.datacenter] += node.state is NodeState.NORMAL and has_tags(table, node)
    for datacenter, wanted in metadata.schema.keyspaces[table.keyspace].replication.items():
        require(
            tagged[datacenter] >= wanted,
            Code.RULE_IMPOSSIBLE,
            f"table {table.full_name} keeps {wanted} replicas in {datacenter}, where {tagged[datacenter]} normal "
            f"node(s) would have the tags {', '.join(table.options.tags)}",
            hint="Tag more nodes first, or ask for fewer tags",
        )


def _require_partable(metadata: ClusterMetadata, table: Table) -> None:
    """That every rack has a node for each side: tablets do not leave their racks to keep apart from others."""
    for datacenter, wanted in metadata.schema.keyspaces[table.keyspace].replication.items():
        normal = [n for n in metadata.directory.nodes.values() if n.state is NodeState.NORMAL]
        racks = Counter(node.rack for node in normal if node.datacenter == datacenter and wanted)
        alone = sorted(rack for rack, nodes in racks.items() if nodes == 1)
        require(
            not alone,
            Code.RULE_IMPOSSIBLE,
            f"table {table.full_name} cannot be kept apart: rack {', '.join(alone)} of {datacenter} has one "
            "node only, and its replicas stay in their racks",
            hint="Add a node there first",
        )


def _member(metadata: ClusterMetadata, node_id: int) -> Node:
    node = metadata.directory.nodes.get(node_id)
    require(node is not None, Code.UNKNOWN_NODE, f"there is no node number {node_id}")
    assert node is not None
    require(node.state is not NodeState.LEFT, Code.WRONG_STATE, f"node {node.name!r} has left")
    return node


def _require_compaction(table: Table, options: CompactionOptions) -> None:
    require(options != table.compacting, Code.NOTHING_TO_DO, f"table {table.full_name} is compacted like that already")
    grace = options.tombstone_grace_seconds
    require(
        grace is None or 0 <= grace < float("inf"),
        Code.INVALID_EVENT,
        f"deletes of table {table.full_name} cannot be remembered for {grace} seconds",
        hint="Give 0 or more",
    )
    try:
        parse_hours(options.hours or "")
    except ValueError as error:
        require(False, Code.INVALID_EVENT, f"table {table.full_name} cannot be compacted so: {error}")


def _require_sizes(name: str, options: TabletOptions) -> None:
    require(
        options.target_bytes is None or options.target_bytes > 0,
        Code.INVALID_SIZE,
        f"table {name}: a target of {options.target_bytes} bytes for a tablet cannot be",
    )
    for count in (options.min_count, options.max_count):
        require(
            count is None or (count > 0 and count & (count - 1) == 0),
            Code.INVALID_TABLETS,
            f"table {name}: a number of tablets is a power of two, not {count}",
        )
    require(
        options.max_count is None or options.min_count <= options.max_count,
        Code.INVALID_TABLETS,
        f"table {name} cannot have at least {options.min_count} tablets and at most {options.max_count}",
    )
