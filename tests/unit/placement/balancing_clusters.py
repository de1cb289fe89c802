"""Clusters to balance, made at random or by hand, and what a plan makes of them."""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.balancing.model import ClusterLoad, Plan
from epochlake.placement.tablets.allocation import VolumeTable, allocate_tablets

TIB = 1 << 40
GIB = 1 << 30


class Outline(msgspec.Struct, frozen=True):
    """Racks of the nodes, volumes per node, capacity of each node (TiB), role of each node."""

    racks: tuple[int, ...]
    volumes: int = 2
    capacity: tuple[int, ...] = ()
    role: tuple[int, ...] = ()

    @property
    def nodes(self) -> int:
        return len(self.racks)


def allocated(racks: tuple[int, ...], tablets: int, factor: int, volumes: int, capacity: tuple[int, ...]) -> np.ndarray:
    """Volumes of the replicas, (tablets, factor), as allocation gives them."""
    ids = np.arange(len(racks) * volumes)
    node = ids // volumes
    bytes_ = np.array([capacity[n] if capacity else 1 for n in node.tolist()], np.int64) * TIB
    names = [str(racks[n]) for n in node.tolist()]
    return allocate_tablets(tablets, {"dc1": factor}, VolumeTable.of(ids, node, ["dc1"] * len(ids), names, bytes_))


def load_of(
    outline: Outline,
    replicas: np.ndarray,
    sizes: np.ndarray | None = None,
    table: np.ndarray | None = None,
    hold: np.ndarray | None = None,
) -> ClusterLoad:
    """The load of a cluster with the given `replicas`, (tablets, factor); 5 GiB and one table where nothing is said."""
    tablets, factor = replicas.shape
    node = np.arange(outline.nodes * outline.volumes) // outline.volumes
    return ClusterLoad.of(
        node_rack=outline.racks,
        node_role=outline.role or None,
        volume_node=node,
        volume_capacity=[outline.capacity[n] if outline.capacity else 1 for n in node.tolist()],
        tablet_table=np.zeros(tablets, np.int64) if table is None else table,
        tablet_hold=hold,
        replica_tablet=np.repeat(np.arange(tablets), factor),
        replica_volume=replicas.reshape(-1),
        replica_size=np.repeat(np.full(tablets, 5 * GIB) if sizes is None else sizes, factor),
    )


def after(load: ClusterLoad, plan: Plan) -> ClusterLoad:
    """The load when the whole plan has been carried out."""
    volume = load.replica_volume.astype(np.int64)
    assert (volume[plan.replica] == plan.source).all()
    volume[plan.replica] = plan.target
    return msgspec.structs.replace(load, replica_volume=volume)


def nodes_of(load: ClusterLoad) -> np.ndarray:
    """The node of each replica."""
    return load.volume_node[load.replica_volume]


def replicas_per_node(load: ClusterLoad) -> list[int]:
    return np.bincount(nodes_of(load), minlength=len(load.node_rack)).tolist()


def most_in_a_rack(load: ClusterLoad) -> np.ndarray:
    """How many replicas of each tablet share a rack at most."""
    rack = load.node_rack[nodes_of(load)].astype(np.int64)
    grid = np.zeros((len(load.tablet_table), int(load.node_rack.max()) + 1), np.int64)
    np.add.at(grid, (load.replica_tablet, rack), 1)
    return grid.max(axis=1)


def shared_nodes(load: ClusterLoad) -> int:
    """Replicas on a node that holds another one of the same tablet."""
    pairs = load.replica_tablet.astype(np.int64) * len(load.node_rack) + nodes_of(load)
    return len(pairs) - len(np.unique(pairs))


def random_cluster(rng: np.random.Generator, change: str) -> ClusterLoad:
    """A cluster of 2 to 5 racks, RF 2 to 4, uneven capacities, 1 to 100 tables, with tablets of even or uneven sizes.

    `change`: `none`, `doubled` (as many new nodes as there were, empty), `one` (a new node), `drained` (one leaves).
    """
    racks = int(rng.integers(2, 6))
    factor = int(rng.integers(2, 5))
    fewest = -(-factor // racks) + (change == "drained")
    first = [rack for rack in range(racks) for _ in range(int(rng.integers(fewest, fewest + 4)))]
    later = {"doubled": first, "one": [int(rng.integers(racks))]}.get(change, [])
    capacity = tuple(int(c) for c in rng.integers(1, 5, len(first) + len(later)))
    tables = int(rng.integers(1, 101))
    table = np.repeat(np.arange(tables), 2 ** rng.integers(0, 6, tables))
    volumes = int(rng.integers(1, 5))
    replicas = allocated(tuple(first), len(table), factor, volumes, capacity[: len(first)])
    role = [0] * len(capacity)
    if change == "drained":
        role[int(rng.integers(len(first)))] = 1
    sizes = rng.lognormal(np.log(GIB), float(rng.choice([0.0, 0.3, 1.0])), len(table))
    return load_of(Outline(tuple(first + later), volumes, capacity, tuple(role)), replicas, sizes, table)
