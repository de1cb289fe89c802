"""Simulate placements: many random histories of a ring, each against an independent model, on the cores Spark has.

The placement simulator of seed 002: from a few nodes a cluster grows by joins, leaves, moves, replaces, cancels and
single steps, and after each of them invariants, model and quorums are compared (placement/ring/simulation). A failure
prints the seed and the configuration, with which exactly that run can be run again: `--seed N --runs 1`, and the
configuration's options. Exit code 4 when any run has failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.simulation_runs import Outcome, add_options, outcomes, report
from epochlake.placement.simulation.placements import CONFIGURATIONS, SimulationSettings, simulate_placements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def simulate(
    spark: SparkSession, configurations: Sequence[SimulationSettings], seeds: Sequence[int]
) -> Iterator[Outcome]:
    """Run every configuration with every seed, one task each; an outcome's number is that of its configuration."""
    chosen = tuple(configurations)
    return outcomes(spark, lambda seed, number: simulate_placements(chosen[number], seed).steps, len(chosen), seeds)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job with these options (default: the process's) and return its exit code."""
    options = _parser().parse_args(argv)
    configurations = _configurations(options)
    from epochlake.jobs.spark_session import session

    spark = session("simulate-placements")
    ended = simulate(spark, configurations, range(options.seed, options.seed + options.runs))
    return report(ended, f"{len(configurations)} configuration(s)", options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simulate_placements", description="Simulate placements of a ring.")
    add_options(parser, runs=10)
    parser.add_argument("--operations", type=int, help="only configurations with so many operations at once")
    parser.add_argument("--factor", type=int, help="only configurations with so many replicas")
    parser.add_argument("--datacenters", type=int, help="only those with so many datacenters; 0: SimpleStrategy")
    parser.add_argument("--nodes", type=int, help="grow to so many nodes (50)")
    return parser


def _configurations(options: argparse.Namespace) -> list[SimulationSettings]:
    wanted = {name: getattr(options, name) for name in ("operations", "factor", "datacenters")}
    chosen = [
        configuration
        for configuration in CONFIGURATIONS
        if all(value is None or getattr(configuration, name) == value for name, value in wanted.items())
    ]
    if not chosen or options.runs < 1:
        _parser().error("no configuration is like that: operations 1, 3, 5; factor 2, 3, 5; datacenters 0, 3; runs ≥ 1")
    if options.nodes is not None:
        chosen = [msgspec.structs.replace(configuration, nodes=options.nodes) for configuration in chosen]
    return chosen


if __name__ == "__main__":
    sys.exit(main())
