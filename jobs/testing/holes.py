"""Holes in replica tables, of which a commit has vanished: nobody takes such a table for one that ends before the hole.

So it is promised of whoever opens a table (docs/decisions/032-carried-on-replicas.md). What it stands for, rows that
were acknowledged, is covered by receipts as well (027), so no reader need ever be shown less by it. It is looked at by
itself: up to which commit a process says that it knows a table, and which commits lie there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from epochlake.jobs.replicas import replica
from epochlake.jobs.replicas.states import ReplicaState
from epochlake.jobs.testing.world import World
from epochlake.metastore.storage.places import require_local
from epochlake.metastore.storage.storage import Storage

_open_state = replica.open_state


class Holes:
    """The holes of a world's replica tables. `wrong`: tables that were opened over one."""

    def __init__(self, world: World) -> None:
        self.wrong: list[str] = []
        self._world = world

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, it is looked at what whoever opens a replica table knows of it."""
        with patch.object(replica, "open_state", self._opened):
            yield

    def open(self, below: str = "/") -> list[tuple[str, int]]:
        """The logs of replica tables in which a commit is missing between others now, and its version."""
        disk, found = self._world.disk, []
        for path in self._world.holes:
            log, _, name = path.rpartition("/")
            if not path.startswith(below) or disk.status(path) is not None or disk.status(log) is None:
                continue
            others = [int(one[:-5]) for one in disk.names(log) if one.endswith(".json") and one[:-5].isdigit()]
            if others and min(others) < int(name[:-5]) < max(others):
                found.append((log, int(name[:-5])))
        return found

    def _opened(self, storage: Storage, uri: str) -> ReplicaState:
        before = self.open(require_local(uri)) if self._world.holes else []
        state = _open_state(storage, uri)
        for _, missing in before:
            if state.version < missing:
                name = self._world.scheduler.current.process.name
                self.wrong.append(f"{name} knows {uri} up to its commit {state.version}, before the hole at {missing}")
        return state
