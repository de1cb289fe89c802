"""Column types in three spellings: Spark's DDL (what a table declares), Delta's JSON (what a replica table stores).

A replica table must be made without a JVM, so the DDL of a column's type is parsed here; whatever Delta
cannot store is refused before anything is created.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from deltalake import Schema
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TABLET, TOKEN

WRITTEN_AT = "_written_at"
DELETED = "_deleted"
SYSTEM_COLUMNS = (TOKEN, WRITTEN_AT, DELETED, TABLET)
RESERVED = (*SYSTEM_COLUMNS, "_metadata", "_file", "_rank")
"""Names that no column of a table may have; `_metadata` is Spark's own."""

DeltaType = str | dict[str, object]

_PRIMITIVES: dict[str, str] = {
    "boolean": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}

_UNHASHABLE = frozenset({"map"})
"""Spark refuses to hash a map, so no map may be (in) a key."""

_LEXEME = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])")


def delta_type(ddl: str) -> DeltaType:
    """The Delta type of a Spark DDL type. Raises InvalidRequest when it is malformed or Delta cannot store it."""
    lexemes = _lexemes(ddl)
    parsed = _type(lexemes, ddl)
    if lexemes:
        raise _malformed(ddl, f"{lexemes[0]!r} follows a complete type")
    return parsed


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
    fields += [(TABLET, "string"), *((column.stored_name, delta_type(column.type)) for column in table.columns)]
    as_json = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in fields]
    return json.dumps({"type": "struct", "fields": as_json})


def check_columns(columns: tuple[Column, ...], primary_key: tuple[str, ...]) -> None:
    """Whether a replica table can have these columns; raises InvalidRequest with the column that stands in the way."""
    seen = set(RESERVED)
    for column in columns:
        if not column.name or set(column.name) & set(" ,;{}()\n\t=`"):
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
    """The columns as one DDL string for Spark, all of them nullable."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def _lexemes(ddl: str) -> list[str]:
    lexemes, position, text = [], 0, ddl.strip()
    while position < len(text):
        match = _LEXEME.match(text, position)
        if match is None:
            raise _malformed(ddl, f"{text[position:]!r} is not understood")
        lexemes.append(match.group(1))
        position = match.end()
    return lexemes


def _type(lexemes: list[str], ddl: str) -> DeltaType:
    name = _next(lexemes, ddl).lower()
    if name == "array":
        _expect(lexemes, "<", ddl)
        element = _type(lexemes, ddl)
        _expect(lexemes, ">", ddl)
        return {"type": "array", "elementType": element, "containsNull": True}
    if name == "map":
        _expect(lexemes, "<", ddl)
        key = _type(lexemes, ddl)
        _expect(lexemes, ",", ddl)
        value = _type(lexemes, ddl)
        _expect(lexemes, ">", ddl)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if name == "struct":
        return _struct(lexemes, ddl)
    if name in ("decimal", "dec", "numeric"):
        return _decimal(lexemes, ddl)
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    raise InvalidRequest(
        f"the column type {ddl!r} cannot be stored: {name!r} is unknown",
        hint=f"Use one of {', '.join(sorted(_PRIMITIVES))}, decimal(p,s), array<…>, map<…,…>, struct<name:type,…>",
    )


def _struct(lexemes: list[str], ddl: str) -> DeltaType:
    _expect(lexemes, "<", ddl)
    fields: list[dict[str, object]] = []
    while True:
        name = _next(lexemes, ddl)
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if lexemes and lexemes[0] == ":":
            lexemes.pop(0)
        fields.append({"name": name, "type": _type(lexemes, ddl), "nullable": True, "metadata": {}})
        separator = _next(lexemes, ddl)
        if separator == ">":
            return {"type": "struct", "fields": fields}
        if separator != ",":
            raise _malformed(ddl, f"{separator!r} stands where , or > should")


def _decimal(lexemes: list[str], ddl: str) -> str:
    precision, scale = 10, 0
    if lexemes and lexemes[0] == "(":
        lexemes.pop(0)
        precision = _number(lexemes, ddl)
        if lexemes and lexemes[0] == ",":
            lexemes.pop(0)
            scale = _number(lexemes, ddl)
        _expect(lexemes, ")", ddl)
    if not (1 <= precision <= 38 and scale <= precision):
        raise _malformed(ddl, "a decimal has a precision from 1 to 38 and a scale of at most that")
    return f"decimal({precision},{scale})"


def _next(lexemes: list[str], ddl: str) -> str:
    if not lexemes:
        raise _malformed(ddl, "it ends too early")
    return lexemes.pop(0)


def _number(lexemes: list[str], ddl: str) -> int:
    lexeme = _next(lexemes, ddl)
    if not (lexeme.isascii() and lexeme.isdigit()):
        raise _malformed(ddl, f"{lexeme!r} stands where a number should")
    return int(lexeme)


def _expect(lexemes: list[str], wanted: str, ddl: str) -> None:
    found = _next(lexemes, ddl)
    if found != wanted:
        raise _malformed(ddl, f"{found!r} stands where {wanted!r} should")


def _malformed(ddl: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"the column type {ddl!r} is malformed: {why}")
