"""The contract of a disk: everything that is done to files and directories of a file system, one system call at a time.

Paths are absolute. All of it raises OSError with its number, as the system does. `Storage` puts these steps together,
under its deadlines and with words for what fails; a disk that stands in for another one need know nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyarrow import fs


class Status(NamedTuple):
    """What is at a path: a file of `size` bytes, a directory, or something else. Times are nanoseconds since 1970.

    `device` and `number` tell one file from another, whatever its names are.
    """

    is_file: bool
    is_directory: bool
    size: int
    modified_ns: int
    changed_ns: int
    device: int
    number: int

    def is_same_as(self, other: Status | None) -> bool:
        """Whether both are one file."""
        return other is not None and (self.device, self.number) == (other.device, other.number)


class LockNotHad(OSError):
    """Somebody else holds a lock, or the file system knows none."""


class Usage(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


class Disk(Protocol):
    """A file system. Names are put with `link` (fails where there is one) and `rename` (replaces)."""

    @property
    def is_shared(self) -> bool:
        """Whether others see the same files under the same paths: delta-rs, Spark, other processes."""

    @property
    def arrow(self) -> fs.FileSystem:
        """The same files for Arrow, to read from."""

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        """None where nothing is; `follow`: of what a symbolic link leads to."""

    def any_there(self, paths: Sequence[str]) -> bool:
        """Whether something is in one of these places."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory, in no order."""

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        """The names in a directory with what is there; without those that go meanwhile, or lead nowhere."""

    def real_path(self, path: str) -> str:
        """The path without symbolic links, as far as it is there."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def read_tail(self, path: str, size: int) -> bytes:
        """The last `size` bytes of a file, or all of it when it is shorter."""

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        """Write a file; `new`: FileExistsError where there is one, else in place of its bytes."""

    def open_output(self, path: str) -> pa.NativeFile:
        """A stream into a file, in place of its bytes; closed by the caller."""

    def link(self, path: str, name: str) -> None:
        """Give a file another name. FileExistsError where that is taken."""

    def rename(self, path: str, name: str) -> None:
        """Move a file or a directory, in place of a file that is there."""

    def delete(self, path: str) -> None:
        """Delete a file."""

    def make_directory(self, path: str) -> None:
        """FileExistsError where something is, FileNotFoundError without its parent."""

    def delete_directory(self, path: str) -> None:
        """Delete an empty directory."""

    def touch(self, path: str) -> None:
        """Make a file count as just written."""

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        """Return when the disk has the bytes of the files, and the names in the directories, side by side."""

    def usage(self, path: str) -> Usage:
        """Bytes of the file system that a path is on."""

    def locked(self, path: str) -> AbstractContextManager[None]:
        """Hold the lock that a file stands for, which is made. Raises LockNotHad at once."""


def is_same_file(disk: Disk, path: str, other: str) -> bool:
    """Whether two paths name one file. Raises OSError when that cannot be told."""
    status = disk.status(path)
    return status is not None and status.is_same_as(disk.status(other))
