"""Filters of rows as text: `delay > 30`, `origin = EWR`, `tail is null`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest

_FILTER = re.compile(
    r"\s*(?P<name>[^\s<>=!]+)\s*(?P<sign><=|>=|<>|!=|==|=|<|>|is\s+not\s+null|is\s+null)\s*(?P<value>.*)",
    re.IGNORECASE | re.DOTALL,
)

_COMPARED: Mapping[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_filters(texts: Iterable[str], table: Table) -> pc.Expression | None:
    """The expression that all of the filters are, None for none. Raises InvalidRequest."""
    found = [_filter(text, table) for text in texts]
    return reduce(operator.and_, found) if found else None


def parse_values(texts: Mapping[str, str], table: Table) -> dict[str, object]:
    """Values of columns, each read as its column's type. Raises InvalidRequest."""
    return {name: value_of(_column(name, table), text).as_py() for name, text in texts.items()}


def value_of(column: Column, text: str) -> pa.Scalar:
    """A text as a value of the column's type. Raises InvalidRequest."""
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    try:
        return pa.scalar(text[1:-1] if quoted else text).cast(arrow_type(column.type))
    except pa.ArrowException:
        raise InvalidRequest(f"{text!r} is no {column.type}, as column {column.name} is") from None


def _filter(text: str, table: Table) -> pc.Expression:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"the filter {text!r} cannot be read",
            hint="Write COLUMN, then one of = != < <= > >= and a value, or: is null, is not null",
        )
    column, sign, value = _column(match["name"], table), " ".join(match["sign"].lower().split()), match["value"].strip()
    field = pc.field(column.name)
    if sign.startswith("is"):
        if value:
            raise InvalidRequest(f"the filter {text!r} cannot be read: {value!r} follows {sign!r}")
        return field.is_null() if sign == "is null" else field.is_valid()
    return _COMPARED[sign](field, value_of(column, value))


def _column(name: str, table: Table) -> Column:
    names = [column.name for column in table.columns]
    if name not in names:
        raise InvalidRequest(f"table {table.full_name} has no column {name}", hint=f"It has {', '.join(names)}")
    return table.columns[names.index(name)]
