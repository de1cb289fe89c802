"""Rows of JSON, read as the columns declare where Arrow would make something else of them and say nothing.

Arrow takes a time without a zone for one of UTC, and leaves out the zone of one that is to have none. It takes a number
for a day, and no day that is written as one. It makes infinity of a number that is too large for a `float`, and reads
texts that are no UTF-8. It refuses a row that is longer than a block, and every file for a table with a map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from epochlake.jobs.exchange.casting import first_that_cannot_be
from epochlake.jobs.exchange.json_faults import first_unfit, without_row

BLOCK_BYTES = 1 << 20
"""What Arrow reads at once; a row within it may be as long."""

_READ = pa_json.ReadOptions(block_size=BLOCK_BYTES)

_MOST_BYTES = 2**31 - 1


def read_json(path: Path, declared: Mapping[str, pa.DataType]) -> tuple[pa.Table, dict[str, tuple[int, object]]]:
    """The rows of a file, and by column the first row, from 0, that does not fit with its value: then the table is not
    of use. Raises OSError, ArrowException.
    """
    # A map that is there is read as a struct, which nobody takes for one.
    declared = {name: type_ for name, type_ in declared.items() if not _has_map(type_)}
    as_texts = {name: _with(type_, _is_of_time, pa.string()) for name, type_ in declared.items()}
    try:
        table = _guessed(path, _read(path, as_texts), as_texts)
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        if not path.is_file():
            raise
        if found := first_unfit(path, as_texts):
            of, at, value = found
            return pa.table({}), {of: (at, value)}
        raise without_row(error) from error
    unfit: dict[str, tuple[int, object]] = {}
    for name, wanted in declared.items():
        if name not in table.schema.names:
            continue
        values = table[name]
        if as_texts[name] != wanted:
            try:
                fitted = values.cast(wanted)
            except pa.ArrowException:
                row = first_that_cannot_be(values, wanted)
                if row is None:
                    raise
                unfit[name] = row, values[row].as_py()
                continue
            table = table.set_column(table.schema.get_field_index(name), name, fitted)
        if _with(wanted, pa.types.is_float32, pa.float64()) != wanted and any(map(_has_infinity, values.chunks)):
            wide = _read(path, as_texts | {name: _with(as_texts[name], pa.types.is_float32, pa.float64())})[name]
            for number, (narrow, exact) in enumerate(zip(values.to_pylist(), wide.to_pylist(), strict=True)):
                if _grew_infinite(narrow, exact):
                    unfit[name] = number, exact
                    break
    return table, unfit


def _guessed(path: Path, table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The table with what nobody declares, and Arrow has taken for times without a zone, as what its texts say: days,
    times, moments, or texts where they say several of these.
    """
    of_time = {
        field.name: field.type
        for field in table.schema
        if field.name not in types and _with(field.type, _is_of_time, pa.string()) != field.type
    }
    if not of_time:
        return table
    table = _read(path, dict(types) | {name: _with(type_, _is_of_time, pa.string()) for name, type_ in of_time.items()})
    for name, type_ in of_time.items():
        for guess in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
            with suppress(pa.ArrowException):
                fitted = table[name].cast(_with(type_, _is_of_time, guess))
                table = table.set_column(table.schema.get_field_index(name), name, fitted)
                break
    return table


def _read(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    options = pa_json.ParseOptions(explicit_schema=pa.schema(list(types.items())))
    try:
        return pa_json.read_json(path, read_options=_READ, parse_options=options)
    except pa.ArrowInvalid:
        # It may be that a row is longer than a block: then all of the file is one, or as much as Arrow can count.
        if not path.is_file() or (size := path.stat().st_size) < BLOCK_BYTES:
            raise
        whole = pa_json.ReadOptions(block_size=min(size + 1, _MOST_BYTES))
        return pa_json.read_json(path, read_options=whole, parse_options=options)


def _is_of_time(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) or pa.types.is_date(type_)


def _has_map(type_: pa.DataType) -> bool:
    return _with(type_, pa.types.is_map, pa.null()) != type_


def _with(type_: pa.DataType, is_meant: Callable[[pa.DataType], bool], other: pa.DataType) -> pa.DataType:
    """The type with another one in place of those that are meant, at any depth."""
    if is_meant(type_):
        return other
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_with(field.type, is_meant, other)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_with(type_.value_type, is_meant, other)))
    if pa.types.is_map(type_):
        item = type_.item_field.with_type(_with(type_.item_type, is_meant, other))
        return pa.map_(type_.key_field.with_type(_with(type_.key_type, is_meant, other)), item)
    return type_


def _has_infinity(values: pa.Array) -> bool:
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_inf(values)).as_py())
    if pa.types.is_struct(values.type):
        return any(map(_has_infinity, values.flatten()))
    if pa.types.is_map(values.type):
        return _has_infinity(values.keys) or _has_infinity(values.items)
    return pa.types.is_list(values.type) and _has_infinity(values.flatten())


def _grew_infinite(narrow: object, exact: object) -> bool:
    """Whether there is a number that is infinity as a `float` alone."""
    if isinstance(narrow, float) and isinstance(exact, float):
        return math.isinf(narrow) and not math.isinf(exact)
    if isinstance(narrow, dict) and isinstance(exact, dict):
        return any(_grew_infinite(narrow[key], exact[key]) for key in narrow)
    if isinstance(narrow, list | tuple) and isinstance(exact, list | tuple):
        return any(map(_grew_infinite, narrow, exact))
    return False
