"""Themes of histories of rows about storage that forgets a part of what it had."""

from __future__ import annotations

from epochlake.jobs.testing.themes import KEYS, SIX_NODES, Lying, Theme

HOLES = Theme(
    seconds=(4.0, 8.0),
    tables=0.2,
    keys=(2, KEYS),
    paces=(0.1, 0.3),
    operations=("shuttle", "shift", "balance"),
    operator_paces=(1.0, 3.0),
    upkeep=("repair", "compact", "snapshot"),
    tablets=(1, 1, 2, 0),
    sights=("all", "most"),
    replication=(3, 3, 2),
    accesses=(*["write"] * 4, "delete", *["read"] * 3, "batch"),
    pipelines=(3, 4),
    levels=("QUORUM", "QUORUM", "ALL"),
    read_levels=("QUORUM", "ONE"),
    lying=(
        Lying(
            ("lost replica commit",),
            ("pipeline", "coordinator"),
            ("volume link, done", "volume read", "volume look at", "log append, done"),
            (1, 2, 3),
            early=0.8,
        ),
        Lying(("pause",), ("pipeline",), ("volume read", "volume look at", "volume link, done"), (4, 8), (0.3, 1.5)),
    ),
    append_only=0.4,
)
"""Replica tables of which a commit vanishes while some have read it and others stand still before it."""

_GOES_BACK = Lying(
    ("old storage",),
    ("pipeline",),
    ("volume link", "volume link, done", "volume read", "volume write"),
    (1, 1, 2),
    (0.3, 3.0),
    early=0.5,
)

TWO_BACK = Theme(
    seconds=(9.0, 14.0),
    keys=(KEYS, KEYS, 4),
    paces=(0.3, 1.0),
    operations=("balance", "shift"),
    operator_paces=(5.0,),
    upkeep=("repair", "repair", "snapshot"),
    tablets=(1, 1, 0),
    sights=("few", "most"),
    replication=(5,),
    accesses=("write", "write", "write", "read", "read", "delete", "batch"),
    pipelines=(3, 4),
    keepers=(1, 2),
    upkeep_paces=(0.5, 1.5),
    levels=("QUORUM", "QUORUM", "QUORUM", "ALL"),
    lying=(_GOES_BACK, _GOES_BACK),
    keepers_see_all=False,
    racks=SIX_NODES,
)
"""Two of five replicas that come back as they were before, the most that a quorum does without, and repairs by those
who see four of six nodes.
"""

_BACK_TOO = Lying(("old storage",), ("pipeline",), ("volume link, done",), (1,), (3.5, 5.0), early=0.1)

BACK_TOGETHER = Theme(
    seconds=(13.0, 16.0),
    keys=(2, 4),
    paces=(0.6,),
    operations=("balance",),
    operator_paces=(30.0,),
    upkeep=("repair",),
    tablets=(1,),
    sights=("most",),
    replication=(3,),
    accesses=("write", "write", "read"),
    pipelines=(3, 3),
    keepers=(1,),
    upkeep_paces=(4.0,),
    levels=("QUORUM",),
    read_levels=("QUORUM",),
    coordinators=(1,),
    lying=(_BACK_TOO, _BACK_TOO),
    append_only=0.7,
    followed=0.0,
    racks=(("r1", "r2", "r3"),),
)
"""Two of three replicas that come back as they were before, and repairs by those who see all of them: what only these
two had is lost, and no read is told that it has reached a quorum without it.
"""

AWAY_MEANWHILE = Theme(
    seconds=(7.0, 10.0),
    keys=(4, KEYS),
    paces=(0.5,),
    operations=("rebuild", "balance"),
    operator_paces=(2.0,),
    upkeep=("repair",),
    tablets=(0, 1),
    sights=("all", "most"),
    replication=(3,),
    accesses=("write", "write", "read", "delete"),
    pipelines=(2, 3),
    keepers=(1, 2),
    upkeep_paces=(0.5, 1.0),
    levels=("QUORUM",),
    read_levels=("QUORUM",),
    coordinators=(1,),
    lying=(
        Lying(
            ("lost storage", "old storage"), ("pipeline",), ("volume link", "volume read"), (1,), (0.5, 2.0), early=0.2
        ),
        Lying(
            ("unreachable",),
            ("coordinator", "upkeep"),
            ("volume read", "volume link", "volume rename to"),
            (3, 6),
            (1.0, 3.0),
            early=0.8,
        ),
    ),
    append_only=0.4,
)
"""Storage that is lost or comes back as it was, and another place that whoever rebuilds or repairs it does not see."""

DRAWN = (HOLES, TWO_BACK)
"""Those that are drawn with all others."""
