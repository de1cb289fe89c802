"""Thrift's compact protocol, as the footers of Parquet files are written in it: bytes to plain values, and back.

It knows nothing of Parquet: a field that nobody has heard of is kept as it is. So who changes a few fields of a footer
writes all the others as they were. Strict: whatever is not of this protocol, or is not there, is an error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TRUE = 1
FALSE = 2
BYTE = 3
I16 = 4
I32 = 5
I64 = 6
DOUBLE = 7
BINARY = 8
LIST = 9
SET = 10
MAP = 11
STRUCT = 12
"""The types of values."""

DEPTH = 32
"""So deep structs and lists may lie in each other. Those of a footer are half as deep."""

_WIDTHS = {I16: 16, I32: 32, I64: 64}


class MalformedThrift(ValueError):
    """The bytes are not of this protocol, or they end too early."""


class Field(NamedTuple):
    """A value with its type.

    A number is an int, a boolean is in its type (and is None), a string is bytes, a double its eight bytes, a struct a
    `Struct`, a list or set a `Many`, and a map a list of pairs with the types of both in front.
    """

    type: int
    value: Any


class Many(NamedTuple):
    """The values of a list, all of one type; booleans as TRUE and FALSE."""

    type: int
    values: list[Any]


class Pairs(NamedTuple):
    """The entries of a map."""

    key_type: int
    value_type: int
    entries: list[tuple[Any, Any]]


Struct = dict[int, Field]
"""Fields by their numbers, in ascending order."""


def read_struct(data: bytes) -> Struct:
    """The struct that these bytes are, all of them. Raises MalformedThrift."""
    reader = _Reader(data)
    found = reader.struct(DEPTH)
    if reader.at != len(data):
        raise MalformedThrift(f"{len(data) - reader.at} bytes follow the struct")
    return found


def write_struct(struct: Struct) -> bytes:
    """The bytes of a struct. Raises MalformedThrift for a number that does not fit its type."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._byte():
            kind, delta = head & 0xF, head >> 4
            last, number = number, number + delta if delta else self._signed(16)
            if number <= last and found:
                raise MalformedThrift(f"field {number} after field {last}")
            found[number] = Field(kind, None if kind in (TRUE, FALSE) else self._value(kind, depth))
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if not depth:
            raise MalformedThrift(f"more than {DEPTH} values lie in each other")
        if kind in _WIDTHS:
            return self._signed(_WIDTHS[kind])
        if kind == BINARY:
            return self._take(self._varint())
        if kind == STRUCT:
            return self.struct(depth - 1)
        if kind in (LIST, SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < 0xF else self._varint()
            return Many(head & 0xF, [self._element(head & 0xF, depth - 1) for _ in range(self._most(size))])
        if kind == MAP:
            size = self._varint()
            kinds = self._byte() if size else 0
            pair = kinds >> 4, kinds & 0xF
            entries = [
                (self._element(pair[0], depth - 1), self._element(pair[1], depth - 1)) for _ in range(self._most(size))
            ]
            return Pairs(*pair, entries)
        if kind == BYTE:
            return int.from_bytes(self._take(1), "little", signed=True)
        if kind == DOUBLE:
            return self._take(8)
        raise MalformedThrift(f"there is no type {kind}")

    def _element(self, kind: int, depth: int) -> Any:
        if kind not in (TRUE, FALSE):
            return self._value(kind, depth)
        value = self._byte()
        if value not in (TRUE, FALSE):
            raise MalformedThrift(f"{value} is no boolean")
        return value

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        taken = self._data[self.at : self.at + count]
        if len(taken) != count:
            raise MalformedThrift(f"it ends {count - len(taken)} bytes early")
        self.at += count
        return taken

    def _most(self, size: int) -> int:
        """A number of elements, each of which takes a byte at least."""
        if size > len(self._data) - self.at:
            raise MalformedThrift(f"{size} elements do not fit in what follows")
        return size

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift >= 70:
                raise MalformedThrift("a number has more than 64 bits")

    def _signed(self, width: int) -> int:
        number = self._varint()
        if number >> width:
            raise MalformedThrift(f"a number has more than {width} bits")
        return number >> 1 ^ -(number & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in struct.items():
        delta = number - last
        if 0 < delta < 16:
            out.append(delta << 4 | kind)
        else:
            out.append(kind)
            _write_signed(out, number, 16)
        last = number
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in _WIDTHS:
        _write_signed(out, value, _WIDTHS[kind])
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        if len(value.values) < 0xF:
            out.append(len(value.values) << 4 | value.type)
        else:
            out.append(0xF0 | value.type)
            _write_varint(out, len(value.values))
        for one in value.values:
            _write_element(out, value.type, one)
    elif kind == MAP:
        _write_varint(out, len(value.entries))
        if value.entries:
            out.append(value.key_type << 4 | value.value_type)
        for key, one in value.entries:
            _write_element(out, value.key_type, key)
            _write_element(out, value.value_type, one)
    elif kind == BYTE:
        out += value.to_bytes(1, "little", signed=True)
    elif kind == DOUBLE:
        out += value
    else:
        raise MalformedThrift(f"there is no type {kind}")


def _write_element(out: bytearray, kind: int, value: Any) -> None:
    if kind in (TRUE, FALSE):
        out.append(value)
    else:
        _write_value(out, kind, value)


def _write_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _write_signed(out: bytearray, number: int, width: int) -> None:
    if not -(1 << width - 1) <= number < 1 << width - 1:
        raise MalformedThrift(f"{number} has more than {width} bits")
    _write_varint(out, (number << 1 ^ number >> width - 1) & (1 << width) - 1)
