"""Columns of a table in its data files, and back: the one place that knows both names of a column.

A column has one name in files for ever, whatever it is called now, and no other column ever gets that name. So a file
of any version of the table is read as the table is now: what was renamed under its new name, what was dropped not at
all, what was added later with its default, what was widened as the wider type. The same is true of fields of structs
(struct_columns.py). Everything above files and everything that joins, merges or filters rows knows the names of now
only (docs/decisions/068-columns-in-files.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas.column_types import arrow_type
from epochlake.jobs.replicas.schema import DELETED, spark_ddl
from epochlake.jobs.replicas.struct_columns import FIELD_ID, as_now, as_stored, fields_of, stored_ddl, structs_of
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import Tree
from epochlake.placement.column_ddl import spark_type
from epochlake.placement.errors import InvalidRequest, words_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class FileColumns(msgspec.Struct, frozen=True, dict=True):
    """The columns of an altered table, as its files know them. Of a table that never was, nobody needs it."""

    columns: tuple[Column, ...]
    created: int

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def _structs(self) -> dict[str, Tree]:
        """The types of the columns with structs."""
        trees = {column.name: structs_of(column) for column in self.columns}
        return {name: tree for name, tree in trees.items() if tree is not None}

    def stored_name(self, name: str) -> str:
        """What files call a column; a system column is called as it is."""
        column = self._by_name.get(name)
        return name if column is None else column.stored_name

    def declared_type(self, name: str) -> pa.DataType | None:
        """The type that values of a column have now; None for a system column."""
        column = self._by_name.get(name)
        return None if column is None else arrow_type(column.type)

    def may_be_absent(self, name: str) -> bool:
        """Whether there may be files from before there was the column."""
        column = self._by_name.get(name)
        return column is not None and column.column_id is not msgspec.UNSET and column.column_id > self.created

    def has_structs(self, name: str) -> bool:
        """Whether files may have other fields in a column than it has now."""
        return name in self._structs

    def values_now(self, name: str, stored: pa.ChunkedArray) -> pa.ChunkedArray:
        """Values of a column as a file has them, with the fields that it has now; as they are without structs."""
        tree = self._structs.get(name)
        return stored if tree is None else as_now(stored, tree)

    def filled(self, name: str, rows: int) -> pa.Array:
        """Values of a column for the rows of a file that does not have it."""
        return filled(self._by_name[name], rows)

    def as_table_is_now(self, stored: pa.Table, names: Sequence[str]) -> pa.Table:
        """Columns of rows that a file has, deletes among them, which have nothing but their key."""
        columns: dict[str, pa.ChunkedArray | pa.Array] = {}
        for name in dict.fromkeys(names):
            declared, stored_name = self.declared_type(name), self.stored_name(name)
            if stored_name in stored.column_names:
                found = stored.column(stored_name)
                nested = declared is None or pa.types.is_nested(declared)
                columns[name] = self.values_now(name, found) if nested else found.cast(declared)
            elif declared is None:
                columns[name] = pa.nulls(stored.num_rows)
            else:
                nothing = pa.scalar(None, declared)
                columns[name] = pc.if_else(stored.column(DELETED), nothing, self.filled(name, stored.num_rows))
        return pa.table(columns)

    def as_now(self, stored: pa.Schema) -> pa.Schema:
        """The columns of a file and of the table, under the names and with the types that they have now."""
        own = {column.stored_name for column in self.columns}
        fields = [pa.field(column.name, arrow_type(column.type)) for column in self.columns]
        names = {column.name for column in self.columns}
        return pa.schema([*fields, *(one for one in stored if one.name not in own and one.name not in names)])

    def as_stored(self, rows: pa.Table) -> pa.Table:
        """Rows as a file keeps them: under their names in files, each with its number as Parquet's field id."""
        fields, columns = [], []
        for field, values in zip(rows.schema, rows.columns, strict=True):
            column = self._by_name.get(field.name)
            if column is not None:
                tree = fields_of(column)
                values = values if tree is None else as_stored(values, tree)
                number = {FIELD_ID: str(column.column_id).encode()}
                field = pa.field(column.stored_name, values.type, field.nullable, number)
            fields.append(field)
            columns.append(values)
        return pa.table(columns, schema=pa.schema(fields))

    def spark_schema(self, others: str) -> StructType:
        """What Spark reads of a file, and `others`: names in files, types of now, and what it shows where a file has no
        such column. Columns that are read are not renamed yet: `named`.
        """
        from pyspark.sql.types import StructType

        stored = [
            msgspec.structs.replace(column, name=column.stored_name, type=stored_ddl(column)) for column in self.columns
        ]
        read = StructType.fromDDL(f"{spark_ddl(stored)}, {others}")
        assert isinstance(read, StructType)
        for column, field in zip(self.columns, read.fields, strict=False):
            if column.default is not msgspec.UNSET:
                # Spark's own words for a column that was added: files that lack it have this value.
                field.metadata = dict.fromkeys(("CURRENT_DEFAULT", "EXISTS_DEFAULT"), default_sql(column))
        return read

    def named(self, frame: DataFrame, others: Sequence[str]) -> DataFrame:
        """A frame of what files have, under the names of now, with `others` as they are."""
        from pyspark.sql import functions as F

        def called(column: Column) -> SparkColumn:
            stored = F.col(f"`{column.stored_name}`")
            # Spark casts a struct field by field in their order, whatever they are called.
            return stored if stored_ddl(column) == column.type else stored.cast(spark_type(column.type))

        # What Spark is told of defaults is no matter of who reads the rows.
        columns = [called(column).alias(column.name, metadata={}) for column in self.columns]
        return frame.select(*columns, *(F.col(f"`{name}`") for name in others))


def file_columns(table: Table) -> FileColumns | None:
    """How files of a table know its columns; None where they are called and typed as they were created."""
    if table.alterations is msgspec.UNSET:
        return None
    return FileColumns(table.columns, table.alterations.created)


def columns_to_read(table: Table) -> FileColumns | None:
    """How a reader without Spark finds the columns of a table in its files: `file_columns`, and what it needs to find
    the fields of structs also where nothing was altered.
    """
    known_as = file_columns(table)
    if known_as is None and any(structs_of(column) is not None for column in table.columns):
        return FileColumns(table.numbered, len(table.columns))
    return known_as


def filled(column: Column, rows: int) -> pa.Array:
    """The default of a column, or null, so many times."""
    if column.default is msgspec.UNSET:
        return pa.nulls(rows, arrow_type(column.type))
    return pa.repeat(default_of(column), rows)


def default_of(column: Column) -> pa.Scalar:
    """The default of a column that has one. Raises InvalidRequest for a text that is no value of its type."""
    assert column.default is not msgspec.UNSET
    text, type_ = column.default, arrow_type(column.type)
    try:
        if pa.types.is_string(type_):
            return pa.scalar(text, type_)
        if pa.types.is_nested(type_) or pa.types.is_binary(type_):
            raise InvalidRequest(
                f"the column {column.name!r} is {column.type}, and cannot have a default",
                hint="Add it without one, and write the values",
            )
        return pa.scalar(text.strip(), pa.string()).cast(type_)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRequest(
            f"the default {text!r} of column {column.name!r} is no {column.type}: {words_of(error)}"
        ) from error


def default_sql(column: Column) -> str:
    """The default as an expression of Spark, which is the same in every session."""
    value = default_of(column)
    text = str(value.as_py()) if not pa.types.is_boolean(value.type) else str(value.as_py()).lower()
    if pa.types.is_timestamp(value.type):
        text = value.cast(pa.string()).as_py()
    # What a backslash in a text means is a setting, too.
    plain = f"'{text}'" if not {"'", "\\"} & set(text) else f"CAST(X'{text.encode().hex()}' AS STRING)"
    return f"CAST({plain} AS {spark_type(column.type)})"
