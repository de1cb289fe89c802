"""A disk that can lose its power: what was not synced may be gone then, bytes and names apart from each other.

What it keeps of each change is what the disk itself had before: the bytes that a file had at its last sync, the file
that a name stood for when its directory was synced. A cut brings that back, all of it or some. Directories that are
renamed are on the disk at once, as journals order that.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import pyarrow as pa
from epochlake.metastore.storage.disk import Disk, Status, Usage
from pyarrow import fs


class CuttableDisk:
    """Keeps the contract of a disk, over another one."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        # By the number of a file: its bytes as they were synced. None: it was never synced.
        self._unsynced: dict[int, bytes | None] = {}
        # By directory and name: the bytes of the file that was there at the last sync; None: nothing was.
        self._unnamed: dict[str, dict[str, bytes | None]] = {}

    @property
    def is_shared(self) -> bool:
        return self.disk.is_shared

    @property
    def arrow(self) -> fs.FileSystem:
        return self.disk.arrow

    def cut(self, place: str, chance: random.Random) -> int:
        """Lose below a place what was not synced, all of it or some; how many changes were lost."""
        lost, share = 0, chance.choice([1.0, 0.5])
        for directory in sorted(self._unnamed, key=len, reverse=True):
            if not is_below(directory, place):
                continue
            for name, before in self._unnamed.pop(directory).items():
                if chance.random() < share:
                    lost += self._put_back(f"{directory.rstrip('/')}/{name}", before)
        for path, status in files_below(self.disk, place):
            if status.number in self._unsynced:
                lost += self._lose_bytes(path, self._unsynced.pop(status.number), chance, share)
        return lost

    def wrote(self, path: str, *, new: bool) -> None:
        """A file was written past this disk."""
        self._changes_bytes(path)
        if new:
            self._note(path, None)

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        return self.disk.status(path, follow=follow)

    def any_there(self, paths: Sequence[str]) -> bool:
        return self.disk.any_there(paths)

    def names(self, directory: str) -> list[str]:
        return self.disk.names(directory)

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        return self.disk.entries(directory)

    def real_path(self, path: str) -> str:
        return self.disk.real_path(path)

    def read(self, path: str) -> bytes:
        return self.disk.read(path)

    def read_tail(self, path: str, size: int) -> bytes:
        return self.disk.read_tail(path, size)

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        with self._writing(path):
            self.disk.write(path, data, new=new)

    def open_output(self, path: str) -> pa.NativeFile:
        with self._writing(path):
            return self.disk.open_output(path)

    def link(self, path: str, name: str) -> None:
        self.disk.link(path, name)
        self._note(name, None)

    def rename(self, path: str, name: str) -> None:
        moved, replaced = self._synced(path), self._synced(name)
        is_directory = (status := self.disk.status(path)) is not None and status.is_directory
        self.disk.rename(path, name)
        if is_directory:
            self.forget(path)
        else:
            self._note(path, moved)
            self._note(name, replaced)

    def delete(self, path: str) -> None:
        gone = self._synced(path)
        self.disk.delete(path)
        self._note(path, gone)

    def make_directory(self, path: str) -> None:
        self.disk.make_directory(path)
        self._note(path, None)

    def delete_directory(self, path: str) -> None:
        self.disk.delete_directory(path)
        self.forget(path)

    def touch(self, path: str) -> None:
        self.disk.touch(path)

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        self.disk.sync(paths, directories)
        for path in paths:
            if (status := self.disk.status(path)) is not None:
                self._unsynced.pop(status.number, None)
        for directory in (*paths, *directories):
            self._unnamed.pop(directory.rstrip("/") or "/", None)

    def usage(self, path: str) -> Usage:
        return self.disk.usage(path)

    def locked(self, path: str) -> AbstractContextManager[None]:
        return self.disk.locked(path)

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        there = self.disk.status(path)
        before = None if there is None else self._synced(path)
        yield
        self._changes_bytes(path, before)
        if there is None:
            self._note(path, None)

    def _changes_bytes(self, path: str, before: bytes | None = None) -> None:
        status = self.disk.status(path)
        if status is not None:
            self._unsynced.setdefault(status.number, before)

    def _synced(self, path: str) -> bytes | None:
        """The bytes of a file as the disk itself has them; None when there is no file, or it was never synced."""
        status = self.disk.status(path)
        if status is None or not status.is_file:
            return None
        return self._unsynced[status.number] if status.number in self._unsynced else self.disk.read(path)

    def _note(self, path: str, before: bytes | None) -> None:
        directory, name = os.path.split(path)
        self._unnamed.setdefault(directory, {}).setdefault(name, before)

    def is_durable(self, path: str) -> bool:
        """Whether a file is there, and would be after a cut, with its bytes."""
        status = self.disk.status(path)
        directory, name = os.path.split(path)
        unnamed = self._unnamed.get(directory, {})
        return status is not None and status.number not in self._unsynced and name not in unnamed

    def forget(self, place: str) -> None:
        """What is in a place now is on the disk."""
        for directory in [one for one in self._unnamed if is_below(one, place)]:
            del self._unnamed[directory]

    def _put_back(self, path: str, before: bytes | None) -> bool:
        with suppress(OSError):
            delete_tree(self.disk, path)
            if before is not None:
                self.disk.write(path, before, new=True)
            return True
        return False

    def _lose_bytes(self, path: str, before: bytes | None, chance: random.Random, share: float) -> bool:
        if chance.random() >= share:
            return False
        data = self.disk.read(path)
        torn = data[: chance.randrange(len(data) + 1)]
        lost = chance.choice([before or b"", torn, bytes(len(data)), torn + bytes(len(data) - len(torn))])
        self.disk.write(path, lost, new=False)
        return True


def is_below(path: str, place: str) -> bool:
    """Whether a path is a place or in it."""
    return place == "/" or path == place or path.startswith(f"{place}/")


def files_below(disk: Disk, place: str) -> list[tuple[str, Status]]:
    """All files of a place by name, however deep."""
    found: list[tuple[str, Status]] = []
    try:
        entries = sorted(disk.entries(place))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        raise
    for name, status in entries:
        path = f"{place.rstrip('/')}/{name}"
        found += files_below(disk, path) if status.is_directory else [(path, status)]
    return found


def delete_tree(disk: Disk, path: str) -> None:
    """Delete a file, or a directory with all that is in it."""
    status = disk.status(path, follow=False)
    if status is not None and status.is_directory:
        for name in disk.names(path):
            delete_tree(disk, f"{path}/{name}")
        disk.delete_directory(path)
    elif status is not None:
        disk.delete(path)


def copied(disk: Disk, place: str) -> dict[str, bytes]:
    """All files below a place: what a copy of it holds."""
    return {path: disk.read(path) for path, _ in files_below(disk, place)}


def restore(disk: Disk, place: str, files: dict[str, bytes]) -> None:
    """Put a copy in place of what is there; `{}` leaves an empty directory."""
    for name in disk.names(place):
        delete_tree(disk, f"{place}/{name}")
    for path, data in files.items():
        above = os.path.dirname(path)
        missing = []
        while disk.status(above) is None:
            missing.append(above)
            above = os.path.dirname(above)
        for directory in reversed(missing):
            disk.make_directory(directory)
        disk.write(path, data, new=True)
