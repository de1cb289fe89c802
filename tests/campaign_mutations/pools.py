"""Many mutations tried by the same histories.

Most histories go well whatever is broken, so those that search for one mutation search for a dozen others as well: all
of a pool are made in one copy. When a history fails there, its seed is run with each half of the pool, and so on, until
it is known which of them make it fail alone; they have been found, and the others go on without them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.campaign_mutations.mutation import Mutation, broken_files
from tests.mutants import PACKAGES, REPOSITORY

FOUND = 4
"""The campaign's exit code when a history has failed."""

MOST_STEPS = {"log": 25_000, "rows": 120_000, "merges": 40_000}
"""After which a history of a kind counts as one that does not end: more than any had of 912 (11,526 and 93,615)."""

LONGEST_BLOCK_SECONDS = 3600
"""After which a campaign is killed: not even its watch has ended it."""

LONGEST_SAID = 300
"""So many characters of a violation are kept."""

_VIOLATION = re.compile(r"(\w+) history (\d+): (.*)")
_SUMMARY = re.compile(r"(\d+) (\w+) histories[^,]*, ([\d,]+) steps")


class Played(NamedTuple):
    """What came of histories with some mutations: how many were run, their steps, the first seed that failed and what
    was said of it. `broken`: the campaign itself did not run.
    """

    histories: int
    steps: int
    failed: int | None = None
    said: str = ""
    broken: bool = False


Play = Callable[[Sequence[Mutation], str, int, int], Played]
"""Run histories of a kind from a first seed on, so many of them, in a copy with these mutations. A kind may name a
theme: "rows of moving".
"""


class Pool:
    """Mutations that are tried together by histories of one kind. `seeds`: how many have been run."""

    def __init__(self, kind: str, members: Sequence[Mutation], seeds: int = 0) -> None:
        self.kind = kind
        self.members = list(members)
        self.seeds = seeds

    def advance(self, count: int, play: Play) -> tuple[Played, list[tuple[Mutation, Played]], list[Pool]]:
        """Run the next histories, until one fails. What came of them, which members it is by, and the pools to go on
        with. When no member alone makes it fail, they go on in two halves. One that fails without any is passed over.
        """
        played = play(self.members, self.kind, self.seeds + 1, count)
        if played.failed is None and not played.broken:
            self.seeds += count
            return played, [], [self]
        if played.failed is not None and play((), self.kind, played.failed, 1).failed is not None:
            # It is no mutation that this history has found.
            print(f"{self.kind} history {played.failed} fails without any mutation: {played.said}", flush=True)
            self.seeds = played.failed
            return played, [], [self]
        if len(self.members) == 1:
            self.seeds = played.failed or self.seeds
            return played, [(self.members[0], played)], []
        if played.failed is None:
            return played, [], list(self._halves())
        self.seeds = played.failed - 1
        guilty = self._guilty(self.members, played.failed, play)
        if not guilty:
            return played, [], list(self._halves())
        names = {mutation.name for mutation, _ in guilty}
        self.members = [member for member in self.members if member.name not in names]
        return played, guilty, [self] if self.members else []

    def _halves(self) -> Iterator[Pool]:
        middle = len(self.members) // 2
        for half in (self.members[:middle], self.members[middle:]):
            yield Pool(self.kind, half, self.seeds)

    def _guilty(self, members: Sequence[Mutation], seed: int, play: Play) -> list[tuple[Mutation, Played]]:
        middle = len(members) // 2
        found = []
        for half in (members[:middle], members[middle:]):
            if not half or (played := play(half, self.kind, seed, 1)).failed is None:
                continue
            found += [(half[0], played)] if len(half) == 1 else self._guilty(half, seed, play)
        return found


def pooled(kind: str, mutations: Iterable[Mutation], most: int, seeds: int = 0) -> list[Pool]:
    """Pools of at most so many mutations; in none of them do two break the same place."""
    pools: list[Pool] = []
    for mutation in mutations:
        for pool in pools:
            if len(pool.members) < most and _fits([*pool.members, mutation]):
                pool.members.append(mutation)
                break
        else:
            pools.append(Pool(kind, [mutation], seeds))
    return pools


def _fits(mutations: Sequence[Mutation]) -> bool:
    files = broken_files(mutations)
    parts = [(one.path, one.whole) for mutation in mutations for one in (mutation, *mutation.beside)]
    if files is None or len(set(parts)) < len(parts):
        return False
    try:
        for path, text in files.items():
            compile(text, path, "exec")
    except SyntaxError:
        return False
    # What one has broken is still broken after those beside it.
    return all(one.broken in files[one.path] for mutation in mutations for one in (mutation, *mutation.beside))


def play(mutations: Sequence[Mutation], kind: str, first: int, count: int) -> Played:
    """Run histories of a kind in a copy with these mutations, until one fails."""
    with _copy_with(mutations) as copy:
        output, code = campaign(copy, kind, first, count)
    found = [(int(match[2]), match[3]) for line in output.splitlines() if (match := _VIOLATION.fullmatch(line))]
    run = {name: (int(number), int(steps.replace(",", ""))) for number, name, steps in _SUMMARY.findall(output)}
    name = kind.split()[0]
    if code not in (0, FOUND) or bool(found) != (code == FOUND) or not (found or name in run):
        return Played(0, 0, None, output.strip()[-LONGEST_SAID:], broken=True)
    number, steps = run.get(name, (0, 0))
    if not found:
        return Played(number, steps)
    seed, said = min(found)
    return Played(number, steps, seed, said[:LONGEST_SAID])


@contextmanager
def _copy_with(mutations: Sequence[Mutation]) -> Iterator[Path]:
    broken = broken_files(mutations)
    assert broken is not None
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        copy = Path(directory) / "repository"
        for folder in ("epochlake", *PACKAGES):
            # With what was compiled already: a campaign of one history is mostly imports.
            shutil.copytree(REPOSITORY / folder, copy / folder)
        # The folder `epochlake` in the copy is found first, so it has to lead to the others.
        for package in PACKAGES:
            (copy / "epochlake" / package).symlink_to(copy / package)
        for path, text in broken.items():
            (copy / path).write_text(text, encoding="utf-8")
        yield copy


def campaign(copy: Path, kind: str, first: int, count: int) -> tuple[str, int]:
    """What a campaign in the copy has printed, and its exit code; one that does not end has failed."""
    kind, _, theme = kind.partition(" of ")
    only, *tables = kind.split()
    command = [sys.executable, "-m", "epochlake.jobs.campaign", "--only", only, *(f"--{one}" for one in tables)]
    command += ["--theme", theme] if theme else []
    command += ["--first", str(first), "--histories", str(count), "--until-failure", "--unsteered", "--shorten", "0"]
    command += ["--later", "0"]  # what an area's themes notice is asked for by their names
    command += ["--steps", str(MOST_STEPS[only]), "--processes", "0"]
    # Found before what is installed, also by the processes that the campaign starts.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LONGEST_BLOCK_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, 9)  # with the processes that it has started
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            hangs = f"{kind} history {first}: it, or one of the {count - 1} after it, does not come to its end\n"
            return f"{output}{hangs}", FOUND
    return output, process.returncode
