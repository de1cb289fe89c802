"""Simulate quorums: many random histories of small rings, every quorum of every step, on the cores Spark has.

The quorum intersection simulator of seed 002: operations of every kind go forth and back a step at a time, and for each
two views that may be in use at once all read quorums are tried against all write quorums
(placement/simulation/histories.py). A failure prints its seed: `--seed N --runs 1` runs exactly that one again.
Exit code 4 when any run has failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epochlake.jobs.simulation_runs import Outcome, add_options, outcomes, report
from epochlake.placement.simulation.histories import STEPS, simulate_quorums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def simulate(spark: SparkSession, seeds: Sequence[int], steps: int = STEPS) -> Iterator[Outcome]:
    """Run every seed, one task each."""
    return outcomes(spark, lambda seed, _: simulate_quorums(seed, steps).steps, 1, seeds)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job with these options (default: the process's) and return its exit code."""
    parser = argparse.ArgumentParser(prog="simulate_quorums", description="Simulate quorums of a ring.")
    add_options(parser, runs=1000)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each run ({STEPS})")
    options = parser.parse_args(argv)
    if options.runs < 1 or options.steps < 1:
        parser.error("give at least one run and one step")
    from epochlake.jobs.spark_session import session

    spark = session("simulate-quorums")
    ended = simulate(spark, range(options.seed, options.seed + options.runs), options.steps)
    return report(ended, "random rings", options)


if __name__ == "__main__":
    sys.exit(main())
