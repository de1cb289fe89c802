"""Roots with log members in real directories, whose logs are in memory or Delta tables."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log import generations
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendUncertain, PreparedLog
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries
from epochlake.metastore.log.log_member import DeltaMemberLogs, LogMember, MemberLogs
from epochlake.metastore.log.majority_log import MajorityLog
from epochlake.metastore.log.moving_members import MemberMover
from epochlake.metastore.storage.storage import Storage

from tests.support.waiting import eventually

CLUSTER = "cluster-1"


class MemoryLogs:
    """Logs of members in memory; those in `broken` directories do not answer."""

    def __init__(self) -> None:
        self.logs: dict[str, SharedEntries] = {}
        self.broken: set[str] = set()
        self.lose_next: set[str] = set()

    def is_there(self, uri: str) -> bool:
        return uri in self.logs

    def create(self, uri: str) -> None:
        self.logs.setdefault(uri, SharedEntries())

    def open(self, uri: str) -> PreparedLog:
        return _Breakable(self, uri)

    def delete(self, uri: str) -> None:
        self.logs.pop(uri, None)


class _Breakable(InMemoryLog):
    def __init__(self, logs: MemoryLogs, uri: str) -> None:
        super().__init__(logs.logs[uri])
        self._logs, self._uri = logs, uri

    def _require(self) -> None:
        if any(self._uri.startswith(f"{broken}/") for broken in self._logs.broken):
            raise StorageUnavailable(f"{self._uri} does not answer")

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        self._require()
        return super().read(after, up_to)

    def append(self, entries: list[Entry]) -> None:  # type: ignore[override]
        self._require()
        super().append(entries)
        if self._uri in self._logs.lose_next:
            self._logs.lose_next.discard(self._uri)
            raise AppendUncertain("the answer was lost")

    def fence(self) -> None:
        self._require()
        super().fence()


class Group:
    """A root and directories for members, all of them real directories; logs in memory or in Delta."""

    def __init__(self, path: Path, count: int, *, delta: bool = False) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.storage = Storage(StorageSettings(durability="fsync"))
        self.memory = MemoryLogs()
        self.logs: MemberLogs = DeltaMemberLogs(self.storage, 8) if delta else self.memory
        self.members = []
        for number in range(count):
            (path / f"member-{number}").mkdir()
            self.members.append(str(path / f"member-{number}"))
        self.root = str(path / "root")
        self.begin(self.root)

    def begin(self, root: str) -> None:
        Path(root).mkdir()
        self.logs.create(f"{root}/log")

    def open(self, root: str = "", patience: float = 20.0) -> MajorityLog:
        root = root or self.root
        place = f"{root}/log"
        return MajorityLog(
            self.storage,
            f"{root}/{generations.DIRECTORY}",
            lambda: self.logs.open(place),
            self.logs,
            patience=patience,
        )

    def mover(self, root: str = "") -> MemberMover:
        root = root or self.root
        return MemberMover(self.storage, root, f"{root}/{generations.DIRECTORY}", self.logs)

    def reconfigure(self, *numbers: int) -> generations.Generation:
        chosen = [self.members[number] for number in numbers]
        return self.mover().reconfigure(CLUSTER, chosen, self.logs.open(f"{self.root}/log"))

    def generation(self, number: int, members: Sequence[str]) -> generations.Generation:
        """One that was begun: its members, those that are there, have their seats."""
        token = f"seat-{number}-{len(list(self.path.rglob('seat-*')))}"
        there = [uri for uri in members if Path(uri).exists()]
        seats = tuple(LogMember(self.storage, uri, self.logs).give_seat(token) for uri in there)
        return generations.Generation(number, CLUSTER, self.root, tuple(members), token=token, seats=seats)

    def lose_root(self) -> None:
        shutil.rmtree(self.root)
        self.memory.logs.pop(f"{self.root}/log", None)

    def recover(self, *numbers: int, root: str = "") -> int:
        self.root = root or str(self.path / f"root-{len(list(self.path.iterdir()))}")
        if not Path(self.root).exists():
            self.begin(self.root)
        chosen = [self.members[number] for number in numbers]
        return self.mover().recover(chosen, lambda: self.logs.open(f"{self.root}/log")).epoch


def append(group: Group, entries: list[Entry], root: str = "", patience: float = 20.0) -> MajorityLog:
    log = group.open(root, patience)
    log.read(0)
    log.append(entries)
    return log


def wipe(group: Group, *numbers: int) -> None:
    """Blank disks come in place of members'."""
    for number in numbers:
        shutil.rmtree(group.members[number])
        Path(group.members[number]).mkdir()
        for uri in [uri for uri in group.memory.logs if uri.startswith(f"{group.members[number]}/")]:
            del group.memory.logs[uri]


def behind(group: Group, number: int, entries: list[Entry]) -> None:
    """Append while a member is away, so that it lacks the entries."""
    group.memory.broken = {group.members[number]}
    log = append(group, entries)
    # A majority was enough: the member may not even have been asked yet, and would answer when it is back.
    eventually(lambda: not any(copying.busy for copying in log._members.values()))
    group.memory.broken = set()
