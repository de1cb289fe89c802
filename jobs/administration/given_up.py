"""Replica tables that nobody can need any more: of tables that were dropped, and on volumes that nodes have given up.

What may go follows from the log alone, where both are written with their time. Whoever began before may
still read it, so it waits for their leases; whoever begins later does not know of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.dropped import DroppedTable
from epochlake.metastore.metadata.events import CreateTable, DropTable, ForgetTable, ShelveTable
from epochlake.metastore.metadata.events.unregistering import still_named
from epochlake.metastore.metadata.model import (
    Node,
    NodeState,
    RequestKind,
    RequestState,
    Table,
    TableId,
    Volume,
    VolumeId,
)
from epochlake.metastore.storage.storage import Storage

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore


_GIVEN_UP_BY = {
    (RequestKind.LEAVE, RequestState.DONE),
    (RequestKind.JOIN, RequestState.CANCELLED),
    (RequestKind.REPLACE, RequestState.CANCELLED),
}
"""The requests after which a node has left whose storage is there, and has what nobody needs."""


DROPPED = "dropped"
"""Why the replicas of a table are given up that can be restored no more."""


class GivenUp(msgspec.Struct, frozen=True):
    """A replica table that may be deleted from the time on: milliseconds since the Unix epoch."""

    table: Table
    volume_id: VolumeId
    since_ms: int
    why: str


def given_up(metastore: Metastore, metadata: ClusterMetadata) -> Iterator[GivenUp]:
    """Replica tables of dropped tables on volumes of members, and all tables on volumes of nodes that were drained, or
    had begun to join when that was taken back.

    What was on a node that was removed or replaced is left alone: its storage is lost, and if it is found again people
    may want to look at it. `node add --reuse` clears it.
    """
    tables, dropped, times = _history(metastore)
    for table_id, since in dropped.items():
        for node in metadata.directory.members():
            for volume in node.volumes:
                if volume.volume_id not in metadata.directory.lost:
                    yield GivenUp(tables[table_id], volume.volume_id, since, DROPPED)
    for request in metadata.requests.values():
        if (request.kind, request.state) not in _GIVEN_UP_BY:
            continue
        left = metadata.directory.nodes.get(request.node_id)
        # Of a node that was unregistered nothing is left, or it was said that it may stay.
        if left is not None and not left.lost and not names(metadata, left):
            for volume in left.volumes:
                for table in tables.values():
                    yield GivenUp(table, volume.volume_id, times[request.epoch], f"{left.name} has left")


def on_members(metadata: ClusterMetadata, tables: Iterable[DroppedTable]) -> list[GivenUp]:
    """Replica tables of dropped tables that are still kept, as if they were not."""
    return [
        GivenUp(one.table, volume.volume_id, 0, DROPPED)
        for one in tables
        for node in metadata.directory.members()
        for volume in node.volumes
        if volume.volume_id not in metadata.directory.lost
    ]


def tables_ever(metastore: Metastore) -> list[Table]:
    """Every table that there was, dropped ones too."""
    return list(_history(metastore)[0].values())


def over_at(metastore: Metastore, metadata: ClusterMetadata, now_ms: int, keep_ms: int) -> list[DroppedTable]:
    """The dropped tables whose time is over: they need not be kept any longer, and were dropped before `keep_ms`."""
    if not metadata.dropped.tables:
        return []
    times = _history(metastore)[2]
    return [
        one
        for one in metadata.dropped.tables.values()
        if times[one.epoch] <= min(keep_ms, now_ms - int(one.keep_seconds * 1000))
    ]


def left_at_ms(metastore: Metastore, node: Node) -> int:
    """When a node became what it is now, milliseconds since the Unix epoch."""
    return _history(metastore)[2][node.epoch]


def names(metadata: ClusterMetadata, node: Node) -> bool:
    """Whether a node has not left, or anything still names its volumes."""
    return node.state is not NodeState.LEFT or still_named(metadata, node)


def address_at(storage: Storage, metadata: ClusterMetadata, table: Table, volume: Volume) -> ReplicaAddress:
    """Where a replica table is, or was, on a volume that may have been given up."""
    return ReplicaAddress(
        storage,
        cluster_id=metadata.identity.cluster_id,
        volume_id=volume.volume_id,
        volume_uri=volume.uri,
        directory=table.directory,
        table_id=table.table_id,
    )


def _history(metastore: Metastore) -> tuple[dict[TableId, Table], dict[TableId, int], dict[int, int]]:
    """The tables that there were, when those that are not there any more were dropped, and the time of each epoch."""
    tables: dict[TableId, Table] = {}
    dropped: dict[TableId, int] = {}
    shelved: dict[TableId, int] = {}
    times: dict[int, int] = {}
    now, newest = time.time_ns() // 1000, 0
    for entry in metastore.log().read(0):
        # Who commits has a clock of its own. Nothing was committed before what stands before it, whatever that clock
        # says, unless the one before was ahead.
        newest = max(newest, entry.committed_at if entry.committed_at <= now else 0)
        times[entry.epoch] = max(newest, entry.committed_at) // 1000
        if entry.event == CreateTable.kind():
            event = entry.decode()
            assert isinstance(event, CreateTable)
            tables[event.table.table_id] = event.table
        elif entry.event in (DropTable.kind(), ShelveTable.kind(), ForgetTable.kind()):
            gone = entry.decode()
            assert isinstance(gone, DropTable | ShelveTable | ForgetTable)
            if isinstance(gone, ForgetTable):
                dropped[gone.table_id] = shelved[gone.table_id]
            elif isinstance(gone, ShelveTable):
                # It may be restored until it is forgotten: nothing of it may go before the log says so.
                shelved[gone.table_id] = times[entry.epoch]
            else:
                dropped[gone.table_id] = times[entry.epoch]
    return tables, dropped, times
