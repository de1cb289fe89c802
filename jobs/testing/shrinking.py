"""Making a failing scenario shorter: fewer parts, faults and operations, as long as its history still fails.

What is left out changes the course of all that remains, so each shorter scenario is tried with a few seeds of the
schedule; the first that fails goes on in place of the longer one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from epochlake.jobs.testing.scenario import Operation, Part, Scenario
from msgspec.structs import replace

T = TypeVar("T")

SEEDS = 3
"""How many courses of a shorter scenario are tried."""

WHO = re.compile(r"^(at rest|rest \d+|\S*\d\S*|operator|upkeep)(?=[ :])")
"""Who met a violation stands at its beginning."""
GROUPED = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
QUOTED = re.compile(r"(?<!\w)b?'[^']*'|(?<!\w)b?\"[^\"]*\"")
VARYING = re.compile(r"\S*\d\S*|\bNone\b|\b(?:ONE|QUORUM|ALL)\b")


def rule_of(violation: str) -> str:
    """Which rule a violation says to be broken: its words, without who, which, where, when and how many.

    Another error, another outcome or another sentence is another rule; another row, request, epoch or level is not.
    """
    words = WHO.sub("#", violation)
    while (fewer := GROUPED.sub("…", words)) != words:
        words = fewer
    # A bracket that never closes is the beginning of what was cut off.
    words = QUOTED.sub("…", re.sub(r"[(\[{].*", "…", words, flags=re.DOTALL))
    return " ".join(VARYING.sub("#", words).split())


def shrunk(
    scenario: Scenario,
    fails: Callable[[Scenario], bool],
    most_tries: int = 300,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Scenario:
    """The shortest scenario that was found to fail, in at most so many histories, and before the time `is_over`;
    `scenario` when none is shorter.
    """
    tries = 0
    while True:
        for shorter in _shorter(scenario):
            found = None
            for seed in (scenario.seed, *range(1, SEEDS)):
                if tries >= most_tries or is_over():
                    return scenario
                tries += 1
                candidate = replace(shorter, seed=seed)
                if fails(candidate):
                    found = candidate
                    break
            if found is not None:
                scenario = found
                break
        else:
            return scenario


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    """Shorter scenarios, those first that lack most."""
    for faults in _without(scenario.faults):
        yield replace(scenario, faults=faults)
    for parts in _without(scenario.parts):
        if parts:
            yield replace(scenario, parts=parts)
    for number, part in enumerate(scenario.parts):
        for thread, operations in enumerate(part.threads):
            for fewer in _without(operations):
                parts = (*scenario.parts[:number], _with(part, thread, fewer), *scenario.parts[number + 1 :])
                yield replace(scenario, parts=parts)
    waits = [operation.wait for part in scenario.parts for thread in part.threads for operation in thread]
    if any(waits):
        yield replace(scenario, parts=tuple(_hurried(part) for part in scenario.parts))


def _without(some: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """A tuple without its halves, its quarters, … and single members."""
    size = len(some)
    while size:
        for start in range(0, len(some), size):
            yield (*some[:start], *some[start + size :])
        size //= 2


def _with(part: Part, thread: int, operations: tuple[Operation, ...]) -> Part:
    threads = (*part.threads[:thread], operations, *part.threads[thread + 1 :])
    return replace(part, threads=threads)


def _hurried(part: Part) -> Part:
    return replace(part, threads=tuple(tuple(replace(one, wait=0.0) for one in thread) for thread in part.threads))
