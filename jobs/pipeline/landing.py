"""The second phase of a write: staged files become part of their replicas, until the consistency level is reached.

Files are staged once; what moves under a pipeline's feet is only where they belong. So each round commits every file
to the replicas that its tablet has *now* and that do not have it yet, copying it there first where it was not staged.
A replica that is fenced at a newer epoch makes the next round start from that epoch. The last word is a look at the
newest metadata after the last commit: only acknowledgements that satisfy *that* placement count (seed 002, "Read/Write
Path Integration").
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
from epochlake.jobs.dataplane.staging import StagedFile
from epochlake.jobs.pipeline.errors import ConsistencyNotReached
from epochlake.jobs.pipeline.replicas import address_of, describe
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata, Placement
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.consistency import ConsistencyLevel, is_satisfied
from epochlake.placement.tokens import parse_label

logger = logging.getLogger(__name__)

THREADS = 16
RETRY_SECONDS = 0.2


class Batch(msgspec.Struct, frozen=True):
    """What is to land: the staged files of one write, under an id that makes a retried batch land once."""

    table: Table
    batch_id: str
    files: Sequence[StagedFile]
    level: ConsistencyLevel
    local: str | None


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
        self._acknowledged: dict[VolumeId, set[str]] = {}
        self._missing: dict[VolumeId, str] = {}

    def land(self) -> Landed:
        """Commit until the level is reached at the newest epoch. Raises ConsistencyNotReached after bounded tries."""
        failures = 0
        rounds = 0
        while True:
            rounds += 1
            planned = self._metadata
            fence = self._round(rounds)
            newest = self._catch_up(fence)
            self._require_table(newest)
            unsatisfied = self._unsatisfied(newest)
            if not unsatisfied:
                return Landed(
                    newest.epoch,
                    rounds,
                    {volume: frozenset(files) for volume, files in self._acknowledged.items()},
                    dict(self._missing),
                )
            self._metadata = newest
            # Placement that moved is not a failure, but it could move for ever.
            failures += 1 if fence <= planned.epoch and newest.epoch == planned.epoch else 0
            if failures >= self._attempts or rounds >= 10 * self._attempts:
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
        for staged in self._batch.files:
            for volume in self._placement_of(self._metadata, staged).writes:
                if staged.file.file_id not in self._acknowledged.get(volume, ()):
                    due.setdefault(volume, []).append(staged.file)
        fence = 0
        with ThreadPoolExecutor(max(1, min(THREADS, len(due)))) as pool:
            outcomes = pool.map(lambda item: (item, self._commit(*item, number)), due.items())
        for (volume, files), outcome in outcomes:
            self._missing.pop(volume, None)
            match outcome:
                case Acknowledged():
                    self._acknowledged.setdefault(volume, set()).update(file.file_id for file in files)
                case AlreadyApplied(absent=absent):
                    there = {file.file_id for file in files} - absent
                    self._acknowledged.setdefault(volume, set()).update(there)
                    if absent:
                        self._missing[volume] = "another try of the same batch has landed there"
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
        return commit_files(
            target,
            files,
            epoch=self._metadata.epoch,
            app_id=self._batch.batch_id,
            app_version=number,
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
