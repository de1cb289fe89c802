"""Threads that wait for work, at the end of their process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

AT_WORK = """
import sys, time
from epochlake.metastore import threads

def work():
    time.sleep(0.5)
    open(sys.argv[1], "x").close()

threads.begin(work)
"""

HANGING = """
import threading
from epochlake.metastore import threads

threads.END_SECONDS = 0.3
threads.begin(threading.Event().wait)
print("done")
"""

FORKED = """
import os, threading
from epochlake.metastore import threads

threads.END_SECONDS = 30.0
threads.begin(threading.Event().wait)
if os.fork() == 0:
    raise SystemExit(0)
_, status = os.wait()
os._exit(os.waitstatus_to_exitcode(status))
"""


def run(program: str, *words: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=60)
    return time.monotonic() - began


def test_a_process_ends_when_its_threads_are_done_and_not_within_what_they_do(tmp_path: Path) -> None:
    run(AT_WORK, str(tmp_path / "done"))
    assert (tmp_path / "done").exists()


def test_a_process_does_not_wait_long_for_a_thread_that_hangs() -> None:
    run(HANGING)


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    assert run(FORKED) < 25
