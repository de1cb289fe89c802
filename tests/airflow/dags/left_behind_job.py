"""A job for `spark-submit` whose first try kills who has started it, and goes on beside the second one.

It writes without a session, which would take longer than all the rest.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import epochlake

FLAGS = Path(os.environ["KILLED_BELOW"])
SECONDS = 200.0
ROWS = 3_000


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def begin() -> str:
    """Which try it is; both have begun, and are about to write, when this has returned."""
    try:
        (FLAGS / "first").touch(exist_ok=False)
    except FileExistsError:
        (FLAGS / "second").touch()
        return "second"
    # This Python was started by the JVM that the task has started.
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while not (FLAGS / "second").exists():
        assert time.monotonic() < deadline, "nobody has tried again"
        time.sleep(0.1)
    return "first"


which = begin()
with epochlake.open_cluster() as cluster:
    rows = [{"id": number, "note": "left behind"} for number in range(ROWS)]
    cluster.write("air.events", rows, consistency="ALL", batch=os.environ["EPOCHLAKE_RUN"])
(FLAGS / f"{which}-has-written").touch()
