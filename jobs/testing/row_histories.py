"""Histories of rows: pipelines write, delete and read while nodes join, leave and die, and what they must be shown.

The checker knows calls, when they began and ended, and what they said; nothing of replicas, files or placement.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.testing.nemesis import Nemesis
from epochlake.jobs.testing.rows import COLUMNS, WorldRows, merge_in, shown
from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.world import World
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.errors import EpochlakeError

TABLE = "air.flights"
KEYS = 12
NODES = 4
RACKS = ("r1", "r2", "r3", "r1")


class Access(NamedTuple):
    """One write, delete (note None) or read of keys. `acknowledged`: it was told that it has succeeded.

    `began` and `ended` are steps of the scheduler: its clock stands still while somebody can go on.
    """

    kind: str
    who: str
    began: float
    ended: float
    acknowledged: bool
    notes: dict[int, str | None]
    twice: tuple[int, ...] = ()
    error: str = ""


class RowHistory(NamedTuple):
    """What a world did with rows, and what was done to it."""

    seed: int
    accesses: list[Access]
    steps: int
    harm: Counter[str]
    outcomes: Counter[str]
    unexpected: list[str]


def place(number: int) -> str:
    """Where the volume of a node is."""
    return f"/disks/n{number}"


def row_history(seed: int, *, kinds: Sequence[str] | None = None) -> RowHistory:
    """Let pipelines, coordinators, repairs and compactions work on one table while a nemesis is at work; then heal the
    world, let all come to its end, repair, and read everything.
    """
    chance = random.Random(repr(("row history", seed)))
    with World(seed) as world:
        world.found()
        accesses: list[Access] = []
        outcomes: Counter[str] = Counter()
        unexpected: list[str] = []
        _set_up(world, chance)
        live: list[Process] = []
        stopping = [False]

        def start(name: str, work: Callable[[Cluster, Process], None]) -> None:
            process = world.process(name, skew=chance.choice([0.0, 0.0, -2.0, 2.0]))
            live.append(process)
            works[name] = work
            world.run(process, partial(_work, world, process, work, outcomes, unexpected, stopping))

        def replace(dead: Process) -> None:
            if not stopping[0]:
                start(f"{dead.name}'", works[dead.name])

        works: dict[str, Callable[[Cluster, Process], None]] = {}
        for number in range(chance.randint(1, 3)):
            start(f"pipeline{number}", partial(_access, world, accesses, stopping))
        for number in range(chance.randint(1, 2)):
            start(f"coordinator{number}", partial(_coordinate, stopping))
        start("operator", partial(_operate, world, random.Random(repr((seed, "operator"))), stopping))
        start("upkeep", partial(_keep_up, world, random.Random(repr((seed, "upkeep"))), stopping))
        nemesis = Nemesis(
            world,
            lambda: live,
            places=[place(number) for number in range(1, NODES + 1)],
            replace=replace,
            mean_seconds=chance.choice([0.5, 2.0, 10.0]),
            kinds=kinds,
        )

        def end() -> None:
            stopping[0] = True
            nemesis.stop()

        nemesis.begin()
        world.scheduler.after(chance.uniform(2.0, 15.0), end, world.processes[0])
        world.scheduler.run(lambda: nemesis.is_stopped and all(actor.done for actor in world.actors))
        unexpected += [f"{actor.name}: {actor.error!r}" for actor in world.scheduler.failed]
        _come_to_rest(world, accesses, unexpected)
        return RowHistory(seed, accesses, world.scheduler.steps, nemesis.done, outcomes, unexpected)


def _set_up(world: World, chance: random.Random) -> None:
    def prepare() -> None:
        process = world.scheduler.current.process
        for number in range(1, NODES + 1):
            world.storage(process).create_directory(place(number), parents=True)
        with world.cluster(process) as cluster:
            for number in range(1, NODES + 1):
                volume = ("d1", place(number), 10**12)
                administration.add_node(cluster, f"n{number}", "dc1", RACKS[number - 1], [volume])
            Coordinator(cluster).run(until_idle=True)
            kind = chance.choice([PlacementKind.TABLETS, PlacementKind.RING])
            administration.create_keyspace(cluster, "air", {"dc1": 3}, placement=kind)
            tablets = None if kind is PlacementKind.RING else chance.choice([1, 2, 4])
            administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=tablets)

    actor = world.run(world.process("founder of tables"), prepare)
    world.until_done(actor)
    if actor.error is not None:
        raise actor.error


def _work(
    world: World,
    process: Process,
    work: Callable[[Cluster, Process], None],
    outcomes: Counter[str],
    unexpected: list[str],
    stopping: list[bool],
) -> None:
    """Work until the end, over all errors that Epochlake says; others are defects."""
    while not stopping[0]:
        try:
            with world.cluster(process) as cluster:
                while not stopping[0]:
                    work(cluster, process)
        except EpochlakeError as error:
            outcomes[f"{process.name.rstrip(chr(39))}: {type(error).__name__}"] += 1
            world.scheduler.sleep(0.5)
        except Exception as error:
            unexpected.append(f"{process.name}: {error!r}")
            raise


def _access(world: World, accesses: list[Access], stopping: list[bool], cluster: Cluster, process: Process) -> None:
    chance = random.Random(repr((world.seed, process.name, len(accesses))))
    with Gate(cluster, process.name) as gate:
        for _ in range(chance.randint(1, 6)):
            if stopping[0]:
                return
            keys = chance.sample(range(KEYS), chance.randint(1, 4))
            match chance.choice(["write", "write", "delete", "read", "read", "pause"]):
                case "write":
                    note = f"{process.name} {len(accesses)}"
                    _change(world, accesses, gate, dict.fromkeys(keys, note), deleted=False)
                case "delete":
                    _change(world, accesses, gate, dict.fromkeys(keys), deleted=True)
                case "read":
                    _read(world, accesses, gate, cluster)
                case "pause":
                    world.scheduler.sleep(chance.uniform(0.01, 2.0))


def _change(world: World, accesses: list[Access], gate: Gate, notes: dict[int, str | None], *, deleted: bool) -> None:
    number, began = len(accesses), world.scheduler.steps
    kind = "delete" if deleted else "write"
    accesses.append(Access(kind, gate.name, began, float("inf"), False, notes))
    table = gate.planning.table(TABLE)
    gate.write(WorldRows(notes), table, "QUORUM", None, deleted=deleted)
    accesses[number] = Access(kind, gate.name, began, world.scheduler.steps, True, notes)


def _read(world: World, accesses: list[Access], gate: Gate, cluster: Cluster, level: str = "QUORUM") -> None:
    began = world.scheduler.steps
    table = gate.planning.table(TABLE)
    found = shown(cluster.storage, gate.plan_read(table, level))
    twice = tuple(sorted(key for key, notes in found.items() if len(notes) > 1))
    notes = {key: notes[0] for key, notes in found.items()}
    accesses.append(Access("read", gate.name, began, world.scheduler.steps, True, notes, twice))


def _coordinate(stopping: list[bool], cluster: Cluster, process: Process) -> None:
    Coordinator(cluster).run(until_idle=False, should_stop=lambda: stopping[0])


def _operate(world: World, chance: random.Random, stopping: list[bool], cluster: Cluster, process: Process) -> None:
    """One thing that operators do, after a while."""
    world.scheduler.sleep(chance.uniform(0.5, 8.0))
    if stopping[0]:
        return
    node = f"n{chance.randint(1, NODES)}"
    match chance.choice(["leave", "add", "maintenance", "balance", "resize"]):
        case "leave":
            administration.decommission(cluster, node)
        case "add":
            number = 10 + chance.randrange(1000)
            world.storage(process).create_directory(place(number), parents=True)
            rack = chance.choice(RACKS)
            administration.add_node(cluster, f"n{number}", "dc1", rack, [("d1", place(number), 10**12)])
        case "maintenance":
            administration.set_maintenance(cluster, node, chance.random() < 0.5)
        case "balance":
            administration.pause_balancing(cluster) if chance.random() < 0.3 else administration.resume_balancing(
                cluster
            )
        case "resize":
            count = chance.choice([1, 2, 4, 8])
            changes = administration.operators.OptionChanges(min_count=count)
            administration.alter_table(cluster, TABLE, changes)


def _keep_up(world: World, chance: random.Random, stopping: list[bool], cluster: Cluster, process: Process) -> None:
    world.scheduler.sleep(chance.uniform(1.0, 10.0))
    if stopping[0]:
        return
    if chance.random() < 0.5:
        repair(cluster, TABLE)
    else:
        compact(cluster, TABLE, None, merger=merge_in(cluster.storage))  # type: ignore[arg-type]


def _come_to_rest(world: World, accesses: list[Access], unexpected: list[str]) -> None:
    """Nothing goes wrong any more: everything ends, is repaired, and is read at each level."""

    def rest() -> None:
        process = world.scheduler.current.process
        with world.cluster(process) as cluster:
            if not cluster.catch_up().switches.balancing:
                administration.resume_balancing(cluster)
            report = Coordinator(cluster).run(until_idle=True)
            if not report.idle:
                unexpected.append(f"the coordinator is not idle: {report}")
            if not repair(cluster, TABLE).complete:
                unexpected.append("a repair of a world at rest is not complete")
            for level in ("QUORUM", "ONE", "ALL"):
                with Gate(cluster, f"at rest, {level}") as gate:
                    _read(world, accesses, gate, cluster, level)

    actor = world.run(world.process("at rest"), rest)
    world.until_done(actor)
    if actor.error is not None:
        unexpected.append(f"at rest: {actor.error!r}")


def violations(history: RowHistory) -> list[str]:
    """What does not hold of a history; empty when all of it does."""
    found = list(history.unexpected)
    writes = [access for access in history.accesses if access.kind != "read"]
    for read in history.accesses:
        if read.kind != "read":
            continue
        found += [f"{read.who} is shown key {key} twice" for key in read.twice]
        for key in range(KEYS):
            found += _wrong(key, read, writes)
    return found


def _wrong(key: int, read: Access, writes: Sequence[Access]) -> list[str]:
    """Whether a read shows of a key what it may: a write that nothing acknowledged has come after, before the read."""
    of_key = [write for write in writes if key in write.notes and write.began < read.ended]
    note = read.notes.get(key)
    if key in read.notes:
        sources = [write for write in of_key if write.kind == "write" and write.notes[key] == note]
    else:
        sources = [write for write in of_key if write.kind == "delete"]
        sources.append(Access("delete", "nobody", float("-inf"), float("-inf"), True, {key: None}))
    known = [write for write in of_key if write.acknowledged and write.ended < read.began]
    if any(not any(source.ended < other.began for other in known) for source in sources):
        return []
    what = f"shows {note!r}" if key in read.notes else "does not show"
    return [f"{read.who} {what} of key {key} at step {read.began}, over {[w.notes[key] or w.kind for w in known][-3:]}"]
