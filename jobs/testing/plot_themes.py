"""Themes of histories of rows that are about one moment each: who stands still between which two steps of others."""

from __future__ import annotations

from epochlake.jobs.testing.themes import BAD_ROWS, KEYS, Lying, Theme

CHECKED_MEANWHILE = Theme(
    seconds=(4.0, 7.0),
    keys=(4,),
    paces=(0.1, 0.3),
    operations=("add check", "add check", "drop check"),
    operator_paces=(1.5,),
    tablets=(1, 2, 0),
    accesses=BAD_ROWS,
    pipelines=(2, 3),
    levels=("QUORUM", "ALL"),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume write, done", "volume sync, done", "volume link"),
            (12, 24),
            (0.5, 2.0),
        ),
    ),
    append_only=0.3,
    followed=0.0,
)
"""Rows that a check forbids, by those who stand still when they have staged them: the check comes before they land."""

PUT_BACK_UNDER_A_COMMIT = Theme(
    seconds=(8.0, 11.0),
    keys=(4, KEYS),
    paces=(0.2, 0.5),
    operations=("balance",),
    operator_paces=(30.0,),
    tablets=(1,),
    replication=(3,),
    accesses=("write", "write", "read"),
    pipelines=(4, 5),
    levels=("QUORUM",),
    read_levels=("QUORUM",),
    coordinators=(1,),
    append_only=0.5,
    followed=0.0,
    racks=(("r1", "r2", "r3"),),
    plot="put_back_under_a_commit",
)
"""A place that comes back as it was, under somebody who is about to commit to it."""

BY_NAME_ONLY = (CHECKED_MEANWHILE,)
