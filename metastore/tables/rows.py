"""Small Arrow tables, made of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa


def rows_of(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """A small table from tuples in the schema's order."""
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [_column(field.type, column) for field, column in zip(schema, values, strict=True)]
    return pa.table(arrays, schema=schema)


def _column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


def json_of(value: Any) -> str | None:
    """A plain value as JSON; None as null."""
    return None if value is None else msgspec.json.encode(value).decode()
