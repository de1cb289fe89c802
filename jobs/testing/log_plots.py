"""Histories of commits that are about one moment each: who has to ask for what, in which order, and what goes wrong
just then, for a rule to matter.

A plot says who commits, what goes wrong and how the cluster is set up; times, changes and how long things last are
drawn, so a plot has its moment in a part of its histories only. The log has no members here (member_plots.py has
plots for those).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from epochlake.jobs.testing.disk import LOG, ROOT
from epochlake.jobs.testing.scenario import Fault, Operation, Part

OFFERED = "zookeeper create of proposals, done"
"""Somebody has shown to others what he asks for."""
TAKEN_BACK = "zookeeper delete of proposals"
"""Somebody takes back what he has shown, or takes what another one has."""

PAUSE, RESUME = 0, 1
"""Changes of which each can be made after the other one only; at first nothing is paused."""
ALWAYS = (6, 7, 8, 9, 10, 11)
"""Changes that can always be made, and that others may append."""


TAKES_SECONDS = 0.05
"""How long a commit takes, more or less."""


class Drawn(NamedTuple):
    """What a plot is drawn from. `appended`: the moment at which the log is appended to."""

    chance: random.Random
    seconds: float
    appended: str

    def between(self, low: float, high: float) -> float:
        return round(self.chance.uniform(low, high), 3)

    def always(self) -> int:
        return self.chance.choice(ALWAYS)


class Plot(NamedTuple):
    """`settings`: what differs from other histories in how the cluster is set up."""

    parts: Sequence[Part]
    faults: Sequence[Fault]
    settings: Mapping[str, object] = {}


class _Asks:
    """A process that asks for one change after another, each at its time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[list[Operation]] = []
        self._times: list[float] = []

    def at(self, time: float, number: int, *, seconds: float = 20.0, thread: int = 0) -> _Asks:
        """Asks for a change some `time` seconds after the beginning, if the one before it has its outcome by then."""
        while len(self._threads) <= thread:
            self._threads.append([])
            self._times.append(0.0)
        name = f"{self._name}-{thread}-{len(self._threads[thread])}"
        took = TAKES_SECONDS * bool(self._threads[thread])
        wait = round(max(0.0, time - self._times[thread] - took), 3)
        self._threads[thread].append(Operation("commit", wait, name, number=number, seconds=seconds))
        self._times[thread] = time
        return self

    def again_at(self, time: float) -> _Asks:
        """The first thread asks for the same once more."""
        before = self._threads[0][-1]
        wait = round(max(0.0, time - self._times[0]), 3)
        self._threads[0].append(msgspec.structs.replace(before, kind="reuse", wait=wait, seconds=20.0))
        self._times[0] = time
        return self

    def part(self) -> Part:
        return Part(self._name, "commits", tuple(map(tuple, self._threads)))


def _held_up(drawn: Drawn, who: str, at: float, seconds: float, nth: int = 1) -> Fault:
    """Somebody stands still as he appends, with the lock in his hand."""
    return Fault("pause", at, who, seconds=seconds, when=drawn.appended, by=who, nth=nth)


def left_in_line(drawn: Drawn) -> Plot:
    """Somebody dies who has shown others what he asks for, while nobody looks. Who comes in his place asks for it
    again, and it cannot be made just then; a moment later it can, and others commit.
    """
    between = drawn.between
    begins = between(0.5, 1.5)
    asked, after = drawn.chance.choice([(RESUME, PAUSE), (PAUSE, RESUME)])
    first, second, dying = _Asks("p1"), _Asks("p2"), _Asks("p0")
    first.at(begins, PAUSE if asked == PAUSE else drawn.always())
    second.at(begins + between(0.03, 0.06), drawn.always())
    held = between(0.2, 0.4)
    dying.at(begins + between(0.08, 0.15), drawn.always())
    dying.at(begins + held + between(0.0, 0.7), asked)
    again = begins + held + between(1.0, 6.0)
    first.at(again, after).at(again + between(0.0, 1.0), drawn.always())
    second.at(again + between(0.03, 0.1), drawn.always()).at(again + between(0.1, 1.0), drawn.always())
    dying.at(again + 8.0, drawn.always())
    faults = [
        _held_up(drawn, "p1", 0.0, held),
        _held_up(drawn, "p1", begins + held + 0.5, between(0.1, 0.3)),
        Fault("kill", 0.0, "p0", when=OFFERED, by="p0", nth=drawn.chance.choice([1, 2, 2, 2])),
    ]
    return Plot([dying.part(), first.part(), second.part()], faults)


def silent_line(drawn: Drawn) -> Plot:
    """Somebody dies who has shown others what he asks for, while who has the lock stands still. Who comes in his place
    asks for it again and does not reach ZooKeeper: his time is over before anybody takes what is in line.
    """
    between = drawn.between
    begins, held = between(0.8, 1.5), between(2.0, 3.5)
    first, second, dying = _Asks("p1"), _Asks("p2"), _Asks("p0")
    first.at(begins, drawn.always())
    second.at(begins + between(0.03, 0.06), drawn.always()).at(begins + held + between(0.5, 2.0), drawn.always())
    asks = begins + between(0.08, 0.15)
    dying.at(asks, drawn.always(), seconds=between(0.6, 1.2)).at(begins + held + 12.0, drawn.always())
    faults = [
        _held_up(drawn, "p1", 0.0, held),
        Fault("kill", 0.0, "p0", when=OFFERED, by="p0"),
        # Before he has shown it himself.
        Fault("cut", round(asks + between(0.06, 0.16), 3), "p0", seconds=round(held + between(1.0, 3.0), 3)),
    ]
    return Plot([dying.part(), first.part(), second.part()], faults)


def taken_from_the_dead(drawn: Drawn) -> Plot:
    """Somebody stands still right before he appends what he has taken from one who is dead by now. Who comes in the
    place of the dead asks for it again, and it cannot be made as the log is then.
    """
    between = drawn.between
    begins = between(0.8, 1.5)
    asked, before = drawn.chance.choice([(RESUME, PAUSE), (PAUSE, RESUME)])
    first, sleeper, dying = _Asks("p2"), _Asks("p1"), _Asks("p0")
    first.at(begins, PAUSE if before == RESUME else drawn.always()).at(begins + 15.0, drawn.always())
    sleeper.at(begins + between(0.04, 0.1), before).at(begins + 14.0, drawn.always())
    dying.at(begins + between(0.12, 0.3), asked).at(begins + 14.0, drawn.always())
    faults = [
        _held_up(drawn, "p2", 0.0, between(0.5, 0.7)),
        Fault("kill", 0.0, "p0", when=drawn.appended, by="p1"),
        _held_up(drawn, "p1", 0.0, between(2.5, 6.0)),
    ]
    return Plot([first.part(), sleeper.part(), dying.part()], faults, {"session": 1.5})


def cut_off_with_two(drawn: Drawn) -> Plot:
    """Two threads of a process have shown others what they ask for, and it is cut off as it takes that back, with the
    lock in its hand. Of the two changes one can be made only when the other one was.
    """
    between = drawn.between
    begins = between(0.8, 1.5)
    paused = drawn.chance.random() < 0.5
    refused, allowed = (PAUSE, RESUME) if paused else (RESUME, PAUSE)
    first, two, last = _Asks("p1"), _Asks("p0"), _Asks("p2")
    first.at(0.1, drawn.always()).at(begins, PAUSE if paused else drawn.always())
    lines_up = begins + between(0.1, 0.2)
    two.at(lines_up, refused).at(begins + 12.0, drawn.always())
    two.at(lines_up + between(0.0, 0.015), allowed, thread=1)
    last.at(0.4, drawn.always()).at(lines_up + between(0.15, 0.3), drawn.always())
    faults = [
        _held_up(drawn, "p1", 0.0, between(0.5, 0.8), 2),
        Fault("cut", 0.0, "p0", seconds=between(2.5, 6.0), when=TAKEN_BACK, by="p0"),
    ]
    return Plot([first.part(), two.part(), last.part()], faults)


def appended_and_died(drawn: Drawn) -> Plot:
    """Who has appended for another one dies before he says so. The other one waits in line until his time is over, and
    hears what the log says; then the log goes back, and a third one commits who has not looked since.
    """
    between = drawn.between
    begins, patience = between(0.8, 1.5), between(4.0, 5.0)
    third, dying, owner = _Asks("p2"), _Asks("p0"), _Asks("p1")
    owner.at(0.1, drawn.always())
    third.at(begins, drawn.always())
    dying.at(begins + between(0.05, 0.15), drawn.always(), seconds=4.0)
    owner.at(begins + between(0.2, 0.3), drawn.always(), seconds=patience)
    third.at(begins + patience + between(2.0, 3.5), drawn.always(), seconds=40.0)
    faults = [
        _held_up(drawn, "p2", 0.0, between(0.5, 0.7)),
        Fault("old storage", 0.0, place=drawn.chance.choice([ROOT, LOG]), seconds=patience + between(0.3, 1.5),
              when=drawn.appended, by="p0"),
        Fault("kill", 0.0, "p0", when=f"{drawn.appended}, done", by="p0"),
    ]  # fmt: skip
    return Plot([third.part(), dying.part(), owner.part()], faults)


def unsure_and_asked_again(drawn: Drawn) -> Plot:
    """Somebody does not reach the log any more as he appends to it, and his time is over before he hears whether it
    landed. Another one commits, and then he asks again.
    """
    between = drawn.between
    begins = between(0.8, 1.5)
    unsure, other = _Asks("p0"), _Asks("p1")
    unsure.at(begins, drawn.always(), seconds=between(1.0, 2.0)).again_at(begins + between(5.0, 7.0))
    other.at(0.1, drawn.always()).at(begins + between(2.5, 3.5), drawn.always())
    away = Fault("unreachable", 0.0, "p0", LOG, seconds=between(2.5, 4.0), when=drawn.appended, by="p0")
    return Plot([unsure.part(), other.part()], [away])


def slept_past_clean_up(drawn: Drawn) -> Plot:
    """Somebody stands still right before his commit gets its name, for longer than commits of the log are kept: what
    others have committed there is deleted by then.
    """
    between = drawn.between
    sleeper, other = _Asks("p0"), _Asks("p1")
    begins = between(1.0, 3.0)
    sleeper.at(0.2, drawn.always()).at(begins, drawn.always(), seconds=200.0)
    at = begins + between(0.5, 3.0)
    for _ in range(12):
        other.at(at, drawn.always(), seconds=60.0)
        at += between(1.0, 3.5)
    compacts, last = [], 0.0
    for when in sorted(between(24.0, 50.0) for _ in range(6)):
        compacts.append(Operation("compact log", round(when - last, 3)))
        last = when
    keeper = Part("upkeep", "commits", (tuple(compacts),))
    faults = [Fault("pause", 0.5, "p0", seconds=between(52.0, 70.0), when=drawn.appended, by="p0")]
    checkpoints = drawn.chance.choice([2, 4])
    settings = {"session": 1.5, "deadline": 120.0, "log_checkpoints": checkpoints, "compact_every": 1000}
    return Plot([sleeper.part(), other.part(), keeper], faults, settings)


PLOTS: Mapping[str, Callable[[Drawn], Plot]] = {
    plot.__name__: plot
    for plot in (
        left_in_line,
        silent_line,
        taken_from_the_dead,
        cut_off_with_two,
        appended_and_died,
        unsure_and_asked_again,
        slept_past_clean_up,
    )
}
"""By their names, as themes name them."""
