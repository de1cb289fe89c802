"""Watching volumes: free space, errors and latency, by a probe with a deadline.

A probe is a thread that looks at the volume's directory and its file system, and writes nothing. One that hangs is left
alone: its volume is `hanging` until it comes back, no second probe is begun there, and nobody waits for it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from enum import StrEnum
from urllib.parse import unquote, urlsplit

import msgspec
from epochlake.jobs.agent.looking import Look


class VolumeHealth(StrEnum):
    UNKNOWN = "unknown"
    OK = "ok"
    READ_ONLY = "read-only"
    FAILING = "failing"
    HANGING = "hanging"
    NOT_WATCHED = "not-watched"


class VolumeSeen(msgspec.Struct, frozen=True):
    """A volume as its agent sees it. Bytes; `seconds` is what the last probe took, or has taken so far."""

    name: str
    uri: str
    health: VolumeHealth = VolumeHealth.UNKNOWN
    error: str | None = None
    free: int | None = None
    capacity: int | None = None
    seconds: float | None = None


class Space(msgspec.Struct, frozen=True):
    free: int
    capacity: int
    read_only: bool


def local_path(uri: str) -> str | None:
    """The directory of a volume on this machine; None for one in an object store."""
    parts = urlsplit(uri)
    if not parts.scheme or len(parts.scheme) == 1:
        return uri
    return unquote(parts.path) if parts.scheme == "file" else None


def look(path: str) -> Space:
    """Look at a directory and its file system. Raises OSError."""
    with os.scandir(path) as entries:
        next(entries, None)
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, bool(found.f_flag & os.ST_RDONLY))


class VolumeWatch:
    """Watches one volume. `probe` begins a look unless one is under way; `seen` never waits."""

    def __init__(self, name: str, uri: str, *, deadline: float, looking: Callable[[str], Space] = look) -> None:
        self.name, self.uri = name, uri
        self._deadline = deadline
        path = local_path(uri)
        self._look = None if path is None else Look(lambda: looking(path), name)

    def probe(self) -> bool:
        """Begin a look; False when the last one has not come back, or the volume is in an object store."""
        return self._look is not None and self._look.begin()

    def seen(self) -> VolumeSeen:
        """The volume as of the last look that came back, or `hanging` when one has not come back in time."""
        if self._look is None:
            return VolumeSeen(self.name, self.uri, VolumeHealth.NOT_WATCHED)
        found, took = self._look.last
        if isinstance(found, Space):
            health = VolumeHealth.READ_ONLY if found.read_only else VolumeHealth.OK
            seen = VolumeSeen(self.name, self.uri, health, None, found.free, found.capacity, took)
        elif isinstance(found, Exception):
            seen = VolumeSeen(self.name, self.uri, VolumeHealth.FAILING, _said(found), seconds=took)
        else:
            seen = VolumeSeen(self.name, self.uri)
        taken = self._look.under_way
        if taken is None or taken <= self._deadline:
            return seen
        error = f"a look at {self.uri} has not come back within {self._deadline:g} s"
        return msgspec.structs.replace(seen, health=VolumeHealth.HANGING, error=error, seconds=taken)


def _said(error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    code = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror or error} ({code})" if code else str(error)
