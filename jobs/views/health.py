"""What requests can have of each table now: by the gate's own rules, given the replicas that answer.

Nothing is tried: whether a level can be had follows from the placement at an epoch and from who answers. A table that
can be had at its level now may still lose a replica in the next second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.gate.routing import Grouped, choose_for_read, grouped
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage
from epochlake.jobs.replicas.opening import open_all
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.upkeep.comparing import Range, by_rest, compare
from epochlake.jobs.views.backlog import Backlog, Backlogs
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.consistency import ConsistencyLevel, is_satisfied
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


class ReplicaObstacle(msgspec.Struct, frozen=True):
    """A replica of a table that cannot be used now: `place` is its node and volume, `why` what it said."""

    place: str
    why: str


class ReplicaLack(msgspec.Struct, frozen=True):
    """A replica that lacks what others have, for `repair`: in so many ranges, parts of so many files."""

    place: str
    ranges: int
    files: int


class TableHealth(msgspec.Struct, frozen=True):
    """Which levels every row of a table can be read and written at now.

    LOCAL_QUORUM is among them when it can be had in each datacenter with replicas; `local_reads` and `local_writes` are
    the datacenters where it can be had. `obstacles`: replicas that cannot be used. `lacks`: replicas that need repair;
    null when the ledger of compactions cannot be read, so that they were not compared. `damaged`: copies of files that
    reads have found damaged, for `repair`. `backlog`: what compaction would save its readers, null for nothing; and
    null where replicas were not compared.
    """

    table: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    local_reads: tuple[str, ...]
    local_writes: tuple[str, ...]
    obstacles: tuple[ReplicaObstacle, ...]
    lacks: tuple[ReplicaLack, ...] | None
    damaged: int = 0
    backlog: Backlog | None = None

    def has(self, level: ConsistencyLevel) -> bool:
        """Whether reads and writes can be had at `level`, in every datacenter."""
        return level.value in self.reads and level.value in self.writes


class Health(msgspec.Struct, frozen=True):
    """Whether every table can be read and written at `consistency`, the level of the configuration.

    `unavailable`: the tables that cannot be. `zookeeper`: its address, null for an embedded server that does not run.
    """

    consistency: str
    available: bool
    unavailable: tuple[str, ...]
    zookeeper: str | None
    tables: tuple[TableHealth, ...]


def health(cluster: Cluster, metadata: ClusterMetadata, zookeeper: str | None) -> Health:
    """Open every replica table, and say what can be had of each table at the epoch of `metadata`."""
    level = cluster.configuration.pipeline.consistency
    tables = tuple(
        _measured(cluster, metadata, table)
        for table in sorted(metadata.schema.tables.values(), key=lambda table: table.full_name)
    )
    lacking = tuple(found.table for found in tables if not found.has(level))
    return Health(level.value, not lacking, lacking, zookeeper, tables)


def table_health(
    metadata: ClusterMetadata,
    table: Table,
    unusable: Mapping[VolumeId, str],
    lacks: tuple[ReplicaLack, ...] | None = (),
) -> TableHealth:
    """What can be had of `table` when the replicas on the volumes `unusable` cannot be used, each for its reason."""
    among = grouped(metadata.placements(table.table_id))
    everywhere = sorted(
        {
            metadata.directory.datacenter_of(volume)
            for placement in among.distinct
            for volume in {*placement.reads, *placement.writes}
        }
    )
    levels: list[ConsistencyLevel] = [level for level in ConsistencyLevel if level != "LOCAL_QUORUM"]
    reads = {level for level in levels if _readable(metadata, among, level, unusable, None)}
    writes = {level for level in levels if _writable(metadata, among, level, unusable, None)}
    local = ConsistencyLevel.LOCAL_QUORUM
    local_reads = [name for name in everywhere if _readable(metadata, among, local, unusable, name)]
    local_writes = [name for name in everywhere if _writable(metadata, among, local, unusable, name)]
    reads |= {local} if local_reads == everywhere else set()
    writes |= {local} if local_writes == everywhere else set()
    return TableHealth(
        table=table.full_name,
        reads=tuple(level.value for level in ConsistencyLevel if level in reads),
        writes=tuple(level.value for level in ConsistencyLevel if level in writes),
        local_reads=tuple(local_reads),
        local_writes=tuple(local_writes),
        obstacles=tuple(ReplicaObstacle(metadata.describe(volume), why) for volume, why in sorted(unusable.items())),
        lacks=lacks,
    )


def _measured(cluster: Cluster, metadata: ClusterMetadata, table: Table) -> TableHealth:
    among = grouped(metadata.placements(table.table_id))
    used = {volume for placement in among.distinct for volume in {*placement.reads, *placement.writes}}
    opened, failed = open_all(cluster.storage, metadata, table, used, cluster.receipts)
    try:
        lineage = _lineage(cluster, table, opened.values())
    except StorageUnavailable:
        found = table_health(metadata, table, failed, None)
    else:
        ranges = by_rest(metadata.placements(table.table_id))[0]
        found = msgspec.structs.replace(
            table_health(metadata, table, failed, _lacks(metadata, ranges, opened, lineage)),
            backlog=cluster.storage.kept(Backlogs).of(table, ranges, opened, lineage),
        )
    return msgspec.structs.replace(found, damaged=len(cluster.damage.of(table.table_id)))


def _lineage(cluster: Cluster, table: Table, opened: Collection[ReplicaSnapshot]) -> Lineage:
    """Of all files of these snapshots, of which only merged ones stand for others."""
    if not any(snapshot.merged_files() for snapshot in opened):
        return NO_LINEAGE
    return cluster.ledger.lineage(table.table_id, (file for snapshot in opened for file in snapshot.all_files.values()))


def _lacks(
    metadata: ClusterMetadata, at_rest: Iterable[Range], opened: Mapping[VolumeId, ReplicaSnapshot], lineage: Lineage
) -> tuple[ReplicaLack, ...]:
    ranges: dict[VolumeId, int] = {}
    files_lacked: dict[VolumeId, set[str]] = {}
    for one in at_rest:
        for volume, parts in compare(one, opened, lineage).missing.items():
            ranges[volume] = ranges.get(volume, 0) + 1
            files_lacked.setdefault(volume, set()).update(part.file.file_id for part in parts)
    return tuple(
        ReplicaLack(metadata.describe(volume), ranges[volume], len(files_lacked[volume])) for volume in sorted(ranges)
    )


def _readable(
    metadata: ClusterMetadata,
    among: Grouped,
    level: ConsistencyLevel,
    unusable: Collection[VolumeId],
    local: str | None,
) -> bool:
    try:
        return not choose_for_read(metadata, among, level, unusable, local)[1]
    except EpochlakeError:  # a level that some range of the table cannot have, whatever answers
        return False


def _writable(
    metadata: ClusterMetadata,
    among: Grouped,
    level: ConsistencyLevel,
    unusable: Collection[VolumeId],
    local: str | None,
) -> bool:
    datacenter_of = metadata.directory.datacenter_of
    try:
        return all(
            is_satisfied(level, placement.write_sets, set(placement.writes).difference(unusable), datacenter_of, local)
            for placement in among.distinct
        )
    except EpochlakeError:
        return False
