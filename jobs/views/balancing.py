"""What balancing would do now: the whole plan at once, with its reasons. The coordinator plans for itself."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
from epochlake.jobs.coordinator.loads import measure_loads
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import RequestKind, RequestState
from epochlake.metastore.planning.balancing import cluster_load
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.balancing.model import ClusterLoad, Plan
from epochlake.placement.balancing.planner import plan_moves
from epochlake.placement.balancing.reasons import move_reasons, stay_reasons
from epochlake.placement.showing import Shown


class MovePlanned(msgspec.Struct, frozen=True):
    """A move that balancing would make; moves of one `wave` may run at once. Places are `node/volume`."""

    wave: int
    table: str
    tablet: int
    source: str
    target: str
    bytes: int
    reason: str


class NodeBalance(msgspec.Struct, frozen=True):
    """A node before and after the planned moves."""

    node: str
    state: str
    capacity: int
    replicas_before: int
    replicas_after: int
    bytes_before: int
    bytes_after: int


class Stays(msgspec.Struct, frozen=True):
    """So many replicas of a node stay although they should move, or the node is no target (0 replicas), and why."""

    node: str
    replicas: int
    reason: str


class BalancePlan(Shown, msgspec.Struct, frozen=True):
    """What balancing, and draining, would do now. `balancing`: whether the coordinator may balance at all."""

    epoch: int
    balancing: bool
    moves: tuple[MovePlanned, ...]
    nodes: tuple[NodeBalance, ...]
    stays: tuple[Stays, ...]


def plan_balance(storage: Storage, metadata: ClusterMetadata, streams: StreamLimits) -> BalancePlan:
    """Measure all replica tables and plan every move, in waves of at most so many streams a volume."""
    draining = {
        request.node_id
        for request in metadata.open_requests()
        if request.state is RequestState.RUNNING and request.kind in (RequestKind.LEAVE, RequestKind.REMOVE)
    }
    load, rows = cluster_load(metadata, measure_loads(storage, metadata), draining, streams)
    nodes = [metadata.directory.nodes[node_id] for node_id in rows.nodes]
    names = [node.name for node in nodes]
    if not len(load.replica_tablet):
        return BalancePlan(metadata.epoch, metadata.switches.balancing, (), (), ())
    plan = plan_moves(load, streams.policy)
    reasons, reason_of = move_reasons(load, plan, names)
    held = np.where(load.replica_size > 1, load.replica_size, 0)  # the balancer takes an empty replica for a byte
    moves = []
    for index, replica in enumerate(plan.replica.tolist()):
        table_id, tablet = rows.tablets[load.replica_tablet[replica]]
        moves.append(
            MovePlanned(
                wave=int(plan.wave[index]),
                table=metadata.schema.tables[table_id].full_name,
                tablet=tablet,
                source=metadata.describe(rows.volumes[plan.source[index]]),
                target=metadata.describe(rows.volumes[plan.target[index]]),
                bytes=int(held[replica]),
                reason=reasons[reason_of[index]],
            )
        )
    before = load.volume_node[load.replica_volume]
    after = before.copy()
    after[plan.replica] = load.volume_node[plan.target]
    counts = [np.bincount(where, minlength=len(nodes)).tolist() for where in (before, after)]
    sizes = [np.bincount(where, held, len(nodes)).tolist() for where in (before, after)]
    capacity = np.bincount(load.volume_node, load.volume_capacity, len(nodes)).tolist()
    return BalancePlan(
        epoch=metadata.epoch,
        balancing=metadata.switches.balancing,
        moves=tuple(moves),
        nodes=tuple(
            NodeBalance(
                node=node.name,
                state=node.state.value,
                capacity=int(capacity[row]),
                replicas_before=counts[0][row],
                replicas_after=counts[1][row],
                bytes_before=int(sizes[0][row]),
                bytes_after=int(sizes[1][row]),
            )
            for row, node in enumerate(nodes)
            if node.state != "left"
        ),
        stays=_stays(load, plan, names),
    )


def _stays(load: ClusterLoad, plan: Plan, names: list[str]) -> tuple[Stays, ...]:
    texts, which = stay_reasons(load, plan, names)
    found: Counter[tuple[str, str]] = Counter()
    for node, replica, text in zip(plan.stay_node.tolist(), plan.stay_replica.tolist(), which.tolist(), strict=True):
        found[(names[node], texts[text])] += int(replica >= 0)
    return tuple(Stays(node, count, reason) for (node, reason), count in found.items())
