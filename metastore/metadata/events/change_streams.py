"""Events of change streams: the changes of a table are kept for readers from an epoch on, or no longer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.components.change_streams import ChangeStream, ChangeStreams
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.placement.rejections import Code
from epochlake.placement.showing import duration

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class KeepChanges(Event, frozen=True):
    """The changes of a table are kept from now on; of a table whose changes are kept, for how long changes.

    The place of the stream was made before this is committed, so that one that is missing was lost.
    """

    table_id: str
    name: str
    stream_id: str
    retention_seconds: float
    limit_seconds: float

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        known = metadata.change_streams.get(self.table_id)
        require(
            known is None or known.stream_id == self.stream_id,
            Code.STALE_PLAN,
            f"the changes of {self.name} are kept in another stream by now",
        )
        require(
            all(math.isfinite(one) and one >= 0 for one in (self.retention_seconds, self.limit_seconds))
            and self.retention_seconds <= self.limit_seconds,
            Code.INVALID_EVENT,
            f"changes of {self.name} cannot be kept for {duration(self.retention_seconds)}, and for readers for "
            f"{duration(self.limit_seconds)}",
            hint="Give 0 or more, and for readers no less than for all",
        )
        require(
            known is None
            or (known.retention_seconds, known.limit_seconds) != (self.retention_seconds, self.limit_seconds),
            Code.NOTHING_TO_DO,
            f"the changes of {self.name} are kept for so long already",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        known = metadata.change_streams.get(self.table_id)
        stream = ChangeStream(
            self.table_id,
            self.stream_id,
            self.retention_seconds,
            self.limit_seconds,
            since=epoch if known is None else known.since,
            epoch=epoch,
            generations=msgspec.UNSET if known is None else known.generations,
        )
        by_table = {**metadata.change_streams.by_table, self.table_id: stream}
        return msgspec.structs.replace(metadata, change_streams=ChangeStreams(by_table, epoch))

    def summary(self) -> str:
        return f"changes of {self.name} are kept for {duration(self.retention_seconds)}"


class DropChanges(Event, frozen=True):
    """The changes of a table are kept no longer; its stream ends."""

    table_id: str
    name: str

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        require(
            self.table_id in metadata.change_streams.by_table, Code.NOTHING_TO_DO, f"no changes of {self.name} are kept"
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        by_table = {key: one for key, one in metadata.change_streams.by_table.items() if key != self.table_id}
        return msgspec.structs.replace(metadata, change_streams=ChangeStreams(by_table, epoch))

    def summary(self) -> str:
        return f"changes of {self.name} are kept no longer"
