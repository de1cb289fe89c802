"""What the coordinator does to one replica table, for tablets and on the ring: making, dropping, committing.

Each can be done again, and each is refused where it comes too late: by the fence, or by the session of its step (seed
000, "Topology guards"). Whatever cannot be done is raised as `SideEffectFailed`, with what stands in the way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.replicas.commits import Once, commit_files, drop_once, drop_ranges
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import (
    Acknowledged,
    AlreadyApplied,
    CommitOutcome,
    FencedOff,
    PartlyApplied,
    SessionClosed,
    Unreachable,
)
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
) -> None:
    """Take the tokens of `ranges` out of a replica, under a fence at the epoch of `metadata`."""
    place = replica_address(storage, metadata, table_id, volume)
    _require_dropped(metadata, volume, drop_ranges(place, ranges, metadata.fence))


class Begun(NamedTuple):
    """What began under a `name` at epoch `since`, and brings the tokens of `ranges`."""

    name: str
    since: int
    ranges: Collection[Interval]


def drop_before(
    storage: Storage, metadata: ClusterMetadata, table_id: TableId, volume: VolumeId, begun: Sequence[Begun]
) -> None:
    """Take the tokens of what has begun out of a replica, as `drop`, in one commit; of each only once."""
    place = replica_address(storage, metadata, table_id, volume)
    drops = [Once(one.name, metadata.incarnation_since(one.since), tuple(one.ranges)) for one in begun]
    _require_dropped(metadata, volume, drop_once(place, drops, metadata.fence))


def _require_dropped(metadata: ClusterMetadata, volume: VolumeId, outcome: CommitOutcome) -> None:
    match outcome:
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"{metadata.describe(volume)} is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason):
            raise SideEffectFailed(f"{metadata.describe(volume)}: {reason}")


def copies_for(
    ledger: Ledger, sources: Sequence[ReplicaSnapshot], target: ReplicaSnapshot, *ranges: Interval
) -> list[PartCopy]:
    """What has to be streamed, without what merged files have replaced (`plan_streaming`). Raises SideEffectFailed."""
    files = {
        file.file_id: file for snapshot in (*sources, target) for range_ in ranges for file in snapshot.within(*range_)
    }
    try:
        lineage = ledger.lineage(target.address.table_id, files.values())
    except StorageUnavailable as error:
        raise SideEffectFailed.of(error) from error
    return [copy for range_ in ranges for copy in plan_streaming(sources, target, *range_, lineage)]


def commit_streamed(
    storage: Storage,
    ledger: Ledger,
    metadata: ClusterMetadata,
    table_id: TableId,
    volume: VolumeId,
    files: Sequence[DataFile],
    sessions: Sequence[str],
    version: int,
    receipts: Receipts | None = None,
) -> bool:
    """Make streamed files part of the pending replica, under the session of the streaming, or several that are open.

    `version` tells the commits of a session apart: it must grow from one to the next. False when another commit of the
    session has taken this one's place, and not all of the files are there.
    """
    session, *beside = sessions
    outcome = commit_files(
        replica_address(storage, metadata, table_id, volume),
        files,
        epoch=metadata.fence,
        app_id=session,
        app_version=version,
        session=session,
        beside=beside,
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
        case SessionClosed(session=closed):
            raise SideEffectFailed(f"session {closed} is closed: a newer coordinator has moved on")
        case PartlyApplied():
            raise SideEffectFailed("some of what was streamed together has landed by itself")
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"the pending replica is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason, on_another=on_another):
            if on_another and receipts is not None:
                _doubt(receipts, table_id, Receipt(volume, version, session))
            raise SideEffectFailed(reason)


def _doubt(receipts: Receipts, table_id: TableId, receipt: Receipt) -> None:
    """Have a copy that came in the place of the pending replica not stand for what was streamed before."""
    try:
        receipts.doubt(table_id, receipt)
    except StorageUnavailable as error:
        raise SideEffectFailed.of(error) from error


def leave_receipt(receipts: Receipts | None, table_id: TableId, receipt: Receipt) -> None:
    """What was streamed counts from the next step on: a table that goes back before it is told by this."""
    if receipts is None:
        return
    try:
        receipts.add(table_id, receipt)
    except StorageUnavailable as error:
        raise SideEffectFailed.of(error) from error
