"""The schema that Spark hands to a reader: what this source has told it, or what a user has given by `.schema(…)`."""

from __future__ import annotations

from dataclasses import dataclass

from epochlake.jobs.gate.fitting import canonical, is_same_type, what_became
from epochlake.jobs.gate.spark_types import type_text
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from pyspark.sql.types import StructType

_LOAD_AGAIN = "Load the table again; for a view, call epochlake.attach again"
_HINT = "Leave .schema(…) out: the table says its own; cast after loading"


@dataclass(frozen=True)
class Given:
    """Names and types of columns. `by_user`: Spark has not asked for them, so that the user has given them."""

    schema: StructType
    by_user: bool

    def require(self, table: str, declared: StructType) -> None:
        """Raises for a column that is not declared, or is declared otherwise, as `require_type` does."""
        types = {field.name: type_text(field.dataType) for field in declared.fields}
        for field in self.schema.fields:
            if field.name not in types:
                near = f"It has {', '.join(types)}"
                raise InvalidRequest(f"{table} has no column {field.name}, which its schema was given", hint=near)
            self.require_type(table, field.name, types[field.name])
        if self.by_user and self.schema.names != declared.names:
            raise InvalidRequest(f"{table} is read with all of its columns, in their order", hint=_HINT)

    def require_columns(self, table: Table) -> None:
        """Raises for a column that the table does not have, or has with another type: InvalidRequest where the user has
        given it, Rejected where the table was altered since the query was made.
        """
        there = {column.name for column in table.columns}
        gone = [name for name in self.schema.names if name not in there]
        if gone and self.by_user:
            raise InvalidRequest(
                f"{table.full_name} has no column {', '.join(gone)}, which its schema was given", hint=_HINT
            )
        if gone:
            became = "; ".join(what_became(table, gone)) or f"it has no column {', '.join(gone)}"
            raise Rejected(
                Code.SCHEMA_CHANGED,
                f"the columns of {table.full_name} have changed since the query was made: {became}",
                hint=_LOAD_AGAIN,
            )
        for column in table.columns:
            self.require_type(table.full_name, column.name, column.type)

    def require_type(self, table: str, name: str, declared: str) -> None:
        """Raises InvalidRequest where the user has given a column another type than it has, Rejected where it has got
        another one since the query was made.
        """
        told = next((type_text(field.dataType) for field in self.schema.fields if field.name == name), None)
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
            hint=_LOAD_AGAIN,
        )
