"""How a cluster is: what the metadata says, beside what volumes and ZooKeeper answer now.

Every answer is best effort but the metadata. A volume that does not answer and a ZooKeeper that is away
are part of the picture, never the end of it; and whatever is open says what it is waiting for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.schema import replicas_by_volume
from epochlake.jobs.coordinator.loads import measure_loads
from epochlake.jobs.replicas.reachability import probe
from epochlake.jobs.views.change_streams import StreamStatus, reachable_statuses
from epochlake.jobs.views.health import Health, health
from epochlake.jobs.views.open_requests import CoordinatorStatus, RequestStatus, request_status
from epochlake.jobs.views.operations import OperationStatus, operation_statuses
from epochlake.jobs.views.sizes import ring_replica_sizes
from epochlake.jobs.views.streamed import Streamed, operation_streamed, transitions_streamed
from epochlake.metastore.configuration import EMBEDDED
from epochlake.metastore.coordination.election import current_leader
from epochlake.metastore.coordination.embedded.files import files_of, is_serving, is_supervised, read_endpoint
from epochlake.metastore.coordination.head import position_of_head, read_head
from epochlake.metastore.coordination.keeping import KEEPER, told
from epochlake.metastore.coordination.whereabouts import whereabouts
from epochlake.metastore.errors import LogWentBack
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node, NodeId, NodeState, Switches, VolumeId
from epochlake.metastore.metadata.names import node_names
from epochlake.metastore.metadata.replica_numbers import altering, tablets_left
from epochlake.metastore.metadata.replication import replication_setting, ring_keyspaces
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.storage import places
from epochlake.metastore.storage.deadlines import LatePlace, left_behind
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvariantViolated
from epochlake.placement.ring.allocation import ownership
from epochlake.placement.showing import Shown
from epochlake.placement.tablets.resizing import Resize

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

ZOOKEEPER_SECONDS = 2.0


class VolumeStatus(msgspec.Struct, frozen=True):
    """`bytes`: live data files of its replicas, null when not measured; `obstacle`: why it does not answer."""

    name: str
    volume_id: int
    uri: str
    capacity: int
    tablets: int
    bytes: int | None = None
    obstacle: str | None = None


class NodeStatus(Shown, msgspec.Struct, frozen=True):
    """A node; `tablets`, `capacity` and `bytes` are sums over its volumes. `state`: `joining` until its join begins.

    `tokens` are how many it owns on the ring, `owns` how much of each keyspace there it serves reads of (1.0 is all).
    """

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
    tokens: int
    owns: dict[str, float]
    maintenance: bool
    weight: float
    tags: tuple[str, ...]
    volumes: tuple[VolumeStatus, ...]


class StageStatus(msgspec.Struct, frozen=True):
    """How many tablets are in a stage of a transition; `errors`: the different errors of those on their way back."""

    kind: str
    stage: str
    tablets: int
    errors: tuple[str, ...]


class ResizeStatus(msgspec.Struct, frozen=True):
    """A decision to `split` or to `merge` the tablets of a table, in force until it is carried out or revoked."""

    table: str
    resize: str
    tablets: int
    decision: int
    epoch: int


class ReplicationStatus(msgspec.Struct, frozen=True):
    """A keyspace on tablets whose replication was altered, and how many tablets do not have the new one yet."""

    keyspace: str
    replication: dict[str, int]
    tablets_left: int


WHOLE, BEHIND, NOT_COMPARED = "whole", "behind", "not-compared"


class LogComparison(msgspec.Struct, frozen=True):
    """Whether the log holds what ZooKeeper knows of it: `whole`, `behind` or `not-compared`, and why."""

    state: str
    detail: str = ""


class Status(Shown, msgspec.Struct, frozen=True):
    """A cluster at an epoch. `now` is false for an epoch of the past: then volumes and ZooKeeper were not asked.

    `operations` are those on the ring, each of one of the requests. `streamed`: how far the tablets on their way are.
    `health` is null where volumes were not asked. `late_volumes`: those that did not answer this process within the
    deadline; `threads_left_behind`: its threads that hang there. `log` is null for an epoch of the past.
    `change_streams`: of the tables whose changes are kept; empty for an epoch of the past. `pinned_tablets`: those
    that the balancer leaves alone. `replications`: keyspaces on tablets that are being brought to another one.
    """

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
    operations: tuple[OperationStatus, ...]
    streamed: Streamed | None
    resizes: tuple[ResizeStatus, ...]
    health: Health | None = None
    late_volumes: tuple[LatePlace, ...] = ()
    threads_left_behind: int = 0
    log: LogComparison | None = None
    change_streams: tuple[StreamStatus, ...] = ()
    pinned_tablets: int = 0
    replications: tuple[ReplicationStatus, ...] = ()


JOINING = "joining"
"""What people read of a node that has asked to join or to replace another one, and has not begun."""


def status(cluster: Cluster, *, at: int | None = None, ask_volumes: bool = True) -> Status:
    """The state of the cluster now, or as it was at an epoch. Raises InvalidRequest for an epoch that is not there."""
    metadata = cluster.at(at)
    now = metadata is cluster.metadata
    loads = measure_loads(cluster.storage, metadata) if now and ask_volumes else None
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
        nodes=node_statuses(cluster.storage, metadata, loads),
        requests=tuple(
            request_status(cluster, metadata, request, loads, coordinator) for request in metadata.open_requests()
        ),
        transitions=_stages(metadata),
        operations=operations_in_flight(cluster) if loads is not None else operation_statuses(metadata),
        streamed=transitions_streamed(cluster, metadata) if loads is not None else None,
        resizes=_resizes(metadata),
        health=health(cluster, metadata, _zookeeper_address(cluster)) if loads is not None else None,
        late_volumes=tuple(cluster.storage.deadlines.late_places()),
        threads_left_behind=left_behind(),
        log=_compared(cluster, coordinator) if now else None,
        change_streams=reachable_statuses(cluster, metadata) if now else (),
        pinned_tablets=_pinned(metadata),
        replications=tuple(
            ReplicationStatus(one.name, one.replication, tablets_left(metadata, one.name)) for one in altering(metadata)
        ),
    )


def require_health(document: Status) -> None:
    """Raise InvariantViolated when a table cannot be read and written at the level of the configuration.

    LogWentBack's words when the log is behind what ZooKeeper knows.
    """
    if document.log is not None and document.log.state == BEHIND:
        raise InvariantViolated(document.log.detail)
    found = document.health
    if found is None or found.available:
        return
    raise InvariantViolated(
        f"{', '.join(found.unavailable)} cannot be read and written at {found.consistency} now",
        hint="Bring back the replicas that do not answer, or remove or replace their nodes (`epochlake node "
        "remove`, `node replace`)",
    )


def node_statuses(storage: Storage, metadata: ClusterMetadata, loads: Loads | None = None) -> tuple[NodeStatus, ...]:
    """All nodes by number, those that have left as well; with `loads`, what their volumes hold and answer."""
    replicas, names, shares = replicas_by_volume(metadata), node_names(metadata.directory), _shares(metadata)
    present = [node for node in metadata.directory.nodes.values() if node.state is not NodeState.LEFT]
    held: dict[VolumeId, int] = defaultdict(int)
    obstacles: Mapping[VolumeId, str | None] = {}
    if loads is not None:
        for (_, _, volume_id), size in loads.sizes.items():
            held[volume_id] += size
        for (_, volume_id), size in ring_replica_sizes(storage, metadata).items():
            held[volume_id] += size
        probed = probe(storage, metadata, (volume for node in present for volume in node.volumes))
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
            state=JOINING if node.state is NodeState.NONE else node.state.value,
            datacenter=node.datacenter,
            rack=node.rack,
            tablets=sum(volume.tablets for volume in volumes),
            capacity=sum(volume.capacity for volume in volumes),
            bytes=sum(measured) if len(measured) == len(volumes) else None,
            replaces=None if node.replaces is None else names[node.replaces],
            replaced_by=None if node.replaced_by is None else names[node.replaced_by],
            tokens=len(node.tokens),
            owns={name: share[node.node_id] for name, share in shares.items() if node.node_id in share},
            maintenance=node.maintenance,
            weight=node.weight,
            tags=node.tags,
            volumes=volumes,
        )

    return tuple(one(metadata.directory.nodes[key]) for key in sorted(metadata.directory.nodes))


def operations_in_flight(cluster: Cluster) -> tuple[OperationStatus, ...]:
    """The operations on the ring at the newest epoch that is known here, with how far the streaming of each is."""
    metadata = cluster.metadata
    return tuple(
        msgspec.structs.replace(
            found, streamed=operation_streamed(cluster, metadata, metadata.rings.operations[found.operation_id])
        )
        for found in operation_statuses(metadata)
    )


def _shares(metadata: ClusterMetadata) -> dict[str, dict[NodeId, float]]:
    """How much of each keyspace on the ring each node serves reads of."""
    placements = metadata.rings.placements
    settings = {name: replication_setting(metadata, name) for name in sorted(ring_keyspaces(metadata))}
    owned = {setting: ownership(placements[setting].reads) for setting in dict.fromkeys(settings.values())}
    return {name: owned[setting] for name, setting in settings.items()}


def coordinator_status(cluster: Cluster) -> CoordinatorStatus:
    """Who coordinates, without starting anything and without waiting for long."""
    if cluster.configuration.zookeeper.connect == EMBEDDED and not _embedded_serves(cluster):
        return CoordinatorStatus("stopped", detail="the embedded ZooKeeper is not running, so nobody coordinates")
    try:
        coordination = cluster.coordination(ZOOKEEPER_SECONDS)
        leader = current_leader(coordination, ZOOKEEPER_SECONDS)
        keeper = None
        if cluster.configuration.zookeeper.connect != EMBEDDED:
            keeper = told(coordination, coordination.path(KEEPER), ZOOKEEPER_SECONDS)
    except EpochlakeError as error:
        return CoordinatorStatus("away", detail=str(error))
    return CoordinatorStatus("answers", leader, ensemble=keeper)


def _compared(cluster: Cluster, coordinator: CoordinatorStatus) -> LogComparison:
    """Whether the log that was just read is behind what ZooKeeper has announced; nothing is started for it."""
    if coordinator.zookeeper != "answers":
        return LogComparison(NOT_COMPARED, coordinator.detail or "")
    try:
        head = read_head(cluster.coordination(ZOOKEEPER_SECONDS), ZOOKEEPER_SECONDS)
        cluster.follower.require_reached(None if head is None else position_of_head(head))
    except LogWentBack as behind:
        return LogComparison(BEHIND, str(behind))
    except EpochlakeError as error:
        return LogComparison(NOT_COMPARED, str(error))
    return LogComparison(WHOLE)


def _zookeeper_address(cluster: Cluster) -> str | None:
    """Where ZooKeeper is: as configured, or where the embedded one listens; None when that does not run."""
    connect, local = cluster.configuration.zookeeper.connect, places.local_path(cluster.root.uri)
    if connect != EMBEDDED:
        return known_servers(cluster)
    endpoint = read_endpoint(files_of(Path(local))) if local is not None and _embedded_serves(cluster) else None
    return None if endpoint is None else f"{endpoint[0]}:{endpoint[1]}"


def known_servers(cluster: Cluster) -> str:
    """Where the ensemble is, as the cluster has published it, else as it is configured."""
    configured = cluster.configuration.zookeeper.connect
    try:
        known = whereabouts(cluster.configuration, cluster.storage, cluster.metadata.identity.cluster_id)
        return configured if known is None else known.first()
    except EpochlakeError:
        return configured


def zookeeper_runs(cluster: Cluster) -> bool:
    """Whether somebody else takes care of ZooKeeper, or the embedded one is running: a commit would start none."""
    return cluster.configuration.zookeeper.connect != EMBEDDED or _embedded_serves(cluster)


def _embedded_serves(cluster: Cluster) -> bool:
    local = places.local_path(cluster.root.uri)
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


def _pinned(metadata: ClusterMetadata) -> int:
    maps = metadata.tablets.maps.items()
    return sum(int(metadata.pins.pinned(table_id, found.count).sum()) for table_id, found in maps)


def _resizes(metadata: ClusterMetadata) -> tuple[ResizeStatus, ...]:
    named = ((metadata.schema.tables[table_id].full_name, found) for table_id, found in metadata.tablets.maps.items())
    return tuple(
        ResizeStatus(name, str(found.resize_type), found.count, found.resize_seq_number, found.epoch)
        for name, found in sorted(named, key=lambda pair: pair[0])
        if found.resize_type != Resize.NONE
    )
