"""What the world does to a cluster: processes die and stand still, networks break, disks fail, hang and fill up."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Sequence

from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.world import World


class Nemesis:
    """Does harm at random moments until it is stopped. `done` counts what it did to somebody who was at work, by name.

    `victims` are processes that may be killed, paused and cut off; `places` are disks. `replace` is called with the
    name of a process that was killed, so that somebody may begin another one in its place.
    """

    def __init__(
        self,
        world: World,
        victims: Callable[[], Sequence[Process]],
        *,
        places: Sequence[str] = (),
        replace: Callable[[Process], None] = lambda _: None,
        mean_seconds: float = 2.0,
        kinds: Sequence[str] | None = None,
        most_places: int = 1,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._victims = victims
        self._places = list(places)
        self._replace = replace
        self._mean = mean_seconds
        self._most_places = most_places
        self._random = random.Random(repr(("nemesis", world.seed)))
        self._stopped = False
        ways: dict[str, Callable[[], bool]] = {
            "kill": self._kill,
            "pause": self._pause,
            "long pause": self._pause_long,
            "cut": self._cut,
            "no majority": self._no_majority,
            "zookeeper forgets": self._forget,
            "log errors": self._log_errors,
            "log away": self._log_away,
            "clock jumps": self._jump,
        }
        if places:
            ways |= {
                "disk away": self._away,
                "disk hangs": self._hang,
                "disk full": self._fill,
                "disk errors": self._disk_errors,
            }
        self._ways = {name: way for name, way in ways.items() if kinds is None or name in kinds}

    def begin(self) -> None:
        """Do harm from now on."""
        process = self._world.process("nemesis")
        self._world.scheduler.spawn(process, "main", self._rage)

    @property
    def is_stopped(self) -> bool:
        """Whether it does no more harm."""
        return self._stopped

    def stop(self) -> None:
        """Do no more harm, and mend what was done."""
        self._stopped = True
        self._world.heal()

    def _rage(self) -> None:
        while not self._stopped:
            self._world.scheduler.sleep(self._random.expovariate(1 / self._mean))
            if self._stopped:
                return
            if self._ways and self._world.is_busy:
                name = self._random.choice(sorted(self._ways))
                self.done[name] += self._ways[name]()

    def _victim(self) -> Process | None:
        """A process that still does something."""
        alive = [process for process in self._victims() if process.alive and process.actors]
        return self._random.choice(alive) if alive else None

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        def unless_stopped() -> None:
            if not self._stopped:
                do()

        self._world.scheduler.after(seconds, unless_stopped, self._world.processes[0])

    def _kill(self) -> bool:
        victim = self._victim()
        if victim is not None:
            self._world.scheduler.kill(victim)
            self._replace(victim)
        return victim is not None

    def _pause(self) -> bool:
        victim = self._victim()
        if victim is not None:
            self._world.scheduler.pause(victim, self._random.uniform(0.01, 5.0))
        return victim is not None

    def _pause_long(self) -> bool:
        victim = self._victim()
        if victim is not None:
            self._world.scheduler.pause(victim, self._random.uniform(10.0, 3600.0))
        return victim is not None

    def _cut(self) -> bool:
        victim = self._victim()
        if victim is not None:
            self._world.ensemble.cut(victim, self._random.uniform(0.1, 30.0))
        return victim is not None

    def _no_majority(self) -> bool:
        self._world.ensemble.lose_majority(self._random.uniform(0.1, 20.0))
        return True

    def _forget(self) -> bool:
        self._world.ensemble.forget()
        return True

    def _log_errors(self) -> bool:
        troubles = self._world.log_troubles
        troubles.chance = self._random.choice([0.02, 0.2])
        self._later(self._random.uniform(0.1, 5.0), lambda: setattr(troubles, "chance", 0.0))
        return True

    def _log_away(self) -> bool:
        troubles = self._world.log_troubles
        troubles.away = True
        self._later(self._random.uniform(0.1, 5.0), lambda: setattr(troubles, "away", False))
        return True

    def _jump(self) -> bool:
        victim = self._victim()
        if victim is not None:
            victim.skew += self._random.choice([-3600.0, -1.0, 1.0, 3600.0])
        return victim is not None

    def _place(self) -> str | None:
        troubles = self._world.troubles
        ill = {*troubles.failing, *troubles.hanging, *troubles.full}
        well = [place for place in self._places if place not in ill]
        return self._random.choice(well) if well and len(ill) < self._most_places else None

    def _away(self) -> bool:
        place, troubles = self._place(), self._world.troubles
        if place is not None:
            troubles.failing[place] = self._random.choice([errno.ENOENT, errno.EIO, errno.ESTALE])
            self._later(self._random.uniform(0.1, 60.0), lambda: troubles.failing.pop(place, None))
        return place is not None

    def _hang(self) -> bool:
        place, troubles = self._place(), self._world.troubles
        if place is not None:
            troubles.hang(place)
            self._later(self._random.uniform(1.0, 120.0), lambda: troubles.release(place))
        return place is not None

    def _fill(self) -> bool:
        place, troubles = self._place(), self._world.troubles
        if place is not None:
            troubles.full.add(place)
            self._later(self._random.uniform(0.1, 30.0), lambda: troubles.full.discard(place))
        return place is not None

    def _disk_errors(self) -> bool:
        troubles = self._world.troubles
        troubles.chance = 0.01
        self._later(self._random.uniform(0.1, 5.0), lambda: setattr(troubles, "chance", 0.0))
        return True
