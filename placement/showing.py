"""How documents show themselves: in a notebook as tables of HTML, on a terminal as aligned text.

A document is a struct with stable keys. Its fields become lines, sequences of structs become tables. Colours are those
of the notebook, so both its light and its dark theme can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from html import escape
from typing import Any, TypeVar

import msgspec
from msgspec.structs import fields

ROWS = 50
"""A table that is shown has so many rows at most, and a line says how many more there are."""

WIDEST = 44
"""On a terminal a cell has so many characters at most."""

_WHOLE_SECONDS = float(1 << 53)
"""From here on a float has no whole seconds, and its digits say nothing."""

_SIZES = frozenset({"bytes", "capacity"})
_NUMBERS_THAT_NAME = ("epoch", "id", "token", "tokens", "tablet", "version", "before", "after", "incarnation", "format")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0;white-space:pre-wrap"

Item = TypeVar("Item", covariant=True)


class Shown:
    """What makes a struct show itself; `repr` stays as it is, for logs and tests."""

    __slots__ = ()

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows on a terminal."""
        printer.text("…" if cycle else text_of(self))


class Listing(tuple[Item, ...]):
    """A tuple of documents that shows itself as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("…" if cycle else text_of(self))


def size(count: int | None) -> str | None:
    """Bytes for people, three digits; decimal units, as capacities are given and disks are sold."""
    if count is None:
        return None
    value, unit = float(count), 0
    while value >= (1000 if unit == 0 else 999.5) and unit < len(_UNITS) - 1:  # 999.6 would be 1e+03
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def plural(count: int, word: str) -> str:
    """How many of what: `1 row`, `2,000 rows`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A duration as it was given, for people: `7 days`, `36 hours`, `90 seconds`. Nothing of it is rounded away."""
    if seconds >= _WHOLE_SECONDS:
        return f"{float(seconds):g} seconds"  # logs of earlier versions have such ones
    for length, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds and seconds % length == 0:
            return plural(int(seconds // length), unit)
    return plural(int(seconds), "second") if float(seconds).is_integer() else f"{seconds:g} seconds"


def html_of(document: object) -> str:
    """A struct, or a sequence of structs, as HTML. All text in it is escaped."""
    if not isinstance(document, msgspec.Struct):
        return _html_table(_sequence(document))
    lines = []
    for name, value in _told(document):
        told = _html_table(value) if _is_table(value) else escape(cell(name, value))
        lines.append(f'<tr><th style="{_CELL}">{escape(_words(name))}</th><td style="{_CELL}">{told}</td></tr>')
    return f"<table><tbody>{''.join(lines)}</tbody></table>"


def text_of(document: object) -> str:
    """A struct, or a sequence of structs, as lines of text."""
    if not isinstance(document, msgspec.Struct):
        return "\n".join(_text_table(_sequence(document)))
    told = _told(document)
    width = max((len(_words(name)) for name, _ in told), default=0)
    lines = []
    for name, value in told:
        if _is_table(value):
            lines += [_words(name), *(f"  {line}" for line in _text_table(value))]
        else:
            lines.append(f"{_words(name):{width}}  {cell(name, value)}".rstrip())
    return "\n".join(lines)


def cell(name: str, value: object) -> str:
    """A value of a field for people: sizes with their units, numbers of things parted, what is not there as a dash."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Enum():
            return str(value.value)
        case int():
            words = name.split("_")
            if not _SIZES.isdisjoint(words):
                return size(value) or ""
            return str(value) if words[-1] in _NUMBERS_THAT_NAME or abs(value) < 10_000 else f"{value:,}"
        case float():
            return f"{value:.4g}"
        case Mapping():
            return ", ".join(f"{key}={cell(name, found)}" for key, found in value.items())
        case msgspec.Struct():
            return ", ".join(f"{_words(key)} {cell(key, found)}" for key, found in _told(value))
        case str():
            return value
        case Sequence() | frozenset() | set():
            if any(isinstance(one, msgspec.Struct) for one in value):
                return f"{len(value)}"
            named = [cell(name, one) for one in value]
            return ", ".join(named) if len(named) <= 8 else f"{', '.join(named[:6])}, … ({len(named)} in all)"
        case _:
            return str(value)


def _told(document: msgspec.Struct) -> list[tuple[str, Any]]:
    """The fields that say something: nothing that is empty, or as it usually is."""
    told = ((name, getattr(document, name)) for name in document.__struct_fields__)
    usual = _usual(type(document))
    return [(name, value) for name, value in told if _says_something(value) and usual.get(name, ...) != value]


@cache
def _usual(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind) if field.default is not msgspec.NODEFAULT}


def _says_something(value: object) -> bool:
    return value is not None and not (isinstance(value, str | Sequence | Mapping | frozenset) and not len(value))


def _sequence(document: object) -> Sequence[Any]:
    return document if isinstance(document, Sequence) else [document]


def _is_table(value: object) -> bool:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
    return is_sequence and bool(value) and all(isinstance(one, msgspec.Struct) for one in value)  # type: ignore[attr-defined]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _long_ids(rows: Sequence[msgspec.Struct]) -> frozenset[str]:
    """Columns of ids that nobody types: beside names there is no room for them."""
    named = (name for name in rows[0].__struct_fields__ if name.endswith("_id"))
    return frozenset(name for name in named if len(str(getattr(rows[0], name))) >= 32)


def _table(
    rows: Sequence[msgspec.Struct], without: frozenset[str] = frozenset()
) -> tuple[list[str], Iterator[list[str]], int]:
    """The columns that say something in any row, the cells, and how many rows are left out."""
    shown = rows[:ROWS]
    told = {name for row in shown for name, _ in _told(row)}
    # A column that is no in every row says nothing either.
    names = {name for name in told if any(getattr(row, name, None) is not False for row in shown)}
    ordered = [
        name for name in dict.fromkeys(n for row in shown for n in row.__struct_fields__) if name in names - without
    ]
    cells = ([cell(name, getattr(row, name, None)) for name in ordered] for row in shown)
    return ordered, cells, len(rows) - len(shown)


def _html_table(rows: Sequence[Any]) -> str:
    if not rows:
        return "<em>nothing</em>"
    names, cells, more = _table(rows, without=_long_ids(rows))
    head = "".join(f'<th style="{_CELL}">{escape(_words(name))}</th>' for name in names)
    body = "".join(f"<tr>{_html_cells(row)}</tr>" for row in cells)
    rest = f"<p><em>and {more:,} more</em></p>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _html_cells(row: Iterable[str]) -> str:
    return "".join(f'<td style="{_CELL}">{escape(one)}</td>' for one in row)


def _text_table(rows: Sequence[Any]) -> list[str]:
    if not rows:
        return ["nothing"]
    names, cells, more = _table(rows, without=_long_ids(rows))
    lines = [[_words(name) for name in names], *([_clipped(one) for one in row] for row in cells)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    told = ["  ".join(f"{one:{width}}" for one, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return [*told, *([f"… and {more:,} more"] if more else [])]


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"
