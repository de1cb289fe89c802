"""Replica tables as they lie on disks, read past the world's steps and troubles, and without production code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.replica import FENCE, UNFILLED
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.testing.world import ROOT, World
from epochlake.metastore.metadata.fence import Fence

_LOG = "_delta_log"
_COLUMNS = {"id", "note", WRITTEN_AT, DELETED}


class Row(NamedTuple):
    """A row of a data file; `note` is None where it is a null, or the row is deleted."""

    key: int
    written_at: int
    deleted: bool
    note: str | None


Mark = tuple[str, int]
"""The transaction of a commit of a replica table: of which application, and its version."""


class Unreadable(Exception):
    """A replica whose rows cannot be told: nobody who reads is told of them either."""


class ReplicaFiles:
    """A replica table: its live files and its fence, by the commits that lie there."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self.path = path
        self._known: dict[str, list[Any]] = {}

    def live_files(self) -> set[str]:
        """Raises Unreadable."""
        commits = self._commits()
        if commits is None:
            return self._by_delta_rs()
        live: set[str] = set()
        for action in commits:
            if "add" in action:
                live.add(action["add"]["path"])
            elif "remove" in action:
                live.discard(action["remove"]["path"])
        return live

    def fence(self) -> int:
        """What the table was fenced at last, 0 where it never was. Raises Unreadable."""
        commits = self._commits()
        if commits is None:
            raise Unreadable
        found = "0"
        for action in commits:
            if "metaData" in action:
                found = action["metaData"].get("configuration", {}).get(FENCE, "0")
        return Fence.decode(found)

    def added(self) -> set[str]:
        """All files that some commit has added, also those that were taken out since. Raises Unreadable."""
        commits = self._commits()
        if commits is None:
            raise Unreadable
        return {action["add"]["path"] for action in commits if "add" in action}

    def fence_before(self, path: str) -> int:
        """What the table was fenced at when it got a file first; 0 where it has not. Raises Unreadable."""
        found = "0"
        for action in self._commits() or []:
            if "metaData" in action:
                found = action["metaData"].get("configuration", {}).get(FENCE, "0")
            if "add" in action and action["add"]["path"] == path:
                return Fence.decode(found)
        return 0

    def is_unfilled_since(self, path: str) -> bool:
        """Whether a rebuild has made it anew, and has not brought all rows, since before it got a file. Raises
        Unreadable.
        """
        unfilled = had = False
        for action in self._commits() or []:
            if "metaData" in action:
                unfilled = bool(action["metaData"].get("configuration", {}).get(UNFILLED))
                had = had and unfilled
            if "add" in action and action["add"]["path"] == path:
                had = unfilled
        return had

    def commits(self) -> list[list[Any]]:
        """What each commit says, from the first one on. Raises Unreadable, also where old ones were cleaned up."""
        names = self._names()
        if names is None:
            raise Unreadable
        return [self._commit(name) for name in names]

    def is_there(self) -> bool:
        """Whether there is such a table."""
        return self._world.disk.status(f"{self.path}/{_LOG}") is not None

    def _commits(self) -> list[Any] | None:
        """What all commits say, from the first one on; None where old ones were cleaned up."""
        names = self._names()
        return None if names is None else [action for name in names for action in self._commit(name)]

    def _names(self) -> list[str] | None:
        """The files of all commits, from the first one on; None where old ones were cleaned up."""
        try:
            names = sorted(
                name
                for name in self._world.disk.names(f"{self.path}/{_LOG}")
                if name[:-5].isdigit() and name[-5:] == ".json"
            )
        except OSError as error:
            raise Unreadable from error
        if not names or int(names[0][:-5]) != 0:
            return None
        return names

    def _commit(self, name: str) -> list[Any]:
        if name not in self._known:
            data = read(self._world, f"{self.path}/{_LOG}/{name}")
            try:
                self._known[name] = [json.loads(line) for line in data.splitlines() if line]
            except ValueError as error:
                raise Unreadable from error
        return self._known[name]

    def _by_delta_rs(self) -> set[str]:
        """Where old commits were cleaned up."""
        if self._world.folder is None:
            raise Unreadable
        try:
            return self._world.folder.live_files(self.path)
        except Exception as error:
            raise Unreadable from error


def receipts(world: World, table_id: str) -> dict[int, set[Mark]]:
    """The receipts of the root, by the volumes of the replica tables that have given them."""
    found: dict[int, set[Mark]] = {}
    directory = f"{ROOT}/receipts/{table_id}"
    if world.disk.status(directory) is None:
        return found
    for name in world.disk.names(directory):
        volume, version, app_id = [*name.split(".", 2), "", ""][:3]
        if volume.isdecimal() and version.isdecimal() and app_id:
            found.setdefault(int(volume), set()).add((app_id, int(version)))
    return found


def read(world: World, path: str) -> bytes:
    """A file, whatever goes wrong there. Raises Unreadable."""
    try:
        return world.disk.read(path)
    except OSError as error:
        raise Unreadable from error


def decoded(data: bytes) -> Iterator[Row]:
    """The rows of a data file. Raises Unreadable."""
    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).read(["id", "note", WRITTEN_AT, DELETED]).to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:
        raise Unreadable from error
    for row in rows:
        if not row.keys() >= _COLUMNS:
            raise Unreadable  # the name of a column has rotted
        yield Row(row["id"], row[WRITTEN_AT], row[DELETED], row["note"])
