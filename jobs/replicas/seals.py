"""What the seal of a data file is: entries in its footer, found there by their bytes (sealing.py).

A footer is sealed as bytes, and looked at before each read: it is not decoded for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from epochlake.jobs.replicas.footer_groups import MAGIC

PREFIX = b"epochlake.seal."
FILE, BODY, GROUPS, FOOTER = (PREFIX + name for name in (b"file", b"body", b"groups", b"footer"))
"""Whose file it is; the digest of all bytes before the footer (earlier versions); sizes and digests of row groups; the
digest of the footer, computed with that one blanked.
"""

DIGITS = 32
BLANK = b"0" * DIGITS


class SealedGroup(NamedTuple):
    """The bytes of a row group: where they begin, how many there are, and their digest."""

    start: int
    size: int
    digest: str


class Seal(NamedTuple):
    """What a file says of its bytes: a digest of those before the footer, and the row groups that these are.

    `digest` is None for a file from before seals, `groups` for one from before row groups had digests. `footer`: its
    bytes, with its length and the magic.
    """

    digest: bytes | None
    groups: tuple[SealedGroup, ...] | None
    footer: bytes

    def body(self, size: int) -> list[tuple[int, str]]:
        """The bytes before the footer of a file of `size` bytes, one part behind the other: sizes and digests."""
        if self.digest is None:
            return []
        if self.groups is None:
            return [(size - len(self.footer), self.digest.decode())]
        return [(len(MAGIC), hexdigest([MAGIC])), *((group.size, group.digest) for group in self.groups)]


def hexdigest(chunks: Iterable[bytes]) -> str:
    """The digest of some bytes, as seals have it."""
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()[:DIGITS]


def footer_length(tail: bytes | bytearray) -> int:
    """Of the footer with its length and the magic, as the end of the file says."""
    return int.from_bytes(tail[-8:-4], "little") + 8


def digest_of(data: bytes) -> bytes:
    return hexdigest([data]).encode()


def notes_of(file_id: str, groups: Sequence[SealedGroup]) -> dict[str, str]:
    """The seal as the footer has it, with the footer's own digest blanked."""
    listed = ",".join(f"{group.size}:{group.digest}" for group in groups)
    return {FILE.decode(): file_id, GROUPS.decode(): listed, FOOTER.decode(): BLANK.decode()}


def listed_in(footer: bytes) -> bytes | None:
    """The digests of row groups, as the footer has them; None where it has none."""
    at = footer.rfind(GROUPS + b"\x18")
    if at < footer.rfind(FILE + b"\x18"):  # before the seal are statistics, where anything may stand
        return None
    at += len(GROUPS) + 1
    length = shift = 0
    while True:
        length |= (footer[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if footer[at - 1] < 0x80:
            return footer[at : at + length]


def groups_in(listed: bytes) -> tuple[SealedGroup, ...]:
    groups: list[SealedGroup] = []
    start = len(MAGIC)
    for entry in listed.decode().split(",") if listed else []:
        size, _, digest = entry.partition(":")
        groups.append(SealedGroup(start, int(size), digest))
        start += int(size)
    return tuple(groups)


def value_in(footer: bytes, key: bytes) -> bytes | None:
    """The digest under a key; None where the footer has none there."""
    start = _start(footer, key)
    return None if start is None else footer[start : start + DIGITS]


def with_value(footer: bytes, key: bytes, value: bytes) -> bytes:
    """The footer with another digest under a key; as it is where the footer has none there."""
    start = _start(footer, key)
    return footer if start is None else footer[:start] + value + footer[start + DIGITS :]


def _start(footer: bytes, key: bytes) -> int | None:
    """Where the digest under a key begins."""
    entry = key + _binary(DIGITS)
    at = footer.rfind(entry)  # after the statistics, where anything may stand
    return None if at < 0 else at + len(entry)


def named(file_id: str) -> bytes:
    """The entry that says which file it is."""
    return FILE + _binary(len(file_id.encode())) + file_id.encode()


def _binary(length: int) -> bytes:
    """What stands before a string of this length in the footer (Thrift's compact protocol): its field, its length."""
    digits = bytearray()
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return bytes([0x18, *digits])
