"""Changes that say by the clock of who makes them since when something holds: whether the root has the same clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlake.metastore.metadata.time_to_live import MICROS, SKEW_MICROS
from epochlake.metastore.storage.clocks import ahead_of

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore

APART_MICROS = SKEW_MICROS // 2
"""The other half is for what happens between a look at the clock and the commit."""


def apart(metastore: Metastore) -> tuple[int, str]:
    """By how many microseconds the clock of this machine is ahead of that of the root's storage, less than 0 where it
    is behind, and the same in words; 0 where it may be right.
    """
    ahead = ahead_of(metastore.storage, metastore.root.uri)
    if abs(ahead) <= APART_MICROS:
        return 0, ""
    which = "ahead of" if ahead > 0 else "behind"
    said = f"the clock of this machine is {abs(ahead) // MICROS:,} seconds {which} that of {metastore.root.uri}"
    return ahead, said
