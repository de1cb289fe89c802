"""Try mutations: `python -m tests.campaign_mutations [NAME…] [--histories N] [--minutes M] [--pool P]`.

Mutations are made in copies of the packages, several in one (see pools.py), and `epochlake.jobs.campaign` runs there
from seed 1 until a history says that something does not hold, or N histories of each kind have found nothing. What came
of it is kept as JSON and shown as a page. What is known already, of the same text under the same campaign, is not run
again unless `--again` says so; a mutation that was not found goes on after the histories that it has had.
With `--theme` all histories are of that one, and what is counted is kept apart ("rows of moving").
Exit code 1 when a mutation was not found, or does not run at all.
"""

from __future__ import annotations

import argparse
import compileall
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from epochlake.jobs.campaign import theme_names

from tests.campaign_mutations import MUTATIONS, Mutation, pools
from tests.campaign_mutations.pools import Play, Played, Pool, pooled
from tests.campaign_mutations.records import Records, Result, campaign_digest, digest_of
from tests.mutants import PACKAGES, REPOSITORY

BLOCK = {"log": 200, "log tables": 160, "rows": 24, "rows tables": 48, "merges": 24}
"""So many seeds of each kind a pool looks at before another one has its turn: some 30 to 60 seconds' work."""


def main(argv: Sequence[str] | None = None) -> int:
    """Try the mutations of these names, or all of them. The exit code."""
    options = _parser().parse_args(argv)
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := set(options.names) - known.keys():
        print(f"there is no mutation {', '.join(sorted(unknown))}. There are:", *known, sep="\n  ")
        return 2
    chosen = [known[name] for name in options.names] or list(MUTATIONS)
    for package in PACKAGES:
        compileall.compile_dir(REPOSITORY / package, quiet=1)
    records = Records(Path(options.results))
    trial = Trial(chosen, records, options.histories, options.pool, again=options.again, theme=options.theme)
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    with ThreadPoolExecutor(options.jobs) as executor:
        for worker in [executor.submit(trial.work, until) for _ in range(options.jobs)]:
            worker.result()
    results = trial.results.values()
    missed = [result for result in results if result.state != "found"]
    print(f"{len(results) - len(missed)} of {len(results)} were found; all results are in {records.page}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="campaign-mutations", description="Mutations that the campaign must find.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the mutations to try (all)")
    parser.add_argument("--histories", type=int, default=400, help="the most histories of each kind (400)")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--theme", default="", help="histories of this theme only")
    parser.add_argument("--pool", type=int, default=16, help="how many mutations share their histories (16)")
    parser.add_argument("--jobs", type=int, default=1, help="how many pools run side by side (1)")
    parser.add_argument("--again", action="store_true", help="run also what is known already")
    default = "build/campaign-mutations.json"
    parser.add_argument("--results", default=default, help=f"the file of results; the page is beside it ({default})")
    return parser


def _block(pool: Pool) -> int:
    kind, _, theme = pool.kind.partition(" of ")
    return BLOCK[kind] // 4 if theme else BLOCK[kind]


class Trial:
    """Mutations that are tried in pools, those that have had the fewest histories first."""

    def __init__(
        self,
        chosen: Sequence[Mutation],
        records: Records,
        histories: int,
        most: int,
        *,
        again: bool = False,
        theme: str = "",
    ) -> None:
        self._theme = theme
        self._of_theme = f" of {theme}" if theme else ""
        self._records = records
        self._histories = histories
        self._lock = threading.Lock()
        self._working = 0
        self.results = {mutation.name: self._known(mutation, again=again) for mutation in chosen}
        self._pools = self._first_pools(chosen, most)
        records.keep(self.results.values())

    def _known(self, mutation: Mutation, *, again: bool) -> Result:
        known = None if again else self._records.of(mutation)
        state = "not found" if mutation.broken_files is not None else "not there"
        return known or Result(mutation.name, state, digest_of(mutation), campaign_digest())

    def _first_pools(self, chosen: Sequence[Mutation], most: int) -> list[Pool]:
        found: list[Pool] = []
        open_ones = [one for one in chosen if self.results[one.name].state == "not found"]
        for kind in sorted({kind for one in open_ones for kind in one.kinds}):
            if self._theme and self._theme not in theme_names(kind.split()[0]):
                continue
            by_seeds: dict[int, list[Mutation]] = {}
            for one in open_ones:
                if kind in one.kinds:
                    seeds = self.results[one.name].seeds.get(kind + self._of_theme, 0)
                    by_seeds.setdefault(seeds, []).append(one)
            for seeds, ones in by_seeds.items():
                found += pooled(kind + self._of_theme, ones, most, seeds)
        return found

    def work(self, until: float | None) -> None:
        """Advance pools until none is left, or the time is over."""
        while (pool := self._next(until)) is not None:
            left: list[Pool] = []
            try:
                left = self._advance(pool)
            finally:
                with self._lock:
                    self._working -= 1
                    self._pools += left

    def _next(self, until: float | None) -> Pool | None:
        """The pool whose turn it is; waits for one while others may still come out of those that run."""
        while until is None or time.monotonic() < until:
            with self._lock:
                self._pools = [pool for pool in self._pools if pool.members and pool.seeds < self._histories]
                if self._pools:
                    self._working += 1
                    pool = min(self._pools, key=lambda one: one.seeds / _block(one))
                    self._pools.remove(pool)
                    pool.members = [one for one in pool.members if self.results[one.name].state == "not found"]
                    return pool
                if not self._working:
                    return None
            time.sleep(0.5)
        return None

    def _advance(self, pool: Pool) -> list[Pool]:
        if not pool.members:
            return []
        members, began = list(pool.members), time.monotonic()
        played, guilty, left = pool.advance(min(_block(pool), self._histories - pool.seeds), self._play)
        found = {mutation.name for mutation, _ in guilty}
        for member in members:
            result = self.results[member.name]
            # The others run the seed again that has failed.
            ran = played.histories - (played.failed is not None and member.name not in found)
            result.seeds = {**result.seeds, pool.kind: pool.seeds}
            result.run = {**result.run, pool.kind: result.run.get(pool.kind, 0) + ran}
            result.steps += played.steps
            result.seconds = round(result.seconds + time.monotonic() - began, 1)
            result.beside = max(result.beside, len(members) - 1)
        for mutation, failed in guilty:
            self._found(self.results[mutation.name], pool.kind, failed)
        self._records.keep(self.results[member.name] for member in members)
        return left

    def _found(self, result: Result, kind: str, failed: Played) -> None:
        result.state = "does not run" if failed.failed is None else "found"
        result.kind, result.said = kind, failed.said
        print(f"{result.state:12} {result.histories:5} {kind:11}  {result.name}\n    {result.said[:160]}", flush=True)

    @property
    def _play(self) -> Play:
        return pools.play


if __name__ == "__main__":
    sys.exit(main())
