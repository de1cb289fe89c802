"""What histories of commits are about: themes, of which the seed of a history chooses one.

In a history of anything at all few things ever come together. A theme brings together what goes wrong together in the
world: a line in front of the log in which answers get lost, requests that come again, machines that stand still for
longer than their sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from epochlake.jobs.testing.nemesis import TORN_END

WAITS = (0.0, 0.05, 1.0, 20.0, 60.0, 120.0)
"""Seconds that a call may wait."""

LOG_UPKEEP = ("compact log", "verify", "look back", "commit elsewhere")
"""What is done to the log of a cluster, beside commits."""


class LogTheme(NamedTuple):
    """What a history of commits is about: who asks for the same, how long they wait, what goes wrong and when.

    Who commits: `processes`, `threads` and `commits` are how many there may be. `shared`: who asks under the same
    request ids: "nobody" on purpose, "processes" do all that another one does, "threads" of a process do the same, or
    each asks "again". `waits`: how long calls may wait, in seconds; `paces`: how long a process waits between them at
    most, () for any, and `together`: how likely all wait just as long, and come at once. `numbers`: of changes, () for
    any.

    What goes wrong: `sorts` of faults, () for all that there are. `moments`: where they lie in wait, `lurking`: where
    those of a kind do; `lurks`: how likely they do. `counts`: how many there are, `lengths`: how long pauses and cuts
    are, in seconds. `flipped`: how likely snapshots are damaged, `harms`: how often; `damages`: of commits of the log,
    which operators heal, `damaged`: how often, `damaged_from`: when at the earliest, in seconds.

    The log: `tables` is how likely it is a real Delta table. `upkeep`: what is done to it, `keepers`: by how many,
    `upkeep_paces`: their longest waits, `chores`: how much, `crowded`: how likely a crowd compacts it. `restored`: how
    likely it goes back, `backs`: how often, `accepting`: how many accept what is lost then, before all is over.
    `compacting`: after how many files it is compacted, `checkpoints` and `snapshots`: after how many commits and epochs
    there is one. `latencies`: how slow disks are, `deadlines`: of storage, in seconds. `unannounced`: whether the log
    goes back to right before an append whose process dies with it. `unread`: how likely nobody looks at the metadata
    after a commit, so that who was told by another one what has become of it has not read the log.

    Log members: `operators` is how many change them; (0, 0): the log has none. `restored` is how likely the root is
    lost then, or comes back as it was, `flipped` how likely a directory that may be lost is. `upkeep_paces` and
    `chores` are those of operators (member_drawing.py). `wiped`: how many may be lost; three
    are more than a set can lose. `plot`: what operators do and what goes wrong is that of one moment, by its name
    (member_plots.py).
    """

    tables: float = 0.3
    seconds: tuple[float, float] = (0.5, 30.0)
    processes: tuple[int, int] = (2, 4)
    threads: tuple[int, ...] = (1, 1, 1, 3)
    commits: tuple[int, ...] = (2, 4, 8, 12)
    shared: tuple[str, ...] = ("nobody",)
    waits: tuple[float, ...] = WAITS
    paces: tuple[float, ...] = ()
    together: float = 0.0
    numbers: tuple[int, ...] = ()
    sorts: tuple[tuple[str, ...], ...] = ()
    moments: tuple[str, ...] = ()
    lurking: Mapping[str, tuple[str, ...]] = {}
    lurks: float = 0.8
    counts: tuple[int, ...] = (0,)
    lengths: tuple[tuple[float, float], ...] = ((0.05, 0.5), (0.5, 5.0))
    latencies: tuple[float, ...] = (0.2, 1.0, 1.0, 10.0)
    upkeep: tuple[str, ...] = LOG_UPKEEP
    keepers: tuple[int, int] = (1, 3)
    upkeep_paces: tuple[float, ...] = (0.3, 5.0)
    chores: tuple[int, int] = (1, 5)
    crowded: float = 0.3
    restored: float = 0.4
    backs: int = 1
    accepting: tuple[int, int] = (0, 2)
    compacting: tuple[int, ...] = (2, 4, 32)
    checkpoints: tuple[int, ...] = (50,)
    snapshots: tuple[int, ...] = (0, 3, 10)
    flipped: float = 0.3
    harms: tuple[int, int] = (1, 3)
    damages: tuple[str, ...] = ()
    damaged: tuple[int, int] = (1, 3)
    damaged_from: float = 1.0
    deadlines: tuple[float, ...] = (30.0,)
    unannounced: bool = False
    unread: float = 0.0
    operators: tuple[int, int] = (0, 0)
    wiped: tuple[int, int] = (1, 2)
    plot: str = ""


ANYTHING = LogTheme()
"""Everything that there is."""

_OFFERING = ("zookeeper delete", "zookeeper delete, done", "zookeeper create", "zookeeper create, done")
"""Where somebody offers, takes back or claims what waits in line."""

_APPENDING = ("log append", "log append, done", "log fence", "log fence, done", "log read")
"""Where somebody reads, appends or fences."""

IN_LINE = LogTheme(
    tables=0.0,
    seconds=(2.0, 8.0),
    processes=(3, 5),
    threads=(1, 3),
    commits=(8, 12),
    shared=("nobody", "nobody", "again"),
    waits=(0.05, 0.2, 0.5, 1.0, 3.0),
    paces=(0.0,),
    numbers=(0, 1, 0, 1, 2, 6, 7),
    sorts=(("cut",), ("cut",), ("cut", "pause"), ("cut", "access fails"), ("kill",), ()),
    moments=(*_OFFERING, *_OFFERING, *_APPENDING),
    lurks=1.0,
    counts=(6, 12, 24),
    lengths=((0.02, 0.02), (0.05, 0.5), (0.5, 5.0)),
    latencies=(1.0, 5.0, 10.0),
)
"""A line in front of the log in which nobody has much time, and answers of ZooKeeper get lost."""

THE_SAME_AGAIN = LogTheme(
    tables=0.0,
    seconds=(1.0, 6.0),
    processes=(2, 4),
    threads=(1, 3),
    commits=(4, 8),
    shared=("processes", "threads", "again", "again"),
    waits=(0.05, 0.5, 2.0, 20.0),
    numbers=(2, 3, 6, 7, 8),
    sorts=((), ("access fails",), ("access fails", "cut", "pause"), ("kill",)),
    moments=(*_OFFERING, *_APPENDING),
    lurks=1.0,
    counts=(2, 6, 12),
    lengths=((0.02, 0.02), (0.05, 0.5), (0.5, 5.0)),
    latencies=(0.2, 1.0, 5.0),
)
"""Requests that come again, while others still ask for them or after they have been told."""

CUT_OFF = IN_LINE._replace(
    seconds=(20.0, 40.0),
    threads=(1, 1, 3),
    commits=(8, 16),
    shared=("nobody",),
    waits=(20.0, 40.0),
    paces=(0.0, 0.3, 1.0),
    together=0.5,
    numbers=(0, 1, 0, 1, 6),
    sorts=(("cut",),),
    moments=("zookeeper delete of proposals", "zookeeper delete of proposals, done", "zookeeper create of proposals"),
    counts=(6, 12, 20),
    lengths=((1.2, 3.0), (3.0, 9.0)),
)
"""A line in which all have time, and some are cut off for longer than they wait for an answer, but keep the lock."""

CUT_OFF_TOGETHER = CUT_OFF._replace(threads=(3,), numbers=(0, 1, 0, 1, 0, 1, 6), together=0.0)
"""The same, with processes of which several threads ask at once for what another one may undo."""

AGAIN_IN_LINE = IN_LINE._replace(
    processes=(3, 4),
    threads=(1,),
    commits=(6, 10),
    shared=("again",),
    waits=(0.2, 1.0, 5.0, 5.0),
    numbers=(2, 3, 6, 7, 8),
    sorts=((), ("cut",), ("cut",)),
    counts=(4, 8),
    latencies=(5.0, 10.0),
)
"""Requests that come again at once, in a line in which others commit for whom waits there."""

AGAIN_UNREAD = AGAIN_IN_LINE._replace(unread=1.0, sorts=((), (), ("cut",)))
"""The same, of who does not look at what the log says in between: he has only been told."""

KILLED_IN_LINE = IN_LINE._replace(
    processes=(3, 4),
    threads=(1,),
    commits=(6, 10),
    shared=("nobody",),
    waits=(1.0, 3.0),
    numbers=(0, 1, 0, 1, 6),
    sorts=(("kill",),),
    moments=("zookeeper create of proposals, done", "zookeeper create of proposals, done", "zookeeper getchildren"),
    counts=(8, 16),
)
"""Processes that die while others may take what they ask for, and ask for it again when they have been started anew."""

FAILING_APPENDS = LogTheme(
    tables=0.0,
    seconds=(2.0, 8.0),
    processes=(2, 3),
    threads=(3,),
    commits=(6, 10),
    waits=(0.05, 0.3, 1.0, 20.0, 20.0),
    paces=(0.0,),
    numbers=(0, 1, 0, 1, 6, 7),
    sorts=(("access fails",), ("access fails",), ("access fails", "pause")),
    moments=("log append", "log append", "log append, done", "log read"),
    lurks=1.0,
    counts=(12, 24, 40),
    latencies=(1.0, 5.0),
)
"""Appends that fail again and again, of what several threads have asked for who have more time or less."""

STANDING_STILL = LogTheme(
    tables=0.0,
    seconds=(25.0, 50.0),
    processes=(3, 4),
    threads=(1, 1, 3),
    commits=(8, 16),
    waits=(20.0, 40.0, 60.0),
    paces=(0.3, 1.0, 3.0),
    together=0.7,
    numbers=(0, 0, 1, 6, 7),
    sorts=(("pause",),),
    moments=("log append", "log append", "zookeeper delete of proposals, done"),
    counts=(6, 12, 20),
    lengths=((10.2, 12.0), (10.2, 12.0), (0.1, 0.5)),
)
"""Machines that stand still for longer than their sessions last, with what they have taken from others in hand."""

STANDING_STILL_AT_TABLES = STANDING_STILL._replace(
    tables=1.0,
    seconds=(20.0, 40.0),
    processes=(2, 3),
    threads=(1, 3),
    commits=(6, 10),
    paces=(0.5, 3.0),
    together=0.3,
    numbers=(0, 1, 6, 7, 8),
    moments=(
        "log write",
        "log write, done",
        "log link",
        "log link, done",
        "log read, done",
        "log delta-rs: open, done",
    ),
    lengths=((11.0, 15.0), (11.0, 25.0)),
    latencies=(0.2, 1.0, 10.0),
    upkeep=("compact log",),
    keepers=(1, 3),
    upkeep_paces=(2.0, 8.0),
    chores=(5, 10),
    crowded=0.0,
    restored=0.0,
    compacting=(2, 4),
)
"""Machines that stand still while they append to the log or compact it, as others do meanwhile."""

GONE_BACK = LogTheme(
    tables=1.0,
    seconds=(15.0, 40.0),
    threads=(1,),
    commits=(4, 8),
    shared=("again", "again", "nobody"),
    waits=(1.0, 5.0, 20.0),
    paces=(2.0, 5.0, 10.0),
    numbers=(2, 3, 6, 7, 8),
    sorts=((), ("kill",), ("kill", "cut"), ("pause",), ("cut",)),
    moments=("log link, done", "log append", "zookeeper setdata of world", "log read, done"),
    counts=(1, 3, 6),
    lengths=((0.05, 0.5), (0.5, 5.0), (5.0, 20.0)),
    upkeep=("catch up",),
    upkeep_paces=(3.0, 10.0, 20.0),
    crowded=0.0,
    restored=1.0,
    accepting=(3, 6),
)
"""A log that goes back, and an operator who soon lets the cluster go on there, while others know what is lost."""

BACK_TWICE = GONE_BACK._replace(
    seconds=(9.0, 16.0), processes=(2, 3), commits=(4, 6), paces=(1.0, 2.0, 4.0), backs=2, accepting=(3, 6)
)
"""The same, twice: to before the loss that was accepted, or to between the two, or while nobody has accepted it yet."""

UNANNOUNCED = GONE_BACK._replace(
    seconds=(6.0, 12.0),
    processes=(3, 4),
    threads=(1, 1, 3),
    commits=(6, 10),
    shared=("nobody", "again"),
    waits=(5.0, 20.0),
    paces=(0.0, 0.2, 0.5),
    numbers=(0, 1, 0, 1, 2, 6, 7),
    sorts=((),),
    counts=(0,),
    lengths=((0.02, 1.0),),
    accepting=(0, 0),
    unannounced=True,
)
"""Who appends for others dies before it has announced that, and the log goes back to before it when they have heard."""

TOLD_BY_THE_LOG = UNANNOUNCED._replace(
    seconds=(10.0, 13.0), commits=(4, 6), waits=(5.0,), paces=(0.2,), shared=("nobody",), lengths=((5.3, 8.5),)
)
"""The same, later: the lock of the dead is held for as long as his session lasts, and those whose time is over before
that look into the log, and are told what they find there.
"""

AGEING = LogTheme(
    tables=1.0,
    seconds=(60.0, 120.0),
    processes=(2, 3),
    threads=(1,),
    commits=(8, 12),
    waits=(60.0, 120.0),
    paces=(2.0, 4.0, 10.0, 30.0),
    sorts=((), ("pause",), ("pause",), ("power cut", "pause"), ("kill", "kill", "power cut")),
    lurking={
        "pause": ("log link", "log link", "log write", "log read, done"),
        "kill": ("log delta-rs: checkpoint, done",),
        "power cut": ("log delta-rs: clean the log of, done",),
    },
    counts=(2, 4, 6),
    lengths=((35.0, 60.0), (21.0, 29.0)),
    upkeep=("compact log", "compact log", "catch up"),
    keepers=(2, 3),
    upkeep_paces=(5.0, 15.0, 60.0),
    chores=(6, 12),
    crowded=0.0,
    restored=0.0,
    checkpoints=(2, 4),
    deadlines=(30.0, 120.0, 120.0),
    compacting=(4, 1000),
)
"""A log of which commits are deleted that are old, as checkpoints stand for them, while somebody sleeps."""

DAMAGED = LogTheme(
    tables=1.0,
    seconds=(4.0, 15.0),
    threads=(1,),
    commits=(6, 12),
    waits=(5.0, 20.0),
    paces=(0.3, 1.0, 3.0),
    sorts=((), ("pause",), ("cut",), ("kill",)),
    moments=("log link", "log link, done", "log read, done"),
    counts=(1, 3),
    upkeep=("heal log",),
    keepers=(1, 2),
    upkeep_paces=(1.0, 3.0),
    crowded=0.0,
    restored=0.0,
    damages=("torn commit", "flipped commit", "flipped commit", "flipped commit", "lost commit"),
    compacting=(1000,),
)
"""Commits of the log that are torn, rot or vanish, and operators who heal them."""

TORN_AT_THE_END = STANDING_STILL_AT_TABLES._replace(
    seconds=(15.0, 25.0), upkeep=("verify",), damages=(TORN_END,), compacting=(1000,)
)
"""Machines that stand still while they append to a log whose last commit is torn in the end."""

A_HOLE = STANDING_STILL_AT_TABLES._replace(
    seconds=(25.0, 32.0),
    processes=(2, 3),
    threads=(1,),
    commits=(12, 16),
    paces=(1.0, 2.0),
    together=0.7,
    moments=("log write", "log write", "log sync"),
    counts=(1, 2, 3),
    lengths=((14.0, 25.0),),
    upkeep=("catch up",),
    keepers=(1, 1),
    damages=("lost commit",),
    damaged=(1, 1),
    damaged_from=14.0,
    compacting=(1000,),
)
"""Machines that stand still while they append to a log, and what others have committed there meanwhile vanishes: right
where they are about to commit.
"""

OPENED_ANEW = LogTheme(
    tables=1.0,
    seconds=(4.0, 12.0),
    threads=(1,),
    commits=(6, 10),
    waits=(5.0, 20.0),
    paces=(0.3, 1.0),
    numbers=(1, 6, 7, 8, 9),
    sorts=(("kill",), ("kill", "pause")),
    moments=("log link, done", "log read, done", "shared read"),
    counts=(4, 8, 12),
    upkeep=("look back", "catch up"),
    crowded=0.0,
    restored=0.0,
    flipped=1.0,
    harms=(4, 12),
    snapshots=(2, 3),
)
"""A cluster that is opened anew all the time, at snapshots that are not what they seem to be."""

_MEMBERS = (
    *("member read", "member write", "member link", "member list", "member sync", "member delta-rs: open"),
    *("shared link", "shared link, done") * 3,
    *("member link, done", "member write, done", "member list, done", "member delta-rs: open, done"),
    *("member append", "member append, done", "member fence", "member fence, done", "member read, done"),
    *("log link", "log link, done", "log append", "log append, done", "shared link", "shared link, done"),
)
"""Where somebody works at a copy of the log, at the log, or at what the root says of its members."""

MEMBERS_CHANGE = LogTheme(
    tables=0.2,
    seconds=(5.0, 15.0),
    processes=(2, 3),
    threads=(1,),
    commits=(4, 8),
    shared=("nobody", "again"),
    waits=(5.0, 20.0, 60.0),
    paces=(0.3, 1.0, 2.0),
    sorts=(
        (),
        ("kill",),
        ("kill",),
        ("kill", "pause"),
        ("pause",),
        ("access fails", "kill"),
        ("disk away", "disk hangs", "disk errors", "pause"),
        ("power cut", "kill"),
    ),
    moments=_MEMBERS,
    counts=(1, 3, 6),
    lengths=((0.05, 0.5), (0.5, 5.0), (11.0, 15.0)),
    latencies=(0.2, 1.0),
    upkeep_paces=(1.0, 4.0),
    chores=(2, 6),
    restored=0.0,
    flipped=0.5,
    operators=(1, 2),
    snapshots=(0, 3),
    compacting=(4, 1000),
)
"""Log members that are changed by one operator or two, who die in the middle of it, while some of them go."""

ROOT_LOST = MEMBERS_CHANGE._replace(restored=1.0, flipped=0.7, sorts=((), ("kill",), ("kill", "pause"), ("pause",)))
"""The same, and the root is lost or comes back as it was: it is restored from its members."""

LATE_AT_MEMBERS = ROOT_LOST._replace(
    tables=0.0,
    seconds=(10.0, 16.0),
    paces=(0.0, 0.3),
    sorts=((), ("pause",)),
    moments=("member append",),
    counts=(0, 1),
    latencies=(0.2,),
    lengths=((6.0, 12.0),),
    upkeep_paces=(1.5,),
    chores=(8, 12),
    flipped=0.2,
    unannounced=True,
)
"""Somebody stands still as he writes to a log member, and the root is lost then: it is restored before he goes on."""

WIPED_MEMBERS = ROOT_LOST._replace(
    restored=0.7,
    flipped=1.0,
    sorts=((), ("kill",), ("disk away", "disk away", "kill"), ("disk away",)),
    lurks=0.3,
    counts=(1, 3, 6),
    lengths=((0.5, 5.0), (5.0, 15.0)),
    wiped=(3, 5),
)
"""More directories are emptied or come back as they were than a set can lose, others are away, and the root is lost:
what is restored has all that was followed to, or it is refused.
"""

_PLOT = MEMBERS_CHANGE._replace(
    tables=0.15,
    seconds=(12.0, 18.0),
    processes=(2, 2),
    commits=(8, 12),
    shared=("nobody",),
    waits=(5.0, 20.0),
    paces=(0.5, 1.0),
    together=0.5,
    numbers=(4, 6, 7, 8, 9),
    latencies=(0.2,),
    snapshots=(0,),
    compacting=(1000,),
)
UNDER_WAY = _PLOT._replace(plot="under_way", paces=(0.0, 0.3))
BLIND_OPERATORS = _PLOT._replace(plot="blind_operators", seconds=(8.0, 12.0))
LEFT_ALONE = _PLOT._replace(plot="left_alone", seconds=(16.0, 20.0), commits=(16, 20), paces=(0.8,), together=1.0)
BEHIND = _PLOT._replace(plot="behind", commits=(10, 16), paces=(0.1, 0.3))
HALF_RESTORED = _PLOT._replace(plot="half_restored", commits=(10, 16), paces=(0.1, 0.3))
BLANK_VOTES = _PLOT._replace(plot="blank_votes")
UNSEATED = _PLOT._replace(plot="unseated", commits=(10, 14))
UNPROMISED = _PLOT._replace(plot="unpromised", commits=(3, 5))
LEFT_UNFINISHED = _PLOT._replace(plot="left_unfinished", seconds=(6.0, 9.0))
HALF_ADOPTED = _PLOT._replace(plot="half_adopted", seconds=(6.0, 9.0))
"""One moment each, which member_plots.py tells."""

LEFT_IN_LINE = LogTheme(plot="left_in_line", tables=0.1, seconds=(16.0, 20.0), latencies=(0.2, 1.0))
SILENT_LINE = LEFT_IN_LINE._replace(plot="silent_line")
TAKEN_FROM_THE_DEAD = LEFT_IN_LINE._replace(plot="taken_from_the_dead")
CUT_OFF_WITH_TWO = LEFT_IN_LINE._replace(plot="cut_off_with_two")
APPENDED_AND_DIED = LEFT_IN_LINE._replace(
    plot="appended_and_died", tables=1.0, seconds=(24.0, 30.0), latencies=(0.2,), accepting=(0, 0)
)
UNSURE_AND_ASKED_AGAIN = LEFT_IN_LINE._replace(plot="unsure_and_asked_again", tables=0.0, seconds=(10.0, 12.0))
SLEPT_PAST_CLEAN_UP = LEFT_IN_LINE._replace(
    plot="slept_past_clean_up", tables=1.0, seconds=(80.0, 90.0), latencies=(0.2,)
)
"""One moment each, which log_plots.py tells."""

LOG_THEMES = (
    *(ANYTHING,) * 6,
    *(IN_LINE,) * 4,
    *(THE_SAME_AGAIN,) * 2,
    *(
        CUT_OFF,
        STANDING_STILL,
        STANDING_STILL_AT_TABLES,
        GONE_BACK,
        AGEING,
        DAMAGED,
        TORN_AT_THE_END,
        A_HOLE,
        OPENED_ANEW,
        CUT_OFF_TOGETHER,
        AGAIN_IN_LINE,
        KILLED_IN_LINE,
        FAILING_APPENDS,
    ),
)

"""What histories of commits are about: each of them about one of these, with the same chance."""

BY_NAME: dict[str, LogTheme] = {name.lower(): theme for name, theme in globals().items() if isinstance(theme, LogTheme)}
"""All of them, by their names in small letters."""
