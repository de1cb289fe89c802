"""Proofs over real replica tables: what is stored is what the metadata says, and replicas agree.

INV-TABL-1 (seed 000): a replica table holds rows of a tablet only if its volume is a replica of that tablet; during a
transition the previous and the next replicas may. The same is asked of ranges on the ring; there, what a range's former
replicas hold is taken away before the request that moved it ends.

All of it is known without reading a row. Where the rows of a file lie is in its statistics, and replicas
of a range hold the same rows when neither lacks a part of the other's files (intervals.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, merged
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.receipts import Receipts, went_back
from epochlake.jobs.replicas.replica import ReplicaSnapshot, open_snapshot
from epochlake.jobs.upkeep.comparing import by_rest, compare
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, RequestState, Table, TableId, VolumeId
from epochlake.metastore.metadata.placements import highs, index_of
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.showing import Shown
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval, tablet_label, tokens_of_label

THREADS = 16


class StoredReplica(msgspec.Struct, frozen=True):
    """What a replica table holds, as live files say (superseded rows included). `tablets`: ranges that have files."""

    table: str
    volume: VolumeId
    node: str
    place: str
    tablets: int
    files: int
    rows: int
    bytes: int


class ReplicaFinding(msgspec.Struct, frozen=True):
    """Something that does not hold, or that could not be looked at. `tablet`: on the ring the number of the range."""

    kind: str
    table: str
    place: str
    tablet: int | None
    detail: str


class ReplicaReport(Shown, msgspec.Struct, frozen=True):
    """`violations` of INV-TABL-1; ranges whose replicas `differ`; replicas that were `unreachable`.

    `unswept`: rows on the ring that were moved away by a request in flight, which takes them away before it ends.
    """

    epoch: int
    replicas: tuple[StoredReplica, ...]
    violations: tuple[ReplicaFinding, ...]
    unswept: tuple[ReplicaFinding, ...]
    differing: tuple[ReplicaFinding, ...]
    unreachable: tuple[ReplicaFinding, ...]

    @property
    def holds(self) -> bool:
        return not self.violations


def verify_replicas(
    storage: Storage, metadata: ClusterMetadata, ledger: Ledger | None = None, receipts: Receipts | None = None
) -> ReplicaReport:
    """Look at every replica table of every node that has not left, as of `metadata`.

    Replicas may differ without anything being wrong (a write that reached its level missed one of them): that is for
    repair, and reported apart. The `ledger` of compactions tells which files of one replica stand for those of another
    that was compacted later; the `receipts` which replicas lack what they have acknowledged, and so answer nobody.
    Raises StorageUnavailable when one of these is needed and cannot be read.
    """
    stored: list[StoredReplica] = []
    violations: list[ReplicaFinding] = []
    unswept: list[ReplicaFinding] = []
    differing: list[ReplicaFinding] = []
    unreachable: list[ReplicaFinding] = []
    moving = any(
        request.state in (RequestState.RUNNING, RequestState.CANCELLING) for request in metadata.open_requests()
    )
    for table in metadata.schema.tables.values():
        acknowledged = {} if receipts is None else receipts.of(table.table_id)
        snapshots, failures = _snapshots(storage, metadata, table)
        for volume, snapshot in snapshots.items():
            reason = went_back(snapshot, acknowledged.get(volume, ()))
            if reason:
                place = metadata.describe(volume)
                unreachable.append(ReplicaFinding("went-back", table.full_name, place, None, reason))
        for volume, reason in failures.items():
            unreachable.append(ReplicaFinding("unreachable", table.full_name, metadata.describe(volume), None, reason))
        misplaced = unswept if moving and metadata.is_on_ring(table.table_id) else violations
        for volume, snapshot in snapshots.items():
            stored.append(_stored(metadata, table, volume, snapshot))
            misplaced += _misplaced(metadata, table, volume, snapshot)
        files = (file for snapshot in snapshots.values() for file in snapshot.all_files.values())
        lineage = ledger.lineage(table.table_id, files) if ledger is not None else NO_LINEAGE
        differing += _differing(metadata, table, snapshots, lineage)
    return ReplicaReport(
        metadata.epoch, tuple(stored), tuple(violations), tuple(unswept), tuple(differing), tuple(unreachable)
    )


def owned_exactly(
    storage: Storage, metadata: ClusterMetadata, ledger: Ledger | None = None
) -> tuple[ReplicaFinding, ...]:
    """What speaks against this: every volume has all rows of the ranges that it owns, and no others."""
    report = verify_replicas(storage, metadata, ledger)
    return (*report.violations, *report.unswept, *report.differing, *report.unreachable)


def expected_ranges_on(metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> list[Interval]:
    """The tokens of which a volume may hold rows: of its own ranges, and of those that come to it or leave it now."""
    if metadata.is_on_ring(table_id):
        placements = metadata.ring_placements(metadata.schema.tables[table_id].keyspace)
        named = (placements.read_volumes == volume).any(axis=1) | (placements.write_volumes == volume).any(axis=1)
        lows, last = placements.lows, highs(placements.lows)
        return merged(zip(lows[named].tolist(), last[named].tolist(), strict=True))
    tablet_map = metadata.tablets.maps[table_id]
    tablets = set(tablet_map.tablets_on([volume]).tolist())
    for (of_table, tablet), transition in metadata.tablets.transitions.items():
        if of_table == table_id and volume in (*transition.replicas, *transition.new_replicas):
            tablets.add(tablet)
    return merged(tokens_of_label(tablet_label(tablet, tablet_map.count)) for tablet in tablets)


def _snapshots(
    storage: Storage, metadata: ClusterMetadata, table: Table
) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]:
    """The replica tables that there are; a volume that should have one and does not answer is a failure."""
    volumes = [
        volume.volume_id
        for node in metadata.directory.nodes.values()
        if node.state not in (NodeState.LEFT, NodeState.NONE)
        for volume in node.volumes
    ]

    def attempt(volume: VolumeId) -> ReplicaSnapshot | str:
        try:
            return open_snapshot(address_of(storage, metadata, table, volume))
        except (StorageUnavailable, WrongCluster) as error:
            return str(error)

    results = dict(zip(volumes, ThreadWorkers(THREADS).run(attempt, volumes), strict=True))
    found = {volume: result for volume, result in results.items() if isinstance(result, ReplicaSnapshot)}
    failed = {
        volume: result
        for volume, result in results.items()
        if isinstance(result, str) and expected_ranges_on(metadata, table.table_id, volume)
    }
    return found, failed


def _stored(metadata: ClusterMetadata, table: Table, volume: VolumeId, snapshot: ReplicaSnapshot) -> StoredReplica:
    files = snapshot.all_files.values()
    return StoredReplica(
        table=table.full_name,
        volume=volume,
        node=metadata.directory.node_of_volume[volume].name,
        place=metadata.describe(volume),
        tablets=len({file.label for file in files}),
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.size for file in files),
    )


def _misplaced(
    metadata: ClusterMetadata, table: Table, volume: VolumeId, snapshot: ReplicaSnapshot
) -> Iterator[ReplicaFinding]:
    """Files with rows outside of what the volume may hold, by the first range that is not its."""
    allowed = expected_ranges_on(metadata, table.table_id, volume)
    placements = metadata.placements(table.table_id)
    foreign: dict[int, list[str]] = defaultdict(list)
    for file in snapshot.all_files.values():
        token = _first_outside(file.extent, allowed)
        if token is not None:
            index = int(index_of(placements.lows, np.array([token], dtype=np.int64))[0])
            foreign[placements.unit(index)].append(file.file_id)
    for unit, files in sorted(foreign.items()):
        yield ReplicaFinding(
            "INV-TABL-1",
            table.full_name,
            metadata.describe(volume),
            unit,
            f"holds rows of range {unit}, of which it is no replica, in {len(files)} files: {files[0]}, …",
        )


def _first_outside(extent: Interval, allowed: list[Interval]) -> int | None:
    """The first token of an extent that is in none of the intervals, which are merged."""
    first, last = extent
    if first > last:
        return None
    index = bisect_right(allowed, (first, MAX_TOKEN)) - 1
    reach = allowed[index][1] if index >= 0 else MIN_TOKEN - 1
    if reach >= last:
        return None
    return max(first, reach + 1)


def _differing(
    metadata: ClusterMetadata, table: Table, snapshots: Mapping[VolumeId, ReplicaSnapshot], lineage: Lineage
) -> Iterator[ReplicaFinding]:
    ranges, _ = by_rest(metadata.placements(table.table_id))
    for one in ranges:
        for volume, parts in compare(one, snapshots, lineage).missing.items():
            lacking = {part.file.file_id for part in parts}
            yield ReplicaFinding(
                "differs",
                table.full_name,
                metadata.describe(volume),
                one.unit,
                f"lacks rows that the other replicas of the range have in {len(lacking)} files",
            )
