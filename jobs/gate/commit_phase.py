"""The second phase of a write: staged files become part of their replicas, until the consistency level is reached.

Files are staged once; what moves under a pipeline's feet is only where they belong. So each round commits, for every
range that there is *now*, what the files have in it to the range's replicas that do not have it yet. A file was staged
for one range; where that has been divided since, each replica gets the piece that is its own, cut while it is copied
there. Where ranges have been put together, what has landed still counts: rows are compared, not files (intervals.py).

A replica that is fenced at a newer epoch makes the next round start from that epoch. The last word is a look at the
newest metadata after the last commit: only acknowledgements that satisfy *that* placement count (seed 002, "Read/Write
Path Integration"), and only those of replicas that cannot have given the range up in between. Those of some time ago
count where their replica still has the rows: it may have come back as it was before
(docs/decisions/145-what-has-gone-since.md).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec
from epochlake.jobs.gate.errors import ConsistencyNotReached, StagedBefore
from epochlake.jobs.gate.routing import named
from epochlake.jobs.gate.staged_checks import StagedChecks
from epochlake.jobs.gate.staged_generated import StagedGenerated
from epochlake.jobs.gate.stretches import Shared, Stay, Stretches
from epochlake.jobs.replicas.commits import commit_files, lacking
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, FilePart, Lineage, meet, missing
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, FencedOff, Unreachable
from epochlake.jobs.replicas.receipts import Known, Receipt, Receipts
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.stored import is_stored
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Column, DroppedColumn, DroppedField, Table, VolumeId
from epochlake.metastore.metadata.placements import Since, TablePlacements, highs, ranges_within
from epochlake.metastore.metadata.struct_fields import places, tree_of
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import ConsistencyLevel, is_satisfied
from epochlake.placement.rejections import Code
from epochlake.placement.ring.state import OperationKind
from epochlake.placement.tokens import Interval

logger = logging.getLogger(__name__)

THREADS = 16
RETRY_SECONDS = 0.2
LATE_ROUNDS = 2
"""Rounds that are made although the level is reached, for replicas that only asked for a newer epoch: else repair would
have to bring them what they lack."""

SURE_SECONDS = 3.0
"""For so long an acknowledgement stands as it is: in less no place comes back as it was, is repaired, and counts."""

ROUNDS = 10
"""For each attempt that is allowed to fail so many rounds are made at most: placement could move for ever."""


class WriteBatch(msgspec.Struct, frozen=True):
    """What is to land: the files of one write.

    `pieces`: what replicas are known to have of these files besides, and `lineage` what merged files among them stand
    for. `app_id` and `first_version` mark the commits:
    round n has version `first_version + n`. `staged_at`: when the bytes were last known to be where `files` says,
    seconds since 1970. `deletes`: nothing but keys to delete.
    """

    table: Table
    app_id: str
    first_version: int
    files: Sequence[StagedFile]
    level: ConsistencyLevel
    local: str | None
    staged_at: float
    pieces: Sequence[StagedFile] = ()
    lineage: Lineage = NO_LINEAGE
    deletes: bool = False


class Landed(msgspec.Struct, frozen=True):
    """How a batch landed. `acknowledged`: file ids by volume; `missing`: what the volumes said that did not."""

    epoch: int
    rounds: int
    acknowledged: dict[VolumeId, frozenset[str]]
    missing: dict[VolumeId, str]


class Moment(msgspec.Struct, frozen=True):
    """A moment by two clocks: one that nobody sets, and one that goes on while the machine is suspended."""

    steady: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.monotonic(), time.time())

    def seconds_until(self, later: Moment) -> float:
        return max(later.steady - self.steady, later.wall - self.wall)


class Acknowledgement(msgspec.Struct, frozen=True):
    """A replica has `file`, with rows of the batch's file `of`, for ranges that were where they were by their `stays`.

    `epoch`: the one that it was committed at; `since`: a moment before that.
    """

    file: DataFile
    of: DataFile
    stays: tuple[Stay, ...]
    epoch: int
    since: Moment

    def sinces(self, low: int, high: int) -> list[Since]:
        """Those of the ranges with tokens from `low` to `high`; of all, where the file reaches beyond them."""
        return [stay.since for stay in self.stays if meet(stay.window, (low, high))] or [
            stay.since for stay in self.stays
        ]


class Due(msgspec.Struct, frozen=True):
    """What a replica of neighbouring ranges does not have of a file: its rows in `window`."""

    file: DataFile
    window: Interval
    stays: tuple[Stay, ...]


class CommitPhase:
    """Lands one batch. `catch_up(epoch)` gives metadata at or above an epoch (0: the tail).

    `before_round` is told of the metadata of each round before it commits anything; what it raises ends the landing.
    `beside_first` runs side by side with the commits of the first one; it must not raise.
    """

    def __init__(
        self,
        storage: Storage,
        batch: WriteBatch,
        metadata: ClusterMetadata,
        catch_up: Callable[[int], ClusterMetadata],
        attempts: int,
        ledger: Ledger | None = None,
        receipts: Receipts | None = None,
        stretches: Stretches | None = None,
        before_round: Callable[[ClusterMetadata], None] = lambda _: None,
        checks: StagedChecks | None = None,
        generated: StagedGenerated | None = None,
        beside_first: Callable[[ClusterMetadata], None] | None = None,
    ) -> None:
        self._before_round = before_round
        self._beside_first = beside_first
        self._checks = checks
        self._generated = generated
        self._storage = storage
        self._batch = batch
        self._metadata = metadata
        self._catch_up = catch_up
        self._attempts = attempts
        self._ledger = ledger
        self._receipts = receipts
        self._stretches = stretches or Stretches()
        self._known_receipts: Known = {}
        self._files = [staged.file for staged in batch.files]
        self._stored = {staged.file: set(staged.stored) for staged in (*batch.files, *batch.pieces)}
        # A piece may have been cut on several replicas, each by itself: a replica's own is the one that counts there.
        self._there = {(volume, file.file_id): file for file, volumes in self._stored.items() for volume in volumes}
        self._sources: dict[str, list[DataFile]] = defaultdict(list)
        for file in self._stored:
            for origin in {file.origin, *(older for older, _, _ in batch.lineage.get(file.origin, ()))}:
                self._sources[origin].append(file)
        # By volume, then by the file of the batch: what it has of that one.
        self._acknowledged: dict[VolumeId, dict[DataFile, dict[str, Acknowledgement]]] = {}
        self._missing: dict[VolumeId, str] = {}
        self._set_back: set[VolumeId] = set()
        """Those that did not have any more what they had acknowledged."""
        self._staged_epoch = metadata.epoch

    def land(self) -> Landed:
        """Commit until the level is reached at the newest epoch. Raises ConsistencyNotReached after bounded tries."""
        failures = 0
        rounds = 0
        late = 0
        self._require_nothing_lost(self._metadata)
        self._unsatisfied(self._metadata)  # a level that means nothing for this table is refused before any commit
        while True:
            rounds += 1
            planned = self._metadata
            self._before_round(planned)
            fence = self._round(rounds)
            is_set_back = self._forget_what_is_gone()
            newest = self._catch_up(fence)
            self._require_table(newest)
            self._forget_what_may_be_gone(newest)
            unsatisfied = self._unsatisfied(newest)
            if (
                not unsatisfied
                and not self._is_overtaken(newest)
                and (fence <= planned.fence or late == LATE_ROUNDS or self._is_of_before(newest))
            ):
                # What has landed at its level before a column was dropped, or a check added, is a write from before.
                return self._landed(newest.epoch, rounds)
            self._require_nothing_lost(newest)
            self._metadata = newest
            if not unsatisfied:
                late += 1
                continue
            # Who went back is asked once more before that counts as a failure.
            failures += 1 if fence <= planned.fence and newest.epoch == planned.epoch and not is_set_back else 0
            if failures >= self._attempts or rounds - late >= ROUNDS * self._attempts:
                raise ConsistencyNotReached(
                    f"the write to {self._batch.table.full_name}",
                    self._batch.level,
                    newest.epoch,
                    named(newest, self._batch.table, unsatisfied),
                    {newest.describe(v): why for v, why in (self._missing | self._lost(newest, unsatisfied)).items()},
                )
            logger.info("round %d: %d ranges are not at %s yet", rounds, len(unsatisfied), self._batch.level)
            if newest.epoch == planned.epoch:
                time.sleep(RETRY_SECONDS * failures)

    def _lost(self, metadata: ClusterMetadata, ranges: Iterable[int]) -> dict[VolumeId, str]:
        """The write replicas of some ranges that are declared lost, and why they do not count."""
        placements, directory = self._placements(metadata), metadata.directory
        written = {volume for index in ranges for volume in placements.placement(index).writes}
        return {volume: directory.why_lost(volume) for volume in written & directory.lost}

    def _landed(self, epoch: int, rounds: int) -> Landed:
        return Landed(
            epoch,
            rounds,
            {
                volume: frozenset(file_id for known in by_file.values() for file_id in known)
                for volume, by_file in self._acknowledged.items()
            },
            dict(self._missing),
        )

    def _round(self, number: int) -> int:
        """Commit to every replica what it should have and does not; the highest fence met above the plan's epoch."""
        due: dict[VolumeId, list[Due]] = {}
        for share in self._shared(self._metadata):
            stays = tuple(
                Stay(stay.window, self._since(self._metadata, stay.since))
                for stay in share.stretch.stays
                if meet(stay.window, share.window)
            )
            for volume in share.stretch.placement.writes:
                if not self._has(volume, share.file, share.window):
                    due.setdefault(volume, []).append(Due(share.file, share.window, stays))
        fence = 0
        self._known_receipts = {} if self._receipts is None else self._receipts.of(self._batch.table.table_id)
        beside = self._beside_first if number == 1 else None

        def commit(volume: VolumeId | None) -> list[Acknowledgement] | FencedOff | Unreachable:
            if volume is not None:
                return self._commit(volume, due[volume], number)
            assert beside is not None
            beside(self._metadata)
            return []

        outcomes = ThreadWorkers(THREADS).run(commit, [*due, *([] if beside is None else [None])])
        for volume, outcome in zip(due, outcomes[: len(due)], strict=True):
            self._missing.pop(volume, None)
            match outcome:
                case list():
                    by_file = self._acknowledged.setdefault(volume, {})
                    for one in outcome:
                        by_file.setdefault(one.of, {})[one.file.file_id] = one
                case FencedOff(fence=ahead):
                    fence = max(fence, ahead)
                    self._missing[volume] = f"it has acknowledged epoch {ahead}, and this was planned before"
                case Unreachable(reason=reason):
                    self._missing[volume] = reason
        return fence

    def _commit(
        self, volume: VolumeId, due: Sequence[Due], number: int
    ) -> list[Acknowledgement] | FencedOff | Unreachable:
        target, since = address_of(self._storage, self._metadata, self._batch.table, volume), Moment.now()
        try:
            brought = [
                Acknowledgement(file, one.file, one.stays, self._metadata.epoch, since)
                for one in due
                for file in self._bring(one, target)
            ]
        except (StorageUnavailable, WrongCluster) as unavailable:
            return Unreachable(str(unavailable))
        receipt = Receipt(volume, self._batch.first_version + number, self._batch.app_id)
        known = self._known_receipts.get(volume, ())
        outcome = commit_files(
            target,
            [one.file for one in brought],
            epoch=self._metadata.fence,
            app_id=receipt.app_id,
            app_version=receipt.app_version,
            ledger=self._ledger,
            receipts=known,
            leaves_mark=self._receipts is not None,
        )
        match outcome:
            case Acknowledged():
                return self._receipted(receipt, known) or brought
            case AlreadyApplied(absent=absent):
                there = [one for one in brought if one.file.file_id not in absent]
                return self._receipted(receipt, known) or there
            case Unreachable(on_another=True):
                return self._doubted(receipt, outcome)
            case FencedOff() | Unreachable():
                return outcome
            case other:
                return Unreachable(f"answered {other}")

    def _receipted(self, receipt: Receipt, known: Collection[Receipt]) -> Unreachable | None:
        """Leave a receipt before an acknowledgement is counted; Unreachable when the root does not take it."""
        if self._receipts is not None:
            try:
                self._receipts.add(self._batch.table.table_id, receipt, instead_of=known)
            except StorageUnavailable as unavailable:
                return Unreachable(str(unavailable))
        return None

    def _doubted(self, receipt: Receipt, outcome: Unreachable) -> Unreachable:
        """Have the copy that a commit has landed on not be taken for the one that it was meant for."""
        if self._receipts is not None:
            try:
                self._receipts.doubt(self._batch.table.table_id, receipt)
            except StorageUnavailable as unavailable:
                logger.warning("%s, and that could not be kept: %s", outcome.reason, unavailable)
        return outcome

    def _bring(self, due: Due, target: ReplicaAddress) -> list[DataFile]:
        """The files that `target` is to commit for what it misses; their bytes are there. Raises StorageUnavailable."""
        lineage = self._batch.lineage
        if self._stored[due.file] and not lineage:
            return [self._bring_part(FilePart(due.file, *due.window), target)]
        sources = [file for file in self._sources[due.file.origin] if self._stored[file]]
        brought = [self._bring_part(part, target) for part in missing(sources, (), *due.window, lineage)]
        if missing((due.file,), brought, *due.window, lineage):
            raise StorageUnavailable(f"no replica has stored file {due.file.file_id}")
        return brought

    def _bring_part(self, part: FilePart, target: ReplicaAddress) -> DataFile:
        """A file of the part's rows on `target`: the part's own where it is whole, else a piece that is cut for it."""
        holders = self._stored[part.file]
        there = self._there.get((target.volume_id, part.file.file_id))
        if part.whole and there is not None:
            # Since it was staged its disk may have been lost, and be rebuilt by now.
            is_sure = self._metadata.epoch == self._staged_epoch and target.volume_id not in self._set_back
            if is_sure or is_stored(there, target):
                return there
            holders.discard(target.volume_id)
        failure: StorageUnavailable | WrongCluster | None = None
        for source in sorted(holders, key=lambda volume: (volume != target.volume_id, volume)):
            try:
                file = copy_data_file(
                    PartCopy(part, address_of(self._storage, self._metadata, self._batch.table, source), target)
                )
            except (StorageUnavailable, WrongCluster) as unavailable:
                failure = unavailable
                continue
            if part.whole:
                holders.add(target.volume_id)
                self._there[target.volume_id, file.file_id] = file
            return file
        raise failure or StorageUnavailable(f"no replica has stored file {part.file.file_id} any more")

    def _since(self, metadata: ClusterMetadata, since: Since) -> Since:
        """Since when ranges are where they are; never before their keyspace had the replication that it has."""
        # By its id: the batch may have been planned when the keyspace had another name.
        table = metadata.schema.tables[self._batch.table.table_id]
        keyspace = metadata.schema.keyspaces[table.keyspace]
        return msgspec.structs.replace(since, placed_epoch=max(since.placed_epoch, keyspace.epoch))

    def _shared(self, metadata: ClusterMetadata) -> Iterator[Shared]:
        return self._stretches.shared(metadata, self._batch.table.table_id, self._files)

    def _placements(self, metadata: ClusterMetadata) -> TablePlacements:
        return metadata.placements(self._batch.table.table_id)

    def _has(self, volume: VolumeId, file: DataFile, window: Interval) -> bool:
        """Whether a replica has acknowledged every row that a file has in `window`."""
        known = self._acknowledged.get(volume, {}).get(file, {})
        if not known or file.file_id in known:
            return bool(known)
        return not missing((file,), (one.file for one in known.values()), *window, self._batch.lineage)

    def _forget_what_is_gone(self) -> bool:
        """Forget acknowledgements of some time ago whose rows their replicas do not have any more; whether any.

        A place that came back as it was lacks them, and counts again when it has all that the others have: as long as
        this write goes on, that need not be among it. So is what an operator has given up. Who does not answer now is
        taken at its word.
        """
        now = Moment.now()
        old = {
            volume: files
            for volume, by_file in self._acknowledged.items()
            if volume in self._metadata.directory.volumes
            and (
                files := [
                    one.file
                    for known in by_file.values()
                    for one in known.values()
                    if one.since.seconds_until(now) > SURE_SECONDS
                ]
            )
        }

        def look(volume: VolumeId) -> set[str]:
            address = address_of(self._storage, self._metadata, self._batch.table, volume)
            try:
                return {file.file_id for file in lacking(address, old[volume], self._ledger)}
            except (StorageUnavailable, WrongCluster):
                return set()

        lost = ThreadWorkers(THREADS).run(look, list(old))
        for volume, gone in zip(old, lost, strict=True):
            if gone:
                logger.warning("%s does not have any more what it has acknowledged", self._metadata.describe(volume))
                self._missing[volume] = "it does not have any more what it had acknowledged: it is asked again"
                self._set_back.add(volume)
            for known in self._acknowledged[volume].values():
                for file_id in gone & known.keys():
                    del known[file_id]
        return any(lost)

    def _forget_what_may_be_gone(self, newest: ClusterMetadata) -> None:
        """Forget acknowledgements of replicas that may have dropped the rows since, and got the range again without.

        A replica drops a range when it stops being one of its replicas: at the end of the way there or of the way back.
        So an acknowledgement stands within one change, and for a replica that has been named all the time; but one that
        is being rebuilt has lost what it said before. What is forgotten is only asked for again: a replica that still
        has the rows says so.
        """
        placements = self._placements(newest)
        lows, ends = placements.lows, highs(placements.lows)
        lost_before = _rebuilt_from(newest)
        for volume, by_file in self._acknowledged.items():
            for known in by_file.values():
                for file_id, one in list(known.items()):
                    if one.epoch <= lost_before.get(volume, -1):
                        del known[file_id]
                        continue
                    if one.epoch == newest.epoch:
                        continue  # every range is where it was
                    ranges = ranges_within(lows, *(one.file.extent if one.file.rows else one.file.window))
                    if not all(
                        _stands(volume, then, self._since(newest, placements.since(index)))
                        for index in ranges
                        for then in one.sinces(int(lows[index]), int(ends[index]))
                    ):
                        del known[file_id]

    def _unsatisfied(self, metadata: ClusterMetadata) -> list[int]:
        """Ranges whose acknowledgements do not reach the level in the placement of `metadata`.

        Storage that is declared lost by then acknowledges nothing, whenever it has: what is on it alone is lost.
        """
        lost = metadata.directory.lost
        short: set[int] = set()
        for one in self._shared(metadata):
            placement = one.stretch.placement
            have = {
                volume for volume in placement.writes if volume not in lost and self._has(volume, one.file, one.window)
            }
            level, local = self._batch.level, self._batch.local
            if not is_satisfied(level, placement.write_sets, have, metadata.directory.datacenter_of, local):
                short.update(one.ranges)
        return sorted(short)

    def _lost_columns(self, metadata: ClusterMetadata) -> list[DroppedColumn | DroppedField]:
        """The columns, and the fields in them, that were dropped since the files were made for their version of the
        table.

        Whatever else became of columns, files of an older version are read as the table is now (file_columns.py).
        """
        now, then = metadata.schema.tables[self._batch.table.table_id], self._batch.table
        if now.version == then.version or self._batch.deletes:
            return []
        # What is generated follows from the others.
        written = {column.column_id: column for column in then.numbered if column.generated is msgspec.UNSET}
        lost: list[DroppedColumn | DroppedField] = [one for one in now.dropped if one.column_id in written]
        for field in now.dropped_fields:
            column = written.get(field.column_id)
            if column is not None and any(one.stored_path == field.stored_path for one in places(tree_of(column))):
                lost.append(field)
        return lost

    def _is_of_before(self, metadata: ClusterMetadata) -> bool:
        """Whether the files cannot land in the table as it is now."""
        checked = self._checks is None or self._checks.hold(metadata)
        return bool(self._lost_columns(metadata)) or not checked or bool(self._not_computed(metadata))

    def _not_computed(self, metadata: ClusterMetadata) -> list[Column]:
        """The generated columns of now that the files lack."""
        return [] if self._generated is None else self._generated.lacking(metadata)

    def _is_overtaken(self, metadata: ClusterMetadata) -> bool:
        """Whether rows that have landed lack generated columns of now, and others can be written in their place."""
        return self._generated is not None and self._generated.is_replaceable and bool(self._not_computed(metadata))

    def _require_nothing_lost(self, metadata: ClusterMetadata) -> None:
        """Raises Rejected where values of the files would be lost by a change of the table since they were made, or
        rows make a check false that it has got; StagedBefore where it generates a column since that they lack.
        """
        lost = self._lost_columns(metadata)
        if lost:
            named = ", ".join(f"{one.name} by epoch {one.epoch}" for one in lost)
            raise Rejected(
                Code.SCHEMA_CHANGED,
                f"the write to {self._batch.table.full_name} has values for columns that were dropped meanwhile: "
                f"{named}",
                hint="Write the rows again without them",
            )
        if self._checks is not None:
            self._checks.require(metadata)
        not_computed = self._not_computed(metadata)
        if not_computed:
            now = metadata.schema.tables[self._batch.table.table_id]
            raise StagedBefore(now.full_name, not_computed, now.epoch, self._batch.files)

    def _require_table(self, metadata: ClusterMetadata) -> None:
        table = self._batch.table
        if table.table_id not in metadata.schema.tables:
            raise Rejected(
                Code.UNKNOWN_TABLE,
                f"table {table.full_name} was dropped at or before epoch {metadata.epoch}, while it was being written",
                hint=metadata.restoration_hint(table.full_name),
            )


def _rebuilt_from(metadata: ClusterMetadata) -> dict[VolumeId, int]:
    """The volumes that are being rebuilt, each with the epoch at which that was begun."""
    rings = metadata.rings
    return {
        volume.volume_id: rings.running[name].started_epoch
        for name, operation in rings.operations.items()
        if operation.kind is OperationKind.REBUILD
        for volume in metadata.directory.nodes[operation.node_id].volumes
    }


def _stands(volume: VolumeId, then: Since, now: Since) -> bool:
    """Whether a volume cannot have given up a range between two epochs."""
    if then.placed_epoch != now.placed_epoch:
        return False
    return then.started_epoch == now.started_epoch or volume in then.replicas
