"""Histories of merges: each adds its name to the notes of some rows, and what these say is looked at.

The checker knows calls, when they began and ended, and what they said. It asks what a list would keep that only one
could add to at a time: nobody's name is lost or comes twice, and every reader is shown a beginning of the same list.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.arrow_reading import looked_after, question
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge import Merge
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.testing.merge_drawing import KEYS, merge_scenario
from epochlake.jobs.testing.operating import operate
from epochlake.jobs.testing.playing import Player, Playing
from epochlake.jobs.testing.row_drawing import place
from epochlake.jobs.testing.row_histories import left_undone, new_volume, resumed, set_up, waited
from epochlake.jobs.testing.rows import TABLE
from epochlake.jobs.testing.scenario import Operation, Scenario
from epochlake.jobs.testing.stepping import Steps
from epochlake.jobs.testing.world import World, world_of
from epochlake.metastore.following.verification import verify

BESIDE = 100
"""Keys of writes that no merge has anything to do with begin here."""


class MergeAccess(NamedTuple):
    """A merge of a name into some keys, from its first try to its first success, or a read of all keys.

    `began` and `ended` are steps of the scheduler. `names` of a read: what each key's note says, in its order.
    """

    kind: str
    who: str
    name: str
    keys: tuple[int, ...]
    began: float
    ended: float
    acknowledged: bool
    names: dict[int, tuple[str, ...]] = {}  # noqa: RUF012


class MergeHistory(NamedTuple):
    """What a world did with merges, and what was done to it."""

    scenario: Scenario
    accesses: list[MergeAccess]
    steps: int
    harm: Counter[str]
    coverage: Counter[str]
    unexpected: list[str]


class _Accesses:
    """What was accessed so far, by all."""

    def __init__(self, world: World) -> None:
        self.all: list[MergeAccess] = []
        self._world = world
        self._names: dict[str, int] = {}

    def merge(self, gate: Gate, operation: Operation) -> None:
        """Add the operation's name to the notes of its keys, under this name."""
        steps = self._world.scheduler
        number = self._names.setdefault(operation.name, len(self.all))
        if number == len(self.all):
            began = steps.steps
            self.all.append(MergeAccess("merge", gate.name, operation.name, operation.keys, began, float("inf"), False))
        source = [{"id": key, "name": operation.name} for key in operation.keys]
        added = pc.binary_join_element_wise(pc.field("target.note"), pc.field("source.name"), " ")
        merge = Merge(lambda: nullcontext(gate), TABLE, source).when_matched_update({"note": added})
        merge = merge.when_not_matched_insert({"note": pc.field("source.name")})
        merge.execute(consistency=operation.level, batch=operation.name)
        if not self.all[number].acknowledged:
            self.all[number] = self.all[number]._replace(ended=steps.steps, acknowledged=True)

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
                            if operation.kind.startswith("merge"):
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
    if operation.kind == "read merged":
        accesses.read(gate)
    elif operation.kind == "write beside":
        table = gate.planning.table(TABLE)
        rows = [{"id": BESIDE + key, "note": operation.name} for key in operation.keys]
        gate.write(rows_to_write(rows, table), table, "QUORUM", None)
    else:
        accesses.merge(gate, operation)


def _come_to_rest(world: World, accesses: _Accesses, playing: Playing) -> None:
    """Nothing goes wrong any more: half of what failed is tried again, and all is read before and after repair."""

    def rest() -> None:
        process = world.scheduler.current.process
        with world.cluster(process) as cluster:
            with Gate(cluster, "at rest") as gate:
                for number, one in enumerate(list(accesses.all)):
                    if one.kind == "merge" and not one.acknowledged and number % 2:
                        accesses.merge(gate, Operation("merge again", 0.0, one.name, one.keys, "QUORUM"))
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


def violations(history: MergeHistory) -> list[str]:
    """What does not hold of a history; empty when all of it does."""
    merges = {one.name: one for one in history.accesses if one.kind == "merge"}
    reads = [one for one in history.accesses if one.kind == "read"]
    found = list(history.unexpected)
    if not reads:
        return found
    last = reads[-1]
    for read in reads:
        for key in range(KEYS):
            found += _wrong(read, key, read.names.get(key, ()), merges, last)
    for name, merge in merges.items():
        there = [key for key in merge.keys if name in last.names.get(key, ())]
        if there and there != list(merge.keys):
            found.append(f"of the merge {name} into {list(merge.keys)} only {there} are there at rest")
    found += _needless(history)
    return found


def _wrong(
    read: MergeAccess, key: int, names: Sequence[str], merges: dict[str, MergeAccess], last: MergeAccess
) -> Iterator[str]:
    """What a read must not show of a key."""
    who = f"{read.who} is shown of key {key} at step {read.began}"
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{who} the merge {name} {times} times"
        if name not in merges or key not in merges[name].keys or merges[name].began > read.ended:
            yield f"{who} {name}, which nobody has merged"
    for name, merge in merges.items():
        if key in merge.keys and merge.acknowledged and merge.ended < read.began and name not in names:
            yield f"{who} {list(names)}, without {name}"
    for position, name in enumerate(names):
        for earlier in names[:position]:
            if name in merges and earlier in merges and merges[name].ended < merges[earlier].began:
                yield f"{who} {earlier} before {name}, which had ended when it began"
    if tuple(names) != last.names.get(key, ())[: len(names)]:
        yield f"{who} {list(names)}, and in the end it is {list(last.names.get(key, ()))}"


def _needless(history: MergeHistory) -> Iterator[str]:
    """Where nothing goes wrong each merge succeeds, but for those that others overtake."""
    if not history.scenario.faults and not any(part.blind for part in history.scenario.parts):
        for one in history.accesses:
            if not one.acknowledged:
                yield f"nothing has gone wrong, and the {one.kind} {one.name} has failed"
