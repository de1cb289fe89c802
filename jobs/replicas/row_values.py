"""Values of rows in Python: for comparing them as Spark does, and for people to read.

Spark and Arrow have days before the year 1 and after 9999, and texts that are no UTF-8; Python has a word for neither.
So values are compared as they are stored, and such a one is shown as a text: one row never keeps the others from being
found or seen.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

NO_WORD = (OverflowError, UnicodeDecodeError)
"""What is raised where Python has no word for a value."""


class StoredKeys(frozenset[object]):
    """Keys as `comparables` makes them. It is a type of its own, as it is sent to workers: one of an earlier version,
    which compares values of Python, has no such type, and fails where it would find nothing.
    """


def comparables(rows: pa.Table) -> list[object]:
    """Each row as `comparable` of its values as they are stored, so also where Python has no word for one of them."""
    return [comparable(row) for row in bare_rows(rows).to_pylist()]


def comparable(value: object) -> object:
    """A value that equals another one where Spark says so: there is one zero, and what is no number equals itself."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple(comparable(one) for one in value.values())
    if isinstance(value, list):
        return tuple(comparable(one) for one in value)
    return value


def bare_rows(rows: pa.Table) -> pa.Table:
    """Rows with their values as they are stored."""
    return rows.cast(pa.schema([pa.field(field.name, bare(field.type)) for field in rows.schema]))


def bare(type_: pa.DataType) -> pa.DataType:
    """The type of the same values as they are stored: Python has no day before the year 1, nor text that is none."""
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_string(type_):
        return pa.binary()
    if pa.types.is_list(type_):
        return pa.list_(bare(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, bare(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(bare(type_.key_type), bare(type_.item_type))
    return type_


def shown_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts."""
    try:
        return list(rows.to_pylist())
    except NO_WORD:
        columns = [[_shown(value) for value in column] for column in rows.columns]
        return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _shown(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except NO_WORD:
        stored = value.cast(bare(value.type)).as_py()
    if isinstance(stored, bytes):
        return stored.decode(errors="replace")
    if pa.types.is_nested(value.type):
        return str(stored)
    return value.cast(pa.string()).as_py()
