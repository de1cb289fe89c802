"""Drawing from seeds: who does what, and what is done to them, all of it by chance.

`Weights` say how often what is drawn; a campaign changes them towards what was met least (coverage.py).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Mapping, Sequence

import msgspec
from epochlake.jobs.testing.nemesis import DATA, MOUNTS, PLACES, PROCESSES
from epochlake.jobs.testing.scenario import Fault
from epochlake.jobs.testing.world import ROOT

Weights = Mapping[str, float]


class Drawing:
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
