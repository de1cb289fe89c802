"""Which row of a file of JSON does not fit, where Arrow says none, or counts rows from where a block of it begins.

Arrow reads such files, and much faster. This looks at one that it has refused, row by row, as Python reads JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

_ROW_OF_BLOCK = re.compile(r" in row \d+")


class _Number(str):
    """A number as the file has it: what Python makes of it may be another one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def first_unfit(path: Path, types: Mapping[str, pa.DataType]) -> tuple[str, int, object] | None:
    """The first value that does not fit its type: its column, its row from 0, and what it is; None where each fits.

    Raises ArrowInvalid, with the row, for what is no JSON.
    """
    for row, found in enumerate(_objects(path)):
        for name, wanted in types.items():
            if name in found and not _fits(found[name], wanted):
                return name, row, found[name]
    return None


def without_row(error: pa.ArrowInvalid) -> pa.ArrowInvalid:
    """What Arrow says, without the number of a row: it counts them within a block."""
    return pa.ArrowInvalid(_ROW_OF_BLOCK.sub("", str(error)))


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number, strict=False)
    row = 0
    # What is no UTF-8 Arrow says.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line in file:
            text = line.strip()
            while text:
                try:
                    found, end = decoder.raw_decode(text)
                except (ValueError, RecursionError) as error:
                    said = error.msg if isinstance(error, json.JSONDecodeError) else error
                    raise pa.ArrowInvalid(f"row {row} is no JSON: {said}") from error
                if not isinstance(found, dict):
                    raise pa.ArrowInvalid(f"row {row} is no object, {text[:40]!r}")
                yield found
                row += 1
                text = text[end:].lstrip()


def _fits(value: Any, wanted: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_struct(wanted):
        return isinstance(value, dict) and all(_fits(value.get(field.name), field.type) for field in wanted)
    if pa.types.is_list(wanted):
        return isinstance(value, list) and all(_fits(one, wanted.value_type) for one in value)
    if pa.types.is_boolean(wanted):
        return isinstance(value, bool)
    if pa.types.is_floating(wanted):
        return isinstance(value, _Number)
    if pa.types.is_integer(wanted):
        return isinstance(value, _Number) and _can_be(value, wanted)
    if pa.types.is_decimal(wanted):
        return isinstance(value, str) and _can_be(value, wanted)
    return isinstance(value, str) and not isinstance(value, _Number)


def _can_be(text: str, wanted: pa.DataType) -> bool:
    try:
        pa.array([str(text)]).cast(wanted).validate(full=True)
    except (pa.ArrowException, UnicodeEncodeError):
        return False
    return True
