"""Many runs of a simulator on the cores that Spark has: each a task of its own, known by its seed and its number.

A run is a function of its seed, so nothing has to be kept of the ones that went well. Runs are handed to
Spark in rounds of whole seeds: what has ended is known round by round, and a range of seeds can be run by itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.workers.spark import SparkWorkers
from epochlake.placement.errors import InvariantViolated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USAGE, FAILED = 2, 4
RUNS_IN_A_ROUND = 180


class Outcome(msgspec.Struct, frozen=True):
    """One run, of what has this number: how many steps it made, or why it failed."""

    seed: int
    number: int
    steps: int
    failure: str | None


def outcomes(
    spark: SparkSession, run: Callable[[int, int], int], numbers: int, seeds: Sequence[int]
) -> Iterator[Outcome]:
    """`run(seed, number)` for each seed and each number below `numbers`, as rounds of them end.

    It gives the steps that it made; an `InvariantViolated` of it is the run's failure.
    """

    def attempt(one: tuple[int, int]) -> Outcome:
        try:
            return Outcome(*one, steps=run(*one), failure=None)
        except InvariantViolated as error:
            return Outcome(*one, steps=0, failure=str(error))

    workers = SparkWorkers(spark)
    together = max(1, RUNS_IN_A_ROUND // numbers)
    for first in range(0, len(seeds), together):
        runs = [(seed, number) for seed in seeds[first : first + together] for number in range(numbers)]
        yield from workers.run(attempt, runs, returns=Outcome)


def add_options(parser: argparse.ArgumentParser, runs: int) -> None:
    parser.add_argument("--runs", type=int, default=runs, help=f"how many seeds ({runs})")
    parser.add_argument("--seed", type=int, default=1, help="the first run's seed; each further run takes the next (1)")


def report(ended: Iterable[Outcome], what: str, options: argparse.Namespace) -> int:
    """Print failures as they come and a summary at the end; the exit code. Runs without a step have proved nothing."""
    started, runs, steps, failed = time.monotonic(), 0, 0, 0
    for outcome in ended:
        runs, steps = runs + 1, steps + outcome.steps
        if outcome.failure is not None:
            failed += 1
            print(outcome.failure, flush=True)
    seconds = time.monotonic() - started
    print(
        f"{runs} runs of {what}, seeds {options.seed} to {options.seed + options.runs - 1}: "
        f"{steps} steps, {steps / seconds:.0f} a second, {failed} failed"
    )
    if not steps and not failed:
        print("no run made a step, so nothing was shown: ask for more nodes or steps", file=sys.stderr)
        return USAGE
    return FAILED if failed else 0
