"""Keeping the changes of a table for readers, and keeping them no longer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, ClassVar, Unpack

import msgspec
from epochlake.jobs.administration.durations import require_kept_for
from epochlake.jobs.replicas.change_index import ChangeIndexes
from epochlake.jobs.replicas.change_readers import Readers
from epochlake.jobs.upkeep.change_streams import begin
from epochlake.metastore.committing.changes import Call, Change, Options, Preparation
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import DropChanges, KeepChanges
from epochlake.metastore.metadata.events.table_lifetimes import LONGEST_SECONDS
from epochlake.metastore.storage import places
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.metastore import Metastore

RETENTION_SECONDS = 7 * 86_400.0
LIMIT_FACTOR = 4
"""For a named reader changes are kept so many times as long, unless it is said otherwise."""

STREAMS = uuid.UUID("3f1f6f7e-7a3e-5a55-9d6e-2d5a6a1b8c11")
"""Namespace of stream ids: they follow from the request id, so that a repeated request finds its own index."""


class StreamBegun(msgspec.Struct, frozen=True):
    """A stream that was switched on. A read of the whole table that begins now, and the changes after `position`,
    together miss nothing.
    """

    committed: Committed
    stream_id: str
    position: int


def keep_changes(
    cluster: Cluster,
    full_name: str,
    *,
    retention_seconds: float = RETENTION_SECONDS,
    limit_seconds: float | None = None,
    **options: Unpack[Options],
) -> StreamBegun:
    """Keep the changes of a table for readers, from the return of this call on.

    For `retention_seconds`; for named readers that have not read them up to `limit_seconds`, four times as long unless
    it is said otherwise. For a table whose changes are kept it says for how long from now on. Raises Rejected for an
    unknown table, InvalidRequest for more than a thousand years, WaitTimeout where too few replicas answer: the
    coordinator begins the stream then, or the same call.
    """
    require_kept_for(f"changes of {full_name}", retention_seconds)
    limit = limit_for(retention_seconds) if limit_seconds is None else limit_seconds
    committed = cluster.commit(ChangesKept(full_name, retention_seconds, limit), **options)
    metadata = cluster.catch_up()
    stream = metadata.change_streams.by_table[metadata.table(full_name).table_id]
    begun = begin(cluster, stream)
    return StreamBegun(committed, stream.stream_id, begun.position)


def drop_changes(cluster: Cluster, full_name: str, **options: Unpack[Options]) -> Committed:
    """Keep the changes of a table no longer. Its readers are told so; what was kept stays below the root."""
    return cluster.commit(ChangesDropped(full_name), **options)


def limit_for(retention_seconds: float) -> float:
    """For how long changes are kept for a named reader where it is not said."""
    return min(LIMIT_FACTOR * retention_seconds, max(retention_seconds, float(LONGEST_SECONDS)))


class ChangesKept(Change[KeepChanges], frozen=True):
    """What `keep_changes` commits."""

    verb: ClassVar[str] = "keep changes"
    full_name: str
    retention_seconds: float = RETENTION_SECONDS
    limit_seconds: float = LIMIT_FACTOR * RETENTION_SECONDS

    def plan(self, metadata: ClusterMetadata, call: Call) -> KeepChanges:
        require_kept_for(f"changes of {self.full_name}", self.retention_seconds)
        require_kept_for(f"changes of {self.full_name} for its named readers", self.limit_seconds)
        if places.local_path(call.root) is None:
            raise InvalidRequest(
                f"changes can be kept below a root on a file system, and this one is {call.root}",
                hint="Read the table again, or keep the root on a file system",
            )
        table = metadata.table(self.full_name)
        known = metadata.change_streams.get(table.table_id)
        new = str(uuid.uuid5(STREAMS, f"{metadata.identity.cluster_id}/{table.table_id}/{call.request_id}"))
        stream_id = new if known is None else known.stream_id
        return KeepChanges(table.table_id, self.full_name, stream_id, self.retention_seconds, self.limit_seconds)

    def preparation(self, metastore: Metastore) -> Preparation[KeepChanges]:
        return _Index(metastore)


class ChangesDropped(Change[DropChanges], frozen=True):
    """What `drop_changes` commits."""

    verb: ClassVar[str] = "drop changes"
    full_name: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> DropChanges:
        return DropChanges(metadata.table(self.full_name).table_id, self.full_name)


class _Index(Preparation[KeepChanges]):
    """The index of a new stream. It stays when the commit fails: an empty table that no metadata names."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def prepare(self, event: KeepChanges, metadata: ClusterMetadata) -> None:
        if event.table_id not in metadata.change_streams.by_table:
            table = metadata.schema.tables[event.table_id]
            storage = self._metastore.storage
            indexes = ChangeIndexes(storage, self._metastore.root.changes)
            index = indexes.at(event.table_id, event.stream_id)
            index.create(table)
            # Who has read a stream that ended has missed what was written since: he is told to begin again.
            place = places.join(self._metastore.root.changes, event.table_id)
            for ended in storage.list_names(place):
                if ended != event.stream_id:
                    for reader in Readers(storage, indexes.at(event.table_id, ended)).all():
                        Readers(storage, index).set(reader.name, 0)
