"""A disk of the world in a folder of the real one, best in memory: delta-rs reads and writes there what is real.

Production code sees only paths of the world; the stand-in for delta-rs (delta_rs.py) translates them as well. Times of
files are those of the world's clock.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from epochlake.metastore.storage.disk import Status, Usage
from epochlake.metastore.storage.local_disk import LocalDisk
from pyarrow import fs

IN_MEMORY = "/dev/shm"
TOTAL = 1 << 40
"""Bytes of the disk, as the world is told."""


_PREFIX = "epochlake-world-"


def _directory() -> str:
    return IN_MEMORY if os.path.isdir(IN_MEMORY) else tempfile.gettempdir()


def forget_the_dead() -> None:
    """Delete the folders of processes that were killed."""
    for entry in os.scandir(_directory()):
        pid = entry.name.removeprefix(_PREFIX).partition("-")[0]
        if entry.name.startswith(_PREFIX) and pid.isdigit() and not _lives(int(pid)):
            shutil.rmtree(entry.path, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class FolderDisk:
    """Keeps the contract of a disk. `now_ns` is its clock, nanoseconds since 1970. Close it: its folder goes then."""

    is_shared = True

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.base = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_directory())
        self.arrow: fs.FileSystem = fs.SubTreeFileSystem(self.base, fs.LocalFileSystem())
        self._now_ns = now_ns
        self._disk = LocalDisk()

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.base, ignore_errors=True)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a Delta table, as delta-rs finds them."""
        uris = DeltaTable(self.real(table)).file_uris()
        return [row for uri in uris for row in pq.ParquetFile(uri).read().to_pylist()]

    def live_files(self, table: str) -> set[str]:
        """The paths of a table's data files in it, as delta-rs finds them."""
        prefix = self.real(table).rstrip("/") + "/"
        return {
            unquote(uri).removeprefix("file://").removeprefix(prefix)
            for uri in DeltaTable(self.real(table)).file_uris()
        }

    def real(self, path: str) -> str:
        """Where a path of the world is."""
        return f"{self.base}{path}"

    def told(self, text: str) -> str:
        """A text about real paths, in paths of the world."""
        return text.replace(self.base, "")

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        found = self._disk.status(self.real(path), follow=follow)
        return None if found is None else self._in_world_time(path, found)

    def any_there(self, paths: Sequence[str]) -> bool:
        return self._disk.any_there([self.real(path) for path in paths])

    def names(self, directory: str) -> list[str]:
        return sorted(self._disk.names(self.real(directory)))

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        found = sorted(self._disk.entries(self.real(directory)))
        return [(name, self._in_world_time(f"{directory}/{name}", status)) for name, status in found]

    def _in_world_time(self, path: str, status: Status) -> Status:
        """What is written through a stream gets the real time, which is years ahead: it was written just now."""
        modified, now = status.modified_ns, self._now_ns()
        if modified > now and status.is_file:
            self.touch(path)
            modified = now
        return status._replace(modified_ns=modified, changed_ns=modified)

    def real_path(self, path: str) -> str:
        return os.path.normpath(path)

    def read(self, path: str) -> bytes:
        return self._disk.read(self.real(path))

    def read_tail(self, path: str, size: int) -> bytes:
        return self._disk.read_tail(self.real(path), size)

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        self._disk.write(self.real(path), data, new=new)
        self.touch(path)

    def open_output(self, path: str) -> pa.NativeFile:
        stream = self._disk.open_output(self.real(path))
        self.touch(path)
        return stream

    def link(self, path: str, name: str) -> None:
        self._disk.link(self.real(path), self.real(name))

    def rename(self, path: str, name: str) -> None:
        self._disk.rename(self.real(path), self.real(name))

    def delete(self, path: str) -> None:
        self._disk.delete(self.real(path))

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(self.real(path))

    def delete_directory(self, path: str) -> None:
        self._disk.delete_directory(self.real(path))

    def touch(self, path: str) -> None:
        now = self._now_ns()
        os.utime(self.real(path), ns=(now, now))

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        for path in (*paths, *directories):
            os.stat(self.real(path))

    def usage(self, path: str) -> Usage:
        os.stat(self.real(path))
        return Usage(TOTAL, TOTAL // 2)

    def locked(self, path: str) -> AbstractContextManager[None]:
        return self._disk.locked(self.real(path))
