"""Keyspaces and tables as lists show them, and a table in full."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Column, CompactionOptions, DroppedColumn, DroppedField, Table
from epochlake.metastore.metadata.struct_fields import places, tree_of
from epochlake.placement.column_ddl import quoted
from epochlake.placement.showing import Listing, Shown
from epochlake.placement.tablets.tablet_map import NO_REPLICA


class KeyspaceRow(Shown, msgspec.Struct, frozen=True):
    """A keyspace; `replication` is replicas by datacenter, or `replication_factor` of SimpleStrategy."""

    name: str
    placement: str
    strategy: str
    replication: dict[str, int]
    tables: int
    epoch: int


class TableRow(Shown, msgspec.Struct, frozen=True):
    """A table in a list; `in_transition` of its `tablets` are on their way. On the ring `tablets` are ranges."""

    name: str
    table_id: str
    placement: str
    append_only: bool
    primary_key: tuple[str, ...]
    columns: int
    tablets: int
    in_transition: int
    epoch: int


class TableOptions(Shown, msgspec.Struct, frozen=True):
    """How tablets are sized, where they may go, and how the table is compacted; null: as everywhere, or no limit.

    `history_seconds`: how long what compaction has replaced is kept for reads as of an earlier time.
    """

    target_bytes: int | None
    min_tablets: int
    max_tablets: int | None
    tags: tuple[str, ...]
    apart_from: tuple[str, ...]
    compaction: CompactionOptions = CompactionOptions()
    history_seconds: float = 0.0


class FieldShown(Shown, msgspec.Struct, frozen=True):
    """A field of a struct, by its path from its column on; `stored_as` is its own name in files. `added`: files from
    before may lack it.
    """

    path: str
    field_id: int
    stored_as: str
    added: bool
    comment: str | None


class ColumnShown(Shown, msgspec.Struct, frozen=True):
    """A column; `column_id` is its number in the table, `stored_as` its name in files. `fields`: those of structs in
    it, where one of them was changed. `generated`: what it is computed by, null where it is not.
    """

    name: str
    type: str
    nullable: bool
    column_id: int
    stored_as: str
    default: str | None
    comment: str | None
    fields: tuple[FieldShown, ...] = ()
    generated: str | None = None


class CheckShown(Shown, msgspec.Struct, frozen=True):
    """A check of a table, which came with `epoch`; `validated`: as of which epoch all rows satisfied it, or null."""

    name: str
    predicate: str
    epoch: int
    validated: int | None


class TtlShown(Shown, msgspec.Struct, frozen=True):
    """Rows expire so many `seconds` after what `column` says, since `since` (ISO 8601); `seconds` null: no further ones
    do. What was older than `seconds` at any time before stays expired.
    """

    column: str
    seconds: int | None
    since: str


class TableShown(Shown, msgspec.Struct, frozen=True):
    """A table in full; `version` is the state id of the last change of its columns, which came with `columns_epoch`:
    null where they are as they were created. `dropped` and `dropped_fields`: the columns that it had once, and the
    fields within those that it has. `checks`: what no row may make false; rows from before a check was there may, until
    it is `validated`. `ttl`: null where no row has ever expired.

    On the ring `tablets` are ranges, and `replicas_by_node` counts how many of them each node gets the writes of.
    """

    name: str
    table_id: str
    placement: str
    append_only: bool
    primary_key: tuple[str, ...]
    columns: tuple[ColumnShown, ...]
    version: str
    tablets: int
    in_transition: int
    replicas_by_node: dict[str, int]
    options: TableOptions
    epoch: int
    columns_epoch: int | None = None
    dropped: tuple[DroppedColumn, ...] = ()
    checks: tuple[CheckShown, ...] = ()
    ttl: TtlShown | None = None
    dropped_fields: tuple[DroppedField, ...] = ()


class DroppedTableRow(Shown, msgspec.Struct, frozen=True):
    """A table that was dropped by `epoch`, and can be restored until vacuum comes, and for `keep_seconds` at least."""

    name: str
    table_id: str
    columns: int
    tablets: int
    keep_seconds: float
    epoch: int


def dropped_rows(metadata: ClusterMetadata) -> Listing[DroppedTableRow]:
    """The tables that can be restored, by name; of one name the one that was dropped last at the end."""
    found = sorted(metadata.dropped.tables.values(), key=lambda one: (one.table.full_name, one.epoch))
    return Listing(
        DroppedTableRow(
            one.table.full_name, one.table.table_id, len(one.table.columns), one.tablets, one.keep_seconds, one.epoch
        )
        for one in found
    )


def keyspace_rows(metadata: ClusterMetadata) -> Listing[KeyspaceRow]:
    """All keyspaces by name."""
    tables = Counter(table.keyspace for table in metadata.schema.tables.values())
    return Listing(
        KeyspaceRow(k.name, k.placement.value, k.strategy, k.replication, tables[k.name], k.epoch)
        for k in sorted(metadata.schema.keyspaces.values(), key=lambda keyspace: keyspace.name)
    )


def table_rows(metadata: ClusterMetadata) -> Listing[TableRow]:
    """All tables by name."""
    moving = Counter(key[0] for key in metadata.tablets.transitions)
    return Listing(
        TableRow(
            name=t.full_name,
            table_id=t.table_id,
            placement=metadata.schema.keyspaces[t.keyspace].placement.value,
            append_only=t.append_only,
            primary_key=t.primary_key,
            columns=len(t.columns),
            tablets=_tablets(metadata, t),
            in_transition=moving[t.table_id],
            epoch=t.epoch,
        )
        for t in sorted(metadata.schema.tables.values(), key=lambda table: table.full_name)
    )


def shown_table(metadata: ClusterMetadata, name: str) -> TableShown:
    """A table by its full name. Raises Rejected for one that there is not."""
    table = metadata.table(name)
    return TableShown(
        name=table.full_name,
        table_id=table.table_id,
        placement=metadata.schema.keyspaces[table.keyspace].placement.value,
        append_only=table.append_only,
        primary_key=table.primary_key,
        columns=tuple(_shown(column) for column in table.numbered),
        version=table.version,
        tablets=_tablets(metadata, table),
        in_transition=sum(key[0] == table.table_id for key in metadata.tablets.transitions),
        replicas_by_node=_replicas_by_node(metadata, table),
        options=_options(metadata, table),
        epoch=table.epoch,
        columns_epoch=None if table.alterations is msgspec.UNSET else table.alterations.epoch,
        dropped=table.dropped,
        checks=tuple(
            CheckShown(one.name, one.predicate, one.epoch, None if one.validated is msgspec.UNSET else one.validated)
            for one in table.checked
        ),
        ttl=_ttl(table),
        dropped_fields=table.dropped_fields,
    )


def _ttl(table: Table) -> TtlShown | None:
    if not table.lifetimes:
        return None
    last = table.lifetimes[-1]
    name = next(column.name for column in table.numbered if column.column_id == last.column_id)
    since = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last.since)
    return TtlShown(name, last.seconds, since.isoformat().replace("+00:00", "Z"))


def _shown(column: Column) -> ColumnShown:
    assert column.column_id is not msgspec.UNSET
    return ColumnShown(
        column.name,
        column.type,
        column.nullable,
        column.column_id,
        column.stored_name,
        None if column.default is msgspec.UNSET else column.default,
        None if column.comment is msgspec.UNSET else column.comment,
        _fields(column),
        None if column.generated is msgspec.UNSET else column.generated.expression,
    )


def _fields(column: Column) -> tuple[FieldShown, ...]:
    if column.fields is msgspec.UNSET:
        return ()
    return tuple(
        FieldShown(
            ".".join(quoted(step) for step in (column.name, *path)),
            field.field_id,
            field.stored_as,
            field.added,
            None if field.comment is msgspec.UNSET else field.comment,
        )
        for path, _, field, _ in places(tree_of(column))
    )


def _tablets(metadata: ClusterMetadata, table: Table) -> int:
    """How many tablets it has, or on the ring how many ranges."""
    if metadata.is_on_ring(table.table_id):
        return len(metadata.ring_placements(table.keyspace).lows)
    return metadata.tablets.maps[table.table_id].count


def _options(metadata: ClusterMetadata, table: Table) -> TableOptions:
    tables, options = metadata.schema.tables, table.options
    return TableOptions(
        target_bytes=options.target_bytes,
        min_tablets=options.min_count,
        max_tablets=options.max_count,
        tags=options.tags,
        apart_from=tuple(tables[key].full_name if key in tables else key for key in options.apart_from),
        compaction=table.compacting,
        history_seconds=table.keeps_history_seconds,
    )


def _replicas_by_node(metadata: ClusterMetadata, table: Table) -> dict[str, int]:
    if metadata.is_on_ring(table.table_id):
        held = metadata.ring_placements(table.keyspace).write_volumes
    else:
        held = metadata.tablets.maps[table.table_id].to_array()
    volumes, counts = np.unique(held, return_counts=True)
    by_node: Counter[str] = Counter()
    for volume, count in zip(volumes.tolist(), counts.tolist(), strict=True):
        if volume != NO_REPLICA:
            by_node[metadata.directory.node_of_volume[volume].name] += count
    return dict(sorted(by_node.items()))
