"""What an operation on the ring changes, in volumes and tokens: who gains which range, from whom, in which tables.

The one idea: an operation speaks of nodes and of ranges `(start, end]`; replica tables are on volumes and know tokens.
Each changed range is cut where a volume of any node concerned ends, so that every piece has one giver and one target.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeId, TableId, VolumeId
from epochlake.metastore.metadata.placements import volume_slices
from epochlake.metastore.metadata.rings import replication_setting, ring_keyspaces
from epochlake.placement.ring.placements import Change
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.streaming import Streams, streams
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

_MID = STEPS.index(Step.MID)

Sides = tuple[tuple[VolumeId, ...], tuple[VolumeId, ...]]
"""The volumes that serve a range before and after a change."""


class Gain(msgspec.Struct, frozen=True):
    """The tokens from `low` to `high`, both included, come to `target`.

    `giver` is the replica that gives them up to it, None where nobody does; `sources` are all that serve reads of them
    until then, and `replicas` all that will.
    """

    low: int
    high: int
    target: VolumeId
    giver: VolumeId | None
    sources: tuple[VolumeId, ...]
    replicas: tuple[VolumeId, ...]


class SettingChange(msgspec.Struct, frozen=True):
    """What changes for the tables that share a replication setting.

    `sides` are the different pairs of volumes that serve a changed range before and after.
    """

    tables: tuple[TableId, ...]
    gains: tuple[Gain, ...]
    sides: tuple[Sides, ...]


class RingChange(msgspec.Struct, frozen=True):
    """What an operation changes, by replication setting."""

    settings: tuple[SettingChange, ...]

    @property
    def gaining(self) -> frozenset[tuple[TableId, VolumeId]]:
        """Replica tables that gain ranges."""
        return frozenset(
            (table_id, gain.target) for one in self.settings for table_id in one.tables for gain in one.gains
        )

    @property
    def places(self) -> frozenset[tuple[TableId, VolumeId]]:
        """Replica tables that have anything to do with it."""
        return frozenset(
            (table_id, volume)
            for one in self.settings
            for table_id in one.tables
            for old, new in one.sides
            for volume in (*old, *new)
        )

    def gains_of(self) -> dict[tuple[TableId, VolumeId], tuple[Gain, ...]]:
        """What each replica table gains."""
        return {
            (table_id, target): tuple(gain for gain in one.gains if gain.target == target)
            for one in self.settings
            for table_id in one.tables
            for target in dict.fromkeys(gain.target for gain in one.gains)
        }


def change_of(metadata: ClusterMetadata, operation: Operation) -> RingChange:
    """What `operation` changes. Tables and volumes stay what they are while it is in flight."""
    tables = tables_by_setting(metadata)
    gained = streams(operation)
    return RingChange(
        tuple(
            SettingChange(
                tables.get(setting, ()),
                tuple(_gains(metadata, gained[setting], deltas[_MID].reads)),
                _sides(metadata, deltas[_MID].reads),
            )
            for setting, deltas in operation.deltas.items()
        )
    )


def keeps_its_rows(operation: Operation) -> bool:
    """Whether those that gain ranges go on holding them meanwhile: a rebuild takes nothing away before it refills."""
    return operation.kind is OperationKind.REBUILD


def tables_by_setting(metadata: ClusterMetadata) -> dict[Replication, tuple[TableId, ...]]:
    """The tables on the ring by the setting that decides where their rows are."""
    settings = {name: replication_setting(metadata, name) for name in ring_keyspaces(metadata)}
    return {
        setting: tuple(
            table.table_id for table in metadata.schema.tables.values() if settings.get(table.keyspace) == setting
        )
        for setting in dict.fromkeys(settings.values())
    }


def owned_by(metadata: ClusterMetadata, table_id: TableId) -> dict[VolumeId, list[tuple[int, int]]]:
    """The tokens, as intervals, that each volume may hold rows of now: those that it serves or must get writes of."""
    cover = metadata.ring_placements(metadata.schema.tables[table_id].keyspace)
    lows = cover.lows.tolist()
    highs = [low - 1 for low in lows[1:]] + [MAX_TOKEN]
    volumes = np.concatenate([cover.read_volumes, cover.write_volumes], axis=1).tolist()
    owned: dict[VolumeId, list[tuple[int, int]]] = {}
    for low, high, row in zip(lows, highs, volumes, strict=True):
        for volume in {volume for volume in row if volume >= 0}:
            held = owned.setdefault(volume, [])
            if held and held[-1][1] == low - 1:
                held[-1] = (held[-1][0], high)
            else:
                held.append((low, high))
    return owned


def _sides(metadata: ClusterMetadata, change: Change) -> tuple[Sides, ...]:
    found: dict[Sides, None] = {}
    rows = zip(*(column.tolist() for column in (change.starts, change.ends, change.before, change.after)), strict=True)
    for start, end, before, after in rows:
        for low, _ in _pieces(metadata, start, end, (*before, *after)):
            found[_on_volumes(metadata, before, low), _on_volumes(metadata, after, low)] = None
    return tuple(found)


def _gains(metadata: ClusterMetadata, gained: Streams, change: Change) -> list[Gain]:
    after_of = dict(zip(change.starts.tolist(), change.after.tolist(), strict=True))
    columns = (gained.starts, gained.ends, gained.targets, gained.givers, gained.sources)
    gains = []
    for start, end, target, giver, sources in zip(*(column.tolist() for column in columns), strict=True):
        after = after_of[start]
        for low, high in _pieces(metadata, start, end, (*sources, *after)):
            [volume] = _on_volumes(metadata, [target], low)
            [given] = _on_volumes(metadata, [giver], low) or (None,)
            before = _on_volumes(metadata, sources, low)
            gains.append(Gain(low, high, volume, given, before, _on_volumes(metadata, after, low)))
    return _joined(gains)


def _pieces(metadata: ClusterMetadata, start: int, end: int, nodes: tuple[NodeId, ...]) -> Iterator[tuple[int, int]]:
    """The tokens of a range, cut where a volume of one of the nodes ends."""
    low = MIN_TOKEN if start == MIN_TOKEN else start + 1
    high = MAX_TOKEN if end == MIN_TOKEN else end
    cuts = {
        begin
        for node in set(nodes)
        if node >= 0
        for begin, _ in volume_slices(metadata.directory.nodes[node].volumes)
        if low < begin <= high
    }
    bounds = [low, *sorted(cuts), high + 1]
    # After MAX_TOKEN nothing begins: what a range from there holds is in the first one.
    return ((first, after - 1) for first, after in itertools.pairwise(bounds) if first < after)


def _on_volumes(metadata: ClusterMetadata, nodes: list[NodeId], low: int) -> tuple[VolumeId, ...]:
    """The volumes of the nodes that hold the token `low`; -1 stands for no node."""
    return tuple(_volume_at(metadata, node, low) for node in nodes if node >= 0)


def _volume_at(metadata: ClusterMetadata, node: NodeId, token: int) -> VolumeId:
    slices = volume_slices(metadata.directory.nodes[node].volumes)
    return next(volume for begin, volume in reversed(slices) if begin <= token)


def _joined(gains: list[Gain]) -> list[Gain]:
    """The same with neighbours that have the same replicas as one."""
    joined: list[Gain] = []
    for gain in sorted(gains, key=lambda one: (one.target, one.low)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.high + 1 == gain.low
            and msgspec.structs.replace(gain, low=last.low, high=last.high) == last
        ):
            joined[-1] = msgspec.structs.replace(last, high=gain.high)
        else:
            joined.append(gain)
    return joined
