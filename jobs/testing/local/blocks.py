"""What is so for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@contextmanager
def entered(lock: AbstractContextManager[Any], entries: MutableMapping[K, V], key: K, value: V) -> Iterator[None]:
    """There is an entry while the block lasts; `lock` is held whenever the entries change."""
    with lock:
        entries[key] = value
    try:
        yield
    finally:
        with lock:
            del entries[key]
