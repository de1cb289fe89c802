"""What the process that keeps an ensemble by itself remembers beside it, so that the next one knows what was its own.

An operator's change and one of a machine look alike in the notes of the ensemble. This znode names those of the
machine: a change under way that is not named here is somebody else's, and is left to them. One that was noted, is not
under way any more and has not come about was taken back by somebody, and is not begun again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.reconfiguring import EnsembleSeen, overtaken
from epochlake.metastore.errors import UnknownFormat
from epochlake.placement.decoding import decodable
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

KEPT = "/epochlake-ensemble-kept"
"""One for the ensemble, as the notes are: of several clusters that share it, one keeps it."""

KEEP_SECONDS = 60.0
KEEPER = "ensemble-keeper"
"""Below the znode of a cluster: what its coordinator does to the ensemble."""


class KeptChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the cluster of this id has begun last, as ZooKeeper writes servers; no `target`: that has ended. `replaced`:
    what it had begun before and this takes the place of. `noted`: whether it was there for others to see.
    """

    cluster: str
    target: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    noted: bool = False

    def began(self, seen: EnsembleSeen) -> bool:
        """Whether the change that is under way is one of this."""
        change = seen.notes.change
        return change is not None and change.target in (self.target, self.replaced)

    def was_taken_back(self, seen: EnsembleSeen, target: tuple[str, ...]) -> bool:
        """Whether somebody has put an end to this very change before it had come about."""
        return seen.notes.change is None and self.noted and self.target == target


class KeeperState(msgspec.Struct, frozen=True):
    """What the coordinator that keeps the ensemble of a cluster is at, for people. `at`: when it said so, in seconds
    since 1970 by its clock; `doing`: empty while it rests until the next look; `waits`: why it has not changed what it
    would, as of its last look.
    """

    coordinator: str
    at: float
    doing: str = ""
    waits: str = ""


def tell(coordination: Coordination, path: str, state: KeeperState) -> None:
    """Say what is done, at the absolute `path`. Nothing depends on it: it never raises, and waits for no answer."""
    data = msgspec.json.encode(state)

    def written(result: Any) -> None:
        if isinstance(result.exception, NoNodeError):
            coordination.client.create_async(path, data, makepath=True)

    if not coordination.closed:
        coordination.client.set_async(path, data).rawlink(written)


def told(coordination: Coordination, path: str, timeout: float | None = None) -> KeeperState | None:
    """What was said there last; None where nothing was that can be understood. Raises CoordinationUnavailable."""
    value = coordination.barrier(path, timeout)
    if value is None:
        return None
    try:
        return msgspec.json.decode(value.data, type=decodable(KeeperState))
    except msgspec.MsgspecError:
        return None


class Keeping:
    """The znode, as one session reads and writes it: a write is refused when anybody has written since it was read."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._version: int | None = None

    def read(self) -> KeptChange | None:
        """No older than the call. Raises CoordinationUnavailable, UnknownFormat."""
        value = self._coordination.barrier(KEPT, KEEP_SECONDS)
        self._version = None if value is None else value.version
        if value is None:
            return None
        try:
            return msgspec.json.decode(value.data, type=decodable(KeptChange))
        except msgspec.MsgspecError as error:
            raise UnknownFormat(
                f"the znode {KEPT} was written by another version, or by somebody else: {error}",
                hint="Use the newest version; when no change of the servers is under way, delete that znode",
            ) from error

    def write(self, kept: KeptChange) -> None:
        """Raises CoordinationUnavailable, Overtaken."""
        data, version = msgspec.json.encode(kept), self._version
        try:
            if version is None:
                self._coordination.call(f"write {KEPT}", lambda client: client.create_async(KEPT, data), KEEP_SECONDS)
                self._version = 0
            else:
                asked = self._coordination.call(
                    f"write {KEPT}", lambda client: client.set_async(KEPT, data, version), KEEP_SECONDS
                )
                self._version = asked.version
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            raise overtaken() from error
