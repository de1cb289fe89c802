"""Rows of others as a table declares them: what loses nothing is cast and named, what would lose is refused with its
rows.

The gate itself takes only what needs no look at the values (`fitting.py`). Here somebody brings a file that he did not
write for this table: a column may be missing and is null then, a number may be stored wider than it is, a day as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_types import arrow_type, type_name
from epochlake.jobs.gate.fitting import canonical, misfit, unknown_columns, what_became
from epochlake.jobs.gate.python_values import REFUSED_BY_ARROW
from epochlake.jobs.replicas.file_columns import filled as missing_values
from epochlake.metastore.metadata.model import Column, Table

SHOWN_ROWS = 5
"""So many rows of a column that would lose something are named."""


class Fitted(msgspec.Struct, frozen=True):
    """What was done to rows so that they fit. `casts`: by column, from which type to which; `filled`: columns that they
    lack, which are null, or have the column's default; `defaults`: of those the ones that have it, with its text.
    """

    casts: dict[str, str]
    filled: tuple[str, ...]
    defaults: dict[str, str] = {}


def fit(rows: pa.Table, table: Table, first_row: int = 0, *, keys_only: bool = False) -> tuple[pa.Table, Fitted]:
    """The rows with exactly the table's columns, generated ones where they have them; `first_row` is the number of the
    first one in its file.

    With `keys_only` the columns of the primary key, and no other. Raises InvalidRequest naming each column that cannot
    be had without a loss, and the first rows that would lose, by their numbers from 0.
    """
    wanted = [column for column in table.columns if not keys_only or column.name in table.primary_key]
    names = rows.column_names
    problems = [f"it has {name} twice" for name in sorted({name for name in names if names.count(name) > 1})]
    unknown = [] if keys_only else unknown_columns(table.columns, names)
    problems += [*unknown, *what_became(table, names)] if unknown else []
    casts: dict[str, str] = {}
    filled: list[str] = []
    columns: dict[str, pa.ChunkedArray] = {}
    for column in wanted:
        if column.name not in names:
            if column.generated is not msgspec.UNSET:
                continue
            if column.nullable or table.may_be_left_out(column):
                filled.append(column.name)
                columns[column.name] = pa.chunked_array([missing_values(column, len(rows))])
            else:
                problems.append(f"column {column.name} ({canonical(column.type)}) is missing, and may not be null")
            continue
        if names.count(column.name) > 1:
            continue
        given = rows.column(column.name)
        fitted, lost = cast_without_loss(given, arrow_type(column.type))
        if lost:
            problems.append(_would_lose(column, given, lost, first_row))
            continue
        assert fitted is not None
        columns[column.name] = fitted
        if canonical(type_name(given.type)) != canonical(column.type) and not pa.types.is_null(given.type):
            casts[column.name] = f"{canonical(type_name(given.type))} to {canonical(column.type)}"
    if problems:
        raise misfit(table, problems, wanted)
    lacking = (column for column in wanted if column.name in filled)
    defaults = {column.name: column.default for column in lacking if column.default is not msgspec.UNSET}
    return pa.table(columns), Fitted(casts, tuple(filled), defaults)


_REFUSED = (*REFUSED_BY_ARROW, LookupError)
"""What is raised for a value that another type, or Python, cannot have: also for a zone that nobody knows."""


def cast_without_loss(values: pa.ChunkedArray, wanted: pa.DataType) -> tuple[pa.ChunkedArray | None, list[int]]:
    """The values as another type, or the numbers of the first rows that this would change."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.type == wanted:
        return values, []
    with suppress(pa.ArrowException):
        found = _cast(values, wanted)
        if _is_same(values, found):
            return found, []
    lost = list(_losing(values, wanted))
    if lost:
        return None, lost
    # Each value by itself is the same, in another writing than Arrow's: a decimal as text, a time with its zone.
    return pa.chunked_array([_by_value(piece, wanted) for piece in values.chunks], wanted), []


def first_that_cannot_be(values: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> int | None:
    """The number of the first row that Arrow refuses to cast, for the error; None where it casts each by itself."""
    for number in range(len(values)):
        try:
            values.slice(number, 1).take(pa.array([0])).cast(wanted)
        except pa.ArrowException:
            return number
    return None


def _cast(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_decimal(wanted) and pa.types.is_integer(values.type):
        # Arrow asks for room for every number of the type, not for those that are there.
        values = values.cast(pa.decimal128(38, 0)).cast(pa.decimal128(38, wanted.scale))
    return values.cast(wanted)


def _is_same(values: pa.ChunkedArray, found: pa.ChunkedArray) -> bool:
    """Whether nothing is lost: cast back, each value is what it was."""
    if pa.types.is_null(values.type):
        return found.null_count == len(found)  # whatever that is a column of
    if pa.types.is_nested(values.type) or pa.types.is_nested(found.type):
        return _is_same_within(_alone(values), _alone(found))
    if pa.types.is_temporal(values.type) != pa.types.is_temporal(found.type) and not (
        _is_text(values.type) or _is_text(found.type) or pa.types.is_null(values.type)
    ):
        return False  # a number is no moment: it does not say of what unit, since when
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(found.type):
        # Another zone shows the same moment; a time without a zone is no moment.
        return (values.type.tz is None) == (found.type.tz is None)
    if pa.types.is_date(values.type) and pa.types.is_timestamp(found.type) and found.type.tz is not None:
        return False  # nor is a day
    try:
        back = found.cast(values.type)
        same = pc.equal(values, back)
        if pa.types.is_floating(values.type):
            same = pc.or_(same, pc.and_(pc.is_nan(values), pc.is_nan(back)))
    except pa.ArrowException:
        return False
    return bool(pc.all(same, skip_nulls=True, min_count=0).as_py())


def _is_same_within(values: pa.Array, found: pa.Array) -> bool:
    """`_is_same` of lists, maps and structs: as many elements, nulls in the same places, no field left behind.

    Arrow casts what is in them with less care: it drops fields, rounds, and takes a time without a zone for UTC.
    """
    if not pa.types.is_nested(values.type):
        if pa.types.is_nested(found.type) and not pa.types.is_null(values.type):
            return False
        return _is_same(pa.chunked_array([values]), pa.chunked_array([found]))
    if values.type.id != found.type.id and not (_is_list(values.type) and _is_list(found.type)):
        return False
    if not values.is_valid().equals(found.is_valid()):
        return False
    if pa.types.is_struct(values.type):
        fields = {field.name: part for field, part in zip(found.type, found.flatten(), strict=True)}
        parts = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        return len(parts) == values.type.num_fields and all(
            name in fields and _is_same_within(part, fields[name]) for name, part in parts.items()
        )
    if pa.types.is_map(values.type):
        return (
            values.offsets.equals(found.offsets)
            and _is_same_within(values.keys, found.keys)
            and _is_same_within(values.items, found.items)
        )
    lengths, found_lengths = pc.list_value_length(values), pc.list_value_length(found)
    return lengths.cast(pa.int64()).equals(found_lengths.cast(pa.int64())) and _is_same_within(
        _alone(values.flatten()), _alone(found.flatten())
    )


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)


def _alone(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The values as one array that is no window on a longer one, with nothing behind its nulls."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return whole.take(pa.array(range(len(whole)), pa.int64()))


def _losing(values: pa.ChunkedArray, wanted: pa.DataType) -> Iterator[int]:
    """The numbers of rows whose value another type cannot hold, at most `SHOWN_ROWS`."""
    found = 0
    for number, value in enumerate(value for piece in values.chunks for value in piece):
        if value.is_valid and _one(value, wanted) is None:
            yield number
            found += 1
            if found == SHOWN_ROWS:
                return


def _by_value(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return pa.array([_one(value, wanted) if value.is_valid else None for value in values], wanted)


def _one(value: pa.Scalar, wanted: pa.DataType) -> pa.Scalar | None:
    """One value as another type; None where that would lose something."""
    try:
        alone = pa.chunked_array([pa.array([value.as_py()], value.type)])
        found = _cast(alone, wanted)
        if _is_same(alone, found):
            return found[0]
        if _is_text(value.type):
            return found[0] if _reads_the_same(value.as_py(), found[0]) else None
    except _REFUSED:
        pass
    return None


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)


def _reads_the_same(text: str, found: pa.Scalar) -> bool:
    """Whether a text says what was made of it: the same number however many zeros follow, the same moment."""
    if pa.types.is_timestamp(found.type):
        # Arrow takes a zone at the end for UTC's distance; without one it is no moment.
        said = text.strip().upper()
        zoned = said.endswith("Z") or "+" in said[10:] or "-" in said[10:]
        return zoned == (found.type.tz is not None)
    try:
        if pa.types.is_integer(found.type):
            return text == str(found.as_py())
        return Decimal(text) == Decimal(repr(found.as_py()) if pa.types.is_floating(found.type) else found.as_py())
    except (InvalidOperation, TypeError, ValueError):
        return False


def _would_lose(column: Column, given: pa.ChunkedArray, lost: list[int], first_row: int) -> str:
    rows = ", ".join(f"row {first_row + number} has {_shown(given[number])}" for number in lost)
    many = ", …" if len(lost) == SHOWN_ROWS else ""
    wanted, have = canonical(column.type), canonical(type_name(given.type))
    if have == wanted:  # of another unit, which only Arrow's own name of the type tells
        have = f"{given.type}, which has finer parts than a {wanted}" if "[ns" in str(given.type) else str(given.type)
    return f"column {column.name} is {wanted}, not {have}, and would lose: {rows}{many}"


def _shown(value: pa.Scalar) -> str:
    """A value for people. A time by Arrow: Python's own has no nanoseconds."""
    of_time = pa.types.is_timestamp(value.type) or pa.types.is_time(value.type)
    try:
        return str(value.cast(pa.string())) if of_time and value.is_valid else repr(value.as_py())
    except _REFUSED:
        return f"a {value.type} that Python has no word for"
