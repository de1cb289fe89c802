"""Scenarios drawn from seeds: who does what, and what is done to them, all of it by chance.

`Weights` say how often what is drawn; a campaign changes them towards what was met least (coverage.py).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
from epochlake.jobs.testing.nemesis import DATA, EVERYBODY, MOUNTS, PLACES, PROCESSES, moments
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.world import ROOT

KEYS = 12
NODES = 4
RACKS = ("r1", "r2", "r3", "r1")
ALL_APART = ("r1", "r2", "r3", "r4")
WAITS = (0.0, 0.05, 1.0, 20.0, 60.0, 120.0)
"""Seconds that a call may wait."""

LOG_UPKEEP = ("compact log", "verify", "look back", "commit elsewhere")
"""What is done to the log of a cluster, beside commits."""

CROWD = 4
"""So many compact the log of a history at most."""

RESTORED = "old storage"
"""The fault by which a log goes back; an operator has to accept what is lost then."""

FLIPPED = "flipped bit"
SNAPSHOTS = f"{ROOT}/snapshots"
"""The fault by which snapshots are damaged, and where they are."""

DESTRUCTIVE = ("rebuild", "remove", "replace")
"""What operators do that gives up what a node has, as the loss of its storage does."""

OPERATIONS = (
    *("leave", "add", "maintenance", "balance", "resize", "cancel", "pause request", "move", "shift", "replication"),
    "come and go",
    *DESTRUCTIVE,
)
"""What operators do."""

UPKEEP = ("repair", "repair bytes", "compact", "vacuum", "compact log", "snapshot", "verify")
"""What is done to replicas, beside writing."""

ACCESSES = ("write", "write", "delete", "read", "read", "read late", "batch", "batch", "batch again")
"""What pipelines do."""

Weights = Mapping[str, float]


class _Drawing:
    def __init__(self, kind: str, seed: int, weights: Weights) -> None:
        self.chance = random.Random(repr(("scenario", kind, seed)))
        self._weights = weights
        self.names = 0

    def one(self, kinds: Sequence[str]) -> str:
        return self.chance.choices(kinds, [self._weights.get(kind, 1.0) for kind in kinds])[0]

    def some(self, kinds: Sequence[str]) -> list[str]:
        """A few of them, or all, so that histories differ in what they are about."""
        if self.chance.random() < 0.3:
            return sorted(kinds)
        count = self.chance.randint(1, min(4, len(kinds)))
        return sorted({self.one(kinds) for _ in range(count)})

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def skew(self, most: float) -> float:
        return self.chance.choice([0.0, 0.0, -most, most])

    def faults(
        self,
        seconds: float,
        kinds: Sequence[str],
        victims: Sequence[str],
        places: Sequence[str],
        moments: Sequence[str],
    ) -> list[Fault]:
        """Faults of these kinds; what destroys something strikes one place only, of the volumes.

        In most histories some lie in wait for moments, most of them for a few of these.
        """
        chance, found, at = self.chance, [], 0.0
        few = [self.one(moments) for _ in range(chance.randint(1, 4))] if chance.random() < 0.6 else []
        volumes = [place for place in places if place != ROOT]
        harmed = chance.choice(volumes) if volumes else ""
        mean = chance.choice([seconds / 3, seconds / 10, 1.0, 0.3, 0.1])
        while kinds:
            at += chance.expovariate(1 / mean)
            if at >= seconds:
                break
            kind = self.one(kinds)
            victim = chance.choice(victims) if kind in PROCESSES or kind in MOUNTS else ""
            place = harmed if kind in DATA else chance.choice(places) if kind in PLACES or kind in MOUNTS else ""
            fault = Fault(kind, round(at, 3), victim, place, *self._measure(kind))
            if kind == "access fails" or (few and kind not in DATA and chance.random() < 0.7):
                when = chance.choice(few) if few and chance.random() < 0.8 else self.one(moments)
                nobody = chance.random() < 0.5
                fault = msgspec.structs.replace(
                    fault,
                    at=chance.choice([0.0, fault.at]),
                    when=when,
                    nth=chance.choice([1, 1, 2, 3, 5, 8, 13]),
                    victim="" if nobody else victim,
                )
            found.append(fault)
        return found

    def _measure(self, kind: str) -> tuple[float, float]:
        """How long a fault lasts, and how much of it there is."""
        chance = self.chance
        match kind:
            case "pause":
                most = chance.choice([0.5, 5.0, 60.0, 3600.0])
                return round(chance.uniform(most / 10, most), 3), 0.0
            case "cut":
                return round(chance.choice([0.02, chance.uniform(0.1, 30.0)]), 3), 0.0
            case "clock jumps":
                return 0.0, chance.choice([-3600.0, -1.0, 1.0, 3600.0])
            case "server lags":
                return round(chance.uniform(0.5, 30.0), 3), chance.choice([0.05, 0.5, 5.0])
            case "no majority":
                return round(chance.uniform(0.1, 20.0), 3), 0.0
            case "disk away":
                return round(chance.uniform(0.1, 60.0), 3), chance.choice([errno.ENOENT, errno.EIO, errno.ESTALE])
            case "unreachable":
                return round(chance.choice([0.5, chance.uniform(0.1, 30.0)]), 3), 0.0
            case "disk hangs":
                return round(chance.choice([chance.uniform(1.0, 120.0), 3600.0]), 3), 0.0
            case "disk full":
                return round(chance.uniform(0.1, 30.0), 3), 0.0
            case "disk errors":
                return round(chance.uniform(0.1, 5.0), 3), chance.choice([0.01, 0.05, 0.2])
            case "old storage":
                return round(chance.uniform(0.5, 10.0), 3), 0.0
        return 0.0, 0.0


def log_scenario(seed: int, weights: Weights = {}) -> Scenario:  # noqa: B006
    """Processes that commit; on a real Delta table also others that compact and check it."""
    drawing = _Drawing("log", seed, weights)
    chance = drawing.chance
    delta = chance.random() < 0.3
    parts = []
    most = chance.choice([2, 4, 8, 12])
    hurried = chance.random() < 0.6
    ids: list[tuple[str, int]] = []
    for number in range(chance.randint(2, 4)):
        name = f"p{number}"
        threads = tuple(
            tuple(_commit(drawing, f"{name}-{thread}-{index}", ids, hurried=hurried) for index in range(most))
            for thread in range(chance.choice([1, 1, 1, 3]))
        )
        parts.append(Part(name, "commits", threads, drawing.skew(30.0)))
    crowded = delta and chance.random() < 0.3
    if delta:
        kinds, pace = drawing.some(LOG_UPKEEP), chance.choice([0.3, 5.0])
        if crowded:
            kinds, pace = ["compact log"], chance.choice([0.1, 0.3])
        for number in range(CROWD if crowded else chance.randint(1, 3)):
            waits = [round(chance.uniform(0, pace), 3) for _ in range(12 if crowded else chance.randint(1, 5))]
            operations = tuple(Operation(drawing.one(kinds), wait) for wait in waits)
            parts.append(Part(f"upkeep{number or ''}", "commits", (operations,)))
    seconds = round(chance.uniform(0.5, 30.0), 3)
    # Half of the histories are about faults of one sort, so that much of it comes together.
    sorts = [("no majority", "cut")] if crowded else [PROCESSES, EVERYBODY, PLACES + MOUNTS]
    kinds = drawing.some(chance.choice(sorts) if chance.random() < 0.5 else [kind for sort in sorts for kind in sort])
    restored = delta and chance.random() < 0.4
    if restored:
        # Of what the log and ZooKeeper have both forgotten nobody knows.
        kinds = [kind for kind in kinds if kind != "zookeeper forgets"]
        accepted = tuple(
            Operation("accept loss", round(chance.uniform(0, seconds), 3)) for _ in range(chance.randint(0, 2))
        )
        parts.append(Part("operator", "commits", (accepted,)))
    victims = [part.name for part in parts]
    faults = drawing.faults(seconds, kinds, victims, [ROOT, f"{ROOT}/log"], moments(rows=False, delta=delta))
    if restored:
        back = Fault(
            RESTORED,
            round(chance.uniform(0, seconds / 2), 3),
            place=chance.choice([ROOT, f"{ROOT}/log"]),
            seconds=round(chance.uniform(0.1, seconds / 2), 3),
        )
        faults = sorted([*faults, back], key=lambda fault: fault.at)
    snapshots = chance.choice([0, 3, 10]) if delta else 0
    if snapshots and chance.random() < 0.3:
        flips = [round(chance.uniform(0, seconds), 3) for _ in range(chance.randint(1, 3))]
        faults = sorted([*faults, *(Fault(FLIPPED, at, place=SNAPSHOTS) for at in flips)], key=lambda fault: fault.at)
    if any(fault.kind in (RESTORED, "zookeeper forgets") for fault in faults):
        # Where ZooKeeper does not know the root any more, or the root has gone, who comes first has it.
        parts = [_at_the_root(part) for part in parts]
    settings = Settings(
        delta=delta,
        snapshot_every=snapshots,
        compact_every=chance.choice([2, 4, 32]),
        latency=chance.choice([0.2, 1.0, 1.0, 10.0]),
    )
    return Scenario("log", seed, seconds, settings, tuple(parts), tuple(faults))


def _at_the_root(part: Part) -> Part:
    """Somebody who does not take a copy of the root for the cluster."""
    threads = tuple(
        tuple(msgspec.structs.replace(one, kind="verify") if one.kind == "commit elsewhere" else one for one in thread)
        for thread in part.threads
    )
    return msgspec.structs.replace(part, threads=threads)


def _commit(drawing: _Drawing, name: str, ids: list[tuple[str, int]], *, hurried: bool) -> Operation:
    chance = drawing.chance
    wait = 0.0 if hurried else chance.choice([0.0, 0.0, 0.1, 2.0])
    # Half of the changes are such that can be made in some states only.
    change, seconds = chance.choice([chance.randrange(6), chance.randrange(20)]), chance.choice(WAITS)
    kind = chance.choice(["commit"] * 6 + ["commit next", "reuse"])
    if kind == "reuse" and ids:
        # An id that somebody has already, for another change or for the same.
        name, before = chance.choice(ids)
        return Operation(kind, wait, name, number=chance.choice([change, before]), seconds=seconds)
    ids.append((name, change))
    return Operation("commit" if kind == "reuse" else kind, wait, name, number=change, seconds=seconds)


class Theme(NamedTuple):
    """What a history of rows is about: of which sorts operations, upkeep and faults are, and how fast all goes.

    `paces`: the longest waits of pipelines, and `operator_paces` of operators, in seconds; `sorts`: of faults.
    `sights`: what the machines of pipelines see of places, "all", "most", or those on their side of a partition.
    `keepers`: how many do upkeep, and `upkeep_paces` their longest waits. `lingering`: so often coordinators stand
    still, so that changes stay in the middle of what they do. `accesses`: what pipelines do, and how many there are.
    """

    seconds: tuple[float, float]
    tables: float
    keys: tuple[int, ...]
    paces: tuple[float, ...]
    operations: tuple[str, ...]
    operator_paces: tuple[float, ...]
    upkeep: tuple[str, ...]
    sorts: tuple[tuple[str, ...], ...]
    tablets: tuple[int, ...]
    sights: tuple[str, ...]
    replication: tuple[int, ...] = (3, 3, 3, 2)
    lingering: tuple[int, ...] = (0,)
    accesses: tuple[str, ...] = ACCESSES
    pipelines: tuple[int, int] = (1, 4)
    keepers: tuple[int, ...] = (1,)
    upkeep_paces: tuple[float, ...] = (6.0,)


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
    tables=0.0,
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
    tables=0.0,
    keys=(1, 1, 2),
    paces=(0.02, 0.3),
    operations=("shift",),
    operator_paces=(0.3, 1.0),
    upkeep=("snapshot",),
    sorts=(("pause",), ("pause", "server lags"), ("pause", "access fails"), ("pause", "cut")),
    tablets=(1,),
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
    seconds=(3.0, 8.0),
    tables=0.3,
    keys=(1, 2),
    paces=(0.05,),
    operations=("shift", "resize", "add"),
    operator_paces=(8.0,),
    upkeep=("repair", "snapshot"),
    sorts=(("old storage",), ("old storage", "pause"), DATA),
    tablets=(1, 1, 0),
    sights=("most", "most", "all"),
    replication=(3,),
)
"""Storage that comes back as it was before, while machines see most of it each."""


def row_scenario(seed: int, weights: Weights = {}) -> Scenario:  # noqa: B006
    """Pipelines, coordinators, operators and upkeep at one table."""
    drawing = _Drawing("rows", seed, weights)
    chance = drawing.chance
    theme = chance.choice([ANYTHING, ANYTHING, MOVING, MOVING, STRADDLING, STRADDLING, UPKEEPING, UPKEEPING, RESTORING])
    delta = chance.random() < theme.tables
    seconds = round(chance.uniform(*theme.seconds), 3)
    batches: list[Operation] = []
    append_only = chance.random() < 0.2
    kinds = [kind for kind in theme.accesses if not append_only or kind != "delete"]
    about = kinds if chance.random() < 0.5 else [*drawing.some(sorted({*kinds})), "write", "read"]
    keys, pace = chance.choice(theme.keys), chance.choice(theme.paces)
    places = [place(number) for number in range(1, NODES + 1)]
    unseen = _unseen(chance, places, chance.choice(theme.sights))
    parts = []
    for number in range(chance.randint(*theme.pipelines)):
        kinds = ["read"] if number and chance.random() < 0.3 else about
        accesses = _accesses(drawing, seconds, batches, kinds, keys, pace)
        parts.append(Part(f"pipeline{number}", "pipeline", (accesses,), drawing.skew(2.0), chance.choice(unseen)))
    parts += [
        Part(f"coordinator{number}", "coordinator", skew=drawing.skew(2.0)) for number in range(chance.randint(1, 2))
    ]
    parts.append(Part("operator", "operator", (_operations(drawing, seconds, theme),), drawing.skew(2.0)))
    kinds = [kind for kind in theme.upkeep if delta or kind not in ("vacuum", "compact log", "compact", "verify")]
    pace = chance.choice(theme.upkeep_paces)
    for number in range(chance.choice(theme.keepers)):
        name = f"upkeep{number or ''}"
        parts.append(Part(name, "upkeep", (_upkeep(drawing, seconds, kinds, pace),), drawing.skew(2.0)))
    # Half of the histories are about faults of one sort, so that much of it comes together.
    sorts = theme.sorts
    calm = chance.random() < 0.06
    harms = (
        []
        if calm
        else drawing.some(chance.choice(sorts) if chance.random() < 0.5 else [kind for sort in sorts for kind in sort])
    )
    victims = [part.name for part in parts]
    faults = drawing.faults(seconds, harms, victims, [*places, ROOT], moments(rows=True, delta=delta))
    faults = sorted([*faults, *_pauses(chance, seconds, parts, theme.lingering)], key=lambda fault: fault.at)
    destroyed = {fault.place for fault in faults if fault.kind in DATA} or {chance.choice(places)}
    parts = [_harming_one_place(part, destroyed) for part in parts]
    settings = Settings(
        delta=delta,
        tablets=chance.choice(theme.tablets),
        snapshot_every=chance.choice([0, 5]) if delta else 0,
        compact_every=chance.choice([4, 32]),
        latency=chance.choice([0.2, 1.0, 1.0, 5.0]),
        append_only=append_only,
        replication=chance.choice(theme.replication),
        racks=chance.choice([RACKS, ALL_APART]),
        clock_margin=chance.choice([5.0, 5.0, 300.0]) if delta else 300.0,
    )
    return Scenario("rows", seed, seconds, settings, tuple(parts), tuple(faults))


def _pauses(chance: random.Random, seconds: float, parts: Sequence[Part], counts: Sequence[int]) -> list[Fault]:
    """All coordinators stand still, a few times and each time at once."""
    coordinators = [part.name for part in parts if part.role == "coordinator"]
    times = [round(chance.uniform(0, seconds), 3) for _ in range(chance.choice(counts))]
    return [
        Fault("pause", at, name, seconds=round(chance.uniform(0.5, 3.0), 3)) for at in times for name in coordinators
    ]


def _unseen(chance: random.Random, places: Sequence[str], sight: str) -> list[tuple[str, ...]]:
    """What machines do not see: each of them has one of these."""
    match sight:
        case "most":
            return [(place,) for place in places]
        case "sides":
            one = tuple(sorted(chance.sample(places, 2)))
            return [one, tuple(place for place in places if place not in one)]
        case "few":
            return [tuple(sorted(chance.sample(places, 2))) for _ in range(4)]
    return [()]


def _harming_one_place(part: Part, destroyed: Collection[str]) -> Part:
    """An operator who gives up what a node has does so to the one whose storage faults destroy."""
    if part.role != "operator":
        return part
    [node] = (f"n{number}" for number in range(1, NODES + 1) if place(number) in destroyed)
    threads = tuple(
        tuple(msgspec.structs.replace(one, name=node) if one.kind in DESTRUCTIVE else one for one in thread)
        for thread in part.threads
    )
    return msgspec.structs.replace(part, threads=threads)


def place(number: int) -> str:
    """Where the volume of a node is."""
    return f"/disks/n{number}"


def _accesses(
    drawing: _Drawing,
    seconds: float,
    batches: list[Operation],
    kinds: Sequence[str],
    most_keys: int,
    pace: float,
) -> tuple[Operation, ...]:
    """`kinds`: what a pipeline does; `most_keys`: from how many keys it takes some; `pace`: its longest waits."""
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    while at < seconds and len(found) < 40:
        wait = round(chance.choice([0.0, 0.0, chance.uniform(0.01, pace)]), 3)
        at += wait + 0.3
        kind = drawing.one(kinds)
        if kind == "batch again" and batches:
            again = chance.choice(batches)
            found.append(Operation(kind, wait, again.name, again.keys, again.level))
            continue
        kind = "batch" if kind == "batch again" else kind
        count = chance.randint(1, min(4, most_keys))
        reads = kind.startswith("read")
        keys = tuple(sorted(chance.sample(range(most_keys), count))) if not reads else ()
        level = chance.choice(["QUORUM", "QUORUM", "QUORUM", "ONE"] if reads else ["QUORUM", "QUORUM", "ALL"])
        hold = round(chance.choice([1.0, 3.0, 10.0]) * chance.random(), 3) if kind == "read late" else 0.0
        found.append(Operation(kind, wait, drawing.name(kind[0]), keys, level, seconds=hold))
        if kind == "batch":
            batches.append(found[-1])
    return tuple(found)


def _operations(drawing: _Drawing, seconds: float, theme: Theme) -> tuple[Operation, ...]:
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
        number = chance.choice([1, 2, 4, 8]) if kind == "resize" else chance.randrange(1000)
        found.append(Operation(kind, wait, f"n{chance.randint(1, NODES)}", number=number, on=chance.random() < 0.5))


def _upkeep(drawing: _Drawing, seconds: float, kinds: Sequence[str], pace: float) -> tuple[Operation, ...]:
    chance, at = drawing.chance, 0.0
    found: list[Operation] = []
    kinds = drawing.some(kinds)
    while True:
        wait = round(chance.uniform(pace / 16, pace), 3)
        at += wait
        if at >= seconds or len(found) == 20:
            return tuple(found)
        found.append(Operation(drawing.one(kinds), wait, number=chance.randrange(4), on=chance.random() < 0.3))


KINDS: dict[str, tuple[str, ...]] = {
    "log": (*LOG_UPKEEP, *PROCESSES, *MOUNTS, *EVERYBODY, *PLACES),
    "rows": (*sorted({*ACCESSES}), *OPERATIONS, *UPKEEP, *PROCESSES, *MOUNTS, *EVERYBODY, *PLACES, *DATA),
}
"""All that is drawn by weights, by kinds of histories."""
