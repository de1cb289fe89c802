"""Drawing of histories in which commits count on a majority of log members: who changes these, and what goes wrong.

Storage is destroyed at the root and at a few directories only, of which no set of members has more than it can lose;
while the root is to be restored nothing else keeps anybody from the members that are left then, so that it is restored.
In histories of wiped members it is more than that, and others are away: then a recovery may be refused.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from epochlake.jobs.testing.disk import ROOT
from epochlake.jobs.testing.drawing import Drawing
from epochlake.jobs.testing.log_themes import LogTheme
from epochlake.jobs.testing.member_plots import PLOTS, Drawn, Plot
from epochlake.jobs.testing.nemesis import PLACES, PROCESSES
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.world import DIRECTORIES, member

CHANGES = ("reconfigure", "reconfigure", "reconfigure", "resume members", "cancel members", "describe members")
"""What operators do with the members."""

SIZES = (3, 3, 3, 5, 4, 2)

MOST_LOST = 2
"""So many directories are lost at most where a set can lose them."""


def scenario_with_members(
    drawing: Drawing, theme: LogTheme, seed: int, parts: Sequence[Part], *, delta: bool
) -> Scenario:
    """The committers of a theme, operators beside them, and faults of the theme at the members and the root."""
    chance = drawing.chance
    seconds = round(chance.uniform(*theme.seconds), 3)
    if theme.plot:
        appended, copied = ("log link", "copy link") if delta else ("log append", "member append")
        plot = PLOTS[theme.plot](Drawn(chance, seconds, parts, appended, copied))
        return _scenario(chance, theme, seed, seconds, plot, delta=delta)
    few, many = theme.wiped
    doomed = chance.sample(range(1, DIRECTORIES + 1), chance.choice([few, few, many]))
    first = _members(chance, doomed)
    loses_root = chance.random() < theme.restored
    operators = [
        Part(f"operator{number}", "members", (_changes(drawing, theme, doomed, loses_root=loses_root),))
        for number in range(chance.randint(*theme.operators))
    ]
    everybody = [*parts, *operators]
    faults = _of_the_theme(drawing, theme, seconds, everybody, loses_root=loses_root)
    if not delta:
        # A log in memory knows nothing of what was not synced.
        faults = [fault for fault in faults if fault.kind != "power cut"]
    faults += _destroying(chance, theme, seconds, doomed, [part.name for part in parts], loses_root=loses_root)
    return _scenario(chance, theme, seed, seconds, Plot(first, everybody, faults), delta=delta)


def _scenario(
    chance: random.Random, theme: LogTheme, seed: int, seconds: float, plot: Plot, *, delta: bool
) -> Scenario:
    settings = Settings(
        delta=delta,
        members=plot.members,
        session=plot.session,
        snapshot_every=chance.choice(theme.snapshots) if delta else 0,
        compact_every=chance.choice(theme.compacting),
        latency=chance.choice(theme.latencies),
        log_checkpoints=chance.choice(theme.checkpoints),
    )
    faults = sorted(plot.faults, key=lambda fault: fault.at)
    return Scenario("log", seed, seconds, settings, tuple(plot.parts), tuple(faults))


def _members(chance: random.Random, doomed: Collection[int]) -> tuple[int, ...]:
    """A set of directories, whose majority is left when the doomed ones are gone if these are as few as it can lose."""
    while True:
        found = chance.sample(range(1, DIRECTORIES + 1), chance.choice(SIZES))
        if len(doomed) > MOST_LOST or len({*found} & {*doomed}) <= (len(found) - 1) // 2:
            return tuple(sorted(found))


def _changes(drawing: Drawing, theme: LogTheme, doomed: Collection[int], *, loses_root: bool) -> tuple[Operation, ...]:
    chance, pace = drawing.chance, drawing.chance.choice(theme.upkeep_paces)
    found = []
    for _ in range(chance.randint(*theme.chores)):
        kind = "recover" if loses_root and chance.random() < 0.5 else drawing.one(CHANGES)
        keys = _members(chance, doomed) if kind == "reconfigure" else ()
        found.append(Operation(kind, round(chance.uniform(0, pace), 3), keys=keys))
    return tuple(found)


def _of_the_theme(
    drawing: Drawing, theme: LogTheme, seconds: float, parts: Sequence[Part], *, loses_root: bool
) -> list[Fault]:
    """Faults of one sort, most of which lie in wait where somebody works at a copy or at the log."""
    chance = drawing.chance
    kinds = chance.choice(theme.sorts)
    if loses_root and theme.wiped[0] <= MOST_LOST:
        kinds = tuple(kind for kind in kinds if kind in ("kill", "pause", "cut"))
    few = [chance.choice(theme.moments) for _ in range(chance.randint(1, 3))]
    found = []
    for _ in range(chance.choice(theme.counts) if kinds else 0):
        kind, at = drawing.one(kinds), chance.choice([0.0, round(chance.uniform(0, seconds), 3)])
        waits = kind == "access fails" or chance.random() < theme.lurks
        victim = chance.choice(parts).name if kind in PROCESSES and (not waits or chance.random() < 0.6) else ""
        place = member(chance.randint(1, DIRECTORIES)) if kind in PLACES else ""
        long, much = round(chance.uniform(*chance.choice(theme.lengths)), 3), 0.0
        if kind in PLACES:
            much = {"disk away": 2.0, "disk errors": 0.1}.get(kind, 0.0)
        when = chance.choice(few) if waits else ""
        found.append(Fault(kind, at, victim, place, long, much, when, chance.choice([1, 1, 2, 3, 5]) if waits else 1))
    return found


def _destroying(
    chance: random.Random,
    theme: LogTheme,
    seconds: float,
    doomed: Sequence[int],
    committers: Sequence[str],
    *,
    loses_root: bool,
) -> list[Fault]:
    """The root goes, or comes back as it was, and so do directories that are doomed."""
    places = [ROOT] if loses_root else []
    places += [member(number) for number in doomed if chance.random() < theme.flipped]
    found = []
    for place in places:
        # A root that goes back together with its members is known by ZooKeeper alone.
        kinds = ["lost storage"] if place == ROOT and len(doomed) > MOST_LOST else ["lost storage", "old storage"]
        kind, at = chance.choice(kinds), round(chance.uniform(0, seconds * 0.8), 3)
        if theme.unannounced and place == ROOT:
            # The first of three members is written to: the others have been asked what they have promised by then.
            who, when, nth = chance.choice(committers), chance.choice(theme.moments), chance.choice([1, 4, 7, 10])
            long = round(chance.uniform(*chance.choice(theme.lengths)), 3)
            found.append(Fault("lost storage", 0.0, place=ROOT, when=when, nth=nth, by=who))
            found.append(Fault("pause", 0.0, who, seconds=long, when=when, nth=nth))
            continue
        found.append(Fault(kind, at, place=place, seconds=round(chance.uniform(0.2, seconds / 3), 3)))
    return found
