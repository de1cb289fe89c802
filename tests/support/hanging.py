"""Volumes that hang, vanish or fail in the middle of work, for real."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from epochlake.metastore.storage.deadlines import Deadlines, left_behind

T = TypeVar("T")

HANGS_AFTER = 0.2
"""Seconds after which a volume that hangs is late; volumes that are well have all the time that they need."""


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch, volume: Path, name: str) -> Iterator[None]:
    """The file `name` of a volume is a named pipe that nobody writes to: who opens it hangs, as on a dead mount."""
    path, aside = volume / name, volume / f"{name}.aside"
    there = path.exists()
    if there:
        path.rename(aside)
    os.mkfifo(path)
    with monkeypatch.context() as patch:
        patch.setattr(Deadlines, "patience", lambda _, place: HANGS_AFTER if place == str(volume) else 120.0)
        try:
            yield
        finally:
            _release(path)
            path.unlink()
            if there:
                aside.rename(path)


def _release(pipe: Path) -> None:
    """Let everybody go on who hangs at a pipe; all threads come back."""
    ends = time.monotonic() + 300
    while left_behind():
        assert time.monotonic() < ends
        with suppress(OSError):  # nobody waits at this instant
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.01)


class Fault:
    """Something that happens to a volume right before one of the accesses to it."""

    def __init__(self, volume: Path, happen: Callable[[], None]) -> None:
        self.accesses = 0
        self.at = -1
        self._volume = str(volume)
        self._happen = happen

    def install(self, patch: pytest.MonkeyPatch) -> None:
        within = Deadlines.within

        def watched(deadlines: Deadlines, uri: str, asked: str, call: Callable[[], T]) -> T:
            if uri.startswith(self._volume):
                number, self.accesses = self.accesses, self.accesses + 1
                if number == self.at:
                    return within(deadlines, uri, asked, lambda: (self._happen(), call())[1])
            return within(deadlines, uri, asked, call)

        patch.setattr(Deadlines, "within", watched)


def vanish(volume: Path) -> None:
    """The volume is not there any more, as a disk that was pulled out."""
    volume.rename(volume.with_name(f"{volume.name}-away"))


def come_back(volume: Path) -> None:
    """It is there again; what was written into the empty mount point meanwhile is hidden by it."""
    away = volume.with_name(f"{volume.name}-away")
    if away.exists():
        shutil.rmtree(volume, ignore_errors=True)
        away.rename(volume)
