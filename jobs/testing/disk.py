"""A disk of the world as one process sees it: each step is a point where others may go on, and may go wrong."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import pyarrow as pa
from epochlake.jobs.testing.scheduler import Scheduler, Waiter
from epochlake.metastore.storage.disk import Status, Usage
from epochlake.metastore.storage.memory_disk import MemoryDisk
from pyarrow import fs

T = TypeVar("T")

ACCESS_SECONDS = 0.003
"""How long a step of a disk takes, on average."""


class Troubles:
    """What is wrong with places of a disk, for everybody: paths below a prefix fail, hang, or are full."""

    def __init__(self, scheduler: Scheduler, seed: int | str) -> None:
        self.scheduler = scheduler
        self.random = random.Random(repr(("disk", seed)))
        self.failing: dict[str, int] = {}
        """An error number for each place whose steps all fail."""
        self.full: set[str] = set()
        self.hanging: dict[str, list[Waiter]] = {}
        self.chance = 0.0
        """How likely a single step fails, before or after its effect."""

    def hang(self, place: str) -> None:
        """From now on each step there waits until `release`."""
        self.hanging.setdefault(place, [])

    def release(self, place: str) -> None:
        """What hangs there goes on, late."""
        for waiter in self.hanging.pop(place, []):
            self.scheduler.wake(waiter)

    def heal(self) -> None:
        """Nothing is wrong any more."""
        self.failing.clear()
        self.full.clear()
        self.chance = 0.0
        for place in list(self.hanging):
            self.release(place)

    def before(self, path: str, *, writes: bool) -> bool:
        """Wait and fail as the place does; True: the step is to fail once it was done."""
        for place, waiting in self.hanging.items():
            if _is_below(path, place):
                waiter = Waiter()
                waiting.append(waiter)
                self.scheduler.wait(waiter)
                break
        for place, number in self.failing.items():
            if _is_below(path, place):
                raise _error(number, path)
        if writes and any(_is_below(path, place) for place in self.full):
            raise _error(errno.ENOSPC, path)
        if self.chance and self.random.random() < self.chance:
            if self.random.random() < 0.5:
                raise _error(errno.EIO, path)
            return True
        return False


class WorldDisk:
    """Keeps the contract of a disk, on one in memory that all processes share."""

    is_shared = False

    def __init__(self, scheduler: Scheduler, disk: MemoryDisk, troubles: Troubles) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self._troubles = troubles

    @property
    def arrow(self) -> fs.FileSystem:
        return self._disk.arrow

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        return self._step("look at", path, lambda: self._disk.status(path, follow=follow))

    def names(self, directory: str) -> list[str]:
        return self._step("list", directory, lambda: self._disk.names(directory))

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        return self._step("list", directory, lambda: self._disk.entries(directory))

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def read(self, path: str) -> bytes:
        return self._step("read", path, lambda: self._disk.read(path))

    def read_tail(self, path: str, size: int) -> bytes:
        return self._step("read the end of", path, lambda: self._disk.read_tail(path, size))

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        self._step("write", path, lambda: self._disk.write(path, data, new=new), writes=True)

    def open_output(self, path: str) -> pa.NativeFile:
        return self._step("open", path, lambda: self._disk.open_output(path), writes=True)

    def link(self, path: str, name: str) -> None:
        self._step("link", name, lambda: self._disk.link(path, name), writes=True)

    def rename(self, path: str, name: str) -> None:
        self._step("rename to", name, lambda: self._disk.rename(path, name), writes=True)

    def delete(self, path: str) -> None:
        self._step("delete", path, lambda: self._disk.delete(path))

    def make_directory(self, path: str) -> None:
        self._step("make", path, lambda: self._disk.make_directory(path), writes=True)

    def delete_directory(self, path: str) -> None:
        self._step("delete", path, lambda: self._disk.delete_directory(path))

    def touch(self, path: str) -> None:
        self._step("touch", path, lambda: self._disk.touch(path))

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        for path in (*paths, *directories):
            self._step("sync", path, lambda path=path: self._disk.sync([path], []))  # type: ignore[misc]

    def usage(self, path: str) -> Usage:
        return self._step("measure", path, lambda: self._disk.usage(path))

    def locked(self, path: str) -> AbstractContextManager[None]:
        return self._step("lock", path, lambda: self._disk.locked(path))

    def _step(self, asked: str, path: str, step: Callable[[], T], *, writes: bool = False) -> T:
        self._scheduler.access(f"{asked} {path}", ACCESS_SECONDS)
        fails_after = self._troubles.before(path, writes=writes)
        result = step()
        if fails_after:
            raise _error(errno.EIO, path)
        return result


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
