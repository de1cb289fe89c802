"""Histories of log members that are about one moment each: what has to go wrong, in which order, for a rule to matter.

A plot says who the members are, what operators do and what goes wrong; who commits is drawn as in any history. Times,
members and how long things last are drawn, so a plot has its moment in a part of its histories only. None destroys more
directories than a set of members can lose, and when nothing goes wrong any more everybody sees all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
from epochlake.jobs.testing.disk import ROOT
from epochlake.jobs.testing.scenario import Fault, Operation, Part
from epochlake.jobs.testing.world import DIRECTORIES, member

OPERATOR = "operator0"
ANOTHER = "operator1"


class Drawn(NamedTuple):
    """What a plot is drawn from. `parts`: who commits. `appended`: the moment at which the log at the root is appended
    to, and `copied`: at which a copy is.
    """

    chance: random.Random
    seconds: float
    parts: Sequence[Part]
    appended: str
    copied: str

    def members(self, count: int, without: Collection[int] = ()) -> tuple[int, ...]:
        """So many directories."""
        return tuple(sorted(self.chance.sample(sorted({*range(1, DIRECTORIES + 1)} - {*without}), count)))

    def between(self, low: float, high: float) -> float:
        return round(self.chance.uniform(low, high), 3)

    def blind(self, part: Part, *numbers: int) -> Part:
        return msgspec.structs.replace(part, blind=tuple(member(number) for number in numbers))


class Plot(NamedTuple):
    """`session`: how long a session of ZooKeeper outlives its process, in seconds."""

    members: tuple[int, ...]
    parts: Sequence[Part]
    faults: Sequence[Fault]
    session: float = 10.0


def _operator(name: str, *operations: Operation) -> Part:
    return Part(name, "members", (operations,))


def _recovers(drawn: Drawn, count: int, low: float, high: float) -> tuple[Operation, ...]:
    return tuple(Operation("recover", drawn.between(low, high)) for _ in range(count))


def _change(wait: float, members: Collection[int]) -> Operation:
    return Operation("reconfigure", wait, keys=tuple(sorted(members)))


def _reader(name: str, waits: Sequence[float]) -> Part:
    return Part(name, "commits", (tuple(Operation("catch up", wait) for wait in waits),))


def _lost(place: str, at: float, **when: object) -> Fault:
    return msgspec.structs.replace(Fault("lost storage", at, place=place), **when)


def under_way(drawn: Drawn) -> Plot:
    """What a committer has asked of all members is under way when the root is lost, and gets there while it is being
    restored: when they are sealed and their copies have been read, and before these are deleted.
    """
    chance, count = drawn.chance, drawn.chance.choice([3, 3, 3, 2, 4, 5])
    who, nth = chance.choice(drawn.parts).name, 1 + count * chance.choice([0, 1, 2, 3])
    at_first = {"when": drawn.copied, "nth": nth}
    faults = [
        _lost(ROOT, 0.0, by=who, **at_first),
        msgspec.structs.replace(Fault("requests late", 0.0, who, seconds=drawn.between(4.0, 10.0)), **at_first),
        Fault("pause", 0.0, OPERATOR, seconds=drawn.between(5.0, 9.0), when=drawn.appended, by=OPERATOR),
    ]
    return Plot(drawn.members(count), [*drawn.parts, _operator(OPERATOR, *_recovers(drawn, 12, 0.2, 1.2))], faults)


def blind_operators(drawn: Drawn) -> Plot:
    """Operators who do not reach most of the members, or one of those that they choose; those who commit do not reach
    one either, and come late to the root.
    """
    chance = drawn.chance
    first = drawn.members(chance.choice([3, 3, 4, 5]))
    lacking = chance.sample(first, (len(first) - 1) // 2)
    unseen = [number for number in first if number not in lacking]
    others = [number for number in range(1, DIRECTORIES + 1) if number not in unseen]
    loses_root = chance.random() < 0.5
    parts = [drawn.blind(part, *lacking) if chance.random() < 0.8 else part for part in drawn.parts]
    if loses_root:
        does = _recovers(drawn, 8, 0.5, 1.5)
    else:
        does = tuple(_change(drawn.between(0.3, 2.0), chance.sample(others, min(3, len(others)))) for _ in range(4))
    parts.append(drawn.blind(_operator(OPERATOR, *does), *unseen))
    if not loses_root:
        one = chance.choice([number for number in range(1, DIRECTORIES + 1) if number not in first])
        chosen = [(one, *chance.sample([n for n in range(1, DIRECTORIES + 1) if n != one], 2)) for _ in range(3)]
        changes = [_change(drawn.between(0.5, 3.0), members) for members in chosen]
        parts.append(drawn.blind(_operator(ANOTHER, *changes), one))
    faults = [
        Fault("requests late", drawn.between(0.0, drawn.seconds / 2), part.name, seconds=drawn.between(0.5, 3.0),
              when=drawn.appended)
        for part in drawn.parts
    ]  # fmt: skip
    return Plot(first, parts, faults + [_lost(ROOT, drawn.between(2.0, drawn.seconds / 2))] * loses_root)


def left_alone(drawn: Drawn) -> Plot:
    """An append reaches one member alone, and the root is lost. It is restored while that member is away, another epoch
    is committed, and the root is lost once more before there are many of them.
    """
    chance = drawn.chance
    # Of copies that are as long the one of the first directory is taken.
    alone, others = 1, drawn.members(2, without=[1])
    who, then, began = drawn.parts[0].name, drawn.parts[1].name, drawn.between(1.0, 3.0)

    def away(number: int, seconds: float, when: str) -> Fault:
        return Fault("disk away", began, place=member(number), seconds=seconds, number=5.0, when=when, by=who)

    faults = [
        *(away(number, drawn.between(0.5, 1.5), f"{drawn.appended}, done") for number in others),
        _lost(ROOT, began, when=f"{drawn.copied}, done", by=who),
        away(alone, drawn.between(4.5, 6.0), f"{drawn.copied}, done"),
        Fault("pause", began, who, seconds=drawn.between(10.0, 14.0), when=f"{drawn.copied}, done"),
        _lost(ROOT, began + 1.5, when=f"{drawn.appended}, done", nth=chance.choice([1, 1, 2]), by=then),
    ]
    operator = _operator(OPERATOR, *_recovers(drawn, 20, 0.4, 1.0))
    return Plot((alone, *others), [*drawn.parts, operator], faults, session=1.5)


def behind(drawn: Drawn) -> Plot:
    """The root comes back as it was, once or twice, and some of those who read it have opened it anew."""
    back = Fault("old storage", drawn.between(0.5, 2.0), place=ROOT, seconds=drawn.between(1.0, 3.0))
    readers = [_reader(f"reader{n}", [drawn.between(0.1, 0.8) for _ in range(16)]) for n in range(2)]
    operator = _operator(OPERATOR, *_recovers(drawn, 6, 2.0, 4.0))
    killed = [Fault("kill", back.at + drawn.between(1.0, 6.0), reader.name) for reader in readers]
    members = drawn.members(drawn.chance.choice([3, 3, 5, 4]))
    again = msgspec.structs.replace(back, at=round(back.at + back.seconds + drawn.between(3.5, 8.0), 3))
    faults = [back, *killed, *[again] * (drawn.chance.random() < 0.5)]
    return Plot(members, [*drawn.parts, *readers, operator], faults)


def half_restored(drawn: Drawn) -> Plot:
    """The root is lost, and who restores it dies before all of it is there, while others ask where the log is."""
    lost = drawn.between(2.0, 5.0)
    readers = [_reader(f"reader{n}", [drawn.between(0.1, 0.6) for _ in range(24)]) for n in range(2)]
    nth = drawn.chance.choice([1, 1, 2, 3])
    killed = Fault("kill", lost, OPERATOR, when=f"{drawn.appended}, done", nth=nth, by=OPERATOR)
    operator = _operator(OPERATOR, *_recovers(drawn, 8, 0.5, 3.0))
    return Plot(drawn.members(3), [*drawn.parts, *readers, operator], [_lost(ROOT, lost), killed])


def blank_votes(drawn: Drawn) -> Plot:
    """One member does not hear of what is committed, another one is emptied or goes back to what it was, and who
    restores the root does not reach the third.
    """
    chance = drawn.chance
    first = drawn.members(3)
    deaf, blank, unseen = chance.sample(first, 3)
    gone = drawn.between(3.0, 6.0)
    wiped = _lost(member(blank), gone)
    if chance.random() < 0.6:
        began = drawn.between(0.0, 1.0)
        wiped = Fault("old storage", began, place=member(blank), seconds=gone - began)
    parts = [drawn.blind(part, deaf) for part in drawn.parts]
    operator = drawn.blind(_operator(OPERATOR, *_recovers(drawn, 10, 0.3, 1.2)), unseen)
    return Plot(first, [*parts, operator], [wiped, _lost(ROOT, gone + drawn.between(0.1, 2.0))])


def unseated(drawn: Drawn) -> Plot:
    """A change of the members is begun by somebody who does not reach one of them, dies, and is ended by another one
    who does. That member is emptied later, one of the others does not hear of what is committed, and the third is away
    when the root is restored.
    """
    chance = drawn.chance
    first = drawn.members(3)
    chosen = drawn.members(3, without=chance.sample(first, chance.randint(0, 3)))
    late, deaf, away = chance.sample(chosen, 3)
    killed = Fault("kill", 0.0, OPERATOR, when=chance.choice(["promise link, done", drawn.appended, "adopted link"]),
                   nth=chance.choice([1, 2, 3, 4]), by=OPERATOR)  # fmt: skip
    gone = drawn.between(6.0, 8.0)
    begins = drawn.blind(_operator(OPERATOR, _change(drawn.between(0.2, 1.0), chosen)), late)
    resumes = [Operation("resume members", drawn.between(0.4, 0.8)) for _ in range(5)]
    ends = _operator(ANOTHER, *resumes, *_recovers(drawn, 12, 0.5, 1.0))
    faults = [
        killed,
        _lost(member(late), gone),
        Fault("disk away", gone, place=member(away), seconds=60.0, number=5.0),
        _lost(ROOT, gone + drawn.between(0.0, 0.5)),
    ]
    return Plot(first, [*(drawn.blind(part, deaf) for part in drawn.parts), begins, ends], faults)


def unpromised(drawn: Drawn) -> Plot:
    """A member goes back to the moment at which the log had been copied to it ahead, and nothing was promised. Another
    one does not hear of what is committed by those who had looked at it before.
    """
    chance = drawn.chance
    first = drawn.members(3)
    chosen = drawn.members(3, without=chance.sample(first, chance.randint(0, 3)))
    back, deaf = chosen[-1], chance.choice(chosen[:-1])
    changed = drawn.between(1.0, 1.6)
    old = Fault("old storage", changed - 0.5, place=member(back), seconds=drawn.between(1.2, 2.0), when="promise link",
                by=OPERATOR)  # fmt: skip
    parts = []
    for part in drawn.parts:
        # All of them read what the members have before it goes back, and commit afterwards.
        commits = [msgspec.structs.replace(one, wait=drawn.between(0.5, 2.0)) for one in part.threads[0]]
        commits[0] = msgspec.structs.replace(commits[0], wait=drawn.between(5.0, 6.5))
        looks = Operation("catch up", changed + drawn.between(0.5, 1.0))
        parts.append(drawn.blind(msgspec.structs.replace(part, threads=((looks, *commits),)), deaf))
    return Plot(first, [*parts, _operator(OPERATOR, _change(changed, chosen))], [old])


def half_adopted(drawn: Drawn) -> Plot:
    """Members that are changed again and again among few directories; what is copied to one of them fails at times, and
    a moment later it is there.
    """
    chance = drawn.chance
    few = drawn.members(4)
    changes = [_change(drawn.between(0.3, 1.0), chance.sample(few, 3)) for _ in range(chance.randint(6, 9))]
    moments = ("adopted link", "adopted link", "promise link, done", "copy write", drawn.copied)
    faults = [
        Fault("access fails", 0.0, OPERATOR, when=chance.choice(moments), nth=nth, by=OPERATOR)
        for nth in chance.sample(range(2, 24), 6)
    ]
    return Plot(drawn.members(3, {*range(1, DIRECTORIES + 1)} - {*few}),
                [*drawn.parts, _operator(OPERATOR, *changes)], faults)  # fmt: skip


def left_unfinished(drawn: Drawn) -> Plot:
    """One operator who changes the members among few directories, and who dies when some have promised the change: he
    goes on with another one.
    """
    chance = drawn.chance
    few = drawn.members(5)
    changes = [_change(drawn.between(0.3, 0.8), chance.sample(few, 3)) for _ in range(chance.randint(8, 12))]
    deaths = [
        Fault("kill", drawn.between(0.0, drawn.seconds * 0.7), OPERATOR, when="promise link, done",
              nth=chance.choice([1, 1, 2, 3]), by=OPERATOR)
        for _ in range(5)
    ]  # fmt: skip
    return Plot(tuple(sorted(chance.sample(few, 3))), [*drawn.parts, _operator(OPERATOR, *changes)], deaths)


PLOTS: Mapping[str, Callable[[Drawn], Plot]] = {
    plot.__name__: plot
    for plot in (
        under_way,
        blind_operators,
        left_alone,
        behind,
        half_restored,
        blank_votes,
        unseated,
        unpromised,
        half_adopted,
        left_unfinished,
    )
}
"""By their names, as themes name them."""
