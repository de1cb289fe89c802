"""Who goes on next, and when: one thread, one seed, no clock but its own.

Actors are greenlets. Only one runs at a time, and it gives way only where production code waits or touches something
outside (`point`, `wait`), so a run depends on nothing but the seed. Time stands still while somebody can go on; when
nobody can, it jumps to the next moment at which somebody wakes up.
"""

from __future__ import annotations

import heapq
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import greenlet

START = 1_700_000_000.0
"""Seconds since 1970 at which each world begins."""


LOOK_SECONDS = 0.5
"""So often it is looked whether a world takes too long."""

STANDING = 20
"""So many times as long as it may work a world may last, by real time."""


class WorldEnded(BaseException):
    """The world is over: what still runs in it ends, and changes nothing any more."""


class Stuck(Exception):
    """Nobody can go on, and nothing will wake anybody up."""


class StepsUsedUp(Exception):
    """The world has gone on for longer than it may: something does not come to its end."""


class Step(NamedTuple):
    """What an actor did at a moment: for timelines, and to tell whether two runs are the same.

    `said`: by the actor, about what it is doing; else it is an access.
    """

    number: int
    at: float
    actor: str
    what: str
    said: bool = False


class Process:
    """What lives and dies together: actors that share memory. `skew` is how far its wall clock is off, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.skew = 0.0
        self.alive = True
        self.paused_until = 0.0
        self.actors: list[Actor] = []


class Waiter:
    """What an actor waits for. `wake` lets it go on; `woken` tells it apart from a wait that timed out."""

    def __init__(self) -> None:
        self.woken = False
        self.actor: Actor | None = None


class Actor:
    """A thread of a process. `result` and `error` are there when it is `done`."""

    def __init__(self, name: str, process: Process, run: Callable[[], Any]) -> None:
        self.name = name
        self.process = process
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.locals: dict[object, dict[str, Any]] = {}
        self.joined: list[Waiter] = []
        self.awaited = False
        """Somebody asks for its outcome, so that an error is not the world's."""
        self._run = run
        self.greenlet = greenlet.greenlet(self._main)

    def _main(self) -> None:
        try:
            self.result = self._run()
        except BaseException as error:  # it is told to who waits for the actor, and to the world
            self.error = error


class Scheduler:
    """Runs actors until all that matter are done. `most_steps` bounds a world that never comes to its end."""

    def __init__(self, seed: int | str, most_steps: int = 1_000_000) -> None:
        self.random = random.Random(repr(("schedule", seed)))
        self.now = START
        self.steps = 0
        self.trace: list[Step] = []
        self.traced = False
        """Whether each access is kept in the trace; what actors say of themselves is there always."""
        self.failed: list[Actor] = []
        self.over = False
        self.is_late = False
        self.most_steps = most_steps
        self.lookout: Callable[[Process, str], None] | None = None
        """Is told of accesses to storage and ZooKeeper by their kinds, of each before and after its effect."""
        self._ready: list[Actor] = []
        self._timers: list[tuple[float, int, Waiter]] = []
        self._timer = 0
        self._current: Actor | None = None
        self._hub: Any = None
        self._paused: list[Actor] = []
        self._buried: list[Actor] = []
        self._all: dict[Actor, None] = {}

    @property
    def running(self) -> Actor | None:
        """The actor that runs now; None outside of all."""
        return self._current

    @property
    def current(self) -> Actor:
        """The actor that runs now. Raises WorldEnded outside of one."""
        if self.over or self._current is None:
            raise WorldEnded
        return self._current

    def spawn(self, process: Process, name: str, run: Callable[[], Any]) -> Actor:
        """A new actor of a process; it begins when its turn comes."""
        actor = Actor(f"{process.name}/{name}", process, run)
        process.actors.append(actor)
        self._all[actor] = None
        self._ready.append(actor)
        return actor

    def point(self, what: str) -> None:
        """A point where others may go on before this actor does."""
        actor = self.current
        self._note(actor, what)
        self._ready.append(actor)
        self._hub_turn(actor)

    def note(self, what: str) -> None:
        """Put into the trace what the running actor does, for people."""
        self.trace.append(Step(self.steps, self.now - START, self.current.name, what, said=True))

    def access(self, what: str, mean_seconds: float) -> None:
        """Something outside is touched, which takes a while: others go on meanwhile."""
        self._note(self.current, what)
        self.sleep(self.random.expovariate(1 / mean_seconds))

    def saw(self, who: str, what: str) -> None:
        """Put into the trace what somebody does who is no actor."""
        if self.traced:
            self.trace.append(Step(self.steps, self.now - START, who, what))

    def meet(self, process: Process, moment: str) -> None:
        """A process is about to do something outside, or has just done it."""
        if self.lookout is not None:
            self.lookout(process, moment)

    def wait(self, waiter: Waiter, timeout: float | None = None) -> bool:
        """Wait until somebody wakes the waiter; False when `timeout` seconds have passed before."""
        actor = self.current
        if waiter.woken:
            return True
        waiter.actor = actor
        if timeout is not None:
            self._timer += 1
            heapq.heappush(self._timers, (self.now + max(0.0, timeout), self._timer, waiter))
        self._hub_turn(actor)
        waiter.actor = None
        return waiter.woken

    def wake(self, waiter: Waiter) -> None:
        """Let who waits go on; one that comes to wait later does not wait."""
        if not waiter.woken:
            waiter.woken = True
            self._resume(waiter)

    def sleep(self, seconds: float) -> None:
        """Let the time pass for the actor that runs now."""
        self.wait(Waiter(), max(0.0, seconds))

    def after(self, seconds: float, do: Callable[[], None], process: Process, name: str = "timer") -> None:
        """Do something in a new actor when so many seconds have passed."""

        def run() -> None:
            self.sleep(seconds)
            do()

        self.spawn(process, name, run)

    def join(self, actor: Actor, timeout: float | None = None) -> bool:
        """Wait until an actor is done."""
        if actor.done:
            return True
        waiter = Waiter()
        actor.joined.append(waiter)
        return self.wait(waiter, timeout)

    def kill(self, process: Process) -> None:
        """End a process at once: none of its actors runs again, not even to clean up."""
        process.alive = False
        for actor in process.actors:
            if not actor.done and actor is not self._current:
                self._bury(actor)
        self._ready = [actor for actor in self._ready if actor.process.alive]
        self._paused = [actor for actor in self._paused if actor.process.alive]
        current = self._current
        if current is not None and current.process is process:
            self._bury(current)
            self._switch_to_hub()

    def pause(self, process: Process, seconds: float) -> None:
        """Stop a process for so long, as by SIGSTOP; the clock goes on."""
        process.paused_until = max(process.paused_until, self.now + seconds)

    def run(self, until: Callable[[], bool]) -> None:
        """Let actors run until `until` is true. Raises Stuck, StepsUsedUp, and what an actor of nobody's has raised."""
        self._hub = greenlet.getcurrent()
        while not until():
            if self.steps > self.most_steps or self.is_late:
                raise StepsUsedUp(f"{self.steps} steps{' and too much time' * self.is_late}, and not at the end")
            actor = self._next()
            if actor is None:
                raise Stuck(f"nobody can go on at {self.now - START:.3f} s, after {self.steps} steps")
            self.steps += 1
            self._current = actor
            actor.greenlet.parent = self._hub  # where it leads when it ends, whoever has spawned it
            actor.greenlet.switch()
            self._current = None
            if actor.greenlet.dead:
                self._ended(actor)
        if self.is_late:
            # Who had to end with the world has no outcome that anybody may judge, even if nobody else is waited for.
            raise StepsUsedUp(f"{self.steps} steps and too much time, and cut off at the end")

    def end(self) -> None:
        """The world is over: its actors are let go, and whatever they would do now ends them."""
        self.over = True
        self._ready, self._timers, self._paused = [], [], []
        # Each is woken up once, to end by the first thing that it wants: nothing is left to be collected later.
        self._hub = greenlet.getcurrent()
        left, self._buried = [*self._buried, *self._all], []
        for actor in left:
            actor.greenlet.parent = self._hub
            while actor.greenlet and not actor.greenlet.dead:
                actor.greenlet.throw(WorldEnded)

    def _next(self) -> Actor | None:
        while True:
            self._unpause()
            if self._ready:
                index = self.random.randrange(len(self._ready)) if len(self._ready) > 1 else 0
                self._ready[index], self._ready[-1] = self._ready[-1], self._ready[index]
                actor = self._ready.pop()
                if actor.process.paused_until > self.now:
                    self._paused.append(actor)
                    continue
                return actor
            moments = [self._timers[0][0]] if self._timers else []
            moments += [actor.process.paused_until for actor in self._paused]
            if not moments:
                return None
            self.now = max(self.now, min(moments))
            while self._timers and self._timers[0][0] <= self.now:
                _, _, waiter = heapq.heappop(self._timers)
                if not waiter.woken:
                    self._resume(waiter)

    def _unpause(self) -> None:
        if self._paused:
            back = [actor for actor in self._paused if actor.process.paused_until <= self.now]
            if back:
                self._paused = [actor for actor in self._paused if actor not in back]
                self._ready += back

    def _resume(self, waiter: Waiter) -> None:
        actor, waiter.actor = waiter.actor, None
        if actor is not None and actor.process.alive and not actor.done:
            self._ready.append(actor)

    def _ended(self, actor: Actor) -> None:
        actor.done = True
        actor.process.actors.remove(actor)
        self._all.pop(actor, None)
        if actor.error is not None and not actor.awaited and not isinstance(actor.error, WorldEnded):
            self.failed.append(actor)
        for waiter in actor.joined:
            self.wake(waiter)

    def _bury(self, actor: Actor) -> None:
        """Keep what never runs again: a greenlet that is collected is woken up to clean up."""
        actor.done = True
        self._buried.append(actor)

    def _hub_turn(self, actor: Actor) -> None:
        self._switch_to_hub()
        if self.over:
            raise WorldEnded

    def _switch_to_hub(self) -> None:
        self._hub.switch()

    def _note(self, actor: Actor, what: str) -> None:
        if self.traced:
            self.trace.append(Step(self.steps, self.now - START, actor.name, what))


@contextmanager
def ended_afterwards(scheduler: Scheduler) -> Iterator[Scheduler]:
    """End the world when the block ends."""
    try:
        yield scheduler
    finally:
        scheduler.end()


@contextmanager
def watched(scheduler: Scheduler, seconds: float, until: float = math.inf) -> Iterator[None]:
    """End the world when the block has worked for longer, or has stood still for far longer, as where it waits for what
    never comes: also an actor that never comes to a point of it. On a machine that has much else to do it has its time.
    `until`: seconds since 1970 at which it ends in any case.

    Only in the main thread of a process.
    """
    worked, began = time.process_time(), time.monotonic()

    def ring(number: int, frame: object) -> None:
        works, lasts = time.process_time() - worked, time.monotonic() - began
        if works < seconds and lasts < STANDING * seconds and time.time() < until:
            return
        scheduler.is_late = True
        if scheduler.running is not None:
            raise WorldEnded

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, LOOK_SECONDS), LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
