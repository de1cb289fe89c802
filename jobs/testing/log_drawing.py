"""Histories of commits drawn from seeds: who commits and how, and what goes wrong meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from epochlake.jobs.testing.drawing import Drawing, Weights
from epochlake.jobs.testing.log_plots import PLOTS, Drawn
from epochlake.jobs.testing.log_themes import LOG_THEMES, LOG_UPKEEP, LogTheme
from epochlake.jobs.testing.member_drawing import scenario_with_members
from epochlake.jobs.testing.nemesis import EVERYBODY, MOUNTS, PLACES, PROCESSES, moments
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.world import ROOT

CROWD = 4
"""So many compact the log of a history at most."""

LASTING = ("pause", "cut", "server lags", "no majority")
"""Faults that themes give their lengths."""

RESTORED = "old storage"
"""The fault by which a log goes back; an operator has to accept what is lost then."""

SNAPSHOT_FAULTS = ("flipped bit", "other snapshot")
SNAPSHOTS = f"{ROOT}/snapshots"
"""The faults by which snapshots are damaged, and where they are."""


def log_scenario(seed: int, weights: Weights = {}, *, theme: LogTheme | None = None) -> Scenario:  # noqa: B006
    """Processes that commit; on a real Delta table also others that compact and check it. `theme`: not a drawn one."""
    drawing = Drawing("log", seed, weights)
    chance = drawing.chance
    theme = theme or chance.choice(LOG_THEMES)
    delta = chance.random() < theme.tables
    if theme.plot and not theme.operators[1]:
        return _of_a_plot(drawing, theme, seed, delta=delta)
    parts = _committers(drawing, theme)
    if theme.operators[1]:
        return scenario_with_members(drawing, theme, seed, parts, delta=delta)
    crowded = delta and chance.random() < theme.crowded
    if delta:
        parts += _keepers(drawing, theme, crowded=crowded)
    seconds = round(chance.uniform(*theme.seconds), 3)
    restored = delta and chance.random() < theme.restored
    if restored:
        waits = [round(chance.uniform(0, seconds), 3) for _ in range(chance.randint(*theme.accepting))]
        if theme.accepting[0]:
            waits = [round(wait / len(waits), 3) for wait in waits]  # they come one after the other
        parts.append(Part("operator", "commits", (tuple(Operation("accept loss", wait) for wait in waits),)))
    victims = [part.name for part in parts]
    faults = (
        _lying_in_wait(drawing, theme, seconds, victims)
        if theme.sorts
        else _anything(drawing, seconds, victims, delta=delta, crowded=crowded)
    )
    if restored:
        # Of what the log and ZooKeeper have both forgotten nobody knows.
        faults = [fault for fault in faults if fault.kind != "zookeeper forgets"]
        back = Fault(
            RESTORED,
            round(chance.uniform(0, seconds / 2), 3),
            place=chance.choice([ROOT, f"{ROOT}/log"]),
            seconds=round(chance.uniform(0.1, seconds / 2), 3),
        )
        faults += _dying_with_it(chance, theme, back) if theme.unannounced else [back]
        faults += [_once_more(chance, back, seconds) for _ in range(theme.backs - 1)]
    snapshots = chance.choice(theme.snapshots) if delta else 0
    if snapshots and chance.random() < theme.flipped:
        faults += _harms(drawing, SNAPSHOT_FAULTS, SNAPSHOTS, chance.randint(*theme.harms), (0.0, seconds))
    if delta and theme.damages:
        faults += _harms(
            drawing, theme.damages, f"{ROOT}/log", chance.randint(*theme.damaged), (theme.damaged_from, seconds)
        )
    faults = sorted(faults, key=lambda fault: fault.at)
    if any(fault.kind in (RESTORED, "zookeeper forgets") for fault in faults):
        # Where ZooKeeper does not know the root any more, or the root has gone, who comes first has it.
        parts = [_at_the_root(part) for part in parts]
    settings = Settings(
        delta=delta,
        snapshot_every=snapshots,
        compact_every=chance.choice(theme.compacting),
        latency=chance.choice(theme.latencies),
        log_checkpoints=chance.choice(theme.checkpoints),
        deadline=chance.choice(theme.deadlines),
    )
    return Scenario("log", seed, seconds, settings, tuple(parts), tuple(faults))


def _of_a_plot(drawing: Drawing, theme: LogTheme, seed: int, *, delta: bool) -> Scenario:
    """A history of one moment."""
    chance = drawing.chance
    seconds = round(chance.uniform(*theme.seconds), 3)
    plot = PLOTS[theme.plot](Drawn(chance, seconds, "log link" if delta else "log append"))
    parts = list(plot.parts)
    if any(fault.kind == RESTORED for fault in plot.faults):
        waits = [round(chance.uniform(*theme.upkeep_paces), 3) for _ in range(chance.randint(*theme.accepting))]
        parts.append(Part("operator", "commits", (tuple(Operation("accept loss", wait) for wait in waits),)))
    settings = Settings(delta=delta, latency=chance.choice(theme.latencies))
    settings = msgspec.structs.replace(settings, **plot.settings)
    faults = sorted(plot.faults, key=lambda fault: fault.at)
    return Scenario("log", seed, seconds, settings, tuple(parts), tuple(faults))


def _dying_with_it(chance: random.Random, theme: LogTheme, back: Fault) -> list[Fault]:
    """The log goes back to right before an append, soon, and whoever has appended is dead by then."""
    nth = chance.choice([1, 2, 3])
    at = msgspec.structs.replace(back, when="log link", nth=nth, seconds=round(chance.uniform(*theme.lengths[0]), 3))
    return [at, Fault("kill", back.at, when="log link, done", nth=nth)]


def _once_more(chance: random.Random, back: Fault, seconds: float) -> Fault:
    """The log goes back again: to the same time as before in some histories, and to a later one in others."""
    went = back.at + back.seconds
    at = chance.choice([back.at, chance.uniform(back.at, went), went + 1.0])
    again = went + chance.uniform(1.5, seconds / 2) - at
    return msgspec.structs.replace(back, at=round(at, 3), seconds=round(again, 3))


def _anything(drawing: Drawing, seconds: float, victims: Sequence[str], *, delta: bool, crowded: bool) -> list[Fault]:
    """Faults of all sorts, or in half of the histories of one, so that much of it comes together."""
    sorts = [("no majority", "cut")] if crowded else [PROCESSES, EVERYBODY, PLACES + MOUNTS]
    one = drawing.chance.random() < 0.5
    kinds = drawing.some(drawing.chance.choice(sorts) if one else [kind for sort in sorts for kind in sort])
    return drawing.faults(seconds, kinds, victims, [ROOT, f"{ROOT}/log"], moments(rows=False, delta=delta))


def _lying_in_wait(drawing: Drawing, theme: LogTheme, seconds: float, victims: Sequence[str]) -> list[Fault]:
    """Faults of one sort of a theme; most of them wait at a few of its moments for those who come there."""
    chance, kinds = drawing.chance, drawing.chance.choice(theme.sorts)
    few = [chance.choice(theme.moments) for _ in range(chance.randint(1, 3) if theme.moments else 0)]
    found = []
    for _ in range(chance.choice(theme.counts) if kinds else 0):
        kind, at = drawing.one(kinds), chance.choice([0.0, round(chance.uniform(0, seconds), 3)])
        long = round(chance.uniform(*chance.choice(theme.lengths)), 3) if kind in LASTING else 0.0
        by = 0.5 if kind == "server lags" else 0.0
        waits = kind == "access fails" or chance.random() < theme.lurks
        victim = chance.choice(victims) if kind in PROCESSES and (not waits or chance.random() < 0.5) else ""
        when = chance.choice(theme.lurking.get(kind, few)) if waits else ""
        found.append(Fault(kind, at, victim, "", long, by, when, chance.choice([1, 1, 2, 3, 5]) if waits else 1))
    return sorted(found, key=lambda fault: fault.at)


def _harms(drawing: Drawing, kinds: Sequence[str], place: str, count: int, between: tuple[float, float]) -> list[Fault]:
    """So many faults of a place."""
    chance = drawing.chance
    return [Fault(chance.choice(kinds), round(chance.uniform(*between), 3), place=place) for _ in range(count)]


def _keepers(drawing: Drawing, theme: LogTheme, *, crowded: bool) -> list[Part]:
    """Who does what else there is to do to the log."""
    chance = drawing.chance
    kinds, pace = drawing.some(theme.upkeep), chance.choice(theme.upkeep_paces)
    if crowded:
        kinds, pace = ["compact log"], chance.choice([0.1, 0.3])
    parts = []
    for number in range(CROWD if crowded else chance.randint(*theme.keepers)):
        waits = [round(chance.uniform(0, pace), 3) for _ in range(12 if crowded else chance.randint(*theme.chores))]
        operations = tuple(Operation(drawing.one(kinds), wait) for wait in waits)
        parts.append(Part(f"upkeep{number or ''}", "commits", (operations,)))
    return parts


def _committers(drawing: Drawing, theme: LogTheme) -> list[Part]:
    """Processes that commit, and who of them asks for the same."""
    chance, ids = drawing.chance, list[tuple[str, int]]()
    most, shared = chance.choice(theme.commits), chance.choice(theme.shared)
    hurried = chance.random() < 0.6
    pace = chance.choice(theme.paces) if theme.paces else 0.0 if hurried else 2.0
    together = chance.random() < theme.together
    parts: list[Part] = []
    for number in range(chance.randint(*theme.processes)):
        name, count = f"p{number}", chance.choice(theme.threads)
        threads = [
            [_commit(drawing, f"{name}-{thread}-{index}", ids, theme, pace, together=together) for index in range(most)]
            for thread in range(count)
        ]
        if shared == "again":
            threads = [[_another_try(drawing, one, n, theme, pace) for one in ops for n in range(2)] for ops in threads]
        elif shared == "threads":
            threads = [[_another_try(drawing, one, n, theme, 0.0) for one in threads[0]] for n in range(max(2, count))]
        elif shared == "processes" and parts:
            threads = [[_another_try(drawing, one, 1, theme, 0.0) for one in ops] for ops in parts[0].threads]
        if theme.unread and chance.random() < theme.unread:
            threads = [[msgspec.structs.replace(one, on=True) for one in ops] for ops in threads]
        parts.append(Part(name, "commits", tuple(map(tuple, threads)), drawing.skew(30.0)))
    return parts


def _another_try(drawing: Drawing, operation: Operation, number: int, theme: LogTheme, pace: float) -> Operation:
    """The same request, sooner or later; the first one is as it is."""
    if not number:
        return operation
    chance = drawing.chance
    wait = round(chance.choice([0.0, chance.uniform(0, 0.05), chance.uniform(0, max(1.0, pace))]), 3)
    return msgspec.structs.replace(operation, kind="reuse", wait=wait, seconds=chance.choice(theme.waits))


def _at_the_root(part: Part) -> Part:
    """Somebody who does not take a copy of the root for the cluster."""
    threads = tuple(
        tuple(msgspec.structs.replace(one, kind="verify") if one.kind == "commit elsewhere" else one for one in thread)
        for thread in part.threads
    )
    return msgspec.structs.replace(part, threads=threads)


def _commit(
    drawing: Drawing, name: str, ids: list[tuple[str, int]], theme: LogTheme, pace: float, *, together: bool
) -> Operation:
    chance = drawing.chance
    wait = pace if together else chance.choice([0.0, 0.0, min(0.1, pace), pace])
    # Half of the changes are such that can be made in some states only.
    change = chance.choice(theme.numbers or (chance.randrange(6), chance.randrange(20)))
    seconds = chance.choice(theme.waits)
    kind = chance.choice(["commit"] * 6 + ["commit next", "reuse"])
    if kind == "reuse" and ids:
        # An id that somebody has already, for another change or for the same.
        name, before = chance.choice(ids)
        return Operation(kind, wait, name, number=chance.choice([change, before]), seconds=seconds)
    ids.append((name, change))
    return Operation("commit" if kind == "reuse" else kind, wait, name, number=change, seconds=seconds)


KINDS = (*LOG_UPKEEP, "catch up", "heal log", *PROCESSES, *MOUNTS, *EVERYBODY, *PLACES)
"""All that is drawn by weights."""
