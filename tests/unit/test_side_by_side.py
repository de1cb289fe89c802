"""Several checks at the same time; here each is a small program."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests import side_by_side

PROGRAM = (sys.executable, "-S", "-c")
ENDS = "import sys; print(sys.argv[1:]); sys.exit(int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        *[("0", 0), ("0 0", 0), ("0 1", 1), ("1 0", 1), ("2 2", 1), ("0 5", 0), ("5 0", 0), ("5 5", 1)],
        *[("0 0 0", 0), ("1 0 0", 1), ("0 1 0", 1), ("0 0 1", 1), ("5 0 5", 0), ("5 5 5", 1)],
    ],
)
def test_all_are_run_and_one_that_fails_is_a_failure(codes: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    *others, last = [(*PROGRAM, ENDS, one, "-k", f"run {number}") for number, one in enumerate(codes.split())]
    arguments = [word for run in others for word in (*run, "--")]
    assert side_by_side.main([*arguments, *last]) == code
    printed = capfd.readouterr().out
    for run in (*others, last):
        assert printed.count(str([*run[4:]])) == 1
    for run in others:
        assert f"{shlex.join(run)}\n{[*run[4:]]}\n" in printed, "in one piece, below what was run"


def test_all_but_the_last_leave_the_processor_to_it(capfd: pytest.CaptureFixture[str]) -> None:
    waits = "import os, sys, time; time.sleep(0.5); print(sys.argv[1], os.getpriority(os.PRIO_PROCESS, 0))"
    assert side_by_side.main([*PROGRAM, waits, "one", "--", *PROGRAM, waits, "two"]) == 0
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    printed = capfd.readouterr().out.splitlines()
    assert {f"one {min(19, mine + side_by_side.NICENESS)}", f"two {mine}"} <= set(printed)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_ends_all_runs(tmp_path: Path, told: signal.Signals) -> None:
    waits = "import sys, os, pathlib, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    files = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    *others, last = [[*PROGRAM, waits, str(file)] for file in files]
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.side_by_side", *[word for run in others for word in (*run, "--")], *last],
        cwd=Path(side_by_side.__file__).parent.parent,
        stderr=subprocess.DEVNULL,
        # What runs in the background of a script is deaf to it, and so are its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    ends = time.monotonic() + 300
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < ends
        time.sleep(0.02)
    running.send_signal(told)
    assert running.wait(60) == 130
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
