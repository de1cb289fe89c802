"""How far streaming has come: what is at the targets already of what the sources have, from metadata of files alone.

Nothing is counted while it happens. Whoever opens the replica tables sees how much has arrived, so a
status in another process, on another day or after a restart says the same as the coordinator itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from epochlake.jobs.coordinator.effects.replicas import open_replica
from epochlake.jobs.coordinator.effects.tablets import tokens_of
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import ReplicaKey
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import missing, overlap
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId, Transition, VolumeId
from epochlake.metastore.planning.ring_changes import change_of
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.ring.state import STEPS, Operation, Step
from epochlake.placement.tablets.transitions import Kind, Stage

THREADS = 16

STREAMED = frozenset(
    {Stage.WRITE_BOTH_READ_NEW, Stage.USE_NEW, Stage.CLEANUP, Stage.END_MIGRATION},
)
"""Stages of a tablet that has arrived."""

ON_THE_WAY = STREAMED | {Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING}
"""Stages of a tablet that goes to its target, or is there."""


class Amount(msgspec.Struct, frozen=True):
    """Bytes and rows; of a file that counts in part, its share of the tokens."""

    bytes: int = 0
    rows: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.rows + other.rows)


class StreamProgress(msgspec.Struct, frozen=True):
    """How much of what has to be streamed has arrived. `unreachable`: volumes that could not be looked at."""

    bytes_total: int
    bytes_streamed: int
    rows_total: int
    rows_streamed: int
    unreachable: tuple[VolumeId, ...] = ()

    @property
    def fraction(self) -> float:
        return self.bytes_streamed / self.bytes_total if self.bytes_total else 1.0


class WantedRange(msgspec.Struct, frozen=True):
    """Tokens from `low` to `high` of a table that `target` gets: from `giver`, or from all of `sources` together."""

    table_id: TableId
    low: int
    high: int
    target: VolumeId
    giver: VolumeId | None
    sources: tuple[VolumeId, ...]


def operation_progress(storage: Storage, metadata: ClusterMetadata, operation: Operation) -> StreamProgress:
    """How far the streaming of an operation in flight has come, by opening its replica tables.

    Before START nothing has arrived, from MID on everything has.
    """
    wanted = [
        WantedRange(table_id, gain.low, gain.high, gain.target, gain.giver, gain.sources)
        for setting in change_of(metadata, operation).settings
        for table_id in setting.tables
        for gain in setting.gains
    ]
    return measured(storage, metadata, wanted, _arrived(operation))


def transition_progress(
    storage: Storage, metadata: ClusterMetadata, transitions: Iterable[Transition]
) -> StreamProgress:
    """How far the streaming of tablets in transition has come; those on their way back do not count."""
    going = [one for one in transitions if one.stage in ON_THE_WAY and one.error is None]
    arrived = [one for one in going if one.stage in STREAMED]
    waiting = [one for one in going if one.stage not in STREAMED]
    return _together(
        measured(storage, metadata, (_of_tablet(metadata, one) for one in arrived), True),
        measured(storage, metadata, (_of_tablet(metadata, one) for one in waiting), None),
    )


def seconds_left(progress: StreamProgress, seconds_so_far: float) -> float | None:
    """How long the rest takes at the speed so far; None when nothing has arrived yet."""
    if progress.bytes_streamed >= progress.bytes_total:
        return 0.0
    if progress.bytes_streamed <= 0 or seconds_so_far <= 0:
        return None
    return (progress.bytes_total - progress.bytes_streamed) * seconds_so_far / progress.bytes_streamed


def measured(
    storage: Storage, metadata: ClusterMetadata, wanted: Iterable[WantedRange], arrived: bool | None
) -> StreamProgress:
    """The progress of some ranges. `arrived`: whether all is known to be there, or nothing; None: to be looked at."""
    ranges = list(wanted)
    replica_keys = {(one.table_id, volume) for one in ranges for volume in (*one.sources, one.target)}
    opened, unreachable = _opened(storage, metadata, replica_keys)
    total = streamed = Amount()
    for one in ranges:
        givers = [one.giver] if one.giver is not None and (one.table_id, one.giver) in opened else one.sources
        has = [opened[replica] for volume in givers if (replica := (one.table_id, volume)) in opened]
        target = opened.get((one.table_id, one.target))
        files = {file.file_id: file for source in has for file in source.within(one.low, one.high)}
        there = [] if target is None else target.within(one.low, one.high)
        wants = amount_missing(files.values(), (), one.low, one.high)
        lacks = amount_missing(files.values(), there, one.low, one.high) if arrived is None else Amount()
        total += wants
        if arrived is not False:
            streamed += Amount(wants.bytes - lacks.bytes, wants.rows - lacks.rows)
    return StreamProgress(total.bytes, streamed.bytes, total.rows, streamed.rows, unreachable)


def amount_missing(needed: Iterable[DataFile], have: Iterable[DataFile], low: int, high: int) -> Amount:
    """How much `needed` has from token `low` to `high` that no file of `have` has."""
    found = Amount()
    for part in missing(needed, have, low, high):
        first, last = part.file.extent
        begin, end = overlap((part.low, part.high), (first, last))
        if begin <= end:
            share, of = end - begin + 1, last - first + 1
            found += Amount(part.file.size * share // of, part.file.rows * share // of)
    return found


def _arrived(operation: Operation) -> bool | None:
    """Whether all of it is there by the operation's step, None while it is streamed."""
    last = STEPS[operation.next_step - 1]
    return None if last is Step.START else last is not Step.PREPARE


def _of_tablet(metadata: ClusterMetadata, transition: Transition) -> WantedRange:
    low, high = tokens_of(metadata, transition)
    giver = None if transition.kind is Kind.REBUILD else transition.leaving
    return WantedRange(transition.table_id, low, high, transition.pending, giver, transition.replicas)


def _together(one: StreamProgress, other: StreamProgress) -> StreamProgress:
    return StreamProgress(
        one.bytes_total + other.bytes_total,
        one.bytes_streamed + other.bytes_streamed,
        one.rows_total + other.rows_total,
        one.rows_streamed + other.rows_streamed,
        tuple(sorted({*one.unreachable, *other.unreachable})),
    )


def _opened(
    storage: Storage, metadata: ClusterMetadata, replica_keys: Iterable[ReplicaKey]
) -> tuple[Mapping[ReplicaKey, ReplicaSnapshot], tuple[VolumeId, ...]]:
    """Snapshots of the replica tables that answer, and the volumes of those that do not."""

    def attempt(replica: ReplicaKey) -> ReplicaSnapshot | None:
        try:
            return open_replica(storage, metadata, *replica)
        except SideEffectFailed:
            return None

    wanted = sorted(replica_keys)
    found = dict(zip(wanted, ThreadWorkers(THREADS).run(attempt, wanted), strict=True))
    opened = {replica: snapshot for replica, snapshot in found.items() if snapshot is not None}
    return opened, tuple(sorted({volume for (_, volume), snapshot in found.items() if snapshot is None}))
