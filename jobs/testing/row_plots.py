"""Histories of rows that are about one moment each: what has to happen, in which order, for a rule to matter.

A plot is made of a history that is drawn from its theme: it says who stands still where, what is done to which storage,
and what operators and upkeep do, and when. Times, places and counts are drawn, so a plot has its moment in a part of
its histories only. None names a rule, and what is asked of its histories is what is asked of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from epochlake.jobs.testing.disk import LOG, ROOT
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario
from epochlake.jobs.testing.themes import ACCEPT_LOSS, CHANGE_OF_MIND, EXPIRING, KEYS, LIVES, SOME, WIDE

OUTAGE_SECONDS = 3.0
"""So long nobody reaches a place in which something else comes."""

LATENCY = 0.2
"""Disks are fast, so that what is drawn in seconds is long beside what anybody does."""

TRIES = 6
"""So often operators ask for what has to wait for something else."""

AGE_SECONDS = 7200.0
"""So old is a table of which compaction may drop what has expired: clocks are taken to be up to an hour apart."""

SHIFTS = 6
"""So often operators let a replica go elsewhere."""


class Drawn(NamedTuple):
    """What a plot is made from."""

    chance: random.Random
    scenario: Scenario

    def between(self, low: float, high: float) -> float:
        return round(self.chance.uniform(low, high), 3)

    @property
    def pipelines(self) -> list[Part]:
        return [part for part in self.scenario.parts if part.role == "pipeline"]

    def others(self, *roles: str) -> list[Part]:
        """Who has none of these roles."""
        return [part for part in self.scenario.parts if part.role not in roles]

    def with_(self, parts: Iterable[Part], faults: Iterable[Fault]) -> Scenario:
        return msgspec.structs.replace(
            self.scenario,
            settings=msgspec.structs.replace(self.scenario.settings, latency=LATENCY),
            parts=tuple(parts),
            faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        )


def _does(name: str, role: str, operations: Sequence[Operation]) -> Part:
    return Part(name, role, (tuple(operations),))


def _doing(parts: Iterable[Part], change: Callable[[Operation], Operation]) -> list[Part]:
    """The same parts, whose operations are changed."""
    return [
        msgspec.structs.replace(part, threads=tuple(tuple(map(change, thread)) for thread in part.threads))
        for part in parts
    ]


def put_back_under_a_commit(drawn: Drawn) -> Scenario:
    """A place comes back as it was a few commits before, while somebody stands still between his look at it and his
    commit to it; and others, who change the table's columns, make as many commits there.
    """
    chance = drawn.chance
    back, *others = chance.sample(range(1, 4), 3)
    parts = [
        msgspec.structs.replace(part, blind=(f"/disks/n{others[number % 2]}",))
        for number, part in enumerate(drawn.pipelines)
    ]
    alters = [Operation("alter columns", drawn.between(0.2, 0.6), on=number % 2 == 0) for number in range(40)]
    began, seconds = drawn.between(0.8, 2.0), drawn.between(0.5, 1.0)
    writers = [part.name for part in parts if any(one.kind == "write" for one in part.threads[0])]
    faults = [
        Fault("old storage", began, place=f"/disks/n{back}", seconds=seconds),
        *(
            Fault("pause", began + drawn.between(0.1, seconds), writer, seconds=seconds + drawn.between(3.0, 5.0),
                  when=f"n{back} commit write")
            for writer in writers
        ),
    ]  # fmt: skip
    operator = _does("operator", "operator", alters)
    return drawn.with_([*parts, *drawn.others("pipeline", "operator"), operator], faults)


def settled_late(drawn: Drawn) -> Scenario:
    """Three put files together, while epochs pass: one stands still when he has said what his file is to replace, one
    as he settles what the first has left, and the third goes on with that file as soon as it has come.
    """
    begins, pause = drawn.between(0.8, 1.5), drawn.between(0.8, 1.6)
    waits = (begins, begins + drawn.between(0.3, 0.6), begins + pause + drawn.between(0.3, 0.9))
    keepers = [
        _does(f"upkeep{number}", "upkeep", [Operation("compact", wait, number=3)]) for number, wait in enumerate(waits)
    ]
    epochs = [Operation("balance", drawn.between(0.1, 0.3), on=number % 2 == 0) for number in range(20)]
    faults = [
        Fault("pause", 0.0, "upkeep0", seconds=pause, when="ledger link, done"),
        Fault("pause", begins, "upkeep1", seconds=pause + drawn.between(1.5, 2.5), when="commit write"),
    ]
    operator = _does("operator", "operator", epochs)
    return drawn.with_([*drawn.others("upkeep", "operator"), *keepers, operator], faults)


def swept_late(drawn: Drawn) -> Scenario:
    """A coordinator dies as it makes a move ready. Who comes in its place begins by sweeping what a change of
    replication may have left that was cancelled, and stands still meanwhile for so long that another one goes on with
    the move. That one stands still as well, when writers know of it already.
    """
    return _late_at_a_move(drawn, sweeps=True)


def prepared_late(drawn: Drawn) -> Scenario:
    """The same, and nothing is to be swept: who stands still is about to make the move ready himself."""
    return _late_at_a_move(drawn, sweeps=False)


def _late_at_a_move(drawn: Drawn, *, sweeps: bool) -> Scenario:
    """`sweeps`: whether who comes in the place of the dead sweeps before he makes anything ready."""
    chance, scenario = drawn.chance, drawn.scenario
    before, session = "move before START", scenario.settings.session
    move = Operation("move", drawn.between(0.1, 0.4), f"n{chance.randint(1, 4)}", number=chance.randrange(1000))
    change_of_mind = Operation(CHANGE_OF_MIND, number=3 - scenario.settings.replication)
    operator = _does("operator", "operator", [change_of_mind, move] if sweeps else [move])
    first, second = "coordinator0", "coordinator1"
    preparing = chance.choice(["volume read", "volume look at", "commit write"])
    faults = [
        Fault("pause", 0.0, second, seconds=0.5),
        Fault("kill", 0.0, first, when=preparing, by=first, during=before),
        Fault("pause", 0.0, first, seconds=session + drawn.between(0.8, 2.0), when=preparing, by=first, during=before,
              nth=chance.choice([2, 2, 3, 5])),
        Fault("pause", 0.0, second, seconds=drawn.between(2.0, 2.5), when="log append, done", by=second, during=before),
    ]  # fmt: skip
    # They still write when the sweep goes on.
    pipelines = _doing(drawn.pipelines, lambda one: msgspec.structs.replace(one, wait=drawn.between(0.2, 0.5)))
    return drawn.with_([*pipelines, *drawn.others("pipeline", "operator", "upkeep"), operator], faults)


def swept_held(drawn: Drawn) -> Scenario:
    """A coordinator begins to sweep what a change of replication may have left that was cancelled, and stands still
    before a move is asked for. Another one makes the move ready and goes on with it, and rows are written to the new
    replicas; then the first one goes on with its sweep.
    """
    chance, scenario = drawn.chance, drawn.scenario
    session = scenario.settings.session
    first, second = "coordinator0", "coordinator1"
    change_of_mind = Operation(CHANGE_OF_MIND, 0.3, number=3 - scenario.settings.replication)
    moves = [
        Operation("move", drawn.between(0.4, 0.8), f"n{number}", number=chance.randrange(1000))
        for number in chance.sample(range(1, 5), 2)
    ]
    sweeping = chance.choice(["commit read", "commit write", "volume list", "volume look at"])
    faults = [
        Fault("pause", 0.0, second, seconds=0.5),
        Fault("pause", 0.3, first, seconds=session + drawn.between(2.5, 4.0), when=sweeping, by=first,
              nth=chance.choice([1, 1, 2, 3])),
        Fault("pause", 0.0, second, seconds=drawn.between(0.5, 1.5), when="log append, done", by=second,
              during="move before MID"),
    ]  # fmt: skip
    pipelines = _doing(drawn.pipelines, lambda one: msgspec.structs.replace(one, wait=drawn.between(0.2, 0.5)))
    operator = _does("operator", "operator", [change_of_mind, *moves])
    return drawn.with_([*pipelines, *drawn.others("pipeline", "operator", "upkeep"), operator], faults)


def epochs_lost(drawn: Drawn) -> Scenario:
    """The log comes back as it was before a tablet began to move, and an operator accepts that, and repairs. What had
    been written is deleted, and forgotten; then the tablet begins to move to the same place again. Somebody may have
    stood still since the lost epochs.
    """
    chance, between = drawn.chance, drawn.between
    copied, lasts = between(0.4, 0.8), between(2.0, 4.0)
    gone = copied + lasts
    accepts = gone + OUTAGE_SECONDS + between(0.3, 1.0)
    deletes, forgets = accepts + between(3.5, 4.5), accepts + between(5.0, 6.0)
    begins = copied + between(0.2, 1.0)
    keys = tuple(sorted(chance.sample(range(KEYS), 4)))
    others = tuple(key for key in range(KEYS) if key not in keys)
    level = chance.choice(["QUORUM", "ALL"])

    def written(name: str) -> Operation:
        return Operation("write", name=name, keys=tuple(sorted(chance.sample(keys, 2))), level=level)

    pipelines = []
    for number in range(2):
        does: list[tuple[float, Operation]] = []
        at = between(0.1, 0.4)
        while at < drawn.scenario.seconds:
            if chance.random() < 0.33:
                does.append((at, Operation("read", level=chance.choice(["QUORUM", "ONE"]))))
            elif at < gone:
                does.append((at, written(f"w{number}-{len(does)}")))
            else:
                some = tuple(sorted(chance.sample(others, 2)))
                does.append((at, Operation("write", name=f"w{number}-{len(does)}", keys=some, level=level)))
            # Nobody gets far while the root is away.
            at = accepts - between(0.0, 0.2) if gone <= at < gone + OUTAGE_SECONDS else at + between(0.4, 1.6)
        pipelines.append(_briefly(f"pipeline{number}", does))
    pipelines.append(_briefly("pipeline2", [(deletes, Operation("delete", name="d", keys=keys, level=level))]))
    # This one reaches a single place any more as it commits, and is told that it has failed.
    alone = begins + 0.2 + between(0.8, max(0.9, gone - begins - 0.5))
    pipelines.append(_briefly("pipeline3", [(alone, written("alone"))]))
    seen = chance.choice([1, 4, 4, 4])
    faults = [
        Fault("unreachable", 0.0, "pipeline3", f"/disks/n{number}", seconds=between(3.0, 4.0), when="commit write",
              by="pipeline3")
        for number in range(1, 5)
        if number != seen
    ]  # fmt: skip
    faults.append(Fault("old storage", copied, place=chance.choice([LOG, LOG, ROOT]), seconds=lasts))
    if chance.random() < 0.3:
        sleeper = chance.choice(["pipeline0", "pipeline1", "coordinator0"])
        seconds = accepts - gone + between(0.5, 3.0)
        when = chance.choice(["commit write", "commit link", "commit link, done"])
        faults.append(
            Fault("pause", max(0.0, gone - between(0.1, 1.5)), sleeper, seconds=seconds, when=when, by=sleeper)
        )
    operators = _accepting(drawn, begins, accepts, forgets)
    return drawn.with_([*pipelines, *drawn.others("pipeline", "operator", "upkeep"), *operators], faults)


def root_lost(drawn: Drawn) -> Scenario:
    """The root of a log with members is lost, or comes back as it was, while rows are written and tablets move; it is
    restored from the members. Nothing is lost by that.
    """
    chance, between = drawn.chance, drawn.between
    at = between(1.0, 3.0)
    back = chance.random() < 0.4
    lost = Fault("old storage" if back else "lost storage", at, place=ROOT, seconds=between(0.5, 2.0) if back else 0.0)
    if not back and chance.random() < 0.5:
        lost = msgspec.structs.replace(
            lost, when=chance.choice(["commit write", "commit link, done", "log append, done"])
        )
    recovers = tuple(Operation("recover", between(0.5, 1.0)) for _ in range(12))
    found = drawn.with_([*drawn.scenario.parts, Part("recoverer", "members", (recovers,))], [lost])
    members = tuple(sorted(chance.sample(range(1, 8), 3)))
    return msgspec.structs.replace(found, settings=msgspec.structs.replace(found.settings, members=members))


def clocks_apart(drawn: Drawn) -> Scenario:
    """Rows that live for a few seconds; the clock of who compacts is ahead of those of readers, by less than clocks are
    taken to be apart.
    """
    between, end = drawn.between, drawn.scenario.seconds
    apart = between(1.0, 2.0)

    def again(low: float, high: float, operation: Callable[[int], Operation]) -> list[tuple[float, Operation]]:
        found: list[tuple[float, Operation]] = []
        at = between(low, high)
        while at < end:
            found.append((at, operation(len(found))))
            at += between(low, high)
        return found

    def written(number: int) -> Operation:
        lives = between(1.0, 4.0)
        return Operation(EXPIRING, name=f"w{number}", keys=(number % KEYS,), level="ALL", seconds=lives)

    parts = [_briefly("pipeline0", again(0.2, 0.5, written))]
    parts += [_briefly(f"pipeline{n}", again(0.2, 0.4, lambda _: Operation("read", level="QUORUM"))) for n in (1, 2)]
    compacting = again(0.3, 0.8, lambda _: Operation("compact", on=True, number=2))
    keeper = Part("upkeep", "upkeep", (_at_times(compacting),), skew=apart)
    others = [*parts, *drawn.others("pipeline", "upkeep")]
    return drawn.with_([*(msgspec.structs.replace(one, skew=-apart) for one in others), keeper], [])


def expired_beside_large(drawn: Drawn) -> Scenario:
    """A large row is replaced by a small one that has expired for more than an hour, and that is put together with
    other small ones, beside the large one. Rows have had their time to live for longer than that.
    """
    chance, between, at = drawn.chance, drawn.between, 0.3
    writes: list[tuple[float, Operation]] = []
    reads: list[tuple[float, Operation]] = []
    compacting: list[tuple[float, Operation]] = []
    while at < drawn.scenario.seconds - 2.0:
        key, turn = chance.randrange(KEYS), len(compacting)
        small = [(key, min(LIVES)), (chance.choice([one for one in range(KEYS) if one != key]), max(LIVES))]
        chance.shuffle(small)
        writes += [(at, Operation(WIDE, name=f"w{turn}", keys=(key,), level="ALL"))]
        for number, (one, lives) in enumerate(small, 1):
            writing = Operation(EXPIRING, name=f"e{turn}.{number}", keys=(one,), level="ALL", seconds=lives)
            writes += [(at + between(0.3, 0.4) * number, writing)]
        compacting += [(at + between(1.0, 1.4), Operation(SOME, on=True))]
        reads += [(at + between(0.5, 2.0), Operation("read", level="QUORUM"))]
        at += between(1.8, 2.4)
    parts = [
        _briefly("pipeline0", writes),
        _briefly("pipeline1", reads),
        _does("upkeep", "upkeep", _at_times(compacting)),
    ]
    scenario = drawn.with_([*parts, *drawn.others("pipeline", "upkeep")], [])
    return msgspec.structs.replace(scenario, settings=msgspec.structs.replace(scenario.settings, age=AGE_SECONDS))


def _accepting(drawn: Drawn, begins: float, accepts: float, forgets: float) -> list[Part]:
    """Who moves a tablet, accepts that epochs are lost, has deletes forgotten, and moves the tablet again."""
    chance, between = drawn.chance, drawn.between
    shift = Operation("shift", number=chance.randrange(1000))
    before, afterwards = chance.choice([1, 1, 2]), chance.choice([0, 0, 1])
    steps = [(begins, one) for one in _epochs(before)]
    steps += [(begins + 0.2, shift)]
    if chance.random() < 0.95:  # else it is done at the end
        steps += [(accepts + 0.5 * number, Operation(ACCEPT_LOSS)) for number in range(2)]
        # The first one tells him that what he knows is lost.
        steps += [(accepts + 1.5 + number, Operation("repair")) for number in range(2)]
    steps += [(forgets, Operation("compact", on=True, number=2))]
    steps += [(forgets + 0.5, one) for one in _epochs(afterwards)]
    steps += [(forgets + between(0.6, 1.5), shift)]
    found = [Part("operator", "operator", (_at_times(steps),))]
    if chance.random() < 0.2:
        also = [(accepts + between(0.0, 0.2), Operation(ACCEPT_LOSS))]
        found.append(Part("operator1", "operator", (_at_times(also),)))
    return found


def _briefly(name: str, operations: Sequence[tuple[float, Operation]]) -> Part:
    """A pipeline for each of its operations, at their times, so that none of them lives when deletes are forgotten."""
    renewed = [one for at, operation in operations for one in ((at, operation), (at, Operation("new pipeline")))]
    return Part(name, "pipeline", (_at_times(renewed),))


def _epochs(count: int) -> list[Operation]:
    """What makes so many epochs, and changes nothing that matters."""
    return [Operation("balance", on=number % 2 == 1) for number in range(count)]


def _at_times(operations: Sequence[tuple[float, Operation]]) -> tuple[Operation, ...]:
    """Operations, each at its time after the beginning, if those before it have ended by then."""
    found, last = [], 0.0
    for at, operation in operations:
        found.append(msgspec.structs.replace(operation, wait=round(max(0.0, at - last), 3)))
        last = max(last, at)
    return tuple(found)


def narrowed_meanwhile(drawn: Drawn) -> Scenario:
    """Ranges get fewer replicas, and as many as before, while somebody stands still who has had one acknowledgement of
    a write. What he has it from may have given the range up, and got it again without that write. Another keyspace has
    that replication all the time.
    """
    chance = drawn.chance
    operators, faults, at = [_does("operator", "operator", [Operation("keyspace beside", 0.05)])], [], 0.3
    writers = [part.name for part in drawn.pipelines if any(one.kind == "write" for one in part.threads[0])]
    while at < drawn.scenario.seconds - 1.0:
        pause = drawn.between(4.5, 5.5)
        faults += [
            Fault("pause", at, writer, seconds=pause, when="commit link, done", nth=chance.choice([1, 1, 2]))
            for writer in writers
        ]
        # Fenced, and away as it is to hand its rows on to those that stay.
        faults.append(
            Fault("unreachable", at, "coordinator0", f"/disks/n{chance.randint(1, 4)}", drawn.between(0.1, 0.4),
                  when="shared list", nth=chance.choice([1, 1, 2, 3]), during="change_replication before MID")
        )  # fmt: skip
        narrows = Operation("replicas", at + drawn.between(0.2, 0.5), number=2)
        # It is refused until the one before has ended.
        widens = [Operation("replicas", drawn.between(0.1, 0.3), number=3) for _ in range(TRIES)]
        operators.append(_does(f"operator{len(operators)}", "operator", [narrows, *widens]))
        at = round(at + pause + 0.5, 3)
    return drawn.with_([*drawn.others("operator", "upkeep"), *operators], faults)


def lying_splits(drawn: Drawn) -> Scenario:
    """A disk gives other bytes for a moment, as tablets are split on it; and some go away from there afterwards. All
    files have rows of all tablets.
    """
    chance, splits = drawn.chance, drawn.between(0.8, 1.6)
    place = f"/disks/n{chance.randint(1, 4)}"
    shifts = [Operation("shift", drawn.between(0.3, 0.6), number=chance.randrange(1000)) for _ in range(SHIFTS)]
    operations = [Operation("resize", splits, number=chance.choice([2, 4])), *shifts]
    faults = [
        Fault("flipped bit", round(splits - 0.2, 3), "coordinator0", place, drawn.between(0.3, 0.8), 2.0,
              when="log append, done", by="coordinator0"),
    ]  # fmt: skip
    every_key = tuple(range(KEYS))
    pipelines = _doing(drawn.pipelines, lambda one: msgspec.structs.replace(one, keys=one.keys and every_key))
    operator = _does("operator", "operator", operations)
    return drawn.with_([*pipelines, *drawn.others("pipeline", "operator", "upkeep"), operator], faults)


def whole_again_meanwhile(drawn: Drawn) -> Scenario:
    """Somebody stands still who has had one acknowledgement of a write. The place that has given it comes back as it
    was, is repaired from the others, who do not have the write yet, and counts again.
    """
    chance, began, pause = drawn.chance, drawn.between(1.0, 2.0), drawn.between(5.6, 6.2)
    back, near, far = chance.sample(range(1, 4), 3)
    first, *others = drawn.pipelines
    reads = tuple(Operation("read", drawn.between(0.2, 0.4), f"r{number}", level="QUORUM") for number in range(40))
    writer = msgspec.structs.replace(
        _doing([first], lambda one: msgspec.structs.replace(one, wait=drawn.between(0.1, 0.2)))[0],
        blind=(f"/disks/n{far}",),
    )
    # They see the two that had nothing of the write after the repair.
    readers = [msgspec.structs.replace(part, threads=(reads,), blind=(f"/disks/n{near}",)) for part in others]
    # When the place is there again, and before the write goes on.
    waits = [began + drawn.between(3.4, 3.8), *(drawn.between(0.2, 0.3) for _ in range(4))]
    upkeep = _does("upkeep", "upkeep", [Operation("repair", wait) for wait in waits])
    faults = [
        Fault("old storage", round(began - 0.05, 3), place=f"/disks/n{back}", seconds=drawn.between(0.4, 0.8)),
        Fault("unreachable", began, writer.name, f"/disks/n{near}", drawn.between(1.0, 2.0), when="commit write"),
        Fault("pause", began, writer.name, seconds=pause, when="shared link, done"),
    ]
    return drawn.with_([writer, *readers, *drawn.others("pipeline", "upkeep"), upkeep], faults)


PLOTS: Mapping[str, Callable[[Drawn], Scenario]] = {
    plot.__name__: plot
    for plot in (
        *(epochs_lost, root_lost, clocks_apart, expired_beside_large),
        *(put_back_under_a_commit, settled_late, swept_late, swept_held, prepared_late),
        *(narrowed_meanwhile, lying_splits, whole_again_meanwhile),
    )
}
"""By their names, as themes name them."""
