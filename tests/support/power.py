"""A disk that forgets: what was synced, as it was then, and trees of files as a power cut leaves them.

Everything that syncs goes through `local_disk.fsync`; the recorder stands in its place. Files that were synced have the
bytes of that moment, directories the names of that moment. The rest is gone, or (`torn`) has its name and no bytes.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from epochlake.metastore.delta_commits import SyncedCommits
from epochlake.metastore.storage import local_disk

from tests.support.storages import STORAGE, forget

Names = dict[str, int]


@dataclass(frozen=True)
class Moment:
    """What the disk has after a sync; `names` of directories by their inodes, `contents` of files by theirs."""

    names: dict[int, Names]
    contents: dict[int, bytes]
    real: dict[str, Names] = field(default_factory=dict)


@dataclass
class Disk:
    """Records what is synced below `root`, which is on the disk itself."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    _promises: list[tuple[int, Callable[[Path], None], str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _on: bool = True
    _hasty: bool = False

    def fsync(self, descriptor: int) -> None:
        """Stands in for `os.fsync`."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not self._on or (self._hasty and (path.endswith("/_delta_log") or path.endswith(".json"))):
            return
        with self._lock:
            self._record(path, os.fstat(descriptor))

    def _record(self, path: str, status: os.stat_result) -> None:
        last = self.moments[-1] if self.moments else Moment({}, {})
        names, contents = dict(last.names), dict(last.contents)
        keep = self.root.with_name("kept") / str(status.st_ino)
        if stat.S_ISDIR(status.st_mode):
            names[status.st_ino] = _names(path)
        else:
            contents[status.st_ino] = Path(path).read_bytes()
            if not keep.exists():
                os.link(path, keep)  # so that no other file gets its number
        self.moments.append(Moment(names, contents, _tree(self.root)))

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """What is done in the block is done by another process, which never comes to syncing its commits."""
        self._hasty, known = True, dict(STORAGE.kept(SyncedCommits).newest)
        try:
            yield
        finally:
            self._hasty = False
            STORAGE.kept(SyncedCommits).newest = known

    def promise(self, what: str, holds: Callable[[Path], None]) -> None:
        """From now on `holds(root)` has to go through after every power cut, in place of an earlier promise of it."""
        self._promises.append((len(self.moments), holds, what))

    def check_all(self, target: Path, *, torn: bool = False) -> int:
        """Cut the power after every sync, and see whether everything that was promised before is there; the cuts."""
        done, self._on = 0, False
        for number, moment in enumerate(self.moments, start=1):
            due = {what: holds for at, holds, what in self._promises if at <= number}
            if not due:
                continue
            root = target / f"cut-{number}"
            _restore(self.root, root, moment, torn=torn)
            forget()
            for what, holds in due.items():
                try:
                    holds(root)
                except BaseException as error:
                    raise AssertionError(f"after sync {number} of {len(self.moments)}: {what} is lost") from error
            done += 1
        return done


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_syncs: None) -> Disk:
    """A disk in place of the real one, with everything below `tmp_path/disk`."""
    root = tmp_path / "disk"
    root.mkdir()
    (tmp_path / "kept").mkdir()
    recorder = Disk(root)
    monkeypatch.setattr(local_disk, "fsync", recorder.fsync)
    monkeypatch.setattr(local_disk, "THREADS", 1)
    return recorder


def _names(path: str) -> Names:
    return {entry.name: entry.inode() for entry in os.scandir(path)}


def _tree(root: Path) -> dict[str, Names]:
    return {directory: _names(directory) for directory, _, _ in os.walk(root)}


def _restore(root: Path, target: Path, moment: Moment, *, torn: bool) -> None:
    """The tree after the power cut; the root directory itself is on the disk as well."""
    real = moment.real
    inode_of = {os.stat(root).st_ino: str(root)} | {
        inode: f"{directory}/{name}"
        for directory, names in real.items()
        for name, inode in names.items()
        if f"{directory}/{name}" in real
    }

    def put(inode: int, here: Path) -> None:
        here.mkdir()
        names = dict(moment.names.get(inode, {}))
        if torn:
            names |= {n: i for n, i in real.get(inode_of.get(inode, ""), {}).items() if n not in names}
        for name, child in names.items():
            if child in inode_of:
                put(child, here / name)
            else:
                (here / name).write_bytes(moment.contents.get(child, b""))

    target.parent.mkdir(exist_ok=True)
    put(os.stat(root).st_ino, target)
