"""Bytes that survive a power cut: what has to be on the disk, and when.

Nothing is acknowledged, and nothing is built upon, that the disk does not have. First files and the
directories that name them, then whatever refers to them. Object stores keep what they have answered, so there is
nothing to do for them (docs/decisions/020-durability.md).

Where `[storage] durability` is `replicas`, rows and commits of replica tables rely on the other replicas instead
(`sync_replicated`); what there is one copy of, and the promises of replicas (fences, markers), are always synced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from epochlake.metastore.storage.disk import Disk

FSYNC = "fsync"
REPLICAS = "replicas"


class Sync(Protocol):
    """`sync` or `sync_replicated`."""

    def __call__(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None: ...


class Syncing:
    """What is promised of a disk: `durability` is `fsync` or `replicas`."""

    def __init__(self, disk: Disk, durability: str) -> None:
        self.durability = durability
        self._disk = disk

    @property
    def relies_on_replicas(self) -> bool:
        """Whether what other replicas have as well is left to the system."""
        return self.durability != FSYNC

    def sync(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        """Sync a group: all of its files and directories side by side, each once. Raises OSError.

        A journal writes for all of them at once. Whatever names them comes after this.
        """
        self._disk.sync(list(dict.fromkeys(files)), list(dict.fromkeys(directories)))

    def sync_replicated(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        """`sync` for what other replicas have as well: nothing is done where `durability` relies on them."""
        if not self.relies_on_replicas:
            self.sync(files, directories)
