"""The second phase of a write: staged files become part of their replicas, until the consistency level is reached.

Files are staged once; what moves under a pipeline's feet is only where they belong. So each round commits every file
to the replicas that its tablet has *now* and that do not have it yet, copying it there first where it was not staged.
A replica that is fenced at a newer epoch makes the next round start from that epoch. The last word is a look at the
newest metadata after the last commit: only acknowledgements that satisfy *that* placement count (seed 002, "Read/Write
Path Integration"), and only those of replicas that cannot have given the tablet up in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from epochlake.jobs.dataplane.commits import commit_files
from epochlake.jobs.dataplane.copying import FileCopy, copy_data_file
from epochlake.jobs.dataplane.files import DataFile
from epochlake.jobs.dataplane.outcomes import Acknowledged, AlreadyApplied, CommitOutcome, FencedOff, Unreachable
from epochlake.jobs.dataplane.replica import ReplicaAddress
from epochlake.jobs.dataplane.staging import StagedFile
from epochlake.jobs.pipeline.errors import ConsistencyNotReached
from epochlake.jobs.pipeline.replicas import address_of, describe
from epochlake.metastore import storage
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata, Placement
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.consistency import ConsistencyLevel, is_satisfied
from epochlake.placement.tokens import parse_label

logger = logging.getLogger(__name__)

THREADS = 16
RETRY_SECONDS = 0.2
ROUNDS = 10
"""For each attempt that is allowed to fail so many rounds are made at most: placement could move for ever."""


UNUSED_FILES_KEEP_SECONDS = 120.0
"""A staged file that is older is looked for before it is committed. What cleans up leaves alone what is younger than
five minutes (vacuum.py), and what a live lease may need; a process that was paused may have lost its lease."""


class Batch(msgspec.Struct, frozen=True):
    """What is to land: the staged files of one write.

    `app_id` and `first_version` mark its commits: round n has version `first_version + n`. `staged_at`: when the bytes
    were last known to be where `files` says, seconds since 1970.
    """

    table: Table
    app_id: str
    first_version: int
    files: Sequence[StagedFile]
    level: ConsistencyLevel
    local: str | None
    staged_at: float


class Since(msgspec.Struct, frozen=True):
    """Since when a tablet is where it is: its replicas' epoch, and its transition's if there is one."""

    replicas: tuple[VolumeId, ...]
    map_epoch: int
    started_epoch: int | None


class Landed(msgspec.Struct, frozen=True):
    """How a batch landed. `acknowledged`: file ids by volume; `missing`: what the volumes said that did not."""

    epoch: int
    rounds: int
    acknowledged: dict[VolumeId, frozenset[str]]
    missing: dict[VolumeId, str]


class Landing:
    """Lands one batch. `catch_up(epoch)` gives metadata at or above an epoch (0: the tail)."""

    def __init__(
        self, batch: Batch, metadata: ClusterMetadata, catch_up: Callable[[int], ClusterMetadata], attempts: int
    ) -> None:
        self._batch = batch
        self._metadata = metadata
        self._catch_up = catch_up
        self._attempts = attempts
        self._stored = {staged.file.file_id: set(staged.stored) for staged in batch.files}
        self._acknowledged: dict[VolumeId, dict[str, Since]] = {}
        self._missing: dict[VolumeId, str] = {}

    def land(self) -> Landed:
        """Commit until the level is reached at the newest epoch. Raises ConsistencyNotReached after bounded tries."""
        failures = 0
        rounds = 0
        self._unsatisfied(self._metadata)  # a level that means nothing for this table is refused before any commit
        while True:
            rounds += 1
            planned = self._metadata
            fence = self._round(rounds)
            newest = self._catch_up(fence)
            self._require_table(newest)
            self._forget_what_may_be_gone(newest)
            unsatisfied = self._unsatisfied(newest)
            if not unsatisfied:
                return Landed(
                    newest.epoch,
                    rounds,
                    {volume: frozenset(files) for volume, files in self._acknowledged.items()},
                    dict(self._missing),
                )
            self._metadata = newest
            failures += 1 if fence <= planned.epoch and newest.epoch == planned.epoch else 0
            if failures >= self._attempts or rounds >= ROUNDS * self._attempts:
                raise ConsistencyNotReached(
                    f"the write to {self._batch.table.full_name}",
                    self._batch.level,
                    newest.epoch,
                    unsatisfied,
                    {describe(newest, volume): reason for volume, reason in self._missing.items()},
                )
            logger.info("round %d: %d tablets are not at %s yet", rounds, len(unsatisfied), self._batch.level)
            if newest.epoch == planned.epoch:
                time.sleep(RETRY_SECONDS * failures)

    def _round(self, number: int) -> int:
        """Commit to every replica what it should have and does not; the highest fence met above the plan's epoch."""
        due: dict[VolumeId, list[DataFile]] = {}
        since: dict[str, Since] = {}
        for staged in self._batch.files:
            since[staged.file.label] = self._since(self._metadata, staged.file.label)
            for volume in self._placement_of(self._metadata, staged).writes:
                if staged.file.file_id not in self._acknowledged.get(volume, ()):
                    due.setdefault(volume, []).append(staged.file)
        fence = 0
        with ThreadPoolExecutor(max(1, min(THREADS, len(due)))) as pool:
            outcomes = list(pool.map(lambda volume: self._commit(volume, due[volume], number), due))
        for (volume, files), outcome in zip(due.items(), outcomes, strict=True):
            self._missing.pop(volume, None)
            match outcome:
                case Acknowledged() | AlreadyApplied():
                    absent = outcome.absent if isinstance(outcome, AlreadyApplied) else frozenset()
                    known = self._acknowledged.setdefault(volume, {})
                    known.update((file.file_id, since[file.label]) for file in files if file.file_id not in absent)
                case FencedOff(fence=ahead):
                    fence = max(fence, ahead)
                case Unreachable(reason=reason):
                    self._missing[volume] = reason
                case other:
                    self._missing[volume] = f"answered {other}"
        return fence

    def _commit(self, volume: VolumeId, files: Sequence[DataFile], number: int) -> CommitOutcome:
        target = address_of(self._metadata, self._batch.table, volume)
        for file in files:
            error = self._bring(file, volume)
            if error is not None:
                return Unreachable(error)
        if time.time() - self._batch.staged_at > UNUSED_FILES_KEEP_SECONDS:
            try:
                for file in files:
                    require_stored(file, target)
            except StorageUnavailable as unavailable:
                return Unreachable(str(unavailable))
        return commit_files(
            target,
            files,
            epoch=self._metadata.epoch,
            app_id=self._batch.app_id,
            app_version=self._batch.first_version + number,
        )

    def _bring(self, file: DataFile, volume: VolumeId) -> str | None:
        """Make sure that a volume has the bytes of a file; why not, when that fails."""
        holders = self._stored[file.file_id]
        if volume in holders:
            return None
        target = address_of(self._metadata, self._batch.table, volume)
        error = f"no replica has stored file {file.file_id}"
        for source in sorted(holders):
            try:
                copy_data_file(FileCopy(file, address_of(self._metadata, self._batch.table, source), target))
            except (StorageUnavailable, WrongCluster) as unavailable:
                error = str(unavailable)
                continue
            holders.add(volume)
            return None
        return error

    def _placement_of(self, metadata: ClusterMetadata, staged: StagedFile) -> Placement:
        index, _ = parse_label(staged.file.label)
        return metadata.placement(self._batch.table.table_id, index)

    def _since(self, metadata: ClusterMetadata, label: str) -> Since:
        table_id, index = self._batch.table.table_id, parse_label(label)[0]
        tablet_map = metadata.tablets.maps[table_id]
        transition = metadata.tablets.transitions.get((table_id, index))
        started = None if transition is None else transition.started_epoch
        return Since(tablet_map.replicas(index), tablet_map.epoch, started)

    def _forget_what_may_be_gone(self, newest: ClusterMetadata) -> None:
        """Forget acknowledgements of replicas that may have dropped the tablet since, and got it again without them.

        A replica drops a tablet when it stops being one: at the end of the way there or of the way back. So an
        acknowledgement stands within one transition, and for a replica that the map has named all the time. What is
        forgotten is only asked for again: a replica that still has the file says so.
        """
        labels = {staged.file.file_id: staged.file.label for staged in self._batch.files}
        now = {label: self._since(newest, label) for label in set(labels.values())}
        for volume, files in self._acknowledged.items():
            for file_id, then in list(files.items()):
                current = now[labels[file_id]]
                same_transition = (then.map_epoch, then.started_epoch) == (current.map_epoch, current.started_epoch)
                always_replica = then.map_epoch == current.map_epoch and volume in then.replicas
                if not (same_transition or always_replica):
                    del files[file_id]

    def _unsatisfied(self, metadata: ClusterMetadata) -> list[int]:
        """Tablets of the batch whose acknowledgements do not reach the level in the placement of `metadata`."""
        short = set()
        for staged in self._batch.files:
            placement = self._placement_of(metadata, staged)
            have = {v for v, files in self._acknowledged.items() if staged.file.file_id in files}
            level, local = self._batch.level, self._batch.local
            if not is_satisfied(level, placement.write_sets, have, metadata.directory.datacenter_of, local):
                short.add(parse_label(staged.file.label)[0])
        return sorted(short)

    def _require_table(self, metadata: ClusterMetadata) -> None:
        table = self._batch.table
        if table.table_id not in metadata.schema.tables:
            raise Rejected(
                "unknown-table",
                f"table {table.full_name} was dropped at or before epoch {metadata.epoch}, while it was being written",
            )


def require_stored(file: DataFile, where: ReplicaAddress) -> None:
    """That the bytes of a staged file are still there. Raises StorageUnavailable."""
    uri = storage.join(where.uri, file.path)
    size = storage.size_of(uri)
    if size != file.size:
        found = "it is not there any more" if size is None else f"it has {size} bytes of {file.size}"
        raise StorageUnavailable(f"the staged file {uri} cannot be committed: {found}. Write the batch again")
