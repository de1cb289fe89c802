"""`Pipeline`: one run of a Spark job that reads and writes through the gate.

A pipeline plans at one committed epoch and announces it. It holds nothing up: topology changes go on, and every replica
that has acknowledged a newer epoch refuses what was planned before it. Then the pipeline catches up, plans again for
what moved, and keeps everything that it has staged.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
from epochlake.jobs.dataplane.reading import read_files
from epochlake.jobs.dataplane.replica import ReplicaSnapshot, open_snapshot
from epochlake.jobs.dataplane.staging import stage
from epochlake.jobs.pipeline.conform import conform, conform_keys
from epochlake.jobs.pipeline.errors import ConsistencyNotReached
from epochlake.jobs.pipeline.landing import THREADS, Batch, Landing
from epochlake.jobs.pipeline.replicas import address_of, choose_for_read, describe
from epochlake.metastore.coordination.leases import Announcement, Lease, announce
from epochlake.metastore.errors import CoordinationUnavailable, Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import tablet_label
from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)

CATCH_UP_SECONDS = 30.0
"""How long a replica may be ahead of the log that this process can read before the pipeline gives up."""

BATCHES = uuid.UUID("6e2c1b2e-4f57-5d0e-9d1a-3f2b8d7c5a90")
"""Namespace of the ids of named batches."""


class Written(msgspec.Struct, frozen=True):
    """What a write did. `epoch`: at which its acknowledgements were judged; `rounds`: how often it was planned.

    `missing`: what each replica said that has not acknowledged although it should have; the level was reached without.
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


class Pipeline:
    """A run of a Spark job at the gate; use it in a `with`. Its methods are not for several threads at once.

    `datacenter` is where it runs: LOCAL_QUORUM counts there, and reads prefer it.
    """

    def __init__(self, cluster: Cluster, name: str, spark: SparkSession, datacenter: str | None = None) -> None:
        self.cluster = cluster
        self.name = name
        self.pipeline_id = str(uuid.uuid4())
        self._spark = spark
        self._datacenter = datacenter
        self._tables: set[str] = set()
        self._clock = 0
        self._announcement: Announcement | None = None
        self._metadata = cluster.catch_up()
        self._started_at = time.time_ns() // 1_000_000

    @property
    def epoch(self) -> int:
        """The committed epoch that this pipeline plans at."""
        return self._metadata.epoch

    def __enter__(self) -> Self:
        try:
            self._announcement = announce(self.cluster.coordination(), self._lease())
        except CoordinationUnavailable as error:
            logger.warning("pipeline %s runs unannounced, vacuum does not know of it: %s", self.name, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._announcement is not None:
            self._announcement.release()
            self._announcement = None

    def write(
        self, rows: DataFrame, table: str, *, consistency: str | None = None, batch: str | None = None
    ) -> Written:
        """Write rows: insert them, or replace those with the same primary key (append-only tables only insert).

        Returns when every tablet's acknowledgements have reached `consistency` in the placement of the newest epoch.
        `batch` names the write, so that writing it again (a retried job) lands it once; without a name each call is a
        batch of its own. Raises InvalidRequest for rows that do not fit, ConsistencyNotReached.
        """
        target = self._table(table)
        return self._write(conform(rows, target), target, consistency, batch, deleted=False)

    def delete(
        self, keys: DataFrame, table: str, *, consistency: str | None = None, batch: str | None = None
    ) -> Written:
        """Delete the rows with the primary keys in `keys` (its other columns do not count)."""
        target = self._table(table)
        if target.append_only:
            raise InvalidRequest(f"table {table} is append-only: its rows cannot be deleted")
        return self._write(conform_keys(keys, target), target, consistency, batch, deleted=True)

    def read(self, table: str, *, consistency: str | None = None) -> DataFrame:
        """The rows of a table at a consistency level, pinned now: later writes and clean-ups do not change the result.

        Raises ConsistencyNotReached when too few replicas can be read, Rejected for an unknown table.
        """
        target = self._table(table)
        level = self._level(consistency)
        self._touch(target)
        snapshots, chosen = self._open_for_read(target, level)
        count = self._metadata.tablets.maps[target.table_id].count
        asked = {
            tablet_label(tablet, count): [snapshots[volume] for volume in volumes] for tablet, volumes in chosen.items()
        }
        return read_files(self._spark, target, asked)

    def _write(
        self, rows: DataFrame, table: Table, consistency: str | None, batch: str | None, *, deleted: bool
    ) -> Written:
        level = self._level(consistency)
        self._touch(table)
        named = batch is not None
        batch_id = str(uuid.uuid5(BATCHES, f"{table.table_id}/{batch}")) if named else str(uuid.uuid4())
        tablet_map = self._metadata.tablets.maps[table.table_id]
        placements = {t: self._metadata.placement(table.table_id, t) for t in range(tablet_map.count)}
        opened, _ = self._open({volume for placement in placements.values() for volume in placement.writes}, table)
        if named:
            landed_on = sorted(volume for volume, s in opened.items() if s.applied(batch_id) is not None)
            if landed_on:
                return self._already_landed(table, batch or "", batch_id, level, landed_on)
        staged = stage(
            rows,
            table,
            tablet_map.count,
            {
                tablet: tuple(address_of(self._metadata, table, volume) for volume in placement.writes)
                for tablet, placement in placements.items()
            },
            written_at=self._next_written_at(opened.values()),
            deleted=deleted,
            target_file_bytes=self.cluster.configuration.pipeline.target_file_bytes,
        )
        landing = Landing(
            Batch(table, batch_id, staged, level, self._datacenter),
            self._metadata,
            self._catch_up,
            self.cluster.configuration.pipeline.attempts,
        )
        landed = landing.land()
        return Written(
            table=table.full_name,
            rows=sum(item.file.rows for item in staged),
            files=len(staged),
            bytes=sum(item.file.size for item in staged),
            tablets=len({item.file.label for item in staged}),
            epoch=landed.epoch,
            rounds=landed.rounds,
            already=False,
            missing={describe(self._metadata, volume): reason for volume, reason in landed.missing.items()},
        )

    def _open_for_read(
        self, table: Table, level: ConsistencyLevel
    ) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[int, tuple[VolumeId, ...]]]:
        """Snapshots of the replicas that a read at `level` asks, none of them fenced ahead of this pipeline's epoch."""
        unreachable: dict[VolumeId, str] = {}
        for _ in range(10 * self.cluster.configuration.pipeline.attempts):
            metadata = self._metadata
            count = metadata.tablets.maps[table.table_id].count
            reads = {t: metadata.placement(table.table_id, t).reads for t in range(count)}
            chosen, short = choose_for_read(metadata, reads, level, unreachable, self._datacenter)
            if short:
                newest = self._catch_up(0)
                if newest.epoch != metadata.epoch:
                    self._require(table)
                    continue
                raise ConsistencyNotReached(
                    f"the read of {table.full_name}",
                    level,
                    metadata.epoch,
                    short,
                    {describe(metadata, volume): reason for volume, reason in unreachable.items()},
                )
            opened, failed = self._open({volume for volumes in chosen.values() for volume in volumes}, table)
            ahead = max((snapshot.fence for snapshot in opened.values()), default=0)
            if ahead > metadata.epoch:
                self._catch_up(ahead)
                self._require(table)
            elif not failed:
                return opened, chosen
            unreachable |= failed
        raise ConsistencyNotReached(f"the read of {table.full_name}", level, self.epoch, [], {})

    def _open(
        self, volumes: Iterable[VolumeId], table: Table
    ) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]:
        """Snapshots of the replicas that answer, and what the others said."""
        metadata = self._metadata

        def attempt(volume: VolumeId) -> tuple[VolumeId, ReplicaSnapshot | str]:
            try:
                snapshot = open_snapshot(address_of(metadata, table, volume))
                snapshot.files  # noqa: B018  what is listed lazily is listed here, in parallel
                return volume, snapshot
            except (StorageUnavailable, WrongCluster) as error:
                return volume, str(error)

        wanted = list(volumes)
        with ThreadPoolExecutor(max(1, min(THREADS, len(wanted)))) as pool:
            results = dict(pool.map(attempt, wanted))
        opened = {v: result for v, result in results.items() if isinstance(result, ReplicaSnapshot)}
        return opened, {v: result for v, result in results.items() if isinstance(result, str)}

    def _next_written_at(self, snapshots: Iterable[ReplicaSnapshot]) -> int:
        """A hybrid clock in microseconds: never at or below anything seen, so that a later write wins everywhere."""
        newest = max((snapshot.newest_written_at for snapshot in snapshots), default=0)
        self._clock = max(time.time_ns() // 1000, newest + 1, self._clock + 1)
        return self._clock

    def _catch_up(self, epoch: int) -> ClusterMetadata:
        """Plan at the newest metadata from now on, which must be at or above `epoch` (0: whatever is newest)."""
        before = self._metadata.epoch
        self._metadata = self.cluster.follower.wait_for(max(epoch, before), CATCH_UP_SECONDS)
        if self._metadata.epoch != before:
            self._announce()
        return self._metadata

    def _table(self, name: str) -> Table:
        try:
            return self._metadata.table(name)
        except Rejected:
            # It may have been created after this pipeline began.
            self._catch_up(0)
            return self._metadata.table(name)

    def _require(self, table: Table) -> None:
        if table.table_id not in self._metadata.schema.tables:
            raise Rejected("unknown-table", f"table {table.full_name} was dropped by epoch {self.epoch}")

    def _level(self, consistency: str | None) -> ConsistencyLevel:
        default = self.cluster.configuration.pipeline.consistency
        return default if consistency is None else ConsistencyLevel.parse(consistency)

    def _touch(self, table: Table) -> None:
        """Show in the lease that this pipeline uses a table."""
        self._require(table)
        if table.full_name not in self._tables:
            self._tables.add(table.full_name)
            self._announce()

    def _announce(self) -> None:
        if self._announcement is None:
            return
        try:
            self._announcement.update(self.epoch, tuple(sorted(self._tables)))
        except CoordinationUnavailable as error:
            logger.warning("pipeline %s goes on with its lease as it was: %s", self.name, error)

    def _lease(self) -> Lease:
        return Lease(
            name=self.name,
            pipeline_id=self.pipeline_id,
            epoch=self.epoch,
            tables=tuple(sorted(self._tables)),
            started_at=self._started_at,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
