"""The component `change_streams`: the tables whose changes are kept for readers, how long, and in which generations.

A *generation* (seed 000) divides the changes of a table, from a position on, into streams: each is a range of tokens.
All generations together have each change once, as a generation ends where the next one begins.
"""

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
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval, tablet_ranges

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class ChangeGeneration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A generation of the streams of a table, committed `at` microseconds since 1970 in `epoch`.

    Its ranges are those of `count` equal tablets, or begin at the tokens `lows`. It begins after the position
    `position` of the index of changes, which is None until it is published, and not before `after`, where the index
    ended when it was planned.
    """

    number: int
    epoch: int
    at: int
    after: int
    count: int = 0
    lows: tuple[int, ...] = ()
    position: int | None = None

    @property
    def ranges(self) -> list[Interval]:
        """First and last token of each of its streams, in their order."""
        if self.count:
            starts, ends = tablet_ranges(self.count)
            return list(zip([MIN_TOKEN, *(starts[1:] + 1).tolist()], ends.tolist(), strict=True))
        return list(zip(self.lows, [*(low - 1 for low in self.lows[1:]), MAX_TOKEN], strict=True))

    @property
    def streams(self) -> int:
        """How many streams it has."""
        return self.count or len(self.lows)


class ChangeStream(msgspec.Struct, frozen=True):
    """The change stream of a table.

    `stream_id` names it among all that the table has had. A change is kept for `retention_seconds`, and for a named
    reader that has not read it for up to `limit_seconds`. `since`: the epoch that began it; `epoch`: that last changed
    it. `generations`: those that are known, the oldest first; unset where there never was one.
    """

    table_id: TableId
    stream_id: str
    retention_seconds: float
    limit_seconds: float
    since: int = 0
    epoch: int = 0
    generations: tuple[ChangeGeneration, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def known_generations(self) -> tuple[ChangeGeneration, ...]:
        """Its generations, the oldest first."""
        return () if self.generations is msgspec.UNSET else self.generations

    @property
    def generation(self) -> ChangeGeneration | None:
        """The one that was committed last; None where there is none."""
        return self.known_generations[-1] if self.known_generations else None


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


def change_generations(metadata: ClusterMetadata) -> pa.Table:
    """A row for each generation of the streams of a table, the oldest first."""
    return rows_of(
        c.CHANGE_GENERATIONS_SCHEMA,
        (
            (
                stream.table_id,
                metadata.schema.tables[stream.table_id].full_name,
                stream.stream_id,
                one.number,
                one.at,
                one.epoch,
                one.streams,
                one.position,
            )
            for stream in _shown(metadata)
            for one in stream.known_generations
        ),
    )


def change_ranges(metadata: ClusterMetadata) -> pa.Table:
    """A row for each stream of each generation: its range of tokens."""
    return rows_of(
        c.CHANGE_RANGES_SCHEMA,
        (
            (stream.table_id, metadata.schema.tables[stream.table_id].full_name, one.number, number, low, high)
            for stream in _shown(metadata)
            for one in stream.known_generations
            for number, (low, high) in enumerate(one.ranges)
        ),
    )


def _shown(metadata: ClusterMetadata) -> list[ChangeStream]:
    """The streams of tables that are there, by the ids of these."""
    by_table = metadata.change_streams.by_table
    return [by_table[table_id] for table_id in sorted(by_table) if table_id in metadata.schema.tables]


CHANGE_STREAMS: Component[ChangeStreams] = Component(
    empty=ChangeStreams(),
    since=3,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda streams: streams.epoch,
    differences=_differences,
    tables=(change_streams, change_generations, change_ranges),
)
