"""Rebuilding a node: it keeps its tokens and ranges, and gets all their rows again (seed 000, `rebuilding`)."""

from __future__ import annotations

import numpy as np
from epochlake.placement.rejections import Code
from epochlake.placement.ring import checks
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.movement import refilling
from epochlake.placement.ring.operations import checked
from epochlake.placement.ring.placements import Assignment
from epochlake.placement.ring.state import NodeState, Operation, OperationKind, RingState


def plan_rebuild(state: RingState, operation_id: str, node_id: int, datacenter: str = "") -> Operation:
    """Refill a node from the other replicas, only from those of `datacenter` where one is named.

    Raises `PlanRejected` (`no-source`) when a range of the node has no other replica there.
    """
    checks.node_in_state(state, node_id, NodeState.NORMAL, "be rebuilt")
    for keyspace, replication in sorted(state.keyspaces.items()):
        _sources_for_all(state, keyspace, state.placements[replication].reads, node_id, datacenter)
    outline = Operation(
        operation_id, OperationKind.REBUILD, node_id, state.nodes[node_id].tokens, {}, {}, datacenter=datacenter
    )
    return checked(state, outline, {key: refilling(now.reads, node_id) for key, now in state.placements.items()})


def _sources_for_all(state: RingState, keyspace: str, reads: Assignment, node_id: int, datacenter: str) -> None:
    usable = [
        node.node_id for node in state.nodes.values() if node.node_id != node_id and datacenter in ("", node.datacenter)
    ]
    held = (reads.replicas == node_id).any(axis=1)
    orphans = np.flatnonzero(held & ~np.isin(reads.replicas, usable).any(axis=1))
    if len(orphans):
        start, end = reads.starts[orphans[0]], reads.ends[orphans[0]]
        where = f"in datacenter {datacenter} " if datacenter else ""
        raise PlanRejected(
            Code.NO_SOURCE,
            f"node {node_id} cannot be rebuilt: no other replica {where}holds {len(orphans)} of its ranges of "
            f"keyspace {keyspace}, ({start}, {end}] first",
            hint="Choose another datacenter",
        )
