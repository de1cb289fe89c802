"""What the rows of a named batch are known by when they come again, also after the table got other columns.

A digest is of the columns that the table had when the batch was decided, in the types that they had then. Rows that
come later are taken for rows of then: what was widened has the narrower type, and what was added does not count. That
is only true of a row that reads the same whether it was written then or now: its values fit the narrower types, and
columns that were added have their default. Every other row gets a digest that no row of then has
(docs/decisions/124-batches-of-altered-tables.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas.column_types import arrow_type
from epochlake.jobs.replicas.file_columns import default_sql, filled
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.struct_columns import as_declared
from epochlake.metastore.following import history
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.events.altering import AlterColumns
from epochlake.metastore.metadata.events.schema import CreateTable
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import (
    ArrayOf,
    Leaf,
    StructOf,
    Tree,
    of_type,
    stored_type,
    tree_of,
    type_of,
)
from epochlake.placement.column_ddl import ddl_of, delta_type, spark_type
from epochlake.placement.column_hashing import hashes_of
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

_ROUNDED = "float"
"""Numbers from texts, or of Python, were rounded to this type then, and are not now: those that round to the same are
the same.
"""

_ANOTHER = 1
"""Is hashed as well of a row that no row of then reads like."""


class DigestedColumn(msgspec.Struct, frozen=True):
    """The number of a column, and its type as DDL, with fields under their names in files."""

    number: int
    type: str


class RowDigest(msgspec.Struct, frozen=True):
    """How rows that fit `table` are digested: as rows of `columns`.

    `now`: the table with the newest columns that are known; rows of a program from before lack those that came since.
    `deleted`: the rows are keys to delete, and have nothing else.
    """

    columns: tuple[DigestedColumn, ...]
    table: Table
    now: Table
    deleted: bool = False

    def of_arrow(self, rows: pa.Table) -> NDArray[np.int64]:
        """The digest of each row. A column `_deleted` counts as well."""
        marks = [rows.column(DELETED)] if DELETED in rows.column_names else []
        now = [rows.column(column.name) for column in self._given.values() if is_digested(column)]
        if self.columns == digested_columns(self.table):
            return _hashed([*now, *marks])
        count = rows.num_rows
        bare = marks[0].to_numpy() if marks else np.full(count, self.deleted)
        fits = np.ones(count, dtype=bool)
        then: list[pa.ChunkedArray | pa.Array] = []
        for one in self.columns:
            column = self._given.get(one.number)
            if column is None:
                then.append(pc.if_else(pa.array(bare), None, filled(self._missing(one), count)))
                continue
            values, same = as_then(rows.column(column.name), column, one)
            then.append(values)
            fits &= same
        for column in self._added:
            fits &= bare | _same(rows.column(column.name), filled(column, count))
        digests = _hashed([*then, *marks])
        if fits.all():
            return digests
        return np.where(fits, digests, _hashed([*now, *marks, pa.repeat(_ANOTHER, count)]))

    def of_spark(self, names: Sequence[str]) -> SparkColumn:
        """The digest of a row of a DataFrame with columns of these names: the same as of Arrow."""
        from epochlake.jobs.gate.conform import in_order
        from pyspark.sql import functions as F

        marks = [F.col(DELETED)] if DELETED in names else []
        now = [F.col(f"`{column.name}`") for column in self._given.values() if is_digested(column)]
        if self.columns == digested_columns(self.table):
            return F.xxhash64(*now, *marks)
        bare = F.col(DELETED) if marks else F.lit(self.deleted)
        fits = [F.lit(True)]
        then = []
        for one in self.columns:
            column = self._given.get(one.number)
            if column is None:
                missing = self._missing(one)
                nothing = F.lit(None).cast(spark_type(missing.type))
                then.append(
                    nothing
                    if missing.default is msgspec.UNSET
                    else F.when(bare, nothing).otherwise(F.expr(default_sql(missing)))
                )
                continue
            values = F.col(f"`{column.name}`")
            if type_then(column) != one.type:
                tree = tree_of(column)
                wanted = _then(tree, of_type(delta_type(one.type)))
                narrow = in_order(values, tree, wanted).try_cast(spark_type(ddl_of(type_of(wanted))))
                fits.append(
                    _is_infinite(narrow).eqNullSafe(_is_infinite(values))
                    if one.type == _ROUNDED
                    else in_order(narrow, wanted, tree).cast(spark_type(column.type)).eqNullSafe(values)
                )
                values = narrow
            then.append(values)
        for column in self._added:
            default = F.lit(None) if column.default is msgspec.UNSET else F.expr(default_sql(column))
            fits.append(bare | F.col(f"`{column.name}`").eqNullSafe(default.cast(spark_type(column.type))))
        fitting = reduce(lambda one, other: one & other, fits)
        another = F.xxhash64(*now, *marks, F.lit(_ANOTHER).cast("bigint"))
        return F.when(fitting, F.xxhash64(*then, *marks)).otherwise(another)

    @property
    def _given(self) -> dict[int, Column]:
        return {number_of(column): column for column in self.table.numbered}

    @property
    def _added(self) -> list[Column]:
        """The columns of the rows that there were not then."""
        known = {one.number for one in self.columns}
        return [column for number, column in self._given.items() if number not in known and is_digested(column)]

    def _missing(self, one: DigestedColumn) -> Column:
        """What rows without a column show in it: its default where it came after them, null where it is gone."""
        later = (column for column in self.now.numbered if column.column_id == one.number)
        column = next(later, None) if one.number > self.table.last_column_id else None
        return Column("", one.type) if column is None else msgspec.structs.replace(column, type=one.type)


def digested_columns(table: Table) -> tuple[DigestedColumn, ...]:
    """The columns that a batch is digested by which is decided now."""
    return tuple(
        DigestedColumn(number_of(column), type_then(column)) for column in table.numbered if is_digested(column)
    )


def columns_of_before(log: EpochLog, table: Table) -> list[tuple[DigestedColumn, ...]]:
    """The columns that a table has had, the newest ones first, as its log tells. Raises as `history.entries`."""
    found = []
    for entry in history.entries(log):
        if entry.event in (CreateTable.kind(), AlterColumns.kind()):
            event = entry.decode()
            if isinstance(event, CreateTable) and event.table.table_id == table.table_id:
                found.append(digested_columns(event.table))
            elif isinstance(event, AlterColumns) and event.table_id == table.table_id:
                found.append(digested_columns(msgspec.structs.replace(table, columns=event.columns)))
    return found[::-1]


def is_digested(column: Column) -> bool:
    """Whether a column counts: one with maps does not, as Spark does not hash them, nor one that is generated, as it
    follows from the others.
    """
    return "map<" not in column.type.lower() and column.generated is msgspec.UNSET


def number_of(column: Column) -> int:
    """The number of a column that says it."""
    assert column.column_id is not msgspec.UNSET
    return column.column_id


def type_then(column: Column) -> str:
    """The type by which a column is digested from now on."""
    return ddl_of(stored_type(column))


def as_then(values: pa.ChunkedArray, column: Column, one: DigestedColumn) -> tuple[pa.ChunkedArray, NDArray[np.bool_]]:
    """Values in the type that a column had then, and which of them are the same in it."""
    every = np.ones(len(values), dtype=bool)
    if type_then(column) == one.type:
        return values, every
    tree = tree_of(column)
    try:
        narrow = as_declared(values, _then(tree, of_type(delta_type(one.type))))
        if one.type == _ROUNDED:
            return narrow, _same(pc.is_inf(narrow), pc.is_inf(values))
        return narrow, _same(as_declared(narrow, tree), values)
    except pa.ArrowException:
        return pa.chunked_array([pa.nulls(len(values), arrow_type(one.type))]), ~every


def _is_infinite(values: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as F

    return F.abs(values).eqNullSafe(F.lit(float("inf")))


def _then(now: Tree, then: Tree) -> Tree:
    """A type of then, with fields by their names of now. Those that came since are the last ones: null, they change no
    hash.
    """
    match now, then:
        case Leaf(), Leaf():
            return then
        case ArrayOf(), ArrayOf():
            return ArrayOf(_then(now.element, then.element))
        case StructOf(), StructOf():
            by_name = {one.stored_as: one for one in now.members}
            kept = [
                msgspec.structs.replace(by_name[one.name], type=_then(by_name[one.name].type, one.type))
                for one in then.members
                if one.name in by_name
            ]
            names = {one.stored_as for one in kept}
            return StructOf((*kept, *(one for one in now.members if one.stored_as not in names)))
    return now


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray | pa.Array) -> NDArray[np.bool_]:
    """Which values of two columns are equal, by their hashes: nulls with nulls, and numbers that are none as well."""
    nulls: NDArray[np.bool_] = pc.equal(pc.is_null(one), pc.is_null(other)).to_numpy(zero_copy_only=False)
    equal: NDArray[np.bool_] = nulls & (_hashed([one]) == _hashed([other]))
    return equal


def _hashed(columns: Sequence[pa.ChunkedArray | pa.Array]) -> NDArray[np.int64]:
    """The hash of each row of these columns, together."""
    table = pa.table(list(columns), names=[str(number) for number in range(len(columns))])
    hashed = [hashes_of(batch.columns, batch.num_rows) for batch in table.to_batches()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *hashed])
