"""Changes that say by the clock of who makes them since when something holds: whether the root has the same clock."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from epochlake.metastore.metadata.time_to_live import MICROS, SKEW_MICROS
from epochlake.metastore.storage.clocks import ahead_of

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore

logger = logging.getLogger(__name__)

APART_MICROS = SKEW_MICROS // 2
"""The other half is for what happens between a look at the clock and the commit."""


def apart(metastore: Metastore) -> tuple[int, str]:
    """By how many microseconds the clock of this machine is ahead of that of the root's storage, less than 0 where it
    is behind, and the same in words; 0 where it may be right.

    A root that does not say leaves it to the newest entry of the log, which no clock that is right is before.
    """
    ahead = ahead_of(metastore.storage, metastore.root.uri)
    if ahead is None:
        return _by_the_log(metastore)
    if abs(ahead) <= APART_MICROS:
        return 0, ""
    which = "ahead of" if ahead > 0 else "behind"
    said = f"the clock of this machine is {abs(ahead) // MICROS:,} seconds {which} that of {metastore.root.uri}"
    return ahead, said


def _by_the_log(metastore: Metastore) -> tuple[int, str]:
    """`apart`, by when the newest epoch was committed: whose clock is before that is wrong, or that of who committed it
    was. A clock that is ahead nobody contradicts, which the operator is told.
    """
    uri = metastore.root.uri
    newest = metastore.log().entry(metastore.metadata.epoch)
    ahead = min(time.time_ns() // 1000 - newest.committed_at, 0)
    if ahead < -APART_MICROS:
        said = f"the clock of this machine is {-ahead // MICROS:,} seconds behind the time of epoch {newest.epoch}"
        return ahead, f"{said}, and {uri} does not tell what time it is"
    logger.warning(
        "%s does not tell what time it is, so only the clock of this machine says since when this holds: see that it "
        "is right",
        uri,
    )
    return 0, ""
