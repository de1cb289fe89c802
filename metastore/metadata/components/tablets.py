"""The component `tablets`: tablet maps, and the tablets in transition.

Maps are compared as arrays, and only chunks that are not shared: a million tablets of which ten moved give ten
differences in well under a millisecond each. A whole map that appears or goes is one difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.metastore.arrays import array_of, array_of_integers, values_of
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.components.schema import named_tables
from epochlake.metastore.metadata.differences import WHOLE, Difference, later, one
from epochlake.metastore.metadata.model import TableId, TabletKey, Transition, VolumeId
from epochlake.metastore.metadata.names import volume_names
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.placements import tablets
from epochlake.metastore.tables.rows import rows_of
from epochlake.placement.tablets.tablet_map import CHUNK, NO_REPLICA, TabletMap
from epochlake.placement.tokens import tablet_label

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

TABLET_MAP = "tablet map"
TABLET = "tablet"
TRANSITION = "transition"

_MAPS = pa.schema(
    [
        ("table_id", pa.string()),
        ("count", pa.int64()),
        ("width", pa.int32()),
        ("resize_type", pa.string()),
        ("resize_seq_number", pa.int64()),
        ("epoch", pa.int64()),
        ("replicas", pa.large_list(pa.int32())),
    ]
)
_encoder = msgspec.json.Encoder(order="sorted")


class Tablets(msgspec.Struct, frozen=True):
    """Tablet maps, and the transitions in flight: at most one for each tablet (INV-TABL-2)."""

    maps: Mapping[TableId, TabletMap]
    transitions: Mapping[TabletKey, Transition]
    epoch: int = 0


class _Stored(msgspec.Struct, frozen=True):
    transitions: list[Transition]
    tablets_epoch: int


def _encode(state: Tablets) -> _Stored:
    return _Stored([state.transitions[key] for key in sorted(state.transitions)], state.epoch)


def _arrays(state: Tablets) -> pa.RecordBatch:
    maps = sorted(state.maps.items())
    flat = [tablet_map.to_array().reshape(-1) for _, tablet_map in maps]
    offsets = np.concatenate([[0], np.cumsum([len(values) for values in flat])]).astype(np.int64)
    values = np.concatenate(flat) if flat else np.empty(0, np.int32)
    columns: list[Any] = [
        array_of([key for key, _ in maps], pa.string()),
        array_of([m.count for _, m in maps], pa.int64()),
        array_of([m.width for _, m in maps], pa.int32()),
        array_of([m.resize_type for _, m in maps], pa.string()),
        array_of([m.resize_seq_number for _, m in maps], pa.int64()),
        array_of([m.epoch for _, m in maps], pa.int64()),
        pa.LargeListArray.from_arrays(array_of_integers(offsets), array_of_integers(values.astype(np.int32))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_MAPS)


def _decode(stored: _Stored, table: pa.Table | None) -> Tablets:
    transitions = {transition.key: transition for transition in stored.transitions}
    return Tablets({} if table is None else dict(_maps(table)), transitions, stored.tablets_epoch)


def _maps(table: pa.Table) -> Iterator[tuple[TableId, TabletMap]]:
    replicas = table["replicas"].combine_chunks()
    offsets = values_of(replicas.offsets)
    values = values_of(replicas.values)
    small = table.drop_columns(["replicas"]).to_pylist()
    for row, start, end in zip(small, offsets[:-1], offsets[1:], strict=True):
        array = values[start:end].reshape(row["count"], row["width"])
        tablet_map = TabletMap.from_array(array, epoch=row["epoch"])
        yield (
            row["table_id"],
            msgspec.structs.replace(
                tablet_map, resize_type=row["resize_type"], resize_seq_number=row["resize_seq_number"]
            ),
        )


def _facts(state: Tablets) -> Facts:
    chunks: list[bytes] = []
    for table_id, tablet_map in sorted(state.maps.items()):
        facts = (
            table_id,
            tablet_map.count,
            tablet_map.width,
            tablet_map.resize_type,
            tablet_map.resize_seq_number,
            tablet_map.epoch,
        )
        chunks.append(_encoder.encode([plain(fact) for fact in facts]))
        chunks.append(np.ascontiguousarray(tablet_map.to_array(), dtype="<i4").tobytes())
    return Facts({"transitions": plain(_encode(state).transitions)}, tuple(chunks), state.epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    yield from _tablets(before, after)
    yield from _transitions(before, after)


def _tablets(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    old_maps, new_maps = before.tablets.maps, after.tablets.maps
    if old_maps is new_maps:
        return
    volumes = volume_names(later(before, after).directory)
    for name, key in named_tables(before.schema.tables, after.schema.tables):
        old, new = old_maps.get(key), new_maps.get(key)
        if old is new:
            continue
        if old is None or new is None:
            yield Difference(TABLET_MAP, name, WHOLE, _shape(old), _shape(new))
            continue
        for field in ("count", "resize_type", "resize_seq_number"):
            if getattr(old, field) != getattr(new, field):
                yield Difference(TABLET_MAP, name, field, getattr(old, field), getattr(new, field))
        if old.count == new.count:
            for tablet, was, now in _changed_rows(old, new):
                label = f"{name}/{tablet_label(tablet, new.count)}"
                yield Difference(TABLET, label, "replicas", _places(was, volumes), _places(now, volumes))


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


def _transitions(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    old_ones, new_ones = before.tablets.transitions, after.tablets.transitions
    if old_ones is new_ones:
        return
    changed = sorted(key for key in {*old_ones, *new_ones} if old_ones.get(key) is not new_ones.get(key))
    volumes = volume_names(later(before, after).directory)
    for key in changed:
        old, new = old_ones.get(key), new_ones.get(key)
        label = _tablet_name(key, after if new is not None else before)
        for found in one(TRANSITION, label, old, new, without=frozenset({"table_id", "tablet"})):
            yield _with_places(found, volumes)


def _tablet_name(key: TabletKey, metadata: ClusterMetadata) -> str:
    table_id, tablet = key
    return f"{metadata.schema.tables[table_id].full_name}/{tablet_label(tablet, metadata.tablets.maps[table_id].count)}"


_REPLICA_FIELDS = ("replicas", "new_replicas", "leaving", "pending")


def _with_places(difference: Difference, volumes: Mapping[VolumeId, str]) -> Difference:
    """The difference of a transition with volumes by name instead of by number."""

    def named(field: str, value: Any) -> Any:
        if value is None or field not in _REPLICA_FIELDS:
            return value
        return _places(value, volumes) if isinstance(value, list) else volumes[value]

    if difference.field != WHOLE:
        before, after = named(difference.field, difference.before), named(difference.field, difference.after)
    else:
        before, after = (
            None if whole is None else {field: named(field, value) for field, value in whole.items()}
            for whole in (difference.before, difference.after)
        )
    return msgspec.structs.replace(difference, before=before, after=after)


def _places(replicas: Any, volumes: Mapping[VolumeId, str]) -> list[str]:
    return [volumes[replica] for replica in replicas if replica != NO_REPLICA]


def transitions(metadata: ClusterMetadata) -> pa.Table:
    """A row for each tablet in transition."""
    under_way = metadata.tablets.transitions.values()
    named = [(metadata.schema.tables[transition.table_id], transition) for transition in under_way]
    named.sort(key=lambda pair: (pair[0].full_name, pair[0].table_id, pair[1].tablet))
    return rows_of(
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


TABLETS = Component(
    empty=Tablets({}, {}),
    since=1,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    arrays=_arrays,
    last_change=lambda state: state.epoch,
    facts=_facts,
    differences=_differences,
    tables=(tablets, transitions),
)
