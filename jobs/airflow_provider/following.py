"""The clusters that the triggers of a process look at: each is open once, however many triggers ask it.

Only logs and lists of files are read, by threads. Nothing here starts a JVM: neither Spark nor an embedded ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.configuration import Configuration

R = TypeVar("R")

_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="epochlake")


async def in_thread(function: Callable[..., R], *arguments: object) -> R:
    """What a function returns that blocks. Its threads are its own: a disk that hangs keeps no others waiting."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *arguments)


class Followed:
    """Open clusters by their configuration; one is closed when nobody uses it any more. For one event loop."""

    def __init__(self) -> None:
        self._open: dict[bytes, Shared] = {}

    @asynccontextmanager
    async def cluster(self, configuration: Configuration) -> AsyncIterator[Cluster]:
        """The cluster of a configuration. Raises what `open_cluster` raises."""
        key = msgspec.json.encode(configuration)
        shared = self._open.setdefault(key, Shared(configuration))
        shared.users += 1
        try:
            yield await shared.opened()
        finally:
            shared.users -= 1
            if not shared.users:
                del self._open[key]
                await asyncio.shield(shared.close())


class Shared:
    """A cluster that several use; it is opened by the first of them who is not refused."""

    def __init__(self, configuration: Configuration) -> None:
        self.users = 0
        self._configuration = configuration
        self._lock = asyncio.Lock()
        self._cluster: Cluster | None = None

    async def opened(self) -> Cluster:
        async with self._lock:
            if self._cluster is None:
                self._cluster = await in_thread(_open, self._configuration)
            return self._cluster

    async def close(self) -> None:
        if self._cluster is not None:
            await in_thread(self._cluster.close)


def _open(configuration: Configuration) -> Cluster:
    from epochlake.jobs.cluster import open_cluster  # in the thread: importing Delta takes a moment

    return open_cluster(configuration)


FOLLOWED = Followed()
"""Those of this process."""
