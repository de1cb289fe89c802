"""Making rows of Arrow, of pandas or of Python what the table declares, or saying exactly why they are not.

The rule is the one of DataFrames (fitting.py). No value changes: what the declared type cannot hold is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_types import arrow_type, type_name
from epochlake.jobs.gate.fitting import canonical, is_same_type, misfit, require_fitting_columns, wrong_type
from epochlake.jobs.gate.generated_expressions import row_generation
from epochlake.jobs.gate.python_values import REFUSED_BY_ARROW, UnfitValue, array_of, shown
from epochlake.jobs.replicas.file_columns import filled
from epochlake.jobs.replicas.generated_rows import NotGenerated, completed
from epochlake.jobs.replicas.struct_columns import as_declared, fields_of
from epochlake.jobs.replicas.struct_columns import completed as completed_struct
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest, words_of
from msgspec import UNSET

if TYPE_CHECKING:
    import pandas as pd


_CORRECT = "Correct this value, or leave its row out"

_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


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
                values = _inferred([row.get(name) for row in rows], name, table)
                given = given.set_column(given.column_names.index(name), name, values)
        return given
    given = _given(rows, table, table.columns)
    return pa.table({name: _taken_apart(given.column(name)) for name in given.column_names}) if _once(given) else given


def _once(given: pa.Table) -> bool:
    """Whether each name is that of one column: what else is wrong is said later."""
    return len(set(given.column_names)) == len(given.column_names)


def _inferred(values: Sequence[object], name: str, table: Table) -> pa.Array:
    """Values with the type that Arrow gives them. Raises InvalidRequest naming the column, and a value where it can."""
    try:
        return pa.array(values)
    except REFUSED_BY_ARROW as error:
        said = f"column {name} of the source has values that are of no one type ({words_of(error)})"
        for value in values:
            try:
                pa.array([value])
            except REFUSED_BY_ARROW:
                said = f"column {name} of the source has {shown(value)}, which is no value of a column"
                break
        raise misfit(table, [said], hint="Give it as a pyarrow.Table, with the type that is meant") from error


def _taken_apart(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as a type that Arrow can choose from and compute with: views, as Polars gives them, and runs are none."""
    if pa.types.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    plain = _PLAIN.get(values.type)
    return values if plain is None else values.cast(plain)


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
            arrays.append(_of_series(series, name, table, columns))
        elif name in declared:
            arrays.append(_of_values(_without_missing(series), declared[name], table, columns))
        else:
            arrays.append(pa.nulls(len(frame)))
    return pa.table(arrays, names=names)


def _of_series(series: pd.Series[Any], name: str, table: Table, columns: Sequence[Column]) -> pa.Array:
    try:
        return pa.array(series, from_pandas=True)
    except REFUSED_BY_ARROW as error:
        said = f"column {name} is {series.dtype} of pandas, which Arrow cannot have: {words_of(error)}"
        hint = f'Say which type is meant: frame["{name}"].astype(…)'
        raise misfit(table, [said], columns, hint=hint) from error


def _without_missing(series: pd.Series[Any]) -> list[object]:
    """The values of a column, None where pandas takes one for missing."""
    try:
        missing = series.isna()
    except InvalidOperation:  # of a decimal that is a signalling NaN, which fits no column
        return list(series)
    return [None if gone else value for value, gone in zip(series, missing, strict=True)]


def _of_values(values: Sequence[object], column: Column, table: Table, columns: Sequence[Column]) -> pa.Array:
    fields = fields_of(column)
    if fields is not None:
        values = [completed_struct(value, fields) for value in values]
    try:
        return array_of(values, arrow_type(column.type))
    except UnfitValue as error:
        said = f"column {column.name} is {canonical(column.type)}: {error}"
        raise misfit(table, [said], columns, hint=_CORRECT) from error


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
    if values.type != wanted:
        values = _widened(values, wanted, column, table)
    _require_digits(values, column, table)
    return values


def _widened(values: pa.ChunkedArray, wanted: pa.DataType, column: Column, table: Table) -> pa.ChunkedArray:
    try:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        fields = fields_of(column)
        return values.cast(wanted) if fields is None else as_declared(values, fields)
    except pa.ArrowException as error:
        problem = f"column {column.name} is {canonical(column.type)}, and has a value that this cannot hold"
        raise misfit(table, [f"{problem}: {words_of(error)}"]) from error


def _require_digits(values: pa.ChunkedArray, column: Column, table: Table) -> None:
    """That decimals have no more digits than their type says: Arrow takes any for granted, and no reader could have
    them. Raises InvalidRequest.
    """
    for decimals in _decimals(values):
        limit = Decimal(1).scaleb(decimals.type.precision - decimals.type.scale)
        for one in pc.min_max(decimals).as_py().values():
            if one is not None and not -limit < one < limit:
                digits = decimals.type.precision - decimals.type.scale
                said = f"{shown(one)} is too large: it has more than {digits} digits before the point"
                raise misfit(table, [f"column {column.name} is {canonical(column.type)}: {said}"], hint=_CORRECT)


def _decimals(values: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The decimals that are in values, at any depth: only those that count, not what lies below a null, or beside the
    window of an array that is a part of a longer one.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        yield values
    elif pa.types.is_list(kind):
        yield from _decimals(pc.list_flatten(values))
    elif pa.types.is_map(kind):
        if not _has_decimals(kind):
            return  # nothing is copied for a look at nothing
        # Arrow has no look at a map that leaves out what its nulls have below them, as there is one at a list.
        there = values.filter(values.is_valid()).chunks
        yield from _decimals(pa.chunked_array([piece.keys for piece in there], kind.key_type))
        yield from _decimals(pa.chunked_array([piece.items for piece in there], kind.item_type))
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _decimals(pc.struct_field(values, [number]))


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(number).type) for number in range(kind.num_fields))


def _not_rows(rows: object, table: Table, columns: Sequence[Column], row: int | None = None) -> InvalidRequest:
    """The error for what are no rows; `columns`: those that are asked for, `row`: the number of one that is none."""
    kind = type(rows).__name__
    of_spark = _module(rows) == "pyspark"
    whose = "keys" if len(columns) < len(table.columns) else "rows"
    names = ", ".join(column.name for column in columns)
    example = ", ".join(f'"{column.name}": …' for column in columns)
    return InvalidRequest(
        f"{f'the {whose}' if row is None else f'row {row} of the {whose}'} for table {table.full_name} "
        f"{'are' if row is None else 'is'} {'an' if kind[:1] in 'aeiouAEIO' else 'a'} {kind}"
        f"{' of Spark' if of_spark else ''}, and have to be of Arrow, of pandas, or a list of dicts",
        hint="Write it with cluster.pipeline(…, spark)"
        if of_spark
        else f"Give [{{{example}}}], or a pyarrow.Table with {'the columns' if columns[1:] else 'the column'} {names}",
    )


def _is_of_pandas(rows: Any) -> TypeGuard[pd.DataFrame]:
    """Whether it is a DataFrame of pandas, which is not imported for that."""
    return _module(rows) == "pandas" and type(rows).__name__ == "DataFrame"


def _module(value: object) -> str:
    return type(value).__module__.partition(".")[0]
