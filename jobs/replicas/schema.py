"""The schema of a replica table, and which columns a table can have: what Delta cannot store is refused before
anything is created.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from deltalake import Schema
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import stored_type
from epochlake.placement.column_ddl import DeltaType, delta_type, spark_type
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TABLET, TOKEN

WRITTEN_AT = "_written_at"
DELETED = "_deleted"
SYSTEM_COLUMNS = (TOKEN, WRITTEN_AT, DELETED, TABLET)
RESERVED = (*SYSTEM_COLUMNS, "_metadata", "_file", "_rank")
"""Names that no column of a table may have; `_metadata` is Spark's own."""

_UNHASHABLE = frozenset({"map"})
"""Spark refuses to hash a map, so no map may be (in) a key."""


def replica_schema(table: Table) -> Schema:
    """The schema of a table's replica tables: the system columns, then its own, under their names in files.

    The system columns come first because Delta keeps statistics of the first columns (naming columns for statistics
    instead loses all of them in delta-rs when a struct comes before).
    Every column is nullable there, since a tombstone has only its key. Raises InvalidRequest for names that collide,
    unknown types, and key columns that Spark cannot hash.
    """
    check_columns(table.columns, table.primary_key)
    return Schema.from_json(delta_schema(table))


def delta_schema(table: Table) -> str:
    """`replica_schema` as Delta's JSON. Raises InvalidRequest for unknown types."""
    fields: list[tuple[str, DeltaType]] = [(TOKEN, "long"), (WRITTEN_AT, "long"), (DELETED, "boolean")]
    fields += [(TABLET, "string"), *((column.stored_name, stored_type(column)) for column in table.columns)]
    as_json = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in fields]
    return json.dumps({"type": "struct", "fields": as_json})


_IN_NO_NAME = frozenset(" ,;{}()\n\t=`")


def can_be_called(name: str) -> bool:
    """Whether Delta can store a column of this name."""
    return bool(name) and not _IN_NO_NAME & set(name)


def possible_name(name: str) -> str:
    """A name that is like another one, and that Delta can store."""
    return "".join("_" if letter in _IN_NO_NAME else letter for letter in name) or "unnamed"


def check_columns(columns: tuple[Column, ...], primary_key: tuple[str, ...]) -> None:
    """Whether a replica table can have these columns; raises InvalidRequest with the column that stands in the way."""
    seen = set(RESERVED)
    for column in columns:
        if not can_be_called(column.name):
            raise InvalidRequest(f"a column cannot be called {column.name!r}", hint="Use no space and none of ,;{}()=`")
        if column.name.lower() in seen:
            raise InvalidRequest(
                f"the column {column.name!r} is there twice, or is one of the system's ({', '.join(RESERVED)})",
                hint="Rename it (upper and lower case do not tell columns apart)",
            )
        seen.add(column.name.lower())
        delta_type(column.type)
    types = {column.name: column.type for column in columns}
    missing = [name for name in primary_key if name not in types]
    if missing or not primary_key:
        raise InvalidRequest(
            f"the primary key {list(primary_key)} names columns that do not exist: {missing}",
            hint=f"The columns are {', '.join(types)}",
        )
    for name in primary_key:
        if _UNHASHABLE & set(re.findall(r"\w+", types[name].lower())):
            raise InvalidRequest(f"the key column {name!r} has the type {types[name]}: a map cannot be hashed")


def spark_ddl(columns: Sequence[Column]) -> str:
    """The columns as one DDL string for Spark, all of them nullable; it means the same in every session."""
    return ", ".join(f"`{column.name}` {spark_type(column.type)}" for column in columns)
