"""Making rows of Arrow, of pandas or of Python what the table declares, or saying exactly why they are not.

The rule is the one of DataFrames (fitting.py). No value changes: what the declared type cannot hold is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
from epochlake.jobs.gate.arrow_types import arrow_type, type_name
from epochlake.jobs.gate.fitting import canonical, is_same_type, misfit, require_fitting_columns, wrong_type
from epochlake.jobs.gate.generated_expressions import row_generation
from epochlake.jobs.gate.python_values import UnfitValue, array_of
from epochlake.jobs.replicas.file_columns import filled
from epochlake.jobs.replicas.generated_rows import NotGenerated, completed
from epochlake.jobs.replicas.struct_columns import as_declared, fields_of
from epochlake.jobs.replicas.struct_columns import completed as completed_struct
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest, words_of
from msgspec import UNSET

if TYPE_CHECKING:
    import pandas as pd


def conform_arrow(rows: object, table: Table) -> pa.Table:
    """The rows with the table's columns, in its order and types. Raises InvalidRequest naming every wrong column.

    Generated columns that are not given are computed; what is given is compared where rows are encoded.

    `rows` are a table, a batch or a reader of Arrow, whatever else gives itself as a stream of Arrow, a DataFrame of
    pandas (its index does not count, and what it takes for missing is null), or a sequence of mappings from column to
    value.
    """
    fitting = _as_declared(_given(rows, table, table.columns), table, table.columns)
    try:
        return completed(row_generation(table), table, fitting, compared=False).rows
    except NotGenerated as wrong:
        raise InvalidRequest(f"these rows do not fit table {table.full_name}: {wrong}", hint=wrong.hint) from wrong


def conform_arrow_keys(keys: object, table: Table) -> pa.Table:
    """The primary key of rows, with every other column of the table null: the rows of a delete.

    Other columns of `keys` do not count. Raises as `conform_arrow`.
    """
    columns = [column for column in table.columns if column.name in table.primary_key]
    given = _given(keys, table, columns)
    given = given.select([number for number, name in enumerate(given.column_names) if name in table.primary_key])
    selected = _as_declared(given, table, columns)
    nothing = {
        column.name: pa.nulls(selected.num_rows, arrow_type(column.type))
        for column in table.columns
        if column not in columns
    }
    return pa.table(
        {
            column.name: nothing[column.name] if column.name in nothing else selected.column(column.name)
            for column in table.columns
        }
    )


def source_of(rows: object, table: Table) -> pa.Table:
    """The rows that a merge has as its source, in any form that `conform_arrow` takes: the key and whatever else.

    In dicts values of columns that the table has have its types, and others those that Arrow gives them. Raises
    InvalidRequest for what are no rows.
    """
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes | bytearray | memoryview):
        names = dict.fromkeys(str(name) for row in rows if isinstance(row, Mapping) for name in row)
        declared = {column.name for column in table.columns}
        given = _of_mappings(rows, table, table.columns)
        for name in names:
            if name not in declared:
                try:
                    values = pa.array([row.get(name) for row in rows])
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    raise misfit(table, [f"column {name} of the source: {words_of(error)}"]) from error
                given = given.set_column(given.column_names.index(name), name, values)
        return given
    return _given(rows, table, table.columns)


def held(rows: object) -> object:
    """Rows that can be read again and again, of rows in any form: what gives its rows once is read now."""
    if isinstance(rows, pa.Table) or _is_of_pandas(rows) or _module(rows) == "pyspark":
        return rows
    return pa.table(rows) if hasattr(rows, "__arrow_c_stream__") else rows


def _given(rows: object, table: Table, columns: Sequence[Column]) -> pa.Table:
    """The rows as they are given; values of Python for one of `columns` with its declared type."""
    if _is_of_pandas(rows):
        return _of_pandas(rows, table, columns)
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes | bytearray | memoryview):
        return _of_mappings(rows, table, columns)
    if _module(rows) != "pyspark" and hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    raise _not_rows(rows, table, columns)


def _of_mappings(rows: Sequence[object], table: Table, columns: Sequence[Column]) -> pa.Table:
    if not rows:
        return pa.table({column.name: pa.nulls(0, arrow_type(column.type)) for column in columns})
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise _not_rows(row, table, columns, number)
        names |= dict.fromkeys(map(str, row))
    declared = {column.name: column for column in columns}
    arrays = {}
    for name in names:
        if name not in declared:
            arrays[name] = pa.nulls(len(rows))  # whether it may be there is said later
            continue
        lacking = next((number for number, row in enumerate(rows) if name not in row), None)  # type: ignore[operator]
        if lacking is not None:
            raise misfit(table, [f"column {name} is missing in row {lacking}, and other rows have it"])
        arrays[name] = _of_values([row[name] for row in rows], declared[name], table, columns)  # type: ignore[index]
    return pa.table(arrays)


def _of_pandas(frame: pd.DataFrame, table: Table, columns: Sequence[Column]) -> pa.Table:
    declared = {column.name: column for column in columns}
    names = [str(name) for name in frame.columns]
    arrays = []
    for number, name in enumerate(names):
        series = frame.iloc[:, number]
        if series.dtype != object:
            arrays.append(pa.array(series, from_pandas=True))
        elif name in declared:
            values = [None if missing else value for value, missing in zip(series, series.isna(), strict=True)]
            arrays.append(_of_values(values, declared[name], table, columns))
        else:
            arrays.append(pa.nulls(len(frame)))
    return pa.table(arrays, names=names)


def _of_values(values: Sequence[object], column: Column, table: Table, columns: Sequence[Column]) -> pa.Array:
    fields = fields_of(column)
    if fields is not None:
        values = [completed_struct(value, fields) for value in values]
    try:
        return array_of(values, arrow_type(column.type))
    except UnfitValue as error:
        raise misfit(table, [f"column {column.name} is {canonical(column.type)}: {error}"], columns) from error


def _as_declared(given: pa.Table, table: Table, columns: Sequence[Column]) -> pa.Table:
    types = [(field.name, type_name(field.type)) for field in given.schema]
    require_fitting_columns(table, columns, types)
    named = dict(types)
    # Arrow finds the fields of a struct by their very names, and gives nulls for others.
    problems = [
        wrong_type(column, name)
        for column in columns
        if (name := named.get(column.name)) is not None
        and is_same_type(canonical(name), canonical(column.type))
        and canonical(name) != canonical(column.type)
    ]
    if problems:
        raise misfit(table, problems)
    return pa.table(
        {
            column.name: _cast(given.column(column.name), column, table)
            if column.name in named
            else filled(column, given.num_rows)
            for column in columns
            if column.name in named or column.generated is UNSET
        }
    )


def _cast(values: pa.ChunkedArray, column: Column, table: Table) -> pa.ChunkedArray:
    wanted = arrow_type(column.type)
    # Arrow hands over empty pieces at places that their buffers do not have, and fails to put these together.
    values = pa.chunked_array([piece for piece in values.chunks if len(piece)], values.type)
    if values.type == wanted:
        return values
    try:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        fields = fields_of(column)
        return values.cast(wanted) if fields is None else as_declared(values, fields)
    except pa.ArrowException as error:
        problem = f"column {column.name} is {canonical(column.type)}, and has a value that this cannot hold"
        raise misfit(table, [f"{problem}: {words_of(error)}"]) from error


def _not_rows(rows: object, table: Table, columns: Sequence[Column], row: int | None = None) -> InvalidRequest:
    """The error for what are no rows; `columns`: those that are asked for, `row`: the number of one that is none."""
    kind = type(rows).__name__
    of_spark = _module(rows) == "pyspark"
    whose = "keys" if len(columns) < len(table.columns) else "rows"
    return InvalidRequest(
        f"{f'the {whose}' if row is None else f'row {row} of the {whose}'} for table {table.full_name} "
        f"{'are' if row is None else 'is'} a {kind}{' of Spark' if of_spark else ''}, and have to be of Arrow, of "
        "pandas, or a list of dicts",
        hint="Write it with cluster.pipeline(…, spark)"
        if of_spark
        else f"Give a pyarrow.Table with {'the columns' if columns[1:] else 'the column'} "
        f"{', '.join(column.name for column in columns)}",
    )


def _is_of_pandas(rows: Any) -> TypeGuard[pd.DataFrame]:
    """Whether it is a DataFrame of pandas, which is not imported for that."""
    return _module(rows) == "pandas" and type(rows).__name__ == "DataFrame"


def _module(value: object) -> str:
    return type(value).__module__.partition(".")[0]
