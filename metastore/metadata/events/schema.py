"""Events of the schema: keyspaces and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from epochlake.metastore.metadata.attachments import decode_replicas
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.events.plans import with_names
from epochlake.metastore.metadata.events.recorded_placements import check_recorded, placed, recorded
from epochlake.metastore.metadata.events.replicas import GOING, require_enough_nodes, require_replication
from epochlake.metastore.metadata.events.table_checks import require_checks
from epochlake.metastore.metadata.events.table_generated import require_generated
from epochlake.metastore.metadata.events.table_lifetimes import require_lifetimes
from epochlake.metastore.metadata.features import GENERATED_COLUMNS, INITIAL_CHECKS, TIME_TO_LIVE
from epochlake.metastore.metadata.model import Keyspace, NodeState, PlacementKind, Table
from epochlake.metastore.metadata.replication import replication_setting
from epochlake.metastore.metadata.ring_state import ring_state, with_ring_state
from epochlake.placement.rejections import Code
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, replication_of
from epochlake.placement.showing import plural
from epochlake.placement.tablets.tablet_map import NO_REPLICA, TabletMap

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata
    from epochlake.metastore.metadata.components.upgrade import Described

_GOING = (NodeState.DECOMMISSIONING, NodeState.REMOVING)
RESERVED_PREFIX = "_"
NOT_A_KEY = ("float", "double", "array", "map", "struct", "variant", "binary")
"""Types that cannot be hashed to one token by everybody, or that have several spellings of one value."""


class CreateKeyspace(Event, frozen=True):
    """A keyspace, whose placement never changes its kind.

    One on the ring is placed by its strategy on the ring of this epoch. What the strategy gives then is recorded by the
    committer in the attachment (recorded_placements.py), so that a strategy that is mended later changes no replay.
    Nothing is recorded when another keyspace has the same setting already, which shares its placement. Entries from
    before there were attachments have none: of these the strategy tells.
    """

    keyspace: Keyspace
    attachment: bytes = b""

    def builds(self, described: Described) -> bool:
        said = next((one for one in described.keyspaces if one.name == self.keyspace.name), None)
        return said is not None and (said.placement, dict(said.replication)) == (
            self.keyspace.placement,
            self.keyspace.replication,
        )

    def check(self, metadata: ClusterMetadata) -> None:
        new = self.keyspace
        require_name("keyspace", new.name)
        require(
            new.name not in metadata.schema.keyspaces, Code.KEYSPACE_EXISTS, f"keyspace {new.name!r} exists already"
        )
        require(
            new.placement is PlacementKind.RING or new.strategy == NETWORK_TOPOLOGY,
            Code.UNSUPPORTED_PLACEMENT,
            f"keyspace {new.name!r}: placement {new.placement} with {new.strategy} is not supported",
            hint=f"Use tablets with {NETWORK_TOPOLOGY}, or the ring",
        )
        require(
            new.before is msgspec.UNSET,
            Code.INVALID_EVENT,
            f"keyspace {new.name!r} is new: it had no replication before",
        )
        require(
            new.former is new.named is msgspec.UNSET,
            Code.INVALID_EVENT,
            f"keyspace {new.name!r} is new: it had no name before",
        )
        setting = require_replication(new.name, new.strategy, new.replication)
        require_enough_nodes(metadata, new.name, setting)
        if new.placement is PlacementKind.RING:
            _check_ring(metadata, new.name)
            if self.attachment:
                check_recorded(ring_state(metadata), setting, self.attachment)
            return
        require(
            not self.attachment, Code.INVALID_EVENT, f"keyspace {new.name!r} is not on the ring: it has no placement"
        )

    def completed(self, metadata: ClusterMetadata) -> CreateKeyspace:
        if self.attachment or self.keyspace.placement is not PlacementKind.RING:
            return self
        setting = replication_of(self.keyspace.strategy, self.keyspace.replication)
        if setting in metadata.rings.placements:
            return self
        return msgspec.structs.replace(self, attachment=recorded(ring_state(metadata), setting))

    def as_asked(self) -> CreateKeyspace:
        return CreateKeyspace(self.keyspace)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        keyspaces = dict(metadata.schema.keyspaces)
        keyspaces[self.keyspace.name] = msgspec.structs.replace(self.keyspace, epoch=epoch)
        schema = msgspec.structs.replace(metadata.schema, keyspaces=keyspaces, epoch=epoch)
        metadata = msgspec.structs.replace(metadata, schema=schema)
        if self.keyspace.placement is not PlacementKind.RING:
            return metadata
        state, setting = ring_state(metadata), replication_setting(metadata, self.keyspace.name)
        if setting in state.placements:
            return metadata
        placements = {**state.placements, setting: placed(state, setting, self.attachment)}
        return with_ring_state(metadata, msgspec.structs.replace(state, placements=placements), epoch)

    def summary(self) -> str:
        replication = ", ".join(f"{dc}={n}" for dc, n in self.keyspace.replication.items())
        return f"keyspace {self.keyspace.name} ({self.keyspace.placement}, {replication})"


class DropKeyspace(Event, frozen=True):
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        metadata.keyspace(self.name)
        tables = [t.full_name for t in metadata.schema.tables.values() if t.keyspace == self.name]
        require(
            not tables,
            Code.KEYSPACE_NOT_EMPTY,
            f"keyspace {self.name!r} has tables ({', '.join(tables)})",
            hint="Drop them",
        )
        for request in metadata.open_requests():
            require(
                request.keyspace != self.name,
                Code.REQUEST_IN_THE_WAY,
                f"request {request.request_id} changes the replication of keyspace {self.name!r} ({request.state})",
                hint="Wait for it, or cancel it",
            )
        require_no_operation_with(metadata, self.name)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        keyspaces = {name: k for name, k in metadata.schema.keyspaces.items() if name != self.name}
        schema = msgspec.structs.replace(metadata.schema, keyspaces=keyspaces, epoch=epoch)
        metadata = msgspec.structs.replace(metadata, schema=schema)
        state = ring_state(metadata)
        used = set(state.keyspaces.values())
        placements = {setting: now for setting, now in state.placements.items() if setting in used}
        return with_ring_state(metadata, msgspec.structs.replace(state, placements=placements), epoch)

    def summary(self) -> str:
        return f"keyspace {self.name} dropped"


class CreateTable(Event, frozen=True):
    """A table and where each of its tablets is stored. The map travels as the entry's attachment.

    One of a ring keyspace has neither tablets nor a map: where its rows are is the keyspace's to say.

    Its replica tables were created before this is committed, so that from its first epoch on a replica table that is
    missing means a replica that was lost, never one that is empty.
    """

    table: Table
    tablet_count: int
    attachment: bytes = b""

    def features_used(self) -> tuple[str, ...]:
        # A release without it reads the entry, and does not say since when its checks hold.
        checks = (INITIAL_CHECKS,) if self.table.checked else ()
        generated = (GENERATED_COLUMNS,) if self.table.generated else ()
        return (*self.features_of_kind(), *checks, *((TIME_TO_LIVE,) if self.table.lifetimes else ()), *generated)

    def builds(self, described: Described) -> bool:
        return any(one.name == self.table.full_name for one in described.tables)

    def check(self, metadata: ClusterMetadata) -> None:
        table = self.table
        keyspace = metadata.keyspace(table.keyspace)
        require_name("table", table.name)
        require(
            table.full_name not in metadata.schema.by_name, Code.TABLE_EXISTS, f"table {table.full_name} exists already"
        )
        require(
            table.table_id not in metadata.schema.tables, Code.TABLE_EXISTS, f"table id {table.table_id} exists already"
        )
        require(
            table.stored_in is msgspec.UNSET,
            Code.INVALID_EVENT,
            f"table {table.full_name} is new: its replicas are in the directory of its keyspace",
        )
        require(
            all(column.fields is msgspec.UNSET for column in table.columns),
            Code.INVALID_EVENT,
            f"table {table.full_name} is new: nothing is said of the fields of its columns",
        )
        check_table_columns(table)
        # Nothing is known of it before this event: each of its checks is a new one.
        require_checks(msgspec.structs.replace(table, checks=msgspec.UNSET), table.numbered, table.checked)
        require_lifetimes(table, table.lifetimes)
        require_generated(table, table.numbered, new=True)
        if keyspace.placement is PlacementKind.RING:
            require(
                self.tablet_count == 0 and not self.attachment,
                Code.INVALID_TABLETS,
                f"keyspace {keyspace.name!r} is on the ring: its tables have no tablets",
            )
            _require_no_operation_on(metadata, keyspace.name)
            return
        replicas = decode_replicas(self.attachment)
        require(
            len(replicas) == self.tablet_count > 0 and self.tablet_count & (self.tablet_count - 1) == 0,
            Code.INVALID_TABLETS,
            f"a table has 2^k tablets, not {self.tablet_count}",
        )
        check_replicas(metadata, keyspace, replicas)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        table = msgspec.structs.replace(self.table, version=state_id, epoch=epoch)
        if table.checked:
            # It has no row yet, and gets none that was not judged by them.
            checks = tuple(msgspec.structs.replace(one, epoch=epoch, validated=epoch) for one in table.checked)
            table = msgspec.structs.replace(table, checks=checks)
        schema = msgspec.structs.replace(
            metadata.schema, tables={**metadata.schema.tables, table.table_id: table}, epoch=epoch
        )
        if not self.attachment:
            return msgspec.structs.replace(metadata, schema=schema)
        tablet_map = TabletMap.from_array(decode_replicas(self.attachment), epoch=epoch)
        tablets = msgspec.structs.replace(
            metadata.tablets, maps={**metadata.tablets.maps, table.table_id: tablet_map}, epoch=epoch
        )
        return msgspec.structs.replace(metadata, schema=schema, tablets=tablets)

    def summary(self) -> str:
        kind = "append-only, " if self.table.append_only else ""
        where = plural(self.tablet_count, "tablet") if self.attachment else "on the ring"
        names = ", ".join(check.name for check in self.table.checked)
        return f"table {self.table.full_name} ({kind}{where})" + (f", checked by {names}" if names else "")


class DropTable(Event, frozen=True):
    table_id: str
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        moving = sum(key[0] == self.table_id for key in metadata.tablets.transitions)
        require(
            not moving,
            Code.TRANSITION_IN_THE_WAY,
            f"{moving} tablets of {self.name} are in transition",
            hint="Wait, or run the coordinator until it is idle",
        )
        if metadata.is_on_ring(self.table_id):
            _require_no_operation_on(metadata, table.keyspace)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        tables = {key: table for key, table in metadata.schema.tables.items() if key != self.table_id}
        if self.table_id not in metadata.tablets.maps:
            schema = msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch)
            return msgspec.structs.replace(metadata, schema=schema)
        maps = {key: value for key, value in metadata.tablets.maps.items() if key != self.table_id}
        return msgspec.structs.replace(
            metadata,
            schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch),
            tablets=msgspec.structs.replace(metadata.tablets, maps=maps, epoch=epoch),
        )

    def summary(self) -> str:
        return f"table {self.name} dropped"


def _check_ring(metadata: ClusterMetadata, name: str) -> None:
    """That the ring is at rest, and that every node has its part of it."""
    operation = next(iter(metadata.rings.operations.values()), None)
    require(
        operation is None,
        Code.OPERATION_IN_THE_WAY,
        f"keyspace {name!r} cannot be made while ranges change hands: {with_names(metadata, str(operation))} "
        "is in flight",
        hint="Wait for it",
    )
    for request in metadata.open_requests():
        node = metadata.directory.nodes.get(request.node_id)
        require(
            request.kind not in GOING or request.started_epoch is None or node is None or not node.tokens,
            Code.REQUEST_IN_THE_WAY,
            f"keyspace {name!r} cannot be made while node {node.name if node else ''!r} is on its way out "
            f"without a plan of its ranges ({request.kind} {request.request_id})",
            hint="Wait for it, or cancel it",
        )
    staying = [node for node in metadata.directory.members() if node.state not in _GOING]
    without = sorted(node.name for node in staying if not node.tokens)
    require(
        not without,
        Code.NO_TOKENS,
        f"keyspace {name!r} cannot be on the ring: {', '.join(without)} own(s) no tokens",
        hint="Give them some with `epochlake node move`, or let them leave",
    )


def require_no_operation_with(metadata: ClusterMetadata, keyspace: str) -> None:
    """That no operation in flight counts on the placement of a ring keyspace, whether it changes it or not."""
    if metadata.schema.keyspaces[keyspace].placement is not PlacementKind.RING:
        return
    setting = replication_setting(metadata, keyspace)
    for operation in metadata.rings.operations.values():
        require(
            setting not in operation.deltas,
            Code.OPERATION_IN_THE_WAY,
            f"{with_names(metadata, str(operation))} is in flight, and was planned with keyspace {keyspace!r}",
            hint="Wait for it, or cancel it",
        )


def _require_no_operation_on(metadata: ClusterMetadata, keyspace: str) -> None:
    """That no operation in flight changes where the rows of a ring keyspace are."""
    if metadata.schema.keyspaces[keyspace].placement is not PlacementKind.RING:
        return
    setting = replication_setting(metadata, keyspace)
    for operation in metadata.rings.operations.values():
        changes = any(len(d.reads.starts) or len(d.writes.starts) for d in operation.deltas.get(setting, ()))
        require(
            not changes,
            Code.OPERATION_IN_THE_WAY,
            f"{with_names(metadata, str(operation))} is in flight, and changes where the rows of keyspace "
            f"{keyspace!r} are",
            hint="Wait for it, or cancel it",
        )


def check_table_columns(table: Table) -> None:
    """That columns and key are such that a table may have them. Raises Rejected."""
    names = [column.name for column in table.columns]
    require(bool(names), Code.NO_COLUMNS, f"table {table.full_name} has no column")
    lowered = [name.lower() for name in names]
    for name in names:
        require(lowered.count(name.lower()) == 1, Code.COLUMN_EXISTS, f"table {table.full_name}: column {name!r} twice")
        require(
            not name.startswith(RESERVED_PREFIX),
            Code.RESERVED_NAME,
            f"column {name!r}: names that begin with '_' are kept for _token, _written_at, _deleted and their like",
        )
    by_name = {column.name: column for column in table.columns}
    require(
        bool(table.primary_key), Code.NO_PRIMARY_KEY, f"table {table.full_name} needs a primary key: it gives the token"
    )
    require(
        len(set(table.primary_key)) == len(table.primary_key),
        Code.COLUMN_EXISTS,
        f"table {table.full_name}: the primary key ({', '.join(table.primary_key)}) names a column twice",
    )
    for name in table.primary_key:
        column = by_name.get(name)
        require(
            column is not None,
            Code.UNKNOWN_COLUMN,
            f"primary key column {name!r} is not a column of {table.full_name} ({', '.join(names)})",
        )
        assert column is not None
        require(
            not column.type.lower().startswith(NOT_A_KEY),
            Code.INVALID_KEY_TYPE,
            f"column {name!r} of type {column.type} cannot be part of a primary key",
            hint="A key has whole numbers, decimals, texts, booleans, days and moments",
        )
        require(not column.nullable, Code.NULLABLE_KEY, f"primary key column {name!r} must be declared as not nullable")


def check_replicas(
    metadata: ClusterMetadata, keyspace: Keyspace, replicas: np.ndarray, *, counted: bool = True, hint: str = ""
) -> None:
    """That tablets, (tablets, replicas), are on volumes of normal nodes as the keyspace asks for. Raises Rejected.

    Unless `counted`, single tablets may have more or fewer replicas in a datacenter, as somebody has said by hand; that
    none has as many as the keyspace asks for is the doing of nobody. `hint`: what to do where the numbers are others.
    """
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
            Code.STALE_PLAN,
            f"volume {volume} is not one of a normal node",
        )
        assert node is not None
        node_of[volume] = node.node_id
        if node.datacenter in datacenters:
            datacenter_of[volume] = datacenters.index(node.datacenter)
    owners = np.sort(np.where(replicas == NO_REPLICA, -1, node_of[replicas]), axis=1)
    doubled = (owners[:, 1:] == owners[:, :-1]) & (owners[:, 1:] != -1)
    require(not doubled.any(), Code.INVALID_TABLETS, "a tablet has two replicas on one node")
    places = np.where(replicas == NO_REPLICA, -1, datacenter_of[replicas])
    elsewhere = ((replicas != NO_REPLICA) & (places == -1)).any(axis=1)
    require(
        not datacenters or not elsewhere.any(),
        Code.INVALID_TABLETS,
        f"{elsewhere.sum()} tablets have replicas in other datacenters than {', '.join(datacenters)}",
        hint=hint,
    )
    for index, datacenter in enumerate(datacenters):
        here = (places == index).sum(axis=1)
        wrong = np.flatnonzero(here != keyspace.replication[datacenter])
        if not counted and len(wrong) < len(here):
            continue
        require(
            not len(wrong),
            Code.INVALID_TABLETS,
            f"{len(wrong)} tablets do not have {keyspace.replication[datacenter]} replicas in {datacenter}",
            hint=hint,
        )
