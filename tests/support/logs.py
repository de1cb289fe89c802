"""Entries and logs for tests: chains that verify, damaged ones, and logs that fail when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry, Position, encode_event, entry_hash, position_of, seal
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, Initialise, SwitchBalancing, TakeSnapshot

INITIALISE = Initialise(name="test", cluster_id="cluster-1", product_version="1")
START = Position()
OFF, ON = SwitchBalancing(on=False), SwitchBalancing(on=True)


def toggle(metadata: ClusterMetadata) -> SwitchBalancing:
    """An event that is valid on any metadata of a cluster that has begun and changes it."""
    return SwitchBalancing(on=not metadata.switches.balancing)


def sealed(event: Event, after: Position, **fields: str | int) -> Entry:
    """The entry of `event` right after `after`."""
    values: dict[str, str | int] = {
        "epoch": after.epoch + 1,
        "request_id": f"request-{after.epoch + 1}",
        "author": "test",
        "reason": "",
        "committed_at": 1_700_000_000_000_000 + after.epoch,
        "incarnation": 1,
        "state_id": next_state_id(after.state_id),
        "previous_state_id": after.state_id,
        "previous_hash": after.hash,
    } | fields
    return seal(encode_event(event), **values)  # type: ignore[arg-type]


def chain(count: int, after: Position = START, *, tag: str = "request") -> list[Entry]:
    """`count` entries that continue `after`: the beginning of a cluster, then balancing off, on, off, …"""
    entries: list[Entry] = []
    for _ in range(count):
        epoch = after.epoch + 1
        event = INITIALISE if epoch == 1 else SwitchBalancing(on=epoch % 2 == 1)
        entries.append(sealed(event, after, request_id=f"{tag}-{epoch}"))
        after = position_of(entries[-1])
    return entries


def chain_to_snapshot(count: int) -> list[Entry]:
    """Like `chain`, but the last entry asks for a snapshot."""
    entries = chain(count - 1)
    return [*entries, sealed(TakeSnapshot(), position_of(entries[-1]))]


class StartingAt:
    """A snapshot as of the last of some entries, without a file."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        log = InMemoryLog()
        put(log, entries)
        follower = Follower(log)
        self._found = follower.catch_up(), follower.position

    def newest(self, at_most: int | None = None) -> tuple[ClusterMetadata, Position] | None:
        return self._found if at_most is None else None


def resealed(entry: Entry, **changes: object) -> Entry:
    """The entry with other contents and the hash of these."""
    changed = msgspec.structs.replace(entry, **changes)
    return msgspec.structs.replace(changed, hash=entry_hash(changed))


def put(log: EpochLog, entries: Sequence[Entry]) -> None:
    """Append without looking, also what no committer would."""
    log.read(0)
    log.append(entries)


class ScriptedLog:
    """A log that does as another one, but before an operation runs what a test has planned for it, once.

    `plan("append", action)`: the next append calls `action(append, entries)` instead, which may raise.
    """

    def __init__(self, log: DeltaLog | InMemoryLog) -> None:
        self.log = log
        self.calls: list[str] = []
        self._planned: dict[str, list[Callable]] = {}

    def plan(self, operation: str, *actions: Callable) -> None:
        self._planned.setdefault(operation, []).extend(actions)

    def _do(self, operation: str, *arguments: object) -> object:
        self.calls.append(operation)
        proper = getattr(self.log, operation)
        planned = self._planned.get(operation)
        return planned.pop(0)(proper, *arguments) if planned else proper(*arguments)

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        return self._do("read", after, up_to)  # type: ignore[return-value]

    def version(self) -> int | None:
        return self.log.version()

    def entry(self, epoch: int) -> Entry:
        return self._do("entry", epoch)  # type: ignore[return-value]

    def append(self, entries: Sequence[Entry]) -> None:
        self._do("append", entries)

    def fence(self) -> None:
        self._do("fence")

    def request_epochs(self, up_to: int) -> dict[str, int]:
        return self._do("request_epochs", up_to)  # type: ignore[return-value]

    def compact_if_due(self) -> bool:
        return bool(self._do("compact_if_due"))


def committer(log: EpochLog, **options: int) -> Committer:
    """A committer of its own on `log`, with nobody else in line."""
    return Committer(Follower(log), LocalQueue(), author="test", **options)


def begun(entries: int = 1) -> InMemoryLog:
    """A log in memory that has the first entries of a cluster."""
    log = InMemoryLog()
    put(log, chain(entries))
    return log


def all_of(log: InMemoryLog) -> list[tuple[int, str]]:
    """Epoch and request id of each entry."""
    return [(entry.epoch, entry.request_id) for entry in log.shared.entries]
