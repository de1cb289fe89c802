"""The demo's other processes: the writer, the coordinator, the operator's commands.

No process is forgotten and no failure is. Each leads a process group of its own, so that it is ended by
its id with all that it has started; what it says on stderr goes to a file; how it ended is asked for, always.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from epochlake import EpochlakeError

SHOWN_LINES = 15
OTHERS = ("EPOCHLAKE__", "EPOCHLAKE_CONF", "SPARK_REMOTE", "SPARK_CONNECT", "PYSPARK_SUBMIT_ARGS")
"""How variables begin that would make the demo use a configuration or a Spark that is not its own."""

PATIENCE_SECONDS = 15.0
"""How long a process that was asked to end may take before it is killed."""


class ChildFailed(EpochlakeError):
    """A process of the demo ended when it should not have, with the wrong code, or does not answer."""


class Ended(msgspec.Struct, frozen=True):
    """A process that has ended; `exit_code` as a shell tells it."""

    name: str
    command: str
    exit_code: int
    messages: str


class Child:
    """A running process. Its stdout is read line by line here, its stderr goes to a file."""

    def __init__(self, name: str, arguments: Sequence[str], messages: Path) -> None:
        self.name = name
        self.command = "python -m " + " ".join(arguments)
        self.messages = messages
        with messages.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(os.environ),
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name=f"{name}-output", daemon=True).start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, document: Any) -> None:
        """Send a line. Raises ChildFailed when nobody is there to read it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(document) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self.failure("does not listen any more") from error

    def receive(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bytes:
        """The next line of its output; `meanwhile` is called a few times a second while there is none.

        Raises ChildFailed when the process ends instead, or says nothing for so long.
        """
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=0.1)
                if line is None:
                    self._wait(PATIENCE_SECONDS)
                    raise self.failure("ended before it had answered")
                return line
            if time.monotonic() > deadline:
                raise self.failure(f"did not answer within {seconds:.0f} s")
            meanwhile()

    def finish(self, seconds: float, *, by: signal.Signals | None = None) -> tuple[Ended, bytes]:
        """Close its input, or send it a signal, and wait for its end; how it ended, and the rest of its output."""
        if by is not None and self.running:
            self._process.send_signal(by)
        self._close_input()
        if not self._wait(seconds):
            failure = self.failure(f"did not end within {seconds:.0f} s")
            self.stop()
            raise failure
        rest = []
        while (line := self._lines.get(timeout=seconds)) is not None:
            rest.append(line)
        self._lines.put(None)
        return self._ended(), b"".join(rest)

    def stop(self) -> None:
        """End it and all that it has started, by force when it does not go by itself. Never raises."""
        self._signal_group(signal.SIGTERM)
        self._close_input()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (self.running or self._group_lives()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.running or self._group_lives():
            self._signal_group(signal.SIGKILL)
            self._wait(PATIENCE_SECONDS)

    def failure(self, what: str) -> ChildFailed:
        """The error that says what is wrong with this process, with the end of its messages."""
        code = self._process.poll()
        state = "" if code is None else f" (exit code {code})"
        return ChildFailed(f"the {self.name} {what}{state}; {tail(self.messages)}")

    def require_running(self) -> None:
        if not self.running:
            raise self.failure("ended too early")

    def require_no_failure(self) -> None:
        """Raise ChildFailed when it has ended with another code than 0."""
        if self._process.poll():
            raise self.failure("failed")

    def _ended(self) -> Ended:
        return Ended(self.name, self.command, self._process.returncode, str(self.messages))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def _close_input(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        """Whether a process that it has started outlives it, such as a JVM that is on its way out."""
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the demo's processes: nobody's own configuration or Spark server changes what they do."""
    return {name: value for name, value in given.items() if not name.startswith(OTHERS)}


def tail(messages: Path) -> str:
    """The end of a file of messages, for an error."""
    try:
        lines = messages.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError as error:
        return f"its messages in {messages} cannot be read: {error}"
    if not lines:
        return f"it said nothing ({messages} is empty)"
    shown = "\n  ".join(lines[-SHOWN_LINES:])
    return f"the end of what it said ({messages}):\n  {shown}"
