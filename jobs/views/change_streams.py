"""Change streams as documents: where each begins and ends, what is kept, what may still land, how far readers are."""

from __future__ import annotations

import time

import msgspec
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.replicas.change_readers import Readers
from epochlake.jobs.replicas.store import Store
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.placement.showing import Listing, Shown


class ReaderStatus(Shown, msgspec.Struct, frozen=True):
    """A named reader: the position that it has told of, `told_at` seconds since 1970. `behind`: writes that it has not
    read; `lag_seconds`: how long ago the oldest of them was acknowledged. `gone`: what it needs is not kept any more.
    """

    name: str
    position: int
    told_at: float
    behind: int
    lag_seconds: float
    gone: bool


class StreamStatus(Shown, msgspec.Struct, frozen=True):
    """The change stream of a table. `begun`: false while too few replicas answer. Changes after the position `oldest`
    are kept, `newest` is the last one; `writes` of `rows` and `bytes` are kept. `open`: writes that may still land.
    """

    table: str
    begun: bool
    oldest: int
    newest: int
    writes: int
    rows: int
    bytes: int
    open: int
    retention_seconds: float
    limit_seconds: float
    since_epoch: int
    readers: tuple[ReaderStatus, ...]


def stream_statuses(cluster: Store, metadata: ClusterMetadata) -> Listing[StreamStatus]:
    """The streams of all tables, by their names. Raises StorageUnavailable."""
    tables = metadata.schema.tables
    streams = [stream for stream in metadata.change_streams.by_table.values() if stream.table_id in tables]
    found = [_status(cluster, tables[stream.table_id].full_name, stream) for stream in streams]
    return Listing(sorted(found, key=lambda one: one.table))


def _status(cluster: Store, name: str, stream: ChangeStream) -> StreamStatus:
    index = cluster.change_indexes.of(stream)
    begun, newest = index.begun(), index.tail().position
    oldest = max(begun.position if begun is not None else 0, index.floor())
    kept = list(index.entries(oldest, newest))
    readers = []
    now = time.time()
    for reader in Readers(cluster.storage, index).all():
        unread = [entry for entry in kept if entry.position > reader.position]
        lag = now - unread[0].at / 1_000_000 if unread else 0.0
        gone = reader.position < oldest
        readers.append(
            ReaderStatus(reader.name, reader.position, reader.at / 1_000_000, len(unread), max(lag, 0.0), gone)
        )
    return StreamStatus(
        table=name,
        begun=begun is not None,
        oldest=oldest,
        newest=newest,
        writes=len(kept),
        rows=sum(entry.rows for entry in kept),
        bytes=sum(file.size for entry in kept for file in entry.files),
        open=len(Intents(cluster.storage, index).all()),
        retention_seconds=stream.retention_seconds,
        limit_seconds=stream.limit_seconds,
        since_epoch=stream.since,
        readers=tuple(readers),
    )
