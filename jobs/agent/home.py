"""An agent's home: the directory that holds what it must not forget (seed 003's vault, seed 001's discovery table).

Each document is a file of its own: one line of JSON, and a line with its SHA-256. It is written beside its place, put
on the disk, and renamed, so that a kill, a full disk or a torn write leaves the document of before. A document that
does not match its hash is never half used: it is named, and the agent does not start.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import uuid
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from epochlake.jobs.agent.messages import LoggedNode, Tag
from epochlake.jobs.agent.sanity import is_node_name
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError, InvalidRequest

D = TypeVar("D")

IDENTITY = "identity"
TAG = "tag"
DISCOVERY = "discovery"
PEERS = "peers"
VIEW = "view"
ENSEMBLE = "ensemble"


_HINTS = {
    errno.ENOSPC: "Make room on its disk",
    errno.EDQUOT: "Make room: its user has used up what he may",
    errno.EROFS: "Mount its disk so that it can be written to, and look why it is not",
    errno.EACCES: "Let the user who runs the agent own it",
    errno.EPERM: "Let the user who runs the agent own it",
}


class HomeDamaged(EpochlakeError):
    """A document of a home is not what was written."""


class HomeInUse(EpochlakeError):
    """Another process runs an agent in this home."""


class HomeUnwritable(EpochlakeError):
    """The home cannot be written to: its disk is full, read-only or gone. What it held before stands."""

    exit_code = 75


class AgentIdentity(msgspec.Struct, frozen=True):
    """Who an agent is: an id that is made once, and the name of its node. Neither changes while the home lives."""

    agent_id: str
    name: str


class View(msgspec.Struct, frozen=True):
    """What the log said when it was last followed: the end of the copy, nodes, features, the state of an upgrade."""

    tag: Tag
    epoch: int
    hash: str
    incarnation: int
    seen_at: float
    nodes: tuple[LoggedNode, ...] = ()
    features: tuple[str, ...] = ()
    upgrade_state: str | None = None


class Home:
    """The documents of one home. `lock` it before an agent runs in it."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._lock: int | None = None

    @property
    def log(self) -> Path:
        """Where the copy of the log is."""
        return self.directory / "log"

    @property
    def snapshots(self) -> Path:
        return self.directory / "snapshots"

    def lock(self) -> None:
        """Keep the home for this process until it ends, however it ends. Raises HomeInUse, HomeUnwritable."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self.unwritable(error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise HomeInUse(
                f"an agent runs in {self.directory} already", hint="Stop it, or give this one a home of its own"
            ) from error

    def release(self) -> None:
        """Let another process have the home."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def identity(self, name: str | None) -> AgentIdentity:
        """The agent of this home, made at the first start. Raises InvalidRequest when it has another name."""
        known = self.read(IDENTITY, AgentIdentity)
        if known is None:
            if self.log.exists() or (self.directory / f"{TAG}.json").exists():
                raise HomeDamaged(
                    f"{self.directory} has lost its identity, and holds other files of an agent",
                    hint="Clear the home, and start the agent again",
                )
            if not name:
                raise InvalidRequest("an agent needs the name of its node at its first start", hint="Give --name")
            if not is_node_name(name):
                raise InvalidRequest(
                    f"{name[:80]!r} is no name of a node",
                    hint="Give --name letters of ASCII, digits, '_', '.' and '-', 255 at most",
                )
            known = AgentIdentity(uuid.uuid4().hex, name)
            self.write(IDENTITY, known)
        if name and name != known.name:
            raise InvalidRequest(
                f"{self.directory} is the home of node {known.name!r}, not of {name!r}",
                hint="Give it the name that it has, or another home",
            )
        return known

    def read(self, document: str, kind: type[D]) -> D | None:
        """A document; None when it was never written. Raises HomeDamaged."""
        path = self._path(document)
        try:
            held = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HomeDamaged(
                f"{path} cannot be read: {error.strerror}", hint="Look at the disk of the home"
            ) from error
        body, _, rest = held.partition(b"\n")
        if rest.strip() != hashlib.sha256(body).hexdigest().encode():
            raise self._damaged(path)
        try:
            return msgspec.json.decode(body, type=decodable(kind))
        except msgspec.MsgspecError as error:
            raise self._damaged(path) from error

    def write(self, document: str, value: Any) -> None:
        """Write a document, all of it or nothing. Raises HomeUnwritable."""
        body = msgspec.json.encode(value)
        write_whole(self._path(document), body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n", self)

    def _path(self, document: str) -> Path:
        return self.directory / f"{document}.json"

    def _damaged(self, path: Path) -> HomeDamaged:
        return HomeDamaged(
            f"{path} is not what was written there", hint="Clear the home and start the agent again; it joins anew"
        )

    def unwritable(self, error: OSError) -> HomeUnwritable:
        return HomeUnwritable(
            f"the home {self.directory} cannot be written to: {error.strerror}",
            hint=_HINTS.get(error.errno or 0, "Look at the disk of the home"),
        )


def write_whole(path: Path, content: bytes, home: Home) -> None:
    """Put `content` at `path` as a whole, durably, or leave what was there. Raises HomeUnwritable.

    Threads that write the same document at once each have a file of their own beside it: the last one stands, whole.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise home.unwritable(error) from error


def sync_directory(directory: Path) -> None:
    """Put the names of a directory on the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
