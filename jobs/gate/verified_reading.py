"""A read's plan over copies that were looked at: a file that is missing or damaged on one replica is read on another.

Which rows a read must show is known from the file sets of the replicas that the level asks. Whose bytes
they are read from does not matter, as a file has one identity everywhere. So a damaged copy is passed over when its
rows lie whole elsewhere, on any replica of the range, as the same file, cut otherwise, or merged; and the level holds.

Looked at is the end of each file (sealing.py), just before the plan is handed to Spark, which verifies pages.

Each read looks anew, though each look costs time. What a process has seen whole could be known by its inode,
its size and its time, and a file that was torn or replaced since would still be met. But a bit that rots on the disk
changes none of these. In a footer only this look meets it: Spark believes footers, and would show other rows without
an error.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from epochlake.jobs.gate.errors import RowsUnreadable
from epochlake.jobs.gate.past_reading import past_of
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage
from epochlake.jobs.replicas.opening import open_to_read
from epochlake.jobs.replicas.reading import Asked, ReadPlan, joined, plan_read
from epochlake.jobs.replicas.sealing import DamagedBytes, require_intact, require_sealed
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.metadata.placements import ranges_within
from epochlake.metastore.storage.failures import StorageLate

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

logger = logging.getLogger(__name__)

THREADS = 16

FILES_AT_ONCE = 8
"""So many files of a replica are looked at by one access to its storage."""

SLOW_SECONDS = 0.002
"""Who waits longer for so many files looks at the others in several threads. Where files come at once, threads only
take Python's lock from each other, which costs more than the looks.
"""

_Key = tuple[VolumeId, str]


class VerifiedPlan(NamedTuple):
    """A plan, and those of its copies that replicas still have: damage of others is nothing to repair."""

    plan: ReadPlan
    live: tuple[ExpectedFile, ...]


def plan_verified_read(
    cluster: Store,
    metadata: ClusterMetadata,
    table: Table,
    asked: Sequence[Asked],
    turn: int = 0,
    as_of: int | None = None,
) -> VerifiedPlan:
    """Plan a read of what `asked` have, of copies whose ends are as they were written.

    `turn` spreads reads over the holders of a file. What is damaged is noted for repair and told in the log. `as_of`:
    the rows as they were at that time, in microseconds since 1970 (past_reading.py). Raises RowsUnreadable when rows
    have no whole copy on any replica that answers, StorageUnavailable for the ledger, HistoryNotKept.
    """
    shown, taken_out = _shown(cluster, metadata, table, asked, as_of)
    noted = {note.key: note.damage for note in cluster.damage.of(table.table_id)}
    found: dict[_Key, tuple[ExpectedFile, str]] = {}
    looked: set[_Key] = set()
    replaced: Lineage = NO_LINEAGE
    unreachable: dict[str, str] = {}
    wider = False
    while True:
        lineage = cluster.ledger.lineage(table.table_id, _files(shown, everything=bool(noted or found)))
        plan = plan_read(table, shown, lineage, damaged={*noted, *found}, replaced=replaced, turn=turn)
        if plan.lost and not wider:
            wider = True
            asked, unreachable = _widened(cluster, metadata, table, asked)
            shown, taken_out = _shown(cluster, metadata, table, asked, as_of)
            replaced = _replaced(cluster, table)
        elif plan.lost:
            healed = [one for one in plan.lost if _key(one) not in found and _is_intact(one)]
            if not healed:
                damage = {one: found[_key(one)][1] if _key(one) in found else noted[_key(one)] for one in plan.lost}
                _tell(cluster, metadata, table, _live(found, taken_out))
                raise RowsUnreadable(
                    table.full_name,
                    {f"{_place(metadata, one)}: {one.file.path}": reason for one, reason in damage.items()},
                    unreachable,
                    {one.address.volume_id for one in damage},
                )
            for one in healed:
                del noted[_key(one)]
        else:
            fresh = [one for one in plan.copies if _key(one) not in looked]
            looked |= {_key(one) for one in fresh}
            damaged = _damaged(fresh)
            if not damaged:
                _tell(cluster, metadata, table, _live(found, taken_out))
                return VerifiedPlan(plan, tuple(one for one in plan.copies if _key(one) not in taken_out))
            found |= {_key(one): (one, damage) for one, damage in damaged}


def damage_behind(error: BaseException, copies: Iterable[ExpectedFile]) -> list[tuple[ExpectedFile, str]]:
    """Of the copies that a failed read names, those that are damaged, with what is wrong; every byte is looked at."""
    said = ""
    cause: BaseException | None = error
    while cause is not None and len(said) < 1 << 20:
        said += str(cause)
        cause = cause.__cause__ or cause.__context__
    damaged = []
    for one in copies:
        if one.file.path.rpartition("/")[2] in said:
            try:
                require_intact(one.address.storage, one.file, one.uri)
            except DamagedBytes as found:
                damaged.append((one, found.damage))
            except StorageUnavailable as found:
                damaged.append((one, str(found)))
    return damaged


def _damaged(copies: Sequence[ExpectedFile]) -> list[tuple[ExpectedFile, str]]:
    """Those whose ends are not as they were written, or do not come, with what is wrong."""
    by_replica: dict[tuple[VolumeId, str], list[ExpectedFile]] = defaultdict(list)
    for one in copies:
        by_replica[one.address.volume_id, one.address.uri].append(one)
    looks = [some[at : at + FILES_AT_ONCE] for some in by_replica.values() for at in range(0, len(some), FILES_AT_ONCE)]
    found: list[tuple[ExpectedFile, str]] = []
    while looks:
        began = time.monotonic()
        found += _damaged_of_replica(looks.pop(0))
        if time.monotonic() - began > SLOW_SECONDS:
            break
    return found + [one for found in ThreadWorkers(THREADS).run(_damaged_of_replica, looks) for one in found]


def _damaged_of_replica(copies: Sequence[ExpectedFile]) -> list[tuple[ExpectedFile, str]]:
    """As one access to storage, which is late when one of the files does not come: each as such takes longer."""
    address = copies[0].address

    def look() -> list[tuple[ExpectedFile, str]]:
        found = ((one, _damage(one)) for one in copies)
        return [(one, damage) for one, damage in found if damage is not None]

    try:
        return address.storage.within_deadline("look at files of", address.uri, look)
    except StorageUnavailable as error:
        return [(one, str(error)) for one in copies]


def _damage(one: ExpectedFile) -> str | None:
    try:
        require_sealed(one.address.storage, one.file, one.uri)
    except DamagedBytes as error:
        return error.damage
    except StorageLate:
        raise
    except StorageUnavailable as error:
        return str(error)
    return None


def _is_intact(one: ExpectedFile) -> bool:
    """Whether a copy that somebody noted is whole again."""
    try:
        require_intact(one.address.storage, one.file, one.uri)
    except StorageUnavailable:
        return False
    return True


def _widened(
    cluster: Store, metadata: ClusterMetadata, table: Table, asked: Sequence[Asked]
) -> tuple[list[Asked], dict[str, str]]:
    """The same ranges with all replicas that serve reads of them; what those said that do not answer.

    A replica that is fenced ahead is left out: it may have given ranges away.
    """
    placements = metadata.placements(table.table_id)
    reads = [placements.placement(ranges_within(placements.lows, low, low)[0]).reads for low, _, _ in asked]
    known = {snapshot.address.volume_id: snapshot for _, _, snapshots in asked for snapshot in snapshots}
    wanted = {volume for volumes in reads for volume in volumes} - known.keys()
    opened, failed = open_to_read(cluster.storage, metadata, table, wanted, cluster.receipts)
    for volume, snapshot in opened.items():
        if snapshot.fence > metadata.fence:
            failed[volume] = f"it is fenced at epoch {snapshot.fence}, this read was planned at {metadata.fence}"
        else:
            known[volume] = snapshot
    wider: list[Asked] = []
    for (low, high, snapshots), volumes in zip(asked, reads, strict=True):
        extra = [known[v] for v in volumes if v in known and known[v] not in snapshots]
        wider.append((low, high, [*snapshots, *extra]))
    return wider, {metadata.describe(volume): reason for volume, reason in failed.items()}


def _replaced(cluster: Store, table: Table) -> Mapping[str, Sequence[tuple[str, int, int]]]:
    """What each merged file of the table was made of."""
    merges = cluster.ledger.merges(table.table_id)
    return {name: [(one.origin, one.low, one.high) for one in merge.replaced] for name, merge in merges.items()}


def _tell(
    cluster: Store, metadata: ClusterMetadata, table: Table, found: Mapping[_Key, tuple[ExpectedFile, str]]
) -> None:
    """Say what was passed over, and note it for repair."""
    for one, damage in found.values():
        logger.warning(
            "%s on %s is damaged (%s), so reads of %s use other replicas: run `epochlake repair %s --check-bytes`",
            one.file.path,
            _place(metadata, one),
            damage,
            table.full_name,
            table.full_name,
        )
    cluster.damage.add(table.table_id, found.values())


def _shown(
    cluster: Store, metadata: ClusterMetadata, table: Table, asked: Sequence[Asked], as_of: int | None
) -> tuple[Sequence[Asked], frozenset[_Key]]:
    """What a read shows of what it asks for, and which files of that no replica has any more."""
    return (asked, frozenset()) if as_of is None else past_of(cluster, metadata, table, asked, as_of)


def _live(
    found: Mapping[_Key, tuple[ExpectedFile, str]], taken_out: frozenset[_Key]
) -> dict[_Key, tuple[ExpectedFile, str]]:
    return {key: one for key, one in found.items() if key not in taken_out}


def _files(asked: Sequence[Asked], *, everything: bool) -> list[DataFile]:
    """The files that a read of what is asked may show; `everything`: those too that have no row of it."""
    return [
        file
        for low, high, snapshots in joined(asked)
        for one in snapshots
        for file in (one.within(low, high) if everything else one.showing(low, high))
    ]


def _key(one: ExpectedFile) -> _Key:
    return one.address.volume_id, one.file.path


def _place(metadata: ClusterMetadata, one: ExpectedFile) -> str:
    return metadata.describe(one.address.volume_id)
