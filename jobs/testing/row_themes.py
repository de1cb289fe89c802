"""What histories of rows are about: of which kinds operations, upkeep and faults are, so that trouble meets trouble."""

from __future__ import annotations

from epochlake.jobs.testing import (
    operator_themes,
    plot_themes,
    rule_themes,
    sharing_themes,
    storage_themes,
    stream_themes,
)
from epochlake.jobs.testing.nemesis import DATA, EVERYBODY, MOUNTS, PLACES, PROCESSES
from epochlake.jobs.testing.themes import (
    KEYS,
    OPERATIONS,
    OTHER_ROWS,
    UPKEEP,
    Lying,
    Theme,
)

ANYTHING = Theme(
    seconds=(2.0, 20.0),
    tables=0.6,
    keys=(KEYS, KEYS, 3, 1),
    paces=(0.05, 0.5, 2.0),
    operations=OPERATIONS,
    operator_paces=(0.5, 2.0, 8.0),
    upkeep=UPKEEP,
    sorts=(PROCESSES, EVERYBODY, PLACES + MOUNTS, DATA),
    tablets=(0, 0, 1, 2, 4),
    sights=("all", "all", "most", "sides", "few"),
    upkeep_paces=(0.5, 2.0, 6.0),
)
"""Everything that there is."""

MOVING = Theme(
    seconds=(4.0, 14.0),
    keys=(1, 2),
    paces=(0.02,),
    operations=("shift", "shift", "shift", "leave", "add", "move", "cancel", "rebuild", "remove", "replace"),
    operator_paces=(0.3, 1.0),
    upkeep=("repair", "snapshot"),
    sorts=(("pause", "kill", "access fails"), ("pause", "cut", "server lags"), MOUNTS, ("disk away", "access fails")),
    tablets=(1, 1, 2, 0),
    sights=("all", "most", "sides", "sides", "few", "few"),
    replication=(3, 3, 3, 3, 3, 2),
    lingering=(0, 2, 4, 6),
)
"""Rows that are written and read as fast as can be while what holds them moves."""

STRADDLING = Theme(
    seconds=(3.0, 10.0),
    keys=(1, 1, 2),
    paces=(0.02, 0.3),
    operations=("shift",),
    operator_paces=(0.3, 1.0),
    sorts=(("pause",), ("pause", "server lags"), ("pause", "access fails"), ("pause", "cut")),
    sights=("few",),
    replication=(3,),
    lingering=(4, 8, 12),
    accesses=(*["write"] * 6, "delete", "read", "batch"),
    pipelines=(3, 4),
)
"""Tablets that are between their old and their new replicas most of the time, of which everybody sees two nodes only:
what was written where is no quorum of both by chance.
"""

UPKEEPING = Theme(
    seconds=(2.0, 8.0),
    tables=1.0,
    keys=(1, 3),
    paces=(0.05,),
    operations=("shift", "resize", "leave", "rebuild", "come and go"),
    operator_paces=(2.0, 8.0),
    upkeep=("repair", "repair bytes", "compact", "compact", "vacuum"),
    sorts=(PROCESSES, DATA, ("disk away", "unreachable"), ("power cut", "kill"), ("pause", "kill")),
    tablets=(1, 2, 0),
    sights=("all", "all", "most", "sides"),
    keepers=(1, 2),
    upkeep_paces=(0.3, 1.0),
)
"""Tables that are compacted, repaired and cleaned up all the time."""

RESTORING = Theme(
    seconds=(9.0, 15.0),
    tables=0.1,
    keys=(KEYS, KEYS, 4),
    paces=(0.3, 1.0),
    operations=("balance",),
    operator_paces=(20.0,),
    tablets=(1, 1, 0),
    sights=("most",),
    replication=(3,),
    accesses=("write", "write", "write", "read", "read", "delete", "batch"),
    pipelines=(3, 5),
    lying=(
        Lying(
            ("old storage",),
            ("pipeline",),
            ("volume link", "volume link, done", "volume read", "volume write"),
            (1, 1, 2),
            (0.3, 3.0),
            early=0.4,
        ),
    ),
    levels=("QUORUM", "QUORUM", "QUORUM", "ALL"),
)
"""Storage that comes back as it was before, while machines see most of it each: what one of them has written others are
not shown by the replica that they alone do not see.
"""


GOING_BACK = Theme(
    seconds=(8.0, 16.0),
    keys=(1, 2, 4),
    paces=(0.5,),
    operations=("shuttle",),
    operator_paces=(0.3,),
    upkeep=("repair", "snapshot"),
    replication=(3, 3, 2),
    accesses=("write", "write", "delete", "read"),
    pipelines=(1, 2),
    levels=("ALL", "ALL", "QUORUM"),
    coordinators=(3,),
    lying=(
        Lying(
            ("pause",),
            ("coordinator",),
            ("zookeeper create", "volume link", "volume link", "volume read"),
            (4, 8),
            (1.8, 5.0),
            (*["tablet cleanup", "tablet streaming"] * 2, "tablet write_both_read_old", "tablet use_new", ""),
        ),
        Lying(
            ("pause",),
            ("coordinator",),
            ("zookeeper create", "volume open", "volume rename to"),
            (0, 4, 8),
            (1.8, 5.0),
            ("tablet streaming",),
        ),
        Lying(("pause",), ("upkeep",), ("volume rename to, done", "volume link"), (0, 2, 4), (0.5, 3.0)),
    ),
    session=1.5,
)
"""Replicas that go to and fro between two nodes, and coordinators of which one sleeps while the other goes on: it wakes
when the same replica is on its way again.
"""

LOSING_POWER = Theme(
    seconds=(3.0, 9.0),
    tables=0.3,
    keys=(1, 3, KEYS),
    paces=(0.3,),
    operations=("shuttle", "shuttle", "resize", "leave", "add", "move"),
    operator_paces=(0.5, 1.5),
    upkeep=("snapshot", "vacuum", "compact"),
    tablets=(1, 2, 0),
    accesses=("write", "write", "delete", "batch", "read"),
    lying=(
        Lying(
            ("power cut",),
            ("coordinator", "pipeline", "upkeep"),
            ("volume link, done", "volume rename to, done", "volume link", "zookeeper create", "volume sync, done"),
            (1, 2, 3),
        ),
    ),
)
"""Power that is cut right after something has been stored, copied, cut or committed; nothing else goes wrong."""

FAILING_COPIES = Theme(
    seconds=(4.0, 10.0),
    tables=0.1,
    keys=(2, KEYS),
    paces=(0.2,),
    operations=("shuttle", "leave", "add", "move", "replication"),
    operator_paces=(0.3, 1.0),
    upkeep=("repair",),
    tablets=(1, 0, 0),
    sights=("all", "all", "most"),
    accesses=("write", "write", "delete", "read"),
    pipelines=(2, 3),
    upkeep_paces=(0.5,),
    levels=("ALL", "QUORUM"),
    lying=(
        Lying(
            ("access fails",),
            ("coordinator", "upkeep"),
            ("volume rename to", "volume open"),
            (4, 8, 16),
        ),
        Lying(("pause",), ("upkeep",), ("volume rename to, done", "volume link"), (0, 3, 6), (1.0, 4.0)),
    ),
)
"""Copies that fail now and then, or come late, while rows are streamed and repaired."""

SLEEPING = Theme(
    seconds=(40.0, 70.0),
    tables=1.0,
    keys=(1, 3),
    paces=(3.0, 8.0),
    operations=("shift", "resize"),
    operator_paces=(30.0,),
    upkeep=("vacuum", "vacuum", "compact"),
    tablets=(1, 2),
    replication=(3, 2),
    accesses=("write", "write", "write", "batch", "delete", "read late", "read late", *["new pipeline"] * 4),
    pipelines=(1, 2),
    upkeep_paces=(4.0, 8.0),
    lying=(
        Lying(
            ("pause",),
            ("pipeline", "coordinator"),
            ("volume link", "volume write, done", "volume sync", "volume sync, done", "volume look at, done"),
            (0, 2, 4),
            (15.0, 40.0),
        ),
        Lying(
            ("cut",), ("pipeline",), ("zookeeper getdata", "volume write", "volume read"), (0, 0, 1, 2), (15.0, 40.0)
        ),
        Lying(("kill",), ("upkeep",), ("volume rename to, done", "volume link"), (0, 0, 2)),
    ),
    holds=(10.0, 30.0, 40.0),
    clock_margins=(5.0,),
)
"""Pipelines that sleep in the midst of what they do, or take their time, while others compact and clean up."""

ROTTING = Theme(
    seconds=(3.0, 8.0),
    tables=0.6,
    keys=(3, KEYS),
    paces=(0.1, 0.3),
    operations=("shuttle", "resize", "move", "add"),
    operator_paces=(0.5, 1.5),
    upkeep=("repair bytes", "repair", "compact"),
    sorts=(("flipped bit",),),
    tablets=(1, 2, 0),
    sights=("most", "most", "all"),
    accesses=("write", "write", "delete", "read", "read", "batch", "batch again"),
    keepers=(1, 2),
    upkeep_paces=(0.5, 1.0),
    keepers_see_all=False,
)
"""Files that rot while they are copied, cut, merged and repaired, by somebody who does not see all of them."""

MERGING = Theme(
    seconds=(4.0, 9.0),
    tables=1.0,
    keys=(1, 3),
    paces=(0.1, 0.3),
    operations=("balance", "maintenance", "come and go"),
    operator_paces=(0.2, 0.4),
    upkeep=("compact", "compact", "compact", "repair"),
    tablets=(1, 1, 0),
    accesses=("write", "write", "write", "delete", "batch", "read", "new pipeline"),
    pipelines=(1, 2),
    keepers=(2, 3),
    upkeep_paces=(0.3, 0.8),
    lying=(
        Lying(
            ("pause", "pause", "pause", "kill"),
            ("upkeep",),
            ("shared link, done", "shared link, done", "volume link", "volume write, done"),
            (4, 8),
        ),
    ),
    append_only=0.7,
)
"""Several who compact the same ranges, and one of them sleeps between what it writes down and what it commits."""

FORGETTING = Theme(
    seconds=(5.0, 9.0),
    tables=1.0,
    keys=(1, 2),
    paces=(0.3,),
    operations=("balance",),
    operator_paces=(2.0,),
    upkeep=("compact",),
    accesses=("write", "write", "write wide", "delete", "delete", "read", *["new pipeline"] * 3),
    pipelines=(2, 3),
    keepers=(1, 2),
    upkeep_paces=(0.3, 0.6),
    lying=(Lying(("pause",), ("pipeline",), ("volume link", "volume write, done"), (0, 2, 4), (1.0, 4.5)),),
    append_only=0.0,
    hasty=0.9,
)
"""Deletes that are forgotten at once, beside pipelines that sleep with older rows and files too large to be merged."""

HANGING = Theme(
    seconds=(1000.0, 1100.0),
    tables=0.1,
    keys=(1, KEYS),
    paces=(20.0,),
    operations=("shift", "resize"),
    operator_paces=(100.0,),
    upkeep=("repair", "vacuum", "snapshot"),
    tablets=(1, 0),
    upkeep_paces=(100.0,),
    lying=(
        Lying(
            ("disk hangs",),
            ("pipeline",),
            ("volume link", "volume read", "volume write", "volume look at"),
            (1, 2),
            (2000.0, 3600.0),
            early=0.04,
        ),
    ),
)
"""Storage that hangs for an hour while pipelines read and write."""

RETURNING = Theme(
    seconds=(9.0, 14.0),
    keys=(1, 2, KEYS),
    paces=(0.3, 3.0),
    operations=("shuttle",),
    operator_paces=(0.3,),
    sights=("all", "most"),
    replication=(3,),
    accesses=("write", "write", "read"),
    pipelines=(1, 2),
    levels=("ALL", "QUORUM"),
    lying=(
        Lying(
            ("old storage",),
            ("coordinator",),
            ("volume read", "volume link"),
            (1, 2),
            (0.3, 3.0),
            ("tablet write_both_read_old", "tablet streaming", "tablet allow_write_both_read_old", ""),
            0.6,
        ),
    ),
)
"""Storage that comes back as it was right before rows were streamed to it, or before rows that it is to give away."""

SLOW_HANDS = Theme(
    seconds=(3.0, 6.0),
    keys=(1, 2, 4),
    paces=(0.05, 0.3),
    operations=("shuttle",),
    operator_paces=(0.3,),
    replication=(3, 3, 2),
    accesses=(*["write"] * 6, "delete", "read"),
    pipelines=(2, 3),
    levels=("ALL", "ALL", "ALL", "QUORUM"),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("pipeline",),
            ("volume link", "volume link", "volume write, done", "volume sync, done"),
            (8, 16),
            (0.8, 3.0),
            ("", "tablet allow_write_both_read_old", "tablet allow_write_both_read_old", "tablet use_new"),
        ),
    ),
)
"""Tablets that go to and fro while those who write to all of their replicas stand still between what they have staged,
or looked at, and what they commit.
"""

REBUILDING = Theme(
    seconds=(3.0, 7.0),
    keys=(KEYS,),
    paces=(0.05, 0.3),
    operations=("rebuild", "rebuild", "rebuild", "replace", "remove"),
    operator_paces=(1.0,),
    upkeep=("repair", "snapshot"),
    sorts=((), ("pause", "access fails")),
    tablets=(1, 1, 0),
    sights=("most", "most", "all"),
    replication=(3,),
    lingering=(0, 2, 4),
    accesses=(*["write"] * 3, *["read"] * 3, "delete", "batch", "batch again", OTHER_ROWS),
    pipelines=(3, 4),
    upkeep_paces=(1.0,),
    levels=("QUORUM", "QUORUM", "ALL"),
    read_levels=("QUORUM",),
    lying=(Lying(("lost storage",), ("pipeline",), ("volume link", "volume read"), (0, 1), early=0.2, number=1.0),),
    append_only=0.5,
)
"""A node that has lost what it held, and is filled again from the others, while machines see most of the places each:
what it holds is not there for a while, and what it had acknowledged counts for nothing.
"""

NARROWING = Theme(
    seconds=(3.0, 7.0),
    keys=(KEYS,),
    paces=(0.1, 0.3),
    operations=("replication",),
    operator_paces=(0.8,),
    tablets=(0, 0, 1),
    sights=("few", "most"),
    replication=(3,),
    accesses=("write", "write", "write", "read"),
    pipelines=(2, 3),
    levels=("ONE",),
    coordinators=(1,),
    append_only=0.5,
)
"""Rows that one replica alone may have, as each machine sees few places, while ranges get fewer replicas and then more
again.
"""

STRADDLING_AT_ONE = STRADDLING._replace(
    seconds=(4.0, 8.0),
    keys=(4, KEYS),
    operator_paces=(0.2,),
    sorts=(),
    sights=("few", "few", "most"),
    replication=(3, 2, 2),
    accesses=(*["write"] * 6, "read"),
    pipelines=(2, 3),
    levels=("ONE",),
    lingering=(0,),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause",),
            ("coordinator",),
            ("zookeeper setdata", "zookeeper create", "zookeeper create"),
            (4, 8),
            (0.8, 2.5),
            ("tablet write_both_read_old", "tablet write_both_read_old", "tablet streaming", "tablet use_new"),
        ),
    ),
    append_only=0.7,
)
"""The same, of rows that one replica has acknowledged: an old one and a new one, whichever a machine sees."""

WAY_BACK = Theme(
    seconds=(6.0, 10.0),
    keys=(4, KEYS),
    paces=(0.05, 0.2),
    operations=("shift", "shift", "shuttle"),
    operator_paces=(0.5,),
    replication=(3, 3, 2),
    accesses=(*["write"] * 5, "read"),
    pipelines=(2, 3),
    levels=("ALL", "ALL", "QUORUM"),
    coordinators=(1,),
    lying=(
        Lying(
            ("unreachable",),
            ("coordinator",),
            ("zookeeper setdata", "zookeeper create"),
            (8, 16),
            (5.0, 9.0),
            ("tablet write_both_read_new", "tablet write_both_read_new", "tablet streaming"),
        ),
    ),
    append_only=0.5,
)
"""Tablets that are taken back, as the coordinator does not reach where they are to go while all others do."""

CLOCKS = Theme(
    seconds=(2.0, 5.0),
    keys=(1,),
    paces=(0.1, 0.3),
    operations=("balance",),
    operator_paces=(5.0,),
    sights=("most",),
    replication=(3,),
    accesses=("write", "write", "write", "read"),
    pipelines=(3, 4),
    levels=("QUORUM",),
    read_levels=("QUORUM",),
    coordinators=(1,),
    lying=(Lying(("access fails",), ("pipeline",), ("volume read", "volume list", "volume look at"), (16, 32, 48)),),
    append_only=0.0,
)
"""Clocks that are apart, and replicas of which one does not answer when it is asked for the newest time."""

TWINS = Theme(
    seconds=(3.0, 6.0),
    keys=(KEYS, 4),
    paces=(0.1, 0.3),
    operations=("balance",),
    operator_paces=(5.0,),
    sights=("all", "most", "sides"),
    replication=(3,),
    accesses=(*["batch"] * 6, "batch again", "batch again", "read", "write"),
    pipelines=(2, 3),
    levels=("QUORUM", "QUORUM", "ALL"),
    coordinators=(1,),
    lying=(
        Lying(
            ("pause", "kill", "access fails"),
            ("pipeline",),
            ("shared link", "shared link, done", "volume link", "volume write, done"),
            (0, 2, 6),
            (0.2, 2.0),
        ),
    ),
    append_only=0.7,
    twins=0.9,
)
"""New batches that two pipelines bring at the same moment, each with the same rows."""

THEMES: tuple[Theme, ...] = (
    *(ANYTHING,) * 6,
    *(MOVING, MOVING, STRADDLING, STRADDLING, UPKEEPING, UPKEEPING, RESTORING),
    *(GOING_BACK, LOSING_POWER, FAILING_COPIES, SLEEPING, ROTTING, MERGING, FORGETTING, HANGING, RETURNING),
    *(SLOW_HANDS, REBUILDING, NARROWING, STRADDLING_AT_ONE, WAY_BACK, CLOCKS),
    *rule_themes.RULES,
    *operator_themes.DRAWN,
    *storage_themes.DRAWN,
)
"""What histories of rows are about: each of them about one of these, with the same chance."""


BY_NAME: dict[str, Theme] = {
    name.lower(): theme
    for name, theme in {
        **vars(rule_themes),
        **vars(operator_themes),
        **vars(storage_themes),
        **vars(stream_themes),
        **vars(sharing_themes),
        **vars(plot_themes),
        **globals(),
    }.items()
    if isinstance(theme, Theme)
}
"""All of them, by their names in small letters."""
