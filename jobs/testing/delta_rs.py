"""delta-rs in a world: real tables in a folder, each call a point where others may go on, and which may fail.

A call is one step: others come before it or after it, not in between. What it writes are files of the world: they have
the world's time, and count as not synced until production code syncs them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from epochlake.jobs.testing.disk import WorldDisk
from epochlake.jobs.testing.folder_disk import FolderDisk
from epochlake.jobs.testing.power import CuttableDisk
from epochlake.jobs.testing.scheduler import Scheduler

ACCESS_SECONDS = 0.005
"""How long a call takes, on average."""

_LOG = "_delta_log"
REMEMBERED = {"delta.deletedFileRetentionDuration": f"interval {36_500 * 86_400} seconds"}
"""What replica tables have to say: by its own clock, which is years ahead, delta-rs forgets at once what was taken out.
"""


def table_class(scheduler: Scheduler, disk: FolderDisk, cuttable: CuttableDisk, seen: WorldDisk) -> type:
    """What production code finds in place of `DeltaTable`: tables on `disk`, which processes see as `seen`."""

    def step(asked: str, path: str, call: Callable[[], Any], *, writes: bool = False) -> Any:
        def run() -> Any:
            known = _times(disk, path) if writes else {}
            try:
                return call()
            except Exception as error:
                told = disk.told(str(error))
                raise type(error)(told) if told != str(error) else error from None
            finally:
                if writes:
                    _stamp(disk, path, known, cuttable)

        return seen.step(f"delta-rs: {asked}", path, run, writes=writes)

    class WorldTable:
        """A table of the world; keeps what production code uses of `DeltaTable`."""

        def __init__(self, uri: str, version: int | None = None, storage_options: dict[str, str] | None = None) -> None:
            self._path = _path(uri)
            self._table = step("open", self._path, lambda: DeltaTable(disk.real(self._path), version=version))

        @staticmethod
        def is_deltatable(uri: str, storage_options: dict[str, str] | None = None) -> bool:
            path = _path(uri)
            found: bool = step("look for", path, lambda: DeltaTable.is_deltatable(disk.real(path)))
            return found

        @property
        def table_uri(self) -> str:
            return self._path

        def get_add_actions(self, flatten: bool = False) -> Any:
            # delta-rs gives them in another order each time.
            actions = pa.RecordBatchReader.from_stream(self._table.get_add_actions(flatten=flatten)).read_all()
            return actions.sort_by("path") if actions.num_rows else actions

        def cleanup_metadata(self) -> None:
            def clean() -> None:
                with _RealAges(scheduler, disk, self._path):
                    self._table.cleanup_metadata()

            step("clean the log of", self._path, clean, writes=True)

        def update_incremental(self) -> None:
            step("update", self._path, self._table.update_incremental)

        def create_checkpoint(self) -> None:
            step("checkpoint", self._path, self._table.create_checkpoint, writes=True)

        def __getattr__(self, name: str) -> Any:
            if name not in ("version", "metadata", "schema", "transaction_version"):
                raise AttributeError(f"a world's table has no {name}: it would be no step of the world")
            return getattr(self._table, name)

    return WorldTable


class NoTable:
    """In place of `DeltaTable` in a world whose disks are in memory, where delta-rs finds nothing."""

    def __init__(self, uri: str, **_: Any) -> None:
        raise TableNotFoundError(f"no table at {uri}")

    @staticmethod
    def is_deltatable(uri: str, **_: Any) -> bool:
        return False


class _RealAges:
    """For a block: the files of a table's log are as old by the real clock as they are by the world's."""

    def __init__(self, scheduler: Scheduler, disk: FolderDisk, path: str) -> None:
        self._directory = disk.real(f"{path}/{_LOG}")
        self._ahead = time.time_ns() - int(scheduler.now * 1e9)

    def __enter__(self) -> None:
        self._shift(self._ahead)

    def __exit__(self, *_: object) -> None:
        self._shift(-self._ahead)

    def _shift(self, by: int) -> None:
        for entry in os.scandir(self._directory):
            modified = entry.stat().st_mtime_ns + by
            os.utime(entry.path, ns=(modified, modified))


def _path(uri: str) -> str:
    return unquote(uri.removeprefix("file://")).rstrip("/")


def _times(disk: FolderDisk, path: str) -> dict[str, int]:
    """When each file of a table's log was written."""
    try:
        return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(disk.real(f"{path}/{_LOG}"))}
    except FileNotFoundError:
        return {}


def _stamp(disk: FolderDisk, path: str, known: dict[str, int], cuttable: CuttableDisk) -> None:
    """Give what delta-rs has written the world's time."""
    for name, modified in sorted(_times(disk, path).items()):
        if known.get(name) != modified:
            written = f"{path}/{_LOG}/{name}"
            disk.touch(written)
            cuttable.wrote(written, new=name not in known)
