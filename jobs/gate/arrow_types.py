"""The Arrow types of a table's columns, and the names of other Arrow types as Spark would call them."""

from __future__ import annotations

import re

import pyarrow as pa
from epochlake.jobs.gate.fitting import VOID
from epochlake.jobs.replicas.schema import DeltaType, delta_type

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

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


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type that values of a column have: what Spark gives Arrow, its timestamps in UTC."""
    return _arrow_type(delta_type(ddl))


def _arrow_type(type_: DeltaType) -> pa.DataType:
    match type_:
        case str() if type_ in _PRIMITIVES:
            return _PRIMITIVES[type_]
        case str():
            precision, scale = (int(number) for number in re.findall(r"\d+", type_))
            return pa.decimal128(precision, scale)
        case {"type": "array", "elementType": element}:
            return pa.list_(pa.field("element", _arrow_type(element)))  # type: ignore[arg-type]
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_arrow_type(key), _arrow_type(value))  # type: ignore[arg-type]
        case _:
            fields = type_["fields"]
            return pa.struct([(one["name"], _arrow_type(one["type"])) for one in fields])  # type: ignore[attr-defined]


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
