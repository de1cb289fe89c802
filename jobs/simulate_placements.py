"""Simulate placements: many random histories of a ring, each against an independent model, on the cores Spark has.

The placement simulator of seed 002: from a few nodes a cluster grows by joins, leaves, moves, replaces, cancels and
single steps, and after each of them invariants, model and quorums are compared (placement/ring/simulation). A failure
prints the seed and the configuration, with which exactly that run can be run again: `--seed N --runs 1`, and the
configuration's options. Exit code 4 when any run has failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.placement.errors import InvariantViolated
from epochlake.placement.ring.simulation.placements import CONFIGURATIONS, Configuration, simulate_placements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED = 4
RESULT_DDL = "seed bigint, configuration int, steps bigint, failure string"


class Outcome(msgspec.Struct, frozen=True):
    """One run: how many steps it made, or why it failed."""

    seed: int
    configuration: Configuration
    steps: int
    failure: str | None


def simulate(spark: SparkSession, configurations: Sequence[Configuration], seeds: Sequence[int]) -> Iterator[Outcome]:
    """Run every configuration with every seed, one task each, as they end."""
    runs = [(seed, number) for seed in seeds for number in range(len(configurations))]
    frame = spark.createDataFrame(runs, "seed bigint, configuration int").repartition(len(runs))
    chosen = tuple(configurations)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                steps, failure = 0, None
                try:
                    steps = simulate_placements(chosen[row["configuration"]], row["seed"]).steps
                except InvariantViolated as error:
                    failure = str(error)
                columns = [[row["seed"]], [row["configuration"]], [steps], [failure]]
                types = [pa.int64(), pa.int32(), pa.int64(), pa.string()]
                arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, names=["seed", "configuration", "steps", "failure"])

    for row in frame.mapInArrow(run, RESULT_DDL).toLocalIterator(prefetchPartitions=True):
        yield Outcome(row.seed, chosen[row.configuration], row.steps, row.failure)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job with these options (default: the process's) and return its exit code."""
    options = _parser().parse_args(argv)
    configurations = _configurations(options)
    from epochlake.jobs.spark_session import session

    spark = session("simulate-placements")
    started, runs, steps = time.monotonic(), 0, 0
    failures: list[Outcome] = []
    for outcome in simulate(spark, configurations, range(options.seed, options.seed + options.runs)):
        runs, steps = runs + 1, steps + outcome.steps
        if outcome.failure is not None:
            failures.append(outcome)
            print(outcome.failure, flush=True)
    seconds = time.monotonic() - started
    print(
        f"{runs} runs of {len(configurations)} configuration(s), seeds {options.seed} to "
        f"{options.seed + options.runs - 1}: {steps} steps, {steps / seconds:.0f} a second, {len(failures)} failed"
    )
    return FAILED if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simulate_placements", description="Simulate placements of a ring.")
    parser.add_argument("--runs", type=int, default=10, help="runs of each configuration (10)")
    parser.add_argument("--seed", type=int, default=1, help="the first run's seed; each further run takes the next (1)")
    parser.add_argument("--operations", type=int, help="only configurations with so many operations at once")
    parser.add_argument("--factor", type=int, help="only configurations with so many replicas")
    parser.add_argument("--datacenters", type=int, help="only those with so many datacenters; 0: SimpleStrategy")
    parser.add_argument("--nodes", type=int, help="grow to so many nodes (50)")
    return parser


def _configurations(options: argparse.Namespace) -> list[Configuration]:
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
