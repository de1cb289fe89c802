"""Tablets, ring ranges, and who reads and writes them, as Arrow tables.

Neither tablets nor ranges are looked at one by one. Tablet maps and placements are arrays already; a
column is made of them by repeating, counting and looking up, for all tables at once. Only tablets in transition, which
are few, are placed by `placement/tablets/transitions.py` one at a time, and written over what the maps say.

Tables with tablets come first, then those on the ring, both by name and then by id; tablets and ranges in token order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from epochlake.metastore.metadata.components.schema import by_name
from epochlake.metastore.metadata.model import Table, Transition, VolumeId
from epochlake.metastore.metadata.placements import RingPlacements, highs
from epochlake.metastore.metadata.replication import replication_setting, ring_keyspaces
from epochlake.metastore.tables import columns as c
from epochlake.placement.ring.placements import on_grid
from epochlake.placement.tablets.tablet_map import NO_REPLICA, TabletMap
from epochlake.placement.tablets.transitions import WRITES, Selector, read_replicas, write_replicas
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tablet_bits, tablet_ranges
from numpy.typing import NDArray

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

Ints = NDArray[np.int32]

_SETS = (Selector.OLD.value, Selector.NEW.value, Selector.BOTH.value)
_OLD, _NEW, _BOTH = range(len(_SETS))


def tablets(metadata: ClusterMetadata) -> pa.Table:
    """A row for each tablet of each table that has tablets, with its token range and replicas."""
    every = _Tablets(metadata)
    stages = np.full(len(every), -1, np.int32)
    names = sorted({transition.stage.value for transition in metadata.tablets.transitions.values()})
    for row, transition in every.in_transition():
        stages[row] = names.index(transition.stage.value)
    lists = _lists(every.replicas(), c.TABLETS_SCHEMA.field(c.REPLICAS).type)
    return pa.table(
        [
            *every.key_columns(),
            every.labels(),
            *every.range_columns(),
            lists,
            pa.DictionaryArray.from_arrays(pa.array(stages, mask=stages < 0), pa.array(names, pa.string())),
        ],
        schema=c.TABLETS_SCHEMA,
    )


def ring_ranges(metadata: ClusterMetadata) -> pa.Table:
    """A row for each range of each ring keyspace, with its nodes; the range around the top is two rows."""
    parts = [_ring_ranges(metadata, keyspace) for keyspace in sorted(ring_keyspaces(metadata))]
    return _put_together(c.RING_RANGES_SCHEMA, parts)


def _ring_ranges(metadata: ClusterMetadata, keyspace: str) -> pa.Table:
    setting = replication_setting(metadata, keyspace)
    now = metadata.rings.placements[setting]
    grid = np.union1d(now.reads.starts, now.writes.starts)
    grid = grid[grid != MAX_TOKEN]  # the range after it holds MIN_TOKEN only, which is in the first one
    names = list(metadata.rings.operations)
    changed_by = np.full(len(grid), -1, np.int32)
    for number, operation in enumerate(metadata.rings.operations.values()):
        for delta in operation.deltas.get(setting, ()):
            for change in (delta.reads, delta.writes):
                changed_by[np.isin(grid, change.starts)] = number
    count = len(grid)
    named = pa.DictionaryArray.from_arrays(pa.array(changed_by, mask=changed_by < 0), pa.array(names, c.TEXT))
    return pa.table(
        [
            _looked_up([keyspace], np.zeros(count, np.int32)),
            pa.array(np.arange(count, dtype=np.int32)),
            pa.array(grid),
            pa.array(np.append(grid[1:], np.int64(MAX_TOKEN))),
            _lists(on_grid(now.reads, grid), c.RING_RANGES_SCHEMA.field(c.READS).type),
            _lists(on_grid(now.writes, grid), c.RING_RANGES_SCHEMA.field(c.WRITES).type),
            named,
        ],
        schema=c.RING_RANGES_SCHEMA,
    )


def read_placements(metadata: ClusterMetadata) -> pa.Table:
    """A row for each replica that serves reads of a tablet or a ring range, in the order of its placement."""
    every = _Tablets(metadata)
    replicas = every.replicas()
    for row, t in every.in_transition():
        replicas = _with_row(replicas, row, read_replicas(t.stage, t.replicas, t.new_replicas))
    parts = [pa.table(_placement_columns(metadata, every, replicas), schema=c.READ_PLACEMENTS_SCHEMA)]
    for ring in _rings(metadata):
        columns = _placement_columns(metadata, ring, ring.reads())
        parts.append(pa.table(columns, schema=c.READ_PLACEMENTS_SCHEMA))
    return _put_together(c.READ_PLACEMENTS_SCHEMA, parts)


def write_placements(metadata: ClusterMetadata) -> pa.Table:
    """A row for each replica that must get the writes of a tablet or a ring range, with the set that it counts in."""
    every = _Tablets(metadata)
    replicas = every.replicas()
    marks: list[tuple[int, list[int]]] = []
    for row, t in every.in_transition():
        getting = write_replicas(t.stage, t.replicas, t.new_replicas)
        replicas = _with_row(replicas, row, getting)
        marks.append((row, [_counts_in(replica, t) for replica in getting]))
    sets = np.full(replicas.shape, _OLD, np.int32)
    for row, mark in marks:
        sets[row, : len(mark)] = mark
    parts = [_with_sets(metadata, every, replicas, sets)]
    for ring in _rings(metadata):
        parts.append(_with_sets(metadata, ring, *ring.writes_and_sets()))
    return _put_together(c.WRITE_PLACEMENTS_SCHEMA, parts)


def _with_sets(metadata: ClusterMetadata, every: _Ranges, replicas: Ints, sets: Ints) -> pa.Table:
    present = replicas != NO_REPLICA
    logical = pa.array(logical_replicas(present, sets == _OLD, sets == _NEW)[present].astype(np.int32))
    of_sets = pa.DictionaryArray.from_arrays(pa.array(sets[present]), pa.array(_SETS))
    return pa.table(
        [*_placement_columns(metadata, every, replicas), of_sets, logical], schema=c.WRITE_PLACEMENTS_SCHEMA
    )


def logical_replicas(present: NDArray[np.bool_], old: NDArray[np.bool_], new: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Which logical replica each owner is of (seed 002, "Future Work"): `[[leaving, pending], [b], [c]]`.

    All have the shape (ranges, width): whether there is an owner, and whether it counts in the old set or in the new
    one only. Those that stay or go are numbered in their order; the first that comes takes the number of the first that
    goes, and so on. What comes in addition has a number of its own.
    """
    numbers = np.cumsum(present & ~new, axis=1) - 1
    changing = np.flatnonzero((present & new).any(axis=1))
    if len(changing):
        going, coming = (present & old)[changing], (present & new)[changing]
        staying = (present & ~new)[changing].sum(axis=1, keepdims=True)
        # What the k-th that comes gets; where none makes room for it, the next number that is free.
        slots = staying - going.sum(axis=1, keepdims=True) + np.arange(present.shape[1])
        row, column = np.nonzero(going)
        slots[row, (np.cumsum(going, axis=1) - 1)[row, column]] = numbers[changing][row, column]
        row, column = np.nonzero(coming)
        numbers[changing[row], column] = slots[row, (np.cumsum(coming, axis=1) - 1)[row, column]]
    return numbers


def _rings(metadata: ClusterMetadata) -> list[_RingRanges]:
    """The tables of each ring keyspace that has any."""
    of_keyspaces = ((name, [t for t in by_name(metadata) if t.keyspace == name]) for name in ring_keyspaces(metadata))
    return [_RingRanges(metadata.ring_placements(name), tables) for name, tables in sorted(of_keyspaces) if tables]


class _Ranges:
    """Ranges of tokens of some tables, one row each: `counts` of each table, with their starts and ends."""

    def __init__(
        self, tables: list[Table], counts: list[int], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> None:
        self._tables = tables
        self._counts = counts
        self._table_row = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
        self._number = _joined([np.arange(count, dtype=np.int32) for count in counts], np.int32)
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return len(self._number)

    def key_columns(self, repeats: NDArray[np.int64] | None = None) -> list[pa.Array]:
        """Keyspace, table, table id and number; each row as often as `repeats` says."""
        rows = self._table_row if repeats is None else np.repeat(self._table_row, repeats)
        number = self._number if repeats is None else np.repeat(self._number, repeats)
        named = [
            _looked_up([getattr(table, field) for table in self._tables], rows)
            for field in ("keyspace", "name", "table_id")
        ]
        return [*named, pa.array(number)]

    def range_columns(self, repeats: NDArray[np.int64] | None = None) -> list[pa.Array]:
        """Start and end of the token range."""
        both = (self._start, self._end)
        return [pa.array(side if repeats is None else np.repeat(side, repeats)) for side in both]


class _Tablets(_Ranges):
    """The tablets of all tables that have a map."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        tables = [table for table in by_name(metadata) if table.table_id in metadata.tablets.maps]
        self._maps: list[TabletMap] = [metadata.tablets.maps[table.table_id] for table in tables]
        counts = [tablet_map.count for tablet_map in self._maps]
        self._offsets = dict(zip((t.table_id for t in tables), np.cumsum([0, *counts])[:-1].tolist(), strict=True))
        self._transitions = metadata.tablets.transitions.values()
        ranges = [tablet_ranges(count) for count in counts]
        start = _joined([start for start, _ in ranges], np.int64)
        super().__init__(tables, counts, start, _joined([end for _, end in ranges], np.int64))

    def replicas(self) -> Ints:
        """What the maps say: shape (rows, widest), padded with NO_REPLICA. A fresh array."""
        width = max((tablet_map.width for tablet_map in self._maps), default=0)
        whole = np.full((len(self), width), NO_REPLICA, np.int32)
        for table, tablet_map in zip(self._tables, self._maps, strict=True):
            row = self._offsets[table.table_id]
            for chunk in tablet_map.chunks:
                whole[row : row + len(chunk), : tablet_map.width] = chunk
                row += len(chunk)
        return whole

    def in_transition(self) -> list[tuple[int, Transition]]:
        """The tablets in transition, each with its row."""
        return [(self._offsets[t.table_id] + t.tablet, t) for t in self._transitions]

    def labels(self) -> pa.Array:
        import pyarrow.compute as pc  # 80 ms, which whoever opens a metastore would pay

        bits = np.repeat(np.array([tablet_bits(count) for count in self._counts], dtype=np.int32), self._counts)
        return pc.binary_join_element_wise(pa.array(bits).cast(c.TEXT), pa.array(self._number).cast(c.TEXT), "-")


class _RingRanges(_Ranges):
    """The placements of a ring keyspace, once for each of its tables."""

    def __init__(self, placements: RingPlacements, tables: list[Table]) -> None:
        self.placements = placements
        lows = placements.lows
        start, times = np.where(lows == MIN_TOKEN, lows, lows - 1), len(tables)
        super().__init__(tables, [len(lows)] * times, np.tile(start, times), np.tile(highs(lows), times))

    def reads(self) -> Ints:
        return self._for_each(self.placements.read_volumes)

    def writes_and_sets(self) -> tuple[Ints, Ints]:
        """Volumes that get the writes, and which set each of them counts in."""
        sets = np.full(self.placements.write_volumes.shape, _OLD, np.int32)
        changing, old, new = self.placements.changing_sets
        sets[changing] = np.where(new, np.where(old, _BOTH, _NEW), _OLD)
        return self._for_each(self.placements.write_volumes), self._for_each(sets)

    def _for_each(self, of_one_table: Ints) -> Ints:
        return np.tile(of_one_table, (len(self._tables), 1))


def _joined(arrays: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, kind)


def _looked_up(values: Sequence[str], rows: Ints) -> pa.DictionaryArray:
    """`values[row]` for each of `rows`."""
    encoded = pa.array(values, c.TEXT).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes[rows]), encoded.dictionary)


def _with_row(replicas: Ints, row: int, volumes: tuple[VolumeId, ...]) -> Ints:
    """`replicas`, itself when it is wide enough, with one row written over."""
    missing = len(volumes) - replicas.shape[1]
    if missing > 0:
        replicas = np.pad(replicas, ((0, 0), (0, missing)), constant_values=NO_REPLICA)
    replicas[row] = NO_REPLICA
    replicas[row, : len(volumes)] = volumes
    return replicas


def _counts_in(replica: VolumeId, transition: Transition) -> int:
    """Which set an acknowledgement of `replica` counts in at the transition's stage."""
    match WRITES[transition.stage]:
        case Selector.OLD:
            return _OLD
        case Selector.NEW:
            return _NEW
    if replica not in transition.new_replicas:
        return _OLD
    return _BOTH if replica in transition.replicas else _NEW


def _placement_columns(metadata: ClusterMetadata, every: _Ranges, replicas: Ints) -> list[pa.Array]:
    """The columns of a placement: a row for each replica in `replicas` (ranges, width)."""
    present = replicas != NO_REPLICA
    repeats = present.sum(axis=1)
    ordinal = (np.cumsum(present, axis=1, dtype=np.int32) - 1)[present]
    volume_id = replicas[present]
    directory = metadata.directory
    keys = sorted(directory.volumes)
    row_of = np.zeros(max(keys, default=0) + 1, np.int32)
    row_of[keys] = np.arange(len(keys), dtype=np.int32)
    rows = row_of[volume_id]
    owners = [directory.node_of_volume[key] for key in keys]
    node_id = np.array([node.node_id for node in owners], np.int32)[rows]
    return [
        *every.key_columns(repeats),
        *every.range_columns(repeats),
        pa.array(ordinal),
        pa.array(volume_id),
        _looked_up([directory.volumes[key].name for key in keys], rows),
        _looked_up([directory.volumes[key].uri for key in keys], rows),
        pa.array(node_id),
        _looked_up([node.name for node in owners], rows),
        _looked_up([node.host_id for node in owners], rows),
        _looked_up([node.datacenter for node in owners], rows),
        _looked_up([node.rack for node in owners], rows),
    ]


def _lists(rows: Ints, kind: pa.DataType) -> pa.ListArray:
    """Rows padded with NO_REPLICA as lists."""
    present = rows != NO_REPLICA
    offsets = pa.array(np.concatenate([[0], np.cumsum(present.sum(axis=1))]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(rows[present]), type=kind)


def _put_together(schema: pa.Schema, parts: Sequence[pa.Table]) -> pa.Table:
    """The parts one after the other, in one chunk and with one dictionary for each column."""
    if not parts:
        return schema.empty_table()
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).unify_dictionaries().combine_chunks()
