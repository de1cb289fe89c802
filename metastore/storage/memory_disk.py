"""A disk in memory, with the contract of a real one: it carries tests and simulations that need no file system.

Its paths are those of any disk, and nobody else sees its files: neither delta-rs nor Spark, nor another process.
"""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from epochlake.metastore.storage.disk import Disk, LockNotHad, Status, Usage
from pyarrow import fs

TOTAL = 1 << 40
"""Bytes of a disk that is not told how many it has."""


class _Node:
    """What a name stands for: a file with `data`, or a directory with `names`."""

    def __init__(self, number: int, now_ns: int, names: dict[str, _Node] | None = None) -> None:
        self.number = number
        self.data: bytes | bytearray = b""
        self.names = names
        self.modified_ns = self.changed_ns = now_ns
        self.links = 1

    def status(self) -> Status:
        is_file = self.names is None
        return Status(is_file, not is_file, len(self.data), self.modified_ns, self.changed_ns, 0, self.number)


class MemoryDisk:
    """One disk; all who are given the object share it. Keeps the contract of a disk. Safe for use by several threads.

    `now_ns` is its clock, nanoseconds since 1970. A disk of `total` bytes says so when it is full.
    """

    is_shared = False

    def __init__(self, now_ns: Callable[[], int] = time.time_ns, total: int = TOTAL) -> None:
        self.arrow: fs.FileSystem = fs.PyFileSystem(ForArrow(self))
        self._now_ns = now_ns
        self._total = total
        self._used = 0
        self._numbers = 1
        self._root = _Node(1, now_ns(), {})
        self._locked: set[str] = set()
        self._lock = threading.RLock()

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        with self._lock:
            try:
                return self._node(path).status()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def any_there(self, paths: Sequence[str]) -> bool:
        return any(self.status(path) is not None for path in paths)

    def names(self, directory: str) -> list[str]:
        with self._lock:
            return list(self._names(directory))

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        with self._lock:
            return [(name, node.status()) for name, node in self._names(directory).items()]

    def real_path(self, path: str) -> str:
        return os.path.normpath(path)

    def read(self, path: str) -> bytes:
        with self._lock:
            return bytes(self._file(path).data)

    def read_tail(self, path: str, size: int) -> bytes:
        data = self.read(path)
        return data[max(0, len(data) - size) :]

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        with self._lock:
            self._fill(self._opened(path, new=new), bytes(memoryview(data)), path)

    def open_output(self, path: str) -> pa.NativeFile:
        with self._lock:
            return pa.PythonFile(_Output(self, self._opened(path, new=False), path), mode="w")

    def append(self, node: _Node, data: bytes, path: str) -> None:
        """Add bytes to a file that is open, whatever its names are by now."""
        with self._lock:
            self._take(len(data), path)
            if not isinstance(node.data, bytearray):
                node.data = bytearray(node.data)
            node.data += data
            node.modified_ns = node.changed_ns = self._now_ns()

    def link(self, path: str, name: str) -> None:
        with self._lock:
            node, (directory, new) = self._file(path), self._place(name)
            if new in directory:
                raise _error(errno.EEXIST, name)
            directory[new] = node
            node.links += 1
            node.changed_ns = self._now_ns()

    def rename(self, path: str, name: str) -> None:
        with self._lock:
            (source, old), (target, new) = self._place(path), self._place(name)
            if old not in source:
                raise _error(errno.ENOENT, path)
            node, there = source[old], target.get(new)
            if there is node:
                return
            if there is not None and there.names is not None:
                raise _error(errno.ENOTEMPTY if there.names else errno.EISDIR, name)
            if there is not None and node.names is not None:
                raise _error(errno.ENOTDIR, name)
            if there is not None:
                self._unlink(there)
            target[new] = source.pop(old)
            node.changed_ns = self._now_ns()

    def delete(self, path: str) -> None:
        with self._lock:
            directory, name = self._place(path)
            self._unlink(self._file(path))
            del directory[name]

    def make_directory(self, path: str) -> None:
        with self._lock:
            directory, name = self._place(path)
            if not name or name in directory:
                raise _error(errno.EEXIST, path)
            directory[name] = self._new({})

    def delete_directory(self, path: str) -> None:
        with self._lock:
            if self._names(path):
                raise _error(errno.ENOTEMPTY, path)
            directory, name = self._place(path)
            del directory[name]

    def touch(self, path: str) -> None:
        with self._lock:
            node = self._node(path)
            node.modified_ns = node.changed_ns = self._now_ns()

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        with self._lock:
            for path in (*paths, *directories):
                self._node(path)

    def usage(self, path: str) -> Usage:
        with self._lock:
            self._node(path)
            return Usage(self._total, self._total - self._used)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        with self._lock:
            if self.status(path) is None:
                self.write(path, b"", new=False)
            if path in self._locked:
                raise LockNotHad(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
            self._locked.add(path)
        try:
            yield
        finally:
            self._locked.discard(path)

    def _node(self, path: str) -> _Node:
        node = self._root
        for name in _parts(path):
            if node.names is None:
                raise _error(errno.ENOTDIR, path)
            if name not in node.names:
                raise _error(errno.ENOENT, path)
            node = node.names[name]
        return node

    def _file(self, path: str) -> _Node:
        node = self._node(path)
        if node.names is not None:
            raise _error(errno.EISDIR, path)
        return node

    def _names(self, directory: str) -> dict[str, _Node]:
        node = self._node(directory)
        if node.names is None:
            raise _error(errno.ENOTDIR, directory)
        return node.names

    def _place(self, path: str) -> tuple[dict[str, _Node], str]:
        """The names of the directory that a path is in, and its own name there."""
        *above, name = _parts(path) or [""]
        return self._names("/" + "/".join(above)), name

    def _opened(self, path: str, *, new: bool) -> _Node:
        """A file without bytes, in place of one that is there unless it has to be `new`."""
        directory, name = self._place(path)
        if name not in directory:
            directory[name] = self._new(None)
            return directory[name]
        if new:
            raise _error(errno.EEXIST, path)
        node = self._file(path)
        self._used -= len(node.data)
        node.data = b""
        return node

    def _fill(self, node: _Node, data: bytes, path: str) -> None:
        self._take(len(data), path)
        node.data = data
        node.modified_ns = node.changed_ns = self._now_ns()

    def _take(self, size: int, path: str) -> None:
        if self._used + size > self._total:
            raise _error(errno.ENOSPC, path)
        self._used += size

    def _unlink(self, node: _Node) -> None:
        node.links -= 1
        node.changed_ns = self._now_ns()
        self._used -= 0 if node.links else len(node.data)

    def _new(self, names: dict[str, _Node] | None) -> _Node:
        self._numbers += 1
        return _Node(self._numbers, self._now_ns(), names)


class _Output(io.RawIOBase):
    """A stream into a file of a disk in memory."""

    def __init__(self, disk: MemoryDisk, node: _Node, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._node = node
        self._path = path
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._disk.append(self._node, bytes(data), self._path)
        self._written += len(data)
        return len(data)


class ForArrow(fs.FileSystemHandler):
    """How Arrow reads a disk by its contract; what it never does there is refused."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForArrow) and other._disk is self._disk

    def __hash__(self) -> int:
        return id(self._disk)

    def get_type_name(self) -> str:
        return "memory"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [_info(path, self._disk.status(path)) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        found, directories = [], [selector.base_dir]
        while directories:
            directory = directories.pop()
            for name, status in self._disk.entries(directory):
                path = f"{directory.rstrip('/')}/{name}"
                found.append(_info(path, status))
                if selector.recursive and status.is_directory:
                    directories.append(path)
        return found

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._disk.read(path))

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return self._disk.open_output(path)

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise io.UnsupportedOperation(f"append to {path}")

    def create_dir(self, path: str, recursive: bool) -> None:
        raise io.UnsupportedOperation(f"make {path}")

    def delete_dir(self, path: str) -> None:
        raise io.UnsupportedOperation(f"delete {path}")

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise io.UnsupportedOperation(f"delete what is in {path}")

    def delete_root_dir_contents(self) -> None:
        raise io.UnsupportedOperation("delete everything")

    def delete_file(self, path: str) -> None:
        raise io.UnsupportedOperation(f"delete {path}")

    def move(self, source: str, target: str) -> None:
        raise io.UnsupportedOperation(f"move {source}")

    def copy_file(self, source: str, target: str) -> None:
        raise io.UnsupportedOperation(f"copy {source}")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _info(path: str, status: Status | None) -> fs.FileInfo:
    if status is None:
        return fs.FileInfo(path, fs.FileType.NotFound)
    kind = fs.FileType.File if status.is_file else fs.FileType.Directory
    return fs.FileInfo(path, kind, size=status.size if status.is_file else None, mtime_ns=status.modified_ns)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
