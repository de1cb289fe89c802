"""What a history of rows can be about: who does what how fast, and what goes wrong meanwhile (row_themes.py)."""

from __future__ import annotations

from typing import NamedTuple

KEYS = 12
NODES = 4
RACKS = ("r1", "r2", "r3", "r1")
ALL_APART = ("r1", "r2", "r3", "r4")
SIX_NODES = (("r1", "r2", "r3", "r4", "r5", "r1"), ("r1", "r2", "r3", "r1", "r2", "r3"))
DESTRUCTIVE = ("rebuild", "remove", "replace")
"""What operators do that gives up what a node has, as the loss of its storage does."""

OPERATIONS = (
    *("leave", "add", "maintenance", "balance", "resize", "cancel", "pause request", "move", "shift", "replication"),
    *("replicas", "come and go", "drop and restore", "shuttle", "waver", "keyspace beside"),
    *DESTRUCTIVE,
)
"""What operators do."""

FORBIDDEN = "!"
"""How notes begin that a check does not allow."""

BAD_ROWS = ("write marked", "write null")
"""Writing rows that a check may forbid."""

ALTERATIONS = ("add check", "drop check", "alter columns")
"""What operators do to the columns and the checks of the table."""

ROLLBACK = "roll back"
"""Taking a table back to how it was at some time: what operators do who do not only ask the coordinator."""

CHANGE_OF_MIND = "change of mind"
"""Asking for another replication, and taking that back before anybody has begun with it."""

ACCEPT_LOSS = "accept loss"
"""Going on where a log ends that went back: what operators do who do not only ask the coordinator."""

UPKEEP = ("repair", "repair bytes", "compact", "vacuum", "compact log", "snapshot", "verify")
"""What is done to replicas, beside writing."""

SOME = "compact some"
"""Putting small files together, and leaving alone what is far larger."""

SHARED = "compact shared"
"""The same, of neighbouring ranges into one file, in the ways in which compaction is begun."""

SHELVED = "shelve what is shared"
"""Dropping and restoring a table whose neighbouring ranges share what compaction has made of their small files."""

WIDE = "write wide"
"""Writing rows that take much more room than others."""

EXPIRING = "write expiring"
"""Writing rows that live for some time only, of a table with a time to live."""

LIVES = (-5000.0, 0.5, 1.5, 3.0, 6.0, 1e6)
"""How long they do, in seconds; some have expired long ago."""

ALTER_TTL = "alter ttl"
"""Letting rows live for another time from now on, or for ever."""

TIMES_TO_LIVE = (0, 1, 2, 5, 60)
"""For how many seconds rows live from the moment in them; 0: for ever."""

PIPELINES = ("new pipeline",)
"""What ends a pipeline and begins another one of the same name."""

OTHER_ROWS = "batch otherwise"
"""Writing other rows under the name of a batch."""

ACCESSES = (
    *("write", "write", "delete", "read", "read", "read late"),
    *("batch", "batch", "batch again", "batch again", OTHER_ROWS),
)
"""What pipelines do."""


FOLLOWED = 0.25
"""So many histories have followers of the table's changes."""


class Lying(NamedTuple):
    """Faults that lie in wait for parts of some roles; in each history at a few of these moments.

    `counts`: how many there are; `seconds`: how long they last, from and to; `during`: while what is so far, "" for
    any time; `early`: in which share of the history they begin to lie there. Those of a place all strike the same one.
    `by`: the roles of whom they wait for, where those are others than they strike. `number`: as in the fault.
    """

    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    moments: tuple[str, ...]
    counts: tuple[int, ...]
    seconds: tuple[float, float] = (0.5, 3.0)
    during: tuple[str, ...] = ("",)
    early: float = 1.0
    by: tuple[str, ...] = ()
    number: float = 0.0


class Theme(NamedTuple):
    """What a history of rows is about: of which sorts operations, upkeep and faults are, and how fast all goes.

    `paces`: the longest waits of pipelines, and `operator_paces` of operators, in seconds; `sorts`: of faults.
    `sights`: what the machines of pipelines see of places: "all", "most" (all but one), all but two of a "few" pairs
    or of all "pairs", each of another one, or those on their side of a partition ("sides").
    `keepers`: how many do upkeep, and `upkeep_paces` their longest waits. `lingering`: so often coordinators stand
    still, so that changes stay in the middle of what they do. `accesses`: what pipelines do, and how many there are.
    `levels`: those of writes, and `read_levels` of reads. `coordinators`: how many there may be. `lying`: faults that
    lie in wait besides. `session`: as in the settings, of which `clock_margins` are as well. `holds`: how late plans of
    reads are executed, at most. `keepers_see_all`: whether upkeep reaches all places. `append_only`: so likely rows are
    never replaced. `hasty`: so likely a compaction forgets deletes at once. `coordinators_see`: what machines of
    coordinators see of places, as `sights` says of pipelines. `barriers` and `attempts`: as in the settings.
    `anywhere`: whether operators give up what any node has; else those of a history give up one node alone. `followed`:
    so likely the table's changes are followed. `racks`: of nodes, and so how many there are, which is the same in all
    of these. `replicas`: how many replicas of each row operators ask for; one alone only where nothing is destroyed.
    `threads`: how many a pipeline has; `twins`: so likely two pipelines bring the same batches at the same moments.
    `ttl`: as in the settings. `shared_file_bytes`: as in the settings; where there are any, somebody writes wide
    rows of all keys and then small ones, so that ranges have large files beside small ones, which somebody puts
    together all the time.
    `plot`: by its name what makes of the history one of a single moment (row_plots.py); "" for none.

    Where changes are followed: `changes` as in the settings, `followers` and `settlers` (who keep the stream up) are
    how many there may be, `follower_paces` and `settler_paces` their longest waits, and `lying_to_followers` faults
    that lie in wait for either, whose roles are "follower" and "upkeep".
    """

    seconds: tuple[float, float]
    keys: tuple[int, ...]
    paces: tuple[float, ...]
    operations: tuple[str, ...]
    operator_paces: tuple[float, ...]
    tables: float = 0.0
    upkeep: tuple[str, ...] = ("snapshot",)
    sorts: tuple[tuple[str, ...], ...] = ()
    tablets: tuple[int, ...] = (1,)
    sights: tuple[str, ...] = ("all",)
    replication: tuple[int, ...] = (3, 3, 3, 2)
    lingering: tuple[int, ...] = (0,)
    accesses: tuple[str, ...] = ACCESSES
    pipelines: tuple[int, int] = (1, 4)
    keepers: tuple[int, ...] = (1,)
    upkeep_paces: tuple[float, ...] = (6.0,)
    levels: tuple[str, ...] = ("QUORUM", "QUORUM", "ALL")
    coordinators: tuple[int, ...] = (1, 2)
    lying: tuple[Lying, ...] = ()
    session: float = 10.0
    holds: tuple[float, ...] = (1.0, 3.0, 10.0)
    clock_margins: tuple[float, ...] = (5.0, 5.0, 300.0)
    keepers_see_all: bool = True
    append_only: float = 0.2
    hasty: float = 0.3
    read_levels: tuple[str, ...] = ("QUORUM", "QUORUM", "QUORUM", "ONE")
    coordinators_see: tuple[str, ...] = ("all",)
    barriers: tuple[float, ...] = (3600.0,)
    attempts: tuple[int, ...] = (3,)
    anywhere: bool = False
    followed: float = FOLLOWED
    racks: tuple[tuple[str, ...], ...] = (RACKS, ALL_APART)
    replicas: tuple[int, ...] = (2, 3, 4)
    threads: tuple[int, ...] = (1,)
    twins: float = 0.0
    changes: tuple[str, ...] = ("kept", "kept", "held", "short")
    followers: tuple[int, ...] = (1, 1, 2)
    settlers: tuple[int, ...] = (0, 1, 1, 2)
    follower_paces: tuple[float, ...] = (0.3, 1.0, 4.0)
    settler_paces: tuple[float, ...] = (0.3, 1.0, 4.0)
    lying_to_followers: tuple[Lying, ...] = ()
    plot: str = ""
    ttl: tuple[int, ...] = (0,)
    shared_file_bytes: tuple[int, ...] = (0,)

    @property
    def nodes(self) -> int:
        """How many nodes there are in the beginning."""
        return len(self.racks[0])
