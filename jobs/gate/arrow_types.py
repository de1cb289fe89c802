"""The names of Arrow types as Spark would call them; those of a table's columns are in replicas/column_types.py."""

from __future__ import annotations

import pyarrow as pa
from epochlake.jobs.gate.fitting import VOID
from epochlake.jobs.replicas.column_types import arrow_type as arrow_type

_NAMES: dict[pa.DataType, str] = {
    pa.null(): VOID,
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
}


def type_name(type_: pa.DataType) -> str:
    """How Spark's DDL calls an Arrow type; Arrow's own name for one that Spark does not have."""
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_dictionary(type_):
        return type_name(type_.value_type)
    if pa.types.is_fixed_size_binary(type_):
        return "binary"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return f"array<{type_name(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{type_name(type_.key_type)},{type_name(type_.item_type)}>"
    if pa.types.is_struct(type_):
        fields = [f"`{field.name.replace('`', '``')}`:{type_name(field.type)}" for field in type_]
        return f"struct<{','.join(fields)}>"
    return str(type_)
