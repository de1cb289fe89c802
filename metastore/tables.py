"""Every part of the cluster metadata as an Arrow table: what people and Spark query, without a session or a JVM.

The one idea: tablets are never looked at one by one. Tablet maps are arrays already; a column is made of them by
repeating, counting and looking up, for all tables at once. Only tablets in transition, which are few, are placed by
`placement/transitions.py` one at a time, and written over what the maps say.

Columns and schemas are those of `metastore/columns.py`. Tables come by name and then by id, tablets by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.metastore import columns as c
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import Change
from epochlake.metastore.metadata.differences import diff as differences
from epochlake.metastore.metadata.model import Table, Transition, VolumeId
from epochlake.placement.tablet_map import NO_REPLICA, TabletMap
from epochlake.placement.tokens import tablet_bits, tablet_ranges
from epochlake.placement.transitions import WRITES, Selector, read_replicas, write_replicas
from numpy.typing import NDArray

Ints = NDArray[np.int32]

_SETS = (Selector.OLD.value, Selector.NEW.value, Selector.BOTH.value)
_OLD, _NEW, _BOTH = range(len(_SETS))


def nodes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each node, those that left included; by number."""
    rows = [metadata.directory.nodes[key] for key in sorted(metadata.directory.nodes)]
    return _rows(
        c.NODES_SCHEMA,
        (
            (
                node.node_id,
                node.name,
                node.host_id,
                node.datacenter,
                node.rack,
                node.state.value,
                len(node.volumes),
                sum(volume.capacity for volume in node.volumes),
                list(node.tokens),
                node.replaces,
                node.replaced_by,
                node.epoch,
            )
            for node in rows
        ),
    )


def volumes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each volume of each node; by number."""
    known, node_of = metadata.directory.volumes, metadata.directory.node_of_volume
    return _rows(
        c.VOLUMES_SCHEMA,
        (
            (
                key,
                known[key].name,
                known[key].uri,
                known[key].capacity,
                node_of[key].node_id,
                node_of[key].name,
                node_of[key].datacenter,
                node_of[key].rack,
                node_of[key].state.value,
            )
            for key in sorted(known)
        ),
    )


def keyspaces(metadata: ClusterMetadata) -> pa.Table:
    """A row for each keyspace; by name."""
    rows = [metadata.schema.keyspaces[name] for name in sorted(metadata.schema.keyspaces)]
    return _rows(
        c.KEYSPACES_SCHEMA,
        ((k.name, k.placement.value, k.strategy, list(k.replication.items()), k.epoch) for k in rows),
    )


def tables(metadata: ClusterMetadata) -> pa.Table:
    """A row for each table; by name."""

    def row(table: Table) -> tuple[Any, ...]:
        tablet_map = metadata.tablets.maps.get(table.table_id)
        about_tablets: tuple[Any, ...] = (None, None, None)
        if tablet_map is not None:
            about_tablets = (tablet_map.count, tablet_map.resize_type, tablet_map.resize_seq_number)
        return (
            table.keyspace,
            table.name,
            table.table_id,
            [msgspec.to_builtins(column) for column in table.columns],
            list(table.primary_key),
            table.append_only,
            table.version,
            *about_tablets,
            table.epoch,
        )

    return _rows(c.TABLES_SCHEMA, (row(table) for table in _by_name(metadata)))


def tablets(metadata: ClusterMetadata) -> pa.Table:
    """A row for each tablet of each table, with its token range and replicas."""
    every = _Tablets(metadata)
    stages = np.full(len(every), -1, np.int32)
    names = sorted({transition.stage.value for transition in metadata.tablets.transitions.values()})
    for row, transition in every.in_transition():
        stages[row] = names.index(transition.stage.value)
    replicas = every.replicas()
    present = replicas != NO_REPLICA
    lists = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(present.sum(axis=1))]), pa.int32()),
        pa.array(replicas[present]),
        type=c.TABLETS_SCHEMA.field(c.REPLICAS).type,
    )
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


def transitions(metadata: ClusterMetadata) -> pa.Table:
    """A row for each tablet in transition."""
    under_way = metadata.tablets.transitions.values()
    named = [(metadata.schema.tables[transition.table_id], transition) for transition in under_way]
    named.sort(key=lambda pair: (pair[0].full_name, pair[0].table_id, pair[1].tablet))
    return _rows(
        c.TRANSITIONS_SCHEMA,
        (
            (
                table.keyspace,
                table.name,
                t.table_id,
                t.tablet,
                t.kind.value,
                t.stage.value,
                list(t.replicas),
                list(t.new_replicas),
                t.leaving,
                t.pending,
                t.session,
                t.reason,
                t.error,
                t.started_epoch,
                t.epoch,
            )
            for table, t in named
        ),
    )


def read_placements(metadata: ClusterMetadata) -> pa.Table:
    """A row for each replica that serves reads of a tablet, in the order of `ClusterMetadata.placement`."""
    every = _Tablets(metadata)
    replicas = every.replicas()
    for row, t in every.in_transition():
        replicas = _with_row(replicas, row, read_replicas(t.stage, t.replicas, t.new_replicas))
    present = replicas != NO_REPLICA
    return pa.table(_placement_columns(metadata, every, replicas, present), schema=c.READ_PLACEMENTS_SCHEMA)


def write_placements(metadata: ClusterMetadata) -> pa.Table:
    """A row for each replica that must get the writes of a tablet, with the replica set that it counts in."""
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
    present = replicas != NO_REPLICA
    of_sets = pa.DictionaryArray.from_arrays(pa.array(sets[present]), pa.array(_SETS))
    columns = [*_placement_columns(metadata, every, replicas, present), of_sets]
    return pa.table(columns, schema=c.WRITE_PLACEMENTS_SCHEMA)


def requests(metadata: ClusterMetadata) -> pa.Table:
    """A row for each topology request, ended ones included; oldest first."""
    known = metadata.directory.nodes
    return _rows(
        c.REQUESTS_SCHEMA,
        (
            (
                request.request_id,
                request.kind.value,
                request.node_id,
                known[request.node_id].name,
                request.state.value,
                request.reason,
                request.detail,
                request.requested_epoch,
                request.started_epoch,
                request.epoch,
            )
            for request in sorted(metadata.requests.values(), key=lambda request: request.requested_epoch)
        ),
    )


def diff(before: ClusterMetadata, after: ClusterMetadata) -> pa.Table:
    """A row for each change from one version to another: see `differences.diff`."""
    return changes(differences(before, after))


def changes(found: Iterable[Change]) -> pa.Table:
    """A row for each change, values as JSON."""
    return _rows(
        c.CHANGES_SCHEMA,
        ((change.component, change.name, change.field, _json(change.before), _json(change.after)) for change in found),
    )


PARTS: dict[str, Callable[[ClusterMetadata], pa.Table]] = {
    function.__name__: function
    for function in (
        nodes,
        volumes,
        keyspaces,
        tables,
        tablets,
        transitions,
        read_placements,
        write_placements,
        requests,
    )
}
"""Every table that follows from one version of the metadata, by name."""


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _rows(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """A small table from tuples in the schema's order."""
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [_column(field.type, column) for field, column in zip(schema, values, strict=True)]
    return pa.table(arrays, schema=schema)


def _column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


def _by_name(metadata: ClusterMetadata) -> list[Table]:
    return sorted(metadata.schema.tables.values(), key=lambda table: (table.full_name, table.table_id))


class _Tablets:
    """The tablets of all tables that have a map, one row each."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._tables = [table for table in _by_name(metadata) if table.table_id in metadata.tablets.maps]
        self._maps: list[TabletMap] = [metadata.tablets.maps[table.table_id] for table in self._tables]
        self._counts = [tablet_map.count for tablet_map in self._maps]
        self._offsets = dict(
            zip((t.table_id for t in self._tables), np.cumsum([0, *self._counts])[:-1].tolist(), strict=True)
        )
        self._transitions = metadata.tablets.transitions.values()
        self._table_row = np.repeat(np.arange(len(self._tables), dtype=np.int32), self._counts)
        self._tablet = _joined([np.arange(count, dtype=np.int32) for count in self._counts], np.int32)
        ranges = [tablet_ranges(count) for count in self._counts]
        self._start = _joined([start for start, _ in ranges], np.int64)
        self._end = _joined([end for _, end in ranges], np.int64)

    def __len__(self) -> int:
        return len(self._tablet)

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

    def key_columns(self, repeats: NDArray[np.int64] | None = None) -> list[pa.Array]:
        """Keyspace, table, table id and tablet; each row as often as `repeats` says."""
        rows = self._table_row if repeats is None else np.repeat(self._table_row, repeats)
        tablet = self._tablet if repeats is None else np.repeat(self._tablet, repeats)
        named = [
            _looked_up([getattr(table, field) for table in self._tables], rows)
            for field in ("keyspace", "name", "table_id")
        ]
        return [*named, pa.array(tablet)]

    def range_columns(self, repeats: NDArray[np.int64] | None = None) -> list[pa.Array]:
        """Start and end of the token range."""
        both = (self._start, self._end)
        return [pa.array(side if repeats is None else np.repeat(side, repeats)) for side in both]

    def labels(self) -> pa.Array:
        bits = np.repeat(np.array([tablet_bits(count) for count in self._counts], dtype=np.int32), self._counts)
        return pc.binary_join_element_wise(pa.array(bits).cast(c.TEXT), pa.array(self._tablet).cast(c.TEXT), "-")


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


def _placement_columns(
    metadata: ClusterMetadata, every: _Tablets, replicas: Ints, present: NDArray[np.bool_]
) -> list[pa.Array]:
    """The columns of a placement: a row for each place of `replicas` (tablets, width) that is `present`."""
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
