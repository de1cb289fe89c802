"""Change streams as documents: where each begins and ends, what is kept, what may still land, how far readers are."""

from __future__ import annotations

import time

import msgspec
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.replicas.change_readers import Reader, Readers
from epochlake.jobs.replicas.store import Store
from epochlake.jobs.upkeep.change_retention import Over, is_gone, what_is_over
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.showing import Listing, Shown


class ReaderStatus(Shown, msgspec.Struct, frozen=True):
    """A named reader: the position that it has told of, `told_at` seconds since 1970. `behind`: writes that it has not
    read, of `bytes_behind`; `lag_seconds`: how long ago the oldest of them was acknowledged. `gone`: what it needs is
    not kept any more.
    """

    name: str
    position: int
    told_at: float
    behind: int
    lag_seconds: float
    gone: bool
    bytes_behind: int = 0


class StreamStatus(Shown, msgspec.Struct, frozen=True):
    """The change stream of a table. `begun`: false while too few replicas answer. Changes after the position `oldest`
    are kept, `newest` is the last one; `writes` of `rows` and `bytes` are kept. `open`: writes that may still land.

    `kept_for`: what holds back the oldest write that is kept: the retention, a reader, a write that may still land, or
    a coordinator that has not come yet; empty where none is kept. `oldest_at`: when that one was acknowledged,
    seconds since 1970, null without one. `obstacle`: why the root could not be asked; the rest is as empty then.
    `generation`: the one that was committed last, of so many `streams`; 0 without one.
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
    kept_for: str = ""
    oldest_at: float | None = None
    obstacle: str | None = None
    generation: int = 0
    streams: int = 0


def stream_statuses(cluster: Store, metadata: ClusterMetadata) -> Listing[StreamStatus]:
    """The streams of all tables, by their names. Raises StorageUnavailable."""
    return Listing([_status(cluster, name, stream) for name, stream in _streams(metadata)])


def reachable_statuses(cluster: Store, metadata: ClusterMetadata) -> tuple[StreamStatus, ...]:
    """`stream_statuses`, each as far as the root answers."""
    found = []
    for name, stream in _streams(metadata):
        try:
            found.append(_status(cluster, name, stream))
        except EpochlakeError as error:
            keeps = (stream.retention_seconds, stream.limit_seconds, stream.since)
            found.append(StreamStatus(name, False, 0, 0, 0, 0, 0, 0, *keeps, (), obstacle=str(error)))
    return tuple(found)


def _streams(metadata: ClusterMetadata) -> list[tuple[str, ChangeStream]]:
    tables = metadata.schema.tables
    streams = [stream for stream in metadata.change_streams.by_table.values() if stream.table_id in tables]
    return sorted(((tables[one.table_id].full_name, one) for one in streams), key=lambda one: one[0])


def _status(cluster: Store, name: str, stream: ChangeStream) -> StreamStatus:
    index = cluster.change_indexes.of(stream)
    begun, newest = index.begun(), index.tail().position
    oldest = max(begun.position if begun is not None else 0, index.floor())
    kept, first = index.between(oldest, newest), next(index.entries(oldest, newest), None)
    now = time.time()
    readers = [_reader(index, reader, oldest, newest, now) for reader in Readers(cluster.storage, index).all()]
    return StreamStatus(
        table=name,
        begun=begun is not None,
        oldest=oldest,
        newest=newest,
        writes=kept.writes,
        rows=kept.rows,
        bytes=kept.bytes,
        open=len(Intents(cluster.storage, index).all()),
        retention_seconds=stream.retention_seconds,
        limit_seconds=stream.limit_seconds,
        since_epoch=stream.since,
        readers=tuple(readers),
        kept_for="" if first is None else _kept_for(what_is_over(cluster, stream)),
        oldest_at=None if first is None else first.at / 1_000_000,
        generation=0 if stream.generation is None else stream.generation.number,
        streams=0 if stream.generation is None else stream.generation.streams,
    )


def _kept_for(over: Over) -> str:
    """What the oldest write is kept for."""
    return "a coordinator, which drops it" if over.entries else over.kept_for


def _reader(index: ChangeIndex, reader: Reader, oldest: int, newest: int, now: float) -> ReaderStatus:
    after = max(reader.position, oldest)
    unread, first = index.between(after, newest), next(index.entries(after, newest), None)
    return ReaderStatus(
        reader.name,
        reader.position,
        reader.at / 1_000_000,
        unread.writes,
        0.0 if first is None else max(now - first.at / 1_000_000, 0.0),
        is_gone(index, reader, oldest),
        unread.bytes,
    )
