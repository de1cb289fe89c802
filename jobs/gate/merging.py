"""Merges: what is written follows from what was read, and nobody merges in between (docs/decisions/073-merge.md).

Merges and overwrites of a table come one after another, in the order of its journal (merge_journal.py). A lease saves
those who wait from working in vain; what decides is the journal, whatever became of the lease.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

import msgspec
from epochlake.jobs.gate import batches
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.errors import MergeContended, MergeUnfinished
from epochlake.jobs.gate.gate import Gate, require_name
from epochlake.jobs.gate.merge_finishing import MergeFinishing
from epochlake.jobs.gate.merge_journal import Intent, MergeCounts, MergeEntry, MergeJournal
from epochlake.jobs.gate.row_digests import DigestedColumn
from epochlake.jobs.gate.rows import Rows
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.replicas.change_index import TooEarly
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.sealing import require_intact
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.errors import CoordinationUnavailable, Rejected, StorageUnavailable
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.showing import Shown

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""So long a merge waits for the lease; then it goes on without. What has it may be stopped, or take long."""

TRIES = 10
"""So often a merge is planned before it gives up."""

LEVELS = (ConsistencyLevel.QUORUM, ConsistencyLevel.EACH_QUORUM, ConsistencyLevel.ALL)
"""Levels whose reads see what merges at any of them have written."""


class Merged(Shown, msgspec.Struct, frozen=True):
    """What a merge did, in rows.

    `planned`: how often it was planned; `epoch`: at which its acknowledgements were judged. `already`: a merge of this
    name had been finished before, and has done this then. `missing`: what each replica said that has not acknowledged
    although it should have; the level was reached without.
    """

    table: str
    inserted: int
    updated: int
    deleted: int
    epoch: int
    planned: int
    already: bool
    missing: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """How many rows have changed."""
        return self.inserted + self.updated + self.deleted


class Planned(Protocol):
    """What a merge makes of what it has read."""

    @property
    def rows(self) -> Rows:
        """A batch of changes."""
        ...

    @property
    def counts(self) -> MergeCounts: ...

    def still_holds(self) -> bool:
        """Whether what was read is as it was, as far as can be seen now."""
        ...


Planner = Callable[[Gate, Table, ConsistencyLevel], Planned]
"""Reads, and says what to change."""


class Source(Protocol):
    """What a merge is given, and is known by when its batch is tried again."""

    @property
    def columns(self) -> tuple[DigestedColumn, ...] | None:
        """What it is digested by when it is merged first; None: columns of its own."""
        ...

    def counted(self, columns: tuple[DigestedColumn, ...] | None) -> Count:
        """How many rows, and the sum of their digests, by these columns; None: as earlier versions have done it."""
        ...


class Fixed(NamedTuple):
    """A source that is known by the same whatever becomes of the table."""

    known_by: Count
    columns: None = None

    def counted(self, columns: tuple[DigestedColumn, ...] | None) -> Count:
        """What it is known by."""
        return self.known_by


class _Call(NamedTuple):
    """What is asked of a merge. `batch`: its name for people; `name`: what it is in the journal, empty without one.
    `asked`: a digest of what is done with the rows.
    """

    plan: Planner
    source: Count
    columns: tuple[DigestedColumn, ...] | None
    level: ConsistencyLevel
    name: str
    batch: str | None
    operation: str
    asked: str


class Merging:
    """Merges into one table through a gate."""

    def __init__(self, gate: Gate, table: Table) -> None:
        self._gate = gate
        self._table = table
        self._cluster = gate.cluster
        self._journal = MergeJournal(self._cluster.storage, self._cluster.root.merges, table.table_id)
        self._finishing = MergeFinishing(gate.planning, gate.writing, self._journal)

    def run(
        self,
        operation: Literal["merge", "overwrite"],
        plan: Planner,
        source: Source,
        consistency: str | None = None,
        batch: str | None = None,
        asked: str = "",
    ) -> Merged:
        """Plan, and make it count once; under a `batch`, once for all calls with this name and the same `source`.

        `asked`: what is done with the rows, as a text: a batch that counts is refused with another one.

        Raises InvalidRequest, Rejected (batch-used), ConsistencyNotReached for what cannot be read, MergeContended, and
        MergeUnfinished where it counts and its rows are not at their level yet.
        """
        self._gate.require_open()
        require_name(batch)
        level = self._level(consistency)
        name = "" if batch is None else batches.batch_id(self._table.table_id, operation, batch)
        digest = hashlib.sha256(asked.encode()).hexdigest()
        call = _Call(plan, source.counted(source.columns), source.columns, level, name, batch, operation, digest)
        with self._lease():
            for number in range(1, TRIES + 1):
                intents = self._journal.intents(name) if name else []
                already = bool(intents) and self._journal.is_finished(intents[-1].number)
                tail = self._finishing.finish_tail(self._table, level)
                if intents:
                    columns = None if intents[-1].columns is msgspec.UNSET else intents[-1].columns
                    given = call.source if columns == call.columns else source.counted(columns)
                    batches.require_same(self._table, batch or "", intents[-1].source, given)
                    entry = self._journal.entry(intents[-1].number)
                    if entry is not None and entry.attempt == intents[-1].attempt:
                        self._require_asked_before(call, intents[-1])
                        return self._merged(entry, number, already=already)
                    if entry is None:
                        self._finishing.take_for_nothing(self._table, tail + 1)
                        continue
                merged = self._attempt(call, tail, len(intents), number)
                if merged is not None:
                    return merged
        raise MergeContended(self._table.full_name, TRIES)

    def _require_asked_before(self, call: _Call, counts: Intent) -> None:
        """Rejected (batch-used) where the batch that counts has done something else with the same rows."""
        if counts.asked is msgspec.UNSET or counts.asked == call.asked:
            return
        other = "other clauses" if call.operation == "merge" else "another part of the table"
        raise Rejected(
            Code.BATCH_USED,
            f"batch {call.batch!r} of {self._table.full_name} was done with {other}, and counts: a batch that is tried "
            "again is the same",
            hint="Give what it had, or give this one another name",
        )

    def _attempt(self, call: _Call, tail: int, before: int, number: int) -> Merged | None:
        """Merge as the entry after `tail`, which is finished; None where somebody else has come in between.

        `before`: how many intents the name had. `number`: of the try.
        """
        planning, writing, journal = self._gate.planning, self._gate.writing, self._journal
        planned = call.plan(self._gate, self._table, call.level)
        opened, _ = planning.open_for_write(self._table)
        staged = writing.stage(planned.rows, self._table, call.level, opened)
        attempt = str(uuid.uuid4())
        entry = MergeEntry(attempt, self._table.full_name, tuple(staged), planned.counts, call.source, call.name)
        counts = False
        try:
            if not self._keep(tail + 1, attempt, staged):
                return None
            if not planned.still_holds():
                return None
            if staged and not writing.knows_rules_of(self._table):
                return None  # who has made a rule since may not come to letting merges end
            columns = msgspec.UNSET if call.columns is None else call.columns
            intent = Intent(tail + 1, attempt, call.source, columns, call.asked)
            if call.name and not journal.intend(call.name, before, intent):
                return None
            counts = True  # or may: where it cannot be told, the copies stay
            counts = journal.put(tail + 1, entry)
            if not counts:
                return None
        finally:
            if not counts:
                journal.forget(tail + 1, attempt)
        try:
            written = self._land_staged(tail + 1, entry, call.level, opened) if staged else None
            journal.finish(tail + 1)
        except EpochlakeError as error:
            # Whatever it is: nobody is told that it has failed, and plans it again.
            raise MergeUnfinished(self._table.full_name, call.batch, str(error)) from error
        return self._merged(entry, number, already=False, written=written)

    def _land_staged(
        self, number: int, entry: MergeEntry, level: ConsistencyLevel, opened: Mapping[VolumeId, ReplicaSnapshot]
    ) -> Written | None:
        """Land what was staged just now for an entry that counts; None where it landed in another way."""
        try:
            return self._gate.writing.land(self._table, entry.files, level, opened=opened, write_id=entry.attempt)
        except TooEarly:
            # It had been finished before the stream of the table's changes began: that lets merges pass.
            return None
        except Rejected as altered:
            cause = altered
        for _ in range(TRIES):
            # It counts, so that nobody may plan it again: what is left of its columns lands.
            now = self._gate.planning.metadata.schema.tables.get(self._table.table_id)
            if now is None:
                raise cause
            if now.version == self._table.version:
                break
            self._table = now
            try:
                self._finishing.land(now, number, entry, level)
            except Rejected as altered:
                cause = altered
            else:
                return None
        raise StorageUnavailable(str(cause)) from cause

    def _merged(self, entry: MergeEntry, planned: int, *, already: bool, written: Written | None = None) -> Merged:
        return Merged(
            table=self._table.full_name,
            inserted=entry.counts.inserted,
            updated=entry.counts.updated,
            deleted=entry.counts.deleted,
            epoch=self._gate.epoch if written is None else written.epoch,
            planned=planned,
            already=already,
            missing={} if written is None else written.missing,
        )

    def _keep(self, number: int, attempt: str, staged: Sequence[StagedFile]) -> bool:
        """Keep a copy of each staged file at the root; False where the number is taken. Raises StorageUnavailable."""
        sources = [(one.file.file_id, self._whole(one)) for one in staged]
        try:
            if sources:
                self._journal.keep(number, attempt, sources)
        except failures.MissingFile:
            # Whoever finishes an entry deletes the copies of tries that wanted its number, also while they are made.
            if self._journal.tail() < number:
                raise
            return False
        return True

    def _whole(self, staged: StagedFile) -> str:
        """Where a staged file lies with the bytes that it should have. Raises StorageUnavailable."""
        storage, metadata = self._cluster.storage, self._gate.planning.metadata
        reasons = dict(staged.failed)
        for volume in sorted(staged.stored):
            uri = places.join(address_of(storage, metadata, self._table, volume).uri, staged.file.path)
            try:
                require_intact(storage, staged.file, uri)
            except StorageUnavailable as error:
                reasons[volume] = str(error)
            else:
                return uri
        said = "; ".join(reasons.values())
        raise StorageUnavailable(f"no replica has stored {staged.file.path}: {said}", hint="Try again")

    def _level(self, consistency: str | None) -> ConsistencyLevel:
        level = self._gate.planning.level(consistency)
        if level in LEVELS:
            return level
        if consistency is None:
            return ConsistencyLevel.QUORUM
        raise InvalidRequest(
            f"a merge at {level} would not see what others have merged", hint=f"Give {', '.join(LEVELS)}, or no level"
        )

    @contextmanager
    def _lease(self) -> Iterator[None]:
        """Wait until nobody else merges, as far as ZooKeeper knows. Nothing relies on that."""
        try:
            lock = CommitLock(self._cluster.coordination(), f"merge-{self._table.table_id}")
            if not lock.acquire(PATIENCE_SECONDS):
                logger.info("%s is merged into by somebody who takes long", self._table.full_name)
        except CoordinationUnavailable as error:
            logger.info("merging without a lease: %s", error)
            yield
            return
        try:
            yield
        finally:
            lock.release()
