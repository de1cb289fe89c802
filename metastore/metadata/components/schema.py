"""The component `schema`: keyspaces and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.differences import Difference, by_key, one
from epochlake.metastore.metadata.model import Keyspace, Table, TableId
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import rows_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

KEYSPACE = "keyspace"
TABLE = "table"


class Schema(msgspec.Struct, frozen=True, dict=True):
    """Keyspaces and tables."""

    keyspaces: Mapping[str, Keyspace]
    tables: Mapping[TableId, Table]
    epoch: int = 0

    @cached_property
    def by_name(self) -> dict[str, Table]:
        return {table.full_name: table for table in self.tables.values()}


class _Stored(msgspec.Struct, frozen=True):
    keyspaces: list[Keyspace]
    tables: list[Table]
    schema_epoch: int


def _encode(schema: Schema) -> _Stored:
    return _Stored(
        [schema.keyspaces[key] for key in sorted(schema.keyspaces)],
        [schema.tables[key] for key in sorted(schema.tables)],
        schema.epoch,
    )


def _decode(stored: _Stored, _: pa.Table | None) -> Schema:
    return Schema(
        {keyspace.name: keyspace for keyspace in stored.keyspaces},
        {table.table_id: table for table in stored.tables},
        stored.schema_epoch,
    )


def _facts(schema: Schema) -> Facts:
    stored = _encode(schema)
    return Facts({"keyspaces": plain(stored.keyspaces), "tables": plain(stored.tables)}, epoch=schema.epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    yield from by_key(KEYSPACE, before.schema.keyspaces, after.schema.keyspaces)
    old_tables, new_tables = before.schema.tables, after.schema.tables
    if old_tables is new_tables:
        return
    for name, key in named_tables(old_tables, new_tables):
        yield from one(TABLE, name, old_tables.get(key), new_tables.get(key))


def named_tables(before: Mapping[TableId, Table], after: Mapping[TableId, Table]) -> list[tuple[str, TableId]]:
    """Name and id of every table, by name; one that was dropped comes before the one that took its name."""
    known = {**before, **after}
    return sorted(
        ((table.full_name, key) for key, table in known.items()), key=lambda pair: (pair[0], pair[1] in after)
    )


def keyspaces(metadata: ClusterMetadata) -> pa.Table:
    """A row for each keyspace; by name."""
    rows = [metadata.schema.keyspaces[name] for name in sorted(metadata.schema.keyspaces)]
    return rows_of(
        c.KEYSPACES_SCHEMA,
        ((k.name, k.placement.value, k.strategy, list(k.replication.items()), k.epoch) for k in rows),
    )


def tables(metadata: ClusterMetadata) -> pa.Table:
    """A row for each table; by name."""

    def row(table: Table) -> tuple[Any, ...]:
        tablet_map = metadata.tablets.maps.get(table.table_id)
        about_tablets: tuple[Any, ...] = (None, None, None)
        if tablet_map is not None:
            about_tablets = (tablet_map.count, tablet_map.resize_type, tablet_map.resize_seq_number)
        return (
            table.keyspace,
            table.name,
            table.table_id,
            [{"name": one.name, "type": one.type, "nullable": one.nullable} for one in table.columns],
            list(table.primary_key),
            table.append_only,
            table.version,
            *about_tablets,
            table.epoch,
            table.options.target_bytes,
            table.options.min_count,
            table.options.max_count,
            list(table.options.tags),
            list(table.options.apart_from),
        )

    return rows_of(c.TABLES_SCHEMA, (row(table) for table in by_name(metadata)))


def by_name(metadata: ClusterMetadata) -> list[Table]:
    return sorted(metadata.schema.tables.values(), key=lambda table: (table.full_name, table.table_id))


SCHEMA = Component(
    empty=Schema({}, {}),
    since=1,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda schema: schema.epoch,
    facts=_facts,
    differences=_differences,
    tables=(keyspaces, tables),
)
