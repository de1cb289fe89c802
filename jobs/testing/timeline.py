"""A history for people: what its actors did, in order, in lines of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from epochlake.jobs.testing.scenario import Scenario
from epochlake.jobs.testing.scheduler import Step

WIDTH = 80
_ACTOR = 14


def timeline(scenario: Scenario, steps: Sequence[Step], *, accesses: bool = False) -> Iterator[str]:
    """The lines: who takes part, then seconds, actor and what it did. `accesses`: also each look at disk or network."""
    settings = scenario.settings
    yield (
        f"{scenario.kind} history {scenario.seed}: {'Delta tables' if settings.delta else 'in memory'}, "
        f"{len(scenario.parts)} parts, {len(scenario.faults)} faults, {scenario.size} in all"
    )
    for step in steps:
        if step.said or accesses:
            yield from _lines(step)


def _lines(step: Step) -> Iterator[str]:
    actor = step.actor.removesuffix("/main").replace("/thread ", ".")
    head = f"{step.at:9.3f}  {actor:<{_ACTOR}} "
    first, *rest = textwrap.wrap(step.what, WIDTH - len(head), break_long_words=True) or [""]
    yield head + first
    yield from (" " * len(head) + line for line in rest)
