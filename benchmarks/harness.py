"""What all benchmarks share: fair repetition, results that carry their floor, and a description of the machine.

A figure alone says little on a machine that others use. So what is compared is run in turns, a round of
everything after the other, and medians are taken; the ratio to the floor holds also where the seconds do not.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

import msgspec
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.storage import Storage

STORAGE = Storage(StorageSettings())
"""Local disks as the defaults have them, where no cluster brings its own storage."""


class Target(msgspec.Struct, frozen=True):
    """What a result is to be: at most, or at least, `bound`, in the result's unit or as a ratio to its floor."""

    bound: float
    at_least: bool = False
    of_ratio: bool = False


def at_most(bound: float) -> Target:
    return Target(bound)


def at_least(bound: float) -> Target:
    return Target(bound, at_least=True)


def ratio_at_most(bound: float) -> Target:
    return Target(bound, of_ratio=True)


def ratio_at_least(bound: float) -> Target:
    return Target(bound, at_least=True, of_ratio=True)


class Result(msgspec.Struct, frozen=True):
    """A figure, `value` in `unit`; its floor or peer in the same unit, called `floor_name`; and its target."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        measured = self.ratio if self.target.of_ratio else self.value
        if measured is None:
            return False
        return measured >= self.target.bound if self.target.at_least else measured <= self.target.bound

    def target_text(self) -> str:
        if self.target is None:
            return ""
        unit = "×" if self.target.of_ratio else self.unit
        return f"{'≥' if self.target.at_least else '≤'} {self.target.bound:g} {unit}"


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved(rounds: int, works: Mapping[str, Callable[[], object]], *, before: int = 1) -> dict[str, list[float]]:
    """Seconds of each of `works`, run in turns `rounds` times after some rounds before, which do not count.

    Each round begins with another one, so that none is always the one that comes after the others' dirt.
    """
    names = list(works)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(before + rounds):
        gc.collect()
        first = number % len(names)
        for name in names[first:] + names[:first]:
            once = seconds(works[name])
            if number >= before:
                taken[name].append(once)
    return taken


def medians(rounds: int, works: Mapping[str, Callable[[], object]], *, before: int = 1) -> dict[str, float]:
    """The median of each of `works`, in seconds, as `interleaved` runs them."""
    return {name: statistics.median(taken) for name, taken in interleaved(rounds, works, before=before).items()}


def machine() -> str:
    """What was measured on, without saying whose it is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("deltalake", "pyspark", "pyarrow", "numpy"))
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {sys.version.split()[0]}, {packages}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
