"""Generations of change streams: made when the ranges of a table have changed, marked in its index, and published.

Three steps, each of which anybody may take again, or two at once. The generation is *committed*: the log says what its
streams are. It is *marked*: a commit of the index, in one order with the writes, says where it begins; until then
nobody reads by it, so no reader is ever beyond the place where it begins. It is *published*: the place is in the
metadata, in tables that anybody may read. Decision 128.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeGeneration, ChangeStream
from epochlake.metastore.metadata.events import (
    CommitGenerations,
    FinishRequest,
    NewGeneration,
    PublishedGeneration,
    PublishGenerations,
)
from epochlake.metastore.metadata.events.change_generations import dividing
from epochlake.metastore.metadata.model import RequestKind
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

logger = logging.getLogger(__name__)

MOVED_ON = frozenset({Code.STALE_PLAN, Code.NOTHING_TO_DO, Code.UNKNOWN_TABLE})
"""Somebody else was faster, or the table has changed again: the next look sees it."""


class Divided(msgspec.Struct, frozen=True):
    """What was done about the generations of a table. `committed` and `published`: numbers of generations."""

    committed: tuple[int, ...] = ()
    published: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.committed or self.published)


def keep_divided(cluster: Store, stream: ChangeStream) -> Divided:
    """Bring the generations of a stream that has begun up to the ranges of its table.

    Nothing is done while the cluster does not use the feature. Raises StorageUnavailable, also for an index that went
    back behind a generation.
    """
    metadata = cluster.catch_up()
    now = _now(metadata, stream)
    index = cluster.change_indexes.of(stream)
    begun = None if now is None or not metadata.may_use(CommitGenerations) else index.begun()
    if begun is None:
        return Divided()
    published = _publish(cluster, stream, index, begun.position)
    metadata = cluster.catch_up()
    now = _now(metadata, stream)
    event = None if now is None else planned(metadata, now, index.tail().position)
    if event is None or not _commit(cluster, event):
        return Divided((), published)
    return Divided((event.generations[0].number,), (*published, *_publish(cluster, stream, index, begun.position)))


def is_due(metadata: ClusterMetadata, stream: ChangeStream) -> bool:
    """Whether a generation is to be made or published, as far as the metadata tells."""
    if stream.table_id not in metadata.schema.tables or not metadata.may_use(CommitGenerations):
        return False
    last = stream.generation
    return (last is not None and last.position is None) or planned(metadata, stream, 0) is not None


def planned(metadata: ClusterMetadata, stream: ChangeStream, after: int) -> CommitGenerations | None:
    """The event that divides the changes of a table by its ranges of now; None where they are, or are changing.

    `after`: where its index ends.
    """
    table_id, last = stream.table_id, stream.generation
    tablets = metadata.tablets.maps.get(table_id)
    if tablets is None and metadata.rings.operations:
        return None  # each step has ranges of its own: those of its end are divided by
    if last is not None and last.position is None:
        return None  # one after the other: where this one begins has to be known first
    count, lows = (0, dividing(metadata.placements(table_id).lows.tolist())) if tablets is None else (tablets.count, ())
    if last is not None and (last.count, last.lows) == (count, lows):
        return None
    number, at = (1, 0) if last is None else (last.number + 1, last.at + 1)
    after = 0 if last is None else max(after, last.after)  # the first one begins with the stream
    new = NewGeneration(table_id, stream.stream_id, number, after, count, lows)
    return CommitGenerations((new,), max(at, time.time_ns() // 1000))


def require_kept(index: ChangeIndex, stream: ChangeStream) -> None:
    """That the index has each generation where it is said to begin. Raises StorageUnavailable for one that went back.

    The first one has no mark: it begins with the stream.
    """
    tail = index.tail().position
    for one in stream.known_generations[-1:]:
        if one.position is not None and one.number > 1 and one.position > index.floor():
            there = one.position <= tail and index.generation_mark(one.number, one.position - 1, one.position)
            if not there:
                raise _went_back(index, one)


def end_checks(cluster: Store) -> list[str]:
    """End the requests that ask for a check of all streams, when each is what it should be; else why they go on.

    Raises StorageUnavailable.
    """
    metadata = cluster.catch_up()
    asked = [one for one in metadata.open_requests() if one.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS]
    obstacles = []
    for request in asked:
        if request.paused:
            continue
        try:
            for stream in metadata.change_streams.by_table.values():
                if stream.table_id in metadata.schema.tables:
                    require_kept(cluster.change_indexes.of(stream), stream)
            cluster.commit(FinishRequest(request.request_id))
        except (Rejected, StorageUnavailable) as error:
            obstacles.append(f"check of the streams of changes: {error.text}")
    return obstacles


def _now(metadata: ClusterMetadata, stream: ChangeStream) -> ChangeStream | None:
    """The stream as it is now; None where it has ended, or its table is dropped."""
    now = metadata.change_streams.get(stream.table_id)
    there = now is not None and now.stream_id == stream.stream_id and stream.table_id in metadata.schema.tables
    return now if there else None


def _went_back(index: ChangeIndex, one: ChangeGeneration) -> StorageUnavailable:
    return StorageUnavailable(
        f"the index of changes at {index.uri} went back behind the beginning of generation {one.number}, as one that "
        "was restored from a backup",
        hint="End the stream with `epochlake changes drop`, and begin another one",
    )


def _publish(cluster: Store, stream: ChangeStream, index: ChangeIndex, begun: int) -> tuple[int, ...]:
    """Mark and publish the generations of which it is not known where they begin; their numbers."""
    done: list[int] = []
    while True:
        now = _now(cluster.catch_up(), stream)
        awaited = next((one for one in now.known_generations if one.position is None), None) if now else None
        if now is None or awaited is None:
            return tuple(done)
        if index.tail().position < awaited.after:
            raise _went_back(index, awaited)
        # The first one has all from the beginning of the stream on: nothing comes before it.
        position = begun if awaited.number == 1 else index.mark_generation(awaited.number, awaited.after)
        oldest = _oldest(index, now, awaited.number, position)
        one = PublishedGeneration(now.table_id, now.stream_id, awaited.number, position, oldest)
        if not _commit(cluster, PublishGenerations((one,))):
            return tuple(done)
        done.append(awaited.number)


def _oldest(index: ChangeIndex, stream: ChangeStream, number: int, position: int) -> int:
    """The oldest generation of which changes are kept when this one begins."""
    floor, oldest = index.floor(), 0
    begins = [(one.number, one.position) for one in stream.known_generations if one.position is not None]
    for next_number, begin in [*begins, (number, position)]:
        if begin <= floor:
            oldest = next_number
    return oldest


def _commit(cluster: Store, event: CommitGenerations | PublishGenerations) -> bool:
    """Whether it was committed; False where the metadata has moved on."""
    try:
        cluster.commit(event)
    except Rejected as rejected:
        if rejected.code not in MOVED_ON:
            raise
        logger.info("%s", rejected)
        return False
    return True
