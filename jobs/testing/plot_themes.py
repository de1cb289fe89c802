"""Themes of histories of rows that are about one moment each: who stands still between which two steps of others."""

from __future__ import annotations

from epochlake.jobs.testing.rule_themes import ROTTEN_CUTS, ROTTEN_MERGES
from epochlake.jobs.testing.themes import BAD_ROWS, KEYS, RACKS, Lying, Theme

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

SETTLED_LATE = Theme(
    seconds=(6.0, 7.0),
    tables=1.0,
    keys=(KEYS,),
    paces=(0.2, 0.4),
    operations=("balance",),
    operator_paces=(30.0,),
    upkeep=("compact",),
    tablets=(1,),
    replication=(2,),
    accesses=("write", "write", "write", "read"),
    pipelines=(1, 2),
    levels=("ALL",),
    coordinators=(1,),
    append_only=0.5,
    followed=0.0,
    plot="settled_late",
)
"""Merged files that somebody has left half done, and that others settle and merge on at the same time."""

SWEPT_LATE = Theme(
    seconds=(8.5, 10.0),
    keys=(KEYS,),
    paces=(0.3, 0.6),
    operations=("move",),
    operator_paces=(30.0,),
    tablets=(0,),
    replication=(2, 3),
    accesses=("write",),
    pipelines=(2, 2),
    levels=("ALL",),
    coordinators=(2,),
    session=2.0,
    append_only=0.5,
    followed=0.0,
    plot="swept_late",
)
"""A sweep that was planned before an operation on the ring went on, and that wakes up when rows have come by it."""

PREPARED_LATE = SWEPT_LATE._replace(plot="prepared_late")
"""A preparation of an operation on the ring that wakes up when rows have come by it."""

SWEPT_HELD = SWEPT_LATE._replace(plot="swept_held")
"""A sweep that begins before an operation on the ring is asked for, and that wakes up when rows have come by it."""

EPOCHS_LOST = Theme(
    seconds=(17.5, 18.5),
    tables=1.0,
    keys=(KEYS,),
    paces=(0.3,),
    operations=("shift",),
    operator_paces=(30.0,),
    tablets=(1,),
    replication=(3, 3, 2),
    coordinators=(1, 2),
    session=2.0,
    append_only=0.0,
    followed=0.0,
    racks=(RACKS,),
    plot="epochs_lost",
)
"""A log that goes back while a tablet moves; rows beside it, and what has to be true of them when that is accepted."""

ROOT_LOST_BESIDE_ROWS = Theme(
    seconds=(7.0, 9.0),
    tables=0.1,
    keys=(4, KEYS),
    paces=(0.2, 0.4),
    operations=("shift", "shift", "shuttle", "balance"),
    operator_paces=(1.5,),
    upkeep=("repair",),
    tablets=(1, 2, 0),
    accesses=("write", "write", "delete", "read", "read"),
    pipelines=(2, 3),
    levels=("QUORUM", "ALL"),
    coordinators=(1, 2),
    session=2.0,
    append_only=0.3,
    followed=0.0,
    plot="root_lost",
)
"""A root that is lost, or comes back as it was, beside rows: its members have the log, so nothing of them is lost."""

NARROWED_MEANWHILE = Theme(
    seconds=(11.0, 13.0),
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("replicas",),
    operator_paces=(30.0,),
    tablets=(0,),
    replication=(3,),
    accesses=("write",),
    pipelines=(2, 3),
    levels=("ALL",),
    coordinators=(1,),
    append_only=0.5,
    followed=0.0,
    plot="narrowed_meanwhile",
)
"""Writes that wait while their ranges get fewer replicas, and as many as before."""

LYING_SPLITS = Theme(
    seconds=(5.0, 7.0),
    keys=(KEYS,),
    paces=(0.2, 0.4),
    operations=("resize",),
    operator_paces=(30.0,),
    tablets=(1,),
    replication=(2, 3, 3),
    accesses=("write",),
    pipelines=(1, 2),
    levels=("ALL",),
    coordinators=(1,),
    append_only=0.8,
    followed=0.0,
    plot="lying_splits",
)
"""A place whose disk gives other bytes for a moment, in the headers of pages as well, as tablets are split there."""

WHOLE_AGAIN_MEANWHILE = Theme(
    seconds=(10.0, 11.0),
    keys=(KEYS,),
    paces=(0.2,),
    operations=("balance",),
    operator_paces=(30.0,),
    tablets=(1,),
    replication=(3,),
    accesses=("write",),
    pipelines=(2, 3),
    levels=("QUORUM",),
    coordinators=(1,),
    append_only=1.0,
    followed=0.0,
    racks=(("r1", "r2", "r3"),),
    plot="whole_again_meanwhile",
)
"""A place that comes back as it was and is repaired, while somebody counts on what it had acknowledged to him."""

PIECES_BESIDE = Theme(
    seconds=(4.0, 6.0),
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("move", "resize", "resize", "shift"),
    operator_paces=(0.8, 1.5),
    tablets=(0, 1, 1, 2),
    replication=(3, 3, 2),
    lingering=(0, 2, 4),
    accesses=("write", "write", "read", "read late"),
    pipelines=(2, 3),
    levels=("QUORUM", "ALL"),
    read_levels=("QUORUM", "QUORUM", "ALL"),
    append_only=1.0,
    followed=0.0,
)
"""Rows that are never replaced, so that one which is read twice is shown twice; and files that some replicas have
whole, and others in pieces.
"""

LYING_SOURCES = ROTTEN_CUTS._replace(
    accesses=("write",),
    levels=("ALL",),
    followed=0.0,
    lying=(
        Lying(
            ("flipped bit",),
            ("coordinator",),
            ("log append, done", "volume link, done"),
            (12, 24),
            (3.0, 6.0),
            number=2.0,
        ),
    ),
)
"""A place whose disk gives other bytes for a while, in the headers of pages as well, as pieces are cut of its files."""

LYING_MERGES = ROTTEN_MERGES._replace(
    accesses=("write",),
    followed=0.0,
    lying=(
        Lying(
            ("flipped bit",),
            ("upkeep",),
            ("log read", "log read, done", "volume list"),
            (8, 12),
            (1.0, 3.0),
            number=3.0,
        ),
    ),
)
"""A place whose disk gives other bytes for a while, in the footers of files, as these are merged."""

BY_NAME_ONLY = (
    CHECKED_MEANWHILE,
    PUT_BACK_UNDER_A_COMMIT,
    SETTLED_LATE,
    SWEPT_LATE,
    SWEPT_HELD,
    PREPARED_LATE,
    EPOCHS_LOST,
    ROOT_LOST_BESIDE_ROWS,
    NARROWED_MEANWHILE,
    LYING_SPLITS,
    WHOLE_AGAIN_MEANWHILE,
    PIECES_BESIDE,
    LYING_SOURCES,
    LYING_MERGES,
)
