"""Sweeping: taking out of replica tables what their volumes do not own any more, before a request ends.

What a volume may hold follows from the newest metadata alone, so a sweep needs to know nothing of what
was done. It is under a fence at that epoch: what was planned before cannot come in after it.

Storage that does not answer is passed over where it goes with this very request, is that of the node whose request is
taken back (which could not be replaced before that has ended), or is gone for good. Another member that is expected
back holds the request up: its rows of before would stay for ever. They would not harm, ranges that a volume gains are
emptied first; but a request that is done says that every node holds what it owns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from epochlake.jobs.coordinator.effects.replicas import drop, replica_address, was_never_made
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import ReplicaKey, is_gone, sessions_by_replica
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.intervals import without
from epochlake.jobs.replicas.outcomes import Unreachable
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, RequestKind, RequestState, TopologyRequest, VolumeId
from epochlake.metastore.planning.ring_changes import change_of, owned_by, tables_by_setting
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.ring.state import Operation
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval

THREADS = 16

MEMBERS = frozenset({NodeState.NORMAL, NodeState.MOVING, NodeState.REBUILDING, NodeState.DECOMMISSIONING})
GOING = (RequestKind.LEAVE, RequestKind.REMOVE)


class Sweeper:
    """Sweeps the replica tables that the operations of a request have touched.

    Which those are it knows from having seen them in flight; of a request that another coordinator began it knows
    nothing, and looks at every replica table on the ring.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._seen: dict[str, frozenset[ReplicaKey]] = {}

    def see(self, metadata: ClusterMetadata, request_id: str, operation: Operation) -> None:
        """Remember what an operation in flight touches."""
        if request_id not in self._seen:
            self._seen[request_id] = change_of(metadata, operation).replica_keys

    def sweep(self, metadata: ClusterMetadata, request: TopologyRequest) -> None:
        """Leave in every replica table concerned only what its volume owns. Raises SideEffectFailed."""
        replica_keys = self._seen.get(request.request_id)
        if replica_keys is None or request.kind is RequestKind.KEYSPACE_RF_CHANGE:
            replica_keys = frozenset(_everywhere(metadata))
        sweep_replicas(self._storage, metadata, request, replica_keys)
        self._seen.pop(request.request_id, None)


def sweep_replicas(
    storage: Storage, metadata: ClusterMetadata, request: TopologyRequest, replica_keys: Collection[ReplicaKey]
) -> None:
    """Sweep these replica tables, those of tables that were dropped left out. Raises SideEffectFailed."""
    sessions = sessions_by_replica(metadata)
    owned = {
        table_id: owned_by(metadata, table_id)
        for table_id in {table_id for table_id, _ in replica_keys}
        if table_id in metadata.schema.tables
    }
    coming = _coming(metadata)

    def attempt(replica: ReplicaKey) -> str | None:
        table_id, volume = replica
        if table_id not in owned or is_gone(metadata, volume):
            return None
        try:
            holds = [*owned[table_id].get(volume, ()), *coming.get(replica, ())]
            _sweep(storage, metadata, replica, holds, sessions.get(replica, frozenset()))
        except SideEffectFailed as failure:
            return str(failure) if _is_expected_back(metadata, request, volume) else None
        return None

    failures = [failure for failure in ThreadWorkers(THREADS).run(attempt, sorted(replica_keys)) if failure is not None]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise SideEffectFailed(
            f"cleaning up what is not owned any more: {failures[0]}{more}", hint="Bring it back, or remove its node"
        )


def unowned(owned: Iterable[Interval]) -> list[Interval]:
    """The tokens that are in none of the intervals."""
    return without((MIN_TOKEN, MAX_TOKEN), owned)


def _sweep(
    storage: Storage, metadata: ClusterMetadata, replica: ReplicaKey, kept: Iterable[Interval], sessions: frozenset[str]
) -> None:
    address = replica_address(storage, metadata, *replica)
    if was_never_made(address):
        return
    # Sessions of streaming that was given up are closed where they were opened.
    fence = raise_fence(address, metadata.fence, open_sessions=sessions)
    if isinstance(fence, Unreachable):
        raise SideEffectFailed(f"{metadata.describe(replica[1])}: {fence.reason}")
    drop(storage, metadata, *replica, unowned(kept))


def _coming(metadata: ClusterMetadata) -> dict[ReplicaKey, list[Interval]]:
    """The tokens that operations in flight bring to replica tables, also those that are only prepared.

    Their next step may be committed while this sweep is late, and rows be written to them. No fence tells then: one at
    this sweep's epoch was all that their preparation has raised. Operations that are prepared later raise it above.
    """
    coming: dict[ReplicaKey, list[Interval]] = defaultdict(list)
    for operation in metadata.rings.operations.values():
        for replica, gains in change_of(metadata, operation).gains_of().items():
            coming[replica] += [(gain.low, gain.high) for gain in gains]
    return coming


def _everywhere(metadata: ClusterMetadata) -> list[ReplicaKey]:
    """Every replica table on the ring that there can be."""
    volumes = [
        volume.volume_id
        for node in metadata.directory.nodes.values()
        if node.state is not NodeState.LEFT
        for volume in node.volumes
    ]
    tables = [table_id for tables in tables_by_setting(metadata).values() for table_id in tables]
    return [(table_id, volume) for table_id in tables for volume in volumes]


def _is_expected_back(metadata: ClusterMetadata, request: TopologyRequest, volume: VolumeId) -> bool:
    """Whether the volume's node stays a member when the request has ended, and may be removed or replaced until then.

    The node of a request that is taken back may not: it would neither come back nor could it go.
    """
    node = metadata.directory.node_of_volume[volume]
    if node.node_id == request.node_id and (request.kind in GOING or request.state is RequestState.CANCELLING):
        return False
    return node.state in MEMBERS
