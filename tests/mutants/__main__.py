"""`python -m tests.mutants NAME …`: make each mutant in a copy of the repository, and run the tests that should notice.

One of the tests that are named beside it has to fail. Exit code 1 when all of them pass for some mutant, or when its
text is not found any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import MUTANTS, PACKAGES, REPOSITORY, Mutant, mutated

FOLDERS = ("epochlake", *PACKAGES, "tests", "benchmarks", "docs", "conf", "notebooks")
FILES = ("pyproject.toml", "setup.cfg", "README.md", "Makefile")
LONGEST_SECONDS = 900


def main(names: Sequence[str]) -> int:
    """Try the mutants of these names, or all. The exit code."""
    known = {mutant.name for mutant in MUTANTS}
    if unknown := set(names) - known:
        print(f"there is no mutant {', '.join(sorted(unknown))}. There are:", *sorted(known), sep="\n  ")
        return 2
    survivors = []
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            started = time.monotonic()
            verdict = _try(mutant)
            print(f"{verdict:12} {time.monotonic() - started:5.0f} s  {mutant.name}", flush=True)
            if verdict != "caught":
                survivors.append(mutant.name)
    print(f"{len(survivors)} not caught" if survivors else "all are caught")
    return 1 if survivors else 0


def _try(mutant: Mutant) -> str:
    """caught, SURVIVES, or NOT FOUND where its text is not, or its tests are not, what is written here."""
    if mutated(mutant) is None or any(not (REPOSITORY / test.partition("::")[0]).exists() for test in mutant.tests):
        return "NOT FOUND"
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory) / "repository"
        _copy_to(copy)
        (copy / mutant.path).write_text(mutated(mutant) or "", encoding="utf-8")
        # Found before what is installed, also by the processes that tests start.
        # Every case: a slice may happen to leave out the one that catches it.
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "EPOCHLAKE_TESTS_THOROUGH": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        try:
            code = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, timeout=LONGEST_SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            return "caught"  # something waits for ever that does not otherwise
    # 1 is "tests have failed"; anything else, "no tests" for one, catches nothing.
    return {0: "SURVIVES", 1: "caught"}.get(code, f"pytest: {code}")


def _copy_to(copy: Path) -> None:
    copy.mkdir()
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy2(REPOSITORY / file, copy / file)
    # pytest finds the folder `epochlake` in the copy first, so that folder has to lead to the others.
    for package in PACKAGES:
        (copy / "epochlake" / package).symlink_to(copy / package)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
