"""Histories of rows drawn from seeds: pipelines, coordinators, operators and upkeep, and what goes wrong meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from typing import TypeVar

import msgspec
from epochlake.jobs.testing.drawing import Drawing, Weights
from epochlake.jobs.testing.nemesis import DATA, EVERYBODY, MOUNTS, PLACES, PROCESSES, moments
from epochlake.jobs.testing.row_plots import LATENCY, PLOTS, Drawn
from epochlake.jobs.testing.row_themes import THEMES
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.themes import (
    ACCESSES,
    ALTER_TTL,
    ALTERATIONS,
    BAD_ROWS,
    DESTRUCTIVE,
    EXPIRING,
    KEYS,
    LIVES,
    OPERATIONS,
    OTHER_ROWS,
    PIPELINES,
    ROLLBACK,
    SHARED,
    SOME,
    TIMES_TO_LIVE,
    UPKEEP,
    WIDE,
    Lying,
    Theme,
)
from epochlake.jobs.testing.world import ROOT

MOST_FOLLOWED = 40
"""So often a follower of a history reads, at most, and so often its stream is kept up."""

MOST_SHARED = 20
"""So often small files of neighbouring ranges are put together, at most, and so often written."""

ON_TABLES = ("vacuum", "compact log", "compact", SOME, SHARED, "verify")
"""What upkeep does in histories over Delta tables only."""

_T = TypeVar("_T")


def row_scenario(seed: int, weights: Weights = {}, *, theme: Theme | None = None) -> Scenario:  # noqa: B006
    """Pipelines, coordinators, operators and upkeep at one table. `theme`: not a drawn one."""
    drawing = Drawing("rows", seed, weights)
    chance = drawing.chance
    theme = theme or chance.choice(THEMES)
    delta = chance.random() < theme.tables
    seconds = round(chance.uniform(*theme.seconds), 3)
    batches: list[Operation] = []
    append_only = chance.random() < theme.append_only
    # Of rows that are never replaced each has a note of its own.
    kinds = [kind for kind in theme.accesses if not append_only or kind not in ("delete", "write null")]
    about = kinds if chance.random() < 0.5 else [*drawing.some(sorted({*kinds})), "write", "read"]
    keys, pace = chance.choice(theme.keys), chance.choice(theme.paces)
    places = [place(number) for number in range(1, theme.nodes + 1)]
    sight = chance.choice(theme.sights)
    unseen = _unseen(chance, places, sight)
    parts = []
    for number in range(chance.randint(*theme.pipelines)):
        kinds = ["read"] if number and chance.random() < 0.3 else about
        threads = tuple(
            _accesses(drawing, seconds, batches, kinds, keys, pace, theme)
            for _ in range(_one_of(chance, theme.threads))
        )
        blind = unseen[number % len(unseen)] if sight == "pairs" else chance.choice(unseen)
        parts.append(Part(f"pipeline{number}", "pipeline", threads, drawing.skew(2.0), blind))
    if theme.twins and len(parts) > 1 and chance.random() < theme.twins:
        parts[1] = _twin(parts[0], parts[1])
    hidden = _unseen(chance, places, _one_of(chance, theme.coordinators_see))
    parts += [
        Part(f"coordinator{number}", "coordinator", skew=drawing.skew(2.0), blind=_one_of(chance, hidden))
        for number in range(chance.choice(theme.coordinators))
    ]
    parts.append(Part("operator", "operator", (_operations(drawing, seconds, theme),), drawing.skew(2.0)))
    kinds = [kind for kind in theme.upkeep if delta or kind not in ON_TABLES]
    pace = chance.choice(theme.upkeep_paces)
    for number in range(chance.choice(theme.keepers)):
        name = f"upkeep{number or ''}"
        blind = () if theme.keepers_see_all else chance.choice(unseen)
        parts.append(
            Part(name, "upkeep", (_upkeep(drawing, seconds, kinds, pace, theme.hasty),), drawing.skew(2.0), blind)
        )
    if any(theme.shared_file_bytes):
        parts += _sharing(seed, seconds, theme, append_only=append_only)
    # Half of the histories are about faults of one sort, so that much of it comes together.
    sorts = theme.sorts
    calm = chance.random() < 0.06
    of_sort = chance.choice(sorts) if sorts and chance.random() < 0.5 else [kind for sort in sorts for kind in sort]
    harms = [] if calm or not of_sort else drawing.some(of_sort)
    victims = [part.name for part in parts]
    faults = drawing.faults(seconds, harms, victims, [*places, ROOT], moments(rows=True, delta=delta))
    faults += _pauses(chance, seconds, parts, theme.lingering)
    faults += (
        [] if calm else [fault for lying in theme.lying for fault in _lying(chance, seconds, parts, places, lying)]
    )
    faults.sort(key=lambda fault: fault.at)
    destroyed = {fault.place for fault in faults if fault.kind in DATA} or {chance.choice(places)}
    parts = parts if theme.anywhere else [_harming_one_place(part, destroyed, theme.nodes) for part in parts]
    settings = Settings(
        delta=delta,
        tablets=chance.choice(theme.tablets),
        snapshot_every=chance.choice([0, 5]) if delta else 0,
        compact_every=chance.choice([4, 32]),
        latency=chance.choice([0.2, 1.0, 1.0, 5.0]),
        append_only=append_only,
        replication=chance.choice(theme.replication),
        racks=chance.choice(theme.racks),
        clock_margin=chance.choice(theme.clock_margins) if delta else 300.0,
        session=theme.session,
        barrier=_one_of(chance, theme.barriers),
        attempts=_one_of(chance, theme.attempts),
        ttl=_one_of(chance, theme.ttl),
        shared_file_bytes=_one_of(chance, theme.shared_file_bytes),
    )
    if settings.shared_file_bytes:
        # Much has to be written, and put together, and be as it is when something happens to it.
        settings = msgspec.structs.replace(settings, latency=LATENCY)
    scenario = Scenario("rows", seed, seconds, settings, tuple(parts), tuple(faults))
    if theme.plot:
        return PLOTS[theme.plot](Drawn(random.Random(f"plot {seed}"), scenario))
    # Drawn by themselves, so that what is drawn besides stays what it was.
    return with_changes(scenario, theme) if random.Random(f"changes {seed}").random() < theme.followed else scenario


def _twin(first: Part, second: Part) -> Part:
    """A pipeline that does what the first one does, at the same moments: the same batches, and writes like its."""
    threads = tuple(
        tuple(
            one if one.kind.startswith(("batch", "read")) else msgspec.structs.replace(one, name=f"{one.name}b")
            for one in thread
        )
        for thread in first.threads
    )
    return msgspec.structs.replace(second, threads=threads)


def _sharing(seed: int, seconds: float, theme: Theme, *, append_only: bool) -> list[Part]:
    """Who writes wide rows of all keys and small ones after them, and who puts the small files of neighbouring ranges
    together all the time. Both see all places.
    """
    chance = random.Random(f"sharing {seed}")
    everything = tuple(range(KEYS))
    kinds = (*["write"] * 4, *PIPELINES) if append_only else (*["write"] * 3, "delete", "delete", *PIPELINES)
    writes = [Operation(WIDE, name=f"s{number}", keys=everything, level="ALL") for number in range(2)]
    for number, wait in enumerate(_waits(chance, seconds, chance.choice(theme.upkeep_paces) / 2), 2):
        keys = tuple(sorted(chance.sample(everything, chance.choice((2, KEYS // 2, KEYS, KEYS)))))
        kind = chance.choice(kinds)
        if kind in PIPELINES:
            writes.append(Operation(kind, wait))
        else:
            writes.append(Operation(kind, wait, f"s{number}", keys, chance.choice(theme.levels)))
        if kind == "delete":
            # So that nobody lives who is older, and the delete may be forgotten.
            writes.append(Operation(chance.choice(PIPELINES)))
    compactions = [
        Operation(SHARED, wait, number=chance.randrange(4), on=chance.random() < theme.hasty)
        for wait in _waits(chance, seconds, chance.choice(theme.upkeep_paces))
    ]
    return [
        Part("pipeline9", "pipeline", (tuple(writes),)),
        Part("upkeep9", "upkeep", (tuple(compactions),), chance.choice([0.0, 0.0, -2.0, 2.0])),
    ]


def _waits(chance: random.Random, seconds: float, pace: float) -> list[float]:
    """Waits until so many seconds are over, each up to `pace`, of no more operations than there are in a part."""
    found: list[float] = []
    while sum(found) < seconds and len(found) < MOST_SHARED:
        found.append(round(chance.uniform(pace / 4, pace), 3))
    return found


def _one_of(chance: random.Random, among: Sequence[_T]) -> _T:
    """One of them; where there is a single one nothing is drawn, so what comes after it stays what it was."""
    return among[0] if len(among) == 1 else chance.choice(among)


def with_changes(scenario: Scenario, theme: Theme) -> Scenario:
    """The same history, with followers of the table's changes and upkeep of their stream, some of whom are killed."""
    chance = random.Random(f"followers {scenario.seed}")
    seconds = scenario.seconds
    parts = [
        Part(f"follower{number}", "follower", (_again(chance, "follow", seconds, theme.follower_paces, f"f{number}"),))
        for number in range(chance.choice(theme.followers))
    ]
    parts += [
        Part(f"settler{number}", "upkeep", (_again(chance, "keep up changes", seconds, theme.settler_paces),))
        for number in range(chance.choice(theme.settlers))
    ]
    writers = [part.name for part in scenario.parts if part.role == "pipeline"]
    moments = (
        *("shared link", "shared link, done", "shared write", "shared rename to, done", "shared delete"),
        "volume link, done",
    )
    faults = [
        Fault(
            chance.choice(["kill", "kill", "pause"]),
            round(chance.uniform(0, seconds), 3),
            chance.choice([*writers, *(part.name for part in parts)]),
            seconds=round(chance.uniform(0.5, 4.0), 3),
            when=chance.choice(moments),
            nth=chance.choice([1, 1, 2, 3]),
        )
        for _ in range(chance.choice([0, 1, 2, 4]) if scenario.faults else 0)
    ]
    faults += [fault for lying in theme.lying_to_followers for fault in _lying(chance, seconds, parts, (), lying)]
    settings = msgspec.structs.replace(scenario.settings, changes=chance.choice(theme.changes))
    return msgspec.structs.replace(
        scenario,
        settings=settings,
        parts=(*scenario.parts, *parts),
        faults=tuple(sorted((*scenario.faults, *faults), key=lambda fault: fault.at)),
    )


def _again(
    chance: random.Random, kind: str, seconds: float, paces: Sequence[float], name: str = ""
) -> tuple[Operation, ...]:
    """One operation again and again."""
    pace = chance.choice(paces)
    count = min(MOST_FOLLOWED, int(2 * seconds / pace) + 1)
    return tuple(Operation(kind, round(chance.uniform(0.01, pace), 3), name) for _ in range(count))


def _pauses(chance: random.Random, seconds: float, parts: Sequence[Part], counts: Sequence[int]) -> list[Fault]:
    """All coordinators stand still, a few times and each time at once."""
    coordinators = [part.name for part in parts if part.role == "coordinator"]
    times = [round(chance.uniform(0, seconds), 3) for _ in range(chance.choice(counts))]
    return [
        Fault("pause", at, name, seconds=round(chance.uniform(0.5, 3.0), 3)) for at in times for name in coordinators
    ]


def _lying(
    chance: random.Random, seconds: float, parts: Sequence[Part], places: Sequence[str], lying: Lying
) -> list[Fault]:
    """Faults of a theme that lie in wait."""
    victims = [part.name for part in parts if part.role in lying.roles]
    comers = [part.name for part in parts if part.role in lying.by]
    place = chance.choice(places) if {*lying.kinds} & {*PLACES, *DATA, *MOUNTS} else ""
    few = [(chance.choice(lying.moments), chance.choice(lying.during)) for _ in range(chance.randint(1, 3))]
    return [
        Fault(
            chance.choice(lying.kinds),
            round(chance.uniform(0, seconds * lying.early), 3),
            chance.choice(victims),
            place,
            round(chance.uniform(*lying.seconds), 3),
            lying.number,
            when=when,
            nth=chance.choice([1, 1, 1, 2, 2, 3] if during else [1, 1, 2, 3, 5, 8]),
            during=during,
            by=chance.choice(comers) if comers else "",
        )
        for when, during in chance.choices(few, k=chance.choice(lying.counts))
    ]


def _unseen(chance: random.Random, places: Sequence[str], sight: str) -> list[tuple[str, ...]]:
    """What machines do not see: each of them has one of these."""
    match sight:
        case "most":
            return [(place,) for place in places]
        case "sides":
            one = tuple(sorted(chance.sample(places, 2)))
            return [one, tuple(place for place in places if place not in one)]
        case "pairs":
            return chance.sample(pairs := [*itertools.combinations(places, 2)], len(pairs))
        case "few":
            return [tuple(sorted(chance.sample(places, 2))) for _ in range(4)]
    return [()]


def _harming_one_place(part: Part, destroyed: Collection[str], nodes: int) -> Part:
    """An operator who gives up what a node has does so to one whose storage faults destroy."""
    if part.role != "operator":
        return part
    node = next(f"n{number}" for number in range(1, nodes + 1) if place(number) in destroyed)
    threads = tuple(
        tuple(msgspec.structs.replace(one, name=node) if one.kind in DESTRUCTIVE else one for one in thread)
        for thread in part.threads
    )
    return msgspec.structs.replace(part, threads=threads)


def place(number: int) -> str:
    """Where the volume of a node is."""
    return f"/disks/n{number}"


def _accesses(
    drawing: Drawing,
    seconds: float,
    batches: list[Operation],
    kinds: Sequence[str],
    most_keys: int,
    pace: float,
    theme: Theme,
) -> tuple[Operation, ...]:
    """`kinds`: what a pipeline does; `most_keys`: from how many keys it takes some; `pace`: its longest waits."""
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    while at < seconds and len(found) < 40:
        wait = round(chance.choice([0.0, 0.0, chance.uniform(0.01, pace)]), 3)
        at += wait + 0.3
        kind = drawing.one(kinds)
        if kind in ("batch again", OTHER_ROWS) and batches:
            again = chance.choice(batches)
            found.append(Operation(kind, wait, again.name, again.keys, again.level))
            continue
        if kind in PIPELINES:
            found.append(Operation(kind, wait))
            continue
        kind = "batch" if kind in ("batch again", OTHER_ROWS) else kind
        count = chance.randint(1, min(4, most_keys))
        reads = kind.startswith("read")
        keys = tuple(sorted(chance.sample(range(most_keys), count))) if not reads else ()
        level = chance.choice(theme.read_levels if reads else theme.levels)
        lives = chance.choice(LIVES) if kind == EXPIRING else 0.0
        hold = round(chance.choice(theme.holds) * chance.random(), 3) if kind == "read late" else 0.0
        found.append(Operation(kind, wait, drawing.name(kind[0]), keys, level, seconds=hold or lives))
        if kind == "batch":
            batches.append(found[-1])
    return tuple(found)


def _operations(drawing: Drawing, seconds: float, theme: Theme) -> tuple[Operation, ...]:
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    kinds = theme.operations if chance.random() < 0.5 else drawing.some(sorted({*theme.operations}))
    pace = chance.choice(theme.operator_paces)
    while True:
        wait = round(chance.uniform(pace / 16, pace), 3)
        at += wait
        if at >= seconds or len(found) == 20:
            return tuple(found)
        kind = drawing.one(kinds)
        counts = {"resize": (1, 2, 4, 8), "replicas": theme.replicas, ALTER_TTL: TIMES_TO_LIVE}.get(kind, range(1000))
        node = f"n{chance.randint(1, theme.nodes)}"
        level = chance.choice(("QUORUM", "ALL")) if kind == ROLLBACK else ""
        found.append(Operation(kind, wait, node, (), level, chance.choice(counts), chance.random() < 0.5))


def _upkeep(drawing: Drawing, seconds: float, kinds: Sequence[str], pace: float, hasty: float) -> tuple[Operation, ...]:
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    kinds = drawing.some(kinds)
    while True:
        wait = round(chance.uniform(pace / 16, pace), 3)
        at += wait
        if at >= seconds or len(found) == 20:
            return tuple(found)
        found.append(Operation(drawing.one(kinds), wait, number=chance.randrange(4), on=chance.random() < hasty))


KINDS = (
    *sorted({*ACCESSES}),
    WIDE,
    SOME,
    *PIPELINES,
    *BAD_ROWS,
    *OPERATIONS,
    *ALTERATIONS,
    ROLLBACK,
    *UPKEEP,
    *PROCESSES,
    *MOUNTS,
    *EVERYBODY,
    *PLACES,
    *DATA,
)
"""All that is drawn by weights."""
