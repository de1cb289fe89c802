"""Events of the schema: keyspaces and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from epochlake.metastore.metadata.attachments import decode_replicas
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.model import Keyspace, NodeState, PlacementKind, Table
from epochlake.placement.tablet_map import NO_REPLICA, TabletMap

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

RESERVED_PREFIX = "_"
NOT_A_KEY = ("float", "double", "array", "map", "struct", "variant", "binary")
"""Types that cannot be hashed to one token by everybody, or that have several spellings of one value."""


class CreateKeyspace(Event, frozen=True):
    keyspace: Keyspace

    def check(self, metadata: ClusterMetadata) -> None:
        new = self.keyspace
        require_name("keyspace", new.name)
        require(new.name not in metadata.schema.keyspaces, "keyspace-exists", f"keyspace {new.name!r} exists already")
        require(
            new.placement is PlacementKind.TABLETS and new.strategy == "NetworkTopologyStrategy",
            "unsupported-placement",
            f"keyspace {new.name!r}: placement {new.placement} with {new.strategy} is not supported; "
            "use tablets with NetworkTopologyStrategy",
        )
        require(
            any(new.replication.values()),
            "no-replicas",
            f"keyspace {new.name!r} asks for no replica anywhere: give a replication such as dc1=3",
        )
        for datacenter, wanted in new.replication.items():
            here = [n for n in metadata.directory.nodes.values() if n.datacenter == datacenter]
            normal = sum(node.state is NodeState.NORMAL for node in here)
            joining = sum(node.state in (NodeState.NONE, NodeState.BOOTSTRAPPING) for node in here)
            require(wanted >= 0, "invalid-replication", f"{datacenter}={wanted}: a replication factor is 0 or more")
            require(
                wanted <= normal,
                "replication-too-high",
                f"keyspace {new.name!r} asks for {wanted} replicas in datacenter {datacenter!r}, which has {normal} "
                f"normal node(s)"
                + (f" and {joining} still joining: run `epochlake coordinator run --until-idle`" if joining else "")
                + ("" if joining else ": add nodes, or ask for less"),
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        keyspaces = dict(metadata.schema.keyspaces)
        keyspaces[self.keyspace.name] = msgspec.structs.replace(self.keyspace, epoch=epoch)
        schema = msgspec.structs.replace(metadata.schema, keyspaces=keyspaces, epoch=epoch)
        return msgspec.structs.replace(metadata, schema=schema)

    def summary(self) -> str:
        replication = ", ".join(f"{dc}={n}" for dc, n in self.keyspace.replication.items())
        return f"keyspace {self.keyspace.name} ({self.keyspace.placement}, {replication})"


class DropKeyspace(Event, frozen=True):
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        metadata.keyspace(self.name)
        tables = [t.full_name for t in metadata.schema.tables.values() if t.keyspace == self.name]
        require(not tables, "keyspace-not-empty", f"keyspace {self.name!r} has tables ({', '.join(tables)}): drop them")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        keyspaces = {name: k for name, k in metadata.schema.keyspaces.items() if name != self.name}
        schema = msgspec.structs.replace(metadata.schema, keyspaces=keyspaces, epoch=epoch)
        return msgspec.structs.replace(metadata, schema=schema)

    def summary(self) -> str:
        return f"keyspace {self.name} dropped"


class CreateTable(Event, frozen=True):
    """A table and where each of its tablets is stored. The map travels as the entry's attachment.

    Its replica tables were created before this is committed, so that from its first epoch on a replica table that is
    missing means a replica that was lost, never one that is empty.
    """

    table: Table
    tablet_count: int
    attachment: bytes

    def check(self, metadata: ClusterMetadata) -> None:
        table = self.table
        keyspace = metadata.keyspace(table.keyspace)
        require_name("table", table.name)
        require(
            table.full_name not in metadata.schema.by_name, "table-exists", f"table {table.full_name} exists already"
        )
        require(
            table.table_id not in metadata.schema.tables, "table-exists", f"table id {table.table_id} exists already"
        )
        _check_columns(table)
        replicas = decode_replicas(self.attachment)
        require(
            len(replicas) == self.tablet_count > 0 and self.tablet_count & (self.tablet_count - 1) == 0,
            "invalid-tablets",
            f"a table has 2^k tablets, not {self.tablet_count}",
        )
        _check_replicas(metadata, keyspace, replicas)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        table = msgspec.structs.replace(self.table, version=state_id, epoch=epoch)
        schema = msgspec.structs.replace(
            metadata.schema, tables={**metadata.schema.tables, table.table_id: table}, epoch=epoch
        )
        tablet_map = TabletMap.from_array(decode_replicas(self.attachment), epoch=epoch)
        tablets = msgspec.structs.replace(
            metadata.tablets, maps={**metadata.tablets.maps, table.table_id: tablet_map}, epoch=epoch
        )
        return msgspec.structs.replace(metadata, schema=schema, tablets=tablets)

    def summary(self) -> str:
        kind = "append-only, " if self.table.append_only else ""
        return f"table {self.table.full_name} ({kind}{self.tablet_count} tablets)"


class DropTable(Event, frozen=True):
    table_id: str
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, "stale-plan", f"{self.name} is another table by now")
        moving = sum(key[0] == self.table_id for key in metadata.tablets.transitions)
        require(
            not moving,
            "transition-in-the-way",
            f"{moving} tablets of {self.name} are in transition: wait, or run the coordinator until it is idle",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        tables = {key: table for key, table in metadata.schema.tables.items() if key != self.table_id}
        maps = {key: value for key, value in metadata.tablets.maps.items() if key != self.table_id}
        return msgspec.structs.replace(
            metadata,
            schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch),
            tablets=msgspec.structs.replace(metadata.tablets, maps=maps, epoch=epoch),
        )

    def summary(self) -> str:
        return f"table {self.name} dropped"


def _check_columns(table: Table) -> None:
    names = [column.name for column in table.columns]
    require(bool(names), "no-columns", f"table {table.full_name} has no column")
    lowered = [name.lower() for name in names]
    for name in names:
        require(lowered.count(name.lower()) == 1, "column-exists", f"table {table.full_name}: column {name!r} twice")
        require(
            not name.startswith(RESERVED_PREFIX),
            "reserved-name",
            f"column {name!r}: names that begin with '_' are kept for _token, _written_at, _deleted and their like",
        )
    by_name = {column.name: column for column in table.columns}
    require(
        bool(table.primary_key), "no-primary-key", f"table {table.full_name} needs a primary key: it gives the token"
    )
    require(
        len(set(table.primary_key)) == len(table.primary_key),
        "column-exists",
        f"table {table.full_name}: the primary key ({', '.join(table.primary_key)}) names a column twice",
    )
    for name in table.primary_key:
        column = by_name.get(name)
        require(
            column is not None,
            "unknown-column",
            f"primary key column {name!r} is not a column of {table.full_name} ({', '.join(names)})",
        )
        assert column is not None
        require(
            not column.type.lower().startswith(NOT_A_KEY),
            "invalid-key-type",
            f"column {name!r} of type {column.type} cannot be part of a primary key",
        )
        require(not column.nullable, "nullable-key", f"primary key column {name!r} must be declared as not nullable")


def _check_replicas(metadata: ClusterMetadata, keyspace: Keyspace, replicas: np.ndarray) -> None:
    directory = metadata.directory
    used = np.unique(replicas[replicas != NO_REPLICA])
    highest = int(used.max(initial=0))
    node_of = np.full(highest + 2, -1, dtype=np.int64)
    datacenters = sorted(keyspace.replication)
    datacenter_of = np.full(highest + 2, -1, dtype=np.int64)
    for volume in used.tolist():
        node = directory.node_of_volume.get(volume)
        require(
            node is not None and node.state is NodeState.NORMAL,
            "stale-plan",
            f"volume {volume} is not one of a normal node",
        )
        assert node is not None
        node_of[volume] = node.node_id
        if node.datacenter in datacenters:
            datacenter_of[volume] = datacenters.index(node.datacenter)
    owners = np.sort(np.where(replicas == NO_REPLICA, -1, node_of[replicas]), axis=1)
    doubled = (owners[:, 1:] == owners[:, :-1]) & (owners[:, 1:] != -1)
    require(not doubled.any(), "invalid-tablets", "a tablet has two replicas on one node")
    places = np.where(replicas == NO_REPLICA, -1, datacenter_of[replicas])
    for index, datacenter in enumerate(datacenters):
        wrong = np.flatnonzero((places == index).sum(axis=1) != keyspace.replication[datacenter])
        require(
            not len(wrong),
            "invalid-tablets",
            f"{len(wrong)} tablets do not have {keyspace.replication[datacenter]} replicas in {datacenter}",
        )
