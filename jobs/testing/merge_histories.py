"""Histories of merges: each adds its name to the notes of some rows, which merge_checkers.py looks at.

Beside them rows of the same keys are written without being read, and the whole table is overwritten.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pyarrow.compute as pc
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.arrow_reading import looked_after, question
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge import Merge, overwrite
from epochlake.jobs.gate.merging import Merged
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.testing.merge_checkers import MergeAccess, MergeHistory, Told
from epochlake.jobs.testing.merge_drawing import KEYS, NAMED, ONCE, OVER, OVERWRITE, merge_scenario
from epochlake.jobs.testing.operating import operate
from epochlake.jobs.testing.playing import Player, Playing
from epochlake.jobs.testing.row_drawing import place
from epochlake.jobs.testing.row_histories import left_undone, new_volume, resumed, set_up, waited
from epochlake.jobs.testing.row_scenarios import operations_of
from epochlake.jobs.testing.rows import TABLE
from epochlake.jobs.testing.scenario import Operation, Scenario
from epochlake.jobs.testing.stepping import Steps
from epochlake.jobs.testing.world import World, world_of
from epochlake.metastore.following.verification import verify

BESIDE = 100
"""Keys of writes that no merge has anything to do with begin here."""


class _Accesses:
    """What was accessed so far, by all."""

    def __init__(self, world: World) -> None:
        self.all: list[MergeAccess] = []
        self._world = world
        self._names: dict[str, int] = {}

    def merge(self, gate: Gate, operation: Operation) -> None:
        """Add the operation's name to the notes of its keys: under this name, or once, under none."""
        source = [{"id": key, "name": operation.name} for key in operation.keys]
        added = pc.binary_join_element_wise(pc.field("target.note"), pc.field("source.name"), " ")
        merge = Merge(lambda: nullcontext(gate), TABLE, source).when_matched_update({"note": added})
        merge = merge.when_not_matched_insert({"note": pc.field("source.name")})
        batch = None if operation.kind == ONCE else operation.name
        self._call("merge", gate, operation, lambda: merge.execute(consistency=operation.level, batch=batch))

    def overwrite(self, gate: Gate, operation: Operation) -> None:
        """Let the table have the operation's keys alone, each with its name."""
        rows = [{"id": key, "note": operation.name} for key in operation.keys]

        def opened() -> AbstractContextManager[Gate]:
            return nullcontext(gate)

        self._call(
            OVERWRITE, gate, operation, lambda: overwrite(opened, TABLE, rows, None, operation.level, operation.name)
        )

    def write(self, gate: Gate, operation: Operation) -> None:
        """Put the operation's name in the place of whatever its keys have, without reading it."""

        def write() -> None:
            table = gate.planning.table(TABLE)
            rows = [{"id": key, "note": operation.name} for key in operation.keys]
            gate.write(rows_to_write(rows, table), table, operation.level, None)

        self._call(OVER, gate, operation, write)

    def _call(self, kind: str, gate: Gate, operation: Operation, call: Callable[[], Merged | None]) -> None:
        began = self._world.scheduler.steps
        number = self._names.setdefault(operation.name, len(self.all))
        if number == len(self.all):
            one = MergeAccess(kind, gate.name, operation.name, operation.keys, began, float("inf"), False)
            self.all.append(one)
        self.all[number] = self.all[number]._replace(tries=(*self.all[number].tries, began))
        merged = call()
        ended = self._world.scheduler.steps
        one = self.all[number]
        if merged is not None:
            counts = (merged.inserted, merged.updated, merged.deleted)
            one = one._replace(told=(*one.told, Told(began, ended, merged.already, counts)))
        self.all[number] = one if one.acknowledged else one._replace(ended=ended, acknowledged=True)

    def read(self, gate: Gate, who: str = "") -> None:
        """Read what all keys have."""
        began = self._world.scheduler.steps
        of = question(gate.planning.table(TABLE), keys=[{"id": key} for key in range(KEYS)])
        batches = looked_after(gate, scan(gate.plan_read(of.table, "QUORUM", of.windows), of.asked))
        rows = [row for batch in batches for row in batch.to_pylist()]
        found = {row["id"]: tuple(row["note"].split()) for row in rows}
        ended = self._world.scheduler.steps
        self.all.append(MergeAccess("read", who or gate.name, "", tuple(range(KEYS)), began, ended, True, found))


def merge_history(seed: int | Scenario, *, world: World | None = None) -> MergeHistory:
    """Play a scenario, or that of a seed, then heal the world, let all come to its end, and read everything."""
    scenario = seed if isinstance(seed, Scenario) else merge_scenario(seed)
    with world or world_of(scenario) as world:
        world.found()
        set_up(world, scenario.settings)
        accesses = _Accesses(world)
        doing: dict[str, Operation] = {}

        def play(playing: Playing, player: Player, thread: int, cluster: Cluster) -> None:
            match player.part.role:
                case "coordinator":
                    Coordinator(cluster).run(until_idle=False, should_stop=lambda: playing.is_ending)
                case "merger":
                    with Gate(cluster, world.scheduler.current.process.name) as gate:
                        # Who comes in the place of somebody who has died tries again what that one was at.
                        left = doing.pop(player.part.name, None)
                        for operation in itertools.chain([left] if left else [], waited(playing, player, thread)):
                            if operation.kind.startswith(NAMED) and operation.kind != ONCE:
                                doing[player.part.name] = operation
                            _access(accesses, gate, operation)
                            doing.pop(player.part.name, None)
                case _:
                    for operation in waited(playing, player, thread):
                        operate(cluster, partial(new_volume, world), operation)

        playing, steps = Playing(world, scenario, play), Steps(world, ())
        playing.learned.append(steps.learn)
        playing.run()
        _come_to_rest(world, accesses, playing)
        wrong = [*playing.unexpected, *steps.wrong]
        return MergeHistory(
            scenario, accesses.all, world.scheduler.steps, playing.nemesis.done, playing.coverage, wrong
        )


def _access(accesses: _Accesses, gate: Gate, operation: Operation) -> None:
    match operation.kind:
        case "read merged":
            accesses.read(gate)
        case "write beside":
            table = gate.planning.table(TABLE)
            rows = [{"id": BESIDE + key, "note": operation.name} for key in operation.keys]
            gate.write(rows_to_write(rows, table), table, "QUORUM", None)
        case kind if kind == OVER:
            accesses.write(gate, operation)
        case kind if kind.startswith(OVERWRITE):
            accesses.overwrite(gate, operation)
        case _:
            accesses.merge(gate, operation)


def _come_to_rest(world: World, accesses: _Accesses, playing: Playing) -> None:
    """Nothing goes wrong any more: half of what failed is tried again, and all is read before and after repair."""

    once = {one.name for one in operations_of(playing.scenario) if one.kind == ONCE}

    def rest() -> None:
        process = world.scheduler.current.process
        with world.cluster(process) as cluster:
            with Gate(cluster, "at rest") as gate:
                for number, one in enumerate(list(accesses.all)):
                    again = Operation("again", 0.0, one.name, one.keys, "QUORUM")
                    if one.acknowledged or not number % 2 or one.name in once:
                        continue
                    if one.kind == "merge":
                        accesses.merge(gate, again)
                    elif one.kind == OVERWRITE:
                        accesses.overwrite(gate, again)
                accesses.merge(gate, Operation("merge", 0.0, "last", tuple(range(KEYS)), "QUORUM"))
                accesses.read(gate)
            _let_go_on(world, cluster)
            playing.unexpected.extend(left_undone(cluster))
            with Gate(cluster, "at rest") as gate:
                accesses.read(gate, "at rest")
            playing.unexpected.extend(f"verify says: {one}" for one in verify(world.log(process)).findings)

    actor = world.run(world.process("at rest"), rest)
    world.until_done(actor)
    if actor.error is not None:
        playing.unexpected.append(f"at rest: {actor.error!r}")


def _let_go_on(world: World, cluster: Cluster) -> None:
    """What leaves a node has others to go to."""
    metadata = resumed(cluster)
    if list(metadata.open_requests()):
        for number, rack in enumerate(("r1", "r2", "r3", "r4"), 20_001):
            world.storage(world.scheduler.current.process).create_directory(place(number), parents=True)
            administration.add_node(cluster, f"n{number}", "dc1", rack, [("d1", place(number), 10**12)])
