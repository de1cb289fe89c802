"""Following the changes of a table without Spark: a stream of batches of Arrow, from a position on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.change_before import BEFORE, AsOf, RowsBefore, with_before, with_keys
from epochlake.jobs.gate.change_parts import StreamPart, end_of, gone, part_of, require_finished
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.change_readers import Part, Reader, Readers, require_reader_name, require_same_part
from epochlake.jobs.replicas.change_reading import LATE, Wanted, changes_of
from epochlake.metastore.committing.arguments import fits
from epochlake.metastore.errors import Rejected, WaitTimeout
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

FOLLOW_SECONDS = 0.2
"""How long a reader that follows waits before it looks again."""


class OpenStream(msgspec.Struct, frozen=True):
    """A table's stream as it is now: its index, and the first position that a reader may go on from."""

    table: Table
    stream_id: str
    index: ChangeIndex
    first: int


def open_stream(cluster: Store, metadata: ClusterMetadata, name: str) -> OpenStream:
    """The stream of a table. Raises Rejected where there is none, WaitTimeout where it has not begun."""
    table = metadata.table(name)
    stream = metadata.change_streams.get(table.table_id)
    if stream is None:
        raise _not_kept(name)
    index = cluster.change_indexes.of(stream)
    begun = index.begun()
    if begun is None:
        raise WaitTimeout(
            f"the stream of changes of {name} has not begun",
            hint=f"Run `epochlake changes keep-up {name}`, or a coordinator",
        )
    return OpenStream(table, stream.stream_id, index, max(begun.position, index.floor()))


def is_on(metadata: ClusterMetadata, opened: OpenStream) -> bool:
    """Whether a stream that was opened has not ended: its table's changes are kept, and in no other one."""
    stream = metadata.change_streams.get(opened.table.table_id)
    is_there = opened.table.table_id in metadata.schema.tables
    return is_there and stream is not None and stream.stream_id == opened.stream_id


def end_of_part(cluster: Store, opened: OpenStream, part: StreamPart, up_to: int) -> int | None:
    """Where the generation of a stream ends, if it does up to this position, which the index is known to have. Raises
    Rejected where the stream of changes has ended.
    """
    # Only now: whatever is marked up to there is in the log by now.
    metadata = cluster.catch_up()
    if not is_on(metadata, opened):
        raise _ended(metadata, opened)
    kept = metadata.change_streams.by_table[opened.table.table_id]
    return end_of(opened.index, kept, opened.table.full_name, part.generation, up_to)


def _not_kept(name: str) -> Rejected:
    return Rejected(
        Code.NO_CHANGES, f"the changes of {name} are not kept", hint=f"Run `epochlake changes keep {name}` first"
    )


def _ended(metadata: ClusterMetadata, opened: OpenStream) -> Rejected:
    """Why a stream that was opened is not on: its table was dropped, or its changes are kept no more, or anew."""
    was, now = opened.table, metadata.schema.tables.get(opened.table.table_id)
    name = was.full_name
    if now is not None:
        if now.table_id not in metadata.change_streams.by_table:
            return _not_kept(now.full_name)
        return Rejected(
            Code.NO_CHANGES,
            f"the stream of changes of {now.full_name} that was read has ended, and another one has begun",
            hint=f"Read the table, and then its changes from where they begin now: `epochlake changes read "
            f"{now.full_name}`",
        )
    dropped = metadata.dropped.tables.get(was.table_id)
    if dropped is None:
        said, hint = "", "It cannot be restored any more"
    else:
        # One that has followed its keyspace to another name has the epoch of that.
        said = f" in epoch {dropped.epoch}" if dropped.table.full_name == name else ""
        as_ = " --as NAME" * (dropped.table.full_name in metadata.schema.by_name)
        hint = (
            f"`epochlake table restore {dropped.table.full_name}{as_}` brings it back, and its changes go on after the "
            "position that was read"
        )
    again = f"; another table has the name {name} now, with changes of its own" * (name in metadata.schema.by_name)
    return Rejected(Code.NO_CHANGES, f"table {name} was dropped{said}, and its changes end there{again}", hint=hint)


def written_at(index: ChangeIndex, position: int) -> str:
    """The id of the write at a position; empty where there is none."""
    entry = index.entry(position) if 0 < position <= index.tail().position else None
    return "" if entry is None else entry.write_id


def _position(where: str, given: object, first: int) -> int | None:
    """A position that was given; None where none was. Raises InvalidRequest for what is no position.

    Positions count from 1. With a stream of a generation 0 is before all of its changes, as any position before it is.
    """
    if given is None:
        return None
    if not fits(given, int) or given < first:  # type: ignore[operator]
        raise InvalidRequest(
            f"changes cannot be read {where} {given!r}, which is no position",
            hint=f"Give a whole number from {first} on, as _position is{' (or a bookmark)' * (where == 'after')}; or "
            "none at all",
        )
    return int(given)  # type: ignore[call-overload]


def require_switches(**given: object) -> None:
    """Raises InvalidRequest for an argument that is neither True nor False: any text would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} is {value!r}", hint="Give True or False")


class Changes:
    """The changes of a table after a position, in order: iterate over it for batches of Arrow.

    `position`: up to where all changes have been given out, that is when the batch after them is asked for, or the end
    is reached. With a `reader`, `commit` tells that everything up to there was dealt with: the same reader goes on from
    there next time, and until then nothing is dropped that it needs. With `after` as well it goes on from there,
    whatever it has told. With `as_of`, which reads the table, each change has the row before it. It is for one thread
    at a time.

    With `generation` and `stream` it has the changes of one range of tokens, from where the generation begins to where
    it ends. `finished`: it has come to that end. It does not follow beyond.
    """

    def __init__(
        self,
        cluster: Store,
        table: str,
        *,
        after: int | str | None = None,
        up_to: int | None = None,
        reader: str | None = None,
        columns: Iterable[str] | None = None,
        late: bool = True,
        follow: bool = False,
        as_of: AsOf | None = None,
        generation: int | None = None,
        stream: int | None = None,
    ) -> None:
        # Before anything is read: later a number that is no position looks like changes that were lost.
        first_position = 1 if generation is None else 0
        if not isinstance(after, str):
            after = _position("after", after, first_position)
        up_to = _position("up to", up_to, first_position)
        require_reader_name(reader)
        require_switches(late=late, follow=follow)
        metadata = cluster.catch_up()
        opened = open_stream(cluster, metadata, table)
        self._cluster = cluster
        self._stream = opened
        self._index = opened.index
        self._part: StreamPart | None = None
        self.finished = False
        if generation is not None or stream is not None:
            kept = metadata.change_streams.by_table[opened.table.table_id]
            self._part = part_of(opened.index, kept, table, generation, stream)
        self._readers = Readers(cluster.storage, self._index)
        self._reader = reader
        self._late = late
        self._follow = follow
        known, part = None if reader is None else self._readers.of(reader), self._key
        if isinstance(after, str):
            after = _position_of(after, opened)
        if after is None and known is not None:
            require_same(self._index, known)
            require_same_part(known, part)
            if self._part is not None:
                require_finished(known, self._part)
            after = known.position
        first = opened.first if self._part is None else max(opened.first, self._part.first)
        self.position = first if after is None else after if self._part is None else max(after, self._part.first)
        tail = self._index.tail().position
        if self.position < opened.first:
            raise gone(table, self._index)
        if self.position > tail:
            raise ChangesGone(
                f"the changes of {table} end at position {tail}, and those after {self.position} were asked for", tail
            )
        if up_to is not None and not self.position <= up_to <= tail:
            raise InvalidRequest(
                f"the changes of {table} up to position {up_to} cannot be read",
                hint=f"Give a position from {self.position} to {tail}",
            )
        self.up_to = tail if up_to is None and not follow else up_to
        asked = question(opened.table, columns).asked.schema
        within = None if self._part is None else [self._part.within]
        self._wanted = Wanted(opened.table, asked, within)
        self.schema = self._wanted.batch_schema
        self._before: RowsBefore | None = None
        if as_of is not None:
            before = self._before = RowsBefore(cluster.storage, self._index, opened.table, asked.names, as_of, within)
            names = with_keys(opened.table, asked.names)
            self._wanted = Wanted(opened.table, question(opened.table, names).asked.schema, within)
            self.schema = self.schema.append(pa.field(BEFORE, before.type))
        self._write_id = written_at(self._index, self.position)
        if reader is not None and (known is None or (known.position, known.part or None) != (self.position, part)):
            # From now on nothing is dropped that it has not read: it may have lost what it had told of.
            self._readers.set(reader, self.position, part)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches, none of changes of two writes. Raises ChangesGone, StorageUnavailable; Rejected where it follows a
        stream that has ended, after all of its changes.
        """
        while True:
            metadata = self._cluster.catch_up() if self._follow and self.up_to is None else None
            ended = None if metadata is None or is_on(metadata, self._stream) else _ended(metadata, self._stream)
            end = self._index.tail().position if self.up_to is None else self.up_to
            # The root may have gone back meanwhile, and other writes have come to these positions.
            require_same(self._index, Reader(self._reader or "without a name", self.position, self._write_id, 0))
            over = None if self._part is None else end_of_part(self._cluster, self._stream, self._part, end)
            if over is not None:
                end = min(end, over)
            for entry in self._index.entries(self.position, end):
                for batch in changes_of(self._cluster.storage, self._index, entry, self._wanted):
                    kept = batch if self._late else batch.filter(pc.invert(batch.column(LATE)))
                    if kept.num_rows and self._before is not None:
                        kept = with_before(kept, self._before.of(entry, kept), self.schema)
                    if kept.num_rows:
                        yield kept
                self.position, self._write_id = entry.position, entry.write_id
            if end > self.position:
                self.position, self._write_id = end, written_at(self._index, end)
            if over is not None and self.position >= over:
                self.finished = True
                return
            if ended is not None:
                raise ended
            if not self._follow or self.up_to is not None:
                return
            time.sleep(FOLLOW_SECONDS)

    @property
    def _key(self) -> Part | None:
        return None if self._part is None else self._part.key

    @property
    def bookmark(self) -> str:
        """The `position`, with what tells the stream and the write there from others that may come in their place: give
        it as `after` next time, and it is told when the stream is another one, or has lost this write as its root was
        restored from an earlier backup.
        """
        return f"{self.position}/{self._stream.stream_id}/{self._write_id}"

    def commit(self) -> Reader:
        """Tell that what was given out up to `position` was dealt with.

        Raises InvalidRequest without a reader; ChangesGone where the root went back meanwhile: what comes to these
        positions then was given to nobody.
        """
        if self._reader is None:
            raise InvalidRequest("these changes are read by nobody who has a name", hint="Give reader=NAME")
        require_same(self._index, Reader(self._reader, self.position, self._write_id, 0))
        return self._readers.tell(self._reader, self.position, self._key)


def _position_of(bookmark: str, stream: OpenStream) -> int:
    """Raises ChangesGone for a bookmark of another stream, or of one that went back; InvalidRequest for no bookmark."""
    position, _, rest = bookmark.partition("/")
    stream_id, _, write_id = rest.partition("/")
    if not re.fullmatch("[0-9]{1,18}", position) or not stream_id:
        raise InvalidRequest(f"{bookmark!r} is no bookmark of changes", hint="Give a position, or what `bookmark` was")
    if stream_id != stream.stream_id:
        raise ChangesGone(
            f"the stream of changes of {stream.table.full_name} that was read has ended, and another one has begun",
            stream.index.tail().position,
        )
    require_same(stream.index, Reader("with a bookmark", int(position), write_id, 0))
    return int(position)


def require_same(index: ChangeIndex, reader: Reader) -> None:
    """That the index still has what a reader has read. Raises ChangesGone for one that was restored from a backup."""
    tail = index.tail().position
    entry = index.entry(reader.position) if 0 < reader.position <= tail else None
    if reader.position > tail or (reader.write_id and (entry is None or entry.write_id != reader.write_id)):
        raise ChangesGone(
            f"the index of changes at {index.uri} is not the one that reader {reader.name} has read up to position "
            f"{reader.position}: it went back, as one that was restored from a backup",
            tail,
        )
