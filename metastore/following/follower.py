"""Following the log: catching up entry by entry, keeping the current metadata, telling those who listen.

A follower trusts only entries that chain to what it already has. Entries that arrive twice or out of order change
nothing until their turn comes; a gap in the log itself, an entry that does not chain or one in an unknown format stops
it with an error that names the epoch, and it stays stopped: metadata that may be wrong is not handed out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NoReturn, Protocol

from epochlake.metastore.errors import LogUnreadable, LogWentBack, WaitTimeout
from epochlake.metastore.following.snapshots import is_proved
from epochlake.metastore.log.entry import Entry, Position, position_of, verify_next
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.fence import Fence
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)


RECENT = 1024
"""How many hashes of the newest entries are kept, to be compared with what others announce."""

BEHIND_SECONDS = 2.0
"""How long a log that lacks what was announced is looked at again: a network file system may show it late."""

KEPT_ENTRIES = 1_000
"""So many of the last entries are kept, those with bulk arrays left out: a request that is submitted again is compared
with its entry also while the log cannot be read."""


class Listener(Protocol):
    """What is told of each epoch. An exception in a listener is logged and does not stop the follower.

    It is called while the follower moves: it must not ask the follower for more, nor commit.
    """

    def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """`entry` is about to be applied to `metadata`."""
        ...

    def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """`metadata` is what `entry` has made."""
        ...


class StartingPoint(Protocol):
    """Where a follower may begin instead of at the first epoch."""

    def newest(self, at_most: int | None = None) -> tuple[ClusterMetadata, Position] | None:
        """The metadata and the position of the highest usable snapshot, at or below epoch `at_most` when given."""
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
        self._kept: dict[int, Entry] = {}
        self._pending: dict[int, Entry] = {}
        self._listeners: list[Listener] = []
        self._stopped_by: LogUnreadable | None = None
        self._moving = False
        self._recent: dict[int, str] = {}
        self._unproved_start = start
        if start is not None:
            self._begin_with(start.newest())

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
        asked and not what was announced about it. Raises LogWentBack unless the log still holds the very entry that
        is known here as the last.
        """
        with self._lock:
            self._require_ready()
            for entry in self._read_on():
                if entry.epoch <= self._position.epoch:
                    self._stop(LogUnreadable(f"epoch {entry.epoch} is in the log twice: it was not written by commits"))
                self._pending.pop(entry.epoch, None)
                self._accept(entry)
            self._apply_pending()
            return self._metadata

    def require_reached(self, announced: Position | None) -> None:
        """Raise LogWentBack unless the log holds the entry that was announced as committed, by its hash.

        An announcement of an incarnation before that of the log is one of epochs whose loss was accepted.
        """
        if announced is None:
            return
        deadline = time.monotonic() + BEHIND_SECONDS
        with self._lock:
            while not self._has_reached(announced):
                if time.monotonic() > deadline:
                    raise LogWentBack(self._position.epoch, announced.epoch, announced.hash, "ZooKeeper")
                time.sleep(0.1)
                self.catch_up()

    def _has_reached(self, announced: Position) -> bool:
        mine = self._position
        if announced.incarnation != mine.incarnation:
            return announced.incarnation < mine.incarnation
        if announced.epoch > mine.epoch:
            return False
        known = mine.hash if announced.epoch == mine.epoch else self._recent.get(announced.epoch)
        if known is None and announced.epoch > 0:
            known = next((entry.hash for entry in self.log.read(announced.epoch - 1, announced.epoch)), None)
            # That has moved the handle: what an append would be made against has to be known here.
            self.catch_up()
        return announced.epoch == 0 or known == announced.hash

    def receive(self, entries: Iterable[Entry]) -> ClusterMetadata:
        """Take entries from elsewhere, in any order and any number of times; those that are not due wait."""
        with self._lock:
            self._require_ready()
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
            self._move(last, metadata, position_of(last))

    def wait_for(self, epoch: int, timeout: float, *, poll_seconds: float = 0.1) -> ClusterMetadata:
        """Catch up until `epoch` is known here. Raises WaitTimeout."""
        return self._wait_until(lambda metadata: metadata.epoch >= epoch, epoch, timeout, poll_seconds)

    def wait_for_fence(self, fence: int, timeout: float) -> ClusterMetadata:
        """Catch up until what a replica is fenced at is known here, or an incarnation after it.

        Raises LogWentBack: a replica is only ever fenced at an epoch that was committed.
        """
        try:
            return self._wait_until(lambda metadata: metadata.fence >= fence, Fence.of(fence), timeout, 0.1)
        except WaitTimeout as error:
            raise LogWentBack(self._position.epoch, Fence.of(fence).epoch, "", "a replica table") from error

    def _wait_until(
        self, reached: Callable[[ClusterMetadata], bool], wanted: int, timeout: float, poll_seconds: float
    ) -> ClusterMetadata:
        deadline = time.monotonic() + timeout
        while True:
            metadata = self.catch_up()
            if reached(metadata):
                return metadata
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise WaitTimeout(
                    f"epoch {wanted} was not committed within {timeout:g} s; the log is at epoch {metadata.epoch}"
                )
            with self._advanced:
                self._advanced.wait(min(poll_seconds, remaining))

    def request_epoch(self, request_id: str) -> int | None:
        """The epoch that a request id was committed at, in the whole history. What is known here is not asked again.

        Raises as `EpochLog.request_epochs` does, for ids from before the snapshot that was begun with.
        """
        with self._lock:
            if request_id not in self._requests and self._requests_known_from:
                older = self.log.request_epochs(self._requests_known_from)
                self._requests = older | self._requests
                self._requests_known_from = 0
            return self._requests.get(request_id)

    def known_request(self, request_id: str) -> int | None:
        """The epoch of a request id, if it is known here without asking the log."""
        return self._requests.get(request_id)

    def request_entry(self, request_id: str) -> Entry | None:
        """The entry that a request id was committed with. The log is asked only for what is not remembered here.

        The log's handle stays where it is. Raises as `EpochLog.request_epochs` and `EpochLog.entry` do.
        """
        with self._lock:
            epoch = self.request_epoch(request_id)
            if epoch is None:
                return None
            return self._kept.get(epoch) or self.log.entry(epoch)

    def _apply_pending(self) -> None:
        while (entry := self._pending.pop(self._position.epoch + 1, None)) is not None:
            self._accept(entry)
        for epoch in [epoch for epoch in self._pending if epoch <= self._position.epoch]:
            del self._pending[epoch]

    def _accept(self, entry: Entry) -> None:
        try:
            position = verify_next(self._position, entry)
            event = entry.decode()
        except LogUnreadable as error:
            self._stop(error)
        try:
            metadata = self._metadata.apply(event, entry.state_id)
        except Exception as error:
            self._stop(
                LogUnreadable(f"epoch {entry.epoch} ({entry.event}) does not fit what comes before it: {error!r}"),
                error,
            )
        self._move(entry, metadata, position)

    def _move(self, entry: Entry, metadata: ClusterMetadata, position: Position) -> None:
        self._moving = True
        try:
            self._notify("before", entry)
            self._metadata, self._position = metadata, position
            self._remember(position)
            self._requests[entry.request_id] = entry.epoch
            self._keep(entry)
            self._notify("after", entry)
        finally:
            self._moving = False
        self._advanced.notify_all()

    def _keep(self, entry: Entry) -> None:
        if entry.attachment is None:
            self._kept[entry.epoch] = entry
            if len(self._kept) > KEPT_ENTRIES:
                del self._kept[next(iter(self._kept))]

    def _notify(self, when: Literal["before", "after"], entry: Entry) -> None:
        for listener in self._listeners:
            try:
                getattr(listener, when)(entry, self._metadata)
            except EpochlakeError as error:
                logger.warning("a listener failed %s epoch %d: %s", when, entry.epoch, error)
            except Exception:
                logger.exception("a listener failed %s epoch %d", when, entry.epoch)

    def _begin_with(self, found: tuple[ClusterMetadata, Position] | None) -> None:
        """Begin at a snapshot, or at the first epoch."""
        self._metadata, self._position = found or (ClusterMetadata.empty(), Position())
        self._requests_known_from = self._position.epoch

    def _remember(self, position: Position) -> None:
        self._recent[position.epoch] = position.hash
        self._recent.pop(position.epoch - RECENT, None)

    def _read_on(self) -> list[Entry]:
        """The entries after the one that is known here as the last, which has to be there too. A log that was replaced
        by an older copy, or went on from one, is not followed: nothing of it is applied. A snapshot whose contents the
        log does not prove is left for an older one, or for the whole log.
        """
        while (known := self._position).epoch > 0:
            known_by = "this process" if self._unproved_start is None else "a snapshot"
            try:
                found = self.log.read(known.epoch - 1)
            except LogWentBack as error:
                raise LogWentBack(error.log_epoch, known.epoch, known.hash, known_by) from error
            if not found or position_of(found[0]) != known:
                ends_at = found[-1].epoch if found else known.epoch - 1
                raise LogWentBack(ends_at, known.epoch, known.hash, known_by)
            if self._unproved_start is None or is_proved(found[0], self._metadata, known):
                self._unproved_start = None
                return found[1:]
            logger.warning("the snapshot of epoch %d is not used: it is not what the log says", known.epoch)
            self._begin_with(self._unproved_start.newest(known.epoch - 1))
        self._unproved_start = None
        return self.log.read(0)

    def _require_ready(self) -> None:
        if self._stopped_by is not None:
            raise self._stopped_by
        if self._moving:
            raise RuntimeError("a listener must not move the follower that tells it of an epoch")

    def _stop(self, error: LogUnreadable, cause: Exception | None = None) -> NoReturn:
        self._stopped_by = error
        raise error from cause
