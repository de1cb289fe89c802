"""Themes of histories of rows that are made from rules: who has to stand still, or to be out of reach, between which
two steps, and what others do meanwhile.
"""

from __future__ import annotations

from epochlake.jobs.testing.nemesis import LOST_ANSWER, MOUNTS
from epochlake.jobs.testing.themes import KEYS, OTHER_ROWS, SOME, WIDE, Lying, Theme

BLIND_COORDINATORS = Theme(
    seconds=(4.0, 8.0),
    keys=(2,),
    paces=(0.5,),
    operations=("shift", "shift", "shuttle", "leave", "add", "move", "replication", "cancel"),
    operator_paces=(0.3, 1.0),
    sorts=((), ("kill",), ("pause", "access fails")),
    tablets=(1, 1, 2, 0, 0),
    replication=(3, 3, 2),
    accesses=("write", "read"),
    pipelines=(1, 2),
    coordinators_see=("sides", "few"),
    barriers=(3600.0, 0.5),
)
"""Coordinators that do not reach two of four places each: too few replicas can be fenced, and steps have to wait."""

_GOES_DARK = Lying(
    ("unreachable",),
    ("coordinator",),
    ("log append", "log append, done", "log append, done", "zookeeper setdata"),
    (4, 8),
    (1.0, 3.0),
    ("tablet write_both_read_old", "tablet streaming", "tablet streaming", "tablet write_both_read_new"),
)

OUT_OF_REACH = BLIND_COORDINATORS._replace(
    seconds=(5.0, 9.0),
    operations=("shuttle",),
    operator_paces=(0.3,),
    sorts=((),),
    tablets=(1,),
    coordinators=(1,),
    coordinators_see=("all",),
    lying=(_GOES_DARK, _GOES_DARK, _GOES_DARK),
)
"""The same, where places go out of reach in the midst of a change, and come back."""

LOST_FENCES = BLIND_COORDINATORS._replace(
    operations=("remove", "replace", "shift", "shuttle"),
    sorts=((),),
    tablets=(1, 2, 0),
    replication=(3,),
    coordinators_see=("most",),
)
"""The same, where one node is declared lost, and one of the others is out of reach."""

SLOW_EYES = Theme(
    seconds=(4.0, 7.0),
    keys=(2, 4),
    paces=(0.1,),
    operations=("shuttle",),
    operator_paces=(0.3,),
    replication=(3, 3, 2),
    accesses=("write", "write", "read", "read", "read"),
    pipelines=(3, 4),
    levels=("ALL", "QUORUM"),
    read_levels=("ONE", "QUORUM"),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            (*["log read, done"] * 3, "volume read"),
            (16, 24, 40),
            (0.5, 1.5),
            ("", "tablet allow_write_both_read_old", "tablet streaming", "tablet write_both_read_new"),
        ),
    ),
    append_only=0.3,
)
"""Tablets that go to and fro while those who read stand still between what they have planned and what they open."""

LATE_HANDS = Theme(
    seconds=(4.0, 7.0),
    keys=(1, 2, 4),
    paces=(0.05, 0.2),
    operations=("shift",),
    operator_paces=(0.4, 0.8),
    replication=(3, 2, 2),
    accesses=(*["write"] * 6, "read"),
    pipelines=(3, 4),
    levels=("QUORUM", "ALL"),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume link", "volume link", "volume write, done", "volume sync, done"),
            (12, 24),
            (0.6, 2.5),
            ("", "tablet allow_write_both_read_old", "tablet write_both_read_new", "tablet use_new"),
        ),
    ),
)
"""Tablets that leave one node after the other, and stay away, while those who write to them stand still."""

BACK_AND_AGAIN = Theme(
    seconds=(9.0, 13.0),
    keys=(4, KEYS),
    paces=(0.3,),
    operations=("shuttle",),
    operator_paces=(0.3,),
    sights=("most",),
    replication=(3, 3, 2),
    accesses=("write", "write", "batch", "batch again", "batch again"),
    pipelines=(3, 4),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(
            ("unreachable",),
            ("coordinator",),
            ("zookeeper setdata", "zookeeper create"),
            (8, 16),
            (3.0, 4.5),
            ("tablet write_both_read_old", "tablet streaming"),
        ),
    ),
    append_only=0.5,
    attempts=(12,),
)
"""Changes that are taken back, and begin again at once, while writes to all replicas wait for one that their machine
does not see: what the pending replica has acknowledged it may have dropped, and get again without.
"""

HALF_BATCHES = Theme(
    seconds=(3.0, 6.0),
    keys=(KEYS,),
    paces=(0.3,),
    operations=("balance",),
    operator_paces=(5.0,),
    sorts=((), ("kill",)),
    tablets=(1, 2, 0),
    sights=("sides",),
    replication=(3,),
    accesses=(*["batch"] * 4, *["batch again"] * 6, "read", OTHER_ROWS),
    pipelines=(3, 4),
    levels=("QUORUM",),
    append_only=0.8,
)
"""Batches that are tried again by those who see the other replicas, and none that whoever tried before has reached."""

COMPACTED_BATCHES = Theme(
    seconds=(12.0, 18.0),
    tables=1.0,
    keys=(KEYS,),
    paces=(1.5,),
    operations=("balance",),
    operator_paces=(30.0,),
    upkeep=("compact", "compact", "vacuum", "vacuum"),
    tablets=(1, 2),
    replication=(3, 2),
    accesses=("batch", "batch", *["batch again"] * 3, *["new pipeline"] * 2),
    pipelines=(2, 3),
    keepers=(2,),
    upkeep_paces=(1.0, 2.0),
    append_only=1.0,
    clock_margins=(1.0,),
)
"""Batches that come again when their files have been merged, and then deleted."""

HOLDING = Theme(
    seconds=(12.0, 18.0),
    tables=1.0,
    keys=(1, 3),
    paces=(1.0,),
    operations=("balance",),
    operator_paces=(60.0,),
    upkeep=("compact", "compact", "vacuum", "vacuum"),
    tablets=(1, 2),
    replication=(3, 2),
    accesses=("write", "write", "read late", "read late", "read"),
    pipelines=(2, 3),
    keepers=(2,),
    upkeep_paces=(0.5, 1.0),
    holds=(20.0,),
    followed=0.0,
    clock_margins=(5.0,),
)
"""Reads that take their time, of what others merge and clean up."""

HOLDING_CUT_OFF = HOLDING._replace(
    seconds=(24.0, 30.0),
    paces=(3.0,),
    accesses=(*["write"] * 3, "read", "read late"),
    pipelines=(1, 1),
    holds=(6.0,),
    lying=(Lying(("cut",), ("pipeline",), ("volume read", "volume link"), (3, 4), (12.0, 24.0), early=0.3),),
    upkeep_paces=(2.0,),
    session=1.5,
)
"""The same, by somebody who is cut off from ZooKeeper meanwhile."""

LATE_COMMITS = Theme(
    seconds=(20.0, 30.0),
    tables=1.0,
    keys=(3, KEYS),
    paces=(0.5, 1.5),
    operations=("balance",),
    operator_paces=(60.0,),
    upkeep=("vacuum",),
    tablets=(1, 2),
    replication=(3, 2),
    accesses=("write", "write", "write", "batch", "delete", "read"),
    pipelines=(2, 3),
    keepers=(1, 2),
    upkeep_paces=(0.5, 1.0),
    levels=("ALL", "QUORUM"),
    lying=(
        Lying(("pause",), ("pipeline",), ("volume link",), (4, 8), (5.0, 10.0)),
        Lying(("kill",), ("upkeep",), ("volume rename to, done", "volume rename to, done", "volume link"), (0, 2, 4)),
    ),
    session=1.5,
    clock_margins=(1.0,),
)
"""Pipelines that stand still when they have looked for what they commit, while others clean up; some of whom die."""

HALF_REBUILT = Theme(
    seconds=(12.0, 16.0),
    keys=(KEYS,),
    paces=(0.5,),
    operations=("rebuild", "cancel"),
    operator_paces=(1.6,),
    tablets=(0,),
    sights=("most",),
    replication=(3,),
    accesses=(*["write"] * 3, *["read"] * 3),
    pipelines=(3, 4),
    levels=("QUORUM",),
    coordinators=(1,),
    read_levels=("QUORUM",),
    append_only=0.5,
    lying=(
        Lying(("lost storage",), ("pipeline",), ("volume link", "volume read"), (1,), early=0.02, number=1.0),
        Lying(
            ("pause",),
            ("coordinator",),
            ("volume rename to", "volume link", "volume read"),
            (12, 24),
            (1.5, 2.5),
            ("rebuild before MID",),
        ),
    ),
)
"""A node that has lost what it held, and whose rebuild is cancelled before it has brought all of it."""

LOST_AND_READ = Theme(
    seconds=(5.0, 9.0),
    keys=(2, KEYS),
    paces=(0.2,),
    operations=("replace", "remove"),
    operator_paces=(1.5,),
    tablets=(1, 1, 0),
    replication=(3, 2),
    accesses=("write", "read"),
    pipelines=(3, 4),
    levels=("ALL",),
    read_levels=("ONE",),
    append_only=0.3,
)
"""Nodes that are declared lost and answer all the same, while others have read of them long before."""

LOST_MEANWHILE = Theme(
    seconds=(4.0, 7.0),
    keys=(2, KEYS),
    paces=(0.1,),
    operations=("replace", "remove", "replace"),
    operator_paces=(1.5, 3.0),
    tablets=(1, 1, 0),
    sights=("all", "most"),
    replication=(3, 3, 2),
    accesses=(*["write"] * 5, "read"),
    pipelines=(3, 4),
    levels=("ALL", "ALL", "QUORUM", "ONE"),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume link", "volume link, done", "log read", "zookeeper getdata", "shared link"),
            (8, 16, 24),
            (0.8, 2.5),
        ),
    ),
)
"""Nodes that are declared lost between the acknowledgement of a write and its last look."""

LATE_REPAIRS = Theme(
    seconds=(5.0, 9.0),
    keys=(2, 4),
    paces=(0.1,),
    operations=("shift",),
    operator_paces=(0.6, 1.0),
    upkeep=("repair",),
    sights=("most",),
    replication=(3,),
    accesses=("write", "write", "write", "delete", "read"),
    pipelines=(2, 3),
    keepers=(2,),
    upkeep_paces=(0.1, 0.2),
    levels=("QUORUM",),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("upkeep",),
            ("volume link", "volume link", "volume rename to, done"),
            (12, 24),
            (0.8, 2.5),
        ),
    ),
)
"""Repairs that stand still between what they have planned and what they commit, while tablets go to and fro."""

PREPARED_TWICE = Theme(
    seconds=(7.0, 12.0),
    keys=(2, 4),
    paces=(0.05,),
    operations=("shuttle",),
    operator_paces=(0.3,),
    replication=(3, 2),
    accesses=(*["write"] * 5, "read"),
    pipelines=(3, 4),
    levels=("ALL",),
    coordinators=(3,),
    lying=(
        Lying(
            ("pause",),
            ("coordinator",),
            ("volume read", "volume link", "volume look at"),
            (6, 12),
            (1.6, 2.6),
            ("tablet allow_write_both_read_old",),
        ),
        Lying(
            ("pause",),
            ("coordinator",),
            ("log append, done",),
            (6, 12),
            (0.6, 1.4),
            ("tablet allow_write_both_read_old",),
        ),
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume link, done",),
            (8, 16),
            (1.0, 2.5),
            ("tablet allow_write_both_read_old", "tablet write_both_read_old"),
        ),
    ),
    session=1.5,
)
"""Coordinators that stand still before they prepare a replica, and others as soon as it may be written to."""

GIVEN_UP = Theme(
    seconds=(3.0, 6.0),
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("remove", "replace"),
    operator_paces=(0.5, 1.0),
    tablets=(1, 2, 0),
    sights=("most", "few"),
    replication=(3, 3, 2),
    accesses=("write", "write", "read"),
    pipelines=(3, 4),
    levels=("QUORUM",),
    read_levels=("QUORUM",),
    append_only=0.5,
    anywhere=True,
)
"""Operators who declare more than one node lost, where that may be all that has a row."""

SHELVING = Theme(
    seconds=(4.0, 8.0),
    tables=0.6,
    keys=(2,),
    paces=(0.5,),
    operations=(*["drop and restore"] * 4, "move", "leave", "add", "shift"),
    operator_paces=(0.1, 0.5),
    upkeep=("vacuum", "vacuum", "snapshot"),
    sorts=((), (), ("kill",), ("pause", "access fails"), ("clock jumps",), MOUNTS),
    tablets=(0, 0, 1, 2),
    replication=(3, 2),
    accesses=("write", "read", *["new pipeline"] * 4),
    pipelines=(1, 1),
    keepers=(1, 2),
    upkeep_paces=(0.2, 0.5),
)
"""Tables that are dropped and brought back while nodes come and go, and vacuum deletes what nobody can restore."""

ROTTEN_SOURCES = Theme(
    seconds=(5.0, 8.0),
    keys=(1, 2),
    paces=(0.5, 1.0),
    operations=("shuttle",),
    operator_paces=(0.3,),
    replication=(2, 2, 3),
    accesses=("write", "write", "read"),
    pipelines=(1, 2),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(
            ("flipped bit",),
            ("coordinator",),
            ("log append, done", "zookeeper setdata", "volume read", "volume link, done"),
            (4, 8, 12),
            during=("tablet allow_write_both_read_old", "tablet write_both_read_old", "tablet streaming"),
        ),
    ),
    append_only=0.5,
)
"""Files that rot right before a tablet is streamed from where they lie."""

ROTTEN_MERGES = Theme(
    seconds=(7.0, 10.0),
    keys=(3, KEYS),
    paces=(0.5, 1.5),
    operations=("balance",),
    operator_paces=(10.0,),
    tables=1.0,
    upkeep=("compact",),
    tablets=(1, 2),
    replication=(2,),
    accesses=(*["write"] * 4, "read"),
    pipelines=(1, 2),
    upkeep_paces=(2.0, 3.0),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(
            ("flipped bit",),
            ("upkeep", "pipeline"),
            ("volume link, done", "log read", "volume list"),
            (8, 16),
            number=1.0,
        ),
    ),
    append_only=0.8,
)
"""A place whose files all rot right before they are merged."""

FOLLOWED_WRITES = Theme(
    seconds=(4.0, 8.0),
    keys=(2, KEYS),
    paces=(0.05, 0.3),
    operations=("balance", "shift"),
    operator_paces=(4.0,),
    upkeep=("repair",),
    tablets=(1, 2, 4),
    sights=("most", "all", "few"),
    replication=(3,),
    accesses=(*["write"] * 4, "delete", "batch", "batch again", "read"),
    pipelines=(2, 4),
    levels=("QUORUM", "QUORUM", "ALL"),
    coordinators=(1,),
    lying=(
        Lying(
            ("kill", "pause", "pause", "access fails"),
            ("pipeline", "upkeep", "follower"),
            ("shared link", "shared link, done", "volume link, done", "volume link", "shared read", "volume read"),
            (2, 6, 12),
            (0.5, 3.0),
        ),
    ),
    session=1.5,
    append_only=0.3,
    followed=1.0,
)
"""Writes whose changes are followed, by pipelines that die or stand still between what they land and what they tell."""

WAVERING = Theme(
    seconds=(6.0, 9.0),
    keys=(4, KEYS),
    paces=(0.1,),
    operations=("waver",),
    operator_paces=(0.3,),
    sights=("most",),
    replication=(3, 2),
    accesses=(*["write"] * 4, "batch"),
    pipelines=(3, 4),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("coordinator",),
            ("zookeeper setdata", "volume link", "volume read"),
            (12, 24),
            (0.5, 1.0),
            ("tablet write_both_read_old",),
        ),
    ),
    append_only=0.5,
    attempts=(12,),
)
"""Changes that are taken back and begin again, while writes to all replicas wait for the one that is to leave, which
their machine does not see: what the pending replica has acknowledged it has dropped, and gets again without.
"""

NARROW_AND_WIDE = Theme(
    seconds=(10.0, 14.0),
    keys=(4, KEYS),
    paces=(1.0,),
    operations=("replication", "replication", "keyspace beside"),
    operator_paces=(0.4,),
    tablets=(0,),
    replication=(3,),
    accesses=("write",),
    pipelines=(2, 2),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(MOUNTS, ("pipeline",), ("volume link", "volume read", "volume link, done"), (4, 8), (4.0, 8.0)),
        Lying(
            ("pause",),
            ("coordinator",),
            ("volume rename to", "volume link", "zookeeper create"),
            (0, 4),
            (0.3, 1.0),
            ("change_replication before MID", "change_replication before MID", "change_replication before START"),
        ),
    ),
    append_only=0.5,
    attempts=(12,),
)
"""Ranges that get fewer replicas and more again, while writes to all of them wait for one that is out of reach."""

HALF_MERGED = Theme(
    seconds=(4.0, 7.0),
    tables=1.0,
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("balance",),
    operator_paces=(20.0,),
    upkeep=("compact",),
    tablets=(1, 1, 0),
    replication=(3, 3, 2),
    accesses=("write", "write", "read", "read"),
    pipelines=(2, 3),
    upkeep_paces=(0.3, 0.6),
    levels=("QUORUM", "ALL"),
    read_levels=("QUORUM",),
    coordinators=(1,),
    lying=(Lying(("pause", "access fails"), ("upkeep",), ("volume link",), (12, 24), (0.3, 1.0)),),
    append_only=1.0,
)
"""Rows that are never replaced, read while some replicas have a merged file and others what it stands for."""

HALF_FORGOTTEN = Theme(
    seconds=(4.0, 7.0),
    tables=1.0,
    keys=(1, 2),
    paces=(0.3,),
    operations=("balance",),
    operator_paces=(20.0,),
    upkeep=(SOME,),
    replication=(2, 3),
    accesses=(WIDE, "delete", "delete", "delete", "read"),
    pipelines=(1, 2),
    upkeep_paces=(0.4,),
    levels=("ALL",),
    coordinators=(1,),
    append_only=0.0,
    hasty=1.0,
)
"""Deletes that are put together with other deletes, and not with the large files of what they delete."""

LOST_ANSWERS = Theme(
    seconds=(6.0, 9.0),
    keys=(2, 4),
    paces=(0.05,),
    operations=("shuttle",),
    operator_paces=(0.3,),
    replication=(3, 2),
    accesses=("write",),
    pipelines=(3, 4),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(
            (LOST_ANSWER,),
            ("pipeline",),
            ("volume link",),
            (16, 32),
            (0.4, 2.5),
            ("", "tablet allow_write_both_read_old", "tablet use_new", "tablet streaming"),
        ),
    ),
    append_only=0.5,
)
"""Commits whose answers are lost, of which their writers hear late, and look then whether they have landed."""

SOURCES = Theme(
    seconds=(4.0, 7.0),
    keys=(2,),
    paces=(0.3,),
    operations=("shuttle",),
    operator_paces=(0.3,),
    replication=(3, 2),
    accesses=("write", "read"),
    pipelines=(1, 2),
    coordinators=(1,),
    lying=(
        Lying(
            ("access fails",),
            ("coordinator",),
            ("volume link", "volume write", "volume read"),
            (12, 24),
            during=("tablet streaming",),
        ),
    ),
)
"""Replicas that rows are streamed from, and that could not be fenced right before."""

SWEEPS = Theme(
    seconds=(6.0, 10.0),
    keys=(KEYS,),
    paces=(0.2,),
    operations=("add", "add", "add", "move", "leave"),
    operator_paces=(0.3, 0.6),
    tablets=(0,),
    replication=(2, 3),
    accesses=("write", "write", "read"),
    pipelines=(1, 2),
    levels=("ALL",),
    coordinators=(1, 2),
)
"""Nodes that come and go at the same time: what one leaves behind is swept while another one gets rows."""

ROTTEN_CUTS = Theme(
    seconds=(5.0, 8.0),
    keys=(KEYS,),
    paces=(0.3,),
    operations=("add", "leave", "move"),
    operator_paces=(0.4,),
    tablets=(0,),
    replication=(2, 2, 3),
    accesses=("write", "write", "read"),
    pipelines=(1, 2),
    levels=("ALL",),
    coordinators=(1,),
    lying=(
        Lying(
            ("flipped bit",),
            ("coordinator",),
            ("log append, done", "zookeeper setdata", "volume read", "volume link, done"),
            (8, 16, 24),
            during=("join before MID", "leave before MID", "move before MID"),
            number=1.0,
        ),
    ),
    append_only=0.5,
)
"""A place whose files all rot right before pieces are cut of them."""

RULES = (
    *(BLIND_COORDINATORS, OUT_OF_REACH, LOST_FENCES, SLOW_EYES, LATE_HANDS, BACK_AND_AGAIN, HALF_BATCHES, SHELVING),
    *(WAVERING, HALF_MERGED, HALF_FORGOTTEN, SOURCES),
)
"""Those that are drawn with all others."""

BY_NAME_ONLY = (
    *(COMPACTED_BATCHES, HOLDING, HOLDING_CUT_OFF, LATE_COMMITS, HALF_REBUILT, LOST_AND_READ, LOST_MEANWHILE),
    *(LATE_REPAIRS, PREPARED_TWICE, GIVEN_UP, ROTTEN_SOURCES, ROTTEN_MERGES, ROTTEN_CUTS),
    *(NARROW_AND_WIDE, SWEEPS, FOLLOWED_WRITES, LOST_ANSWERS),
)
"""Those that had too few histories yet to be drawn where nobody asks for them."""
