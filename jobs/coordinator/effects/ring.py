"""What the coordinator does to replica tables on behalf of an operation on the ring: preparing and streaming.

Before START the replica tables that gain ranges are made, and what earlier operations left in these ranges is dropped
under the fence. Between START's barrier and MID every gained range is streamed, under the session that START opened: a
group of files at a time, each committed by itself, so that progress can be seen and a restart goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from epochlake.jobs.coordinator.effects.replicas import (
    Begun,
    commit_streamed,
    copies_for,
    drop_before,
    leave_receipt,
    make_replica,
    open_replica,
    replica_address,
)
from epochlake.jobs.coordinator.effects.sources import Sources
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import ReplicaKey, is_gone
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.fences import mark_filled, mark_unfilled
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.outcomes import FencedOff, Unreachable
from epochlake.jobs.replicas.receipts import Receipt, Receipts
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.rings import Running
from epochlake.metastore.planning.ring_changes import Gain, change_of
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.ring.state import Operation, OperationKind

THREADS = 16

GROUP_FILES = 64
GROUP_BYTES = 256 << 20
"""The most that one group of a stream copies before it is committed and something else may come next."""


class StreamedGroup(msgspec.Struct, frozen=True):
    """What a group has brought; `finished`: nothing is left to bring."""

    bytes: int
    rows: int
    finished: bool


def prepare(
    storage: Storage,
    metadata: ClusterMetadata,
    operation: Operation,
    receipts: Receipts | None = None,
) -> None:
    """Make every replica table that gains ranges, with nothing in these. Raises SideEffectFailed.

    A rebuilt node serves its ranges until START, so nothing is taken from it, and a table that was lost is made after
    START only: before, an empty one would be read as if it knew that there is nothing.
    """
    if operation.kind is OperationKind.REBUILD:
        return

    def attempt(replica: ReplicaKey, gains: Sequence[Gain]) -> None:
        table_id, volume = replica
        if volume not in metadata.ring_volumes(table_id):
            make_replica(storage, metadata, table_id, volume, metadata.fence, receipts)
        # Once: a coordinator that was paused just before would drop what START's writers have brought since.
        name = f"prepare-{operation.operation_id}"
        ranges = [(gain.low, gain.high) for gain in gains if not gain.stays]
        drop_before(storage, metadata, table_id, volume, [Begun(name, since, ranges)])

    since = metadata.rings.running[operation.operation_id].started_epoch
    gains = change_of(metadata, operation).gains_of().items()
    _everywhere([(replica, gained) for replica, gained in gains if not is_gone(metadata, replica[1])], attempt)


def prepare_rebuilt(
    storage: Storage,
    metadata: ClusterMetadata,
    operation: Operation,
    receipts: Receipts | None = None,
) -> None:
    """Make the replica tables that a rebuilt node has lost, once nobody reads them. Raises SideEffectFailed.

    Their fence is at START's epoch or above from the beginning: a pipeline of before that finds one plans again.
    """
    if operation.kind is OperationKind.REBUILD:
        gaining = sorted(change_of(metadata, operation).gaining)
        replica_keys = [(replica, ()) for replica in gaining if not is_gone(metadata, replica[1])]
        name = operation.operation_id

        def attempt(replica: ReplicaKey, gains: Sequence[Gain]) -> None:
            make_replica(storage, metadata, *replica, metadata.fence, receipts, unfilled=name)
            _require_marked(
                metadata, replica, mark_unfilled(replica_address(storage, metadata, *replica), metadata.fence, name)
            )

        _everywhere(replica_keys, attempt)


def finish_rebuilt(
    storage: Storage,
    metadata: ClusterMetadata,
    operation: Operation,
    receipts: Receipts | None = None,
) -> None:
    """Let the replica tables of a rebuilt node be read, all of whose rows are there now. Raises SideEffectFailed.

    Before MID, whose readers read them. A rebuild that is taken back earlier leaves tables that were made anew unread:
    half of their rows are missing, and an empty one would say that there is nothing. What they acknowledged before, and
    may have lost, is no matter any more.
    """
    if operation.kind is not OperationKind.REBUILD:
        return

    def attempt(replica: ReplicaKey, gains: Sequence[Gain]) -> None:
        address = replica_address(storage, metadata, *replica)
        if receipts is not None:
            _settle(receipts, address)
        _require_marked(metadata, replica, mark_filled(address, metadata.fence, operation.operation_id))

    gaining = sorted(change_of(metadata, operation).gaining)
    _everywhere([(replica, ()) for replica in gaining if not is_gone(metadata, replica[1])], attempt)


def stream_group(
    storage: Storage,
    metadata: ClusterMetadata,
    operation: Operation,
    running: Running,
    replica: ReplicaKey,
    gains: Sequence[Gain],
    copier: Copier,
    ledger: Ledger,
    most_bytes: int = GROUP_BYTES,
    receipts: Receipts | None = None,
) -> StreamedGroup:
    """Bring the next group of files of what a replica table gains. Raises SideEffectFailed."""
    assert running.session is not None
    table_id, volume = replica
    target = open_replica(storage, metadata, table_id, volume)
    sources = Sources(storage, metadata, table_id, metadata.fence_at(running.epoch), receipts)
    copies: list[PartCopy] = []
    for gain in gains:
        copies += copies_for(ledger, sources_of(metadata, operation, gain, sources), target, (gain.low, gain.high))
    group = _first_of(copies, most_bytes)
    if not group:
        landed_version = target.applied(running.session)
        if landed_version is not None:  # who committed it may have died before the receipt
            leave_receipt(receipts, table_id, Receipt(volume, landed_version, running.session))
        return StreamedGroup(0, 0, True)
    copied = copier.copy(group)
    # A snapshot's version grows with every commit, so it tells the groups of a session apart.
    landed = commit_streamed(
        storage, ledger, metadata, table_id, volume, copied.arrived, [running.session], target.version, receipts
    )
    if copied.failed:
        first = next(iter(copied.failed.values()))
        raise SideEffectFailed(f"{len(copied.failed)} of {len(group)} files could not be copied, for one: {first}")
    size, rows = (sum(getattr(file, what) for file in copied.arrived) for what in ("size", "rows"))
    return StreamedGroup(size, rows, landed and len(group) == len(copies))


def _settle(receipts: Receipts, rebuilt: ReplicaAddress) -> None:
    try:
        receipts.settle(rebuilt, receipts.of(rebuilt.table_id).get(rebuilt.volume_id, ()))
    except (StorageUnavailable, WrongCluster) as error:
        raise SideEffectFailed.of(error) from error


def sources_of(metadata: ClusterMetadata, operation: Operation, gain: Gain, sources: Sources) -> list[ReplicaSnapshot]:
    """Who gives the rows of a range: the replica that gives it up, or what together has every acknowledged write.

    The target then holds what the giver held, so that every later quorum still meets every earlier one. That is so
    within a datacenter too when both are in the same; else, and where the giver does not answer, rows are merged from
    so many replicas that they meet every quorum. A rebuilt node may have been one of the quorum that has acknowledged
    a write, so the others must meet every quorum of all of them. Raises SideEffectFailed.
    """
    datacenter_of = metadata.directory.datacenter_of
    if operation.kind is OperationKind.REBUILD:
        return sources.quorum(gain.sources, gain.target, of=gain.replicas, datacenter=operation.datacenter)
    giver = gain.giver
    near = giver is not None and (gain.stays or datacenter_of(giver) == datacenter_of(gain.target))
    if giver is not None and near and sources.answers(giver):
        return [sources.of(giver)]
    return sources.quorum(gain.sources, gain.target)


def volumes_of(gains: Iterable[Gain]) -> frozenset[int]:
    """The volumes that a stream reads or writes when all givers answer."""
    return frozenset(
        volume
        for gain in gains
        for volume in (gain.target, *([gain.giver] if gain.giver is not None else gain.sources))
    )


def _require_marked(metadata: ClusterMetadata, replica: ReplicaKey, marked: int | FencedOff | Unreachable) -> None:
    name = metadata.describe(replica[1])
    match marked:
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"{name} is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason):
            raise SideEffectFailed(f"{name}: {reason}")


def _first_of(copies: Sequence[PartCopy], most_bytes: int) -> list[PartCopy]:
    """So many of the copies as one group may have, one at least."""
    group: list[PartCopy] = []
    size = 0
    for copy in copies[:GROUP_FILES]:
        size += copy.size
        if group and size > most_bytes:
            break
        group.append(copy)
    return group


def _everywhere(
    gains: Iterable[tuple[ReplicaKey, Sequence[Gain]]], what: Callable[[ReplicaKey, Sequence[Gain]], None]
) -> None:
    """Do something to many replica tables at once. Raises the first SideEffectFailed when all have been tried."""

    def attempt(one: tuple[ReplicaKey, Sequence[Gain]]) -> SideEffectFailed | None:
        try:
            what(*one)
        except SideEffectFailed as failure:
            return failure
        return None

    failures = [failure for failure in ThreadWorkers(THREADS).run(attempt, gains) if failure is not None]
    if failures:
        raise failures[0]
