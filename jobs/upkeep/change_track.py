"""The track of the coordinator that keeps up change streams: they begin, what has landed is in them, what is over goes.

It makes their generations as well, when the ranges of a table have changed (change_generations.py).

All of it is done in one thread beside the rounds, which is left behind where it hangs. Nothing is kept: whoever comes
next looks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from epochlake.jobs.replicas.store import Store
from epochlake.jobs.upkeep.change_generations import end_checks, is_due
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.metastore import threads
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import RequestKind, TopologyRequest
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often streams are looked at. A look at one of which no write is open reads a directory and a few small files."""


class ChangeTrack:
    """Keeps up the streams of all tables. `begin` begins work in another thread; `woken` is set when it has ended."""

    def __init__(
        self,
        cluster: Store,
        clock: Callable[[], float] = time.monotonic,
        begin: Callable[[Callable[[], None]], None] = threads.begin,
        woken: threading.Event | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._begin = begin
        self._woken = woken or threading.Event()
        self._look_at = 0.0
        self._running = False
        self._looked = False
        self._did = False
        self._looked_at = 0
        self._obstacles: list[str] = []
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        """Begin a look where it is time; whether the last one has brought writes into a stream."""
        did, self._did = self._did, False
        self.blocked += self._obstacles
        if not metadata.change_streams.by_table and not _checks(metadata):
            self._looked = True
        elif not self._running and (self._clock() >= self._look_at or self._is_due(metadata)):
            self._running = True
            self._begin(self._look)
        return did

    def idle(self, metadata: ClusterMetadata) -> bool:
        """Whether there was nothing to do when it was last looked."""
        return self._looked and not self._running and not self._did and not self._is_due(metadata)

    def _is_due(self, metadata: ClusterMetadata) -> bool:
        """Whether a generation waits that nobody has tried to make since the metadata changed."""
        if metadata.epoch <= self._looked_at:
            return False
        return bool(_checks(metadata)) or any(
            is_due(metadata, stream) for stream in metadata.change_streams.by_table.values()
        )

    def _look(self) -> None:
        looked_at = 0
        try:
            metadata = self._cluster.catch_up()
            looked_at = metadata.epoch
            for stream in metadata.change_streams.by_table.values():
                if stream.table_id not in metadata.schema.tables:
                    continue
                try:
                    report = keep_up(self._cluster, stream)
                except EpochlakeError as error:
                    logger.warning("the changes of table %s were not kept up: %s", stream.table_id, error)
                    continue
                self._did = self._did or bool(report.settled or report.forgotten or report.generation)
            if _checks(self._cluster.metadata):
                self._obstacles = end_checks(self._cluster)
                self._did = self._did or not self._obstacles
        finally:
            self._look_at = self._clock() + LOOK_SECONDS
            self._looked_at = max(self._looked_at, looked_at)
            self._looked = True
            self._running = False
            self._woken.set()


def _checks(metadata: ClusterMetadata) -> list[TopologyRequest]:
    """The requests that streams are checked, which this track ends."""
    return [
        one
        for one in metadata.open_requests()
        if one.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS and not one.paused
    ]
