"""`Pipeline`: one run of a Spark job that reads and writes through the gate.

A pipeline plans at one committed epoch and announces it. It holds nothing up: topology changes go on, and every replica
that has acknowledged a newer epoch refuses what was planned before it. Then the pipeline catches up, plans again for
what moved, and keeps everything that it has staged.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
from epochlake.jobs.gate import batches
from epochlake.jobs.gate.commit_phase import LATE_ROUNDS, RETRY_SECONDS, ROUNDS, CommitPhase, WriteBatch
from epochlake.jobs.gate.conform import conform, conform_keys, only_windows
from epochlake.jobs.gate.errors import ConsistencyNotReached, ReadDisturbed
from epochlake.jobs.gate.routing import Grouped, choose_for_read, grouped, named, ranges_of, refined, routes, shared
from epochlake.jobs.gate.verified_reading import damage_behind, plan_verified_read
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.encoding import Routing
from epochlake.jobs.replicas.opening import open_all, open_to_read
from epochlake.jobs.replicas.reading import Asked, ReadPlan, read_plan
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.staging import StagedFile, digest_of_rows, stage
from epochlake.metastore.announcing import Presence
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.metastore.metadata.placements import highs
from epochlake.placement.consistency import ConsistencyLevel, is_satisfied
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.tokens import Interval
from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

CATCH_UP_SECONDS = 30.0
"""How long a replica may be ahead of the log that this process can read before the pipeline gives up."""


class Written(msgspec.Struct, frozen=True):
    """What a write did. `epoch`: at which its acknowledgements were judged; `rounds`: how often it was planned.

    `tablets`: how many tablets, or ranges of a table on the ring, got rows. `already`: a named batch had reached the
    level before. `missing`: what each replica said that has not acknowledged although it should have; the level was
    reached without.
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

    def __init__(self, cluster: Store, name: str, spark: SparkSession, datacenter: str | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"a pipeline needs a name, which operators see: give a text, not {name!r}")
        self.cluster = cluster
        self.name = name
        self.pipeline_id = str(uuid.uuid4())
        self._spark = spark
        self._datacenter = datacenter
        self._tables: set[str] = set()
        self._clock = 0
        self._versions = 0
        self._reads = 0
        self._read: dict[Table, dict[ExpectedFile, None]] = {}
        self._presence: Presence | None = None
        self._ended = False
        self._metadata = cluster.catch_up()
        self._grouped: dict[tuple[int, TableId], Grouped] = {}

    @property
    def epoch(self) -> int:
        """The committed epoch that this pipeline plans at."""
        return self._metadata.epoch

    def __enter__(self) -> Self:
        """Announce the pipeline. Raises CoordinationUnavailable when that is impossible: see `Presence.begin`."""
        if self._presence is not None or self._ended:
            raise InvalidRequest(f"pipeline {self.name!r} was begun before: open another one with cluster.pipeline(…)")
        presence = Presence(self.cluster, self.name, self.pipeline_id, self.epoch)
        presence.begin()
        self._presence = presence
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.end()
        if isinstance(error, Exception) and not isinstance(error, EpochlakeError):
            self._look_for_damage(error)

    def _look_for_damage(self, error: Exception) -> None:
        """A frame of `read` is executed long after it was planned: note and say what was found damaged then."""
        for table, copies in self._read.items():
            damaged = damage_behind(error, copies)
            if damaged:
                self.cluster.damage.add(table.table_id, damaged)
                named = {
                    f"{self._metadata.describe(one.address.volume_id)}: {one.file.path}": damage
                    for one, damage in damaged
                }
                raise ReadDisturbed(table.full_name, named) from error

    def write(
        self, rows: DataFrame, table: str, *, consistency: str | None = None, batch: str | None = None
    ) -> Written:
        """Write rows: insert them, or replace those with the same primary key (append-only tables only insert).

        Returns when every range's acknowledgements have reached `consistency` in the placement of the newest epoch.
        `batch` names the write, so that writing it again (a retried job) lands it once: what was staged first counts.
        The rows given then have to be the same, in any order, else it is Rejected (batch-used). Without a name each
        call is a batch of its own. Raises InvalidRequest for rows that do not fit, ConsistencyNotReached.
        """
        self._require_open()
        target = self._table(table)
        return self._write(conform(rows, target), target, consistency, batch, deleted=False)

    def delete(
        self, keys: DataFrame, table: str, *, consistency: str | None = None, batch: str | None = None
    ) -> Written:
        """Delete the rows with the primary keys in `keys` (its other columns do not count)."""
        self._require_open()
        target = self._table(table)
        if target.append_only:
            raise InvalidRequest(f"table {table} is append-only: its rows cannot be deleted")
        return self._write(conform_keys(keys, target), target, consistency, batch, deleted=True)

    def read(self, table: str, *, consistency: str | None = None) -> DataFrame:
        """The rows of a table at a consistency level, pinned now: later writes and clean-ups do not change the result.

        Spark reads the files when it needs the rows. Until the end of the `with` they stay where they are. After it
        vacuum may delete files that the table does not have any more, at the earliest an hour later unless it is told
        otherwise: then Spark fails to find them. It never gets other rows than those that were pinned. Collect or
        write before the end what is needed after it.

        A file that is missing or damaged on one replica is read on another; the log says so and `repair` is told. What
        is found damaged only when the frame is executed fails it; leaving the pipeline's `with` by that error notes it
        and raises ReadDisturbed: the next read uses another replica.

        Raises ConsistencyNotReached when too few replicas can be read, RowsUnreadable when no replica has whole copies
        of all rows, Rejected for an unknown table.
        """
        self._require_open()
        target = self._table(table)
        level = self._level(consistency)
        self._touch(target)
        return read_plan(self._spark, target, self._plan_read(target, level))

    def _plan_read(self, table: Table, level: ConsistencyLevel) -> ReadPlan:
        """What a read at `level` reads, and where: of files whose ends were looked at just now."""
        opened, asked = self._open_for_read(table, level)
        self._clock = max([self._clock, *(snapshot.newest_written_at for snapshot in opened.values())])
        turn = zlib.crc32(f"{self.name} {self._reads}".encode())
        self._reads += 1
        plan = plan_verified_read(self.cluster, self._metadata, table, asked, turn)
        self._read.setdefault(table, {}).update(dict.fromkeys(plan.copies))
        return plan

    def _write(
        self, rows: DataFrame, table: Table, consistency: str | None, batch: str | None, *, deleted: bool
    ) -> Written:
        level = self._level(consistency)
        if batch is not None and (not isinstance(batch, str) or not batch.strip()):
            raise InvalidRequest(f"the batch name {batch!r} cannot be used: give a text that is not empty, or none")
        self._touch(table)
        opened, failed = self._open_for_write(table)
        self._refuse_senseless_levels(table, level)
        if batch is None:
            return self._land(table, self._stage(rows, table, level, opened, deleted), level)
        root = self.cluster.root.batches
        name = batches.batch_id(table.table_id, "delete" if deleted else "write", batch)
        decision = batches.decided(root, name)
        if not decision.generations:
            staged = self._stage(rows, table, level, opened, deleted, digested=True)
            decision = batches.decide(root, name, table, decision, staged)
            if decision.files == tuple(staged):
                return self._land(table, staged, level)
            given = batches.BatchContents(1, tuple(staged)).rows
        else:
            given = batches.Rows(*digest_of_rows(rows, table))
        batches.require_same_rows(table, batch, decision, given)
        located = self._locate(table, decision, opened, failed)
        if located.lost:
            self._require_answers(table, level, located)
            again = rows.transform(only_windows(table, located.lost))
            staged = self._stage(again, table, level, opened, deleted, located.lost, digested=True)
            decision = batches.decide(root, name, table, decision, staged, replaces=located.lost)
            located = self._locate(table, decision, opened, failed)
        return self._land(table, located.files, level, located, already=self._is_reached(table, level, located, opened))

    def _locate(
        self,
        table: Table,
        decision: batches.BatchContents,
        opened: Mapping[VolumeId, ReplicaSnapshot],
        failed: Mapping[VolumeId, str],
    ) -> batches.Located:
        return batches.locate(self._metadata, table, decision.files, opened, failed, self.cluster.ledger)

    def _stage(
        self,
        rows: DataFrame,
        table: Table,
        level: ConsistencyLevel,
        opened: Mapping[VolumeId, ReplicaSnapshot],
        deleted: bool,
        within: Collection[Interval] = (),
        *,
        digested: bool = False,
    ) -> list[StagedFile]:
        """Stage rows at a time later than every write that was acknowledged before this one began.

        No file's window is partly in one of `within`, so that these windows can be staged again by themselves. A write
        that was acknowledged is on a quorum, so its time is among those of the `opened` replicas if these are enough
        for the level. Where they are not, they are opened again: staging took time, they may be back.
        """
        written_at, staged = self._stage_now(rows, table, opened, deleted, within, digested)
        windows = {item.file.window for item in staged}
        if table.append_only or not self._too_few(table, level, windows, opened):
            return staged
        for attempt in range(self.cluster.configuration.pipeline.attempts):
            time.sleep(RETRY_SECONDS * attempt)
            opened, failed = self._open_for_write(table)
            short = self._too_few(table, level, windows, opened)
            if not short:
                newest = max((snapshot.newest_written_at for snapshot in opened.values()), default=0)
                return (
                    staged
                    if newest < written_at
                    else self._stage_now(rows, table, opened, deleted, within, digested)[1]
                )
        raise ConsistencyNotReached(
            f"the write to {table.full_name}",
            level,
            self.epoch,
            named(self._metadata, table, short),
            {self._metadata.describe(volume): reason for volume, reason in failed.items()},
        )

    def _stage_now(
        self,
        rows: DataFrame,
        table: Table,
        opened: Mapping[VolumeId, ReplicaSnapshot],
        deleted: bool,
        within: Collection[Interval],
        digested: bool,
    ) -> tuple[int, list[StagedFile]]:
        written_at = self._next_written_at(opened.values())
        staged = stage(
            rows,
            table,
            self._routes(table, within),
            written_at=written_at,
            deleted=deleted,
            target_file_bytes=self.cluster.configuration.pipeline.target_file_bytes,
            digested=digested,
        )
        return written_at, staged

    def _routes(self, table: Table, within: Collection[Interval]) -> Routing:
        return refined(routes(self._metadata, table, self._placements(table)), within)

    def _land(
        self,
        table: Table,
        staged: Sequence[StagedFile],
        level: ConsistencyLevel,
        located: batches.Located | None = None,
        *,
        already: bool = False,
    ) -> Written:
        settings = self.cluster.configuration.pipeline
        batch = WriteBatch(table, self.pipeline_id, self._versions, staged, level, self._datacenter, time.time())
        if located is not None:
            batch = msgspec.structs.replace(batch, pieces=located.pieces, lineage=located.lineage)
        cluster = self.cluster
        phase = CommitPhase(batch, self._metadata, self._catch_up, settings.attempts, cluster.ledger, cluster.receipts)
        self._versions += 1 + ROUNDS * settings.attempts + LATE_ROUNDS
        landed = phase.land()
        return Written(
            table=table.full_name,
            rows=sum(item.file.rows for item in staged),
            files=len(staged),
            bytes=sum(item.file.size for item in staged),
            tablets=len({item.file.window for item in staged}),
            epoch=landed.epoch,
            rounds=landed.rounds,
            already=already,
            missing={self._metadata.describe(volume): reason for volume, reason in landed.missing.items()},
        )

    def _too_few(
        self,
        table: Table,
        level: ConsistencyLevel,
        windows: Iterable[Interval],
        volumes: Collection[VolumeId],
    ) -> list[int]:
        """The ranges with tokens of `windows` for which `volumes` do not reach the level in each write set."""
        among = self._placements(table)
        ranges = ranges_of(self._metadata.placements(table.table_id), windows)
        enough = {group: self._is_satisfied(level, among, group, volumes) for group in among.groups_of(ranges)}
        return [index for index in ranges if not enough[among.group[index]]]

    def _refuse_senseless_levels(self, table: Table, level: ConsistencyLevel) -> None:
        """Raise InvalidRequest for a level that some range of the table cannot have, whatever answers."""
        among = self._placements(table)
        for group in range(len(among.distinct)):
            self._is_satisfied(level, among, group, ())

    def _is_satisfied(self, level: ConsistencyLevel, among: Grouped, group: int, volumes: Collection[VolumeId]) -> bool:
        sets, datacenter_of = among.distinct[group].write_sets, self._metadata.directory.datacenter_of
        return is_satisfied(level, sets, volumes, datacenter_of, self._datacenter)

    def _is_reached(
        self,
        table: Table,
        level: ConsistencyLevel,
        located: batches.Located,
        opened: Mapping[VolumeId, ReplicaSnapshot],
    ) -> bool:
        """Whether the files are live on so many replicas already that the level is reached."""
        among, placements = self._placements(table), self._metadata.placements(table.table_id)
        live = batches.Live(opened, located.lineage)
        return all(
            self._is_satisfied(level, among, int(among.group[index]), live.volumes_with(file, window))
            for file, index, window in shared(placements, [staged.file for staged in located.files])
        )

    def _require_answers(self, table: Table, level: ConsistencyLevel, located: batches.Located) -> None:
        """Staging lost parts of a batch again is only safe when nobody can have them."""
        if located.unanswered:
            raise ConsistencyNotReached(
                f"writing the batch to {table.full_name} again, of which they may hold a part that nobody else has,",
                level,
                self.epoch,
                named(self._metadata, table, ranges_of(self._metadata.placements(table.table_id), located.lost)),
                {self._metadata.describe(volume): reason for volume, reason in located.unanswered.items()},
            )

    def _placements(self, table: Table) -> Grouped:
        """The placements of all ranges at this pipeline's epoch."""
        key = (self.epoch, table.table_id)
        if key not in self._grouped:
            self._grouped = {key: grouped(self._metadata.placements(table.table_id))}
        return self._grouped[key]

    def _open_for_write(self, table: Table) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]:
        """Snapshots of the write replicas that answer, none fenced ahead of this pipeline's epoch; what others said.

        A replica that is ahead says that writes may have been acknowledged in a placement which is not known here.
        """
        while True:
            volumes = self._placements(table).write_volumes
            opened, failed = open_all(self._metadata, table, volumes, self.cluster.receipts)
            ahead = max((snapshot.fence for snapshot in opened.values()), default=0)
            if ahead <= self._metadata.fence:
                return opened, failed
            self._catch_up(ahead)
            self._require(table)

    def _open_for_read(
        self, table: Table, level: ConsistencyLevel
    ) -> tuple[dict[VolumeId, ReplicaSnapshot], list[Asked]]:
        """Snapshots of the replicas that a read at `level` asks, none of them fenced ahead of this pipeline's epoch.

        And which of them are asked for which tokens: from a first to a last one, in token order.
        """
        self._catch_up_before(table)
        unreachable: dict[VolumeId, str] = {}
        for _ in range(10 * self.cluster.configuration.pipeline.attempts):
            metadata, among = self._metadata, self._placements(table)
            chosen, short = choose_for_read(metadata, among, level, unreachable, self._datacenter)
            if short:
                newest = self._catch_up(0)
                if newest.epoch != metadata.epoch:
                    self._require(table)
                    continue
                raise ConsistencyNotReached(
                    f"the read of {table.full_name}",
                    level,
                    metadata.epoch,
                    named(metadata, table, among.ranges_in(short)),
                    {metadata.describe(v): reason for v, reason in (unreachable | _not_read(metadata, among)).items()},
                )
            asked = {volume for volumes in chosen for volume in volumes}
            opened, failed = open_to_read(metadata, table, asked, self.cluster.receipts)
            ahead = max((snapshot.fence for snapshot in opened.values()), default=0)
            if ahead > metadata.fence:
                self._catch_up(ahead)
                self._require(table)
            elif not failed:
                lows = metadata.placements(table.table_id).lows
                last = highs(lows)
                snapshots = [[opened[volume] for volume in volumes] for volumes in chosen]
                return opened, [(int(lows[i]), int(last[j]), snapshots[group]) for i, j, group in among.runs()]
            unreachable |= failed
        raise ConsistencyNotReached(
            f"the read of {table.full_name}", level, self.epoch, named(self._metadata, table, ()), {}
        )

    def _next_written_at(self, snapshots: Iterable[ReplicaSnapshot]) -> int:
        """A hybrid clock in microseconds: never at or below anything seen, so that a later write wins everywhere."""
        newest = max((snapshot.newest_written_at for snapshot in snapshots), default=0)
        self._clock = max(time.time_ns() // 1000, newest + 1, self._clock + 1)
        return self._clock

    def _catch_up(self, fence: int) -> ClusterMetadata:
        """Plan at the newest metadata from now on, at or above a replica's fence (0: whatever is newest)."""
        before = self._metadata.epoch
        self._metadata = self.cluster.follower.wait_for_fence(fence, CATCH_UP_SECONDS)
        if self._metadata.epoch != before:
            self._announce()
        return self._metadata

    def _catch_up_before(self, table: Table) -> None:
        """Ask the log for news before a read, so that whatever was committed before the read began holds for it.

        A fence tells of steps that have passed a replica; of storage that was declared lost, and is back as if nothing
        had happened, only the log tells.
        """
        self._catch_up(0)
        self._require(table)

    def _table(self, name: str) -> Table:
        try:
            return self._metadata.table(name)
        except Rejected:
            # It may have been created after this pipeline began.
            self._catch_up(0)
            return self._metadata.table(name)

    def _require(self, table: Table) -> None:
        if table.table_id not in self._metadata.schema.tables:
            raise Rejected(Code.UNKNOWN_TABLE, f"table {table.full_name} was dropped by epoch {self.epoch}")

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
        if self._presence is not None:
            self._presence.update(self.epoch, tuple(sorted(self._tables)))

    def _require_open(self) -> None:
        """Refuse to work without a lease: vacuum would not know of it."""
        if self._ended:
            raise InvalidRequest(f"pipeline {self.name!r} has ended with its `with`: open another one")
        if self._presence is None:
            raise InvalidRequest(
                f"pipeline {self.name!r} has not begun, so that nothing protects what it reads and writes: use it in "
                f"`with cluster.pipeline({self.name!r}, spark) as pipeline:`"
            )
        self.cluster.require_open()


def _not_read(metadata: ClusterMetadata, among: Grouped) -> dict[VolumeId, str]:
    """The replicas of some ranges that are not to be read, and why: declared lost, or being rebuilt."""
    directory = metadata.directory
    rebuilt = {v: "it is being rebuilt, rows may be missing on it" for one in among.distinct for v in one.unread}
    return rebuilt | {v: directory.why_lost(v) for one in among.distinct for v in one.reads if v in directory.lost}
