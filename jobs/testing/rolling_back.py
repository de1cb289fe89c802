"""Rollbacks in histories of rows: what they write is seen when it is staged, and must be what was there at that time.

Which rows a rollback has found to differ it tells nobody. So the rows are taken down on their way from the rollback to
the gate, and are from then on a write and a delete of the history like all others, with their own times: reads, streams
of changes and reads as of a time are checked by them. Whether they are the right ones follows from the calls alone:
each is what its key may have shown at that time, and of a key that is left alone what it showed then and at the end may
be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import msgspec
import pyarrow as pa
from epochlake.jobs.administration import past_rows
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.errors import ConsistencyNotReached, HistoryNotKept
from epochlake.jobs.gate.moments import micros_of, moment_of
from epochlake.jobs.gate.row_digests import RowDigest
from epochlake.jobs.gate.rows import Rows
from epochlake.jobs.replicas.staging import Announce, StagedFile
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.jobs.testing.row_checkers import Access
from epochlake.jobs.testing.rows import TABLE
from epochlake.jobs.testing.scenario import Operation
from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.themes import KEYS
from epochlake.jobs.testing.world import World
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import Interval

TRIES = 3
RETRY_SECONDS = 0.5

_rows_to_change = past_rows.rows_to_change


class Rollback(msgspec.Struct, eq=False):
    """A call that takes a table back to how it was at `to`, from how it was at `until`, both in microseconds.

    It began at a step of the scheduler, `called`, and knew what to write at another one, `planned`, None before that.
    `notes`: what it writes; `deletes`: the keys that it deletes; `times`: those of its rows. `done`: it was told that
    it has succeeded.
    """

    who: str
    level: str
    called: float
    to: int
    until: int
    planned: float | None = None
    notes: dict[int, str | None] = {}
    deletes: frozenset[int] = frozenset()
    times: list[int] = []
    done: bool = False


class Rollbacks:
    """All of a history. `accesses`: what was accessed so far, by all; `deleting` is told of keys that are deleted."""

    def __init__(self, world: World, accesses: list[Access], deleting: Callable[[Collection[int]], None]) -> None:
        self.all: list[Rollback] = []
        self._world = world
        self._accesses = accesses
        self._deleting = deleting
        self._under_way: dict[Process, Rollback] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, what rollbacks write is taken down."""
        with patch.object(past_rows, "rows_to_change", self._planned):
            yield

    def roll_back(self, cluster: Cluster, operation: Operation) -> None:
        """Take the table back to the time of a write that was acknowledged, or to right before it; again where that
        fails, as people are told to. Raises EpochlakeError.
        """
        scheduler, level = self._world.scheduler, operation.level
        process = scheduler.current.process
        times = sorted({time for one in self._accesses if one.acknowledged for time in one.times})
        if not times:
            return
        called = scheduler.steps
        to = times[operation.number % len(times)] - operation.number % 2
        try:
            until = max(to, micros_of(past_rows.time_of_newest(cluster, TABLE, consistency=level)))
            for _ in range(TRIES):
                self._under_way[process] = Rollback(process.name, level, called, to, until, times=[])
                try:
                    past_rows.rollback(cluster, TABLE, moment_of(to), until=moment_of(until), consistency=level)
                except ConsistencyNotReached as error:
                    scheduler.note(f"the rollback begins again: {error}")
                    scheduler.sleep(RETRY_SECONDS)
                    continue
                self._succeeded(self._under_way[process])
                return
        except (ConsistencyNotReached, HistoryNotKept, InvalidRequest) as error:
            scheduler.note(f"not rolled back: {type(error).__name__}: {error}")
        finally:
            self._under_way.pop(process, None)

    def _planned(self, rows: pa.Table, keys: pa.Table, target: Table) -> Rows:
        """Take down what a rollback is about to write; what one that is tried again has written is known already."""
        scheduler = self._world.scheduler
        made, one = _rows_to_change(rows, keys, target), self._under_way.get(scheduler.current.process)
        if one is None:
            return made
        notes: dict[int, str | None] = dict(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True))
        deletes = frozenset(keys["id"].to_pylist())
        for before in self.all:
            if (before.who, before.to, before.until, before.notes, before.deletes) == (
                *(one.who, one.to, one.until),
                *(notes, deletes),
            ):
                self._under_way[scheduler.current.process] = before
                return _Told(made, before.times)
        one.planned, one.notes, one.deletes = scheduler.steps, notes, deletes
        self.all.append(one)
        self._deleting(deletes)
        for kind, those in (("write", notes), ("delete", dict.fromkeys(deletes))):
            if those:
                infinity = float("inf")
                access = Access(kind, one.who, one.planned, infinity, False, those, level=one.level, times=one.times)
                self._accesses.append(access)
        return _Told(made, one.times)

    def _succeeded(self, one: Rollback) -> None:
        now, one.done = self._world.scheduler.steps, True
        if one.planned is None:
            one.planned = now  # there was nothing to do
            self.all.append(one)
        for number, access in enumerate(self._accesses):
            if access.times is one.times and not access.acknowledged:
                self._accesses[number] = access._replace(ended=now, acknowledged=True)


class _Told:
    """Rows that tell which time each staging gives to them."""

    def __init__(self, rows: Rows, times: list[int]) -> None:
        self._rows = rows
        self._times = times

    def stage(
        self, plan: StagingPlan, *, digest: RowDigest | None = None, announce: Announce | None = None
    ) -> list[StagedFile]:
        self._times.append(plan.written_at)
        return self._rows.stage(plan, digest=digest, announce=announce)

    def counted(self, digest: RowDigest) -> Count:
        return self._rows.counted(digest)

    def within(self, windows: Collection[Interval]) -> Rows:
        return _Told(self._rows.within(windows), self._times)


def violations(rollbacks: Sequence[Rollback], accesses: Sequence[Access], *, in_time: bool) -> list[str]:
    """Rows that rollbacks have written which were not there at that time, and those that they should have."""
    writes = [access for access in accesses if access.kind != "read" and access.times]
    found = []
    for one in rollbacks:
        before = [write for write in writes if write.times is not one.times and write.began < (one.planned or 0)]
        for key in range(KEYS):
            then = _may_show(key, before, one, one.to, in_time=in_time)
            what = f"{one.who} has rolled back to {one.to} from {one.until}"
            if key in one.notes and one.notes[key] not in then:
                found.append(f"{what}: key {key} to {one.notes[key]!r}, of {sorted(map(str, then))}")
            elif key in one.deletes and ABSENT not in then:
                found.append(f"{what}: key {key} was deleted, of {sorted(map(str, then))}")
            elif key not in one.notes and key not in one.deletes:
                last = _may_show(key, before, one, one.until, in_time=in_time)
                if not then & last:
                    found.append(f"{what}: key {key} stays {sorted(map(str, last))}, of {sorted(map(str, then))}")
    return found


ABSENT = b"nothing"
"""What a key shows of which there is no row: no note is like it."""


def _may_show(key: int, writes: Sequence[Access], one: Rollback, at: int, *, in_time: bool) -> set[str | bytes | None]:
    """What a key may have shown as of a time, to who asked as this rollback did."""
    mine = [write for write in writes if key in write.notes and min(write.times) <= at]
    known = [
        write
        for write in mine
        if write.acknowledged and write.ended < one.called and write.level != "ONE" and max(write.times) <= at
    ]
    found: set[str | bytes | None] = set() if known else {ABSENT}
    for write in mine:
        if not any(other.comes_after(write) or (in_time and other.is_over(write)) for other in known):
            found.add(ABSENT if write.kind == "delete" else write.notes[key])
    return found
