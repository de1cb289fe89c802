"""Where the replicas of a new table's tablets go: distinct nodes, spread over racks, by free capacity.

Decide *how many* replicas every rack, node and volume gets first (apportionment by free capacity), and
only then *which*. Laid out on a line, a node's share is one run no longer than the number of tablets, and the replicas
of one tablet stand that number apart: so no tablet meets a node twice, whatever the shares are. Shuffling keeps that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest, PlacementImpossible
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
_SHUFFLE_SEED = 20_240_229
_SHUFFLE_ROUNDS = 4


class VolumeTable(msgspec.Struct, frozen=True, eq=False):
    """The volumes that may get replicas, as columns of equal length (V,).

    `volume_id`, `node_id`: ints; `datacenter`, `rack`: strings, a rack's name counts within its datacenter;
    `capacity`, `used`: bytes; `replicas`: how many replicas are there already.
    """

    volume_id: IntArray
    node_id: IntArray
    datacenter: NDArray[np.str_]
    rack: NDArray[np.str_]
    capacity: IntArray
    used: IntArray
    replicas: IntArray

    @classmethod
    def of(
        cls,
        volume_id: ArrayLike,
        node_id: ArrayLike,
        datacenter: Sequence[str],
        rack: Sequence[str],
        capacity: ArrayLike,
        used: ArrayLike | None = None,
        replicas: ArrayLike | None = None,
    ) -> VolumeTable:
        """A table from any sequences; `used` and `replicas` are zero when left out."""
        ids = np.asarray(volume_id, np.int64)
        columns = (
            ids,
            np.asarray(node_id, np.int64),
            np.asarray(datacenter, np.str_),
            np.asarray(rack, np.str_),
            np.asarray(capacity, np.int64),
            np.zeros(len(ids), np.int64) if used is None else np.asarray(used, np.int64),
            np.zeros(len(ids), np.int64) if replicas is None else np.asarray(replicas, np.int64),
        )
        if any(len(column) != len(ids) for column in columns):
            raise InvalidRequest(f"a volume table needs columns of one length, got {[len(c) for c in columns]}")
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.volume_id)


def allocate_tablets(tablet_count: int, replication: Mapping[str, int], volumes: VolumeTable) -> NDArray[np.int32]:
    """Volume ids of the replicas of a new table, shape (tablet_count, sum of `replication`).

    Columns are grouped by datacenter in the order of `replication`. In a datacenter the replicas of a tablet are on
    distinct nodes and on as many racks as there are; racks are doubled only when more replicas are asked for than there
    are racks with a node left. Racks, nodes and volumes get shares in proportion to their free bytes; what rounding
    leaves goes where the fewest replicas are already, relative to free bytes. Tablets that get the same volumes are
    neighbours, as far as that goes: such tablets share files of few rows. The same input gives the same output.

    Raises `PlacementImpossible` when a datacenter has fewer nodes than replicas asked for.
    """
    if tablet_count < 0 or any(factor < 0 for factor in replication.values()):
        raise InvalidRequest(f"cannot allocate {tablet_count} tablets with replication {dict(replication)}: negative")
    _require_enough_nodes(replication, volumes)
    rng = np.random.default_rng(_SHUFFLE_SEED)
    parts = [np.empty((tablet_count, 0), np.int32)]
    for datacenter, factor in replication.items():
        if factor > 0:
            here = np.flatnonzero(volumes.datacenter == datacenter)
            parts.append(_allocate_in_datacenter(tablet_count, factor, volumes, here, rng))
    replicas = np.concatenate(parts, axis=1)
    # Tablets of a new table are all alike: which of them gets which set of volumes is of no account otherwise.
    return replicas[np.lexsort(np.sort(replicas, axis=1).T[::-1])] if replicas.size else replicas


def _require_enough_nodes(replication: Mapping[str, int], volumes: VolumeTable) -> None:
    for datacenter, factor in replication.items():
        nodes = len(np.unique(volumes.node_id[volumes.datacenter == datacenter]))
        if nodes < factor:
            known = ", ".join(sorted(set(volumes.datacenter.tolist()))) or "none"
            raise PlacementImpossible(
                f"replication asks for {factor} replicas in datacenter {datacenter!r}, which has {nodes} nodes "
                f"that can take replicas (datacenters with such nodes: {known})",
                hint="Add nodes there or lower the replication",
            )


def apportion(total: int, weights: NDArray[np.float64], limit: int, present: IntArray) -> IntArray:
    """Split `total` into whole shares in proportion to `weights`, none above `limit`.

    Shares that hit the limit are fixed there and the rest is split again. What rounding leaves goes, one each, to
    those that would then have the fewest (`present` ones included) relative to their weight. `limit * len(weights)`
    must reach `total`.
    """
    floor_weight = max(float(weights.max(initial=0.0)), 1.0) * 1e-12
    weights = np.maximum(weights, floor_weight)
    quota = np.zeros(len(weights))
    open_ = np.ones(len(weights), bool)
    while True:
        left = total - limit * int((~open_).sum())
        quota[open_] = weights[open_] / weights[open_].sum() * left if open_.any() else 0.0
        over = open_ & (quota > limit)
        if not over.any():
            break
        quota[over] = limit
        open_ &= ~over
    shares = np.floor(quota + 1e-9).astype(np.int64)
    while (left := total - int(shares.sum())) > 0:
        # A share that is whole already gets no more, unless nothing else is left to round up.
        room = np.flatnonzero((shares < limit) & (shares < quota - 1e-9))
        room = room if len(room) else np.flatnonzero(shares < limit)
        order = np.argsort((present[room] + shares[room] + 1) / weights[room], kind="stable")
        shares[room[order[:left]]] += 1
    return shares


def _free(volumes: VolumeTable) -> NDArray[np.float64]:
    return np.maximum(volumes.capacity - volumes.used, 0).astype(np.float64)


def _allocate_in_datacenter(
    tablets: int, factor: int, volumes: VolumeTable, here: IntArray, rng: np.random.Generator
) -> NDArray[np.int32]:
    nodes, node_of_volume = np.unique(volumes.node_id[here], return_inverse=True)
    racks, rack_of_volume = np.unique(volumes.rack[here], return_inverse=True)
    rack_of_node = np.zeros(len(nodes), np.int64)
    rack_of_node[node_of_volume] = rack_of_volume
    free = _free(volumes)[here]
    node_free = np.bincount(node_of_volume, free, len(nodes)).astype(np.float64)
    node_present = np.bincount(node_of_volume, volumes.replicas[here], len(nodes)).astype(np.int64)

    rack_of_slot = _racks_of_tablets(tablets, factor, rack_of_node, node_free, node_present, rng)
    node_of_slot = np.empty((tablets, factor), np.int64)
    for rack in range(len(racks)):
        members = np.flatnonzero(rack_of_node == rack)
        tablet, column = np.nonzero(rack_of_slot == rack)
        chosen = _nodes_of_rack(tablet, tablets, node_free[members], node_present[members], rng)
        node_of_slot[tablet, column] = members[chosen]
    volume_of_slot = _volumes_of_nodes(node_of_slot.reshape(-1), node_of_volume, free, volumes.replicas[here], rng)
    replicas = volumes.volume_id[here][volume_of_slot].reshape(tablets, factor).astype(np.int32)
    return rng.permuted(replicas, axis=1)  # the first replica of a tablet is not always on the same rack


def _racks_of_tablets(
    tablets: int,
    factor: int,
    rack_of_node: IntArray,
    node_free: NDArray[np.float64],
    node_present: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    """The rack of each replica, (tablets, factor).

    Every rack comes `level` times in a tablet, or as often as it has nodes; the last replicas go to racks by share.
    """
    size = np.bincount(rack_of_node)
    level = 0
    while np.minimum(size, level + 1).sum() <= factor and level < size.max():
        level += 1
    base = np.minimum(size, level)
    fixed = np.broadcast_to(np.repeat(np.arange(len(size)), base), (tablets, int(base.sum())))
    extra = factor - int(base.sum())
    if extra == 0:
        return fixed.copy()
    open_racks = np.flatnonzero(size > level)
    weight = np.bincount(rack_of_node, node_free)[open_racks].astype(np.float64)
    present = np.bincount(rack_of_node, node_present)[open_racks].astype(np.int64)
    shares = apportion(tablets * extra, weight, tablets, present)
    chosen = _distinct_columns(np.arange(tablets * extra) % tablets, tablets, shares, rng)
    order = np.argsort(np.arange(tablets * extra) % tablets, kind="stable")
    return np.concatenate([fixed, open_racks[chosen[order].reshape(tablets, extra)]], axis=1)


def _nodes_of_rack(
    tablet: IntArray,
    tablets: int,
    free: NDArray[np.float64],
    present: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    """An index of a node for each slot of a rack; slots of the same tablet get distinct nodes."""
    shares = apportion(len(tablet), free, tablets, present)
    return _distinct_columns(tablet, tablets, shares, rng)


def _distinct_columns(tablet: IntArray, tablets: int, shares: IntArray, rng: np.random.Generator) -> IntArray:
    """Deal `shares[i]` times the index i to slots, no index twice to slots of the same tablet.

    Works because the slots of a tablet are laid out `tablets` apart, those with the most slots first, and no share is
    longer than `tablets`. Afterwards replicas are exchanged at random where that keeps them distinct, so that each node
    shares its tablets with many others.
    """
    slots_per_tablet = np.bincount(tablet, minlength=tablets)
    shuffled = rng.permutation(tablets)
    place = np.empty(tablets, np.int64)
    place[shuffled[np.argsort(-slots_per_tablet[shuffled], kind="stable")]] = np.arange(tablets)
    by_tablet = np.argsort(tablet, kind="stable")
    first = np.concatenate([[0], np.cumsum(slots_per_tablet)])[:-1]
    level = np.empty(len(tablet), np.int64)
    level[by_tablet] = np.arange(len(tablet)) - np.repeat(first, slots_per_tablet)
    line = np.argsort(level * tablets + place[tablet], kind="stable")
    index = np.empty(len(tablet), np.int64)
    index[line] = np.repeat(np.arange(len(shares)), shares)
    depth = int(slots_per_tablet.max(initial=0))
    if depth < 2:
        return index
    table = np.full((tablets, depth), -1, np.int64)
    table[tablet, level] = index
    _exchange_at_random(table, slots_per_tablet, rng)
    return table[tablet, level]


def _exchange_at_random(table: IntArray, filled: IntArray, rng: np.random.Generator) -> None:
    """Exchange entries between rows of `table`, in place, as long as every row stays without duplicates."""
    for _ in range(_SHUFFLE_ROUNDS):
        for width in np.unique(filled[filled > 1]).tolist():
            rows = np.flatnonzero(filled == width)
            table[rows, :width] = rng.permuted(table[rows, :width], axis=1)
        for column in range(table.shape[1]):
            rows = rng.permutation(np.flatnonzero(filled > column))
            half = len(rows) // 2
            left, right = rows[:half], rows[half : 2 * half]
            mine, theirs = table[left, column].copy(), table[right, column].copy()
            clash = (table[left] == theirs[:, None]).any(axis=1) | (table[right] == mine[:, None]).any(axis=1)
            table[left[~clash], column] = theirs[~clash]
            table[right[~clash], column] = mine[~clash]


def _volumes_of_nodes(
    node: IntArray,
    node_of_volume: IntArray,
    free: NDArray[np.float64],
    present: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    """An index of a volume for each slot, by the node that the slot is on."""
    volume = np.empty(len(node), np.int64)
    shuffled = rng.permutation(len(node))
    slots = shuffled[np.argsort(node[shuffled], kind="stable")]
    per_node = np.bincount(node, minlength=int(node_of_volume.max()) + 1)
    by_node = np.argsort(node_of_volume, kind="stable")
    volumes_per_node = np.bincount(node_of_volume)
    slot_end, volume_end = np.cumsum(per_node), np.cumsum(volumes_per_node)
    for i, count in enumerate(per_node.tolist()):
        if count:
            mine = by_node[volume_end[i] - volumes_per_node[i] : volume_end[i]]
            shares = apportion(count, free[mine], count, present[mine])
            volume[slots[slot_end[i] - count : slot_end[i]]] = np.repeat(mine, shares)
    return volume
