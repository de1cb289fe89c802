"""What the balancer reads and what it answers: columns of a cluster in, a plan of moves out.

Everything is an index. Nodes, volumes, tablets and replicas are rows of columns; a plan names rows. Ids
and names belong to whoever asks, so the same core serves a coordinator with five nodes and Spark with millions of
replicas.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest
from numpy.typing import ArrayLike, NDArray

# What is meant; widths differ, as they decide over time and memory.
Ints = NDArray[Any]
Floats = NDArray[Any]
Bools = NDArray[Any]


class Role(IntEnum):
    """What a node may do in a plan. Only `ACTIVE` nodes are targets; only `DRAINING` ones must be emptied."""

    ACTIVE = 0
    DRAINING = 1
    EXCLUDED = 2
    MAINTENANCE = 3
    NO_STATISTICS = 4


class Hold(IntEnum):
    """Why a tablet stays where it is."""

    FREE = 0
    IN_TRANSITION = 1
    PENDING_REQUEST = 2
    PINNED = 3


class Cause(IntEnum):
    """Why a replica moves."""

    DRAIN = 0
    BYTES = 1
    COUNTS = 2
    TABLE = 3
    VOLUMES = 4
    RULE = 5


class Obstacle(IntEnum):
    """Why something does not move, or a node is no target."""

    IN_TRANSITION = 0
    PENDING_REQUEST = 1
    NO_TARGET = 2
    NODE_EXCLUDED = 3
    NODE_MAINTENANCE = 4
    NODE_NO_STATISTICS = 5
    NOTHING_FITS = 6
    PLACEMENT_RULE = 7
    PINNED = 8


class BalancingPolicy(msgspec.Struct, frozen=True):
    """What counts as balanced, and how much may run at once.

    `bytes_tolerance`: the spread of utilisation between nodes, relative, that is left alone; half of it is what one
    node may be off its share. `counts_tolerance`: how far a node's number of replicas may be above its share. Where
    one tablet is more than the tolerance, one tablet is the tolerance. `streams_per_volume`: streams that may leave
    or reach a volume in one wave. A stream carries a tablet, or several that go the same way and have
    `shared_stream_bytes` together at most; 0: each has its own.
    """

    bytes_tolerance: float = 0.01
    counts_tolerance: float = 0.02
    streams_per_volume: int = 2
    shared_stream_bytes: int = 64 << 20


class ClusterLoad(msgspec.Struct, frozen=True, eq=False):
    """A cluster as columns.

    Nodes (N,): `node_datacenter`, `node_rack` (labels of any type; a rack counts within its datacenter), `node_role`
    (`Role`), `node_weight` (factor on the capacity of the node). Volumes (V,): `volume_node` (row of the node),
    `volume_capacity` (any unit, the same for all). Tablets (T,): `tablet_table` (small ints), `tablet_hold` (`Hold`).
    Replicas (R,), sorted by tablet: `replica_tablet`, `replica_volume` (rows), `replica_size` (bytes). A tablet in
    transition is listed with the replicas that it will have. `busy_out`, `busy_in` (V,): streams in flight.
    `table_nodes` (tables, N): the nodes that may hold replicas of each table, where placement rules say so; None: all.
    """

    node_datacenter: NDArray[Any]
    node_rack: NDArray[Any]
    node_role: Ints
    node_weight: Floats
    volume_node: Ints
    volume_capacity: Floats
    tablet_table: Ints
    tablet_hold: Ints
    replica_tablet: Ints
    replica_volume: Ints
    replica_size: Floats
    busy_out: Ints
    busy_in: Ints
    table_nodes: Bools | None = None

    @classmethod
    def of(
        cls,
        *,
        node_rack: ArrayLike,
        volume_node: ArrayLike,
        volume_capacity: ArrayLike,
        tablet_table: ArrayLike,
        replica_tablet: ArrayLike,
        replica_volume: ArrayLike,
        replica_size: ArrayLike,
        node_datacenter: ArrayLike | None = None,
        node_role: ArrayLike | None = None,
        node_weight: ArrayLike | None = None,
        tablet_hold: ArrayLike | None = None,
        busy_out: ArrayLike | None = None,
        busy_in: ArrayLike | None = None,
        table_nodes: ArrayLike | None = None,
    ) -> ClusterLoad:
        """A cluster from any sequences, checked; without more it is one datacenter, all active, nothing held."""
        rack = np.asarray(node_rack)
        volume = np.asarray(volume_node)
        table = np.asarray(tablet_table)
        load = cls(
            node_datacenter=np.zeros(len(rack), np.int64) if node_datacenter is None else np.asarray(node_datacenter),
            node_rack=rack,
            node_role=np.zeros(len(rack), np.int8) if node_role is None else np.asarray(node_role, np.int8),
            node_weight=np.ones(len(rack)) if node_weight is None else np.asarray(node_weight, np.float64),
            volume_node=volume,
            volume_capacity=np.asarray(volume_capacity, np.float64),
            tablet_table=table,
            tablet_hold=np.zeros(len(table), np.int8) if tablet_hold is None else np.asarray(tablet_hold, np.int8),
            replica_tablet=np.asarray(replica_tablet),
            replica_volume=np.asarray(replica_volume),
            replica_size=np.asarray(replica_size, np.float64),
            busy_out=np.zeros(len(volume), np.int64) if busy_out is None else np.asarray(busy_out, np.int64),
            busy_in=np.zeros(len(volume), np.int64) if busy_in is None else np.asarray(busy_in, np.int64),
            table_nodes=None if table_nodes is None else np.asarray(table_nodes, np.bool_),
        )
        _check(load)
        return load


class Plan(msgspec.Struct, frozen=True, eq=False):
    """Moves (M,), in the order of their waves, and what stays (S,).

    `replica`: row of the replica; `source`, `target`: rows of volumes (on the same node: an intranode migration);
    `wave`: 1 and up; `cause` (`Cause`). `stay_replica` (row, -1 where it is about a node), `stay_node` (row),
    `stay_why` (`Obstacle`). `share_bytes`, `share_count` (N,): what each node should hold, 0 for nodes that are not
    active.
    """

    replica: Ints
    source: Ints
    target: Ints
    wave: Ints
    cause: Ints
    stay_replica: Ints
    stay_node: Ints
    stay_why: Ints
    share_bytes: Floats
    share_count: Floats

    def __len__(self) -> int:
        return len(self.replica)


def _check(load: ClusterLoad) -> None:
    groups = {
        "node": ("node_datacenter", "node_rack", "node_role", "node_weight"),
        "volume": ("volume_node", "volume_capacity", "busy_out", "busy_in"),
        "tablet": ("tablet_table", "tablet_hold"),
        "replica": ("replica_tablet", "replica_volume", "replica_size"),
    }
    for name, columns in groups.items():
        lengths = {column: len(getattr(load, column)) for column in columns}
        if len(set(lengths.values())) > 1:
            raise InvalidRequest(f"the {name} columns of a cluster need one length, got {lengths}")
    bounds = (
        ("volume_node", load.volume_node, len(load.node_rack)),
        ("replica_volume", load.replica_volume, len(load.volume_node)),
        ("replica_tablet", load.replica_tablet, len(load.tablet_table)),
    )
    for column, values, limit in bounds:
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= limit):
            raise InvalidRequest(f"{column} names rows from {values.min()} to {values.max()}, there are {limit}")
    if (load.replica_tablet[1:] < load.replica_tablet[:-1]).any():
        raise InvalidRequest("the replicas of a cluster have to be sorted by tablet")
    if load.table_nodes is not None:
        needed = (int(load.tablet_table.max(initial=-1)) + 1, len(load.node_rack))
        if load.table_nodes.shape[0] < needed[0] or load.table_nodes.shape[1:] != needed[1:]:
            raise InvalidRequest(f"table_nodes has the shape {load.table_nodes.shape}, {needed} is needed")
    if (load.volume_capacity <= 0).any() or (load.node_weight <= 0).any():
        raise InvalidRequest(
            "capacities and weights have to be above zero", hint="Exclude a node instead of weighing it 0"
        )
