"""Themes of histories of rows about the stream of a table's changes: who settles, drops, appends and reads it."""

from __future__ import annotations

from epochlake.jobs.testing.nemesis import FOLLOWING
from epochlake.jobs.testing.themes import KEYS, Lying, Theme

DYING_WRITERS = Theme(
    seconds=(6.0, 9.0),
    keys=(KEYS,),
    paces=(0.3, 0.6),
    operations=("balance",),
    operator_paces=(10.0,),
    tablets=(1, 2),
    replication=(3,),
    accesses=(*["write"] * 5, "batch"),
    pipelines=(3, 4),
    levels=("QUORUM", "ALL"),
    coordinators=(1,),
    lying=(Lying(("kill",), ("pipeline",), ("volume link, done",), (8, 16, 24), early=0.7),),
    session=1.5,
    append_only=0.4,
    followed=1.0,
    changes=("kept",),
    followers=(1, 2),
    settlers=(2,),
    follower_paces=(0.2,),
    settler_paces=(0.3,),
)
"""Pipelines that die when one replica has what they write, and what is settled of it is read before it is repaired."""

HELD_FOR_READERS = Theme(
    seconds=(5.0, 8.0),
    keys=(1, 2),
    paces=(0.05, 0.2),
    operations=("balance",),
    operator_paces=(10.0,),
    tablets=(1, 2),
    replication=(3, 2),
    accesses=(*["write"] * 6, "delete"),
    pipelines=(3, 4),
    levels=("QUORUM",),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume link", "volume write, done", "shared link, done", "volume link, done"),
            (12, 24),
            (0.1, 0.8),
        ),
    ),
    append_only=0.1,
    followed=1.0,
    changes=("held",),
    followers=(1, 2),
    settlers=(2,),
    follower_paces=(0.2, 0.6),
    settler_paces=(0.2,),
)
"""Writes that come late, and changes that go as soon as all readers have told that they have dealt with them."""

HALF_GIVEN = Theme(
    seconds=(4.0, 7.0),
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("balance",),
    operator_paces=(10.0,),
    tablets=(4, 8),
    replication=(2, 3),
    accesses=(*["write"] * 5, "batch", "delete"),
    pipelines=(2, 3),
    coordinators=(1,),
    append_only=0.3,
    followed=1.0,
    changes=("kept", "held"),
    followers=(2, 3),
    settlers=(1,),
    follower_paces=(0.2, 0.5),
    lying_to_followers=(Lying(("kill", "kill", "pause"), ("follower",), (FOLLOWING, "shared write"), (12, 24)),),
)
"""Readers of changes that die between two batches of one write."""

APPENDED_AT_ONCE = Theme(
    seconds=(4.0, 7.0),
    keys=(1, 2, 4),
    paces=(0.05, 0.2),
    operations=("balance",),
    operator_paces=(10.0,),
    tablets=(1, 2),
    replication=(3, 2),
    accesses=(*["write"] * 3, "batch", "batch", *["batch again"] * 4),
    pipelines=(2, 3),
    levels=("QUORUM", "ALL"),
    coordinators=(1,),
    lying=(
        Lying(("pause", "access fails"), ("pipeline",), ("shared link", "shared link, done", "volume link"), (4, 12)),
    ),
    threads=(2, 3),
    append_only=0.4,
    followed=1.0,
    changes=("kept",),
    followers=(1,),
    settlers=(0, 1),
)
"""Threads of a process that append to the stream at the same time, beside other processes, and batches that come again
as soon as they are there.
"""

DIVIDED_ANEW = Theme(
    seconds=(5.0, 8.0),
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("resize",),
    operator_paces=(1.5, 3.0),
    tablets=(1, 2, 4),
    replication=(2, 3),
    accesses=(*["write"] * 5, "batch", "delete"),
    pipelines=(2, 3),
    coordinators=(1,),
    append_only=0.3,
    followed=1.0,
    changes=("kept",),
    followers=(2, 3),
    settlers=(0, 1),
    follower_paces=(0.1, 0.3),
    lying_to_followers=(
        Lying(("kill", "pause", "pause"), ("follower",), (FOLLOWING, "shared read", "log read"), (2, 6), (0.5, 2.0)),
    ),
)
"""Tablets that are split and merged, so that one generation of streams comes after another, with readers of both."""

BY_NAME_ONLY = (DYING_WRITERS, HELD_FOR_READERS, HALF_GIVEN, APPENDED_AT_ONCE, DIVIDED_ANEW)
"""Those that had too few histories yet to be drawn where nobody asks for them."""
