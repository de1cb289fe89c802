"""Themes of histories of rows about what operators do to a keyspace or a table as a whole."""

from __future__ import annotations

from epochlake.jobs.testing.nemesis import MOUNTS
from epochlake.jobs.testing.themes import (
    ALTER_TTL,
    ALTERATIONS,
    BAD_ROWS,
    EXPIRING,
    KEYS,
    PIPELINES,
    ROLLBACK,
    SIX_NODES,
    Lying,
    Theme,
)

REPLICATING = Theme(
    seconds=(5.0, 10.0),
    keys=(2, 4, KEYS),
    paces=(0.1, 0.3),
    operations=(*["replicas"] * 4, "shift", "cancel"),
    operator_paces=(0.5, 1.5),
    upkeep=("snapshot", "repair"),
    sorts=((), ("kill",), ("pause", "access fails"), MOUNTS),
    tablets=(1, 1, 2, 0, 0),
    sights=("few", "few", "most", "all"),
    replication=(5, 5, 3, 1),
    accesses=(*["write"] * 4, "delete", "batch", "read", "read"),
    pipelines=(2, 4),
    levels=("QUORUM", "QUORUM", "ALL", "ONE"),
    append_only=0.4,
    racks=SIX_NODES,
    replicas=(1, 3, 3, 5),
)
"""Keyspaces that get more and fewer replicas of everything, while machines see four of six nodes: what was acknowledged
is at a majority of what there is, and at no more than that.
"""

HANDING_ON = REPLICATING._replace(
    seconds=(11.0, 13.0),
    keys=(KEYS,),
    paces=(6.0,),
    operations=("replicas",),
    operator_paces=(4.0,),
    upkeep=("snapshot",),
    sorts=((),),
    tablets=(1,),
    sights=("pairs",),
    replication=(5,),
    accesses=(*["write"] * 6, "read"),
    pipelines=(9, 10),
    levels=("QUORUM",),
    append_only=1.0,
    racks=(("r1", "r2", "r3", "r4", "r5"),),
    replicas=(3,),
)
"""Replicas of tablets that go one after the other, of five on five nodes, while each machine sees three of them: what
two that go have had is on one of the others.
"""

ROLLING_BACK = Theme(
    seconds=(4.0, 9.0),
    tables=0.3,
    keys=(3, KEYS),
    paces=(0.2, 0.5),
    operations=(*[ROLLBACK] * 4, "shift"),
    operator_paces=(0.5, 1.5),
    upkeep=("repair", "compact", "snapshot"),
    sorts=((), ("kill",), ("pause", "access fails"), MOUNTS, ("disk away", "unreachable")),
    tablets=(1, 2, 0),
    sights=("all", "most"),
    accesses=(*["write"] * 3, "delete", "batch", "read", "read"),
    pipelines=(1, 3),
    levels=("QUORUM", "QUORUM", "ALL"),
    lying=(
        Lying(
            ("pause", "kill", "access fails"),
            ("operator",),
            ("volume link", "volume write, done", "volume read", "shared link, done"),
            (0, 1, 3),
        ),
    ),
    append_only=0.0,
    hasty=0.1,
)
"""Tables that operators take back to how they were, some of whom die half-way, while others write to them."""

ALTERING = Theme(
    seconds=(4.0, 9.0),
    tables=0.3,
    keys=(4, KEYS),
    paces=(0.2, 0.5),
    operations=(*ALTERATIONS, "add check", ROLLBACK, "shift", "resize"),
    operator_paces=(0.4, 1.2),
    upkeep=("repair", "compact", "snapshot"),
    sorts=((), (), ("kill",), ("pause", "cut", "server lags"), ("pause", "access fails"), MOUNTS),
    tablets=(1, 2, 0),
    sights=("all", "all", "most"),
    accesses=(*BAD_ROWS, *BAD_ROWS, "write", "write", "delete", "batch", "read", "read"),
    pipelines=(2, 4),
    levels=("QUORUM", "QUORUM", "ALL"),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume link", "volume link", "volume write, done", "volume sync, done", "log read, done"),
            (4, 8),
            (0.5, 2.5),
        ),
    ),
    append_only=0.2,
    hasty=0.1,
)
"""Checks and columns that come and go while others stand still between what they have staged and what they commit."""

EXPIRING_ROWS = Theme(
    seconds=(6.0, 9.0),
    tables=0.5,
    keys=(4, KEYS),
    paces=(0.2, 0.5),
    operations=(ALTER_TTL, ALTER_TTL, ALTER_TTL, "shift"),
    operator_paces=(1.5, 4.0),
    upkeep=("compact", "compact", "compact", "repair"),
    sorts=((), (), ("kill", "pause"), ("disk away", "unreachable")),
    tablets=(1, 2, 0),
    sights=("all", "all", "most"),
    accesses=(*[EXPIRING] * 5, "write", "delete", *["read"] * 4, "read late", *PIPELINES, *PIPELINES),
    pipelines=(2, 3),
    levels=("QUORUM", "ALL"),
    upkeep_paces=(1.5,),
    hasty=0.8,
    append_only=0.0,
    followed=0.0,
    ttl=(1, 2, 5),
)
"""Rows that expire, some of them long before they are written, by times to live that are altered meanwhile; clocks that
are some seconds apart, and compactions that drop what has expired.
"""

DROPPED_EARLY = EXPIRING_ROWS._replace(
    seconds=(6.0, 7.0),
    tables=1.0,
    operations=("balance",),
    operator_paces=(30.0,),
    sorts=((),),
    tablets=(1,),
    sights=("all",),
    coordinators=(1,),
    ttl=(5,),
    plot="clocks_apart",
)
"""Compactions all the time, by a clock that is ahead of those of readers, of rows that expire in these seconds."""

HALF_EXPIRED = DROPPED_EARLY._replace(
    seconds=(7.0, 10.0),
    replication=(2, 3),
    plot="expired_beside_large",
)
"""Rows that have expired are put together with other small ones, and not with the large files of what they replace."""

DRAWN = (REPLICATING, HANDING_ON, ROLLING_BACK, ALTERING, ALTERING)
"""Those that are drawn with all others."""
