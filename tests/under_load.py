"""The tests that are marked `timing`, many times on a busy machine: `make under-load`.

Copies of the suite run side by side, each with servers and folders of its own, beside loops that only burn processor
time: copies and loops together are the load. Every run has to pass. What is not known here goes to pytest, e.g. `-k`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
# The longest that one test may take: under a load of 30 a process has a fifteenth of a machine with two cores.
LONGEST_SECONDS = 3600
EVERY_SECONDS = 1.0


class Run(NamedTuple):
    """One copy of the suite: its process, and the file that has what it prints."""

    number: int
    process: subprocess.Popen[bytes]
    printed: IO[bytes]

    def summary(self) -> str:
        """pytest's last line, or that there is none."""
        self.printed.seek(0)
        found = re.findall(r"^=+ (.*\d+ (?:passed|failed|error).*?) =+$", self.printed.read().decode(), re.MULTILINE)
        return found[-1] if found else "it printed no summary"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a run failed: its whole output is printed."""
    parser = argparse.ArgumentParser("python -m tests.under_load", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="runs of the suite (default: 10)")
    parser.add_argument("--load", type=int, default=30, help="processes that want a core, the runs included (30)")
    chosen, others = parser.parse_known_args(arguments)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(chosen.load - chosen.times)]
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        runs = [_begun(number, Path(folder), others) for number in range(1, chosen.times + 1)]
        try:
            failed = _watched(list(runs))
        finally:
            for process in [*busy, *(run.process for run in runs if run.process.poll() is None)]:
                process.terminate()
                process.wait()
    print(f"{chosen.times - failed} of {chosen.times} runs passed.")
    return 1 if failed else 0


def _begun(number: int, folder: Path, others: Sequence[str]) -> Run:
    command = [sys.executable, "-m", "pytest", "-m", "timing", "-p", "no:cacheprovider", f"--timeout={LONGEST_SECONDS}"]
    command += [f"--basetemp={folder / str(number)}", *(others or ()), "tests/protocol"]
    printed = (folder / f"{number}.txt").open("w+b")
    return Run(number, subprocess.Popen(command, cwd=REPOSITORY, stdout=printed, stderr=subprocess.STDOUT), printed)


def _watched(running: list[Run]) -> int:
    """Say how each run ended, when it has; the number of those that did not pass."""
    failed = 0
    begun = time.monotonic()
    while running:
        time.sleep(EVERY_SECONDS)
        for run in [run for run in running if run.process.poll() is not None]:
            running.remove(run)
            minutes = (time.monotonic() - begun) / 60
            print(f"{minutes:5.1f} min  load {os.getloadavg()[0]:4.1f}  run {run.number}: {run.summary()}", flush=True)
            if run.process.returncode:
                failed += 1
                run.printed.seek(0)
                sys.stdout.write(run.printed.read().decode())
    return failed


if __name__ == "__main__":
    sys.exit(main())
