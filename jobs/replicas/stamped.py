"""Small files at the root that say by themselves whether they are what was written: JSON that ends with a digest.

A flipped bit in the id of a file, or in the name of a try, can still be read as JSON, and then tells of something else.
The last field of such a file is a digest of all bytes before it. Whoever knows nothing of it reads the other fields;
files from before have none, and are read as they are (docs/decisions/085-change-streams-reviewed.md).
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec
from epochlake.metastore.errors import LogUnreadable
from epochlake.placement.decoding import decodable

T = TypeVar("T")

_BEGIN = b',"digest":"'
_END = b'"}'
_DIGITS = 32


def stamped(value: msgspec.Struct) -> bytes:
    """A struct as JSON that ends with its digest."""
    return _with_digest(msgspec.json.encode(value)[:-1])


def is_complete(data: bytes) -> bool:
    """Whether a file has its end: one that is being written, or that a power cut has torn, has not."""
    return data.endswith(b"}") and b"\0" not in data


def unstamped(data: bytes, kind: type[T], what: str) -> T:
    """What `stamped` has made of a struct. `what` names it in errors. Raises LogUnreadable for other bytes."""
    head, found, _ = data.rpartition(_BEGIN)
    if found and _with_digest(head) != data:
        raise LogUnreadable(f"{what} is damaged: its bytes are not those that were written", hint="Restore the file")
    try:
        return msgspec.json.decode(data, type=decodable(kind))
    except msgspec.MsgspecError as error:
        raise LogUnreadable(f"{what} cannot be read: {error}", hint="Restore the file") from error


def _with_digest(head: bytes) -> bytes:
    return head + _BEGIN + hashlib.sha256(head).hexdigest()[:_DIGITS].encode() + _END
