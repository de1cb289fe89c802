"""Which types hold every value of another one, as Delta allows it for columns that are there."""

from __future__ import annotations

import re

_SPELT = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_WIDER = {
    "tinyint": {"smallint", "int", "bigint", "double"},
    "smallint": {"int", "bigint", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(\d+))?\))?\Z")


def is_wider(before: str, after: str) -> bool:
    """Whether the type `after` holds every value of `before`, and is another one. Both are DDL of Spark.

    A decimal is wider with more digits behind the point and at least as many before it.
    """
    one, other = _plain(before), _plain(after)
    digits, more = _decimal(one), _decimal(other)
    if digits is not None and more is not None:
        (precision, scale), (wide, wide_scale) = digits, more
        grows = wide_scale >= scale and wide - wide_scale >= precision - scale
        return grows and (precision, scale) != (wide, wide_scale)
    return other in _WIDER.get(one, ())


def _plain(ddl: str) -> str:
    bare = re.sub(r"\s+", "", ddl.lower())
    return _SPELT.get(bare, bare)


def _decimal(ddl: str) -> tuple[int, int] | None:
    """Precision and scale."""
    match = _DECIMAL.match(ddl)
    return None if match is None else (int(match.group(1) or 10), int(match.group(2) or 0))
