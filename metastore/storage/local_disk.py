"""The disk of this machine: the one module that asks the system for files.

See docs/decisions/039-storage-is-a-value.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue

import pyarrow as pa
from epochlake.metastore import threads
from epochlake.metastore.storage.deadlines import progress
from epochlake.metastore.storage.disk import LockNotHad, Status, Usage
from pyarrow import fs

CHUNK = 8 << 20
"""Bytes that are written at a time."""

THREADS = 8
"""Syncs that wait at the same time: a journal writes for all of them at once."""

_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EISDIR)
"""What file systems answer that have no sync of directories; their directories need none, or cannot be helped."""

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

fsync: Callable[[int], None] = os.fsync
"""What every sync goes through."""

_lost: set[str] = set()
"""What could not be synced for an error of the device. The kernel may call such a file clean afterwards, and a second
sync would succeed without its bytes, so this process never asks again, whoever wants it: the kernel knows no clusters.
"""


class LocalDisk:
    """The file systems of this machine. Keeps the contract of a disk."""

    is_shared = True

    arrow: fs.FileSystem = fs.LocalFileSystem()

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        try:
            return _status(os.stat(path, follow_symlinks=follow))
        except OSError as error:
            if error.errno in _NOTHING_THERE:
                return None
            raise

    def any_there(self, paths: Sequence[str]) -> bool:
        return any(self.status(path) is not None for path in paths)

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append((entry.name, _status(entry.stat())))
        return found

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def read_tail(self, path: str, size: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            start = max(0, file.seek(0, os.SEEK_END) - size)
            file.seek(start)
            return file.read()

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        with open(path, "xb" if new else "wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[os.write(file.fileno(), left[:CHUNK]) :]
                progress()

    def open_output(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path, "wb")

    def link(self, path: str, name: str) -> None:
        os.link(path, name)

    def rename(self, path: str, name: str) -> None:
        os.rename(path, name)

    def delete(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path)

    def delete_directory(self, path: str) -> None:
        os.rmdir(path)

    def touch(self, path: str) -> None:
        os.utime(path)

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        work = [partial(_sync, path) for path in paths]
        _all([*work, *(partial(_sync_directory, path) for path in directories)])

    def usage(self, path: str) -> Usage:
        found = shutil.disk_usage(path)
        return Usage(found.total, found.free)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        with open(path, "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LockNotHad(*error.args) from error
            yield


def _status(found: os.stat_result) -> Status:
    mode = found.st_mode
    return Status(
        stat.S_ISREG(mode),
        stat.S_ISDIR(mode),
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_dev,
        found.st_ino,
    )


def _all(waiting: list[partial[None]]) -> None:
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

    for _ in range(min(THREADS, count) - 1):
        threads.begin(run)
    run()
    failures = []
    for _ in range(count):
        failures.append(ended.get())
        progress()
    for failure in failures:
        if failure is not None:
            raise failure


def _sync_directory(path: str) -> None:
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


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
