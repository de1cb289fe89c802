"""How open requests stand: how far they are, how long they will take, and what each is waiting for.

Whatever is open says what is in its way now, the most general first, in words that say what to do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.topology_changes import subjects
from epochlake.jobs.replicas.reachability import probe
from epochlake.jobs.views.movements import plan_on_ring
from epochlake.jobs.views.ways_out import ways_out
from epochlake.metastore.coordination.keeping import KeeperState
from epochlake.metastore.errors import LogUnreadable, Rejected
from epochlake.metastore.following.history import entries, metadata_at
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import FinishRequest, StartRequest
from epochlake.metastore.metadata.events.nodes import volumes_given_up
from epochlake.metastore.metadata.events.operations import NO_NODE
from epochlake.metastore.metadata.model import RequestKind, RequestState, TopologyRequest, VolumeId
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.metastore.metadata.ring_state import operation_of_request
from epochlake.metastore.planning.balancing import Loads, next_transitions
from epochlake.metastore.planning.ring import replication_left
from epochlake.metastore.planning.ring_changes import change_of
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.metastore.storage.storage import Storage

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

PLANNED_TABLETS = 200_000
"""Above so many tablets a status does not plan, to say what cannot move: it would take seconds."""

PLANNED_RANGES = 50_000
"""Above so many ranges on the ring a status does not plan for each request that waits; a dry run always does."""


class RequestStatus(msgspec.Struct, frozen=True):
    """An open topology request. `tablets_total`: to be moved when it started, `tablets_left`: still to be moved.

    `seconds_left` is reckoned from the speed so far. `blocked_by`: what stands in the way now, empty when nothing does.
    A change of replication is about a `keyspace`, and `node` is empty then. `detail` is why it was paused or cancelled.
    """

    request_id: str
    kind: str
    node: str
    keyspace: str
    state: str
    paused: bool
    reason: str
    detail: str | None
    requested_epoch: int
    started_epoch: int | None
    tablets_total: int | None
    tablets_left: int | None
    seconds_left: float | None
    blocked_by: tuple[str, ...]


class CoordinatorStatus(msgspec.Struct, frozen=True):
    """Who coordinates. `zookeeper`: `answers`, `away`, `stopped` (an embedded one that nobody uses) or `not-asked`.
    `ensemble`: what the coordinator does that keeps the ZooKeeper servers, as it has said last; null where none does.
    """

    zookeeper: str
    leader: str | None = None
    detail: str | None = None
    ensemble: KeeperState | None = None


def request_status(
    cluster: Cluster,
    metadata: ClusterMetadata,
    request: TopologyRequest,
    loads: Loads | None,
    coordinator: CoordinatorStatus,
) -> RequestStatus:
    """How `request` stands at the epoch of `metadata`; `loads` and `coordinator` are what was measured and asked."""
    left = total = seconds = None
    given_up = _given_up(metadata, request)
    if given_up:
        left = len(metadata.replicas_in_use(given_up))
        if request.started_epoch is not None:
            total, seconds = _progress(cluster, request.started_epoch, given_up, left)
    return RequestStatus(
        request_id=request.request_id,
        kind=request.kind.value,
        node="" if request.node_id == NO_NODE else subjects(metadata, request)[0],
        keyspace=request.keyspace,
        state=request.state.value,
        paused=request.paused,
        reason=request.reason,
        detail=request.detail,
        requested_epoch=request.requested_epoch,
        started_epoch=request.started_epoch,
        tablets_total=total,
        tablets_left=left,
        seconds_left=seconds,
        blocked_by=tuple(_obstacles(cluster, metadata, request, loads, coordinator)),
    )


def _given_up(metadata: ClusterMetadata, request: TopologyRequest) -> set[VolumeId]:
    """The volumes whose tablets are to move away before the request ends."""
    if request.node_id == NO_NODE or request.state is RequestState.CANCELLING:
        return set()
    return volumes_given_up(metadata, request)


def _progress(
    cluster: Cluster, started_epoch: int, given_up: set[VolumeId], left: int
) -> tuple[int | None, float | None]:
    """How many tablets there were to move at the start, and at the speed so far how many seconds are left."""
    log = cluster.log()
    try:
        total = len(metadata_at(log, cluster.snapshots, started_epoch).replicas_in_use(given_up))
        started_at = entries(log, started_epoch, started_epoch)[0].committed_at / 1e6
    except LogUnreadable:
        return None, None
    moved = total - left
    return total, (time.time() - started_at) / moved * left if moved > 0 else None


def _obstacles(
    cluster: Cluster,
    metadata: ClusterMetadata,
    request: TopologyRequest,
    loads: Loads | None,
    coordinator: CoordinatorStatus,
) -> list[str]:
    """What keeps a request from going on, the most general first."""
    found = []
    if not metadata.switches.changes:
        why = metadata.switches.changes_reason or "no reason given"
        found.append(f"changes of the metadata are paused ({why}): run `epochlake changes resume`")
    if coordinator.zookeeper == "away":
        found.append("ZooKeeper is away: nothing can be committed")
    elif coordinator.zookeeper != "not-asked" and coordinator.leader is None:
        found.append("no coordinator is running: run `epochlake coordinator run`")
    if request.paused:
        found.append(
            f"the request is paused ({request.detail or 'no reason given'}): run "
            f"`epochlake request resume {request.request_id}`"
        )
    if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return [*found, *_before_its_end(metadata, request)]
    if request.state is RequestState.PENDING or _between_operations(metadata, request):
        return [*found, *_before_its_start(cluster, metadata, request)]
    if loads is None:
        return found
    found += _silent_parts(cluster.storage, metadata, request)
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return found
    node = metadata.directory.nodes[request.node_id]
    if sum(tablet_map.count for tablet_map in metadata.tablets.maps.values()) <= PLANNED_TABLETS:
        _, stuck = next_transitions(metadata, loads, StreamLimits.of(cluster.configuration.coordinator))
        found += [reason for reason in stuck if node.name in reason]
    errors = {
        transition.error
        for transition in metadata.tablets.transitions.values()
        if transition.error and volumes_given_up(metadata, request) & {*transition.replicas}
    }
    return found + sorted(errors)


def _between_operations(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    """Whether a change of replication has its next operation still to begin."""
    return (
        request.kind is RequestKind.KEYSPACE_RF_CHANGE
        and request.state is RequestState.RUNNING
        and operation_of_request(metadata, request.request_id) is None
        and bool(replication_left(metadata, request))
    )


def _before_its_end(metadata: ClusterMetadata, request: TopologyRequest) -> list[str]:
    """Why a request cannot end now."""
    try:
        FinishRequest(request.request_id).check(metadata)
    except Rejected as rejected:
        return [rejected.text]
    return []


def _before_its_start(cluster: Cluster, metadata: ClusterMetadata, request: TopologyRequest) -> list[str]:
    """Why a request or its next operation cannot be started now: what the ring refuses, or else what the event does."""
    if request.kind in (RequestKind.MOVE, RequestKind.KEYSPACE_RF_CHANGE) or ring_keyspaces(metadata):
        if sum(len(placed.reads.starts) for placed in metadata.rings.placements.values()) > PLANNED_RANGES:
            return []
        planned = plan_on_ring(metadata, request, cluster.configuration.ring.tokens_per_node, {})
        return [] if planned.obstacle is None else [planned.obstacle]
    try:
        StartRequest(request.request_id).check(metadata)
    except Rejected as rejected:
        return [rejected.text]
    return []


def _silent_parts(storage: Storage, metadata: ClusterMetadata, request: TopologyRequest) -> list[str]:
    """What a request waits for because it does not answer, and what to do about it.

    The volumes of its operation on the ring; where that has ended (or none was there), all that may have to be cleaned
    up; and of its own node and of the tablets that it moves.
    """
    operation = operation_of_request(metadata, request.request_id)
    if operation is not None:
        parts = {volume for _, volume in change_of(metadata, operation).replica_keys}
    else:
        parts = {
            volume
            for table in metadata.schema.tables
            if metadata.is_on_ring(table)
            for volume in metadata.ring_volumes(table)
        }
    given_up = _given_up(metadata, request)
    for transition in metadata.tablets.transitions.values():
        if given_up & {*transition.replicas}:
            parts |= {*transition.replicas, transition.pending}
    node = metadata.directory.nodes.get(request.node_id)
    parts |= {volume.volume_id for volume in node.volumes} if node is not None else set()
    probed = probe(storage, metadata, (metadata.directory.volumes[volume] for volume in sorted(parts)))
    return ways_out(storage, metadata, [volume for volume, found in probed.items() if found.obstacle is not None])
