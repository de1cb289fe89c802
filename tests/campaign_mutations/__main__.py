"""Try mutations, one after the other: `python -m tests.campaign_mutations [NAME…] [--histories N] [--minutes M]`.

A mutation is made in a copy of the packages, and `epochlake.jobs.campaign` runs there from seed 1, in blocks that grow,
until a history says that something does not hold, or N histories of each kind have found nothing. What came of it is
kept as JSON and shown as a page. What is known already, of the same text under the same campaign, is not run again
unless `--again` says so; a mutation that was not found in fewer histories than are asked for now goes on after them.
Exit code 1 when a mutation was not found, or does not run at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from tests.campaign_mutations import AREAS, MUTATIONS, Mutation
from tests.mutants import PACKAGES, REPOSITORY

FIRST_BLOCK = 16
"""Histories of the first block; each further one has twice as many as the one before it."""

GRACE_SECONDS = 300.0
"""How long a campaign may take beyond its time: a history that has begun is not cut short by it."""

FOUND = 4
"""The campaign's exit code when a history has failed."""

CAMPAIGN = ("jobs/campaign.py", "jobs/testing")
"""What makes histories and judges them. When it changes, results are made anew."""

LONGEST_SAID = 300
"""So many characters of a violation are kept."""

ONE_PROCESS = "import os\n\nos.cpu_count = lambda: 1\n"
"""Each campaign has one process, so that as many mutations may be tried side by side as are asked for."""

_VIOLATION = re.compile(r"(\w+) history (\d+): (.*)")
_SUMMARY = re.compile(r"(\d+) (\w+) histories[^,]*, ([\d,]+) steps")


class Result(msgspec.Struct):
    """What came of a mutation. `state`: found, not found, does not run, or not there (its text has changed).

    `histories`: how many had been run, of each kind, when the first one failed, or in all; `seeds`: how many were
    looked at. `said`: the violation, of a history of `kind`. `mutation` and `campaign`: digests of what was run.
    """

    name: str
    state: str
    mutation: str
    campaign: str
    histories: int = 0
    seeds: int = 0
    kind: str = ""
    said: str = ""
    steps: int = 0
    seconds: float = 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Try the mutations of these names, or all of them. The exit code."""
    options = _parser().parse_args(argv)
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := set(options.names) - known.keys():
        print(f"there is no mutation {', '.join(sorted(unknown))}. There are:", *known, sep="\n  ")
        return 2
    chosen = [known[name] for name in options.names] or list(MUTATIONS)
    records = _Records(Path(options.results))

    def attempt(mutation: Mutation) -> Result:
        before = None if options.again else records.of(mutation)
        if before is not None and _is_enough(before, options.histories):
            return before
        result = _try(mutation, options.histories, options.minutes, before)
        records.keep(result)
        print(_line(result), flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(attempt, chosen))
    page = Path(options.results).with_suffix(".md")
    page.write_text(as_page(records.all()), encoding="utf-8")
    missed = [result for result in results if result.state != "found"]
    print(f"{len(results) - len(missed)} of {len(results)} were found; all results are in {page}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="campaign-mutations", description="Mutations that the campaign must find.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the mutations to try (all)")
    parser.add_argument("--histories", type=int, default=400, help="the most histories of each kind (400)")
    parser.add_argument("--minutes", type=float, default=None, help="the most minutes for a mutation")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutations are tried side by side (1)")
    parser.add_argument("--again", action="store_true", help="run also what is known already")
    default = "build/campaign-mutations.json"
    parser.add_argument("--results", default=default, help=f"the file of results; the page is beside it ({default})")
    return parser


def _is_enough(result: Result, histories: int) -> bool:
    return result.state != "not found" or result.histories >= histories


class _Records:
    """The results in a JSON file; each is in it as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._results: dict[str, Result] = {}
        if path.exists():
            found = msgspec.json.decode(path.read_bytes(), type=list[Result])
            self._results = {result.name: result for result in found}

    def of(self, mutation: Mutation) -> Result | None:
        """What is known of a mutation with this text, under the campaign of now."""
        found = self._results.get(mutation.name)
        if found is None or (found.mutation, found.campaign) != (digest_of(mutation), campaign_digest()):
            return None
        return found

    def keep(self, result: Result) -> None:
        with self._lock:
            self._results[result.name] = result
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.all()), indent=1) + b"\n")
            temporary.replace(self._path)

    def all(self) -> list[Result]:
        """The results of the mutations that there are, in their order."""
        return [self._results[mutation.name] for mutation in MUTATIONS if mutation.name in self._results]


def digest_of(mutation: Mutation) -> str:
    """Of what is run for a mutation; its name and why are words."""
    places = [[one.path, one.whole, one.broken] for one in (mutation, *mutation.beside)]
    text = json.dumps([*places, mutation.kinds])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def campaign_digest() -> str:
    """Of the code that makes histories and judges them."""
    digest = hashlib.sha256()
    for name in CAMPAIGN:
        whole = REPOSITORY / name
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*.py")):
            digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _try(mutation: Mutation, histories: int, minutes: float | None, before: Result | None) -> Result:
    result = before or Result(mutation.name, "not found", digest_of(mutation), campaign_digest())
    broken = mutation.broken_files
    if broken is None:
        result.state = "not there"
        return result
    started = time.monotonic()
    earlier = result.seconds
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        copy = Path(directory) / "repository"
        _copy_to(copy)
        for path, text in broken.items():
            (copy / path).write_text(text, encoding="utf-8")
        block = FIRST_BLOCK
        while result.state == "not found" and result.histories < histories:
            left = None if minutes is None else 60 * minutes - (time.monotonic() - started)
            if left is not None and left <= 0:
                break
            _run_block(copy, mutation, result, min(block, histories - result.histories), left)
            result.seconds = round(earlier + time.monotonic() - started, 1)
            block *= 2
    return result


def _run_block(copy: Path, mutation: Mutation, result: Result, count: int, seconds: float | None) -> None:
    """Run the next histories of each kind, and write into the result what came of them."""
    first = result.seeds + 1
    failures: list[tuple[int, str, str]] = []
    done = count
    for kind in mutation.kinds:
        output, code = _campaign(copy, kind, first, count, None if seconds is None else seconds / len(mutation.kinds))
        found = [match for line in output.splitlines() if (match := _VIOLATION.fullmatch(line))]
        failures += [(int(seed), kind, said) for _, seed, said in (match.groups() for match in found)]
        run = {name: (int(number), int(steps.replace(",", ""))) for number, name, steps in _SUMMARY.findall(output)}
        number, steps = run.get(kind.split()[0], (0, 0))
        result.steps += steps
        done = min(done, number)
        if code not in (0, FOUND) or bool(found) != (code == FOUND) or not (found or kind.split()[0] in run):
            result.state, result.kind, result.said = "does not run", kind, output.strip()[-LONGEST_SAID:]
            return
    result.histories += done
    result.seeds += count
    if failures:
        _, result.kind, said = min(failures, key=lambda failure: failure[0])
        result.state, result.said = "found", said[:LONGEST_SAID]


def _campaign(copy: Path, kind: str, first: int, count: int, seconds: float | None) -> tuple[str, int]:
    """What a campaign in the copy has printed, and its exit code; one that does not end has failed."""
    only, *tables = kind.split()
    command = [sys.executable, "-m", "epochlake.jobs.campaign", "--only", only, *(f"--{one}" for one in tables)]
    command += ["--first", str(first), "--histories", str(count), "--until-failure", "--unsteered", "--shorten", "0"]
    command += [] if seconds is None else ["--minutes", f"{seconds / 60:.3f}"]
    # Found before what is installed, also by the processes that the campaign starts.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONHASHSEED": "0"}
    limit = None if seconds is None else seconds + GRACE_SECONDS
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
            output, _ = process.communicate(timeout=limit)
        except BaseException as error:
            os.killpg(process.pid, 9)  # with the processes that it has started
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            hangs = f"{kind} history {first}: it, or one of the {count - 1} after it, does not come to its end\n"
            return f"{output}{hangs}", FOUND
    return output, process.returncode


def _copy_to(copy: Path) -> None:
    """What the campaign needs of the repository."""
    for folder in ("epochlake", *PACKAGES):
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    # The folder `epochlake` in the copy is found first, so it has to lead to the others.
    for package in PACKAGES:
        (copy / "epochlake" / package).symlink_to(copy / package)
    (copy / "sitecustomize.py").write_text(ONE_PROCESS, encoding="utf-8")


def _line(result: Result) -> str:
    found = f"{result.state:12} {result.histories:5} histories {result.seconds:6.0f} s  {result.name}"
    return f"{found}\n    {result.said.splitlines()[-1]}" if result.said else found


def as_page(results: Iterable[Result]) -> str:
    """The results as a page of Markdown."""
    by_name: dict[str, Result] = {result.name: result for result in results}
    lines = ["# Mutations that the campaign must find", ""]
    found = [result.histories for result in by_name.values() if result.state == "found"]
    lines.append(f"{len(found)} of {len(MUTATIONS)} were found, {len(by_name) - len(found)} were tried in vain.")
    for area, mutations in AREAS.items():
        lines += ["", f"## {area[0].upper()}{area[1:]}", ""]
        lines += ["| Mutation | Takes away | Found after | Violation | Steps | Seconds |", "|---|---|---|---|---|---|"]
        for mutation in mutations:
            result = by_name.get(mutation.name)
            cells = [mutation.name, mutation.why, *(["not tried", "", "", ""] if result is None else _cells(result))]
            lines.append("| " + " | ".join(_in_a_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cells(result: Result) -> list[Any]:
    if result.state == "found":
        after = f"{result.histories} of {result.kind}"
    elif result.state == "not found":
        after = f"not found in {result.histories}"
    else:
        after = result.state
    return [after, result.said, f"{result.steps:,}", f"{result.seconds:.0f}"]


def _in_a_cell(cell: Any) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
