"""Where every token of a table is read and written at one epoch, whatever the kind of its placement.

A table's placement is the token space in ranges, each with its replicas. The gate, streaming
and the proofs over replica tables ask by token, so they know nothing of tablets and rings, and neither a split nor a
merge of ranges moves a row: only what a range's replicas are does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np
from epochlake.metastore.metadata.model import Node, NodeId, TableId, TabletKey, Transition, Volume, VolumeId
from epochlake.placement.ring.placements import Assignment, AssignmentChange, Placements
from epochlake.placement.ring.tokens import missing_from, with_starts
from epochlake.placement.tablets.tablet_map import NO_REPLICA, TabletMap
from epochlake.placement.tablets.transitions import read_replicas, write_replicas, write_sets
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, TOKEN_BITS, range_label, tablet_label, tablet_ranges
from numpy.typing import NDArray

SPLIT = "split"
"""The `resize_type` of a table whose tablets are to be split: their rows are kept apart at the middle from then on."""


class Placement(msgspec.Struct, frozen=True):
    """Where the rows of one range are read and written at an epoch.

    `write_sets`: the sets in each of which a write must reach its level; `writes` all of their replicas.
    """

    reads: tuple[VolumeId, ...]
    writes: tuple[VolumeId, ...]
    write_sets: tuple[tuple[VolumeId, ...], ...]

    @property
    def unread(self) -> tuple[VolumeId, ...]:
        """Replicas that are to have every row and do not serve reads: those of a node that is being rebuilt.

        Rows that only they have acknowledged cannot be read now; a level that includes them has to be refused.
        """
        reads = set(self.reads)
        if any(reads.issuperset(replicas) for replicas in self.write_sets):
            return ()
        return tuple(sorted({volume for replicas in self.write_sets for volume in replicas} - reads))


class Since(msgspec.Struct, frozen=True):
    """Since when a range is where it is: its replicas, their epoch, and that of the change in flight if any."""

    replicas: tuple[VolumeId, ...]
    placed_epoch: int
    started_epoch: int | None


class TablePlacements(Protocol):
    """The ranges of one table: range i holds the tokens from `lows[i]` to `highs[i]`, both included, in token order."""

    @property
    def lows(self) -> NDArray[np.int64]:
        """First tokens of the ranges, ascending; the first one is MIN_TOKEN."""

    @property
    def apart(self) -> bool:
        """Whether no new file may have rows of two ranges, as tablets are being split."""

    def placement(self, index: int) -> Placement:
        """Where a range is read and written."""

    def since(self, index: int) -> Since:
        """Since when that is so."""

    def label(self, index: int) -> str:
        """The partition label of new files of a range."""

    def unit(self, index: int) -> int:
        """The number by which people know the range: of its tablet, or its own on the ring."""


def highs(lows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Last tokens of the ranges that begin at `lows`."""
    return np.append(lows[1:] - 1, np.int64(MAX_TOKEN))


def index_of(lows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The range of each token."""
    return np.searchsorted(lows, tokens, side="right") - 1


def ranges_within(lows: NDArray[np.int64], low: int, high: int) -> range:
    """The ranges that have a token from `low` to `high`."""
    first, last = index_of(lows, np.array([low, high], dtype=np.int64)).tolist()
    return range(first, last + 1)


class TabletPlacements:
    """The ranges of a table with tablets: the tablets, or their halves from the decision to split them on."""

    def __init__(self, table_id: TableId, tablet_map: TabletMap, transitions: Mapping[TabletKey, Transition]) -> None:
        self._table_id = table_id
        self._map = tablet_map
        self._transitions = transitions
        self._halves = 2 if tablet_map.resize_type == SPLIT else 1

    @cached_property
    def lows(self) -> NDArray[np.int64]:
        starts, _ = tablet_ranges(self._map.count * self._halves)
        return np.concatenate([np.array([MIN_TOKEN]), starts[1:] + 1])

    @property
    def apart(self) -> bool:
        return self._halves > 1

    def placement(self, index: int) -> Placement:
        return self.of_tablet(self.unit(index))

    def of_tablet(self, tablet: int) -> Placement:
        """Where a whole tablet is read and written."""
        transition = self._transitions.get((self._table_id, tablet))
        if transition is None:
            replicas = self._map.replicas(tablet)
            return Placement(replicas, replicas, (replicas,))
        stage, old, new = transition.stage, transition.replicas, transition.new_replicas
        return Placement(read_replicas(stage, old, new), write_replicas(stage, old, new), write_sets(stage, old, new))

    def since(self, index: int) -> Since:
        tablet = self.unit(index)
        transition = self._transitions.get((self._table_id, tablet))
        started = None if transition is None else transition.started_epoch
        return Since(self._map.replicas(tablet), self._map.epoch, started)

    def label(self, index: int) -> str:
        return tablet_label(index, self._map.count * self._halves)

    def unit(self, index: int) -> int:
        return index // self._halves


def volume_slices(volumes: Sequence[Volume]) -> list[tuple[int, VolumeId]]:
    """How a node shares the token space among its volumes: first token and volume of each slice, in token order.

    A slice is in proportion to the capacity of its volume, in volume order. A node's volumes never change after it was
    registered, so a token of a node is on one volume for ever.
    """
    total = sum(volume.capacity for volume in volumes)
    slices, before = [], 0
    for volume in volumes:
        slices.append((MIN_TOKEN + (before << TOKEN_BITS) // total, volume.volume_id))
        before += volume.capacity
    return slices


_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Moving(msgspec.Struct, frozen=True, eq=False):
    """An operation in flight as one replication setting sees it.

    `both`: writes go to the old and the new replicas now. `widening` and `narrowing` are START's and FINISH's changes
    of the writes: replicas before the one and after the other are the old and the new ones.
    """

    both: bool
    widening: AssignmentChange
    narrowing: AssignmentChange
    started_epoch: int


class RingPlacements:
    """The tables of a ring keyspace: the ranges of its reads and writes, cut where a node's volumes meet.

    Ranges of the ring are `(start, end]`, so each begins at the token after its start; the first one holds MIN_TOKEN
    too. Made once for all tables that share a replication setting.
    """

    def __init__(
        self, now: Placements, moving: Sequence[Moving], nodes: Mapping[NodeId, Node], placed_epoch: int
    ) -> None:
        self._now = now
        self._moving = moving
        self._nodes = nodes
        self._placed_epoch = placed_epoch

    @cached_property
    def lows(self) -> NDArray[np.int64]:
        reads, writes = self._now.reads.starts, self._now.writes.starts
        starts = reads if writes is reads else with_starts(reads, missing_from(writes, reads))
        lows = starts[starts != MAX_TOKEN] + 1  # after that one comes MIN_TOKEN only, which is in the first range
        lows[0] = MIN_TOKEN
        # As integers from the beginning: an empty list would make floats of all of them, which know no big tokens.
        inner = np.array(sorted({low for slices in self._slices.values() for low, _ in slices}), dtype=np.int64)
        return with_starts(lows, missing_from(inner, lows))

    @property
    def apart(self) -> bool:
        return False

    def placement(self, index: int) -> Placement:
        low = int(self.lows[index])
        reads = self._on_volumes(_row(self._now.reads, low), low)
        writes = reads
        if self._now.writes is not self._now.reads:
            writes = self._on_volumes(_row(self._now.writes, low), low)
        change = self._change_of(low)
        if change is None or not self._moving[change[0]].both:
            return Placement(reads, writes, (writes,))
        return Placement(reads, writes, self._old_and_new(change, low))

    def since(self, index: int) -> Since:
        low = int(self.lows[index])
        change = self._change_of(low)
        if change is None:
            return Since(self._on_volumes(_row(self._now.writes, low), low), self._placed_epoch, None)
        old, _ = self._old_and_new(change, low)
        return Since(old, self._placed_epoch, self._moving[change[0]].started_epoch)

    def label(self, index: int) -> str:
        low, high = int(self.lows[index]), MAX_TOKEN
        if index + 1 < len(self.lows):
            high = int(self.lows[index + 1]) - 1
        return range_label(low, high)

    def unit(self, index: int) -> int:
        return index

    @cached_property
    def read_volumes(self) -> NDArray[np.int32]:
        """Volumes that serve reads of every range: (ranges, width), padded with NO_REPLICA."""
        return self._all_on_volumes(self._nodes_of_all(self._now.reads))

    @cached_property
    def write_volumes(self) -> NDArray[np.int32]:
        """Volumes that must get the writes of every range: (ranges, width), padded with NO_REPLICA."""
        if self._now.writes is self._now.reads:
            return self.read_volumes
        return self._all_on_volumes(self._nodes_of_all(self._now.writes))

    @cached_property
    def changing_sets(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Ranges of which a write counts in two replica sets, and who is in which.

        Numbers of the ranges (n), and whether each of their `write_volumes` is an old and a new replica (n, width).
        """
        nodes = self._nodes_of_all(self._now.writes)
        rows, old, new = [_NONE], [np.empty((0, nodes.shape[1]), np.bool_)], [np.empty((0, nodes.shape[1]), np.bool_)]
        for number, moving in enumerate(self._moving):
            if moving.both:
                named = np.flatnonzero(self._rows_of_changes[:, 0] == number)
                change = self._rows_of_changes[named, 1]
                for found, replicas in ((old, moving.widening.before), (new, moving.narrowing.after)):
                    found.append((nodes[named][:, :, None] == replicas[change][:, None, :]).any(axis=2))
                rows.append(named)
        return np.concatenate(rows), np.concatenate(old), np.concatenate(new)

    @cached_property
    def volumes(self) -> tuple[VolumeId, ...]:
        """Every volume that is read or written anywhere, ascending."""
        highest = max(self.read_volumes.max(initial=0), self.write_volumes.max(initial=0))
        used = np.zeros(int(highest) + 2, dtype=np.bool_)  # padding is the last one
        used[self.read_volumes] = used[self.write_volumes] = True
        return tuple(np.flatnonzero(used[:-1]).tolist())

    @cached_property
    def _slices(self) -> dict[NodeId, list[tuple[int, VolumeId]]]:
        """The slices of those replicas that have several volumes."""
        used = np.zeros(max(self._nodes, default=0) + 2, dtype=np.bool_)  # padding is the last one
        used[self._now.reads.replicas] = used[self._now.writes.replicas] = True
        several = (self._nodes[key] for key in np.flatnonzero(used[:-1]).tolist() if len(self._nodes[key].volumes) > 1)
        return {node.node_id: volume_slices(node.volumes) for node in several}

    def _on_volumes(self, nodes: Sequence[NodeId], low: int) -> tuple[VolumeId, ...]:
        return tuple(self._volume(node, low) for node in nodes if node >= 0)

    def _volume(self, node: NodeId, low: int) -> VolumeId:
        slices = self._slices.get(node)
        if slices is None:
            return self._nodes[node].volumes[0].volume_id
        return next(volume for start, volume in reversed(slices) if start <= low)

    @cached_property
    def _rows_of_changes(self) -> NDArray[np.int64]:
        """For each range the operation that changes it, and the row of its changes: (ranges, 2), -1 where none does."""
        found = np.full((len(self.lows), 2), -1, dtype=np.int64)
        for number, moving in enumerate(self._moving):
            changed = moving.widening
            if len(changed.starts):
                rows = np.searchsorted(changed.starts, _start_before(self.lows), side="right") - 1
                ends = changed.ends[np.maximum(rows, 0)]
                inside = (rows >= 0) & ((self.lows <= ends) | (ends == MIN_TOKEN))
                found[inside] = np.stack([np.full(len(rows), number), rows], axis=1)[inside]
        return found

    def _change_of(self, low: int) -> tuple[int, int] | None:
        if not self._moving:
            return None
        number, row = self._rows_of_changes[int(np.searchsorted(self.lows, low))].tolist()
        return None if number < 0 else (number, row)

    def _old_and_new(self, change: tuple[int, int], low: int) -> tuple[tuple[VolumeId, ...], tuple[VolumeId, ...]]:
        moving, row = self._moving[change[0]], change[1]
        old, new = moving.widening.before[row].tolist(), moving.narrowing.after[row].tolist()
        return self._on_volumes(old, low), self._on_volumes(new, low)

    def _nodes_of_all(self, assignment: Assignment) -> NDArray[np.int32]:
        rows = np.searchsorted(assignment.starts, _start_before(self.lows), side="right") - 1
        return assignment.replicas[rows]

    def _all_on_volumes(self, nodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Nodes (ranges, width) as volumes: the first one of each, then those of several where their slices are."""
        highest = max(self._nodes, default=0)
        first = np.full(highest + 2, NO_REPLICA, dtype=np.int32)
        for key, node in self._nodes.items():
            first[key] = node.volumes[0].volume_id
        volumes = first[nodes]
        if self._slices:
            flat, placed = nodes.reshape(-1), volumes.reshape(-1)
            order = np.argsort(flat, kind="stable")
            keys = np.array(sorted(self._slices), dtype=flat.dtype)
            begins, ends = (np.searchsorted(flat[order], keys, side=side) for side in ("left", "right"))
            for key, begin, end in zip(keys.tolist(), begins.tolist(), ends.tolist(), strict=True):
                places = order[begin:end]
                starts = np.array([start for start, _ in self._slices[key]], dtype=np.int64)
                ids = np.array([volume for _, volume in self._slices[key]], dtype=np.int32)
                at = np.searchsorted(starts, self.lows[places // nodes.shape[1]], side="right") - 1
                placed[places] = ids[at]
        return volumes


def _row(assignment: Assignment, low: int) -> list[NodeId]:
    """The nodes of the range that holds the token `low`."""
    start = np.array([low if low == MIN_TOKEN else low - 1], dtype=np.int64)
    nodes: list[NodeId] = assignment.replicas[
        int(np.searchsorted(assignment.starts, start[0], side="right")) - 1
    ].tolist()
    return nodes


def _start_before(lows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts, themselves not included, of ranges that begin at `lows`; the first range begins at its start."""
    return np.where(lows == MIN_TOKEN, lows, lows - 1)
