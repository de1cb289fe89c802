"""Another program as a part of a task: what it prints is the task's log, and it ends when the task is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

PATIENCE_SECONDS = 30.0
"""So long a program that was told to end may take, before it is killed."""
AGAIN_SECONDS = 0.2
"""After so long those that are left are told again."""
_OF_SPARK = re.compile(
    r"(\d\d/\d\d/\d\d )?\d\d:\d\d:\d\d (INFO|WARN) |WARNING: Using incubator|Using Spark's default log4j"
    r"|Setting default log level|To adjust logging level"
)
"""Lines that `spark-submit` prints whether or not anything is wrong."""

KEPT_LINES = 20
"""As many lines of its end belong to what is said of a program that has failed."""


class Program:
    """A program in a group of processes of its own. `told` gets each line that it prints on stdout and on stderr."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._process: subprocess.Popen[str] | None = None
        self._errors: deque[str] = deque(maxlen=KEPT_LINES)
        self._printed: list[str] = []

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
        """The exit code, and what was on stdout. `variables` go before those of this process."""
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        beside = threading.Thread(target=self._follow, args=(self._process.stderr, self._errors.append), daemon=True)
        beside.start()
        self._follow(self._process.stdout, self._printed.append)
        code = self._process.wait()
        beside.join(PATIENCE_SECONDS)
        return code, "\n".join(self._printed)

    @property
    def said(self) -> str:
        """Why it has failed, as Epochlake's commands say it; else the end of its error output.

        `spark-submit` prints what its job says on stderr on its own stdout.
        """
        for lines in (self._errors, self._printed[-KEPT_LINES:]):
            text = "\n".join(lines)
            with suppress(ValueError, TypeError, KeyError):
                return json.loads(text[text.index("{") :])["error"]["message"]
            if words := [line.partition(": ")[2] for line in lines if line.startswith(("epochlake: ", "hint: "))]:
                return ". ".join(words)
        return "\n".join([line for line in self._errors if not _OF_SPARK.match(line)] or self._errors)

    def end(self) -> None:
        """Tell the whole group to end, and kill what does not.

        It is told again and again: a process that was just being made when the others were told knows nothing of it.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        deadline = time.monotonic() + PATIENCE_SECONDS
        with suppress(ProcessLookupError):  # nobody is left
            while time.monotonic() < deadline:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(AGAIN_SECONDS)
                    time.sleep(AGAIN_SECONDS)
            os.killpg(process.pid, signal.SIGKILL)

    def _follow(self, stream: IO[str], keep: Callable[[str], None]) -> None:
        for line in stream:
            keep(line.rstrip("\n"))
            self._told(line.rstrip("\n"))
