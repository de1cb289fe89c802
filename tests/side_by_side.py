"""Several checks at the same time: `python -m tests.side_by_side mypy -- pytest tests/unit -- pytest tests/spark`.

Between the `--` are the commands. The last one should be the one that takes longest: the others leave the processor to
it, and what it prints is shown as it comes; what another one prints is shown when that one ends. Exit code 1 when one
fails; Ctrl-C ends all of them.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple

EVERY_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""So long a run that was told to end may take to stop the servers that it has started."""

NICENESS = 3
"""Of all runs but the last: what each of them needs of a busy processor counts half as much."""

NO_TESTS = 5
"""pytest's exit code when nothing was chosen, as `-k` may do in one of the runs."""


class Run(NamedTuple):
    """One run: its command, its process, and what has its output, None for the one that is shown as it comes."""

    command: list[str]
    process: subprocess.Popen[bytes]
    printed: IO[bytes] | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a run failed."""
    runs: list[Run] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        *others, shown = _divided(sys.argv[1:] if arguments is None else arguments)
        for one in others:
            runs.append(_begun(one, tempfile.TemporaryFile()))  # noqa: SIM115
        runs.append(_begun(shown, None))
        codes = _watched(list(runs))
    except KeyboardInterrupt:
        _end(runs)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    failed = any(code not in (0, NO_TESTS) for code in codes) or set(codes) == {NO_TESTS}
    return 1 if failed else 0


def _divided(arguments: Sequence[str]) -> list[list[str]]:
    """The command of each run."""
    runs: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            runs.append([])
        else:
            runs[-1].append(argument)
    return runs


def _begun(command: list[str], printed: IO[bytes] | None) -> Run:
    """A run in a group of its own: a Ctrl-C of the terminal reaches it once, by `_end`."""
    errors = None if printed is None else subprocess.STDOUT
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, process_group=0)
    if printed is not None:
        with suppress(OSError):  # it has ended, or may not be changed
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    return Run(command, process, printed)


def _watched(running: list[Run]) -> list[int]:
    """Wait for all runs, and print what each has printed when it ends; their exit codes."""
    codes = []
    while running:
        time.sleep(EVERY_SECONDS)
        for run in [run for run in running if run.process.poll() is not None]:
            running.remove(run)
            codes.append(run.process.returncode)
            if run.printed is not None:
                run.printed.seek(0)
                sys.stdout.write(f"\n\n{shlex.join(run.command)}\n{run.printed.read().decode()}\n")
                sys.stdout.flush()
    return codes


def _end(runs: Sequence[Run]) -> None:
    """Interrupt the runs that go on, as Ctrl-C does; whatever is left of them after a while is killed."""
    going = [run.process for run in runs if run.process.poll() is None]
    for process in going:
        process.send_signal(signal.SIGINT)
    ends = time.monotonic() + PATIENCE_SECONDS
    for process in going:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(max(0.0, ends - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
