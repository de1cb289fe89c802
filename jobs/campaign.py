"""Histories of whole clusters, one after the other, on all cores: `make campaign ARGS="--hours 8 --seed 1"`.

Production code runs under a seeded clock, disk and network (jobs/testing/). A history follows from its scenario, which
is drawn from its seed. One that fails is made shorter, printed as a timeline, and kept as a file: `--replay FILE` runs
it again, and `--keep FILE` makes it a test. Exit code 4 when any history has failed, 75 when the time was over before
one had ended.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from epochlake.placement.decoding import decodable

if TYPE_CHECKING:
    from epochlake.jobs.testing.scenario import Scenario
    from epochlake.jobs.testing.scheduler import Step
    from epochlake.jobs.testing.world import World

KINDS = ("log", "rows", "merges")
FAILED = 4
NOTHING_SHOWN = 75
"""No history had ended when the time was over."""
INTERRUPTED = 130
SHOWN = 3
"""Violations of a history; of the others their number is told."""
FAILURES = Path("build/histories")
"""Where scenarios that failed are kept."""
SHORTER = "-shorter"
"""How the name ends of one that was made shorter: the first one stays beside it."""
KEPT = Path("tests/data/histories")
"""Where those are that have become tests."""
LONGEST_SECONDS = 300.0
"""Of work, after which a history counts as one that does not end."""
MOST_STEPS = 2_000_000
"""After which a history counts as one that does not end: most have 15,000."""
STEPS = "EPOCHLAKE_CAMPAIGN_STEPS"
"""Has another limit of steps, for the processes that run histories as well."""
STEER_EVERY = 100
"""After so many histories the next ones are drawn by what those before have met least."""


LATER = 0.4
"""So likely the history of a seed is about a theme that came later than those which seeds have drawn before."""


MANY = 10
"""Of so many later themes on that share is drawn; of one a tenth of it."""


class Task(msgspec.Struct, frozen=True):
    """One history to be run: its scenario is drawn from `seed` with these weights, of a theme; "": of any."""

    kind: str
    seed: int
    weights: dict[str, float] = {}
    theme: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """One history: its steps, what was done to it, what it met, how often each outcome was told, and what did not hold
    of it. `is_cut_off`: the time was over before it had ended, so nothing is known of it.
    """

    kind: str
    seed: int
    steps: int = 0
    seconds: float = 0.0
    delta: bool = False
    harm: dict[str, int] = {}
    told: dict[str, int] = {}
    coverage: dict[str, int] = {}
    violations: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    theme: str = ""
    is_cut_off: bool = False


class Run(NamedTuple):
    """What came out of one scenario. `is_cut_off`: it was ended where the time was over, and says nothing."""

    steps: int
    harm: Counter[str]
    told: Counter[str]
    coverage: Counter[str]
    violations: list[str]
    said: list[Step]
    is_cut_off: bool = False


def drawn(task: Task) -> Scenario:
    """The scenario of a task."""
    from epochlake.jobs.testing import log_themes, merge_drawing, row_themes
    from epochlake.jobs.testing.log_drawing import log_scenario
    from epochlake.jobs.testing.row_drawing import row_scenario

    match task.kind:
        case "log":
            return log_scenario(task.seed, task.weights, theme=log_themes.BY_NAME[task.theme] if task.theme else None)
        case "merges":
            about = merge_drawing.BY_NAME[task.theme] if task.theme else None
            return merge_drawing.merge_scenario(task.seed, task.weights, theme=about)
    return row_scenario(task.seed, task.weights, theme=row_themes.BY_NAME[task.theme] if task.theme else None)


def theme_names(kind: str) -> list[str]:
    """What histories of a kind can be about."""
    from epochlake.jobs.testing import log_themes, merge_drawing, row_themes

    themes: dict[str, Mapping[str, object]] = {
        "log": log_themes.BY_NAME,
        "rows": row_themes.BY_NAME,
        "merges": merge_drawing.BY_NAME,
    }
    return list(themes.get(kind, {}))


def later_themes(kind: str) -> list[str]:
    """Those of `theme_names` that a scenario does not draw by itself: what seeds drew before stays what it was."""
    from epochlake.jobs.testing import log_themes, merge_drawing, row_themes

    drawn: dict[str, tuple[Mapping[str, object], Sequence[object]]] = {
        "log": (log_themes.BY_NAME, log_themes.LOG_THEMES),
        "rows": (row_themes.BY_NAME, row_themes.THEMES),
        "merges": (merge_drawing.BY_NAME, merge_drawing.THEMES),
    }
    by_name, before = drawn[kind]
    return [name for name, theme in by_name.items() if theme not in before and not name.startswith("_")]


def later_theme(kind: str, seed: int, share: float) -> str:
    """The later theme that the history of a seed is about, each of them as likely; "" for most seeds.

    Where a kind has few of them, they are drawn less often.
    """
    chance, later = random.Random(f"later theme of {kind} {seed}"), later_themes(kind)
    return chance.choice(later) if chance.random() < share * min(1.0, len(later) / MANY) else ""


def run(scenario: Scenario, *, accesses: bool = False, until: float | None = None) -> Run:
    """Run one scenario. An error of the world itself is a violation as well, and not coming to an end.

    `accesses`: keep each of them. `until`: when the time is over, in seconds since 1970: it is cut off then.
    """
    from epochlake.jobs.testing.scheduler import WorldEnded, watched
    from epochlake.jobs.testing.world import world_of

    world = world_of(scenario)
    world.scheduler.most_steps = int(os.environ.get(STEPS, MOST_STEPS))
    world.scheduler.traced = accesses
    trace = world.scheduler.trace
    none: Counter[str] = Counter()
    until = math.inf if until is None else until
    try:
        with watched(world.scheduler, LONGEST_SECONDS, until):
            return _run(scenario, world)
    except (Exception, WorldEnded) as error:
        if world.scheduler.is_late and time.time() >= until:
            return Run(world.scheduler.steps, none, none, none, [], trace, is_cut_off=True)
        found = [f"the world ended by {type(error).__name__}: {error}"]
        return Run(world.scheduler.steps, none, none, none, found, trace)


def _run(scenario: Scenario, world: World) -> Run:
    from epochlake.jobs.testing import (
        log_checkers,
        log_histories,
        merge_checkers,
        merge_histories,
        row_checkers,
        row_histories,
    )

    trace = world.scheduler.trace
    if scenario.kind == "log":
        history = log_histories.log_history(scenario, world=world)
        told = Counter(_told(call.outcome) for call in history.calls)
        return Run(history.steps, history.harm, told, history.coverage, log_checkers.violations(history), trace)
    if scenario.kind == "merges":
        merges = merge_histories.merge_history(scenario, world=world)
        told = Counter(f"{one.kind}, {'acknowledged' if one.acknowledged else 'not'}" for one in merges.accesses)
        found = merge_checkers.violations(merges)
        return Run(merges.steps, merges.harm, told, merges.coverage, found, trace)
    rows = row_histories.row_history(scenario, world=world)
    told = Counter(f"{one.kind}, {'acknowledged' if one.acknowledged else 'not'}" for one in rows.accesses)
    return Run(rows.steps, rows.harm, told, rows.coverage, row_checkers.violations(rows), trace)


def attempt(task: Task, until: float | None = None) -> Outcome:
    """Run the history of a task. `until`: as of `run`."""
    started = time.monotonic()
    scenario = drawn(task)
    done = run(scenario, until=until)
    return Outcome(
        task.kind,
        task.seed,
        done.steps,
        round(time.monotonic() - started, 3),
        scenario.settings.delta,
        dict(done.harm),
        dict(done.told),
        dict(done.coverage),
        tuple(done.violations),
        task.weights if done.violations else {},
        task.theme,
        done.is_cut_off,
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Nothing is logged until the end of the block: histories are full of what is worth a warning elsewhere."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _begin_worker() -> None:
    logging.disable(logging.CRITICAL)
    # A Ctrl-C at the terminal is for who waits here; what has begun ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class WorkerDied(Exception):
    """A process that ran histories was killed, for want of memory perhaps."""


class Campaign:
    """Histories of these kinds, from a first seed on. `results`: a file to which outcomes are added as they come, and
    whose seeds are not run again. `processes`: how many run at the same time (one for each core); 0: all of them in
    this one. `tables`: only seeds whose histories are over real Delta tables. `theme`: what all are about or "", and
    then `later` is how likely each is about a later theme.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        first: int,
        results: Path | None = None,
        *,
        steered: bool = True,
        processes: int | None = None,
        tables: bool = False,
        theme: str = "",
        later: float = 0.0,
    ) -> None:
        self.kinds = kinds
        self._theme = theme
        self._later = later
        self.first = first
        self.ended: list[Outcome] = []
        self.cut_off: list[Outcome] = []
        """Those that had not ended when the time was over; they are not in the results."""
        self._results = results
        self._steered = steered
        self._tables = tables
        self._processes = (os.cpu_count() or 1) if processes is None else processes
        self._met: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        if results is not None and results.exists():
            for outcome in _kept(results):
                self._add(outcome)

    def run(self, histories: int | None, seconds: float | None = None, least: int = 0) -> Iterator[Outcome]:
        """Run until so many seeds of each kind are done, or the time is over; each outcome as it comes. What has not
        ended then is cut off, but for the first `least`, which are waited for.
        """
        from epochlake.jobs.testing.folder_disk import forget_the_dead

        forget_the_dead()
        until = None if seconds is None else time.time() + seconds
        # A seed has one course whatever the hashes are. If a defect lets a set decide, its history still fails again.
        os.environ["PYTHONHASHSEED"] = "0"
        spawn = multiprocessing.get_context("spawn")
        tasks = self._tasks(histories)
        if self._processes == 0:
            with _quietly():
                for number, one in enumerate(tasks):
                    if until is not None and time.time() > until and number >= least:
                        return
                    yield from self._keep(attempt(one, until if number >= least else None))
            return
        with ProcessPoolExecutor(self._processes, spawn, _begin_worker) as pool:
            running: list[Future[Outcome]] = []
            awaited: set[Future[Outcome]] = set()
            try:
                while True:
                    over = until is not None and time.time() > until
                    # What those before have met steers a task, so few are drawn ahead.
                    while (
                        (not over or len(awaited) < least)
                        and len(running) <= 2 * self._processes
                        and (task := next(tasks, None)) is not None
                    ):
                        is_awaited = len(awaited) < least
                        running.append(pool.submit(attempt, task, None if is_awaited else until))
                        if is_awaited:
                            awaited.add(running[-1])
                    if over:
                        running = [one for one in running if one in awaited or not one.cancel()]
                    if not running:
                        return
                    wait(running, return_when=FIRST_COMPLETED)
                    ended = next(one for one in running if one.done())
                    running.remove(ended)
                    yield from self._ended(ended)
            finally:
                # What has begun ends; nobody hears of it.
                pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self, ended: Future[Outcome]) -> Iterator[Outcome]:
        try:
            outcome = ended.result()
        except BrokenProcessPool as broken:
            raise WorkerDied("a process that ran histories has died; what it ran is not in the results") from broken
        yield from self._keep(outcome)

    def _keep(self, outcome: Outcome) -> Iterator[Outcome]:
        if outcome.is_cut_off:
            self.cut_off.append(outcome)
            return
        self._add(outcome)
        if self._results is not None:
            with self._results.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
        yield outcome

    def _tasks(self, histories: int | None) -> Iterator[Task]:
        done = {(outcome.kind, outcome.seed) for outcome in self.ended}
        seed = self.first
        while histories is None or seed < self.first + histories:
            for kind in self.kinds:
                theme = self._theme or later_theme(kind, seed, self._later)
                task = Task(kind, seed, self._weights(kind), theme)
                if (kind, seed) not in done and (not self._tables or drawn(task).settings.delta):
                    yield task
            seed += 1

    def _weights(self, kind: str) -> dict[str, float]:
        from epochlake.jobs.testing import coverage, log_drawing, merge_drawing, nemesis, row_drawing

        of_kind = sum(outcome.kind == kind for outcome in self.ended)
        if not self._steered or of_kind < STEER_EVERY:
            return {}
        # Moments are many, and each is met seldom: beside them all others would count as met often.
        about = {"log": log_drawing.KINDS, "rows": row_drawing.KINDS, "merges": merge_drawing.KINDS}
        groups = (about[kind], nemesis.MOMENTS)
        return {name: weight for group in groups for name, weight in coverage.weights(self._met[kind], group).items()}

    def _add(self, outcome: Outcome) -> None:
        self.ended.append(outcome)
        self._met[outcome.kind].update(outcome.coverage)

    def summary(self, seconds: float) -> Iterator[str]:
        """What was run, in lines for people."""
        for kind in self.kinds:
            yield from _summary(kind, [one for one in self.ended if one.kind == kind], seconds, self._met[kind])


def _kept(results: Path) -> list[Outcome]:
    """The outcomes of a results file. A last line that is torn, as who was killed leaves it, is cut off."""
    data = results.read_bytes()
    whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
    if torn:
        results.write_bytes(whole)
    return [msgspec.json.decode(line, type=decodable(Outcome)) for line in whole.splitlines()]


def _summary(kind: str, ended: Sequence[Outcome], seconds: float, met: Counter[str]) -> Iterator[str]:
    harm: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for one in ended:
        harm.update(one.harm)
        told.update(one.told)
    steps, failed = sum(one.steps for one in ended), sum(bool(one.violations) for one in ended)
    working = sum(one.seconds for one in ended) or seconds
    tables = sum(one.delta for one in ended)
    yield (
        f"{len(ended)} {kind} histories ({tables} on Delta tables), {steps:,} steps, "
        f"{steps / max(working, 0.001):,.0f} a second and core, {failed} failed"
    )
    for title, counted in (("told", told), ("done to them", harm)):
        yield f"  {title}: {', '.join(f'{count:,} {name}' for name, count in counted.most_common()) or 'nothing'}"
    if themes := Counter(one.theme for one in ended if one.theme):
        yield f"  of one theme: {', '.join(f'{count:,} {name}' for name, count in themes.most_common())}"
    yield f"  met: {len(met)} pairs of what went on at the same time"


def shorten(outcome: Outcome, most_tries: int, until: float | None = None) -> tuple[Scenario, Run]:
    """The shortest scenario that breaks the rule which the history of an outcome has broken first, and what comes out
    of it. Where the time is over, the shortest that was found `until` then.
    """
    from epochlake.jobs.testing.shrinking import rule_of, shrunk

    scenario = drawn(Task(outcome.kind, outcome.seed, outcome.weights, outcome.theme))
    rule = rule_of(outcome.violations[0])

    def fails(one: Scenario) -> bool:
        return rule in map(rule_of, run(one, until=until).violations)

    shortest = shrunk(scenario, fails, most_tries, is_over=lambda: until is not None and time.time() > until)
    return shortest, run(shortest)


def _told(outcome: object) -> str:
    return "nothing, as the process died" if outcome is None else type(outcome).__name__


def shown(scenario: Scenario, done: Run, *, accesses: bool = False) -> None:
    """Print a timeline, and what does not hold of it."""
    from epochlake.jobs.testing.timeline import timeline

    for line in timeline(scenario, done.said, accesses=accesses):
        print(line)
    for violation in done.violations:
        print(f"VIOLATION: {violation}")


def replay(path: Path, *, accesses: bool = False) -> int:
    """Run a kept scenario again, and show it."""
    from epochlake.jobs.testing.scenario import decoded

    scenario = decoded(path.read_bytes())
    done = run(scenario, accesses=accesses)
    shown(scenario, done, accesses=accesses)
    print(f"{done.steps:,} steps, {len(done.violations)} violations")
    return FAILED if done.violations else 0


def keep(path: Path, name: str) -> int:
    """Make a scenario a test: tests/unit/jobs/test_campaign.py runs all that are there."""
    from epochlake.jobs.testing.scenario import decoded, encoded

    KEPT.mkdir(parents=True, exist_ok=True)
    target = KEPT / f"{name or path.stem}.json"
    content = encoded(decoded(path.read_bytes()))
    if target.exists() and target.read_bytes() != content:
        print(f"error: {target} is a test already; give another name by --name", file=sys.stderr)
        return 1
    target.write_bytes(content)
    print(f"{target} is a test from now on")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job with these options (default: the process's) and return its exit code."""
    parser = argparse.ArgumentParser(prog="campaign", description="Histories of whole clusters under seeded faults.")
    parser.add_argument("--first", "--seed", type=int, default=None, help="the first seed (1)")
    parser.add_argument("--fresh", action="store_true", help="begin with a seed that is drawn anew, and shown")
    parser.add_argument("--histories", type=int, default=None, help="how many seeds of each kind (100)")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--hours", type=float, default=None, help="stop after so long")
    parser.add_argument("--least", type=int, default=0, help="so many histories end, however late it is (0)")
    parser.add_argument(
        "--processes", type=int, default=None, help="how many run at once (one for each core; 0: in this one)"
    )
    parser.add_argument("--only", choices=KINDS, default=None, help="histories of one kind")
    parser.add_argument("--theme", default="", help="histories of one theme of the kind that --only names")
    parser.add_argument(
        "--later", type=float, default=LATER, help=f"this share is of themes that seeds did not draw before ({LATER})"
    )
    parser.add_argument("--tables", action="store_true", help="only seeds of histories over real Delta tables")
    parser.add_argument("--results", type=Path, default=None, help="a file with what is done, to go on later")
    parser.add_argument("--until-failure", action="store_true", help="end with the first history that fails")
    parser.add_argument("--unsteered", action="store_true", help="draw each scenario by its seed alone")
    parser.add_argument("--steps", type=int, default=None, help=f"so many steps a history may take ({MOST_STEPS:,})")
    parser.add_argument("--shorten", type=int, default=100, help="histories to make a failing one shorter with (100)")
    parser.add_argument("--replay", type=Path, default=None, help="run the scenario of a file, and show it")
    parser.add_argument("--accesses", action="store_true", help="show each access as well")
    parser.add_argument("--keep", type=Path, default=None, help="make the scenario of a file a test")
    parser.add_argument("--name", default="", help="the name of that test")
    options = parser.parse_args(argv)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # As in the processes that run histories, so that what failed there fails here.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "epochlake.jobs.campaign", *(argv or sys.argv[1:])])
    if options.histories is not None and options.histories < 1:
        parser.error("give at least one history")
    if options.processes is not None and options.processes < 0:
        parser.error("give a number of processes, or 0 for this one alone")
    if not 0 <= options.later <= 1:
        parser.error("give a share of later themes from 0 to 1")
    if options.least < 0:
        parser.error("give a number of histories that have to end, or 0 for none")
    if any(most is not None and not 0 < most < math.inf for most in (options.minutes, options.hours)):
        parser.error("give a time that is more than 0 and has an end")
    if options.steps is not None:
        if options.steps < 1:
            parser.error("give at least one step")
        os.environ[STEPS] = str(options.steps)
    if options.theme and (options.only is None or options.theme not in theme_names(options.only)):
        there = ", ".join(theme_names(options.only)) if options.only else "name the kind by --only"
        parser.error(f"{options.theme!r} is no theme: {there or f'histories of {options.only} have none'}")
    if options.fresh and options.first is not None:
        parser.error("give --first, or --fresh for one that is drawn")
    if options.shorten < 0:
        parser.error("give a number of histories to shorten with, or 0 to leave a failing one as it is")
    if options.name and options.keep is None:
        parser.error("--name is for the test that --keep makes")
    if options.name and Path(options.name).name != options.name:
        parser.error(f"{options.name!r} is no name of a test: give a file's name without folders")
    if options.results is not None and (options.results.is_dir() or not options.results.absolute().parent.is_dir()):
        parser.error(f"{options.results} cannot have results: give a file in a folder that is there")
    try:
        if options.replay is not None:
            return replay(options.replay, accesses=options.accesses)
        if options.keep is not None:
            return keep(options.keep, options.name)
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"this is no scenario: {error}")
    limits = [60 * options.minutes if options.minutes else None, 3600 * options.hours if options.hours else None]
    seconds = next((limit for limit in limits if limit is not None), None)
    histories = options.histories if options.histories is not None or seconds is not None else 100
    kinds = KINDS if options.only is None else (options.only,)
    first = random.SystemRandom().randrange(1 << 31) if options.fresh else options.first or 1
    if options.fresh:
        share = "" if options.later == LATER else f" --later {options.later}"
        print(f"The first seed is {first}; --seed {first}{share} begins there again.", flush=True)
    campaign = Campaign(
        kinds,
        first,
        options.results,
        steered=not options.unsteered,
        processes=options.processes,
        tables=options.tables,
        theme=options.theme,
        later=options.later,
    )
    began, ended = time.monotonic(), 0
    try:
        for outcome in campaign.run(histories, seconds, options.least):
            ended += 1
            for violation in outcome.violations[:SHOWN]:
                print(f"{outcome.kind} history {outcome.seed}: {violation}", flush=True)
            if outcome.violations:
                left = len(outcome.violations) - SHOWN
                scenario = drawn(Task(outcome.kind, outcome.seed, outcome.weights, outcome.theme))
                path = _keep_scenario(outcome, scenario)
                more = f"and {left} more; " if left > 0 else ""
                print(f"  {more}again: make campaign ARGS='--replay {path}'", flush=True)
                if options.until_failure:
                    break
    except KeyboardInterrupt:
        print("Interrupted: what has ended is in the results." if options.results else "Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except WorkerDied as died:
        print(f"error: {died}", file=sys.stderr)
        return 1
    # Also those that an earlier run has left in the results.
    failed = [outcome for outcome in campaign.ended if outcome.violations]
    is_late = seconds is not None and time.monotonic() - began >= seconds
    for line in campaign.summary(time.monotonic() - began):
        print(line)
    for one in campaign.cut_off:
        print(f"{one.kind} history {one.seed} had not ended after {one.seconds:.0f} s, when the time was over")
    if failed and options.shorten:
        until = None if seconds is None else time.time() + seconds - (time.monotonic() - began)
        _explain(min(failed, key=lambda one: one.steps), options.shorten, until)
    if failed:
        return FAILED
    if not ended and (is_late or campaign.cut_off):
        print("No history had ended when the time was over, so nothing is shown.", file=sys.stderr)
        return NOTHING_SHOWN
    return 0


def _keep_scenario(outcome: Outcome, scenario: Scenario, suffix: str = "") -> Path:
    """Keep the scenario of a history that failed, to be run again."""
    from epochlake.jobs.testing.scenario import encoded

    FAILURES.mkdir(parents=True, exist_ok=True)
    path = FAILURES / f"{outcome.kind}-{outcome.seed}{suffix}.json"
    path.write_bytes(encoded(scenario))
    return path


def _explain(outcome: Outcome, most_tries: int, until: float | None) -> None:
    if until is not None and time.time() > until:
        print("The time is over, so no history that failed was made shorter.")
        return
    with _quietly():
        scenario, done = shorten(outcome, most_tries, until)
    path = _keep_scenario(outcome, scenario, SHORTER)
    print(f"\nThe shortest that was found to break the same rule, as {path}:")
    shown(scenario, done)
    if not done.violations:
        print("It has not failed again: the code is another one, or it was a failure of time.")
    print(f"Again: make campaign ARGS='--replay {path}'. As a test: make campaign ARGS='--keep {path} --name NAME'")


if __name__ == "__main__":
    sys.exit(main())
