"""Rewriting files of the log for a whole cluster: compaction when it is asked for, and healing.

The commit lock is taken so that nobody's work is wasted. It is not what makes this safe, so where ZooKeeper does not
answer it is done without: the conditional commit decides (metastore/rewriting.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from epochlake.jobs.upkeep.log_members import copied, from_members, named_at
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.log.compacting import Rewriting, StoredTwice
from epochlake.metastore.log.holes import Unfillable
from epochlake.metastore.log.mending import Mending, mend, plan_mending
from epochlake.metastore.log.restoring import Lost, Restoring, plan_restoring, restore
from epochlake.metastore.metastore import Metastore
from epochlake.metastore.root import Root
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

LOCK_SECONDS = 10.0
"""How long the commit lock is waited for."""


def compact_log(cluster: Metastore) -> Rewriting:
    """Put the log's small files together; the files that were. Raises StorageUnavailable, LogUnreadable."""
    with _commit_lock(cluster):
        cluster.catch_up()
        return cluster.log_place.delta().compact()


def plan_healing(storage: Storage, root: Root) -> list[Mending | Restoring]:
    """What `heal_files` would do to the log of a root: torn commits first, then damaged data files."""
    copies = partial(copied, storage, root)
    with _healed_otherwise(storage, root):
        return [*plan_mending(storage, root.log)] or [*plan_restoring(storage, root.log, copies)]


def heal_files(storage: Storage, root: Root) -> list[Mending | Restoring]:
    """Make commits and data files of the log whole, where that is certain. Needs no cluster that can be opened. What
    data files have lost is put back from copies that log members have, too.

    Raises LogUnreadable for what cannot be healed, StorageUnavailable.
    """
    copies = partial(copied, storage, root)
    with _healed_otherwise(storage, root):
        return [*mend(storage, root.log), *restore(storage, root.log, copies)]


@contextmanager
def _healed_otherwise(storage: Storage, root: Root) -> Iterator[None]:
    """What the members of a log have is not lost, whatever has become of the log."""
    try:
        yield
    except (Unfillable, Lost) as lost:
        if members := named_at(storage, root):
            lost.hint = from_members(root, members)
        raise


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
