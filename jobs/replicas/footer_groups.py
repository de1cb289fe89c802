"""Row groups as the footer of a Parquet file tells of them: where their bytes are, and how these are named elsewhere.

PyArrow reads and writes footers, but it cannot write one for bytes that are there already. What a footer says of a
row group holds wherever its bytes lie, except for where that is. So its fields are kept, also those that nobody here
has heard of, and only offsets are changed. A row group with something that is not in its own bytes (an index, a
Bloom filter, another file) is not known well enough for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from epochlake.jobs.replicas.thrift_compact import (
    BINARY,
    I16,
    I64,
    LIST,
    STRUCT,
    Field,
    Many,
    Struct,
    read_struct,
    write_struct,
)

MAGIC = b"PAR1"

TAIL = 8
"""Bytes behind a footer: its length, and the magic."""

# FileMetaData
_SCHEMA, _ROWS, _GROUPS, _NOTES = 2, 3, 4, 5
_FILE_FIELDS = {1, _SCHEMA, _ROWS, _GROUPS, _NOTES, 6, 7}
# RowGroup
_CHUNKS, _GROUP_ROWS, _GROUP_START, _GROUP_SIZE, _ORDINAL = 1, 3, 5, 6, 7
_GROUP_FIELDS = {_CHUNKS, 2, _GROUP_ROWS, 4, _GROUP_START, _GROUP_SIZE, _ORDINAL}
# ColumnChunk
_CHUNK_START, _CHUNK = 2, 3
# ColumnMetaData; what is left out of the known fields: index pages and Bloom filters, which have bytes of their own
_CHUNK_SIZE, _DATA_START, _DICTIONARY_START = 7, 9, 11
_CHUNK_FIELDS = {1, 2, 3, 4, 5, 6, _CHUNK_SIZE, 8, _DATA_START, _DICTIONARY_START, 12, 13, 16, 17}


class UnknownLayout(ValueError):
    """A footer says something of a row group that may not hold when its bytes lie elsewhere."""


class Group(msgspec.Struct, frozen=True):
    """A row group: its bytes are those from `start`, `size` of them, and nothing else belongs to it."""

    struct: Struct
    start: int
    size: int

    @property
    def rows(self) -> int:
        return _number(self.struct, _GROUP_ROWS, I64)


class Footer(msgspec.Struct, frozen=True):
    """The footer of a file, and its row groups."""

    struct: Struct
    groups: tuple[Group, ...]

    @property
    def schema(self) -> Field:
        """The columns of the file and how they are stored; equal where they are stored alike."""
        return self.struct[_SCHEMA]


def read_footer(data: bytes) -> Footer:
    """The footer with these bytes, without the length and the magic behind them.

    Raises UnknownLayout where its row groups cannot be moved, MalformedThrift where it is none.
    """
    struct = read_struct(data)
    if not _FILE_FIELDS.issuperset(struct) or _SCHEMA not in struct:
        raise UnknownLayout(f"the footer has fields {sorted(struct)}")
    if write_struct(struct) != data:
        raise UnknownLayout("the footer is not written as it would be here")
    return Footer(struct, tuple(_group(one) for one in _list(struct, _GROUPS)))


def footer_of(like: Footer, groups: Sequence[Group], notes: Mapping[str, str]) -> bytes:
    """The footer of a file with these row groups, and the columns of another one; with its length and the magic.

    Raises MalformedThrift where there are too many.
    """
    moved = [_numbered(group.struct, number) for number, group in enumerate(groups)]
    entries = [{1: Field(BINARY, name.encode()), 2: Field(BINARY, text.encode())} for name, text in notes.items()]
    changed = {
        **like.struct,
        _ROWS: Field(I64, sum(group.rows for group in groups)),
        _GROUPS: Field(LIST, Many(STRUCT, moved)),
        _NOTES: Field(LIST, Many(STRUCT, entries)),
    }
    data = write_struct(dict(sorted(changed.items())))
    return data + len(data).to_bytes(4, "little") + MAGIC


def moved_to(group: Group, start: int) -> Group:
    """The row group with its bytes at another place."""
    by = start - group.start
    chunks = [
        {
            number: Field(STRUCT, _shifted(field.value, (_DATA_START, _DICTIONARY_START), by))
            if number == _CHUNK
            else _shifted_field(field, by)
            for number, field in chunk.items()
        }
        for chunk in _list(group.struct, _CHUNKS)
    ]
    struct = {**_shifted(group.struct, (_GROUP_START,), by), _CHUNKS: Field(LIST, Many(STRUCT, chunks))}
    return Group(dict(sorted(struct.items())), start, group.size)


def _group(struct: Struct) -> Group:
    """Raises UnknownLayout."""
    if not _GROUP_FIELDS.issuperset(struct):
        raise UnknownLayout(f"a row group has fields {sorted(struct)}")
    chunks = [_chunk(one) for one in _list(struct, _CHUNKS)]
    if not chunks:
        raise UnknownLayout("a row group has no columns")
    start = end = chunks[0][0]
    for first, size in chunks:
        if first != end:
            raise UnknownLayout("the columns of a row group do not lie one behind the other")
        end += size
    if _GROUP_START in struct and _number(struct, _GROUP_START, I64) != start:
        raise UnknownLayout("a row group does not begin with its first column")
    if _GROUP_SIZE in struct and _number(struct, _GROUP_SIZE, I64) != end - start:
        raise UnknownLayout("a row group has another size than its columns")
    group = Group(struct, start, end - start)
    if group.rows <= 0 or start < len(MAGIC):
        raise UnknownLayout("a row group has no rows, or no place")
    return group


def _chunk(struct: Struct) -> tuple[int, int]:
    """Where the bytes of a column chunk begin, and how many they are."""
    if not {_CHUNK_START, _CHUNK}.issuperset(struct) or _CHUNK not in struct or struct[_CHUNK].type != STRUCT:
        raise UnknownLayout(f"a column chunk has fields {sorted(struct)}")
    said: Struct = struct[_CHUNK].value
    if not _CHUNK_FIELDS.issuperset(said):
        raise UnknownLayout(f"what is said of a column chunk has fields {sorted(said)}")
    start, size = _number(said, _DATA_START, I64), _number(said, _CHUNK_SIZE, I64)
    if _DICTIONARY_START in said:
        start = min(start, _number(said, _DICTIONARY_START, I64))
    if size <= 0:
        raise UnknownLayout("a column chunk has no bytes")
    return start, size


def _numbered(struct: Struct, number: int) -> Struct:
    return {**struct, _ORDINAL: Field(I16, number)} if _ORDINAL in struct else struct


def _shifted(struct: Struct, numbers: Sequence[int], by: int) -> Struct:
    return {number: _shifted_field(field, by) if number in numbers else field for number, field in struct.items()}


def _shifted_field(field: Field, by: int) -> Field:
    """An offset that many bytes further; 0 says that there is none."""
    return Field(field.type, field.value + by) if field.value else field


def _number(struct: Struct, number: int, kind: int) -> int:
    field = struct.get(number)
    if field is None or field.type != kind:
        raise UnknownLayout(f"there is no number in field {number}")
    found: int = field.value
    return found


def _list(struct: Struct, number: int) -> list[Struct]:
    field = struct.get(number)
    if field is None or field.type != LIST or (field.value.values and field.value.type != STRUCT):
        raise UnknownLayout(f"there is no list in field {number}")
    found: list[Struct] = field.value.values
    return found
