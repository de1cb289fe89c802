"""Letting rows of a table expire by a column with their time, from now on; for another time; or no more.

The event says since when, by the clock of who plans it. That has to be no longer ago than clocks are apart when it is
committed: a compaction that does not know of it drops what has expired by what was said before, up to an hour ago.
"""

from __future__ import annotations

import operator
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, SupportsIndex, Unpack

from epochlake.jobs.administration.altering import ReplicasNotFenced, fence_replicas
from epochlake.jobs.administration.right_clocks import apart
from epochlake.metastore.committing.changes import Call, Change, Options, Preparation
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterTimeToLive
from epochlake.metastore.metadata.model import Table, TimeToLive
from epochlake.metastore.metadata.time_to_live import SKEW_MICROS, begins, in_force
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.metastore import Metastore

Duration = float | timedelta
"""Seconds, or a `timedelta`."""


def set_ttl(cluster: Cluster, full_name: str, column: str, duration: Duration, **options: Unpack[Options]) -> Committed:
    """Let rows of a table expire so long (seconds, or a `timedelta`) after the moment in a column of type timestamp.

    No read shows a row that has expired; compaction drops it later. What expires is the newest version of a row, so an
    older one never comes back, and a row without a moment never expires. Rows that have expired by then stay so when
    the table gets a longer time to live, or none. Returns when no read goes by what was said before any more.

    Raises Rejected (unknown-column, invalid-ttl, nothing-to-do), InvalidRequest for a duration that is none, and
    ReplicasNotFenced where too few replicas answer: calling again with the same `request_id` waits once more.
    """
    return cluster.commit(TtlSetting(full_name, column, whole_seconds(duration, full_name)), **options)


def drop_ttl(cluster: Cluster, full_name: str, **options: Unpack[Options]) -> Committed:
    """Let no further row of a table expire; those that have stay expired. Raises as `set_ttl`."""
    return cluster.commit(TtlDrop(full_name), **options)


def whole_seconds(duration: object, of: str = "") -> int:
    """A duration in seconds; `of`: the table whose rows have it. Raises InvalidRequest for parts of a second, and for
    what is no duration.
    """
    given = duration.total_seconds() if isinstance(duration, timedelta) else duration
    seconds = 0
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        seconds = operator.index(given)
    elif isinstance(given, float) and given == given // 1:
        seconds = int(given)
    if seconds < 1:
        said = f"{duration!r} seconds" if isinstance(duration, int | float) else repr(duration)
        raise InvalidRequest(
            f"rows{f' of {of}' if of else ''} cannot live for {said}",
            hint="Give whole seconds, 1 or more, or a timedelta: 3600, or timedelta(hours=1)",
        )
    return seconds


def first_lifetime(table: Table, column: str, seconds: int) -> tuple[TimeToLive, ...]:
    """The times to live of a table that is about to be created. Raises Rejected (unknown-column)."""
    return (TimeToLive(_number(table, column), seconds, _clock()),)


class TtlSetting(Change[AlterTimeToLive], frozen=True):
    """What `set_ttl` commits."""

    verb: ClassVar[str] = "set ttl"
    full_name: str
    column: str
    seconds: int

    def plan(self, metadata: ClusterMetadata, call: Call) -> AlterTimeToLive:
        table = metadata.table(self.full_name)
        ttl = TimeToLive(_number(table, self.column), self.seconds, begins(table, _clock()))
        return AlterTimeToLive(table.table_id, table.full_name, table.version, ttl)

    def preparation(self, metastore: Metastore) -> Preparation[AlterTimeToLive]:
        return _Fenced(metastore)


class TtlDrop(Change[AlterTimeToLive], frozen=True):
    """What `drop_ttl` commits."""

    verb: ClassVar[str] = "drop ttl"
    full_name: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> AlterTimeToLive:
        table = metadata.table(self.full_name)
        now = in_force(table)
        if now is None:
            raise Rejected(Code.NOTHING_TO_DO, f"no rows of {self.full_name} expire")
        ttl = TimeToLive(now.column_id, None, begins(table, _clock()))
        return AlterTimeToLive(table.table_id, table.full_name, table.version, ttl)

    def preparation(self, metastore: Metastore) -> Preparation[AlterTimeToLive]:
        return _Fenced(metastore)


class _Fenced(Preparation[AlterTimeToLive]):
    """Committed soon after it was planned, or planned again; after it, the replicas of the table are fenced, so that
    reads which were planned before are planned again.
    """

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._event: AlterTimeToLive | None = None

    def prepare(self, event: AlterTimeToLive, metadata: ClusterMetadata) -> None:
        require_right_clock(self._metastore, event.name)
        self._event = event

    def still_prepared(self, event: AlterTimeToLive, then: ClusterMetadata, now: ClusterMetadata) -> bool:
        return _clock() - event.ttl.since <= SKEW_MICROS // 4

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        event = self._event
        fence_replicas(self._metastore, None if event is None else event.table_id)
        if event is not None and _clock() - event.ttl.since > SKEW_MICROS // 2:
            raise ReplicasNotFenced(
                f"{event.name} has its time to live since epoch {self._metastore.metadata.epoch} at the latest, and "
                "this process was held up for so long that a compaction may have dropped expired rows by the one "
                "before, on some replicas only",
                hint=f"`epochlake repair {event.name}` makes the replicas alike",
            )


def require_right_clock(metastore: Metastore, table: str) -> None:
    """Reject a change by a clock that the storage of the root contradicts: one that is ahead would be told as made, and
    wait for its time while rows go on to expire; by one that is behind, rows that have expired would come back.
    """
    ahead, said = apart(metastore)
    if ahead:
        raise Rejected(
            Code.INVALID_TTL,
            f"{said}, so nobody can say from when on rows of {table} expire otherwise",
            hint="Set the clock that is wrong, and do it again; nothing was changed",
        )


def _number(table: Table, name: str) -> int:
    for column in table.numbered:
        if column.name == name and isinstance(column.column_id, int):
            return column.column_id
    raise Rejected(
        Code.UNKNOWN_COLUMN,
        f"{table.full_name} has no column {name}",
        hint=f"It has {', '.join(sorted(column.name for column in table.columns))}",
    )


def _clock() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
