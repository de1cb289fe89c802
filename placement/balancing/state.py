"""One datacenter while a plan is being made: where each replica is now, as arrays that the steps of planning change.

Replicas never leave their datacenter, so each one is planned by itself. Only `move` changes anything: where replicas
are, and with it what the nodes hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from epochlake.placement.balancing.fair_share import node_shares
from epochlake.placement.balancing.model import Bools, ClusterLoad, Floats, Hold, Ints, Role


@dataclass
class State:
    """Nodes (N,): `rack`, `active`, `draining`, `capacity`. Tablets (T,): `table`, `copies`, `first` (row of its first
    replica). Replicas (R,), sorted by tablet: `tablet`, `size`, `free` (may move), `node` (where it is now).

    `rows`, `nodes`: the rows of the replicas and nodes in the `ClusterLoad` that this was cut from.
    """

    rows: Ints
    nodes: Ints
    rack: Ints
    active: Bools
    draining: Bools
    capacity: Floats
    table: Ints
    tables: int
    copies: Ints
    first: Ints
    tablet: Ints
    size: Floats
    free: Bools
    node: Ints
    bytes_per_node: Floats
    count_per_node: Floats

    @cached_property
    def replica_table(self) -> Ints:
        """The table of each replica, (R,)."""
        return self.table[self.tablet]

    def cells(self) -> Ints:
        """Where each replica counts in what is kept by node and table, flat (R,): node * tables + table."""
        node: Ints = self.node.astype(np.int32 if self.node_count * self.tables < 2**31 else np.int64)
        return node * self.tables + self.replica_table

    @property
    def node_count(self) -> int:
        return len(self.rack)

    def move(self, rows: Ints, target: Ints) -> None:
        """Put the replicas in `rows` on the nodes `target`."""
        size, source, nodes = self.size[rows], self.node[rows], self.node_count
        self.node[rows] = target
        self.bytes_per_node = self.bytes_per_node - np.bincount(source, size, nodes) + np.bincount(target, size, nodes)
        self.count_per_node = (
            self.count_per_node - np.bincount(source, minlength=nodes) + np.bincount(target, minlength=nodes)
        )


@dataclass(frozen=True)
class Shares:
    """What each node should hold (N,): bytes, and number of replicas. `crowded`: some tablets share a rack."""

    bytes: Floats
    count: Floats
    crowded: bool = False


def cut(load: ClusterLoad, datacenter: object) -> State:
    """The part of `load` that is in `datacenter`."""
    nodes = np.flatnonzero(load.node_datacenter == datacenter)
    local = np.full(len(load.node_rack), -1, np.int32)
    local[nodes] = np.arange(len(nodes))
    node = local[load.volume_node][load.replica_volume]
    tablet, size, rows = load.replica_tablet, load.replica_size, np.arange(len(node))
    if len(nodes) < len(load.node_rack):
        rows = np.flatnonzero(node >= 0)
        node, tablet, size = node[rows], tablet[rows], size[rows]
    change = np.ones(len(tablet), bool)
    np.not_equal(tablet[1:], tablet[:-1], out=change[1:])
    first = np.flatnonzero(change)
    copies = np.diff(np.append(first, len(tablet)))
    tables, table = _dense(load.tablet_table[tablet[first]])
    held = load.tablet_hold[tablet[first]] != Hold.FREE
    role = load.node_role[nodes]
    _, rack = np.unique(load.node_rack[nodes], return_inverse=True)
    capacity = np.bincount(load.volume_node, load.volume_capacity, len(load.node_rack)) * load.node_weight
    active = role == Role.ACTIVE
    movable_node = active | (role == Role.DRAINING)
    free = np.repeat(~held, copies) if held.any() else np.ones(len(tablet), bool)
    if not movable_node.all():
        free &= movable_node[node]
    return State(
        rows=rows,
        nodes=nodes,
        rack=rack.astype(np.int64),
        active=active & (capacity[nodes] > 0),
        draining=role == Role.DRAINING,
        capacity=capacity[nodes],
        table=table.astype(np.int32),
        tables=tables,
        copies=copies,
        first=first,
        tablet=tablet if len(first) == len(load.tablet_table) else np.repeat(np.arange(len(first)), copies),
        size=size,
        free=free,
        node=node.copy(),
        bytes_per_node=np.bincount(node, size, len(nodes)),
        count_per_node=np.bincount(node, minlength=len(nodes)).astype(np.float64),
    )


def _dense(table: Ints) -> tuple[int, Ints]:
    """How many different tables there are, and their numbers counted from zero without gaps."""
    if len(table) and int(table.max()) < 4 * len(table) and int(table.min()) >= 0:
        known = np.bincount(table) > 0
        return int(known.sum()), (np.cumsum(known) - 1)[table]
    names, dense = np.unique(table, return_inverse=True)
    return len(names), dense


def per_tablet(state: State, width: int) -> tuple[Ints, Ints]:
    """The tablets with `width` replicas, and the rows of their replicas, (n, width)."""
    if len(state.copies) and width * len(state.copies) == len(state.node) and (state.copies == width).all():
        return np.arange(len(state.copies)), np.arange(len(state.node)).reshape(-1, width)
    tablets = np.flatnonzero(state.copies == width)
    return tablets, state.first[tablets][:, None] + np.arange(width)


def gathered(state: State) -> tuple[Ints, Ints]:
    """How many replicas of each tablet share a rack at most, and how many each rack has at least, (T,) both."""
    most, fewest = np.ones(len(state.copies), np.int64), np.zeros(len(state.copies), np.int64)
    rack_of_replica = state.rack.astype(np.int16)[state.node]
    racks = np.unique(state.rack[state.active | state.draining]).tolist()
    for width in np.unique(state.copies).tolist():
        tablets, rows = per_tablet(state, width)
        columns = [rack_of_replica[rows[:, k]] for k in range(width)]
        pairs = ((j, k) for j in range(width) for k in range(j))
        apart = not any((columns[j] == columns[k]).any() for j, k in pairs)
        if not apart:
            counts = [sum((columns[j] == columns[k]).astype(np.int8) for k in range(width)) for j in range(width)]
            most[tablets] = np.maximum.reduce(counts)
        if width >= len(racks) > 0:
            counts = [sum((column == r).astype(np.int8) for column in columns) for r in racks]
            fewest[tablets] = np.minimum.reduce(counts)
    return most, fewest


def shares(state: State) -> Shares:
    """The shares of the nodes, as far as the racks of the present placement allow them."""
    together, fewest = gathered(state)
    mean = np.add.reduceat(state.size, state.first) / state.copies if len(state.first) else np.zeros(0)
    amounts = (mean, state.bytes_per_node), (np.ones(len(state.copies)), state.count_per_node)
    of_bytes, of_count = (
        node_shares(
            amount, state.copies, together, fewest, now, state.rack, state.active, state.draining, state.capacity
        )
        for amount, now in amounts
    )
    return Shares(of_bytes, of_count, crowded=bool(together.max(initial=1) > 1))
