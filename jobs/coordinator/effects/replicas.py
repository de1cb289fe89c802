"""What the coordinator does to one replica table, for tablets and on the ring: making, dropping, committing.

Each can be done again, and each is refused where it comes too late: by the fence, or by the session of its step (seed
000, "Topology guards"). Whatever cannot be done is raised as `SideEffectFailed`, with what stands in the way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.replicas.commits import commit_files, drop_ranges
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, FencedOff, SessionClosed, Unreachable
from epochlake.jobs.replicas.receipts import Receipt, Receipts
from epochlake.jobs.replicas.replica import (
    ReplicaAddress,
    ReplicaSnapshot,
    create_replica,
    open_snapshot,
    require_place,
)
from epochlake.jobs.replicas.streaming import plan_streaming
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import Interval


def replica_address(storage: Storage, metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> ReplicaAddress:
    """Where the replica table is."""
    return address_of(storage, metadata, metadata.schema.tables[table_id], volume)


def open_replica(storage: Storage, metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> ReplicaSnapshot:
    try:
        return open_snapshot(replica_address(storage, metadata, table_id, volume))
    except (StorageUnavailable, WrongCluster) as error:
        raise SideEffectFailed.of(error) from error


def make_replica(
    storage: Storage,
    metadata: ClusterMetadata,
    table_id: TableId,
    volume: VolumeId,
    fence: int,
    receipts: Receipts | None = None,
    *,
    unfilled: str = "",
) -> None:
    """Make the empty replica table, unless it is there.

    With a `fence` at the epoch of now nobody who plans at an older one, by which it had rows, takes it for a replica.
    `unfilled` is the rebuild that is to bring its rows: until it has, nobody reads it. What an earlier table in its
    place has acknowledged is no matter of the new one: its `receipts` are forgotten.
    """
    address = replica_address(storage, metadata, table_id, volume)
    try:
        if receipts is not None and was_never_made(address):
            receipts.forget(address)
        create_replica(address, metadata.schema.tables[table_id], fence, unfilled=unfilled)
    except (StorageUnavailable, WrongCluster) as error:
        raise SideEffectFailed.of(error) from error


def was_never_made(address: ReplicaAddress) -> bool:
    """Whether the volume answers and has no such table."""
    try:
        require_place(address)
        return not address.storage.exists(address.uri)
    except (StorageUnavailable, WrongCluster):
        return False


def drop(
    storage: Storage,
    metadata: ClusterMetadata,
    table_id: TableId,
    volume: VolumeId,
    ranges: Collection[Interval],
    *,
    once: str | None = None,
    since: int = 0,
) -> None:
    """Take the tokens of `ranges` out of a replica, under a fence at the epoch of `metadata`.

    With `once`, a name, only once for what began under that name at epoch `since`.
    """
    place, incarnation = replica_address(storage, metadata, table_id, volume), metadata.incarnation_since(since)
    outcome = drop_ranges(place, ranges, metadata.fence, once=once, incarnation=incarnation)
    match outcome:
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"{metadata.describe(volume)} is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason):
            raise SideEffectFailed(f"{metadata.describe(volume)}: {reason}")


def copies_for(
    ledger: Ledger, sources: Sequence[ReplicaSnapshot], target: ReplicaSnapshot, low: int, high: int
) -> list[PartCopy]:
    """What has to be streamed, without what merged files have replaced (`plan_streaming`). Raises SideEffectFailed."""
    files = [file for snapshot in (*sources, target) for file in snapshot.within(low, high)]
    try:
        lineage = ledger.lineage(target.address.table_id, files)
    except StorageUnavailable as error:
        raise SideEffectFailed.of(error) from error
    return plan_streaming(sources, target, low, high, lineage)


def commit_streamed(
    storage: Storage,
    ledger: Ledger,
    metadata: ClusterMetadata,
    table_id: TableId,
    volume: VolumeId,
    files: Sequence[DataFile],
    session: str,
    version: int,
    receipts: Receipts | None = None,
) -> bool:
    """Make streamed files part of the pending replica, under the session of the streaming.

    `version` tells the commits of a session apart: it must grow from one to the next. False when another commit of the
    session has taken this one's place, and not all of the files are there.
    """
    outcome = commit_files(
        replica_address(storage, metadata, table_id, volume),
        files,
        epoch=metadata.fence,
        app_id=session,
        app_version=version,
        session=session,
        ledger=ledger,
        leaves_mark=receipts is not None,
    )
    match outcome:
        case Acknowledged():
            leave_receipt(receipts, table_id, Receipt(volume, version, session))
            return True
        case AlreadyApplied(absent=absent):
            if not absent:
                leave_receipt(receipts, table_id, Receipt(volume, version, session))
            return not absent
        case SessionClosed():
            raise SideEffectFailed(f"session {session} is closed: a newer coordinator has moved on")
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"the pending replica is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason):
            raise SideEffectFailed(reason)


def leave_receipt(receipts: Receipts | None, table_id: TableId, receipt: Receipt) -> None:
    """What was streamed counts from the next step on: a table that goes back before it is told by this."""
    if receipts is None:
        return
    try:
        receipts.add(table_id, receipt)
    except StorageUnavailable as error:
        raise SideEffectFailed.of(error) from error
