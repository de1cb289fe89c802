"""The track of the coordinator that compacts: what readers pay most for first, beside the rounds, within budgets.

A round only begins work and looks at what came of it; the work is done in one thread beside the rounds, which is left
behind where it hangs. First the replicas of all tables are looked at; then the tables that are worth it have their
turns, a bounded wave each. Nothing is begun while tablets or ranges move, and a wave that runs ends with the ranges
that it is at: streaming uses the same disks. Where a migration is stuck, the tables that do not move are compacted all
the same.

Nothing is kept: another coordinator looks for itself. Being one of two, paused or killed is what it is to any
compaction (compaction.py): the ledger refuses what is done already, fences what has moved on. Replicas that differ are
not repaired here, but left to `repair`: to copy what a replica lacks has no bound that an operator has set. What all of
them have is put together meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec
from epochlake.jobs.replicas.merging_here import merge_in_turn
from epochlake.jobs.replicas.store import Store
from epochlake.jobs.upkeep.compacting import TARGET_FILE_BYTES, CompactionPolicy, grace_of
from epochlake.jobs.upkeep.compaction import Budget, compact, fitted, forgettable_before, weighed_ranges
from epochlake.jobs.upkeep.expired_files import Expiry
from epochlake.jobs.upkeep.repair import look
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore import threads
from epochlake.metastore.hours import parse_hours
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import CompactionOptions, Table, TableId
from epochlake.metastore.metadata.time_to_live import SKEW_MICROS
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.tablets.resizing import Resize

logger = logging.getLogger(__name__)

WAVE_BYTES = 256 << 20
"""What is put together in one go at most, or one range: then rounds may stop it."""

WAVE_SECONDS = 30.0
"""With a limit of bytes a second, a wave has what may be read in so long at most."""

LOOK_SECONDS = 1.0
LONGEST_LOOK_SECONDS = 16.0
LOOKING_SHARE = 20
"""How long after a look at all tables the next one comes: the first, and where nothing was worth it for a while
(LIVELY_SECONDS) twice as long after each that found nothing, up to the second; but always so many times as long as
looking took.
"""

LIVELY_SECONDS = 30.0
"""So long after something was worth compacting tables are probably written to still: a look that finds nothing, or not
enough yet, does not put off the next one.
"""

REST_SECONDS = 60.0
LONGEST_REST_SECONDS = 3600.0
"""How long a table is left alone of which nothing could be compacted; twice as long each further time."""

LONGEST_REST_AFTER_ERROR_SECONDS = 300.0
"""The longest where it was an error: whoever has made room on a disk or mounted it does not tell the coordinator."""

STUCK_SECONDS = 600.0
"""A migration that has come to no new epoch for so long is stuck: tables that do not move are not held up by it."""


class Due(msgspec.Struct, frozen=True):
    """A table that is worth compacting, and what readers save for each byte that is read for it."""

    table: str
    value: float


class WaveReport(msgspec.Struct, frozen=True):
    """What came of a wave: so many `ranges` of `size` bytes; `left`: there is more that is worth it. `halted`: it
    was to end, with or without anything done.
    """

    ranges: int = 0
    size: int = 0
    left: bool = False
    halted: bool = False


class Work(msgspec.Struct, frozen=True):
    """What is done beside the rounds: `look` says which of some tables are worth it, `compact` does a wave of one, of
    so many bytes at most, and ends early when it is told that it is halted.
    """

    look: Callable[[Sequence[str]], list[Due]]
    compact: Callable[[str, int, Callable[[], bool]], WaveReport]


class _Beside:
    """A call in a thread of its own that nobody waits for."""

    def __init__(
        self, call: Callable[[], object], what: str, clock: Callable[[], float], woken: threading.Event
    ) -> None:
        self.ended = False
        self.result: object = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.what = what
        self._call = call
        self._clock = clock
        self._woken = woken

    def run(self) -> None:
        began = self._clock()
        try:
            self.result = self._call()
        except Exception as error:  # told by the round that looks at it
            self.error = error
        self.seconds = self._clock() - began
        self.ended = True
        self._woken.set()


class CompactionTrack:
    """Compacts tables while nothing moves.

    `work` is what is done, `begin` begins it in another thread; `clock` tells seconds, `day` the time of the day.
    `workers` merge near the disks; without, this process does.
    `woken` is set whenever something has ended, so that the next round need not be waited for.
    """

    def __init__(
        self,
        cluster: Store,
        work: Work | None = None,
        clock: Callable[[], float] = time.monotonic,
        day: Callable[[], datetime] = datetime.now,
        begin: Callable[[Callable[[], None]], None] = threads.begin,
        workers: Workers | None = None,
    ) -> None:
        self.woken = threading.Event()
        settings = cluster.configuration.coordinator
        self._rate = settings.compaction_bytes_per_second
        self._usual = CompactionOptions(settings.compaction == "on", settings.compaction_hours)
        self._work = work or Work(lambda tables: due_tables(cluster, tables), partial(wave, cluster, workers=workers))
        self._clock = clock
        self._day = day
        self._begin = begin
        self._running: _Beside | None = None
        self._looking = False
        self._due: list[str] = []
        self._look_at = 0.0
        self._look_after = LOOK_SECONDS
        self._lively_until = 0.0
        self._begin_at = 0.0
        self._rests: dict[str, tuple[float, float]] = {}
        self._moving: tuple[int, float] = (-1, 0.0)
        self._halted = False
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        """Take what has ended, begin what may be; whether anything was compacted."""
        self._halted = self._yields(metadata, self._clock()) or not metadata.switches.changes
        compacted = self._take()
        if self._running is None and self._may_begin():
            self._begin_work(metadata)
        return compacted

    def idle(self, metadata: ClusterMetadata) -> bool:
        """Whether there has been nothing to compact for a while."""
        return self._running is None and not self._due and self._look_after > LOOK_SECONDS

    def _may_begin(self) -> bool:
        return self._clock() >= self._begin_at and not self._halted

    def _is_time(self, table: Table) -> bool:
        """Whether a table is to be compacted by itself at this hour: as it says, or the configuration."""
        said, day = table.compacting, self._day()
        if not (self._usual.by_itself if said.by_itself is None else said.by_itself):
            return False
        hours = parse_hours((self._usual.hours if said.hours is None else said.hours) or "")
        return hours.contains(60 * day.hour + day.minute)

    def _yields(self, metadata: ClusterMetadata, now: float) -> bool:
        """Whether something moves, and goes on."""
        if not (metadata.tablets.transitions or metadata.rings.operations):
            self._moving = (-1, 0.0)
            return False
        if self._moving[0] != metadata.epoch:
            self._moving = (metadata.epoch, now)
        return now - self._moving[1] < STUCK_SECONDS

    def _begin_work(self, metadata: ClusterMetadata) -> None:
        now = self._clock()
        ready = {
            table.full_name
            for table in tables_at_rest(metadata)
            if self._rests.get(table.full_name, (0.0, 0.0))[0] <= now and self._is_time(table)
        }
        self._due = [name for name in self._due if name in ready]
        if self._due:
            table = self._due[0]
            most = min(WAVE_BYTES, int(self._rate * WAVE_SECONDS)) if self._rate else WAVE_BYTES
            self._start(lambda: self._work.compact(table, most, lambda: self._halted), table, looking=False)
        elif ready and now >= self._look_at:
            names = sorted(ready)
            self._start(lambda: self._work.look(names), "all tables", looking=True)

    def _start(self, call: Callable[[], object], what: str, *, looking: bool) -> None:
        self._running = _Beside(call, what, self._clock, self.woken)
        self._looking = looking
        self._begin(self._running.run)

    def _take(self) -> bool:
        ended = self._running
        if ended is None or not ended.ended:
            return False
        self._running = None
        if self._looking:
            self._take_look(ended)
            return False
        return self._take_wave(ended)

    def _take_look(self, ended: _Beside) -> None:
        now = self._clock()
        if ended.result:
            self._lively_until = now + LIVELY_SECONDS
        lively = now < self._lively_until
        self._look_after = LOOK_SECONDS if lively else min(2 * self._look_after, LONGEST_LOOK_SECONDS)
        self._look_at = now + max(self._look_after, LOOKING_SHARE * ended.seconds)
        if ended.error is not None:
            logger.warning("it was not found what is worth compacting: %s", ended.error)
            return
        found: list[Due] = ended.result  # type: ignore[assignment]
        self._due = [one.table for one in sorted(found, key=lambda one: (-one.value, one.table))]

    def _take_wave(self, ended: _Beside) -> bool:
        now = self._clock()
        if ended.what in self._due:
            self._due.remove(ended.what)
        if ended.error is not None:
            logger.warning("%s was not compacted, and is tried again within minutes: %s", ended.what, ended.error)
            report = WaveReport()
        else:
            report = ended.result  # type: ignore[assignment]
        if report.halted and not report.ranges:
            self._due.append(ended.what)
            return False
        if not report.ranges:
            longest = LONGEST_REST_SECONDS if ended.error is None else LONGEST_REST_AFTER_ERROR_SECONDS
            rest = min(2 * self._rests.get(ended.what, (0.0, REST_SECONDS / 2))[1], longest)
            self._rests[ended.what] = (now + rest, rest)
            return False
        self._rests.pop(ended.what, None)
        if self._rate:
            self._begin_at = now - ended.seconds + report.size / self._rate
        if report.left:
            self._due.append(ended.what)  # after the others that are worth it
        logger.info("%s: %d ranges compacted, %d bytes read", ended.what, report.ranges, report.size)
        return True


def tables_at_rest(metadata: ClusterMetadata) -> list[Table]:
    """The tables of which nothing moves and that are not being divided."""
    moving = {table_id for table_id, _ in metadata.tablets.transitions}
    return [
        table
        for table_id, table in metadata.schema.tables.items()
        if table_id not in moving and not _is_divided(metadata, table_id)
    ]


def _is_divided(metadata: ClusterMetadata, table_id: TableId) -> bool:
    tablet_map = metadata.tablets.maps.get(table_id)
    return tablet_map is not None and tablet_map.resize_type != Resize.NONE


def due_tables(cluster: Store, tables: Sequence[str]) -> list[Due]:
    """Those of the tables that have a range worth compacting; what cannot be looked at is passed over."""
    now = time.time_ns() // 1000
    without_grace, _ = forgettable_before(cluster, 0.0)
    found = []
    for name in tables:
        try:
            view = look(cluster, name)
            purge_before = min(without_grace, now - int(grace_of(view.table) * 1_000_000))
            expiry = Expiry.of(view.table, min(purge_before, now - SKEW_MICROS))
            policy = fitted(CompactionPolicy(), TARGET_FILE_BYTES)
            weighed = weighed_ranges(view, policy, purge_before, TARGET_FILE_BYTES, expiry)
        except EpochlakeError as error:
            logger.info("%s was not looked at: %s", name, error)
            continue
        worth = [one for one in weighed if one.chosen is not None]
        if worth:
            found.append(Due(name, max(one.value for one in worth)))
    return found


def wave(
    cluster: Store,
    table: str,
    most_bytes: int,
    halted: Callable[[], bool] | None = None,
    workers: Workers | None = None,
) -> WaveReport:
    """Compact what pays most in one table, of so many bytes or one range, until it is `halted`."""
    budget = Budget(most_bytes=most_bytes, halted=halted)
    merger = merge_in_turn if workers is None else None
    report = compact(cluster, table, budget=budget, merger=merger, repairing=False, workers=workers)
    done = [one for one in report.compacted if not one.missing]
    size = sum(one.bytes_before for one in done) + report.spread
    return WaveReport(len(done), size, report.left > 0, halted=halted is not None and halted())
