"""Upkeep of change streams: they begin, what landed unnoticed is brought into them, what nobody needs goes.

A write that has landed and is not in the index of changes has lost its writer, or its writer has been told of a
failure. It is found among those that may land (change_intents.py):

- Of which some row is live on some replica: a read may show it, so it is brought to its level and then into the index.
- Of which nothing is live, and nothing is left that could be committed: it can land no more, and is forgotten.
- Of which nothing is live yet: it stays, as its writer may only be slow. Vacuum takes its files when their time comes.

All of it may be done by two at once, and end anywhere: the index has each file once.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.coordinator.fencing import Barrier, Fences, Sides
from epochlake.jobs.gate.batches import Live, Located, locate
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.planning import HybridClock, Planning
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas.change_index import Begun, ChangeEntry, ChangeIndex
from epochlake.jobs.replicas.change_intents import Intent, Intents
from epochlake.jobs.replicas.change_readers import Readers
from epochlake.jobs.replicas.opening import address_of, open_all
from epochlake.jobs.replicas.replica import ReplicaSnapshot, require_replica
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.stored import is_stored
from epochlake.metastore.announcing import live_leases
from epochlake.metastore.errors import CoordinationUnavailable, Rejected, StorageUnavailable, WaitTimeout, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.metadata.model import NodeState, Table, VolumeId
from epochlake.metastore.storage import places
from epochlake.placement.consistency import BarrierLevel, ConsistencyLevel

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

logger = logging.getLogger(__name__)


class StreamUpkeep(msgspec.Struct, frozen=True):
    """What was done for one stream. `settled`: writes that were brought into it; `forgotten`: that can land no more;
    `open`: that may still land. `dropped`: entries that are kept no longer, of `size` bytes.
    """

    table: str
    begun: bool
    settled: int = 0
    forgotten: int = 0
    open: int = 0
    dropped: int = 0
    size: int = 0


def keep_up(cluster: Store, stream: ChangeStream) -> StreamUpkeep:
    """Begin a stream that has not begun, settle its writes, and drop what is over. Raises StorageUnavailable."""
    metadata = cluster.catch_up()
    table = metadata.schema.tables[stream.table_id]
    try:
        begin(cluster, stream)
    except WaitTimeout as error:
        logger.info("%s", error)
        return StreamUpkeep(table.full_name, begun=False)
    settled, forgotten, left = settle(cluster, stream)
    dropped, size = drop_old(cluster, stream)
    return StreamUpkeep(table.full_name, True, settled, forgotten, left, dropped, size)


def begin(cluster: Store, stream: ChangeStream) -> Begun:
    """Let a stream begin: fence its table at the epoch that began it, and say how new its rows are then.

    Whoever does not know of the stream can land no more after that. Raises WaitTimeout where too few replicas answer.
    """
    index = cluster.change_indexes.of(stream)
    begun = index.begun()
    if begun is not None:
        return begun
    metadata = cluster.catch_up()
    table = metadata.schema.tables[stream.table_id]
    placements = metadata.placements(table.table_id)
    sets = {placements.placement(number).write_sets for number in range(len(placements.lows))}
    sides = tuple(Sides(table.table_id, tuple(one[0]), tuple(one[-1])) for one in sorted(sets))
    barrier = Barrier(stream.since, sides)
    fences = Fences(cluster.storage)
    fences.raise_for(metadata, [barrier])
    if not fences.passed(metadata, barrier, BarrierLevel.QUORUM):
        raise WaitTimeout(
            f"the stream of changes of {table.full_name} has not begun, as too few replicas answer: "
            f"{fences.missing(metadata, barrier)}",
            hint="Bring them back; the coordinator begins it then",
        )
    volumes = {volume for one in sides for volume in (*one.old, *one.new)}
    opened, _ = open_all(cluster.storage, metadata, table, volumes, cluster.receipts)
    newest = max((snapshot.newest_written_at for snapshot in opened.values()), default=0)
    return index.begin(newest)


def settle(cluster: Store, stream: ChangeStream) -> tuple[int, int, int]:
    """Look what became of the writes that may have landed: how many are in the index now, can land no more, are left.

    Those of writers that live are left alone. Raises StorageUnavailable for the root.
    """
    index = cluster.change_indexes.of(stream)
    intents = Intents(cluster.storage, index)
    waiting = intents.all()
    if not waiting:
        return 0, 0, 0
    try:
        alive = {lease.pipeline_id for lease in live_leases(cluster)}
    except CoordinationUnavailable:
        return 0, 0, len(waiting)
    settled = forgotten = 0
    for intent in waiting:
        if intent.pipeline_id in alive and not intent.ended:
            continue
        try:
            found = _settle(cluster, stream, index, intent)
        except (ConsistencyNotReached, StorageUnavailable, Rejected) as error:
            logger.info("a write by %s is not settled yet: %s", intent.by, error)
            continue
        settled += found is True
        forgotten += found is False
    return settled, forgotten, len(waiting) - settled - forgotten


def _settle(cluster: Store, stream: ChangeStream, index: ChangeIndex, intent: Intent) -> bool | None:
    """Whether a write is in the index now (True), can land no more (False), or that is open (None)."""
    planning = Planning(cluster, None, lambda _: None)
    table = planning.metadata.schema.tables[stream.table_id]
    intents = Intents(cluster.storage, index)
    opened, failed = planning.open_for_write(table)
    files = [staged for staged in intent.files if staged.file.rows]
    live = _live(cluster, table, files, opened)
    if not live and _was_merged(cluster, table, files):
        # All replicas had it, so it was shown, and something newer has come over all of its rows.
        return _append(index, intents, intent)
    if not live:
        if failed or _may_be_committed(cluster, planning.metadata, table, files):
            return None
        intents.take_away(intent)
        known = {file.file_id for entry in _entries(index) for file in entry.files}
        intents.forget_files(one.file for one in files if one.file.file_id not in known)
        return False
    begun = index.begun()
    if begun is not None and not table.append_only and min(one.file.min_written_at for one in files) <= begun.newest:
        # It is of before the stream began, and so is what has come over it.
        intents.take_away(intent)
        return False
    located = locate(cluster.storage, planning.metadata, table, [*files], opened, failed, cluster.ledger)
    located = _with_bytes(cluster, planning.metadata, table, index, located, opened)
    writing = Writing(planning, HybridClock(), f"settle-{uuid.uuid4()}", intent.by)
    writing.land(table, located.files, ConsistencyLevel.QUORUM, located, write_id=intent.write_id, intent=intent)
    return True


def _append(index: ChangeIndex, intents: Intents, intent: Intent) -> bool:
    files = [staged.file for staged in intent.files]
    index.append(intent.write_id, files, epoch=0, level=intent.level, by=intent.by, in_time=False)
    intents.take_away(intent)
    return True


def _was_merged(cluster: Store, table: Table, files: list[StagedFile]) -> bool:
    """Whether a compaction has taken in rows of a write, which it does where all replicas have them."""
    origins = {staged.file.origin for staged in files}
    merges = cluster.ledger.merges(table.table_id).values()
    return any(one.origin in origins for merge in merges for one in merge.replaced)


def _live(cluster: Store, table: Table, files: list[StagedFile], opened: dict[VolumeId, ReplicaSnapshot]) -> bool:
    """Whether a row of a write is live anywhere, as it was written, in pieces, or merged with others."""
    everything = [file for snapshot in opened.values() for file in snapshot.all_files.values()]
    lineage = cluster.ledger.lineage(table.table_id, [*everything, *(staged.file for staged in files)])
    live = Live(opened, lineage)
    return any(True for staged in files for _ in live.of(staged.file))


def _may_be_committed(cluster: Store, metadata: ClusterMetadata, table: Table, files: list[StagedFile]) -> bool:
    """Whether a staged file still lies where it could be committed from, or that cannot be told."""
    nodes = metadata.directory.node_of_volume
    for staged in files:
        for volume in staged.stored:
            if nodes[volume].state is NodeState.LEFT or volume in metadata.directory.lost:
                continue
            try:
                if is_stored(staged.file, address_of(cluster.storage, metadata, table, volume)):
                    return True
            except (StorageUnavailable, WrongCluster):
                return True
    return False


def _with_bytes(
    cluster: Store,
    metadata: ClusterMetadata,
    table: Table,
    index: ChangeIndex,
    located: Located,
    opened: dict[VolumeId, ReplicaSnapshot],
) -> Located:
    """The files of a write; those that lie whole on no replica are brought back from the copies of the index."""
    files = []
    for staged in located.files:
        stored = set(staged.stored)
        if not stored:
            for volume in sorted(opened):
                address = address_of(cluster.storage, metadata, table, volume)
                uri = places.join(address.uri, staged.file.path)
                require_replica(address)
                cluster.storage.create_directory(uri.rpartition("/")[0])
                cluster.storage.copy_file(index.data_uri(staged.file), uri)
                stored.add(volume)
                break
        files.append(StagedFile(staged.file, frozenset(stored), {}))
    return msgspec.structs.replace(located, files=tuple(files), lost=())


def drop_old(cluster: Store, stream: ChangeStream) -> tuple[int, int]:
    """Drop the changes that are older than the stream's retention and that no reader needs: how many, and bytes.

    A named reader holds back what it has not read, up to the stream's limit. Writes that may still land hold back what
    they may be late to, and so do those that are kept.
    """
    index = cluster.change_indexes.of(stream)
    now = time.time_ns() // 1000
    least = now - int(stream.retention_seconds * 1_000_000)
    limit = now - int(stream.limit_seconds * 1_000_000)
    read_up_to = min((reader.position for reader in Readers(cluster.storage, index).all()), default=None)
    tail = index.tail()
    held = min(
        (
            index.before(min(staged.file.min_written_at for staged in intent.files), tail)
            for intent in Intents(cluster.storage, index).all()
            if intent.files
        ),
        default=tail.position,
    )
    begun, floor = index.begun(), index.floor()
    over: list[ChangeEntry] = []
    for entry in index.entries(floor, min(held, tail.position)):
        unread = read_up_to is not None and entry.position > read_up_to
        if entry.at >= (limit if unread else least):
            break
        over.append(entry)
    over = _needed_by_none(index, over, tail.position)
    if not over or begun is None or not index.drop(over[-1].position, over):
        return 0, 0
    return len(over), sum(file.size for entry in over for file in entry.files)


def _needed_by_none(index: ChangeIndex, over: list[ChangeEntry], tail: int) -> list[ChangeEntry]:
    """The first of some entries, as many as no later one has to be compared with to tell which of its rows are late."""
    if not over:
        return over
    last = over[-1].position
    for entry in index.entries(last, tail):
        last = min(last, index.before_entry(entry, min(file.min_written_at for file in entry.files)))
    kept = [entry for entry in over if entry.position <= last]
    return kept if len(kept) == len(over) else _needed_by_none(index, kept, tail)


def _entries(index: ChangeIndex) -> list[ChangeEntry]:
    return list(index.entries(0, index.tail().position))
