"""How a cluster is: what the metadata says, beside what volumes and ZooKeeper answer now.

The one idea: every answer is best effort but the metadata. A volume that does not answer and a ZooKeeper that is away
are part of the picture, never the end of it; and whatever is open says what it is waiting for.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.past import cluster_at, log_of
from epochlake.jobs.administration.reachability import probe
from epochlake.jobs.administration.schema import replicas_by_volume
from epochlake.jobs.coordinator.loads import measure_loads
from epochlake.jobs.coordinator.planning import Loads, next_transitions
from epochlake.metastore import storage
from epochlake.metastore.configuration import EMBEDDED
from epochlake.metastore.coordination.election import current_leader
from epochlake.metastore.coordination.embedded_files import files_of, is_serving, is_supervised, read_endpoint
from epochlake.metastore.errors import LogUnreadable, Rejected
from epochlake.metastore.history import entries, metadata_at
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import node_names
from epochlake.metastore.metadata.events import StartRequest
from epochlake.metastore.metadata.events.nodes import volumes_given_up
from epochlake.metastore.metadata.model import (
    Node,
    NodeState,
    RequestKind,
    RequestState,
    Switches,
    TopologyRequest,
    VolumeId,
)
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

ZOOKEEPER_SECONDS = 2.0
PLANNED_TABLETS = 200_000
"""Above so many tablets a status does not plan, to say what cannot move: it would take seconds."""


class VolumeStatus(msgspec.Struct, frozen=True):
    """`bytes`: live data files of its replicas, null when not measured; `obstacle`: why it does not answer."""

    name: str
    volume_id: int
    uri: str
    capacity: int
    tablets: int
    bytes: int | None = None
    obstacle: str | None = None


class NodeStatus(msgspec.Struct, frozen=True):
    """A node; `tablets`, `capacity` and `bytes` are sums over its volumes."""

    name: str
    node_id: int
    host_id: str
    state: str
    datacenter: str
    rack: str
    tablets: int
    capacity: int
    bytes: int | None
    replaces: str | None
    replaced_by: str | None
    volumes: tuple[VolumeStatus, ...]


class RequestStatus(msgspec.Struct, frozen=True):
    """An open topology request. `tablets_total`: to be moved when it started, `tablets_left`: still to be moved.

    `seconds_left` is reckoned from the speed so far. `blocked_by`: what stands in the way now, empty when nothing does.
    """

    request_id: str
    kind: str
    node: str
    state: str
    reason: str
    requested_epoch: int
    started_epoch: int | None
    tablets_total: int | None
    tablets_left: int | None
    seconds_left: float | None
    blocked_by: tuple[str, ...]


class StageStatus(msgspec.Struct, frozen=True):
    """How many tablets are in a stage of a transition; `errors`: the different errors of those on their way back."""

    kind: str
    stage: str
    tablets: int
    errors: tuple[str, ...]


class CoordinatorStatus(msgspec.Struct, frozen=True):
    """Who coordinates. `zookeeper`: `answers`, `away`, `stopped` (an embedded one that nobody uses) or `not-asked`."""

    zookeeper: str
    leader: str | None = None
    detail: str | None = None


class Status(msgspec.Struct, frozen=True):
    """A cluster at an epoch. `now` is false for an epoch of the past: then volumes and ZooKeeper were not asked."""

    cluster: str
    cluster_id: str
    root: str
    epoch: int
    now: bool
    keyspaces: int
    tables: int
    tablets: int
    coordinator: CoordinatorStatus
    switches: Switches
    nodes: tuple[NodeStatus, ...]
    requests: tuple[RequestStatus, ...]
    transitions: tuple[StageStatus, ...]


def status(cluster: Cluster, *, at: int | None = None, ask_volumes: bool = True) -> Status:
    """The state of the cluster now, or as it was at an epoch. Raises InvalidRequest for an epoch that is not there."""
    metadata = cluster_at(cluster, at)
    now = metadata is cluster.metadata
    loads = measure_loads(metadata) if now and ask_volumes else None
    coordinator = coordinator_status(cluster) if now else CoordinatorStatus("not-asked")
    return Status(
        cluster=metadata.identity.name,
        cluster_id=metadata.identity.cluster_id,
        root=cluster.root.uri,
        epoch=metadata.epoch,
        now=now,
        keyspaces=len(metadata.schema.keyspaces),
        tables=len(metadata.schema.tables),
        tablets=sum(tablet_map.count for tablet_map in metadata.tablets.maps.values()),
        coordinator=coordinator,
        switches=metadata.switches,
        nodes=node_statuses(metadata, loads),
        requests=tuple(
            _request_status(cluster, metadata, request, loads, coordinator) for request in metadata.open_requests()
        ),
        transitions=_stages(metadata),
    )


def node_statuses(metadata: ClusterMetadata, loads: Loads | None = None) -> tuple[NodeStatus, ...]:
    """All nodes by number, those that have left as well; with `loads`, what their volumes hold and answer."""
    replicas, names = replicas_by_volume(metadata), node_names(metadata.directory)
    present = [node for node in metadata.directory.nodes.values() if node.state is not NodeState.LEFT]
    held: dict[VolumeId, int] = defaultdict(int)
    obstacles: Mapping[VolumeId, str | None] = {}
    if loads is not None:
        for (_, _, volume_id), size in loads.sizes.items():
            held[volume_id] += size
        probed = probe(metadata, (volume for node in present for volume in node.volumes))
        obstacles = {volume_id: found.obstacle for volume_id, found in probed.items()}

    def bytes_on(volume_id: VolumeId) -> int | None:
        unknown = loads is None or volume_id not in obstacles or volume_id in loads.unmeasured
        return None if unknown or obstacles[volume_id] else held[volume_id]

    def one(node: Node) -> NodeStatus:
        volumes = tuple(
            VolumeStatus(
                volume.name,
                volume.volume_id,
                volume.uri,
                volume.capacity,
                replicas.get(volume.volume_id, 0),
                bytes_on(volume.volume_id),
                obstacles.get(volume.volume_id),
            )
            for volume in node.volumes
        )
        measured = [volume.bytes for volume in volumes if volume.bytes is not None]
        return NodeStatus(
            name=names[node.node_id],
            node_id=node.node_id,
            host_id=node.host_id,
            state=node.state.value,
            datacenter=node.datacenter,
            rack=node.rack,
            tablets=sum(volume.tablets for volume in volumes),
            capacity=sum(volume.capacity for volume in volumes),
            bytes=sum(measured) if len(measured) == len(volumes) else None,
            replaces=None if node.replaces is None else names[node.replaces],
            replaced_by=None if node.replaced_by is None else names[node.replaced_by],
            volumes=volumes,
        )

    return tuple(one(metadata.directory.nodes[key]) for key in sorted(metadata.directory.nodes))


def coordinator_status(cluster: Cluster) -> CoordinatorStatus:
    """Who coordinates, without starting anything and without waiting for long."""
    if cluster.configuration.zookeeper.connect == EMBEDDED and not _embedded_serves(cluster):
        return CoordinatorStatus("stopped", detail="the embedded ZooKeeper is not running, so nobody coordinates")
    try:
        leader = current_leader(cluster.coordination(ZOOKEEPER_SECONDS), ZOOKEEPER_SECONDS)
    except EpochlakeError as error:
        return CoordinatorStatus("away", detail=str(error))
    return CoordinatorStatus("answers", leader)


def _embedded_serves(cluster: Cluster) -> bool:
    local = storage.local_path(cluster.root.uri)
    if local is None:
        return False
    files = files_of(Path(local))
    try:
        if not files.supervisor.exists() or not is_supervised(files):
            return False
    except OSError:
        return False
    endpoint = read_endpoint(files)
    return endpoint is not None and is_serving(*endpoint, files.data, timeout=ZOOKEEPER_SECONDS)


def _stages(metadata: ClusterMetadata) -> tuple[StageStatus, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    errors: dict[tuple[str, str], set[str]] = defaultdict(set)
    for transition in metadata.tablets.transitions.values():
        key = (transition.kind.value, transition.stage.value)
        counts[key] += 1
        if transition.error:
            errors[key].add(transition.error)
    return tuple(StageStatus(*key, counts[key], tuple(sorted(errors[key]))) for key in sorted(counts))


def _request_status(
    cluster: Cluster,
    metadata: ClusterMetadata,
    request: TopologyRequest,
    loads: Loads | None,
    coordinator: CoordinatorStatus,
) -> RequestStatus:
    left = total = seconds = None
    given_up = volumes_given_up(metadata, request)
    if given_up:
        left = len(metadata.replicas_in_use(given_up))
        if request.started_epoch is not None:
            total, seconds = _progress(cluster, request.started_epoch, given_up, left)
    return RequestStatus(
        request_id=request.request_id,
        kind=request.kind.value,
        node=node_names(metadata.directory)[request.node_id],
        state=request.state.value,
        reason=request.reason,
        requested_epoch=request.requested_epoch,
        started_epoch=request.started_epoch,
        tablets_total=total,
        tablets_left=left,
        seconds_left=seconds,
        blocked_by=tuple(_obstacles(cluster, metadata, request, loads, coordinator)),
    )


def _progress(
    cluster: Cluster, started_epoch: int, given_up: set[VolumeId], left: int
) -> tuple[int | None, float | None]:
    """How many tablets there were to move at the start, and at the speed so far how many seconds are left."""
    log = log_of(cluster)
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
    if request.state is RequestState.PENDING:
        try:
            StartRequest(request.request_id).check(metadata)
        except Rejected as rejected:
            found.append(rejected.reason)
        return found
    if loads is None:
        return found
    node = metadata.directory.nodes[request.node_id]
    gone = [volume.name for volume in node.volumes if volume.volume_id in loads.unmeasured]
    if gone and request.kind is RequestKind.LEAVE:
        found.append(
            f"volume(s) {', '.join(gone)} of {node.name} do not answer: if they are lost, cancel this request and "
            f"`epochlake node remove {node.name}`"
        )
    elif gone and request.kind is RequestKind.REPLACE:
        found.append(f"volume(s) {', '.join(gone)} of {node.name} do not answer: mount them")
    if sum(tablet_map.count for tablet_map in metadata.tablets.maps.values()) <= PLANNED_TABLETS:
        _, stuck = next_transitions(metadata, loads, cluster.configuration.coordinator.streams_per_volume)
        found += [reason for reason in stuck if node.name in reason]
    errors = {
        transition.error
        for transition in metadata.tablets.transitions.values()
        if transition.error and volumes_given_up(metadata, request) & {*transition.replicas}
    }
    return found + sorted(errors)
