"""The component `change_streams`: the tables whose changes are kept for readers, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component
from epochlake.metastore.metadata.differences import Difference, by_key
from epochlake.metastore.metadata.model import TableId
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import rows_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class ChangeStream(msgspec.Struct, frozen=True):
    """The change stream of a table.

    `stream_id` names it among all that the table has had. A change is kept for `retention_seconds`, and for a named
    reader that has not read it for up to `limit_seconds`. `since`: the epoch that began it; `epoch`: that last changed
    it.
    """

    table_id: TableId
    stream_id: str
    retention_seconds: float
    limit_seconds: float
    since: int = 0
    epoch: int = 0


class ChangeStreams(msgspec.Struct, frozen=True):
    """The streams that are on, by the id of their table; `epoch`: that last changed any of them, or ended one."""

    by_table: Mapping[TableId, ChangeStream] = {}
    epoch: int = 0

    def get(self, table_id: TableId) -> ChangeStream | None:
        """The stream of a table; None where its changes are not kept."""
        return self.by_table.get(table_id)


STREAM = "change stream"


class _Stored(msgspec.Struct, frozen=True):
    change_streams: list[ChangeStream] = []
    change_streams_epoch: int = 0


def _encode(streams: ChangeStreams) -> _Stored:
    return _Stored([streams.by_table[table_id] for table_id in sorted(streams.by_table)], streams.epoch)


def _decode(stored: _Stored, _: pa.Table | None) -> ChangeStreams:
    by_table = {stream.table_id: stream for stream in stored.change_streams}
    return ChangeStreams(by_table, stored.change_streams_epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    return by_key(STREAM, before.change_streams.by_table, after.change_streams.by_table)


def change_streams(metadata: ClusterMetadata) -> pa.Table:
    """A row for each table whose changes are kept."""
    tables = metadata.schema.tables
    return rows_of(
        c.CHANGE_STREAMS_SCHEMA,
        (
            (
                table_id,
                tables[table_id].full_name,
                stream.stream_id,
                stream.retention_seconds,
                stream.limit_seconds,
                stream.since,
                stream.epoch,
            )
            for table_id, stream in sorted(metadata.change_streams.by_table.items())
            if table_id in tables
        ),
    )


CHANGE_STREAMS: Component[ChangeStreams] = Component(
    empty=ChangeStreams(),
    since=3,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda streams: streams.epoch,
    differences=_differences,
    tables=(change_streams,),
)
