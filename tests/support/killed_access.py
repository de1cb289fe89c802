"""A process that ends at its n-th access to storage that changes something, before it or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from epochlake.metastore.storage.storage import Storage

CHANGES = ("write", "create", "replace", "delete", "copy", "commit", "link", "move", "touch", "sync")
"""How accesses begin that change something, as `Storage.within_deadline` is told of them."""


class Killed(BaseException):
    """As if the process ended here."""


@contextmanager
def killed_at(step: int, *, after: bool, below: Callable[[str], bool] = lambda uri: True) -> Iterator[list[str]]:
    """End the process at that access, counted from 1, of those to URIs for which `below` is true. Yields what was done.

    Every access after it ends as well, in whichever thread: a process that is killed does nothing more.
    """
    whole, seen = Storage.within_deadline, []

    def counted(self: Storage, asked: str, uri: str, call: Callable[[], Any]) -> Any:
        if len(seen) >= step:
            raise Killed
        if not asked.startswith(CHANGES) or not below(uri):
            return whole(self, asked, uri, call)
        seen.append(f"{asked} {uri}")
        if len(seen) < step:
            return whole(self, asked, uri, call)
        if after:
            whole(self, asked, uri, call)
        raise Killed

    with patch.object(Storage, "within_deadline", counted):
        yield seen
