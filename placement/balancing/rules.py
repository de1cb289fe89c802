"""Placement rules: tables that may not be on every node.

Tables with the same permitted nodes are a cluster of their own, and a node that may not hold a table is,
for that table, one that drains. The most restricted ones are planned first, each evenly over its own nodes, whatever
else lies there; those that may use most nodes come last and even out the sum. So no part's goal depends on a later one,
and a second plan finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from epochlake.placement.balancing.model import Bools, ClusterLoad, Hold, Ints, Role


def parted(held: Ints, rack: Ints, usable: Bools, pairs: Sequence[tuple[int, Sequence[int]]]) -> Bools:
    """The nodes that tables which are kept apart may use, (tables, N).

    `held` (tables, N): replicas now; `rack` (N,): a number for each rack; `usable` (N,): nodes that may get replicas.
    `pairs`: a table, and those that it shares no node with. In each rack the nodes are shared out in proportion to the
    replicas of both sides, at least one for each, and go to the side that has most there already; so the answer stays
    the same while replicas move to it. A rack with a single node cannot part them, and does not.
    """
    allowed = np.ones(held.shape, np.bool_)
    for table, others in pairs:
        mine, theirs = held[table], held[list(others)].sum(axis=0)
        for number in np.unique(rack[usable]).tolist():
            nodes = np.flatnonzero(usable & (rack == number) & allowed[table])
            if len(nodes) < 2:
                continue
            here, there = int(mine[nodes].sum()), int(theirs[nodes].sum())
            part = round(len(nodes) * here / (here + there)) if here + there else len(nodes) // 2
            order = nodes[np.argsort(theirs[nodes] - mine[nodes], kind="stable")]
            split = min(max(part, 1), len(nodes) - 1)
            allowed[table, order[split:]] = False
            for other in others:
                allowed[other, order[:split]] = False
    return allowed


class SubCluster(msgspec.Struct, frozen=True, eq=False):
    """A cluster to plan by itself. `rows`: which replicas of the whole its replicas are; `own` (R,): which of them are
    planned here; `forbidden` (N,): nodes that drain because of a rule only.
    """

    load: ClusterLoad
    rows: Ints
    own: Bools
    forbidden: Bools


def parts(load: ClusterLoad, placed: Ints) -> Iterator[SubCluster]:
    """The parts of a cluster with rules, in the order in which they are to be planned.

    `placed` (R,): the volume of each replica now; what is planned for one part is to be in it before the next is taken.
    """
    assert load.table_nodes is not None
    masks, group = np.unique(load.table_nodes, axis=0, return_inverse=True)
    group_of_tablet = group.reshape(-1)[load.tablet_table]
    used = np.unique(group_of_tablet)
    order = used[np.argsort(masks[used].sum(axis=1), kind="stable")].tolist()
    for number in order:
        others = masks[number] if number == order[-1] else np.zeros(len(load.node_rack), np.bool_)
        yield _part(load, placed, group_of_tablet == number, masks[number], others)


def _part(load: ClusterLoad, placed: Ints, of_group: Bools, allowed: Bools, others: Bools) -> SubCluster:
    """The group's replicas, wherever they are, and those of other groups on the nodes `others`."""
    mine = of_group[load.replica_tablet]
    beside = others & (load.node_role == Role.ACTIVE)
    rows = np.flatnonzero(mine | beside[load.volume_node[placed]])
    forbidden = ~allowed & (load.node_role == Role.ACTIVE)
    part = msgspec.structs.replace(
        load,
        node_role=np.where(forbidden, np.int8(Role.DRAINING), load.node_role),
        tablet_hold=np.where(of_group, load.tablet_hold, np.int8(Hold.IN_TRANSITION)),
        replica_tablet=load.replica_tablet[rows],
        replica_volume=placed[rows],
        replica_size=load.replica_size[rows],
        table_nodes=None,
    )
    return SubCluster(part, rows, mine[rows], forbidden)
