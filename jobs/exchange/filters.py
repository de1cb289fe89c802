"""Filters of rows, and keys, as text: `delay > 30`, `origin = EWR and tail is null`, `[{"id": 7}]`."""

from __future__ import annotations

import json
import math
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

_QUOTE = re.compile(r"['\"]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)

_ANOTHER = re.compile(r"\s(?:and|or)\s+[^\s<>=!]+\s*(?:[<>=!]|is\s+(?:not\s+)?null)", re.IGNORECASE)
"""What looks like one more filter in a value without quotes; as a text it would find nothing."""

_ONLY_AND = "A filter is COLUMN, a sign and a value; between filters there is only `and`"

_A_KEY = "Give a value of the column's type"

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


def parse_condition(text: str, table: Table) -> pc.Expression | None:
    """Filters with `and` between them, as one expression. Raises InvalidRequest."""
    # Every second part is quoted, and its words are not ours.
    parts = re.split(r"('[^']*'|\"[^\"]*\")", text)
    filters = [""]
    for number, part in enumerate(parts):
        first, *others = [part] if number % 2 else _AND.split(part)
        filters[-1] += first
        filters += others
    for one in filters:
        found = _FILTER.fullmatch(one)
        value = "" if found is None else found["value"].strip()
        if _QUOTE.search(value) and not _QUOTED.fullmatch(value):
            # A quote within a value may have begun what was taken for quoted, with an `and` in it.
            raise InvalidRequest(f"the value {value} has a quote", hint="Write all of it in the other kind of quotes")
    return parse_filters(filters, table)


def parse_keys(text: str, table: Table) -> list[dict[str, object]]:
    """Primary keys as JSON: an object or a list of them; where the key is one column, values do.

    Raises InvalidRequest.
    """
    example = json.dumps([dict.fromkeys(table.primary_key, "…")], ensure_ascii=False)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"the keys {text!r} are no JSON: {error}", hint=f"Write {example}") from None
    keys = []
    for key in found if isinstance(found, list) else [found]:
        if not isinstance(key, dict) and len(table.primary_key) == 1:
            key = {table.primary_key[0]: key}
        if not isinstance(key, dict) or set(key) != set(table.primary_key):
            raise InvalidRequest(f"{json.dumps(key)} is no key of {table.full_name}", hint=f"Write {example}")
        keys.append(
            {
                name: value_of(_column(name, table), value, _A_KEY).as_py() if isinstance(value, str) else value
                for name, value in key.items()
            }
        )
    return keys


def parse_values(texts: Mapping[str, str], table: Table) -> dict[str, object]:
    """Values of columns, each read as its column's type. Raises InvalidRequest."""
    return {name: value_of(_column(name, table), text, _A_KEY).as_py() for name, text in texts.items()}


def value_of(column: Column, text: str, advice: str = _ONLY_AND) -> pa.Scalar:
    """A text as a value of the column's type. Raises InvalidRequest, with `advice` where the type has none."""
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    value = text[1:-1] if quoted else text
    try:
        found = pa.scalar(value).cast(arrow_type(column.type))
        if _is_another(found, value):
            raise pa.ArrowInvalid(value)
        return found
    except (pa.ArrowException, UnicodeEncodeError):
        raise InvalidRequest(
            f"{value!r} is no {column.type}, as column {column.name} is",
            hint="Write a moment with its zone: 2013-01-01T10:00:00Z" if column.type == "timestamp" else advice,
        ) from None


def _is_another(found: pa.Scalar, text: str) -> bool:
    """Whether Arrow has made infinity of a number that is too large, or a negative one of a hexadecimal one."""
    if pa.types.is_floating(found.type):
        return math.isinf(found.as_py()) and "inf" not in text.lower()
    return pa.types.is_integer(found.type) and found.as_py() < 0 and "-" not in text


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
    if value.lower() == "null":
        # In SQL it is true for no row; as a text it would find the rows that hold this word.
        raise InvalidRequest(
            f"the filter {text!r} compares with null, which no value is",
            hint=f"Write {column.name} is null, or is not null; the text is in quotes: 'null'",
        )
    if not _QUOTED.fullmatch(value) and _ANOTHER.search(value):
        raise InvalidRequest(
            f"the filter {text!r} cannot be read: its value {value!r} looks like one more filter",
            hint=f"{_ONLY_AND}. Put a text that reads like this in quotes",
        )
    compared = value_of(column, value)
    if pa.types.is_floating(compared.type) and math.isnan(compared.as_py()):
        # Arrow finds no row by it, and by != each; Spark takes NaN for equal to itself and greater than all numbers.
        raise InvalidRequest(
            f"the filter {text!r} compares with NaN, which is neither equal to a number, nor before or after it",
            hint="Choose among the rows that were read: isnan in SQL, pyarrow.compute.is_nan",
        )
    return _COMPARED[sign](field, compared)


def _column(name: str, table: Table) -> Column:
    names = [column.name for column in table.columns]
    if name not in names:
        raise InvalidRequest(f"table {table.full_name} has no column {name}", hint=f"It has {', '.join(names)}")
    return table.columns[names.index(name)]
