"""What a plan says to people: why a replica moves, why something stays.

A reason is a matter of two nodes and a cause, so there are few different ones in however large a plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from epochlake.placement.balancing.model import Cause, ClusterLoad, Floats, Ints, Obstacle, Plan

_STAYS = {
    Obstacle.IN_TRANSITION: "stays on node {node} for now: the tablet is in transition",
    Obstacle.PENDING_REQUEST: "stays on node {node} for now: its table has a pending topology request",
    Obstacle.PINNED: "stays on node {node}: the tablet is pinned",
    Obstacle.NO_TARGET: (
        "stays on draining node {node}: every other node that may take replicas either holds one of this tablet or is "
        "in a rack that may get no further one; add a node to rack {rack}, or lower the replication"
    ),
    Obstacle.NODE_EXCLUDED: "node {node} is excluded: it neither gives nor takes replicas",
    Obstacle.NODE_MAINTENANCE: "node {node} is in maintenance: it keeps its replicas and takes none",
    Obstacle.NODE_NO_STATISTICS: "node {node} has no statistics: its load is not known, so it is no target",
    Obstacle.PLACEMENT_RULE: (
        "stays on node {node}, which the placement rules of its table exclude: no node that they allow may take it; "
        "add one, or alter the rules"
    ),
    Obstacle.NOTHING_FITS: (
        "node {node} stays at {bytes:.1f} % of its share of bytes: no replica that may leave it would make it better"
    ),
}


class NodeShares:
    """Where the nodes stand before the plan, in percent of their shares, (N,)."""

    def __init__(self, load: ClusterLoad, plan: Plan) -> None:
        node = load.volume_node[load.replica_volume]
        nodes = len(load.node_rack)
        self.bytes = _percent(np.bincount(node, load.replica_size, nodes), plan.share_bytes)
        self.count = _percent(np.bincount(node, minlength=nodes).astype(np.float64), plan.share_count)


def _percent(held: Floats, share: Floats) -> Floats:
    return np.divide(100 * held, share, out=np.full(len(share), np.nan), where=share > 0)


def move_reasons(load: ClusterLoad, plan: Plan, names: Sequence[object]) -> tuple[list[str], Ints]:
    """The different reasons of the moves of a plan, and which one each move (M,) has. `names` (N,): of the nodes."""
    standing = NodeShares(load, plan)
    source, target = load.volume_node[plan.source].astype(np.int64), load.volume_node[plan.target].astype(np.int64)
    nodes = len(load.node_rack)
    codes, which = np.unique((plan.cause.astype(np.int64) * nodes + source) * nodes + target, return_inverse=True)
    causes, rest = np.divmod(codes, nodes * nodes)
    pairs = zip(causes.tolist(), (rest // nodes).tolist(), (rest % nodes).tolist(), strict=True)
    return [_move_reason(Cause(c), a, b, standing, names) for c, a, b in pairs], which


def _move_reason(cause: Cause, source: int, target: int, standing: NodeShares, names: Sequence[object]) -> str:
    by_bytes = f"node {names[target]} holds {standing.bytes[target]:.1f} % of its share of bytes"
    match cause:
        case Cause.DRAIN:
            return f"node {names[source]} is draining; {by_bytes}"
        case Cause.BYTES:
            return f"bytes: node {names[source]} holds {standing.bytes[source]:.1f} % of its share, {by_bytes}"
        case Cause.COUNTS:
            return (
                f"numbers: node {names[source]} holds {standing.count[source]:.1f} % of its share of replicas, "
                f"node {names[target]} {standing.count[target]:.1f} %"
            )
        case Cause.TABLE:
            return (
                f"its table sits on few nodes: from node {names[source]} to node {names[target]}, which has less of it"
            )
        case Cause.RULE:
            return f"placement rules: node {names[source]} may not hold its table; {by_bytes}"
        case Cause.VOLUMES:
            return f"volumes of node {names[source]}: evens out their replicas and bytes"


def stay_reasons(load: ClusterLoad, plan: Plan, names: Sequence[object]) -> tuple[list[str], Ints]:
    """The different reasons why something stays, and which one each row (S,) has."""
    standing = NodeShares(load, plan)
    nodes = len(load.node_rack)
    codes, which = np.unique(plan.stay_why.astype(np.int64) * nodes + plan.stay_node, return_inverse=True)
    texts = []
    for code in codes.tolist():
        why, node = Obstacle(code // nodes), code % nodes
        texts.append(_STAYS[why].format(node=names[node], rack=load.node_rack[node], bytes=standing.bytes[node]))
    return texts, which
