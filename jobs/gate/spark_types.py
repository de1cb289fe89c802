"""Types of Spark as DDL."""

from __future__ import annotations

from epochlake.placement.column_ddl import quoted
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def type_text(type_: DataType) -> str:
    """A type as DDL. Spark's own text of it has fields without backquotes whose names are no words."""
    match type_:
        case StructType():
            return f"struct<{','.join(f'{quoted(one.name)}:{type_text(one.dataType)}' for one in type_.fields)}>"
        case ArrayType():
            return f"array<{type_text(type_.elementType)}>"
        case MapType():
            return f"map<{type_text(type_.keyType)},{type_text(type_.valueType)}>"
    return type_.simpleString()
