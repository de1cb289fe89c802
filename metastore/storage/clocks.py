"""Which time it is for what may be deleted once enough time has passed: by two clocks, of which the one behind counts.

A machine whose clock has jumped ahead takes all that is kept for a while for long over. The storage of the root has a
clock of its own, which gives files their times; where both are of one machine nothing is lost by asking.
"""

from __future__ import annotations

import logging
import time

from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

NAME = "clock"
"""An empty file at a root, which is touched to learn what time it is there."""

MARGIN_MICROS = 300_000_000
"""Less than that is no difference: file systems tell times coarsely, and clocks are never quite the same."""


def behind(storage: Storage, root_uri: str) -> int | None:
    """The time of a root's storage, microseconds since 1970, where the clock of this machine is ahead of it; else None.

    None as well where the storage does not say: then nobody knows better than this machine.
    """
    there = _told(storage, root_uri)
    # After the storage has told: what stands still in between makes this clock look ahead, which deletes less.
    ahead = _now() - (there or 0)
    if there is None or ahead <= MARGIN_MICROS:
        return None
    logger.warning(
        "the clock of this machine is %d seconds ahead of that of %s, which counts: see which one is right",
        ahead // 1_000_000,
        root_uri,
    )
    return there


def ahead_of(storage: Storage, root_uri: str) -> int | None:
    """By how many microseconds the clock of this machine is certainly ahead of that of a root's storage; less than 0
    where it is behind. 0 where it may be the same, None where the storage does not say.
    """
    before = _now()
    there = _told(storage, root_uri)
    if there is None:
        return None
    # The storage told at some moment in between, however long that was.
    return max(before - there, 0) or min(_now() - there, 0)


def _told(storage: Storage, root_uri: str) -> int | None:
    """What time it is for a root's storage, microseconds since 1970; None where it does not say."""
    uri = places.join(root_uri, NAME)
    try:
        if not storage.touch(uri):
            storage.write_bytes(uri, b"")
        there = storage.modified_ms(uri)
    except StorageUnavailable as error:
        logger.info("the time of %s cannot be told: %s", root_uri, error)
        return None
    return None if there is None else there * 1000


def _now() -> int:
    return time.time_ns() // 1000
