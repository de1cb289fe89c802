"""What differs between two versions of the cluster metadata, as a list of changes for people and programs.

An unchanged part costs nothing. Components that are the same object are not looked into; of tablet maps
only the chunks that are not shared are compared, as arrays, so that a million tablets of which ten moved give ten
changes in well under a millisecond each. A whole map that appears or goes is one change, not one for each tablet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata, Directory
from epochlake.metastore.metadata.model import NodeId, Table, TableId, TabletKey, VolumeId
from epochlake.metastore.metadata.rings import replication_setting, ring_keyspaces
from epochlake.placement.ring.placements import Assignment, Placements, on_grid, same_sets
from epochlake.placement.ring.state import STEPS, Operation
from epochlake.placement.ring.tokens import ends_of
from epochlake.placement.tablets.tablet_map import CHUNK, NO_REPLICA, TabletMap
from epochlake.placement.tokens import tablet_label

WHOLE = ""
"""The `field` of a change in which the whole thing appears (`before` is None) or goes (`after` is None)."""

CLUSTER = "cluster"
NODE = "node"
VOLUME = "volume"
KEYSPACE = "keyspace"
TABLE = "table"
TABLET_MAP = "tablet map"
TABLET = "tablet"
TRANSITION = "transition"
RING_PLACEMENT = "ring placement"
RING_RANGE = "ring range"
OPERATION = "operation"
REQUEST = "request"
SWITCHES = "switches"

_BOOKKEEPING = frozenset({"epoch", "last_snapshot_epoch", "state_id"})
"""Fields that follow from the change and are none."""


class Change(msgspec.Struct, frozen=True):
    """One difference. `component` is one of the constants above, `name` which of them, `field` what of it.

    `before` and `after` are plain values as JSON has them. Replicas are given as `node/volume`, those of a ring range
    as nodes. Tablets are named `keyspace.table/k-i`, tablet i of 2^k; ring ranges `keyspace/(start, end]`.
    """

    component: str
    name: str
    field: str
    before: Any
    after: Any


def diff(before: ClusterMetadata, after: ClusterMetadata) -> list[Change]:
    """What was added, removed or changed from `before` to `after`, which may be in either order.

    By component in a fixed order, then by number or name. Empty when the two say the same, whatever their epochs.
    """
    return [
        *_fields(CLUSTER, after.identity.name, before.identity, after.identity),
        *_nodes_and_volumes(before, after),
        *_by_key(KEYSPACE, before.schema.keyspaces, after.schema.keyspaces),
        *_tables(before, after),
        *_tablets(before, after),
        *_transitions(before, after),
        *_ring_ranges(before, after),
        *_operations(before, after),
        *_by_key(REQUEST, before.requests, after.requests),
        *_fields(SWITCHES, after.identity.name, before.switches, after.switches),
    ]


def _plain(thing: Any) -> Any:
    """A thing as JSON has it: lists, not tuples."""
    return msgspec.json.decode(msgspec.json.encode(thing))


def _plain_struct(thing: Any, without: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in _plain(thing).items() if name not in _BOOKKEEPING | without}


def _fields(
    component: str, name: str, before: Any, after: Any, without: frozenset[str] = frozenset()
) -> Iterator[Change]:
    """The fields in which two structs of one type differ."""
    if before is after:
        return
    for field in before.__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if field not in _BOOKKEEPING | without and old != new:
            yield Change(component, name, field, _plain(old), _plain(new))


def _by_key(component: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Things that are named by the key under which they are kept."""
    if before is after:
        return
    for name in sorted({*before, *after}):
        yield from _one(component, name, before.get(name), after.get(name))


def _one(
    component: str, name: str, old: Any | None, new: Any | None, without: frozenset[str] = frozenset()
) -> Iterator[Change]:
    if old is None:
        yield Change(component, name, WHOLE, None, _plain_struct(new, without))
    elif new is None:
        yield Change(component, name, WHOLE, _plain_struct(old, without), None)
    else:
        yield from _fields(component, name, old, new, without)


def _nodes_and_volumes(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Change]:
    old_nodes, new_nodes = before.directory.nodes, after.directory.nodes
    if old_nodes is new_nodes:
        return
    names = node_names(_later(before, after))
    changed = [key for key in sorted({*old_nodes, *new_nodes}) if old_nodes.get(key) is not new_nodes.get(key)]
    for key in changed:
        yield from _one(NODE, names[key], old_nodes.get(key), new_nodes.get(key), without=frozenset({"volumes"}))
    for key in changed:
        old, new = (
            {volume.volume_id: volume for volume in node.volumes} if node else {}
            for node in (old_nodes.get(key), new_nodes.get(key))
        )
        for volume_id in sorted({*old, *new}):
            name = f"{names[key]}/{(new.get(volume_id) or old[volume_id]).name}"
            yield from _one(VOLUME, name, old.get(volume_id), new.get(volume_id))


def _tables(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Change]:
    old_tables, new_tables = before.schema.tables, after.schema.tables
    if old_tables is new_tables:
        return
    for name, key in _named_tables(old_tables, new_tables):
        yield from _one(TABLE, name, old_tables.get(key), new_tables.get(key))


def _named_tables(before: Mapping[TableId, Table], after: Mapping[TableId, Table]) -> list[tuple[str, TableId]]:
    """Name and id of every table, by name; one that was dropped comes before the one that took its name."""
    known = {**before, **after}
    return sorted(
        ((table.full_name, key) for key, table in known.items()), key=lambda pair: (pair[0], pair[1] in after)
    )


def _tablets(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Change]:
    old_maps, new_maps = before.tablets.maps, after.tablets.maps
    if old_maps is new_maps:
        return
    volumes = volume_names(_later(before, after))
    for name, key in _named_tables(before.schema.tables, after.schema.tables):
        old, new = old_maps.get(key), new_maps.get(key)
        if old is new:
            continue
        if old is None or new is None:
            yield Change(TABLET_MAP, name, WHOLE, _shape(old), _shape(new))
            continue
        for field in ("count", "resize_type", "resize_seq_number"):
            if getattr(old, field) != getattr(new, field):
                yield Change(TABLET_MAP, name, field, getattr(old, field), getattr(new, field))
        if old.count == new.count:
            for tablet, was, now in _changed_rows(old, new):
                label = f"{name}/{tablet_label(tablet, new.count)}"
                yield Change(TABLET, label, "replicas", _places(was, volumes), _places(now, volumes))


def _shape(tablet_map: TabletMap | None) -> dict[str, Any] | None:
    if tablet_map is None:
        return None
    return {
        "count": tablet_map.count,
        "width": tablet_map.width,
        "resize_type": tablet_map.resize_type,
        "resize_seq_number": tablet_map.resize_seq_number,
    }


def _changed_rows(old: TabletMap, new: TabletMap) -> Iterator[tuple[int, list[int], list[int]]]:
    """Tablets whose replicas differ, in order or as a set, with both; padding is still in them."""
    for number, (was, now) in enumerate(zip(old.chunks, new.chunks, strict=True)):
        if was is now:
            continue
        shared = min(was.shape[1], now.shape[1])
        differs = (was[:, :shared] != now[:, :shared]).any(axis=1)
        for wider in (was, now):
            differs |= (wider[:, shared:] != NO_REPLICA).any(axis=1)
        rows = np.flatnonzero(differs)
        yield from zip((rows + number * CHUNK).tolist(), was[rows].tolist(), now[rows].tolist(), strict=True)


def _transitions(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Change]:
    old_ones, new_ones = before.tablets.transitions, after.tablets.transitions
    if old_ones is new_ones:
        return
    changed = sorted(key for key in {*old_ones, *new_ones} if old_ones.get(key) is not new_ones.get(key))
    volumes = volume_names(_later(before, after))
    for key in changed:
        old, new = old_ones.get(key), new_ones.get(key)
        label = _tablet_name(key, after if new is not None else before)
        for change in _one(TRANSITION, label, old, new, without=frozenset({"table_id", "tablet"})):
            yield _with_places(change, volumes)


def _tablet_name(key: TabletKey, metadata: ClusterMetadata) -> str:
    table_id, tablet = key
    return f"{metadata.schema.tables[table_id].full_name}/{tablet_label(tablet, metadata.tablets.maps[table_id].count)}"


def _ring_ranges(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Change]:
    """Ranges whose reads or writes differ; where a range was split or merged, the pieces that differ."""
    if before.rings is after.rings:
        return
    names = node_names(_later(before, after))
    old, new = (
        {name: m.rings.placements[replication_setting(m, name)] for name in ring_keyspaces(m)} for m in (before, after)
    )
    for keyspace in sorted({*old, *new}):
        was, now = old.get(keyspace), new.get(keyspace)
        if was is None or now is None:
            yield Change(RING_PLACEMENT, keyspace, WHOLE, _ranges(was), _ranges(now))
        elif was is not now:
            for start, end, field, one, other in _moved(was, now):
                label = f"{keyspace}/({start}, {end}]"
                yield Change(RING_RANGE, label, field, _nodes(one, names), _nodes(other, names))


def _ranges(placements: Placements | None) -> dict[str, Any] | None:
    return None if placements is None else {"ranges": len(placements.reads.starts)}


def _moved(was: Placements, now: Placements) -> list[tuple[int, int, str, list[NodeId], list[NodeId]]]:
    """Start, end, `reads` or `writes`, and the nodes before and after; in ring order."""
    found = []
    for field in ("reads", "writes"):
        old: Assignment = getattr(was, field)
        new: Assignment = getattr(now, field)
        if old is not new:
            grid = np.union1d(old.starts, new.starts)
            left, right, ends = on_grid(old, grid), on_grid(new, grid), ends_of(grid)
            found += [
                (int(grid[row]), int(ends[row]), field, left[row].tolist(), right[row].tolist())
                for row in np.flatnonzero(~same_sets(left, right)).tolist()
            ]
    return sorted(found, key=lambda change: (change[0], change[2]))


def _nodes(row: list[NodeId], names: Mapping[NodeId, str]) -> list[str]:
    return [names[node] for node in row if node >= 0]


def _operations(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Change]:
    if before.rings is after.rings:
        return
    names = node_names(_later(before, after))
    old, new = ({name: _operation(m, one, names) for name, one in m.rings.operations.items()} for m in (before, after))
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            yield Change(OPERATION, name, WHOLE, was, now)
            continue
        for field in was:
            if was[field] != now[field]:
                yield Change(OPERATION, name, field, was[field], now[field])


def _operation(metadata: ClusterMetadata, operation: Operation, names: Mapping[NodeId, str]) -> dict[str, Any]:
    """An operation as far as it changes or names itself; its deltas are known by what they do to the ranges."""
    return {
        "kind": operation.kind.value,
        "request_id": metadata.rings.running[operation.operation_id].request_id,
        "node": names.get(operation.node_id),
        "replaced": None if operation.replaced is None else names[operation.replaced],
        "keyspace": operation.keyspace or None,
        "tokens": list(operation.tokens),
        "step": STEPS[operation.next_step - 1].value,
        "cancelling": operation.cancelling,
        "session": metadata.rings.running[operation.operation_id].session,
    }


_REPLICA_FIELDS = ("replicas", "new_replicas", "leaving", "pending")


def _with_places(change: Change, volumes: Mapping[VolumeId, str]) -> Change:
    """The change of a transition with volumes by name instead of by number."""

    def named(field: str, value: Any) -> Any:
        if value is None or field not in _REPLICA_FIELDS:
            return value
        return _places(value, volumes) if isinstance(value, list) else volumes[value]

    if change.field != WHOLE:
        before, after = named(change.field, change.before), named(change.field, change.after)
    else:
        before, after = (
            None if whole is None else {field: named(field, value) for field, value in whole.items()}
            for whole in (change.before, change.after)
        )
    return msgspec.structs.replace(change, before=before, after=after)


def _places(replicas: Any, volumes: Mapping[VolumeId, str]) -> list[str]:
    return [volumes[replica] for replica in replicas if replica != NO_REPLICA]


def _later(before: ClusterMetadata, after: ClusterMetadata) -> Directory:
    """The directory of the later epoch: nodes are never forgotten, so it knows those of the other one too."""
    return max(before, after, key=lambda metadata: metadata.epoch).directory


def node_names(directory: Directory) -> dict[NodeId, str]:
    """A name for each node that no other has: a node whose name was used again later is `name#number`."""
    used = Counter(node.name for node in directory.nodes.values())
    return {
        key: node.name if used[node.name] == 1 or directory.by_name[node.name] is node else f"{node.name}#{key}"
        for key, node in directory.nodes.items()
    }


def volume_names(directory: Directory) -> dict[VolumeId, str]:
    """`node/volume` for each volume."""
    names = node_names(directory)
    return {
        volume.volume_id: f"{names[key]}/{volume.name}"
        for key, node in directory.nodes.items()
        for volume in node.volumes
    }
