"""Histories of whole clusters, one after the other, on all cores: `make campaign ARGS="--histories 1000 --first 1"`.

Production code runs under a seeded clock, disk and network (jobs/testing/). Each history is a seed: a failure prints
it, and `--only rows --first SEED --histories 1` runs it again. Exit code 4 when any history has failed.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

KINDS = ("log", "rows")
FAILED = 4


class Outcome(msgspec.Struct, frozen=True):
    """One history: its steps, what was done to it, how often each outcome was told, and what did not hold of it."""

    kind: str
    seed: int
    steps: int
    harm: dict[str, int]
    told: dict[str, int]
    violations: tuple[str, ...]


def attempt(one: tuple[str, int]) -> Outcome:
    """Run one history. An error of the world itself is a violation as well."""
    from epochlake.jobs.testing import log_histories, row_histories

    kind, seed = one
    try:
        if kind == "log":
            history = log_histories.log_history(seed)
            told = Counter(type(call.outcome).__name__ for call in history.calls)
            found = log_histories.violations(history)
            return Outcome(kind, seed, history.steps, dict(history.harm), dict(told), tuple(found))
        rows = row_histories.row_history(seed)
        told = Counter(f"{one.kind}, {'acknowledged' if one.acknowledged else 'not'}" for one in rows.accesses)
        return Outcome(kind, seed, rows.steps, dict(rows.harm), dict(told), tuple(row_histories.violations(rows)))
    except Exception as error:
        return Outcome(kind, seed, 0, {}, {}, (f"the world ended by {type(error).__name__}: {error}",))


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def campaign(kinds: Sequence[str], seeds: range, seconds: float | None = None) -> list[Outcome]:
    """Run histories of these kinds and seeds until the time is over; what became of those that were run."""
    asked = [(kind, seed) for seed in seeds for kind in kinds]
    ended: list[Outcome] = []
    started = time.monotonic()
    # Each history in a process that has begun with the same hashes: sets have one order then.
    os.environ["PYTHONHASHSEED"] = "0"
    with multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1, _quiet) as pool:
        for outcome in pool.imap_unordered(attempt, asked):
            ended.append(outcome)
            for violation in outcome.violations[:3]:
                print(f"{outcome.kind} history {outcome.seed}: {violation}", flush=True)
            if seconds is not None and time.monotonic() - started > seconds:
                pool.terminate()
                break
    return ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job with these options (default: the process's) and return its exit code."""
    parser = argparse.ArgumentParser(prog="campaign", description="Histories of whole clusters under seeded faults.")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--histories", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--only", choices=KINDS, default=None, help="histories of one kind")
    options = parser.parse_args(argv)
    if options.histories < 1:
        parser.error("give at least one history")
    kinds = KINDS if options.only is None else (options.only,)
    started = time.monotonic()
    seconds = None if options.minutes is None else 60 * options.minutes
    ended = campaign(kinds, range(options.first, options.first + options.histories), seconds)
    taken = time.monotonic() - started
    for kind in kinds:
        _summary(kind, [one for one in ended if one.kind == kind], taken)
    return FAILED if any(one.violations for one in ended) else 0


def _summary(kind: str, ended: Sequence[Outcome], seconds: float) -> None:
    harm: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for one in ended:
        harm.update(one.harm)
        told.update(one.told)
    steps, failed = sum(one.steps for one in ended), sum(bool(one.violations) for one in ended)
    print(f"{len(ended)} {kind} histories, {steps:,} steps, {steps / seconds:.0f} a second, {failed} failed")
    for title, counted in (("told", told), ("done to them", harm)):
        print(f"  {title}: {', '.join(f'{count:,} {name}' for name, count in counted.most_common()) or 'nothing'}")


if __name__ == "__main__":
    sys.exit(main())
