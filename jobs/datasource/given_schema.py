"""The schema that Spark hands to a reader: what this source has told it, or what a user has given by `.schema(…)`."""

from __future__ import annotations

from dataclasses import dataclass

from epochlake.jobs.gate.fitting import canonical, is_same_type
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from pyspark.sql.types import StructType

_HINT = "Leave .schema(…) out: the table says its own; cast after loading"


@dataclass(frozen=True)
class Given:
    """Names and types of columns. `by_user`: Spark has not asked for them, so that the user has given them."""

    schema: StructType
    by_user: bool

    def require(self, table: str, declared: StructType) -> None:
        """Raises what `column_changed` makes for a column that is not declared, or is declared otherwise."""
        types = {field.name: field.dataType.simpleString() for field in declared.fields}
        for field in self.schema.fields:
            if field.name not in types:
                near = f"It has {', '.join(types)}"
                raise InvalidRequest(f"{table} has no column {field.name}, which its schema was given", hint=near)
            self.require_type(table, field.name, types[field.name])
        if self.by_user and self.schema.names != declared.names:
            raise InvalidRequest(f"{table} is read with all of its columns, in their order", hint=_HINT)

    def require_type(self, table: str, name: str, declared: str) -> None:
        """Raises InvalidRequest where the user has given a column another type than it has, Rejected where it has got
        another one since the query was made.
        """
        told = next((field.dataType.simpleString() for field in self.schema.fields if field.name == name), None)
        if told is None or is_same_type(canonical(told), canonical(declared)):
            return
        if self.by_user:
            raise InvalidRequest(
                f"column {name} of {table} is {canonical(declared)}, and the schema that was given says "
                f"{canonical(told)}",
                hint=_HINT,
            )
        raise Rejected(
            Code.SCHEMA_CHANGED,
            f"column {name} of {table} has become {canonical(declared)} since the query was made",
            hint="Load the table again",
        )
