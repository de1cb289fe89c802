"""Upkeep of change streams: they begin, what landed unnoticed is brought into them, what nobody needs goes.

How writes are settled is said in change_settling.py, and what is needed by whom in change_retention.py.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.coordinator.fencing import Barrier, Fences, Sides
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.merge_finishing import MergeFinishing
from epochlake.jobs.gate.merge_journal import MergeJournal
from epochlake.jobs.gate.planning import HybridClock, Planning
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas.change_entries import Begun
from epochlake.jobs.replicas.opening import open_all
from epochlake.jobs.upkeep.change_generations import keep_divided
from epochlake.jobs.upkeep.change_healing import heal
from epochlake.jobs.upkeep.change_retention import drop_old
from epochlake.jobs.upkeep.change_settling import settle
from epochlake.metastore.errors import Rejected, WaitTimeout
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage import failures
from epochlake.placement.consistency import BarrierLevel, ConsistencyLevel, majority
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

logger = logging.getLogger(__name__)


class StreamUpkeep(msgspec.Struct, frozen=True):
    """What was done for one stream. `settled`: writes that were brought into it; `forgotten`: that can land no more;
    `open`: that may still land. `dropped`: entries that are kept no longer, of `size` bytes. `generation`: the number
    of the one that was committed, 0 without one. `healed`: files that were damaged and were copied anew; `damaged`:
    those that no replica has whole, each with why; both where every byte was looked at.
    """

    table: str
    begun: bool
    settled: int = 0
    forgotten: int = 0
    open: int = 0
    dropped: int = 0
    size: int = 0
    generation: int = 0
    healed: int = 0
    damaged: tuple[str, ...] = ()

    def require_whole(self) -> None:
        """Raises StorageDamaged where changes cannot be shown."""
        if self.damaged:
            raise failures.StorageDamaged(
                f"damaged files that keep changes of {self.table}, and could not be copied anew: {len(self.damaged)}",
                hint="Bring the replicas that may have them back and run it again, or restore the files; else let "
                "readers read the whole table and go on behind these positions",
            )


def keep_up(cluster: Store, stream: ChangeStream, *, check_bytes: bool = False) -> StreamUpkeep:
    """Begin a stream that has not begun, divide it as its table is divided, settle its writes, and drop what is over.

    With `check_bytes` every byte that is kept then is read, and what is damaged is copied anew from replicas.
    Raises StorageUnavailable.
    """
    table = _table_of(cluster.catch_up(), stream)
    try:
        begin(cluster, stream)
    except WaitTimeout as error:
        logger.info("%s", error)
        return StreamUpkeep(table.full_name, begun=False)
    settled, forgotten, left = settle(cluster, stream)
    dropped, size = drop_old(cluster, stream)
    generation = 0
    try:
        generation = max(keep_divided(cluster, stream).committed, default=0)
    except EpochlakeError as error:
        # Nobody waits for it: until it is made readers go on with the generation of before.
        logger.warning("the changes of %s were not divided anew: %s", table.full_name, error)
    healed, damaged = heal(cluster, stream, table) if check_bytes else (0, ())
    return StreamUpkeep(table.full_name, True, settled, forgotten, left, dropped, size, generation, healed, damaged)


def begin(cluster: Store, stream: ChangeStream) -> Begun:
    """Let a stream begin: fence its table at the epoch that began it, and say how new its rows are then.

    Whoever does not know of the stream can land no more after that. What merges have counted is brought to its level
    before the stream begins, and what they have planned is planned again: whoever has merged cannot write his rows
    anew, as others do who come too early. Raises WaitTimeout where too few replicas answer, Rejected for a table that
    was dropped.
    """
    index = cluster.change_indexes.of(stream)
    begun = index.begun()
    if begun is not None:
        return begun
    metadata = cluster.catch_up()
    table = _table_of(metadata, stream)
    placements = metadata.placements(table.table_id)
    sets = {placements.placement(number).write_sets for number in range(len(placements.lows))}
    sides = tuple(Sides(table.table_id, tuple(one[0]), tuple(one[-1])) for one in sorted(sets))
    barrier = Barrier(stream.since, sides)
    fences = Fences(cluster.storage)
    fences.raise_for(metadata, [barrier])
    if not fences.passed(metadata, barrier, BarrierLevel.QUORUM):
        raise _not_begun(table, f"too few replicas answer: {fences.missing(metadata, barrier)}")
    volumes = {volume for one in sides for volume in (*one.old, *one.new)}
    opened, failed = open_all(cluster.storage, metadata, table, volumes, cluster.receipts)
    # What has reached a quorum is on one of so many; a fence may have been raised where nobody answers now.
    if any(_too_few(group, opened.keys()) for one in sides for group in (one.old, one.new)):
        said = "; ".join(f"{metadata.describe(volume)}: {reason}" for volume, reason in failed.items())
        raise _not_begun(table, f"too few replicas answer: {said}")
    newest = max((snapshot.newest_written_at for snapshot in opened.values()), default=0)
    _let_merges_pass(cluster, table)
    return index.begin(newest)


def _let_merges_pass(cluster: Store, table: Table) -> None:
    planning = Planning(cluster, None, lambda _: None)
    writing = Writing(planning, HybridClock(), f"begin-{uuid.uuid4()}", "the beginning of a change stream")
    journal = MergeJournal(cluster.storage, cluster.root.merges, table.table_id)
    try:
        MergeFinishing(planning, writing, journal).let_pass(table, ConsistencyLevel.QUORUM)
    except ConsistencyNotReached as error:
        raise _not_begun(table, f"a merge that counts could not be finished: {error}") from error


def _too_few(group: tuple[VolumeId, ...], there: Collection[VolumeId]) -> bool:
    return sum(volume in there for volume in group) < majority(len(group))


def _not_begun(table: Table, why: str) -> WaitTimeout:
    return WaitTimeout(
        f"the stream of changes of {table.full_name} has not begun, as {why}",
        hint="Bring them back; the coordinator begins it then",
    )


def _table_of(metadata: ClusterMetadata, stream: ChangeStream) -> Table:
    table = metadata.schema.tables.get(stream.table_id)
    if table is None:
        raise Rejected(Code.UNKNOWN_TABLE, f"table {stream.table_id} was dropped by epoch {metadata.epoch}")
    return table
