"""A write: rows are staged on the write replicas of their ranges, then committed there until the level is reached.

A named batch is decided before any of it is committed, so that it lands once however often it is tried (batches.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
from epochlake.jobs.gate import batches
from epochlake.jobs.gate.change_recording import Recording, forget_ahead
from epochlake.jobs.gate.check_expressions import row_checks
from epochlake.jobs.gate.commit_phase import LATE_ROUNDS, RETRY_SECONDS, ROUNDS, THREADS, CommitPhase, WriteBatch
from epochlake.jobs.gate.crowding import crowded
from epochlake.jobs.gate.errors import ConsistencyNotReached, StagedBefore
from epochlake.jobs.gate.generated_expressions import row_generation
from epochlake.jobs.gate.planning import HybridClock, Planning
from epochlake.jobs.gate.routing import named, ranges_of, refined
from epochlake.jobs.gate.row_digests import DigestedColumn, RowDigest, columns_of_before, digested_columns
from epochlake.jobs.gate.rows import Rows
from epochlake.jobs.gate.staged_checks import Known, StagedChecks, known_checks
from epochlake.jobs.gate.staged_generated import Computed, StagedGenerated, generated_numbers
from epochlake.jobs.replicas.change_index import TooEarly
from epochlake.jobs.replicas.change_intents import Intents, PutIntent, new_intent
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.showing import Shown
from epochlake.placement.tokens import Interval

TRIES = 10
"""So often rows are staged at most, where a stream begins or a generated column comes each time before they land."""


class Written(Shown, msgspec.Struct, frozen=True):
    """What a write did. `epoch`: at which its acknowledgements were judged; `rounds`: how often it was planned.

    `tablets`: how many tablets, or ranges of a table on the ring, the files have rows in; a file that many tablets
    share counts for all between its first and its last row. `already`: a named batch had reached the level before the
    call, so that calls which bring one there at the same time may each say no, though its rows are there once.
    `missing`: what each replica said that has not acknowledged although it should have; the level was reached without.
    `warnings`: what does no harm to this write and should not stay so.
    """

    table: str
    rows: int
    files: int
    bytes: int
    tablets: int
    epoch: int
    rounds: int
    already: bool
    missing: dict[str, str]
    warnings: tuple[str, ...] = ()


def is_acknowledged(
    planning: Planning, table: Table, level: ConsistencyLevel, files: Iterable[DataFile], live: batches.Live
) -> bool:
    """Whether every row of `files` is live on so many replicas that the level is reached, at the planned epoch."""
    return all(
        planning.is_satisfied(table, level, one.stretch.first, live.volumes_with(one.file, one.window))
        for one in planning.stretches.shared(planning.metadata, table.table_id, files)
    )


def _live_windows(located: batches.Located, opened: Mapping[VolumeId, ReplicaSnapshot]) -> frozenset[Interval]:
    """The windows of a batch of which a replica that answers has rows."""
    live = batches.Live(opened, located.lineage)
    return frozenset(one.file.window for one in located.files if next(live.of(one.file), None) is not None)


def _again(
    located: batches.Located, opened: Mapping[VolumeId, ReplicaSnapshot], failed: Mapping[VolumeId, str]
) -> batches.Located:
    """A batch of which all is lost that is live nowhere; whoever does not answer may have some of that."""
    windows = {one.file.window for one in located.files} - _live_windows(located, opened)
    return msgspec.structs.replace(located, lost=tuple(sorted(windows)), unanswered=dict(failed) if windows else {})


def _but_in(windows: Collection[Interval], files: Iterable[StagedFile]) -> Computed:
    """Nothing is known of what is generated in files, and of those in some windows nobody asks."""
    return Computed(there=frozenset(one.file.file_id for one in files if one.file.window in windows))


def _operation(deleted: bool, changes: bool) -> str:
    """By what the names of batches are apart."""
    return "change" if changes else "delete" if deleted else "write"


class Writing:
    """The writes of one run at the gate; `app_id` marks their commits, `name` is shown to operators."""

    def __init__(self, planning: Planning, clock: HybridClock, app_id: str, name: str = "") -> None:
        self._planning = planning
        self._cluster = planning.cluster
        self._clock = clock
        self._app_id = app_id
        self._name = name
        self._versions = 0
        self._ahead: PutIntent | None = None
        self._tried: list[Recording] | None = None
        """Of the write that is going on: its recordings whose rows were staged again."""
        self._judged: Known = frozenset()
        """The checks that rows were judged by when they were staged last."""
        self._computed = Computed()

    def write(
        self,
        rows: Rows,
        table: Table,
        level: ConsistencyLevel,
        batch: str | None = None,
        *,
        deleted: bool = False,
        changes: bool = False,
    ) -> Written:
        """Write rows, or with `deleted` tombstones for their keys, as a named batch or one of its own.

        `changes`: the rows say each by itself, in `_deleted`, whether it is a tombstone.

        Returns when every range's acknowledgements have reached the level in the placement of the newest epoch. Raises
        InvalidRequest, ConsistencyNotReached, Rejected (batch-used).
        """
        overtaken: TooEarly | StagedBefore | None = None
        tried = self._tried = []
        try:
            for left in reversed(range(TRIES)):
                try:
                    written = self._write(
                        rows, table, level, batch, deleted=deleted, changes=changes, overtaken=overtaken
                    )
                except (TooEarly, StagedBefore) as error:
                    # The stream of the table's changes began meanwhile, or it got a generated column. Rows at a later
                    # time take the place of those.
                    if not left:
                        raise
                    overtaken = error
                else:
                    for recording in tried:
                        recording.replaced()
                    return written
            raise AssertionError
        except Exception:
            for recording in tried:
                recording.failed()
            raise
        finally:
            self._tried = None

    def _write(
        self,
        rows: Rows,
        table: Table,
        level: ConsistencyLevel,
        batch: str | None,
        *,
        deleted: bool,
        changes: bool,
        overtaken: TooEarly | StagedBefore | None = None,
    ) -> Written:
        """`write`; `overtaken`: why what was staged does not land, so that rows are written again at a later time.

        What lacks a generated column and is live somewhere stays as it is, as a row from before, where it could be
        shown twice, as in an append-only table, or come over newer rows: somebody may know of a named batch already.
        """
        if isinstance(overtaken, StagedBefore) and (table.append_only or batch is not None):
            self._fence(table)
        opened, failed = self._planning.open_for_write(table)
        self._planning.refuse_senseless_levels(table, level)
        if batch is None:
            if isinstance(overtaken, StagedBefore) and table.append_only:
                contents = batches.BatchContents(1, overtaken.files)
                located = _again(self.locate(table, contents, opened, failed), opened, failed)
                return self._land_the_rest(rows, table, level, located, opened)
            try:
                staged = self._stage(rows, table, level, opened, deleted, announces=True)
            except EpochlakeError:
                self._forget_ahead()
                raise
            ahead, self._ahead = self._ahead, None
            return self.land(
                table,
                staged,
                level,
                opened=opened,
                put=ahead,
                deletes=deleted,
                known=self._judged,
                computed=msgspec.structs.replace(self._computed, replaceable=not table.append_only),
            )
        root = self._cluster.root.batches
        name = batches.batch_id(table.table_id, _operation(deleted, changes), batch)
        decision = batches.decided(self._cluster.storage, root, name)
        if not decision.generations:
            columns = digested_columns(table)
            staged = self._stage(rows, table, level, opened, deleted, columns=columns)
            decision = batches.decide(self._cluster.storage, root, name, table, decision, staged, columns=columns)
            if decision.files == tuple(staged):
                return self.land(
                    table,
                    staged,
                    level,
                    opened=opened,
                    write_id=name,
                    deletes=deleted,
                    known=self._judged,
                    computed=self._computed,
                )
        columns = self._require_same_rows(rows, table, batch, decision, deleted)
        located = self.locate(table, decision, opened, failed)
        if isinstance(overtaken, TooEarly):
            every = tuple(sorted({one.file.window for one in decision.files}))
            located = msgspec.structs.replace(located, lost=every, unanswered={})
        elif overtaken is not None:
            located = _again(located, opened, failed)
        if located.lost:
            self.require_answers(table, level, located)
            self._go_on_without(located)
            again = rows.within(located.lost)
            staged = self._stage(again, table, level, opened, deleted, located.lost, columns=columns)
            decision = batches.decide(
                self._cluster.storage, root, name, table, decision, staged, replaces=located.lost, columns=columns
            )
            located = self.locate(table, decision, opened, failed)
        already = self.is_reached(table, level, located, opened)
        # Files of an earlier try are as they were staged then: whether they satisfy the checks of now they say only
        # themselves. What has reached its level has been there before these.
        known = None if already else Known()
        return self.land(
            table,
            located.files,
            level,
            located,
            already=already,
            write_id=name,
            deletes=deleted,
            known=known,
            computed=None if already else _but_in(_live_windows(located, opened), located.files),
        )

    def _fence(self, table: Table) -> None:
        """Have no replica that answers take what others may have staged before: then what is live nowhere stays so."""
        planning = self._planning
        opened, _ = planning.open_for_write(table)
        addresses = [snapshot.address for snapshot in opened.values()]
        ThreadWorkers(THREADS).run(lambda address: raise_fence(address, planning.metadata.fence), addresses)

    def _land_the_rest(
        self,
        rows: Rows,
        table: Table,
        level: ConsistencyLevel,
        located: batches.Located,
        opened: Mapping[VolumeId, ReplicaSnapshot],
    ) -> Written:
        """Land what is live somewhere of a batch without a name as it is, and the rest staged anew."""
        self.require_answers(table, level, located)
        self._go_on_without(located)
        there = tuple(one for one in located.files if one.file.window not in located.lost)
        staged = [*there]
        if located.lost:
            staged += self._stage(rows.within(located.lost), table, level, opened, False, located.lost)
        located = msgspec.structs.replace(located, files=tuple(staged))
        computed = msgspec.structs.replace(self._computed, there=frozenset(one.file.file_id for one in there))
        return self.land(table, staged, level, located, opened=opened, known=Known(), computed=computed)

    def _go_on_without(self, located: batches.Located) -> None:
        """Let what is staged anew not land as it was staged before, whoever settles it."""
        there = {one.file.file_id for one in located.files if one.file.window not in located.lost}
        for recording in self._tried or ():
            recording.goes_on_with(there)

    def knows_rules_of(self, table: Table) -> bool:
        """Whether what was staged last has all that a table generates, and was judged by its checks, as the log has it
        now.
        """
        now = self._planning.catch_up(0).schema.tables.get(table.table_id)
        return now is None or (generated_numbers(now) <= self._computed.numbers and known_checks(now) <= self._judged)

    def stage(
        self, rows: Rows, table: Table, level: ConsistencyLevel, opened: Mapping[VolumeId, ReplicaSnapshot]
    ) -> list[StagedFile]:
        """The first phase alone, of a batch of changes, at a time later than all that `opened` have: for `land`."""
        return self._stage(rows, table, level, opened, deleted=False)

    def land(
        self,
        table: Table,
        staged: Sequence[StagedFile],
        level: ConsistencyLevel,
        located: batches.Located | None = None,
        *,
        already: bool = False,
        opened: Mapping[VolumeId, ReplicaSnapshot] | None = None,
        write_id: str | None = None,
        put: PutIntent | None = None,
        deletes: bool = False,
        known: Known | None = None,
        computed: Computed | None = None,
    ) -> Written:
        """The second phase: commit staged files until the level is reached. Raises ConsistencyNotReached, Rejected.

        `opened`: replicas as they were before, for warnings. `write_id`: of the batch; `put`: the intent of an earlier
        try that is finished here. `deletes`: the files have nothing but keys to delete. `known`: checks of the
        table that their rows are known to satisfy, of others they are judged anew; None: they count already, whatever
        they are. `computed`: what is generated in them, as far as is known; None: nobody asks. Else StagedBefore is
        raised where they lack what the table generates.
        """
        planning, cluster = self._planning, self._cluster
        settings = cluster.configuration.pipeline
        batch = WriteBatch(
            table, self._app_id, self._versions, staged, level, planning.datacenter, time.time(), deletes=deletes
        )
        if located is not None:
            batch = msgspec.structs.replace(batch, pieces=located.pieces, lineage=located.lineage)
        recording = Recording(cluster, table, staged, level, self._name, self._app_id, write_id, put, already)
        phase = CommitPhase(
            cluster.storage,
            batch,
            planning.metadata,
            planning.catch_up,
            settings.attempts,
            cluster.ledger,
            cluster.receipts,
            planning.stretches,
            recording.before_round,
            StagedChecks(cluster.storage, table.table_id, staged, None if deletes else known),
            StagedGenerated(cluster.storage, table.table_id, staged, None if deletes else computed),
            recording.beside_landing if recording.has_work_beside(planning.metadata) else None,
        )
        self._versions += 1 + ROUNDS * settings.attempts + LATE_ROUNDS
        try:
            landed = phase.land()
            recording.landed(planning.metadata, landed.epoch)
        except Exception as error:
            if isinstance(error, StagedBefore) and self._tried is not None and recording.staged_again():
                self._tried.append(recording)
            else:
                recording.failed()
            raise
        placements = planning.metadata.placements(table.table_id)
        warning = crowded(table.full_name, placements, staged, opened.values()) if opened else None
        return Written(
            table=table.full_name,
            rows=sum(item.file.rows for item in staged),
            files=len(staged),
            bytes=sum(item.file.size for item in staged),
            tablets=len(ranges_of(placements, [item.file.extent for item in staged if item.file.rows])),
            epoch=landed.epoch,
            rounds=landed.rounds,
            already=already,
            missing={planning.metadata.describe(volume): reason for volume, reason in landed.missing.items()},
            warnings=() if warning is None else (warning,),
        )

    def locate(
        self,
        table: Table,
        decision: batches.BatchContents,
        opened: Mapping[VolumeId, ReplicaSnapshot],
        failed: Mapping[VolumeId, str],
    ) -> batches.Located:
        """Where the rows of a batch are now."""
        return batches.locate(
            self._cluster.storage, self._planning.metadata, table, decision.files, opened, failed, self._cluster.ledger
        )

    def is_reached(
        self,
        table: Table,
        level: ConsistencyLevel,
        located: batches.Located,
        opened: Mapping[VolumeId, ReplicaSnapshot],
    ) -> bool:
        """Whether the files are live on so many replicas already that the level is reached."""
        files = [staged.file for staged in located.files]
        return is_acknowledged(self._planning, table, level, files, batches.Live(opened, located.lineage))

    def _require_same_rows(
        self, rows: Rows, table: Table, name: str, decision: batches.BatchContents, deleted: bool
    ) -> tuple[DigestedColumn, ...]:
        """Rejected (batch-used) when a batch comes again with other rows than it was decided with; what it is digested
        by.
        """

        def is_same(columns: tuple[DigestedColumn, ...]) -> bool:
            return before.may_be(rows.counted(self._digest(table, columns, deleted)))

        before, now = decision.rows, digested_columns(table)
        if decision.columns is not None:
            given = rows.counted(self._digest(table, decision.columns, deleted))
            batches.require_same(table, name, before, given, decision.columns)
            return decision.columns
        if is_same(now):
            return now
        # A decision of an earlier version does not say its columns: they are some that the table has had.
        earlier = columns_of_before(self._cluster.log(), table) if table.alterations is not msgspec.UNSET else []
        found = next((columns for columns in earlier if columns != now and is_same(columns)), None)
        if found is None:
            batches.require_same(table, name, before, rows.counted(self._digest(table, now, deleted)))
        return found or now

    def _digest(self, table: Table, columns: tuple[DigestedColumn, ...], deleted: bool) -> RowDigest:
        known = self._planning.metadata.schema.tables.get(table.table_id, table)
        if any(one.number > known.last_column_id for one in columns):
            known = self._planning.catch_up(0).schema.tables.get(table.table_id, known)
        return RowDigest(columns, table, known, deleted)

    def require_answers(self, table: Table, level: ConsistencyLevel, located: batches.Located) -> None:
        """Staging lost parts of a batch again is only safe when nobody can have them. Raises ConsistencyNotReached."""
        if located.unanswered:
            metadata = self._planning.metadata
            raise ConsistencyNotReached(
                f"writing the batch to {table.full_name} again, of which they may hold a part that nobody else has,",
                level,
                metadata.epoch,
                named(metadata, table, ranges_of(metadata.placements(table.table_id), located.lost)),
                {metadata.describe(volume): reason for volume, reason in located.unanswered.items()},
            )

    def _stage(
        self,
        rows: Rows,
        table: Table,
        level: ConsistencyLevel,
        opened: Mapping[VolumeId, ReplicaSnapshot],
        deleted: bool,
        within: Collection[Interval] = (),
        *,
        columns: tuple[DigestedColumn, ...] | None = None,
        announces: bool = False,
    ) -> list[StagedFile]:
        """Stage rows at a time later than every write that was acknowledged before this one began.

        No file's window is partly in one of `within`, so that these windows can be staged again by themselves. A write
        that was acknowledged is on a quorum, so its time is among those of the `opened` replicas if these are enough
        for the level. Where they are not, they are opened again: staging took time, they may be back.

        `columns`: what rows of a named batch are digested by.
        `announces`: nothing decides later on whether these files land, so that the write may be put among those that
        may land while the disks sync them.
        """
        planning = self._planning
        announced = level if announces else None
        digest = None if columns is None else self._digest(table, columns, deleted)
        written_at, staged = self._stage_now(rows, table, opened, deleted, within, digest, announced)
        windows = {item.file.window for item in staged}
        if table.append_only or not planning.too_few(table, level, windows, opened):
            return staged
        for attempt in range(self._cluster.configuration.pipeline.attempts):
            time.sleep(RETRY_SECONDS * attempt)
            opened, failed = planning.open_for_write(table)
            short = planning.too_few(table, level, windows, opened)
            if not short:
                newest = max((snapshot.newest_written_at for snapshot in opened.values()), default=0)
                return (
                    staged
                    if newest < written_at
                    else self._stage_now(rows, table, opened, deleted, within, digest, announced)[1]
                )
        raise ConsistencyNotReached(
            f"the write to {table.full_name}",
            level,
            planning.epoch,
            named(planning.metadata, table, short),
            {planning.metadata.describe(volume): reason for volume, reason in failed.items()},
        )

    def _stage_now(
        self,
        rows: Rows,
        table: Table,
        opened: Mapping[VolumeId, ReplicaSnapshot],
        deleted: bool,
        within: Collection[Interval],
        digest: RowDigest | None,
        announced: ConsistencyLevel | None,
    ) -> tuple[int, list[StagedFile]]:
        planning = self._planning
        settings = self._cluster.configuration.pipeline
        now = planning.metadata.schema.tables.get(table.table_id, table)
        self._judged = known_checks(now)
        self._computed = Computed(generated_numbers(table, now))
        kept_at = self._kept_at(table)
        plan = StagingPlan(
            table=table,
            routing=refined(planning.routing(table), within),
            written_at=self._clock.next(opened.values()),
            deleted=deleted,
            target_file_bytes=settings.target_file_bytes,
            storage=self._cluster.storage,
            shared_file_bytes=settings.shared_file_bytes,
            checks=row_checks(now),
            generation=row_generation(now),
            kept_at=kept_at,
        )
        announce = partial(self._announce, table, announced) if kept_at and announced is not None else None
        return plan.written_at, rows.stage(plan, digest=digest, announce=announce)

    def _announce(self, table: Table, level: ConsistencyLevel, staged: Sequence[StagedFile]) -> None:
        """Put a write among those that may land while it is staged. Raises StorageUnavailable."""
        self._forget_ahead()
        stream = self._planning.metadata.change_streams.by_table[table.table_id]
        index = self._cluster.change_indexes.of(stream)
        # Known here before it is put, so that it is taken away should that fail.
        self._ahead = PutIntent(index, new_intent(None, staged, level.value, self._name, self._app_id))
        intents = Intents(self._cluster.storage, index)
        self._ahead = intents.announce(self._ahead.intent, self._planning.metadata.epoch)

    def _forget_ahead(self) -> None:
        """Take away what was put of a write that is staged anew, or not landed."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            forget_ahead(self._cluster.storage, ahead)

    def _kept_at(self, table: Table) -> str:
        """Where the files of a write have to be kept for readers of its table's changes; empty: nowhere.

        They get a later time than all rows from before the stream.
        """
        stream = self._planning.metadata.change_streams.get(table.table_id)
        if stream is None:
            return ""
        index = self._cluster.change_indexes.of(stream)
        begun = index.begun()
        if begun is not None:
            self._clock.see_time(begun.newest)
        return index.data_directory
