"""Following the log: catching up entry by entry, keeping the current metadata, telling those who listen.

A follower trusts only entries that chain to what it already has. Entries that arrive twice or out of order change
nothing until their turn comes; a gap in the log itself, an entry that does not chain or one in an unknown format stops
it with an error that names the epoch, and it stays stopped: metadata that may be wrong is not handed out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from epochlake.metastore.errors import LogUnreadable, WaitTimeout
from epochlake.metastore.log.entry import Entry, Position, verify_next
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.cluster import ClusterMetadata

logger = logging.getLogger(__name__)


class Listener(Protocol):
    """What is told of each epoch. An exception in a listener is logged and does not stop the follower."""

    def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """`entry` is about to be applied to `metadata`."""
        ...

    def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """`metadata` is what `entry` has made."""
        ...


class StartingPoint(Protocol):
    """Where a follower may begin instead of at the first epoch."""

    def newest(self) -> tuple[ClusterMetadata, Position] | None:
        """The metadata and the position of the highest usable snapshot."""
        ...


class Follower:
    """Keeps the newest known metadata of one log. Safe for use by several threads."""

    def __init__(self, log: EpochLog, start: StartingPoint | None = None) -> None:
        self.log = log
        self._lock = threading.RLock()
        self._advanced = threading.Condition(self._lock)
        self._metadata = ClusterMetadata.empty()
        self._position = Position()
        self._requests: dict[str, int] = {}
        self._requests_known_from = 0
        self._pending: dict[int, Entry] = {}
        self._listeners: list[Listener] = []
        self._stopped_by: LogUnreadable | None = None
        found = start.newest() if start is not None else None
        if found is not None:
            self._metadata, self._position = found
            self._requests_known_from = self._position.epoch

    @property
    def metadata(self) -> ClusterMetadata:
        """The newest metadata known here; `catch_up` asks the log for more."""
        return self._metadata

    @property
    def position(self) -> Position:
        return self._position

    def add_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.append(listener)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep the log's handle where it is: nobody else reads through this follower until the end."""
        with self._lock:
            yield

    def catch_up(self) -> ClusterMetadata:
        """Read the log's tail and apply what is new; the metadata as of the tail.

        This is the read barrier: whatever was committed before the call is in the result, because the log itself is
        asked and not what was announced about it.
        """
        with self._lock:
            self._require_running()
            entries = self.log.read(self._position.epoch)
            if entries and entries[0].epoch > self._position.epoch + 1:
                self._stop(verify_gap(self._position, entries[0]))
            for entry in entries:
                self._pending.pop(entry.epoch, None)
                self._accept(entry)
            self._apply_pending()
            return self._metadata

    def receive(self, entries: Iterable[Entry]) -> ClusterMetadata:
        """Take entries from elsewhere, in any order and any number of times; those that are not due wait."""
        with self._lock:
            self._require_running()
            for entry in entries:
                if entry.epoch > self._position.epoch:
                    self._pending.setdefault(entry.epoch, entry)
            self._apply_pending()
            return self._metadata

    def appended(self, entries: Sequence[Entry], metadata: ClusterMetadata) -> None:
        """Take over what this process has just appended, with the metadata that was computed for it."""
        with self._lock:
            for entry in entries[:-1]:
                self._accept(entry)
            last = entries[-1]
            self._notify_before(last)
            self._requests[last.request_id] = last.epoch
            self._metadata, self._position = metadata, Position(last.epoch, last.state_id, last.hash)
            self._notify_after(last)

    def wait_for(self, epoch: int, timeout: float, *, poll_seconds: float = 0.1) -> ClusterMetadata:
        """Catch up until `epoch` is known here. Raises WaitTimeout."""
        deadline = time.monotonic() + timeout
        while True:
            metadata = self.catch_up()
            if metadata.epoch >= epoch:
                return metadata
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise WaitTimeout(
                    f"epoch {epoch} was not committed within {timeout:g} s; the log is at epoch {metadata.epoch}"
                )
            with self._advanced:
                self._advanced.wait(min(poll_seconds, remaining))

    def request_epoch(self, request_id: str) -> int | None:
        """The epoch that a request id was committed at, in the whole history."""
        with self._lock:
            if self._requests_known_from:
                older = self.log.request_epochs(self._requests_known_from)
                self._requests = older | self._requests
                self._requests_known_from = 0
            return self._requests.get(request_id)

    def _apply_pending(self) -> None:
        while (entry := self._pending.pop(self._position.epoch + 1, None)) is not None:
            self._accept(entry)
        for epoch in [epoch for epoch in self._pending if epoch <= self._position.epoch]:
            del self._pending[epoch]

    def _accept(self, entry: Entry) -> None:
        if entry.epoch <= self._position.epoch:
            return
        try:
            position = verify_next(self._position, entry)
            event = entry.decode()
        except LogUnreadable as error:
            self._stop(error)
        self._notify_before(entry)
        self._metadata = self._metadata.apply(event, entry.state_id)
        self._position = position
        self._requests[entry.request_id] = entry.epoch
        self._notify_after(entry)

    def _notify_before(self, entry: Entry) -> None:
        for listener in self._listeners:
            try:
                listener.before(entry, self._metadata)
            except Exception:
                logger.exception("a listener failed before epoch %d", entry.epoch)

    def _notify_after(self, entry: Entry) -> None:
        for listener in self._listeners:
            try:
                listener.after(entry, self._metadata)
            except Exception:
                logger.exception("a listener failed after epoch %d", entry.epoch)
        self._advanced.notify_all()

    def _require_running(self) -> None:
        if self._stopped_by is not None:
            raise self._stopped_by

    def _stop(self, error: LogUnreadable) -> None:
        self._stopped_by = error
        raise error


def verify_gap(position: Position, entry: Entry) -> LogUnreadable:
    """The error of a log that continues `position` with `entry`, which is not the next epoch."""
    try:
        verify_next(position, entry)
    except LogUnreadable as error:
        return error
    raise AssertionError(f"epoch {entry.epoch} does follow epoch {position.epoch}")
