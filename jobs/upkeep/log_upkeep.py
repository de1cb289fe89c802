"""Rewriting files of the log for a whole cluster: compaction when it is asked for, and healing.

The commit lock is taken so that nobody's work is wasted. It is not what makes this safe, so where ZooKeeper does not
answer it is done without: the conditional commit decides (metastore/rewriting.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.log.compacting import Rewriting, StoredTwice
from epochlake.metastore.log.mending import Mending, mend, plan_mending
from epochlake.metastore.log.restoring import Restoring, plan_restoring, restore
from epochlake.metastore.metastore import Metastore
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

LOCK_SECONDS = 10.0
"""How long the commit lock is waited for."""


def compact_log(cluster: Metastore) -> Rewriting:
    """Put the log's small files together; the files that were. Raises StorageUnavailable, LogUnreadable."""
    with _commit_lock(cluster):
        cluster.catch_up()
        return cluster.log_place.delta().compact()


def plan_healing(storage: Storage, uri: str) -> list[Mending | Restoring]:
    """What `heal_files` would do to the log at `uri`: torn commits first, then damaged data files."""
    return [*plan_mending(storage, uri)] or [*plan_restoring(storage, uri)]


def heal_files(storage: Storage, uri: str) -> list[Mending | Restoring]:
    """Make commits and data files of the log whole, where that is certain. Needs no cluster that can be opened.

    Raises LogUnreadable for what cannot be healed, StorageUnavailable.
    """
    return [*mend(storage, uri), *restore(storage, uri)]


def heal_log(cluster: Metastore) -> StoredTwice:
    """Store each entry of the log once; what was stored more often. Raises StorageUnavailable, LogUnreadable."""
    with _commit_lock(cluster):
        cluster.catch_up()
        return cluster.log_place.delta().heal()


def stored_twice(cluster: Metastore) -> StoredTwice:
    """What `heal_log` would do."""
    return cluster.log_place.delta().stored_twice()


@contextmanager
def _commit_lock(cluster: Metastore) -> Iterator[None]:
    queue = cluster.commit_queue()
    try:
        if not queue.acquire(LOCK_SECONDS):
            logger.info("going on without the commit lock, which others hold")
    except CoordinationUnavailable as error:
        logger.warning("going on without the commit lock: %s", error)
    try:
        yield
    finally:
        queue.release()
