"""The Arrow types of a table's columns."""

from __future__ import annotations

import re

import pyarrow as pa
from epochlake.placement.column_ddl import DeltaType, delta_type

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


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type that values of a column have: what Spark gives Arrow, its timestamps in UTC."""
    return arrow_type_of(delta_type(ddl))


def arrow_type_of(type_: DeltaType) -> pa.DataType:
    """`arrow_type` of a type that has been read."""
    match type_:
        case str() if type_ in _PRIMITIVES:
            return _PRIMITIVES[type_]
        case str():
            precision, scale = (int(number) for number in re.findall(r"\d+", type_))
            return pa.decimal128(precision, scale)
        case {"type": "array", "elementType": element}:
            return pa.list_(pa.field("element", arrow_type_of(element)))  # type: ignore[arg-type]
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(arrow_type_of(key), arrow_type_of(value))  # type: ignore[arg-type]
        case _:
            fields = type_["fields"]
            return pa.struct([(one["name"], arrow_type_of(one["type"])) for one in fields])  # type: ignore[attr-defined]
