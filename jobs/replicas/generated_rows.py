"""Computing generated columns, and comparing them where they are given: by one engine, whoever writes the rows.

Rows are looked at as a file has them, read as the table is now: so a program that began before there was a generated
column writes its values too. It imports no Spark: executors use it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas.column_types import arrow_type
from epochlake.jobs.replicas.file_columns import FileColumns, file_columns
from epochlake.jobs.replicas.row_values import shown_rows
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.struct_columns import FIELD_ID
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import words_of


class GeneratedValues(msgspec.Struct, frozen=True, eq=False):
    """A generated column as Arrow computes it: `expression` over the columns `reads`, by their names of now."""

    column: Column
    expression: pc.Expression
    reads: tuple[str, ...]

    def __str__(self) -> str:
        assert self.column.generated is not msgspec.UNSET
        return f"column {self.column.name!r}, which is generated as ({self.column.generated.expression}),"


class RowGeneration(msgspec.Struct, frozen=True, eq=False):
    """The generated columns of a table as it is now. Travels to the executors."""

    table: Table
    columns: tuple[GeneratedValues, ...]


class Completed(NamedTuple):
    """Rows with all columns that they are made for; `beside`: those that their table has got since, as a file calls
    them.
    """

    rows: pa.Table
    beside: dict[pa.Field, pa.ChunkedArray]


class NotGenerated(Exception):
    """Rows whose generated columns cannot be computed, or are given with other values. `hint`: what can be done."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def values_of(expression: pc.Expression, rows: pa.Table) -> pa.ChunkedArray:
    """What an expression is for each row. Raises ArrowException."""
    import pyarrow.acero as acero  # it brings pandas, which commands that compute nothing do without

    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False).column("value")


def completed(
    generation: RowGeneration | None, table: Table, rows: pa.Table, *, compared: bool, deleted: bool = False
) -> Completed:
    """Rows for a table (as whoever made them knows it), which may lack generated columns, with all of its columns.

    What they give is compared with what it would be, if asked for. Rows may say in `_deleted` that they are tombstones;
    with `deleted` all are. Of these nothing is computed.

    Raises NotGenerated.
    """
    lacking = [column for column in table.generated if column.name not in rows.column_names]
    if generation is None and not lacking:
        return Completed(rows, {})
    known = {} if generation is None else {one.column.column_id: one for one in generation.columns}
    compute = _computing(generation, table, rows, deleted)
    made: dict[str, pa.ChunkedArray] = {}
    for column in table.numbered:
        one = known.pop(column.column_id, None)
        if column in lacking:
            # Without a rule the column was dropped since, and nothing of it is lost.
            nothing = pa.chunked_array([pa.nulls(rows.num_rows, arrow_type(column.type))])
            made[column.name] = nothing if one is None or deleted else compute(one, arrow_type(column.type))
        elif one is not None and compared and not deleted:
            computed = compute(one, arrow_type(one.column.type))
            _require_same(one, generation, rows, rows.column(column.name), computed)
    beside = {}
    for one in known.values():
        if not deleted:
            number = {FIELD_ID: str(one.column.column_id).encode()}
            type_ = arrow_type(one.column.type)
            beside[pa.field(one.column.stored_name, type_, True, number)] = compute(one, type_)
    if lacking:
        names = [column.name for column in table.columns]
        others = [name for name in rows.column_names if name not in names]
        rows = pa.table({name: made[name] if name in made else rows.column(name) for name in (*names, *others)})
    return Completed(rows, beside)


def _computing(
    generation: RowGeneration | None, table: Table, rows: pa.Table, deleted: bool
) -> Callable[[GeneratedValues, pa.DataType], pa.ChunkedArray]:
    """Computes one column after another of rows, as a type; null for tombstones. Raises NotGenerated."""
    known_as = file_columns(table)
    stored = rows if known_as is None else known_as.as_stored(rows)
    if DELETED not in stored.column_names:
        stored = stored.append_column(DELETED, pa.repeat(deleted, rows.num_rows))
    is_deleted = stored.column(DELETED)

    def compute(one: GeneratedValues, type_: pa.DataType) -> pa.ChunkedArray:
        assert generation is not None
        now = file_columns(generation.table) or FileColumns(generation.table.numbered, len(generation.table.columns))
        try:
            values = values_of(one.expression, now.as_table_is_now(stored, one.reads)).cast(type_)
            found = pc.if_else(is_deleted, pa.scalar(None, type_), values.combine_chunks())
        except pa.ArrowException as error:
            raise NotGenerated(
                f"{one} cannot be computed of these rows: {words_of(error)}", "Correct these rows, or leave them out"
            ) from error
        return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found], type_)

    return compute


def _require_same(
    one: GeneratedValues,
    generation: RowGeneration | None,
    rows: pa.Table,
    given: pa.ChunkedArray,
    computed: pa.ChunkedArray,
) -> None:
    """Raises NotGenerated where values that are given are not those that are computed; null is like null."""
    assert generation is not None
    given = given.cast(computed.type)
    same = pc.fill_null(pc.equal(given, computed), False)
    same = pc.or_(same, pc.and_(pc.is_null(given), pc.is_null(computed)))
    if pa.types.is_floating(computed.type):
        numbers = (pc.fill_null(pc.is_nan(one), False) for one in (given, computed))
        same = pc.or_(same, pc.and_(*numbers))
    if DELETED in rows.column_names:
        same = pc.or_(same, rows.column(DELETED))
    wrong = pc.indices_nonzero(pc.invert(same))
    if len(wrong):
        first = wrong[0].as_py()
        [key] = shown_rows(
            rows.slice(first, 1).select([name for name in generation.table.primary_key if name in rows.schema.names])
        )
        raise NotGenerated(
            f"{one} has another value in at least {len(wrong)} of the rows given: of {key} it is "
            f"{_said(computed[first])}, and not {_said(given[first])}",
            "Leave the column out: it is computed",
        )


def _said(value: pa.Scalar) -> str:
    return "null" if not value.is_valid else str(value)
