"""Rows of JSON, read as the columns declare where Arrow would make something else of them and say nothing.

Arrow takes a time without a zone for one of UTC, and makes infinity of a number that is too large for a `float`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from epochlake.jobs.exchange.casting import first_that_cannot_be


def read_json(path: Path, declared: Mapping[str, pa.DataType]) -> tuple[pa.Table, dict[str, tuple[int, object]]]:
    """The rows of a file, and by column the first row, from 0, that does not fit with its value: then the table is not
    of use. Raises OSError, ArrowException.
    """
    as_texts = {name: _with(type_, _is_moment, pa.string()) for name, type_ in declared.items()}
    table = _read(path, as_texts)
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


def _read(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    options = pa_json.ParseOptions(explicit_schema=pa.schema(list(types.items())))
    return pa_json.read_json(path, parse_options=options)


def _is_moment(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


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
