"""Volumes of a local cluster that are away, full, slow or hang, or are lost for good.

Everything that this process does to files goes through `FaultyDisk`. Spark's workers and delta-rs read past it, so what
can be done to the directory itself is done to it as well.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock

import pyarrow as pa
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.jobs.testing.local.blocks import entered
from epochlake.metastore.storage.disk import Status, Usage
from epochlake.metastore.storage.local_disk import LocalDisk
from epochlake.metastore.storage.memory_disk import ForArrow
from pyarrow import fs


class Faults:
    """What is wrong with directories now, for all participants. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._hanging: dict[Event, str] = {}
        self._slow: dict[object, tuple[str, float]] = {}
        self._full: dict[object, str] = {}

    @contextmanager
    def hangs(self, place: str) -> Iterator[None]:
        """Each step there waits until the block ends, and is done then."""
        released = Event()
        try:
            with entered(self._lock, self._hanging, released, place):
                yield
        finally:
            released.set()

    def slow(self, place: str, seconds: float) -> AbstractContextManager[None]:
        """Each step there takes so much longer."""
        return entered(self._lock, self._slow, object(), (place, seconds))

    def full(self, place: str) -> AbstractContextManager[None]:
        """No step that needs room there succeeds."""
        return entered(self._lock, self._full, object(), place)

    def meet(self, path: str, *, writes: bool = False) -> None:
        """What a step at a path meets there. Raises OSError."""
        with self._lock:
            hanging = [released for released, place in self._hanging.items() if _is_below(path, place)]
            pause = sum(seconds for place, seconds in self._slow.values() if _is_below(path, place))
        for released in hanging:
            released.wait()
        if pause:
            time.sleep(pause)
        if writes and self.is_full(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def is_full(self, path: str) -> bool:
        """Whether there is no room where a path is."""
        with self._lock:
            return any(_is_below(path, place) for place in self._full.values())


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


class FaultyDisk(LocalDisk):
    """The disk of this machine with its faults. Syncs are left out: a test's cluster need not survive a power cut."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.arrow: fs.FileSystem = fs.PyFileSystem(_ForArrow(self))

    def status(self, path: str, *, follow: bool = True) -> Status | None:
        self._faults.meet(path)
        return super().status(path, follow=follow)

    def names(self, directory: str) -> list[str]:
        self._faults.meet(directory)
        return super().names(directory)

    def entries(self, directory: str) -> list[tuple[str, Status]]:
        self._faults.meet(directory)
        return super().entries(directory)

    def read(self, path: str) -> bytes:
        self._faults.meet(path)
        return super().read(path)

    def read_tail(self, path: str, size: int) -> bytes:
        self._faults.meet(path)
        return super().read_tail(path, size)

    def open_to_read(self, path: str) -> pa.NativeFile:
        """The file for Arrow."""
        self._faults.meet(path)
        return pa.OSFile(path, "rb")

    def write(self, path: str, data: bytes | memoryview | pa.Buffer, *, new: bool) -> None:
        self._faults.meet(path, writes=True)
        super().write(path, data, new=new)

    def open_output(self, path: str) -> pa.NativeFile:
        self._faults.meet(path, writes=True)
        return super().open_output(path)

    def link(self, path: str, name: str) -> None:
        self._faults.meet(name, writes=True)
        super().link(path, name)

    def rename(self, path: str, name: str) -> None:
        self._faults.meet(name, writes=True)
        super().rename(path, name)

    def delete(self, path: str) -> None:
        self._faults.meet(path)
        super().delete(path)

    def make_directory(self, path: str) -> None:
        self._faults.meet(path, writes=True)
        super().make_directory(path)

    def delete_directory(self, path: str) -> None:
        self._faults.meet(path)
        super().delete_directory(path)

    def touch(self, path: str) -> None:
        self._faults.meet(path)
        super().touch(path)

    def sync(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        for path in (*paths, *directories):
            self._faults.meet(path)

    def usage(self, path: str) -> Usage:
        self._faults.meet(path)
        found = super().usage(path)
        return found._replace(free=0) if self._faults.is_full(path) else found

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        self._faults.meet(path)
        with super().locked(path):
            yield


class _ForArrow(ForArrow):
    """How Arrow reads the disk."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__(disk)
        self._faulty = disk

    def get_type_name(self) -> str:
        return "local"

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._faulty.open_to_read(path)


@contextmanager
def unmounted(volume: Path, aside: Path) -> Iterator[Path]:
    """An empty directory is where the volume was, as when its disk is not mounted; gives where it is meanwhile.

    `aside` is on the same disk.
    """
    aside.mkdir(parents=True, exist_ok=True)
    kept = aside / uuid.uuid4().hex
    volume.rename(kept)
    volume.mkdir()
    try:
        yield kept
    finally:
        # What was written into the empty mount point is hidden by the disk that is mounted again.
        shutil.rmtree(volume, ignore_errors=True)
        kept.rename(volume)


@contextmanager
def marker_that_hangs(volume: Path, aside: Path) -> Iterator[None]:
    """Who opens the volume's marker hangs, also in another process: it is a pipe that nobody writes to."""
    aside.mkdir(parents=True, exist_ok=True)
    marker, kept, pipe = volume / MARKER_FILE, aside / uuid.uuid4().hex, aside / uuid.uuid4().hex
    os.mkfifo(pipe)
    os.link(marker, kept)
    pipe.replace(marker)
    try:
        yield
    finally:
        writer = os.open(marker, os.O_RDWR | os.O_NONBLOCK)
        kept.replace(marker)
        os.close(writer)


def lose(volume: Path) -> None:
    """All that is on the volume is gone for good; its empty directory stays, as a mount point does."""
    lost = volume.with_name(f".{volume.name}-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        # Gone in one step, whoever reads or writes in it.
        volume.rename(lost)
    shutil.rmtree(lost, ignore_errors=True)
    volume.mkdir(parents=True, exist_ok=True)
