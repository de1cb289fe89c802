"""Changes of a table for Spark: as a stream whose offsets are positions, and as a batch between two positions.

A micro-batch is what the index has between two positions, whoever reads it how often, so a sink that knows a
micro-batch again has each change once. Tasks read the index and its files below the root, and ask no replica. Where the
row before each change is asked for, a task has the changes of a part of the tokens: it has to know what came before for
these keys only, and reads from the table what is older than all that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import pyarrow as pa
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.given_schema import Given
from epochlake.jobs.datasource.options import ReadOptions
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.change_before import (
    BEFORE,
    RowsBefore,
    require_replaced_rows,
    rows_as_of,
    with_before,
    with_keys,
)
from epochlake.jobs.gate.change_parts import StreamPart, gone, part_of, require_finished
from epochlake.jobs.gate.change_streaming import OpenStream, end_of_part, open_stream, require_same, written_at
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.change_readers import Reader, Readers, require_same_part
from epochlake.jobs.replicas.change_reading import (
    CHANGE,
    CHANGE_SCHEMA,
    LATE,
    POSITION,
    Wanted,
    changes_of,
)
from epochlake.jobs.replicas.schema import WRITTEN_AT
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

CHANGE_DDL = f"`{CHANGE}` string, `{WRITTEN_AT}` timestamp_ltz, `{POSITION}` bigint, `{LATE}` boolean"
"""What a change says of itself, after the columns of its table."""

CHANGE_TYPE = StructType(
    [
        StructField(CHANGE, StringType()),
        StructField(WRITTEN_AT, TimestampType()),
        StructField(POSITION, LongType()),
        StructField(LATE, BooleanType()),
    ]
)

TASK_ROWS = 1 << 18
"""A task has the writes of about so many rows, or one write."""

MOST_PARTS = 32
"""In so many parts of the tokens at most the changes are read where the rows before them are told: each task reads all
files of the index that have some of its tokens.
"""


class WritesOf(InputPartition):
    """The changes after a position, up to another one, and where they are. `columns`: with the rows before them, and
    these columns of both.
    """

    def __init__(
        self,
        storage: Storage,
        uri: str,
        wanted: Wanted,
        after: int,
        up_to: int,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(None)
        self.storage = storage
        self.uri = uri
        self.wanted = wanted
        self.after = after
        self.up_to = up_to
        self.columns = columns


class _Changes:
    """What batches and streams have in common."""

    def __init__(self, options: ReadOptions, given: Given) -> None:
        self._options = options
        self._given = given
        ends = [*CHANGE_TYPE.names, *([BEFORE] if options.before else [])]
        self._names = [name for name in given.schema.names if name not in ends]
        if given.schema.names != [*self._names, *ends]:
            raise InvalidRequest(
                f"changes of {options.table} end with the columns {', '.join(ends)}",
                hint="Leave .schema(…) out: the table says its own; cast after loading",
            )

    def _part(self, stream: OpenStream, metadata: ClusterMetadata) -> StreamPart | None:
        """The stream of a generation that is asked for; None: all changes. Raises as `part_of`."""
        asked, table = self._options, stream.table
        if asked.generation is None:
            return None
        kept = metadata.change_streams.by_table[table.table_id]
        return part_of(stream.index, kept, table.full_name, asked.generation, asked.stream)

    def _tasks(
        self, storage: Storage, stream: OpenStream, after: int, up_to: int, part: StreamPart | None
    ) -> list[InputPartition]:
        if after < stream.first:
            raise gone(stream.table.full_name, stream.index)
        if up_to > stream.index.tail().position:
            raise ChangesGone(f"the changes end before position {up_to}", stream.index.tail().position)
        for column in stream.table.columns:
            self._given.require_type(stream.table.full_name, column.name, column.type)
        if self._options.before:
            return self._tasks_by_token(storage, stream, after, up_to, part)
        within = None if part is None else [part.within]
        wanted = Wanted(stream.table, question(stream.table, self._names).asked.schema, within)
        tasks: list[InputPartition] = []
        begins, rows = after, 0
        for entry in stream.index.entries(after, up_to):
            if rows and rows + entry.rows > TASK_ROWS:
                tasks.append(WritesOf(storage, stream.index.uri, wanted, begins, entry.position - 1))
                begins, rows = entry.position - 1, 0
            rows += entry.rows
        if rows:
            tasks.append(WritesOf(storage, stream.index.uri, wanted, begins, up_to))
        return tasks

    def _tasks_by_token(
        self, storage: Storage, stream: OpenStream, after: int, up_to: int, part: StreamPart | None
    ) -> list[InputPartition]:
        """A task for each part of the tokens: what it has to remember grows with all that is kept."""
        require_replaced_rows(stream.table)
        if not any(True for _ in stream.index.entries(after, up_to)):
            return []
        schema = question(stream.table, with_keys(stream.table, self._names)).asked.schema
        rows = sum(entry.rows for entry in stream.index.entries(stream.index.floor(), up_to))
        return [
            WritesOf(storage, stream.index.uri, Wanted(stream.table, schema, [some]), after, up_to, columns=self._names)
            for some in parts_of_the_tokens(
                min(-(-rows // TASK_ROWS), MOST_PARTS), *([] if part is None else [part.within])
            )
        ]

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a task, in their order."""
        if type(partition) is InputPartition and partition.value is None:
            return  # Spark's way to say that there were no tasks
        assert isinstance(partition, WritesOf)
        with as_spark_says(), ExitStack() as opened:
            index = ChangeIndex(partition.storage, partition.uri)
            if partition.columns is None:
                for entry in index.entries(partition.after, partition.up_to):
                    yield from changes_of(partition.storage, index, entry, partition.wanted)
            else:
                yield from self._with_rows_before(index, partition, partition.columns, opened)

    def _with_rows_before(
        self, index: ChangeIndex, partition: WritesOf, columns: Sequence[str], opened: ExitStack
    ) -> Iterator[pa.RecordBatch]:
        wanted = partition.wanted

        @cache
        def cluster() -> Cluster:
            # Most tasks need none: the rows before are among the changes.
            return opened.enter_context(self._options.open())

        def as_of(table: Table, names: Sequence[str], keys: pa.Table, time: int) -> pa.Table:
            return rows_as_of(cluster())(table, names, keys, time)

        before = RowsBefore(partition.storage, index, wanted.table, columns, as_of, wanted.within)
        told = [wanted.schema.field(name) for name in columns]
        schema = pa.schema([*told, *CHANGE_SCHEMA, pa.field(BEFORE, before.type)])
        for entry in index.entries(partition.after, partition.up_to):
            for batch in changes_of(partition.storage, index, entry, wanted):
                if batch.num_rows:
                    yield with_before(batch, before.of(entry, batch), schema)


def parts_of_the_tokens(count: int, of: Interval = (MIN_TOKEN, MAX_TOKEN)) -> list[Interval]:
    """The tokens of an interval, in so many of about the same size, ascending."""
    first, end = of[0], of[1] + 1
    count = min(count, end - first)
    begins = [first + (end - first) * number // count for number in range(count)]
    return [(low, high - 1) for low, high in zip(begins, [*begins[1:], end], strict=True)]


class ChangeReader(_Changes, DataSourceReader):
    """The changes after the option `after` (the oldest that is kept), up to the option `upTo` (the newest); of one
    stream of a generation not beyond its end.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Tasks of whole writes; none where there is no change."""
        options = self._options
        with as_spark_says(), options.open() as cluster:
            metadata = cluster.catch_up()
            stream = open_stream(cluster, metadata, options.table)
            part = self._part(stream, metadata)
            after = stream.first if options.after is None else options.after
            tail = stream.index.tail().position
            up_to = tail if options.up_to is None else options.up_to
            if not after <= up_to <= tail:
                raise InvalidRequest(
                    f"the changes after position {after} up to {up_to} cannot be read", hint=f"They end at {tail}"
                )
            if part is not None:
                over = end_of_part(cluster, stream, part, up_to)
                after, up_to = max(after, part.first), up_to if over is None else min(up_to, over)
                if up_to <= after:
                    return []
            return self._tasks(cluster.storage, stream, after, up_to, part)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a task, in their order."""
        yield from self._read(partition)


class ChangeStreamReader(_Changes, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are positions, with what tells the index from one that was restored from a backup, and the stream of a
    generation from others. Where the generation has ended, nothing comes any more.
    """

    def __init__(self, options: ReadOptions, given: Given) -> None:
        super().__init__(options, given)
        self._held = False
        self._last: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the changes end now: a query with `availableNow` ends there.

        For a source that cannot do this Spark takes one micro-batch a run: after a run that was killed the one that
        comes again, and nothing of what came since.
        """
        with as_spark_says(), self._options.open() as cluster:
            stream = open_stream(cluster, cluster.catch_up(), self._options.table)
            self._last = stream.index.tail().position

    def initialOffset(self) -> dict[str, Any]:
        """Before the first change that is asked for."""
        with as_spark_says(), self._options.open() as cluster:
            metadata = cluster.catch_up()
            stream = open_stream(cluster, metadata, self._options.table)
            part = self._part(stream, metadata)
            self._require_reader_of(cluster, stream, part)
            after, tail = self._options.after, stream.index.tail().position
            if after is not None and after > tail:
                raise InvalidRequest(
                    f"the changes of {self._options.table} after position {after} cannot be read",
                    hint=f"They end at {tail}",
                )
            first = stream.first if after is None else after
            offset = self._offset(stream, first if part is None else max(first, part.first))
            self._hold(cluster, stream, offset)
            return offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The newest position; of a generation that has ended its end."""
        with as_spark_says(), self._options.open() as cluster:
            metadata = cluster.catch_up()
            stream = open_stream(cluster, metadata, self._options.table)
            self._require_same_part(start)
            self._hold(cluster, stream, start)
            newest = stream.index.tail().position
            if self._last is not None:
                newest = min(newest, max(self._last, start["position"]))
            part = self._part(stream, metadata)
            if part is not None:
                over = end_of_part(cluster, stream, part, newest)
                newest = max(start["position"], newest if over is None else min(newest, over))
            return self._offset(stream, newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks of whole writes."""
        with as_spark_says(), self._options.open() as cluster:
            metadata = cluster.catch_up()
            stream = open_stream(cluster, metadata, self._options.table)
            for offset in (start, end):
                self._require_same_part(offset)
                self._require_same_stream(metadata, stream, offset)
            self._hold(cluster, stream, start)
            part = self._part(stream, metadata)
            return self._tasks(cluster.storage, stream, start["position"], end["position"], part)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a task, in their order."""
        yield from self._read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell how far the reader that the option `reader` names has come: what it has not read is kept for it.

        Spark commits a micro-batch before it asks for the partitions of the next one, so this is where a query that
        runs learns first that its stream has ended, or went back: its position is no place in another one.
        """
        if self._options.reader is not None:
            with as_spark_says(), self._options.open() as cluster:
                metadata = cluster.catch_up()
                stream = open_stream(cluster, metadata, self._options.table)
                self._require_same_stream(metadata, stream, end)
                Readers(cluster.storage, stream.index).tell(self._options.reader, end["position"], self._key)

    def _hold(self, cluster: Cluster, stream: OpenStream, start: dict[str, Any]) -> None:
        """From where a query begins, or goes on, nothing is dropped that the option `reader` has not read.

        Spark commits a micro-batch when it plans the next one, so the last one of a run that ends is committed by
        the next run: till then nobody would know the reader of the first run. A checkpoint that was restored from a
        copy goes on before what its reader has told. What is gone is told by `partitions`, and cannot be held.
        """
        name, position = self._options.reader, start["position"]
        if name is None or self._held or start["stream"] != stream.stream_id:
            return
        self._held = True
        readers, key = Readers(cluster.storage, stream.index), self._key
        known = readers.of(name)
        if known is not None and (known.part or None) != key:
            return  # `commit` says whether one stream may follow the other
        if known is not None and stream.first <= known.position <= position:
            return
        if stream.first <= position <= stream.index.tail().position:
            readers.set(name, position, key)

    @property
    def _key(self) -> tuple[int, int] | None:
        asked = self._options
        return None if asked.generation is None or asked.stream is None else (asked.generation, asked.stream)

    def _offset(self, stream: OpenStream, position: int) -> dict[str, Any]:
        found = {"position": position, "stream": stream.stream_id, "write": written_at(stream.index, position)}
        return found if self._key is None else {**found, "part": [*self._key]}

    def _require_same_part(self, offset: dict[str, Any]) -> None:
        """Raises InvalidRequest for a checkpoint of another stream: its positions are no places in this one."""
        told, asked = offset.get("part"), None if self._key is None else [*self._key]
        if told != asked:
            raise InvalidRequest(
                f"this checkpoint is of the changes of {self._options.table} {_named(told)}, and what is asked for is "
                f"those {_named(asked)}",
                hint="Give each stream, and each generation, a checkpoint of its own",
            )

    def _require_same_stream(self, metadata: ClusterMetadata, stream: OpenStream, offset: dict[str, Any]) -> None:
        """Raises ChangesGone for an offset of a stream that has ended, or that went back with its root; InvalidRequest
        where the stream goes on under another name.
        """
        if offset["stream"] != stream.stream_id:
            _require_no_other_name(metadata, self._options.table, offset["stream"])
            raise ChangesGone(
                f"the stream of changes of {self._options.table} that was read has ended, and another one has begun",
                stream.index.tail().position,
            )
        require_same(stream.index, Reader("of Spark", offset["position"], offset["write"], 0))

    def _require_reader_of(self, cluster: Cluster, stream: OpenStream, part: StreamPart | None) -> None:
        """That what is kept for the option `reader` is of this stream, where it begins."""
        readers = Readers(cluster.storage, stream.index)
        known = None if self._options.reader is None else readers.of(self._options.reader)
        if known is not None and self._options.after is None:
            require_same_part(known, self._key)
            if part is not None:
                require_finished(known, part)


def _named(part: list[int] | None) -> str:
    return "in all streams" if part is None else f"in stream {part[1]} of generation {part[0]}"


def _require_no_other_name(metadata: ClusterMetadata, table: str, stream_id: str) -> None:
    """Raises InvalidRequest where a stream goes on: its table's keyspace has got another name, and its own another."""
    streams, tables = metadata.change_streams.by_table.items(), metadata.schema.tables
    of = next((tables[key].full_name for key, one in streams if one.stream_id == stream_id and key in tables), None)
    if of is not None:
        raise InvalidRequest(
            f"the stream of changes of {table} that was read is that of {of} by now",
            hint=f"Its keyspace was renamed: go on with the same checkpoint, and read {of}",
        )
