"""Pipelines and jobs are announced while they live, so that vacuum leaves alone what they read and will commit.

A lease is always somewhere that vacuum looks. As a rule it is an ephemeral znode; while ZooKeeper cannot
be reached it is a file at the root, which is renewed every minute and counts for an hour after the last time. A lease
is made in the new place before it leaves the old one, and whoever reads leases looks at the root, then into ZooKeeper,
then at the root again, so that none is missed on its way. See docs/decisions/031-announcing.md.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.coordination import leases
from epochlake.metastore.coordination.leases import Announcement, Lease, announce
from epochlake.metastore.errors import CoordinationUnavailable, StorageUnavailable
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.storage import clocks, failures, places
from epochlake.metastore.storage.storage import FileEntry, Storage
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore

logger = logging.getLogger(__name__)

RENEW_SECONDS = 60.0
EXPIRE_SECONDS = 3600.0
"""A stored lease that was not renewed for so long is that of a process that has ended, or is stopped."""

FORGET_SECONDS = 7 * 86_400.0

_LOOK_SECONDS = 2.0
"""Shorter than what is left of a session when its connection breaks: the file is there before the znode goes."""

_RETRY_SECONDS = 15.0
_CONNECT_SECONDS = 2.0
_END_SECONDS = 5.0


class Presence:
    """The lease of one pipeline or job, kept up by a thread from `begin` to `end`."""

    def __init__(
        self, cluster: Metastore, name: str, pipeline_id: str, epoch: int, tables: tuple[str, ...] = ()
    ) -> None:
        self._cluster = cluster
        self._lease = Lease(
            name=name,
            pipeline_id=pipeline_id,
            epoch=epoch,
            tables=tables,
            started_at=time.time_ns() // 1_000_000,
            host=socket.gethostname(),
            pid=os.getpid(),
            features=SUPPORTED,
        )
        self._file = places.join(cluster.root.leases, f"{uuid.uuid4().hex}.json")
        self._keeping = threading.Lock()
        self._ended = threading.Event()
        self._announcement: Announcement | None = None
        self._stored = False
        self._renew_at = 0.0
        self._retry_at = 0.0

    def begin(self) -> None:
        """Announce it. Raises CoordinationUnavailable when neither ZooKeeper nor the root takes the lease."""
        try:
            self._announcement = announce(self._cluster.coordination(), self._lease)
        except CoordinationUnavailable as error:
            self._begin_at_the_root(error)
        threading.Thread(target=self._keep, name="epochlake-lease", daemon=True).start()

    def update(self, epoch: int, tables: tuple[str, ...], reads_from: int | None = None) -> None:
        """Say at which epoch it is now, which tables it uses, and as of which time it reads rows (milliseconds since
        1970; None: only of now). Never raises: the lease itself holds as it is.
        """
        self._lease = msgspec.structs.replace(self._lease, epoch=epoch, tables=tables, reads_from=reads_from)
        self._renew_at = 0.0
        if self._announcement is None:
            return
        try:
            # Without a connection the next one brings the news.
            self._announcement.update(epoch, tables, None if self._is_in_zookeeper() else 0.0, reads_from)
        except CoordinationUnavailable as error:
            logger.debug("the lease of %s stays as it was for now: %s", self._lease.name, error)

    def end(self) -> None:
        """End the lease. Never raises, waits for a few seconds at most."""
        self._ended.set()
        # Storage or ZooKeeper that hangs holds the thread: it ends the lease itself when it comes to that.
        if self._keeping.acquire(timeout=_END_SECONDS):
            try:
                self._finish()
            finally:
                self._keeping.release()

    def _begin_at_the_root(self, cause: CoordinationUnavailable) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        try:
            self._store()
        except StorageUnavailable as error:
            raise CoordinationUnavailable(
                f"{self._lease.name} was not begun, as nothing would keep vacuum from deleting what it reads: it can "
                f"be announced neither in ZooKeeper ({cause}) nor at the root ({error})"
            ) from error
        logger.warning(
            "%s is announced by a file at the root (%s) until ZooKeeper is back: %s",
            self._lease.name,
            self._file,
            cause,
        )

    def _keep(self) -> None:
        trouble = ""
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                with self._keeping:
                    if self._ended.is_set():
                        break
                    self._look()
                trouble = ""
            except Exception as error:
                if not trouble:
                    logger.warning("%s cannot be announced now, vacuum may not see it: %s", self._lease.name, error)
                trouble = str(error)
        with self._keeping:
            self._finish()

    def _look(self) -> None:
        if self._is_in_zookeeper():
            self._delete()
            return
        # The file first: what is left of the session may end while ZooKeeper is asked.
        try:
            if not self._stored or time.monotonic() >= self._renew_at:
                self._store()
        finally:
            if time.monotonic() >= self._retry_at:
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                self._try_zookeeper()

    def _is_in_zookeeper(self) -> bool:
        return self._announcement is not None and self._announcement.held

    def _try_zookeeper(self) -> None:
        try:
            if self._announcement is None:
                self._announcement = announce(self._cluster.coordination(_CONNECT_SECONDS), self._lease)
            else:
                self._announcement.write(_CONNECT_SECONDS)
        except EpochlakeError as error:
            logger.debug("%s is not announced in ZooKeeper now: %s", self._lease.name, error)

    def _finish(self) -> None:
        if self._announcement is not None:
            self._announcement.release()
        self._delete()

    def _store(self) -> None:
        if not self._stored:
            self._cluster.storage.create_directory(self._cluster.root.leases)
        self._cluster.storage.replace_bytes(self._file, msgspec.json.encode(self._lease))
        self._stored = True
        self._renew_at = time.monotonic() + RENEW_SECONDS

    def _delete(self) -> None:
        if not self._stored:
            return
        try:
            self._cluster.storage.delete_file(self._file)
            self._stored = False
        except StorageUnavailable as error:
            logger.debug("the lease %s is left behind, it expires: %s", self._file, error)


@contextmanager
def announced(cluster: Metastore, name: str, *tables: str) -> Iterator[None]:
    """Hold a lease called `name` while the block runs. Raises CoordinationUnavailable as `Presence.begin` does."""
    presence = Presence(cluster, name, str(uuid.uuid4()), cluster.metadata.epoch, tables)
    presence.begin()
    try:
        yield
    finally:
        presence.end()


def live_leases(cluster: Metastore) -> list[Lease]:
    """All pipelines and jobs that live, the oldest first, no older than the moment of the call.

    Raises CoordinationUnavailable without ZooKeeper, StorageUnavailable without the root, UnknownFormat for a lease
    that cannot be read.
    """
    before = stored_leases(cluster.storage, cluster.root.leases)
    announced = leases.live_leases(cluster.coordination())
    found = [*before, *stored_leases(cluster.storage, cluster.root.leases), *announced]
    newest = {lease.pipeline_id: lease for lease in found}
    return _oldest_first(newest.values())


def stored_leases(storage: Storage, directory: str) -> list[Lease]:
    """The leases below a directory that are renewed, the oldest first. Raises StorageUnavailable, UnknownFormat."""
    listed, found = _listed(storage, directory), []
    expired = _older(storage, directory, listed, EXPIRE_SECONDS)
    for entry in listed:
        if entry in expired:
            continue
        try:
            data = storage.read_bytes(places.join(directory, entry.name))
        except failures.MissingFile:
            continue  # it has just ended, or moved to ZooKeeper
        found.append(leases.decode(places.join(directory, entry.name), data))
    return _oldest_first(found)


def forget_expired(storage: Storage, directory: str) -> None:
    """Delete the leases of processes that ended without doing so, a week after. Raises StorageUnavailable."""
    for entry in _older(storage, directory, _listed(storage, directory), FORGET_SECONDS):
        storage.delete_file(places.join(directory, entry.name))


def _older(storage: Storage, directory: str, entries: Iterable[FileEntry], seconds: float) -> list[FileEntry]:
    """The entries that were written longer ago than that: also by the clock of the storage, where this one is ahead."""

    def older(now: float) -> list[FileEntry]:
        return [entry for entry in entries if entry.modified_ms / 1000 < now - seconds]

    found = older(time.time())
    there = clocks.behind(storage, directory.rstrip("/").rpartition("/")[0]) if found else None
    return found if there is None else older(there / 1_000_000)


def _oldest_first(found: Iterable[Lease]) -> list[Lease]:
    return sorted(found, key=lambda lease: (lease.started_at, lease.pipeline_id))


def _listed(storage: Storage, directory: str) -> list[FileEntry]:
    try:
        return [entry for entry in storage.list_files(directory) if entry.name.endswith(".json")]
    except failures.MissingFile:
        return []
