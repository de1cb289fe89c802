"""Events of tables that are dropped and can be restored, and of how far back rows of a table can be read.

A table that is dropped stays in the metadata until it is forgotten. Vacuum deletes its files after that only, so a
restored table has all of its files, whoever was paused where: of restoring and forgetting the log lets one be first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from epochlake.metastore.metadata.components.dropped import Dropped, DroppedTable
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.events.schema import DropTable, check_replicas
from epochlake.metastore.metadata.features import REPLICA_COUNTS
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.rejections import Code
from epochlake.placement.showing import duration
from epochlake.placement.tablets.tablet_map import TabletMap

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class ShelveTable(Event, frozen=True):
    """A table is dropped, and can be restored for `keep_seconds`, and at least until vacuum comes."""

    table_id: str
    name: str
    keep_seconds: float = 0.0

    def check(self, metadata: ClusterMetadata) -> None:
        DropTable(self.table_id, self.name).check(metadata)
        require(
            0 <= self.keep_seconds < float("inf"),
            Code.INVALID_EVENT,
            f"table {self.name} cannot be kept for {self.keep_seconds} seconds",
            hint="Give 0 or more",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        table = metadata.schema.tables[self.table_id]
        record = DroppedTable(table, epoch, float(self.keep_seconds))
        if self.table_id in metadata.tablets.maps:
            replicas = np.ascontiguousarray(metadata.tablets.maps[self.table_id].to_array(), dtype="<i4")
            record = msgspec.structs.replace(record, width=replicas.shape[1], replicas=replicas.tobytes())
        kept = Dropped({**metadata.dropped.tables, self.table_id: record}, epoch)
        without = DropTable(self.table_id, self.name).apply(metadata, epoch, state_id)
        return msgspec.structs.replace(without, dropped=kept)

    def summary(self) -> str:
        return f"table {self.name} dropped"


class RestoreTable(Event, frozen=True):
    """A table that was dropped is there again, with its rows, where they were; as `name` within its keyspace."""

    table_id: str
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        record = metadata.dropped.tables.get(self.table_id)
        require(
            record is not None,
            Code.UNKNOWN_TABLE,
            f"no dropped table has the id {self.table_id}: it was restored, or its files were deleted",
            hint="`epochlake table list --dropped` lists those that can be restored",
        )
        assert record is not None
        require_name("table", self.name)
        keyspace = metadata.keyspace(record.table.keyspace)
        full_name = f"{keyspace.name}.{self.name}"
        require(
            full_name not in metadata.schema.by_name,
            Code.TABLE_EXISTS,
            f"table {full_name} exists: it was made since",
            hint="Restore the other one under another name (--as), or drop this one first",
        )
        on_ring = keyspace.placement is PlacementKind.RING
        require(
            on_ring == (record.width == 0),
            Code.NOT_RESTORABLE,
            f"keyspace {keyspace.name!r} is another one by now: it is placed on the {keyspace.placement}",
            hint="Restore the table before its keyspace is dropped",
        )
        if on_ring:
            require(
                keyspace.epoch <= record.epoch and record.may_be_of(keyspace),
                Code.NOT_RESTORABLE,
                f"keyspace {keyspace.name!r} is another one by now, or has another replication: its rows are elsewhere",
                hint="Restore the table before its keyspace is dropped or altered",
            )
            require(
                metadata.rings.epoch <= record.epoch,
                Code.NOT_RESTORABLE,
                f"ranges of the ring have changed hands since {record.table.full_name} was dropped, and its rows with "
                "none of them",
                hint="Its files stay until vacuum comes: load them from the volumes (`log show` says where it was)",
            )
            return
        gone = sorted(
            {int(volume) for volume in np.unique(replicas_of(record)) if volume >= 0}
            - {volume.volume_id for node in metadata.directory.members() for volume in node.volumes}
        )
        require(
            not gone,
            Code.NOT_RESTORABLE,
            f"{len(gone)} volume(s) with replicas of {record.table.full_name} have left since it was dropped "
            f"({', '.join(map(str, gone))})",
            hint="Its files stay on the others until vacuum comes: load them from there",
        )
        counted = (
            REPLICA_COUNTS not in metadata.features.enabled
            or record.epoch < keyspace.epoch
            or not record.may_be_of(keyspace)
        )
        if keyspace.before is not msgspec.UNSET:
            # Whatever it has, it is brought to what the keyspace asks for, as the other tables are.
            keyspace = msgspec.structs.replace(keyspace, replication={})
        check_replicas(
            metadata,
            keyspace,
            replicas_of(record),
            counted=counted,
            hint=f"The replication of keyspace {keyspace.name!r} was altered since: restore the table while it is "
            "being altered (`epochlake keyspace alter`), and it is brought there with the others"
            if record.epoch < keyspace.epoch
            else "",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        record = metadata.dropped.tables[self.table_id]
        table = msgspec.structs.replace(record.table, name=self.name, epoch=epoch)
        tables = {**metadata.schema.tables, self.table_id: table}
        restored = msgspec.structs.replace(
            metadata,
            schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch),
            dropped=_without(metadata, self.table_id, epoch),
        )
        if not record.width:
            return restored
        maps = {**metadata.tablets.maps, self.table_id: TabletMap.from_array(replicas_of(record), epoch=epoch)}
        return msgspec.structs.replace(
            restored, tablets=msgspec.structs.replace(metadata.tablets, maps=maps, epoch=epoch)
        )

    def summary(self) -> str:
        return f"table {self.name} restored"


class ForgetTable(Event, frozen=True):
    """A table that was dropped cannot be restored any more: from now on vacuum may delete its files."""

    table_id: str
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        require(
            self.table_id in metadata.dropped.tables,
            Code.UNKNOWN_TABLE,
            f"{self.name} was restored or forgotten: no dropped table has the id {self.table_id}",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        return msgspec.structs.replace(metadata, dropped=_without(metadata, self.table_id, epoch))

    def summary(self) -> str:
        return f"dropped table {self.name} is not kept any more"


class KeepHistory(Event, frozen=True):
    """For how long what compaction replaces is kept, so that rows can be read as they were; 0: until vacuum comes."""

    table_id: str
    name: str
    seconds: float

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        require(
            0 <= self.seconds < float("inf"),
            Code.INVALID_EVENT,
            f"table {self.name} cannot keep its history for {self.seconds} seconds",
            hint="Give 0 or more",
        )
        require(
            self.seconds != table.keeps_history_seconds,
            Code.NOTHING_TO_DO,
            f"table {self.name} keeps its history for so long already",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        table = metadata.schema.tables[self.table_id]
        altered = msgspec.structs.replace(table, history_seconds=float(self.seconds), epoch=epoch)
        tables = {**metadata.schema.tables, self.table_id: altered}
        return msgspec.structs.replace(
            metadata, schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch)
        )

    def summary(self) -> str:
        return f"table {self.name} keeps its history for {duration(self.seconds)}"


def replicas_of(record: DroppedTable) -> np.ndarray:
    """Where the tablets of a dropped table were, (tablets, replicas)."""
    return np.frombuffer(record.replicas, dtype="<i4").astype(np.int32).reshape(-1, record.width)


def _without(metadata: ClusterMetadata, table_id: str, epoch: int) -> Dropped:
    left = {key: one for key, one in metadata.dropped.tables.items() if key != table_id}
    return Dropped(left, epoch)
