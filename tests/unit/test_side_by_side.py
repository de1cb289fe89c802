"""Several runs of pytest at the same time; here each run is a small program in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import side_by_side

ENDS = "import sys; print(sys.argv[1:]); sys.exit(int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("codes", "code"), [("0 0", 0), ("0 1", 1), ("1 0", 1), ("2 2", 1), ("0 5", 0), ("5 0", 0), ("5 5", 1)]
)
def test_all_are_run_and_one_that_fails_is_a_failure(
    codes: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "PYTEST", [sys.executable, "-S", "-c", ENDS])
    first, last = codes.split()
    assert side_by_side.main([first, "-k", "one", "--", last, "two"]) == code
    printed = capfd.readouterr().out
    assert f"['{first}', '-k', 'one']" in printed
    assert f"['{last}', 'two']" in printed
    assert f"pytest {first} -k one\n" in printed


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_ends_all_runs(tmp_path: Path, told: signal.Signals) -> None:
    waits = "import sys, os, pathlib, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    program = (
        "import sys; from tests import side_by_side\n"
        f"side_by_side.PYTEST = [sys.executable, '-S', '-c', {waits!r}]\n"
        "sys.exit(side_by_side.main(sys.argv[1:]))"
    )
    files = [tmp_path / "one", tmp_path / "two"]
    arguments = [str(files[0]), "--", str(files[1])]
    running = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=Path(side_by_side.__file__).parent.parent,
        stderr=subprocess.DEVNULL,
    )
    ends = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < ends
        time.sleep(0.02)
    running.send_signal(told)
    assert running.wait(60) == 130
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
