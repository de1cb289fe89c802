"""Bytes that survive a power cut: the one place that asks file systems to keep what was written.

Nothing is acknowledged, and nothing is built upon, that the disk does not have. First files and the
directories that name them, then whatever refers to them. Object stores keep what they have answered, so there is
nothing to do for them (docs/decisions/020-durability.md).

Where `[storage] durability` is `replicas`, rows and commits of replica tables rely on the other replicas instead
(`sync_replicated`); what there is one copy of, and the promises of replicas (fences, markers), are always synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from epochlake.metastore import deadlines, threads

FSYNC = "fsync"
REPLICAS = "replicas"

THREADS = 8
"""Syncs that wait at the same time: a journal writes for all of them at once."""

_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EISDIR)
"""What file systems answer that have no sync of directories; their directories need none, or cannot be helped."""

fsync: Callable[[int], None] = os.fsync
"""What every sync goes through."""

_durability = FSYNC
_lost: set[str] = set()
"""What could not be synced for an error of the device. The kernel may call such a file clean afterwards, and a second
sync would succeed without its bytes, so this process never asks again."""


def use_durability(durability: str) -> None:
    """Set what this process promises, `fsync` or `replicas`; once, when it starts."""
    global _durability
    _durability = durability


def durability() -> str:
    """What this process promises."""
    return _durability


def sync_file(path: str) -> None:
    """Return when the disk has the bytes of a file, whoever wrote them. Raises OSError."""
    _sync(path)


def sync_directory(path: str) -> None:
    """Return when the disk has the names in a directory. Raises OSError."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


class Sync(Protocol):
    """`sync` or `sync_replicated`."""

    def __call__(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None: ...


def sync(files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
    """Sync a group: all of its files and directories side by side, each once. Raises OSError.

    A journal writes for all of them at once. Whatever names them comes after this.
    """
    work = [partial(sync_file, path) for path in dict.fromkeys(files)]
    _all([*work, *(partial(sync_directory, path) for path in dict.fromkeys(directories))])


def sync_replicated(files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
    """`sync` for what other replicas have as well: nothing is done where `durability` relies on them."""
    if _durability == FSYNC:
        sync(files, directories)


def _all(waiting: list[Callable[[], None]]) -> None:
    if len(waiting) <= 1 or THREADS == 1:
        for work in waiting:
            work()
        return
    # Daemons: one that hangs is left behind with the access that it belongs to (deadlines.py).
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    count = len(waiting)

    def run() -> None:
        while waiting:
            try:
                waiting.pop()()
                ended.put(None)
            except IndexError:
                return
            except BaseException as error:
                ended.put(error)

    for _ in range(min(THREADS, count)):
        threads.begin(run)
    failures = []
    for _ in range(count):
        failures.append(ended.get())
        deadlines.progress()
    for failure in failures:
        if failure is not None:
            raise failure


def _sync(path: str) -> None:
    if path in _lost:
        raise OSError(errno.EIO, "an earlier sync has failed, so its bytes may be lost", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fsync(descriptor)
    except OSError as error:
        if error.errno == errno.EIO:
            _lost.add(path)
        raise
    finally:
        os.close(descriptor)
