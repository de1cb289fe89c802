"""Themes of histories of rows about what compaction makes for several ranges: one file of what neighbours have.

Each range has a large file that stays as it is, and small ones that are put together all the time.
"""

from __future__ import annotations

from epochlake.jobs.testing.themes import (
    ALL_APART,
    ALTER_TTL,
    EXPIRING,
    KEYS,
    PIPELINES,
    RACKS,
    ROLLBACK,
    SHELVED,
    WIDE,
    Lying,
    Theme,
)

_COMMITTING = ("shared link", "shared link, done", "volume link", "volume link, done", "volume write, done")

_STOPPED = Lying(("pause", "pause", "kill", "access fails"), ("upkeep",), _COMMITTING, (0, 4, 8), (0.3, 2.0))
_HALF_WRITTEN = Lying(("pause", "kill"), ("pipeline",), _COMMITTING, (0, 0, 2, 4), (0.3, 2.0))
_AWAY = Lying(
    ("disk away", "unreachable", "disk errors"),
    ("upkeep", "pipeline", "coordinator"),
    ("volume link", "volume read", "volume write", "volume look at"),
    (0, 0, 1, 2),
    (0.5, 3.0),
)
_DARK = Lying(("power cut",), ("upkeep", "pipeline"), ("volume link, done", "volume rename to, done"), (0, 0, 0, 1))

NEIGHBOURS = Theme(
    seconds=(3.5, 6.0),
    tables=1.0,
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("balance", SHELVED, "replicas", ROLLBACK),
    operator_paces=(1.5, 4.0),
    upkeep=("compact", "repair", "repair bytes", "vacuum"),
    tablets=(4, 4, 8, 0),
    sights=("all", "all", "most"),
    replication=(3, 3, 2),
    accesses=(*["write"] * 3, WIDE, "delete", "batch", *["read"] * 5, "read late", *PIPELINES, *PIPELINES, *PIPELINES),
    pipelines=(1, 2),
    holds=(1.0,),
    upkeep_paces=(0.6, 1.0),
    levels=("QUORUM", "ALL"),
    lying=(_STOPPED, _HALF_WRITTEN, _AWAY, _DARK),
    hasty=0.7,
    append_only=0.3,
    racks=(("r1", "r2", "r3"),),
    replicas=(2, 3),
    shared_file_bytes=(1 << 20, 1 << 20, 1 << 12),
)
"""Small files of neighbouring ranges that are put together all the time, by several who are killed or stand still
between what they write down and what they commit.
"""

NEIGHBOURS_APART = NEIGHBOURS._replace(
    operations=(*["shift"] * 3, "shuttle", *["resize"] * 4, "move", "move", "leave", "add", "cancel", "waver"),
    operator_paces=(0.5, 1.5),
    upkeep=("repair", "vacuum"),
    lingering=(0, 0, 2, 4),
    racks=(RACKS, ALL_APART),
    lying=(
        _STOPPED,
        Lying(
            ("pause", "pause", "kill", "access fails"),
            ("coordinator",),
            ("volume link", "volume link, done", "volume rename to, done", "log append, done", "volume open"),
            (0, 2, 4),
            (0.3, 2.0),
        ),
        _AWAY,
        _DARK,
    ),
)
"""The same, of ranges that move, split, merge and change hands meanwhile: what they share is cut, streamed and left
behind.
"""

NEIGHBOURS_HARMED = NEIGHBOURS._replace(
    operations=("rebuild", "replace", "shift", "resize"),
    operator_paces=(2.0, 4.0),
    upkeep=("repair bytes", "repair bytes", "repair", "vacuum"),
    replication=(3,),
    lying=(
        _STOPPED,
        Lying(
            ("lost storage", "old storage", "flipped bit", "flipped bit", "lost replica commit"),
            ("upkeep", "pipeline"),
            ("volume link", "volume link, done", "volume read", "shared link, done"),
            (1, 1, 2, 4),
            (0.3, 3.0),
            early=0.8,
        ),
    ),
    append_only=0.4,
)
"""The same, beside storage that is lost, comes back as it was, rots, or forgets a commit, and is replaced."""

NEIGHBOURS_EXPIRING = NEIGHBOURS._replace(
    operations=(ALTER_TTL, ALTER_TTL, "shift", "resize"),
    accesses=(*[EXPIRING] * 4, "write", WIDE, "delete", *["read"] * 3, "read late", *PIPELINES),
    append_only=0.0,
    followed=0.0,
    ttl=(1, 2, 5),
)
"""The same, of rows that expire, some of them long before they are written."""

NEIGHBOURS_FOLLOWED = NEIGHBOURS_APART._replace(
    operations=("resize", "resize", "shift", "balance"),
    operator_paces=(1.5, 3.0),
    followed=1.0,
    changes=("kept", "held", "short"),
)
"""The same, with readers of the stream of changes."""

BY_NAME_ONLY = (NEIGHBOURS, NEIGHBOURS_APART, NEIGHBOURS_HARMED, NEIGHBOURS_EXPIRING, NEIGHBOURS_FOLLOWED)
