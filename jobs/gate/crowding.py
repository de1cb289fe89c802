"""Whether a table is written faster than it is compacted, told from the replicas that a write has opened anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.metadata.placements import TablePlacements, highs, index_of

SMALL_BYTES = 32 << 20
CROWDED_FILES = 64
"""So many small files in one range are several times what compaction leaves there."""

LOOKED_AT = 16
"""Of so many files of a write the ranges are looked at: a write to more of them is told by these."""


def crowded(
    table: str, placements: TablePlacements, staged: Sequence[StagedFile], opened: Iterable[ReplicaSnapshot]
) -> str | None:
    """A warning when a range that was written has too many small files on a replica; None when none has."""
    full = [snapshot for snapshot in opened if len(snapshot.all_files) >= CROWDED_FILES]
    written = [item.file for item in staged if item.file.rows][:LOOKED_AT]
    if not full or not written:
        return None
    lasts = highs(placements.lows)
    most = 0
    tokens = np.array([file.min_token for file in written], dtype=np.int64)
    for index in set(index_of(placements.lows, tokens).tolist()):
        low, high = int(placements.lows[index]), int(lasts[index])
        for snapshot in full:
            most = max(most, snapshot.smaller(low, high, SMALL_BYTES))
    if most < CROWDED_FILES:
        return None
    return (
        f"{table} is written faster than it is compacted: {most} small files in a range, which every read opens. Write "
        "more rows at a time, or compact more (`epochlake status`, [coordinator] compaction)"
    )
