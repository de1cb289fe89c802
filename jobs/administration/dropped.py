"""Dropped tables that can be restored, and how long the history of a table is kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.jobs.administration.durations import require_kept_for
from epochlake.jobs.administration.right_clocks import apart
from epochlake.jobs.replicas.opening import open_all
from epochlake.metastore.committing.changes import Call, Change, Options, Preparation
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.dropped import DroppedTable
from epochlake.metastore.metadata.events import ForgetTable, KeepHistory, RestoreTable, ShelveTable
from epochlake.metastore.metadata.events.dropped_tables import replicas_of
from epochlake.placement.consistency import majority
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.jobs.replicas.store import Store
    from epochlake.metastore.metastore import Metastore


def drop_table(cluster: Cluster, full_name: str, *, keep_seconds: float = 0.0, **options: Unpack[Options]) -> Committed:
    """Drop a table. Until vacuum comes, and for `keep_seconds` at least, `restore_table` brings it back.

    After that vacuum deletes its files. Raises Rejected for an unknown table, and (not-restorable) by a clock that is
    more than half an hour behind that of the root's storage; InvalidRequest for more than a thousand years.
    """
    return cluster.commit(TableDrop(full_name, keep_seconds), **options)


def restore_table(
    cluster: Cluster,
    full_name: str,
    *,
    table_id: str | None = None,
    new_name: str | None = None,
    **options: Unpack[Options],
) -> Committed:
    """Bring back a table that was dropped, with all of its rows.

    Of several that had the name it is the one that was dropped last, unless `table_id` says which. `new_name` (within
    its keyspace): where the name was taken meanwhile. Raises Rejected: unknown-table where vacuum has come,
    table-exists, not-restorable where volumes with its replicas have left, or its ranges have changed hands;
    StorageUnavailable where too few of its replicas answer.
    """
    return cluster.commit(TableRestoration(full_name, table_id, new_name), **options)


def keep_history(cluster: Cluster, full_name: str, seconds: float, **options: Unpack[Options]) -> Committed:
    """Keep what compaction replaces in a table for so long, so that its rows can be read as they were; 0: until vacuum
    comes. Raises Rejected for an unknown table, InvalidRequest for more than a thousand years.
    """
    return cluster.commit(HistoryKeeping(full_name, seconds), **options)


def forget_dropped(cluster: Metastore, tables: Iterable[DroppedTable]) -> None:
    """Say in the log that these tables cannot be restored any more, each once. Those that were restored stay."""
    for one in tables:
        try:
            cluster.commit(
                ForgetTable(one.table.table_id, one.table.full_name),
                reason="its time is over: vacuum deletes its files",
            )
        except Rejected as rejected:
            if rejected.code != Code.UNKNOWN_TABLE:
                raise


class TableDrop(Change[ShelveTable], frozen=True):
    """What `drop_table` commits."""

    verb: ClassVar[str] = "drop table"
    full_name: str
    keep_seconds: float = 0.0

    def plan(self, metadata: ClusterMetadata, call: Call) -> ShelveTable:
        require_kept_for(f"dropped table {self.full_name}", self.keep_seconds)
        return ShelveTable(metadata.table(self.full_name).table_id, self.full_name, self.keep_seconds)

    def preparation(self, metastore: Metastore) -> Preparation[ShelveTable]:
        return _DroppedNow(metastore)


class _DroppedNow(Preparation[ShelveTable]):
    """A table is kept for so long after the log says that it was dropped, by a clock: not by one of long ago."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def prepare(self, event: ShelveTable, metadata: ClusterMetadata) -> None:
        ahead, said = apart(self._metastore)
        if ahead < 0:
            raise Rejected(
                Code.NOT_RESTORABLE,
                f"{said}, so vacuum would take {event.name} for one that was dropped that long ago, and delete it",
                hint="Set the clock that is wrong, and do it again; nothing was changed",
            )


class TableRestoration(Change[RestoreTable], frozen=True):
    """What `restore_table` commits."""

    verb: ClassVar[str] = "restore table"
    full_name: str
    table_id: str | None = None
    new_name: str | None = None

    def plan(self, metadata: ClusterMetadata, call: Call) -> RestoreTable:
        found = metadata.dropped.named(self.full_name)
        if self.table_id is not None:
            found = [one for one in found if one.table.table_id == self.table_id]
        living = metadata.schema.by_name.get(self.full_name)
        if not found and living is not None and self.table_id in (None, living.table_id):
            raise Rejected(
                Code.TABLE_EXISTS,
                f"table {self.full_name} is there, and no other one was dropped that can still be restored as it",
                hint="Use it: nothing has to be restored",
            )
        if not found:
            keyspace, _, name = self.full_name.partition(".")
            raise Rejected(
                Code.UNKNOWN_TABLE,
                f"no table {self.full_name} was dropped that can still be restored",
                hint=metadata.renamed_hint(keyspace, f".{name}")
                or "`epochlake table list --dropped` lists those that can",
            )
        return RestoreTable(found[-1].table.table_id, self.new_name or found[-1].table.name)

    def preparation(self, metastore: Metastore) -> Preparation[RestoreTable]:
        return _Answers(metastore)


class HistoryKeeping(Change[KeepHistory], frozen=True):
    """What `keep_history` commits."""

    verb: ClassVar[str] = "keep history"
    full_name: str
    seconds: float

    def plan(self, metadata: ClusterMetadata, call: Call) -> KeepHistory:
        require_kept_for(f"the history of table {self.full_name}", self.seconds)
        return KeepHistory(metadata.table(self.full_name).table_id, self.full_name, self.seconds)


class _Answers(Preparation[RestoreTable]):
    """Of each tablet a majority of replicas has to answer, with all that they have acknowledged."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def prepare(self, event: RestoreTable, metadata: ClusterMetadata) -> None:
        record = metadata.dropped.tables[event.table_id]
        if not record.width:
            return  # the replicas of a range are the keyspace's, which others of its tables are opened on
        store: Store = self._metastore  # type: ignore[assignment]
        replicas = replicas_of(record)
        volumes = {int(volume) for volume in replicas.ravel() if volume >= 0}
        opened, failed = open_all(store.storage, metadata, record.table, volumes, store.receipts)
        for row in replicas.tolist():
            there = [volume for volume in row if volume >= 0]
            if sum(volume in opened for volume in there) < majority(len(there)):
                said = "; ".join(f"{metadata.describe(volume)}: {reason}" for volume, reason in failed.items())
                raise StorageUnavailable(
                    f"too few replicas of {record.table.full_name} answer to restore it: {said}",
                    hint="Bring them back, and try again",
                )
