"""Events of generations of change streams (seed 000, "CDC generations"): committed with a timestamp, then published.

First a generation is committed: what its streams are. Then its place among the changes is fixed, by a mark in the index
of changes. Then the place is published, so that readers find it in the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.components.change_streams import ChangeGeneration, ChangeStream, ChangeStreams
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.operations import NO_NODE
from epochlake.metastore.metadata.model import RequestKind, TableId, TopologyRequest
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural
from epochlake.placement.tokens import MIN_TOKEN

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

MOST_STREAMS = 4096
"""So many ranges a generation of a table on the ring has at most: an event carries them all."""


class NewGeneration(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Generation `number` of the changes of a table, kept in the index `stream_id`, which ended at `after` or later.

    Its streams are `count` equal tablets, or on the ring ranges that begin at the tokens `lows`.
    """

    table_id: TableId
    stream_id: str
    number: int
    after: int
    count: int = 0
    lows: tuple[int, ...] = ()


class CommitGenerations(Event, frozen=True):
    """The changes of tables are divided anew, `at` microseconds since 1970; at most one generation for each table."""

    generations: tuple[NewGeneration, ...]
    at: int

    def check(self, metadata: ClusterMetadata) -> None:
        require(bool(self.generations), Code.NOTHING_TO_DO, "no generation was given")
        named = {new.table_id for new in self.generations}
        require(len(named) == len(self.generations), Code.INVALID_EVENT, "a table is named twice")
        for new in self.generations:
            self._check(metadata, new)

    def _check(self, metadata: ClusterMetadata, new: NewGeneration) -> None:
        stream = _stream_of(metadata, new.table_id, new.stream_id)
        last, name = stream.generation, metadata.schema.tables[new.table_id].full_name
        require(
            new.number == (1 if last is None else last.number + 1),
            Code.STALE_PLAN,
            f"generation {new.number} is not the next one of {name}",
        )
        require(
            last is None or (self.at > last.at and new.after >= last.after),
            Code.STALE_PLAN,
            f"generation {new.number} of {name} is not later than the one before",
        )
        require(
            bool(new.count) != bool(new.lows) and new.after >= 0 and _are_ranges(new.lows),
            Code.INVALID_EVENT,
            f"generation {new.number} of {name} has no streams, or they do not have each token once",
        )
        tablets = metadata.tablets.maps.get(new.table_id)
        begins = set() if tablets is not None else set(metadata.placements(new.table_id).lows.tolist())
        require(
            new.count == (0 if tablets is None else tablets.count) and begins.issuperset(new.lows),
            Code.STALE_PLAN,
            f"the ranges of {name} are others by now",
        )
        require(
            last is None or (last.count, last.lows) != (new.count, new.lows),
            Code.NOTHING_TO_DO,
            f"the streams of {name} are these ranges already",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        by_table = dict(metadata.change_streams.by_table)
        for new in self.generations:
            stream = by_table[new.table_id]
            one = ChangeGeneration(new.number, epoch, self.at, new.after, new.count, new.lows)
            by_table[new.table_id] = msgspec.structs.replace(
                stream, generations=(*stream.known_generations, one), epoch=epoch
            )
        return msgspec.structs.replace(metadata, change_streams=ChangeStreams(by_table, epoch))

    def summary(self) -> str:
        return f"changes of {plural(len(self.generations), 'table')} are divided into other streams"


class PublishedGeneration(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Generation `number` of a table begins after `position`. `oldest`: no change of those before it is kept."""

    table_id: TableId
    stream_id: str
    number: int
    position: int
    oldest: int = 0


class PublishGenerations(Event, frozen=True):
    """It is known where generations begin, in the order of their numbers; those of which nothing is kept go."""

    published: tuple[PublishedGeneration, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require(bool(self.published), Code.NOTHING_TO_DO, "no generation was given")
        named = {one.table_id for one in self.published}
        require(len(named) == len(self.published), Code.INVALID_EVENT, "a table is named twice")
        for published in self.published:
            stream = _stream_of(metadata, published.table_id, published.stream_id)
            name = metadata.schema.tables[published.table_id].full_name
            awaited = next((one for one in stream.known_generations if one.position is None), None)
            require(
                awaited is not None,
                Code.NOTHING_TO_DO,
                f"where the generations of {name} begin is known",
            )
            assert awaited is not None
            require(
                awaited.number == published.number,
                Code.STALE_PLAN,
                f"generation {awaited.number} of {name} is to be published first",
            )
            before = [one.position for one in stream.known_generations if one.position is not None]
            require(
                published.position > max(before, default=0)
                and published.position >= awaited.after
                and published.oldest <= published.number,
                Code.INVALID_EVENT,
                f"generation {published.number} of {name} cannot begin after position {published.position}",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        by_table = dict(metadata.change_streams.by_table)
        for published in self.published:
            stream = by_table[published.table_id]
            known = tuple(
                msgspec.structs.replace(one, position=published.position) if one.number == published.number else one
                for one in stream.known_generations
                if one.number >= published.oldest
            )
            by_table[published.table_id] = msgspec.structs.replace(stream, generations=known, epoch=epoch)
        return msgspec.structs.replace(metadata, change_streams=ChangeStreams(by_table, epoch))

    def summary(self) -> str:
        return f"streams of changes of {plural(len(self.published), 'table')} are published"


class RequestStreamCheck(Event, frozen=True):
    """Ask that the streams of all tables are checked, and made anew where they are not what they should be.

    The global request `check_and_repair_cdc_streams` of seed 000. It ends when each table's changes are divided by the
    ranges that it has then, and it is known where that begins.
    """

    request_id: str
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        require(
            self.request_id not in metadata.requests, Code.REQUEST_EXISTS, f"request {self.request_id} exists already"
        )
        for request in metadata.open_requests():
            require(
                request.kind is not RequestKind.CHECK_AND_REPAIR_CDC_STREAMS,
                Code.REQUEST_IN_THE_WAY,
                f"request {request.request_id} checks the streams already ({request.state})",
                hint="Wait for it, or cancel it",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        kind = RequestKind.CHECK_AND_REPAIR_CDC_STREAMS
        request = TopologyRequest(self.request_id, kind, NO_NODE, reason=self.why, requested_epoch=epoch, epoch=epoch)
        return msgspec.structs.replace(metadata, requests={**metadata.requests, request.request_id: request})

    def summary(self) -> str:
        return "the streams of changes are to be checked"


def require_divided(metadata: ClusterMetadata) -> None:
    """Raise Rejected unless the changes of each table are divided by its ranges, and that is published."""
    for table_id, stream in sorted(metadata.change_streams.by_table.items()):
        table = metadata.schema.tables.get(table_id)
        if table is None:
            continue
        last = stream.generation
        require(
            last is not None and last.position is not None and fits(metadata, table_id, last),
            Code.STREAMS_NOT_DIVIDED,
            f"the changes of {table.full_name} are not divided as the table is",
            hint="A coordinator does it when the ranges rest and enough replicas answer",
        )


def fits(metadata: ClusterMetadata, table_id: TableId, generation: ChangeGeneration) -> bool:
    """Whether a generation has the ranges that its table has now."""
    tablets = metadata.tablets.maps.get(table_id)
    if tablets is not None:
        return generation.count == tablets.count
    return generation.lows == dividing(metadata.placements(table_id).lows.tolist())


def dividing(lows: Sequence[int]) -> tuple[int, ...]:
    """Where streams of ranges begin that begin there: of very many some, so that neighbours share a stream."""
    return tuple(lows[:: -(-len(lows) // MOST_STREAMS)])


def _stream_of(metadata: ClusterMetadata, table_id: TableId, stream_id: str) -> ChangeStream:
    """The stream of a table that is there. Raises Rejected where its changes are kept in another one, or not at all."""
    stream = metadata.change_streams.get(table_id)
    require(
        stream is not None and stream.stream_id == stream_id and table_id in metadata.schema.tables,
        Code.STALE_PLAN,
        f"the changes of table {table_id} are not kept in this stream any more",
    )
    assert stream is not None
    return stream


def _are_ranges(lows: tuple[int, ...]) -> bool:
    """Whether ranges that begin at these tokens have each token once, or there are none."""
    ascending = all(one < other for one, other in pairwise(lows))
    return not lows or (lows[0] == MIN_TOKEN and ascending and len(lows) <= MOST_STREAMS)
