"""Columns as people write them: `flight bigint not null, carrier string default 'UA'`, in one text or in several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from epochlake.metastore.metadata.model import Column, Generated
from epochlake.placement.column_ddl import delta_type, quoted
from epochlake.placement.errors import InvalidRequest

_FORM = "Write name and type, as in 'flight bigint not null'"
_NULLABILITY = re.compile(r"\s+(not\s+)?null\s*\Z", re.IGNORECASE)
_DEFAULT = re.compile(r"\s+default\s+('(?:[^']|'')*'|[^\s']\S*)\s*\Z", re.IGNORECASE)
_GENERATED = re.compile(r"\s+generated\s+always\s+as\s*\((.*)\)\s*\Z", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|((?:`(?:[^`]|``)+`|[^\s`,])+))\s+(.+)\Z", re.DOTALL)


def parse_columns(texts: Iterable[str], primary_key: Sequence[str] = ()) -> tuple[Column, ...]:
    """Columns from column definitions, several in a text parted by commas: `name type [not null | null]`, or
    `day date generated always as (date(at))` for one that is computed.

    Columns of the primary key are not nullable without saying so. Raises InvalidRequest for what cannot be read, for
    a type that cannot be stored, and for a key column that is declared as nullable.
    """
    columns = []
    for text in texts:
        for definition in _definitions(text):
            columns.append(_column(definition, primary_key))
    return tuple(columns)


def parse_added(texts: Iterable[str]) -> tuple[Column, ...]:
    """Columns that a table gets, as `parse_columns` reads them, which may have a default: `c int not null default 5`.

    A default is written as it is, or in quotes: `city string default 'Den Haag'`. A name with dots is a path to a field
    of a struct; one in backquotes stays in them where it has a dot. Raises InvalidRequest.
    """
    columns = []
    for text in texts:
        for definition in _definitions(text):
            default = None if _GENERATED.search(_without_nullability(definition)) else _DEFAULT.search(definition)
            rest = definition if default is None else definition[: default.start()]
            column = _column(rest, ())
            read = _NAME.match(rest)
            if "." in column.name and read is not None and read[1] is not None:
                column = msgspec.structs.replace(column, name=quoted(column.name))
            if default is not None:
                column = msgspec.structs.replace(column, default=_unquoted(default.group(1)))
            columns.append(column)
    return tuple(columns)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def _without_nullability(definition: str) -> str:
    return _NULLABILITY.sub("", definition)


def _column(definition: str, primary_key: Sequence[str]) -> Column:
    generated = _GENERATED.search(_without_nullability(definition))
    if generated is not None:
        # `not null` is read on both sides of the expression.
        plain = definition[: generated.start()] + definition[generated.end() :]
        column = _column(plain, primary_key)
        return msgspec.structs.replace(column, generated=Generated(generated.group(1).strip()))
    nullability = _NULLABILITY.search(definition)
    declared = None if nullability is None else nullability.group(1) is None
    rest = definition if nullability is None else definition[: nullability.start()]
    match = _NAME.match(rest)
    if match is None:
        raise InvalidRequest(f"the column {definition.strip()!r} cannot be read", hint=_FORM)
    whole, plain, type_ = match.groups()
    name = plain if whole is None else whole.replace("``", "`")
    type_ = " ".join(type_.split())
    if re.search(r"\s(generated|default)\b", type_, re.IGNORECASE):
        raise InvalidRequest(
            f"the column {name!r} cannot be read: {definition.strip()!r}",
            hint="A column that is computed is written as in 'day date generated always as (date(at))'; one that is "
            "added may have a default instead",
        )
    try:
        delta_type(type_)
    except InvalidRequest as error:
        raise InvalidRequest(f"the column {name!r}: {error.reason}", hint=error.hint) from error
    if declared and name in primary_key:
        raise InvalidRequest(f"the column {name!r} is part of the primary key: it cannot be declared as null")
    return Column(name, type_, nullable=name not in primary_key if declared is None else declared)


def _definitions(text: str) -> list[str]:
    """Cut at commas that are inside neither a type nor an expression nor quotes."""
    parts, depth, angles, start, quoted = [], 0, 0, 0, False
    for position, character in enumerate(text):
        quoted ^= character == "'"
        if quoted:
            continue
        depth += (character == "(") - (character == ")")
        # Within round brackets they compare something.
        angles += ((character == "<") - (character == ">")) * (depth == 0)
        if character == "," and depth == angles == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    if not text.strip():
        raise InvalidRequest("a column was asked for, and its definition is empty", hint=_FORM)
    if any(not part.strip() for part in parts):
        raise InvalidRequest(
            f"the columns {text!r} cannot be read: before or after a comma there is nothing",
            hint=f"{_FORM}; with one comma between two columns",
        )
    return parts
