"""Histories of merges drawn from seeds: who merges into few rows, who moves them meanwhile, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from epochlake.jobs.testing.drawing import Drawing, Weights
from epochlake.jobs.testing.nemesis import EVERYBODY, LOST_ANSWER, MOUNTS, PLACES, PROCESSES, moments
from epochlake.jobs.testing.row_drawing import place
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.themes import ALL_APART, NODES, RACKS
from epochlake.jobs.testing.world import ROOT

KEYS = 3
"""Into so many rows all merge."""

OPERATIONS = ("move", "shuttle", "leave", "add", "resize", "balance", "come and go")
UPKEEP = ("repair", "compact", "vacuum")
ONCE = "merge once"
"""Merging without a name, under which it could be tried again."""

OVER = "write over"
"""Writing rows that are merged into, without reading them."""

OVERWRITE = "overwrite"
"""Giving the table other rows than all that it has."""

NAMED = ("merge", OVERWRITE)
"""How the kinds of what has a name begin, but for `ONCE`: where somebody has died at it, another one tries it again."""

MERGES = (*("merge",) * 4, *("merge again",) * 3, "read merged", "write beside")


class MergeTheme(NamedTuple):
    """What histories of merges are about: `kinds` of what mergers do; `twins`: so likely two of them do the same at the
    same moments, each under the same names. `unsure`: whether it is about one moment: a single merger does not hear
    whether what it has asked for counts, and what it has staged is swept before it asks again.
    """

    kinds: tuple[str, ...] = MERGES
    twins: float = 0.0
    unsure: bool = False


LISTS = MergeTheme()
"""Names that are added to rows."""

WITHOUT_NAMES = MergeTheme((*("merge",) * 2, *("merge again",) * 2, *(ONCE,) * 4, "read merged"), twins=0.3)
"""The same, some of them without a name to be tried again by, or by two at once."""

OVERWRITING = MergeTheme(
    (*("merge",) * 4, *("merge again",) * 2, ONCE, OVERWRITE, f"{OVERWRITE} again", "read merged"), twins=0.2
)
"""The same, and tables that get other rows in the midst of it."""

WRITING_OVER = MergeTheme((*("merge",) * 4, "merge again", ONCE, *(OVER,) * 2, OVERWRITE, "read merged", "read merged"))
"""The same, and rows that are written by those who have not read them."""

UNSURE = MergeTheme(("merge",), unsure=True)
"""A journal whose answer is lost, together with what was staged for its entry."""

THEMES = (LISTS, LISTS, LISTS, WITHOUT_NAMES, OVERWRITING, WRITING_OVER)
"""What histories of merges are about: each of them about one of these, with the same chance."""

BY_NAME = {name.lower(): theme for name, theme in globals().items() if isinstance(theme, MergeTheme)}
"""All of them, by their names in small letters."""

MOMENTS = ("shared link", "shared link", "shared link, done", "shared link, done", "shared read", "volume link")
"""Where a merge can be hit between its read, its entry and its landing."""


KINDS = (
    *sorted({*(kind for theme in THEMES for kind in theme.kinds), *OPERATIONS, *UPKEEP}),
    *PROCESSES,
    *PLACES,
    *MOUNTS,
    *EVERYBODY,
)
"""All that is drawn by weights."""


def merge_scenario(seed: int, weights: Weights = {}, *, theme: MergeTheme | None = None) -> Scenario:  # noqa: B006
    """Mergers, coordinators, an operator and upkeep at one table. `theme`: not a drawn one."""
    drawing = Drawing("merges", seed, weights)
    chance = drawing.chance
    theme = theme or random.Random(f"theme of merges {seed}").choice(THEMES)
    if theme.unsure:
        return _unsure(drawing, seed, theme)
    # In most histories little happens but merges, which are hit again and again in the midst of what they do.
    narrow = chance.random() < 0.7
    seconds = round(chance.uniform(4.0, 8.0) if narrow else chance.uniform(3.0, 9.0), 3)
    delta = not narrow and chance.random() < 0.4
    named: list[Operation] = []
    pace = chance.choice([0.02, 0.3, 1.0])
    mergers = [
        Part(f"merger{number}", "merger", (_merges(drawing, seconds, named, pace, theme.kinds),), drawing.skew(2.0))
        for number in range(chance.choice([2, 2, 3] if narrow else [2, 3, 4]))
    ]
    if theme.twins and chance.random() < theme.twins:
        # Where there is no name, two calls are two merges.
        twin = [
            msgspec.structs.replace(one, name=f"{one.name}b") if one.kind == ONCE else one
            for one in mergers[0].threads[0]
        ]
        mergers[1] = msgspec.structs.replace(mergers[1], threads=(tuple(twin),))
    kinds = [kind for kind in UPKEEP if delta or kind == "repair"]
    if narrow and chance.random() < 0.4:
        # What one of them has landed another one is not shown by the replica that it alone does not see.
        mergers = [msgspec.structs.replace(one, blind=(place(chance.randint(1, NODES)),)) for one in mergers]
    others = (
        []
        if narrow
        else [
            Part("coordinator", "coordinator", skew=drawing.skew(2.0)),
            Part("operator", "operator", (_spread(drawing, seconds, OPERATIONS, 3.0, "n"),), drawing.skew(2.0)),
            Part("upkeep", "upkeep", (_spread(drawing, seconds, kinds, 1.5, ""),), drawing.skew(2.0)),
        ]
    )
    calm = chance.random() < 0.06
    sorts = (("kill", "pause"), ("access fails", "cut"), PROCESSES, PLACES, (*MOUNTS, "kill"), EVERYBODY)
    harms = [] if calm else drawing.some(chance.choice(sorts))
    victims = [part.name for part in mergers]
    places = [place(number) for number in range(1, NODES + 1)]
    faults = drawing.faults(seconds, harms, victims, [*places, ROOT], moments(rows=True, delta=delta))
    faults += [] if calm else _lying(chance, seconds, victims, (6, 12, 20) if narrow else (0, 1, 3, 6))
    settings = Settings(
        delta=delta,
        tablets=chance.choice([1, 1, 2, 0]),
        latency=chance.choice([0.2, 1.0, 5.0]),
        replication=3,
        racks=chance.choice([RACKS, ALL_APART]),
        session=chance.choice([1.5, 10.0]),
    )
    faults.sort(key=lambda fault: fault.at)
    return Scenario("merges", seed, seconds, settings, (*mergers, *others), tuple(faults))


def _unsure(drawing: Drawing, seed: int, theme: MergeTheme) -> Scenario:
    """One merger, whose entries are put at times without an answer, and who is refused at the root right after that;
    and vacuum all the time, which takes whatever nobody who lives may need.
    """
    chance, seconds = drawing.chance, round(drawing.chance.uniform(2.0, 3.0), 3)
    merger = Part("merger0", "merger", (_merges(drawing, seconds, [], 0.3, theme.kinds),))
    keeper = Part("upkeep", "upkeep", (_again(chance, "vacuum", seconds, 0.15),))
    faults = [
        Fault(
            LOST_ANSWER,
            0.0,
            merger.name,
            seconds=round(chance.uniform(0.02, 0.2), 3),
            number=0.05,
            when="journal entry link",
            nth=nth,
        )
        for nth in sorted(chance.sample(range(1, 10), chance.randint(2, 4)))
    ]
    settings = Settings(
        delta=True,
        tablets=chance.choice([1, 1, 2, 0]),
        latency=0.2,
        replication=3,
        racks=chance.choice([RACKS, ALL_APART]),
        session=1.5,
        clock_margin=0.0,
    )
    return Scenario("merges", seed, seconds, settings, (merger, keeper), tuple(faults))


def _again(chance: random.Random, kind: str, seconds: float, pace: float) -> tuple[Operation, ...]:
    """One operation again and again."""
    return tuple(Operation(kind, round(chance.uniform(pace / 4, pace), 3)) for _ in range(int(2 * seconds / pace)))


def _merges(
    drawing: Drawing, seconds: float, named: list[Operation], pace: float, kinds: Sequence[str]
) -> tuple[Operation, ...]:
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    while at < seconds and len(found) < 20:
        wait = round(chance.choice([0.0, chance.uniform(0.01, pace)]), 3)
        at += wait + 0.2
        kind = drawing.one(kinds)
        before = [one for one in named if kind == f"{one.kind} again"]
        if before:
            again = chance.choice(before)
            found.append(Operation(kind, wait, again.name, again.keys, again.level))
            continue
        kind = kind.removesuffix(" again")
        keys = tuple(sorted(chance.sample(range(KEYS), chance.choice([1, 1, 2, 3]))))
        level = chance.choice(["QUORUM", "QUORUM", "QUORUM", "ALL"]) if kind in ("merge", ONCE, OVERWRITE) else "QUORUM"
        found.append(Operation(kind, wait, drawing.name("m"), keys, level))
        if kind in NAMED:
            named.append(found[-1])
    return tuple(found)


def _spread(drawing: Drawing, seconds: float, kinds: Sequence[str], pace: float, prefix: str) -> tuple[Operation, ...]:
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    some = drawing.some(sorted(kinds))
    while True:
        wait = round(chance.uniform(pace / 16, pace), 3)
        at += wait
        if at >= seconds or len(found) == 12:
            return tuple(found)
        kind = drawing.one(some)
        number = chance.choice([1, 2, 4]) if kind == "resize" else chance.randrange(1000)
        name = f"{prefix}{chance.randint(1, NODES)}" if prefix else ""
        found.append(Operation(kind, wait, name, number=number, on=chance.random() < 0.5))


def _lying(chance: random.Random, seconds: float, victims: Sequence[str], counts: Sequence[int]) -> list[Fault]:
    """Mergers that are killed, or stand still for longer than their lease lives, in the midst of a merge."""
    return [
        Fault(
            chance.choice(["kill", "pause", "pause"]),
            round(chance.choice([0.0, chance.uniform(0, seconds * 0.3)]), 3),
            chance.choice(victims),
            seconds=round(chance.choice([0.5, 5.0, 30.0, 120.0]), 3),
            when=chance.choice(MOMENTS),
            nth=chance.randint(1, 16),
        )
        for _ in range(chance.choice(counts))
    ]
