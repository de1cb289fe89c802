"""The token of a primary key without Spark: its `xxhash64`, for looking up where one row belongs.

Spark hashes columns one after another, each with the hash before it as the seed (42 at first), and a null
changes nothing. A value is hashed as the bytes that Spark keeps for its type: 4 or 8 little-endian bytes for whole
numbers, dates (days) and timestamps (microseconds), UTF-8 for strings. Values of a whole column are hashed by Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation

from epochlake.placement.errors import InvalidRequest

_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_MASK = (1 << 64) - 1
_SEED = 42
_EXACT = Context(prec=100)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BITS = {"tinyint": 8, "byte": 8, "smallint": 16, "short": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64}
_TIMESTAMPS = ("timestamp", "timestamp_ltz", "timestamp_ntz")


def token_of(values: Sequence[tuple[str, str | None]]) -> int:
    """The token of key values `(Spark DDL type, the value as text)` in the order of the primary key; None is null.

    Timestamps are ISO 8601, UTC where they name no zone. Raises InvalidRequest for a text that is no value of its type
    and for types that are not hashed here.
    """
    hashed = _SEED
    for type_, text in values:
        if text is not None:
            hashed = xxhash64(_stored(type_.strip().lower(), text), hashed)
    return hashed - (1 << 64) if hashed >> 63 else hashed


_WORDS = frozenset(
    {"boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "date", "bigint", "long", *_TIMESTAMPS}
)
"""Types whose values are hashed as one word of 4 or 8 bytes, each value as another one."""


def has_token_of_its_own(types: Sequence[str]) -> bool:
    """Whether no two keys with columns of these types, in order, have the same token.

    So it is where the key is one word: every step of XXH64 that a single word goes through can be taken back.
    """
    return len(types) == 1 and types[0].strip().lower() in _WORDS


def xxhash64(data: bytes, seed: int) -> int:
    """XXH64 of `data`, unsigned."""
    position, length = 0, len(data)
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while position <= length - 32:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], _word(data, position, 8))
                position += 8
        hashed = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            hashed = ((hashed ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        hashed = (seed + _P5) & _MASK
    hashed = (hashed + length) & _MASK
    while position + 8 <= length:
        hashed = (_rotated(hashed ^ _round(0, _word(data, position, 8)), 27) * _P1 + _P4) & _MASK
        position += 8
    if position + 4 <= length:
        hashed = (_rotated(hashed ^ (_word(data, position, 4) * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        position += 4
    for byte in data[position:]:
        hashed = _rotated(hashed ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    hashed = (hashed ^ hashed >> 33) * _P2 & _MASK
    hashed = (hashed ^ hashed >> 29) * _P3 & _MASK
    return hashed ^ hashed >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _word(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "little")


def _stored(type_: str, text: str) -> bytes:
    """The bytes that Spark hashes for a value of this type."""
    try:
        if type_ in _BITS:
            return _whole(int(text), _BITS[type_])
        if type_ == "string":
            return text.encode()
        if type_ == "boolean":
            return _whole({"true": 1, "false": 0}[text.lower()], 32)
        if type_ == "date":
            return _whole((date.fromisoformat(text) - _EPOCH.date()).days, 32)
        if type_ in _TIMESTAMPS:
            moment = datetime.fromisoformat(text)
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
            return _whole((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds, 64)
        if match := re.fullmatch(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", type_):
            return _decimal(Decimal(text), int(match[1] or 10), int(match[2] or 0))
    except (ValueError, KeyError, OverflowError, InvalidOperation) as error:
        raise InvalidRequest(f"{text!r} is no value of type {type_}") from error
    raise InvalidRequest(f"a key of type {type_} is not hashed here", hint="Give --token or --tablet instead")


def _whole(value: int, bits: int) -> bytes:
    value.to_bytes(bits // 8, "little", signed=True)  # raises OverflowError where the type does not hold it
    return value.to_bytes(8 if bits == 64 else 4, "little", signed=True)


def _decimal(value: Decimal, precision: int, scale: int) -> bytes:
    unscaled = value.scaleb(scale, _EXACT)
    if unscaled != unscaled.to_integral_value() or abs(unscaled) >= 10**precision:
        raise ValueError(f"{value} does not fit")
    whole = int(unscaled)
    if precision <= 18:
        return _whole(whole, 64)
    # Java's shortest two's complement, the highest byte first.
    bits = (whole if whole >= 0 else ~whole).bit_length()
    return whole.to_bytes(bits // 8 + 1, "big", signed=True)
