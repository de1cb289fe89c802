"""A disk of the world as one process sees it: each step is a point where others may go on, and may go wrong."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import pyarrow as pa
from epochlake.jobs.testing.power import is_below
from epochlake.jobs.testing.scheduler import Process, Scheduler, Waiter
from epochlake.metastore.storage.disk import Disk, LockNotHad, Status, Usage
from epochlake.metastore.storage.memory_disk import ForArrow
from pyarrow import fs

T = TypeVar("T")

ROOT = "/lake"
"""The cluster's root."""
LOG = f"{ROOT}/log"
MEMBERS = "/members"
"""Below it: the directories that may be log members."""
VOLUMES = "/disks"
"""Below it: what nodes store."""

ACCESS_SECONDS = 0.003
"""How long a step of a disk takes, on average."""


IN_USE_STEPS = 60
"""So many steps later nobody relies on what was found of a file."""


class Troubles:
    """What is wrong with places of a disk, for everybody: paths below a prefix fail, hang, or are full."""

    def __init__(self, scheduler: Scheduler, seed: int | str) -> None:
        self.scheduler = scheduler
        self.doomed: set[Process] = set()
        """Of these the next step fails."""
        self.lost_answers: dict[Process, tuple[float, float]] = {}
        """Of these the next step is done, and fails only so many seconds later; then they do not reach the directory in
        which it was for as many seconds as the second number says.
        """
        self.random = random.Random(repr(("disk", seed)))
        self.unreachable: dict[Process, set[str]] = {}
        """What machines do not reach, while others do."""
        self.failing: dict[str, int] = {}
        """An error number for each place whose steps all fail."""
        self.full: set[str] = set()
        self.hanging: dict[str, list[Waiter]] = {}
        self.chances: dict[str, float] = {}
        """How likely a single step in a place fails, before or after its effect."""

    def hang(self, place: str) -> None:
        """From now on each step there waits until `release`."""
        self.hanging.setdefault(place, [])

    def release(self, place: str) -> None:
        """What hangs there goes on, late."""
        for waiter in self.hanging.pop(place, []):
            self.scheduler.wake(waiter)

    def heal(self) -> None:
        """Nothing is wrong any more."""
        self.doomed.clear()
        self.lost_answers.clear()
        self.unreachable.clear()
        self.failing.clear()
        self.full.clear()
        self.chances.clear()
        for place in list(self.hanging):
            self.release(place)

    def lose_sight(self, process: Process, directory: str, seconds: float) -> None:
        """For so long a process does not reach a directory, while others do."""
        if seconds:
            hidden = self.unreachable.setdefault(process, set())
            hidden.add(directory)
            self.scheduler.after(seconds, lambda: hidden.discard(directory), process)

    def mend(self, place: str) -> None:
        """Nothing is wrong there any more."""
        self.failing.pop(place, None)
        self.full.discard(place)
        self.chances.pop(place, None)
        self.release(place)

    def before(self, path: str, *, writes: bool) -> bool:
        """Wait and fail as the place does; True: the step is to fail once it was done."""
        for place, waiting in self.hanging.items():
            if is_below(path, place):
                waiter = Waiter()
                waiting.append(waiter)
                self.scheduler.wait(waiter)
                break
        number = self._failure_at(path)
        if number is not None:
            raise _error(number, path)
        if writes and any(is_below(path, place) for place in self.full):
            raise _error(errno.ENOSPC, path)
        if self._strikes(path) or self._is_doomed():
            if self.random.random() < 0.5:
                raise _error(errno.EIO, path)
            return True
        return False

    def refuse(self, path: str) -> None:
        """Fail as the place does, without waiting. Hanging is failing here."""
        number = self._failure_at(path)
        if number is not None or any(is_below(path, place) for place in self.hanging) or self._strikes(path):
            raise _error(number or errno.EIO, path)

    def _failure_at(self, path: str) -> int | None:
        """By which error a step of the current process fails at a path, whatever it does."""
        unreachable = self.unreachable.get(self.scheduler.current.process, ())
        if any(is_below(path, place) for place in unreachable):
            return errno.EHOSTDOWN
        return next((number for place, number in self.failing.items() if is_below(path, place)), None)

    def _is_doomed(self) -> bool:
        process = self.scheduler.current.process
        if process not in self.doomed:
            return False
        self.doomed.discard(process)
        return True

    def _strikes(self, path: str) -> bool:
        chance = max((one for place, one in self.chances.items() if is_below(path, place)), default=0.0)
        return chance > 0 and self.random.random() < chance


class WorldDisk:
    """Keeps the contract of a disk, on one in memory that all processes share."""

    def __init__(self, scheduler: Scheduler, disk: Disk, troubles: Troubles, latency: float = 1.0) -> None:
        self.used: dict[str, float] = {}
        """When each path was last looked at or read by somebody."""
        self._latency = latency
        self._scheduler = scheduler
        self._disk = disk
        self._troubles = troubles
        self._locks: dict[str, Process] = {}
        """Who has the lock of which file, or had it when he was killed."""
        self.arrow: fs.FileSystem = fs.PyFileSystem(_ForArrow(disk, self._open_for_arrow))

    @property
    def is_shared(self) -> bool:
        return self._disk.is_shared

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        return self.step("look at", path, lambda: self._disk.status(path, follow=follow))

    def any_there(self, paths: Sequence[str]) -> bool:
        return self.step("look at", paths[0], lambda: self._disk.any_there(paths))

    def names(self, directory: str) -> list[str]:
        return self.step("list", directory, lambda: self._disk.names(directory))

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        return self.step("list", directory, lambda: self._disk.entries(directory))

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def read(self, path: str) -> bytes:
        return self.step("read", path, lambda: self._disk.read(path))

    def read_tail(self, path: str, size: int) -> bytes:
        return self.step("read the end of", path, lambda: self._disk.read_tail(path, size))

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        def tear() -> None:
            self._disk.write(path, memoryview(data)[: len(memoryview(data)) // 2], new=new)

        self.step("write", path, lambda: self._disk.write(path, data, new=new), writes=True, tear=tear)

    def open_output(self, path: str) -> pa.NativeFile:
        return self.step("open", path, lambda: self._disk.open_output(path), writes=True)

    def link(self, path: str, name: str) -> None:
        self.step("link", name, lambda: self._disk.link(path, name), writes=True)

    def rename(self, path: str, name: str) -> None:
        self.step("rename to", name, lambda: self._disk.rename(path, name), writes=True)

    def delete(self, path: str) -> None:
        self.step("delete", path, lambda: self._disk.delete(path))

    def make_directory(self, path: str) -> None:
        self.step("make", path, lambda: self._disk.make_directory(path), writes=True)

    def delete_directory(self, path: str) -> None:
        self.step("delete", path, lambda: self._disk.delete_directory(path))

    def touch(self, path: str) -> None:
        self.step("touch", path, lambda: self._disk.touch(path))

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        for path in (*paths, *directories):
            self.step("sync", path, lambda path=path: self._disk.sync([path], []))  # type: ignore[misc]

    def usage(self, path: str) -> Usage:
        return self.step("measure", path, lambda: self._disk.usage(path))

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """The lock of a process ends with the process, which does nothing about that when it is killed."""
        process, taken = self._scheduler.current.process, False

        def take() -> None:
            nonlocal taken
            holder = self._locks.get(path)
            if holder is not None and holder.alive:
                raise LockNotHad(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
            with self._disk.locked(path):
                self._locks[path], taken = process, True

        try:
            self.step("lock", path, take)
            yield
        finally:
            if taken and self._locks.get(path) is process:
                del self._locks[path]

    def step(
        self,
        asked: str,
        path: str,
        step: Callable[[], T],
        *,
        writes: bool = False,
        tear: Callable[[], None] = lambda: None,
    ) -> T:
        """One access. `writes`: it needs room; `tear`: what a write may leave that fails."""
        self._scheduler.access(f"{asked} {path}", ACCESS_SECONDS * self._latency)
        self.used[path] = self._scheduler.now
        process, moment = self._scheduler.current.process, f"{area(path)} {asked}"
        exactly = [f"{said} {asked}" for said in parts_of(path)]
        self._scheduler.meet(process, moment)
        for exact in exactly:
            self._scheduler.meet(process, exact)
        try:
            fails_after = self._troubles.before(path, writes=writes)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EIO) and self._troubles.random.random() < 0.5:
                with suppress(OSError):
                    tear()
            raise
        lost = self._troubles.lost_answers.pop(process, None)
        result = step()
        if lost is not None:
            self._scheduler.sleep(lost[0])
            self._troubles.lose_sight(process, path.rpartition("/")[0], lost[1])
        if fails_after or lost is not None:
            raise _error(errno.EIO, path)
        self._scheduler.meet(process, f"{moment}, done")
        for exact in exactly:
            self._scheduler.meet(process, f"{exact}, done")
        return result

    def is_in_use(self, path: str) -> bool:
        """Whether somebody may just have found that a file is whole, and be about to read it."""
        return self._scheduler.now - self.used.get(path, 0.0) < IN_USE_STEPS * ACCESS_SECONDS * self._latency

    def _open_for_arrow(self, path: str) -> pa.NativeFile:
        self._troubles.refuse(path)
        self.used[path] = self._scheduler.now
        return pa.BufferReader(self._disk.read(path))


class _ForArrow(ForArrow):
    """How Arrow reads a disk of the world: all at once, as nobody can go on below Arrow's own calls."""

    def __init__(self, disk: Disk, open_file: Callable[[str], pa.NativeFile]) -> None:
        super().__init__(disk)
        self._open_file = open_file

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._open_file(path)


def area(path: str) -> str:
    """Whose a path is, in a word."""
    if is_below(path, LOG):
        return "log"
    if is_below(path, MEMBERS):
        return "member"
    return "shared" if is_below(path, ROOT) else "volume"


def parts_of(path: str) -> list[str]:
    """What a path is more exactly, in words: of a log member (`part_of_member`); a commit of a replica table, with and
    without the name of its node ("commit", "n1 commit"); the ledger of compactions ("ledger"); or what says that a
    merge counts ("journal entry").
    """
    if is_below(path, f"{ROOT}/merges"):
        return ["journal entry"] if _ENTRY in path and path.endswith(".json") else []
    if is_below(path, f"{ROOT}/compactions"):
        return ["ledger"]
    if is_below(path, VOLUMES) and "/_delta_log/" in path:
        return ["commit", f"{path.split('/', 3)[2]} commit"]
    return [part] if (part := part_of_member(path)) else []


def part_of_member(path: str) -> str:
    """What of a log member a path is, in a word: what it has promised, its seats, its copies of the log, and that one
    of these is whole; else "".
    """
    if not is_below(path, MEMBERS):
        return ""
    if path.endswith("/adopted"):
        return "adopted"
    return next((word for part, word in _PARTS.items() if part in path), "")


_ENTRY = "/entries/"
_PARTS = {"/promises/": "promise", "/seats/": "seat", "/_delta_log/": "copy"}


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
