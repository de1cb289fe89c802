"""Structs that may be decoded by several threads from the first time on.

Msgspec finds out what the fields of a struct are when it is first decoded, and a second thread that comes
meanwhile meets what is half done: the process ends by a segmentation fault (msgspec 0.22; tests/unit/placement/
test_decoding.py shows it). So it finds out here, in one thread at a time, before anything is decoded.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()


def decodable(kind: type[T]) -> type[T]:
    """`kind`, a struct or a container of structs, which any number of threads may decode from now on.

    Whoever decodes to a struct in `metastore` or `jobs` passes its type through this.
    """
    asked: Any = kind
    _find_out(asked)
    return kind


@cache
def _find_out(kind: Any) -> None:
    with _lock:
        msgspec.msgpack.Decoder(kind)
