"""Settling writes of tables with change streams: what has landed and is not in the index of changes is brought into it.

Such a write has lost its writer, or its writer has been told of a failure. It is found among those that may land
(change_intents.py):

- Of which some row is live on some replica: a read may show it, so it is brought to its level and then into the index.
- Of which nothing is live, and nothing is left that could be committed: it can land no more, and is forgotten.
- Of which nothing is live yet: it stays, as its writer may only be slow. Vacuum takes its files when their time comes.

All of it may be done by two at once, and end anywhere: the index has each file once. A writer that was paused for so
long that its write was forgotten, and lands it all the same, puts it there again (change_recording.py).
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.gate.batches import Live, Located, decided, locate
from epochlake.jobs.gate.planning import HybridClock, Planning
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.change_intents import Intent, Intents, PutIntent
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaSnapshot, require_replica
from epochlake.jobs.replicas.sealing import require_intact
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.stored import is_stored
from epochlake.metastore.announcing import live_leases
from epochlake.metastore.errors import CoordinationUnavailable, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.metadata.model import NodeState, Table, VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

logger = logging.getLogger(__name__)


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
        except EpochlakeError as error:
            logger.info("a write by %s is not settled yet: %s", intent.by, error)
            continue
        settled += found is True
        forgotten += found is False
    return settled, forgotten, len(waiting) - settled - forgotten


def _settle(cluster: Store, stream: ChangeStream, index: ChangeIndex, intent: Intent) -> bool | None:
    """Whether a write is in the index now (True), can land no more (False), or that is open (None)."""
    planning = Planning(cluster, None, lambda _: None)
    table = planning.metadata.schema.tables.get(stream.table_id)
    if table is None:
        return None  # dropped meanwhile: should it be restored, its rows are there again
    intents = Intents(cluster.storage, index)
    intent, replaced = _without_replaced(cluster, intent)
    if not intent.files:
        intents.take_away(intent)
        intents.forget_files(index.without_entry(replaced))
        return False
    opened, failed = planning.open_for_write(table)
    files = [staged for staged in intent.files if staged.file.rows]
    live = _live(cluster, table, files, opened)
    if not live and _was_merged(cluster, table, files):
        # All replicas had it, so it was shown, and something newer has come over all of its rows.
        return _append(index, intents, intent)
    if not live:
        if failed or _may_be_committed(cluster, planning.metadata, table, files, opened):
            return None
        intents.take_away(intent)
        intents.forget_files(index.without_entry([one.file for one in files]))
        return False
    begun = index.begun()
    if begun is not None and not table.append_only and min(one.file.min_written_at for one in files) <= begun.newest:
        # It is of before the stream began, and so is what has come over it.
        intents.take_away(intent)
        return False
    located = locate(cluster.storage, planning.metadata, table, [*files], opened, failed, cluster.ledger)
    located = _with_bytes(cluster, planning.metadata, table, index, located, opened)
    writing = Writing(planning, HybridClock(), f"settle-{uuid.uuid4()}", intent.by)
    put = PutIntent(index, intent)
    writing.land(table, located.files, ConsistencyLevel.QUORUM, located, write_id=intent.write_id, put=put)
    return True


def _without_replaced(cluster: Store, intent: Intent) -> tuple[Intent, list[DataFile]]:
    """An intent without those of its files that a later try of the named batch has staged anew, and these."""
    decision = decided(cluster.storage, cluster.root.batches, intent.write_id)
    if not decision.generations:
        return intent, []
    counting = {staged.file.file_id for staged in decision.files}
    left = tuple(staged for staged in intent.files if staged.file.file_id in counting)
    replaced = [staged.file for staged in intent.files if staged.file.file_id not in counting]
    return msgspec.structs.replace(intent, files=left), replaced


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


def _may_be_committed(
    cluster: Store,
    metadata: ClusterMetadata,
    table: Table,
    files: list[StagedFile],
    opened: dict[VolumeId, ReplicaSnapshot],
) -> bool:
    """Whether bytes of a write still lie where they could be committed from, or that cannot be told.

    Where they were staged; and where its writer may have brought them since, whole, in pieces, or half copied.
    """
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
    return any(_holds_bytes(snapshot, files) for snapshot in opened.values())


def _holds_bytes(snapshot: ReplicaSnapshot, files: list[StagedFile]) -> bool:
    """Whether a replica's directory has a file with rows of a write, committed or not."""
    try:
        names = [entry.name for entry in snapshot.address.storage.list_files(snapshot.address.uri)]
    except StorageUnavailable:
        return True
    return any(staged.file.origin in name for staged in files for name in names)


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
        stored = set(staged.stored) or {_brought_back(cluster, metadata, table, index, staged, opened)}
        files.append(StagedFile(staged.file, frozenset(stored), {}))
    return msgspec.structs.replace(located, files=tuple(files), lost=())


def _brought_back(
    cluster: Store,
    metadata: ClusterMetadata,
    table: Table,
    index: ChangeIndex,
    staged: StagedFile,
    opened: dict[VolumeId, ReplicaSnapshot],
) -> VolumeId:
    """Store the index's copy of a file on a replica that takes it; on which. Raises StorageUnavailable."""
    kept = index.data_uri(staged.file)
    require_intact(cluster.storage, staged.file, kept)
    failure: StorageUnavailable | WrongCluster | None = None
    for volume in sorted(opened):
        address = address_of(cluster.storage, metadata, table, volume)
        uri = places.join(address.uri, staged.file.path)
        try:
            require_replica(address)
            cluster.storage.create_directory(uri.rpartition("/")[0])
            cluster.storage.copy_file(kept, uri)
        except (StorageUnavailable, WrongCluster) as error:
            failure = error
        else:
            return volume
    raise failure or failures.MissingFile(
        f"no replica of {table.full_name} answers to take file {staged.file.file_id}", hint="Try again when one does"
    )
