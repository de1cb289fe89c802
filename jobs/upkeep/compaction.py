"""Compaction: the files of a range are put together once, and the result takes their place on all of its replicas.

What a merged file replaces is written down before any replica has it (replicas/ledger.py). So it may
reach one replica and not the others, for as long as it likes: reads pass over what a merged file that they have met
stands for, and repair brings it to the rest. In order:

1. What earlier compactions have left half done is settled: brought to the rest by repair, finished, or voided.
2. Ranges are chosen that are at rest, whose replicas all answer and agree. A service does not repair: of replicas that
   differ it takes what all of them have, and what compactions have left on some of them it brings to the rest.
3. Every byte of the files that are going to be read is verified; a damaged copy is read on another replica, and a range
   without a whole copy of a file is left alone: what is merged takes the place of all copies, so damage would spread.
   Then the files are merged and stored on all replicas; small ones of neighbouring ranges into one (neighbours.py).
   Nothing is visible by that.
4. The ledger says what each merged file replaces. Of two compactions that overlap it refuses one.
5. Each replica adds the merged files and gives up what they replace, in one commit that is fenced at the epoch of the
   plan: a replica that has acknowledged a newer epoch refuses. No session is needed, as nothing waits for this.

Superseded versions go with every merge. A tombstone goes only when all files of its range take part, all replicas have
them, and nothing from before it can still land: it is older than the grace (ten days unless asked otherwise), and than
the oldest live pipeline. A row that has expired by the table's TTL goes likewise (expired_files.py says when that was).
What was staged before a delete and lands only after the grace, by a pipeline that lost its
lease or a named batch that is tried again after so long, would bring its rows back: choose the grace accordingly.

The job of `epochlake compact`, for `spark-submit` and schedulers: the same options, the same exit codes.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.gate.verified_reading import damage_behind
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.damage import CHECKING_PARTITIONS, ExpectedFile, check_files
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.ledger import Merge
from epochlake.jobs.replicas.merging import MergedFile, Merger, encode_empty, merge_with_spark
from epochlake.jobs.replicas.merging_here import merge_here
from epochlake.jobs.replicas.merging_near import merge_near
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, CommitOutcome, FencedOff, Unreachable
from epochlake.jobs.upkeep.compacting import (
    TARGET_FILE_BYTES,
    TOMBSTONE_GRACE_SECONDS,
    Chosen,
    CompactionPolicy,
    Placing,
    Weighed,
    grace_of,
    plan_merges,
    replaced_by,
    sources_of,
    sources_together,
    weigh,
)
from epochlake.jobs.upkeep.comparing import IN_TRANSITION, Skipped, compare, skipped
from epochlake.jobs.upkeep.expired_files import NOTHING_EXPIRES, Expiry
from epochlake.jobs.upkeep.neighbours import TIMES_SHARED, as_one, neighbours
from epochlake.jobs.upkeep.read_costs import ReadCost
from epochlake.jobs.upkeep.repair import ReplicaView, bring_merged, look, look_again, repair
from epochlake.jobs.upkeep.settling import Settled, settle
from epochlake.jobs.workers.spark import SparkWorkers
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.announcing import announced, live_leases
from epochlake.metastore.errors import CoordinationUnavailable, StorageUnavailable, WaitTimeout
from epochlake.metastore.metadata.features import DERIVED_TOKENS
from epochlake.metastore.metadata.model import VolumeId
from epochlake.metastore.metadata.time_to_live import SKEW_MICROS
from epochlake.metastore.storage.clocks import behind
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.showing import Shown
from epochlake.placement.tokens import MIN_TOKEN

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

THREADS = 16

WAVE_BYTES = 8 << 30
WAVE_RANGES = 256
BUDGET_WAVE_BYTES = 256 << 20
HALTED_WAVE_BYTES = 32 << 20
"""What is merged and committed together: a compaction that is stopped has kept what it did before.
The second last one with a budget, so that its time is kept to; the last one where somebody may halt it."""

DIFFERS = "its replicas differ: repair it first"
UNREACHABLE = "a replica does not answer"
PENDING = (
    "a compaction of it was cut off and cannot be finished now; it is taken back at a later epoch, which `epochlake "
    "metadata snapshot` makes: run that where this stays"
)
NOT_STORED = "the merged file could not be stored on every replica"
OVERTAKEN = "another compaction of it was faster"
DAMAGED = "no replica has a whole copy of one of its files: repair it with --check-bytes"


class CompactedRange(msgspec.Struct, frozen=True):
    """One range, and what it was (with `dry_run`: would be) compacted from; what came of it is 0 then. Neighbouring
    ranges that share a file are one here: `unit` is that of the first, and `label` names all of their tokens.

    `cost_before` and `cost_after`: what its readers pay for the whole range; with `dry_run` the second is an estimate.
    `missing`: what replicas said that have not taken the merged files; they have what was before, which is as good.
    """

    unit: int
    label: str
    reason: str
    files_before: int
    bytes_before: int
    rows_before: int
    files_after: int
    bytes_after: int
    rows_after: int
    purges_tombstones: bool
    missing: dict[str, str]
    cost_before: ReadCost = ReadCost()
    cost_after: ReadCost = ReadCost()

    @property
    def times(self) -> float:
        """How many times as long a read took (with `dry_run`: takes) as it does afterwards, by estimate."""
        return self.cost_before.times(self.cost_after)


class CostlyRange(msgspec.Struct, frozen=True):
    """A range that is left as it is, though reads of it take `times` as long as they would at `best`.

    `due_at`: from then on, in microseconds since 1970, it is worth compacting, unless it is written to before.
    """

    unit: int
    label: str
    cost: ReadCost
    best: ReadCost
    times: float
    due_at: int | None


class CompactionReport(Shown, msgspec.Struct, frozen=True):
    """What `compact` did in one table, planned at an epoch.

    `purge_before`: deletes older than this (microseconds since 1970) were forgotten, None: none were, and
    `tombstones_kept` says why. `voided` and `finished`: merged files that earlier compactions had left behind.
    `spread`: bytes of merged files that were brought to replicas which earlier compactions had not reached.
    `unreachable`: what replicas said that do not answer; their ranges were left alone. `costly`: ranges that are not
    worth compacting yet and cost their readers more than they would. `left`: so many ranges, of `left_bytes`, are worth
    it and were not begun, as the budget was used.
    """

    table: str
    epoch: int
    dry_run: bool
    ranges: int
    compacted: tuple[CompactedRange, ...]
    skipped: tuple[Skipped, ...]
    purge_before: int | None
    tombstones_kept: str | None
    finished: int
    voided: int
    unreachable: dict[str, str] = {}
    costly: tuple[CostlyRange, ...] = ()
    left: int = 0
    left_bytes: int = 0
    spread: int = 0

    @property
    def complete(self) -> bool:
        """Whether no range was left alone, and every replica has what was compacted for it.

        What another compaction did meanwhile is done. What a budget left is not something that stood in the way.
        """
        left_alone = any(skipped.reason != OVERTAKEN for skipped in self.skipped)
        return not left_alone and not any(one.missing for one in self.compacted)

    def require_complete(self) -> None:
        """Raise WaitTimeout, which is worth a retry, where something stood in the way."""
        if self.complete:
            return
        away = f", {len(self.unreachable)} replica(s) do not answer" if self.unreachable else ""
        raise WaitTimeout(
            f"not all of {self.table} could be compacted: {len(self.skipped)} group(s) of ranges were left "
            f"alone{away}, and {sum(bool(one.missing) for one in self.compacted)} range(s) have replicas "
            "without their merged files",
            hint="Run it again when what stands in the way is gone",
        )


class Budget(msgspec.Struct, frozen=True):
    """What one run may use: so many bytes that are read (at least one range), for so many seconds; None: no limit.

    No range is begun after the time, and what is begun is ended. With a budget those ranges come first of which a byte
    saves readers the most. `halted` is asked before each group of ranges: others need the disks now.
    """

    most_bytes: int | None = None
    seconds: float | None = None
    halted: Callable[[], bool] | None = None


NO_LIMIT = Budget()


def compact(
    cluster: Store,
    table: str,
    spark: SparkSession | None = None,
    *,
    dry_run: bool = False,
    policy: CompactionPolicy | None = None,
    tombstone_grace_seconds: float | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES,
    merger: Merger | None = None,
    budget: Budget = NO_LIMIT,
    repairing: bool = True,
    workers: Workers | None = None,
) -> CompactionReport:
    """Compact the ranges of a table that `policy` finds worth it, repairing the table first where replicas differ.

    With `spark` its executors merge, and verify what they merge; with `workers`, threads or agents, these do, near the
    disks (merging_near.py); without, this process does, in bounded memory, and `merger` does it in a way of its own.
    `dry_run` changes nothing. Without `repairing`, what only some replicas of a
    range have is left to writers and `repair`, but for what compactions have left half done. Deletes are remembered as
    long as the table says, or ten days, unless another grace is given. Safe beside pipelines, operations, repair and
    other compactions; can be stopped and run again at any time. Raises Rejected for an unknown table, InvalidRequest,
    StorageUnavailable when the ledger cannot be read or written.
    """
    if tombstone_grace_seconds is None:
        tombstone_grace_seconds = grace_of(cluster.catch_up().table(table))
    if not isinstance(tombstone_grace_seconds, int | float) or not 0 <= tombstone_grace_seconds < math.inf:
        raise InvalidRequest(
            f"the grace of tombstones cannot be {tombstone_grace_seconds!r} seconds", hint="Give 0 or more"
        )
    if not isinstance(target_file_bytes, int) or target_file_bytes < 1:
        raise InvalidRequest(
            f"merged files cannot have a size of {target_file_bytes!r} bytes", hint="Give a whole number, 1 or more"
        )
    started = time.monotonic()
    if merger is None and workers is not None:
        merger = merge_near(workers)
    merger = merger or (merge_here if spark is None else merge_with_spark(spark))
    policy = fitted(policy or CompactionPolicy(), target_file_bytes)
    # Before the own lease, which would keep every tombstone from now on.
    purge_before, kept = forgettable_before(cluster, tombstone_grace_seconds)
    # Before the metadata are looked at: whatever time to live they do not know of yet begins later than this.
    droppable_before = min(purge_before, time.time_ns() // 1000 - SKEW_MICROS)
    with announced(cluster, "compaction", table):
        view = look(cluster, table)
        settled = settle(cluster, view, dry_run=dry_run)
        spread = 0
        if not dry_run and repairing:
            if any(not compare(range_, view.snapshots, view.lineage).agrees for range_ in view.ranges):
                repair(cluster, table, spark=spark, workers=workers)
            view = look_again(cluster, view)
        elif not dry_run:
            spread = bring_merged(cluster, view, budget.most_bytes)
            if spread or settled.finished:
                view = look_again(cluster, view)
        checkers = workers if spark is None else SparkWorkers(spark, CHECKING_PARTITIONS)
        placing = sources_of if workers is None else sources_together
        expiry = Expiry.of(view.table, droppable_before)
        forgets = expiry.bounds or _has_old_deletes(view, purge_before)
        if forgets and (there := behind(cluster.storage, cluster.root.uri)) is not None:
            # By a clock that has jumped ahead rows have expired that everybody else still shows, and deletes are old
            # that were made just now.
            purge_before = min(purge_before, there - int(tombstone_grace_seconds * 1_000_000))
            expiry = Expiry.of(view.table, min(purge_before, there - SKEW_MICROS))
        run = _Run(cluster, view, settled, policy, purge_before, target_file_bytes, checkers, expiry, placing)
        weighed = run.weigh(must_agree=repairing)
        chosen = _affordable(weighed, budget, run.is_known_damaged)
        compacted: list[CompactedRange] = []
        begun = len(chosen)
        if dry_run:
            asked = {one.range.index for one in chosen}
            compacted = [_described(one, None, {}, purge_before) for one in weighed if one.range.index in asked]
        else:
            begun = 0
            for wave in _waves(chosen, _wave_bytes(budget)):
                if budget.seconds is not None and time.monotonic() - started >= budget.seconds:
                    break
                if budget.halted is not None and budget.halted():
                    break
                compacted += run.compact(wave, merger)
                begun += len(wave)
        worth_it = [one.chosen for one in weighed if one.chosen is not None]
        left = {one.range.index for one in worth_it} - {one.range.index for one in chosen[:begun]}
        return CompactionReport(
            table=view.table.full_name,
            epoch=view.metadata.epoch,
            dry_run=dry_run,
            ranges=len(view.ranges),
            compacted=tuple(compacted),
            skipped=skipped({reason: units for reason, units in run.skipped.items() if units}),
            purge_before=None if kept else purge_before,
            tombstones_kept=kept,
            finished=settled.finished,
            voided=settled.voided,
            unreachable=view.unreachable,
            costly=tuple(_costly(one) for one in weighed if one.chosen is None and one.now.work > one.best.work),
            left=len(left),
            left_bytes=sum(one.size for one in worth_it if one.range.index in left),
            spread=spread,
        )


def fitted(policy: CompactionPolicy, target_file_bytes: int) -> CompactionPolicy:
    """A policy for files that are merged up to a size: what is half as large is not small any more."""
    return msgspec.structs.replace(policy, small_bytes=min(policy.small_bytes, max(1, target_file_bytes // 2)))


def weighed_ranges(
    view: ReplicaView,
    policy: CompactionPolicy,
    purge_before: int,
    target_file_bytes: int = TARGET_FILE_BYTES,
    expiry: Expiry = NOTHING_EXPIRES,
) -> list[Weighed]:
    """What each range at rest costs its readers, of those whose replicas all answer, and what of it to compact.

    Of a range whose replicas differ only what all of them have is put together, and none of its deletes is forgotten:
    what some lack may be on its way there, and what it is must not matter.
    """
    now = time.time_ns() // 1000
    found = []
    for range_ in view.ranges:
        if any(volume not in view.snapshots for volume in range_.replicas):
            continue
        union: dict[str, DataFile] = {}
        for volume in range_.replicas:
            union |= {file.file_id: file for file in view.snapshots[volume].within(range_.low, range_.high)}
        lacking = compare(range_, view.snapshots, view.lineage).missing.values()
        lacked = {part.file.origin for parts in lacking for part in parts}
        files = [file for file in union.values() if file.origin not in lacked]
        purge = MIN_TOKEN if lacked else purge_before
        expired = expiry.whole_files(files, view.snapshots, purge)
        weighed = weigh(view.table, range_, files, view.lineage, policy, purge, now, target_file_bytes, expired)
        if lacked and weighed.chosen is not None:
            weighed = msgspec.structs.replace(weighed, chosen=msgspec.structs.replace(weighed.chosen, whole=False))
        found.append(weighed)
    return found


def _has_old_deletes(view: ReplicaView, purge_before: int) -> bool:
    """Whether there is a delete that may be forgotten."""
    return any(
        file.has_tombstones and file.min_written_at < purge_before
        for snapshot in view.snapshots.values()
        for file in snapshot.all_files.values()
    )


def _affordable(weighed: Sequence[Weighed], budget: Budget, is_known_damaged: Callable[[Chosen], bool]) -> list[Chosen]:
    """What is chosen, in token order; with a budget what it pays for, the best first.

    What is known to be damaged comes last: nothing can be done about it here, and it must not use up each budget.
    """
    chosen = [one for one in weighed if one.chosen is not None]
    if budget == NO_LIMIT:
        return [one.chosen for one in chosen if one.chosen is not None]
    found: list[Chosen] = []
    size = 0
    damaged = {one.range.index for one in chosen if one.chosen is not None and is_known_damaged(one.chosen)}
    for one in sorted(chosen, key=lambda one: (one.range.index in damaged, -one.value)):
        assert one.chosen is not None
        if not found or budget.most_bytes is None or size + one.chosen.size <= budget.most_bytes:
            found.append(one.chosen)
            size += one.chosen.size
    return found


def _costly(weighed: Weighed) -> CostlyRange:
    range_ = weighed.range
    return CostlyRange(
        range_.unit, range_.label, weighed.now, weighed.best, weighed.now.times(weighed.best), weighed.due_at
    )


def forgettable_before(cluster: Store, grace_seconds: float = TOMBSTONE_GRACE_SECONDS) -> tuple[int, str | None]:
    """Before when a delete may be forgotten, microseconds since 1970; or why none may."""
    now = time.time_ns() // 1000
    try:
        leases = live_leases(cluster)
    except (CoordinationUnavailable, StorageUnavailable) as error:
        return MIN_TOKEN, f"it cannot be asked which pipelines live: {error}"
    oldest = min((lease.started_at * 1000 for lease in leases), default=now)
    return max(MIN_TOKEN, min(now - int(grace_seconds * 1_000_000), oldest)), None


class _Run:
    """One compaction of a table, planned with one view of it."""

    def __init__(
        self,
        cluster: Store,
        view: ReplicaView,
        settled: Settled,
        policy: CompactionPolicy,
        purge_before: int,
        target_file_bytes: int,
        checkers: Workers | None,
        expiry: Expiry,
        placing: Placing,
    ) -> None:
        self.skipped: dict[str, list[int]] = defaultdict(list)
        self._cluster = cluster
        self._view = view
        self._settled = settled
        self._policy = policy
        self._purge_before = purge_before
        self._target_file_bytes = target_file_bytes
        self._checkers = checkers
        self._expiry = expiry
        self._placing = placing
        self._weighed: dict[int, Weighed] = {}
        self._joined: dict[int, tuple[Weighed, ...]] = {}
        self._damaged: set[tuple[VolumeId, str]] = set()
        self._noted: set[tuple[VolumeId, str]] | None = None
        self._app_id = f"compaction-{uuid.uuid4()}"
        self._version = 0

    def weigh(self, *, must_agree: bool) -> list[Weighed]:
        """The ranges that may be compacted now; what stands in the way of the others is kept in `skipped`."""
        view, sound = self._view, []
        if view.moving:
            self.skipped[IN_TRANSITION] += view.moving
        for range_ in view.ranges:
            if any(volume in view.failed for volume in range_.replicas):
                self.skipped[UNREACHABLE].append(range_.unit)
            elif self._settled.stands_in_the_way(range_.low, range_.high):
                self.skipped[PENDING].append(range_.unit)
            elif must_agree and not compare(range_, view.snapshots, view.lineage).agrees:
                self.skipped[DIFFERS].append(range_.unit)
            else:
                sound.append(range_)
        among = msgspec.structs.replace(view, ranges=tuple(sound))
        weighed = weighed_ranges(among, self._policy, self._purge_before, self._target_file_bytes, self._expiry)
        self._weighed = {one.range.index: one for one in weighed}
        return weighed

    def is_known_damaged(self, one: Chosen) -> bool:
        """Whether by the notes of damage no replica has a whole copy of one of its files. They are hints: it is tried
        all the same where nothing else is worth it.
        """
        if self._noted is None:
            self._noted = {note.key for note in self._cluster.damage.of(self._view.table.table_id)}
        if not self._noted:
            return False
        [places] = sources_of([one], self._view.snapshots, self._noted)
        return any(copy is None for _, copy in places)

    def compact(self, wave: Sequence[Chosen], merger: Merger) -> list[CompactedRange]:
        """Merge, write into the ledger, commit: a wave of ranges."""
        view = self._view
        asked = self._sound(wave)
        wave = self._put_together(asked)
        if not wave:
            return []
        plan = plan_merges(
            self._cluster.storage,
            view.table,
            wave,
            view.snapshots,
            self._purge_before,
            self._target_file_bytes,
            self._damaged,
            self._expiry.bounds,
            self._placing,
            derived_tokens=DERIVED_TOKENS in view.metadata.features.enabled,
        )
        made: dict[int, list[MergedFile]] = defaultdict(list)
        try:
            for merged in merger(plan) if any(merge.sources for merge in plan.merges) else ():
                made[merged.number].append(merged)
        except Exception as error:
            # A file may rot, or go, after it was looked at; what a job says of it is Spark's.
            if not self._note_damage_behind(error, wave):
                raise
            return self.compact(asked, merger)
        stored: dict[int, list[MergedFile]] = defaultdict(list)
        for merge in plan.merges:
            stored[merge.chosen] += made[merge.number] or [encode_empty(plan.storage, merge)]
        ready: dict[int, tuple[Chosen, Sequence[DataFile]]] = {}
        for number, one in enumerate(wave):
            if any(merged.failed for merged in stored[number]):
                self.skipped[NOT_STORED] += self._units_of(one)
            else:
                ready[number] = (one, [merged.file for merged in stored[number]])
        recorded = self._record(ready)
        missing = self._commit({number: ready[number] for number in recorded})
        return [
            _described(_together(self._joined[one.range.index], one), files, missing[number], self._purge_before)
            for number, (one, files) in sorted(ready.items())
            if number in recorded
        ]

    def _put_together(self, wave: Sequence[Chosen]) -> list[Chosen]:
        """A wave, with neighbouring ranges as one where they share a file; what is known of each range is joined."""
        found = []
        weighed = [msgspec.structs.replace(self._weighed[one.range.index], chosen=one) for one in wave]
        most_bytes = TIMES_SHARED * self._cluster.configuration.pipeline.shared_file_bytes
        for group in neighbours(weighed, most_bytes):
            one = as_one([each.chosen for each in group if each.chosen is not None])
            self._joined[one.range.index] = group
            found.append(one)
        return found

    def _units_of(self, one: Chosen) -> list[int]:
        return [each.range.unit for each in self._joined[one.range.index]]

    def _sound(self, wave: Sequence[Chosen]) -> list[Chosen]:
        """The ranges of a wave whose files all have a whole copy; which copies are damaged is kept and noted."""
        view, checked = self._view, set[tuple[VolumeId, str]]()
        while True:
            placed = list(zip(wave, self._placing(wave, view.snapshots, self._damaged), strict=True))
            sound = [one for one, places in placed if all(copy is not None for _, copy in places)]
            self.skipped[DAMAGED] += [one.range.unit for one, _ in placed if one not in sound]
            wave = sound
            copies = {
                (copy.address.volume_id, copy.file.path): copy
                for one, places in placed
                if one in sound
                for _, copy in places
                if copy is not None
            }
            fresh = [copy for key, copy in copies.items() if key not in checked]
            checked |= copies.keys()
            results = zip(fresh, check_files(fresh, self._checkers), strict=True)
            damaged = [(copy, result.damage) for copy, result in results if result.damage is not None]
            if not damaged:
                return sound
            self._note(damaged)

    def _note_damage_behind(self, error: Exception, wave: Sequence[Chosen]) -> bool:
        """Keep and note which copies a failed merge has met; whether there are any."""
        placed = self._placing(wave, self._view.snapshots, self._damaged)
        copies = {copy.uri: copy for places in placed for _, copy in places if copy is not None}
        damaged = damage_behind(error, copies.values())
        self._note(damaged)
        return bool(damaged)

    def _note(self, damaged: Sequence[tuple[ExpectedFile, str]]) -> None:
        for copy, damage in damaged:
            logger.warning("%s is damaged and is not compacted: %s", copy.uri, damage)
        self._damaged |= {(copy.address.volume_id, copy.file.path) for copy, _ in damaged}
        self._cluster.damage.add(self._view.table.table_id, damaged)

    def _record(self, ready: Mapping[int, tuple[Chosen, Sequence[DataFile]]]) -> set[int]:
        """Write what the merged files replace into the ledger; the ranges that it has taken."""
        groups = [[self._entry(file, one) for file in files] for one, files in ready.values()]
        taken = {merge.file_id for merge in self._cluster.ledger.record(groups)}
        recorded = {number for number, (_, files) in ready.items() if files[0].file_id in taken}
        self.skipped[OVERTAKEN] += [
            unit for number, (one, _) in ready.items() if number not in recorded for unit in self._units_of(one)
        ]
        return recorded

    def _entry(self, file: DataFile, one: Chosen) -> Merge:
        low, high = file.window
        return Merge(
            table_id=self._view.table.table_id,
            file_id=file.file_id,
            low=low,
            high=high,
            epoch=self._view.metadata.fence,
            # No delete that is forgotten is younger, however clocks jump: reads of the past rely on it.
            at=max(time.time_ns() // 1000, self._purge_before),
            replaced=replaced_by(file, one),
        )

    def _commit(self, ready: Mapping[int, tuple[Chosen, Sequence[DataFile]]]) -> dict[int, dict[str, str]]:
        """Commit on each replica what is for it, side by side; for each range what the replicas said that did not."""
        view = self._view
        due: dict[VolumeId, list[DataFile]] = defaultdict(list)
        for one, files in ready.values():
            for volume in one.range.replicas:
                due[volume] += files
        self._version += 1

        def commit(volume: VolumeId) -> CommitOutcome:
            address = address_of(self._cluster.storage, view.metadata, view.table, volume)
            return commit_files(
                address,
                due[volume],
                epoch=view.metadata.fence,
                app_id=self._app_id,
                app_version=self._version,
                ledger=self._cluster.ledger,
            )

        outcomes = dict(zip(due, ThreadWorkers(THREADS).run(commit, due), strict=True))
        said = {volume: _refusal(outcome) for volume, outcome in outcomes.items()}
        return {
            number: {view.place(volume): reason for volume in one.range.replicas if (reason := said[volume])}
            for number, (one, _) in ready.items()
        }


def _together(weighed: Sequence[Weighed], chosen: Chosen) -> Weighed:
    """What neighbouring ranges cost, of which `chosen` is put together; a file of several counts for each of them."""
    if len(weighed) == 1:
        return weighed[0]
    now, best, after = (
        functools.reduce(operator.add, costs)
        for costs in zip(*((one.now, one.best, one.after) for one in weighed), strict=True)
    )
    beside = tuple(stretch for one in weighed for stretch in one.beside)
    return Weighed(chosen.range, now, best, after, chosen, None, beside, weighed[0].append_only)


def _refusal(outcome: CommitOutcome) -> str | None:
    match outcome:
        case Acknowledged() | AlreadyApplied():
            return None
        case FencedOff(fence=fence):
            return f"it is fenced at epoch {fence}: the placement has moved on"
        case Unreachable(reason=reason):
            return reason
        case other:
            return f"it answered {other}"


def _wave_bytes(budget: Budget) -> int:
    if budget.halted is not None:
        return HALTED_WAVE_BYTES
    return WAVE_BYTES if budget == NO_LIMIT else BUDGET_WAVE_BYTES


def _waves(chosen: Iterable[Chosen], most_bytes: int) -> list[list[Chosen]]:
    """What is compacted together, in token order within a wave."""
    waves: list[list[Chosen]] = []
    size = 0
    for one in chosen:
        if not waves or size + one.size > most_bytes or len(waves[-1]) >= WAVE_RANGES:
            waves.append([])
            size = 0
        waves[-1].append(one)
        size += one.size
    return [sorted(wave, key=lambda one: one.range.low) for wave in waves]


def _described(
    weighed: Weighed, files: Sequence[DataFile] | None, missing: dict[str, str], purge_before: int
) -> CompactedRange:
    """What came of a range; `files` None: nothing yet."""
    one = weighed.chosen
    assert one is not None
    made = files or ()
    return CompactedRange(
        unit=one.range.unit,
        label=one.range.label,
        reason=one.reason,
        files_before=len(one.parts),
        bytes_before=one.size,
        rows_before=sum(part.file.rows for part in one.parts),
        files_after=len(made),
        bytes_after=sum(file.size for file in made),
        rows_after=sum(file.rows for file in made),
        purges_tombstones=one.whole and purge_before > MIN_TOKEN and any(p.file.has_tombstones for p in one.parts),
        missing=missing,
        cost_before=weighed.now,
        cost_after=weighed.after if files is None else weighed.cost_with(files),
    )
