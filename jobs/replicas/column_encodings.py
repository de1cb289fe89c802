"""How the columns of a data file are encoded: a dictionary where values come again, differences where they do not.

A dictionary of a nearly unique column is written, filled and given up, and the column is larger for it. Which one it
is is told by a sample of the file's first row group. Only encodings that Spark's vectorised reader takes are used
(docs/decisions/054-encodings.md has the figures).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS = 1 << 12
SAMPLE_BYTES = 1 << 20
"""What is looked at of a column, spread over the row group: at most so many values, of about so many bytes."""

DIFFERENCES = "DELTA_BINARY_PACKED"
LENGTHS_APART = "DELTA_LENGTH_BYTE_ARRAY"

REPEATED = 4
"""A dictionary pays where a value comes so many times on average."""

NUMBERS_REPEATED = 0.8
"""Whole numbers are read faster as differences: a dictionary has to be smaller than this part of them."""

MOST_DIGITS = 18
"""Decimals of so many digits are stored as whole numbers, as Spark itself does: read five times as fast by PyArrow."""

_VALUE_BITS = 64


class Encodings(NamedTuple):
    """Of the columns of a file: those with a dictionary, and the encodings of others; the rest is plain."""

    dictionaries: list[str]
    others: dict[str, str]


def encodings_of(rows: pa.Table) -> Encodings:
    """What suits a file that begins with these rows."""
    chosen = Encodings([], {})
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        type_ = column.type
        if pa.types.is_nested(type_) or pa.types.is_dictionary(type_) or "." in name:
            # A path with a point may be another column's leaf, of another type.
            chosen.dictionaries.append(name)
            continue
        other = _other_than_dictionary(type_)
        if not pa.types.is_boolean(type_) and _is_repeated(column):
            chosen.dictionaries.append(name)
        elif other is not None:
            chosen.others[name] = other
    return chosen


def _other_than_dictionary(type_: pa.DataType) -> str | None:
    """The encoding of values that hardly come again; None: plain."""
    if _is_whole(type_):
        return DIFFERENCES
    variable = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return LENGTHS_APART if any(is_type(type_) for is_type in variable) else None


def _is_whole(type_: pa.DataType) -> bool:
    """Whether the file keeps it as a whole number, small decimals as those of their last digit."""
    small = pa.types.is_decimal(type_) and type_.precision <= MOST_DIGITS
    return small or pa.types.is_integer(type_) or pa.types.is_temporal(type_)


def _is_repeated(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary makes the column smaller."""
    rows = len(column)
    sample = _sample(column)
    if not len(sample):
        return False
    distinct = distinct_values(rows, len(sample), pc.count_distinct(sample, mode="all").as_py())
    if not _is_whole(column.type):
        return distinct * REPEATED <= rows
    span = _span(sample)
    of_dictionary = math.ceil(math.log2(distinct)) + _VALUE_BITS * distinct / rows
    return of_dictionary < NUMBERS_REPEATED * math.ceil(math.log2(span + 1))


def _span(numbers: pa.ChunkedArray) -> int:
    """How far the least of whole numbers is from the greatest."""
    type_ = numbers.type
    if not pa.types.is_decimal(type_):
        numbers = numbers.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(pa.int64())
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None:
        return 0
    span = ends["max"] - ends["min"]
    return int(span.scaleb(type_.scale)) if pa.types.is_decimal(type_) else int(span)


def _sample(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values from all over a column."""
    rows = len(column)
    wide = max(1, column.nbytes // max(1, rows))
    most = max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // wide))
    return column if rows <= most else column.take(pa.array(np.linspace(0, rows - 1, most).astype(np.int64)))


def distinct_values(rows: int, sampled: int, seen: int) -> int:
    """About how many different values so many rows have, when a sample of them has `seen`: as many as would show that
    number on average if each came equally often.
    """
    if sampled >= rows:
        return seen
    if seen >= sampled:
        return rows
    low, high = float(seen), float(rows)
    while high - low > 1:
        middle = (low + high) / 2
        if middle * -math.expm1(-sampled / middle) < seen:
            low = middle
        else:
            high = middle
    return round(low)
