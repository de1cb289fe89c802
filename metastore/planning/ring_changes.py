"""What an operation on the ring changes, in volumes and tokens: who gains which range, from whom, in which tables.

An operation speaks of nodes and of ranges `(start, end]`; replica tables are on volumes and know tokens.
Each changed range is cut where a volume of any node concerned ends, so that every piece has one giver and one target.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node, NodeId, TableId, VolumeId
from epochlake.metastore.metadata.placements import highs, volume_slices
from epochlake.metastore.metadata.replication import replication_setting, ring_keyspaces
from epochlake.placement.ring.placements import AssignmentChange
from epochlake.placement.ring.state import STEPS, Operation, Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.streaming import Streams, streams
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval

_MID = STEPS.index(Step.MID)

Sides = tuple[tuple[VolumeId, ...], tuple[VolumeId, ...]]
"""The volumes that serve a range before and after a change."""


class Gain(msgspec.Struct, frozen=True):
    """The tokens from `low` to `high`, both included, come to `target`.

    `giver` is the replica that gives them up to it, None where nobody does; `sources` are all that serve reads of them
    until then, and `replicas` all that will. Where a replica goes and none comes in its place, what it has comes to all
    that stay: where two of three have acknowledged a row, one of them alone would be no quorum of two.
    """

    low: int
    high: int
    target: VolumeId
    giver: VolumeId | None
    sources: tuple[VolumeId, ...]
    replicas: tuple[VolumeId, ...]

    @property
    def stays(self) -> bool:
        """Whether the target serves the tokens already, and only gets what another one has of them."""
        return self.target in self.sources


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
    def replica_keys(self) -> frozenset[tuple[TableId, VolumeId]]:
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
        found: dict[tuple[TableId, VolumeId], tuple[Gain, ...]] = {}
        for one in self.settings:
            by_target: dict[VolumeId, list[Gain]] = {}
            for gain in one.gains:
                by_target.setdefault(gain.target, []).append(gain)
            gained = {target: tuple(gains) for target, gains in by_target.items()}
            found |= {(table_id, target): gained[target] for table_id in one.tables for target in gained}
        return found


def change_of(metadata: ClusterMetadata, operation: Operation) -> RingChange:
    """What `operation` changes. Tables and volumes stay what they are while it is in flight.

    It is told once for a state of the ring, tables and nodes: in a big ring that takes seconds, and rounds ask for it.
    """
    known: dict[str, tuple[tuple[object, ...], RingChange]] = metadata.rings.__dict__.setdefault("changes", {})
    told_of = (operation, metadata.schema, metadata.directory)
    before = known.get(operation.operation_id)
    if before is None or any(one is not other for one, other in zip(before[0], told_of, strict=True)):
        before = known[operation.operation_id] = told_of, _change_of(metadata, operation)
    return before[1]


def _change_of(metadata: ClusterMetadata, operation: Operation) -> RingChange:
    tables = tables_by_setting(metadata)
    volumes = _Volumes(metadata.directory.nodes)
    gained = streams(operation)
    return RingChange(
        tuple(
            SettingChange(
                tables.get(setting, ()),
                tuple(_gains(volumes, gained[setting], deltas[_MID].reads)),
                _sides(volumes, deltas[_MID].reads),
            )
            for setting, deltas in operation.deltas.items()
        )
    )


def tables_by_setting(metadata: ClusterMetadata) -> dict[Replication, tuple[TableId, ...]]:
    """The tables on the ring by the setting that decides where their rows are."""
    settings = {name: replication_setting(metadata, name) for name in ring_keyspaces(metadata)}
    return {
        setting: tuple(
            table.table_id for table in metadata.schema.tables.values() if settings.get(table.keyspace) == setting
        )
        for setting in dict.fromkeys(settings.values())
    }


def owned_by(metadata: ClusterMetadata, table_id: TableId) -> dict[VolumeId, list[Interval]]:
    """The tokens, as intervals, that each volume may hold rows of now: those that it serves or must get writes of."""
    placements = metadata.ring_placements(metadata.schema.tables[table_id].keyspace)
    ends = highs(placements.lows)
    volumes = np.concatenate([placements.read_volumes, placements.write_volumes], axis=1)
    count = len(volumes)
    rows = np.repeat(np.arange(count), volumes.shape[1])
    flat = volumes.reshape(-1).astype(np.int64)
    # Sorted by volume and range. (`np.unique` would hash millions of numbers, which takes many times as long.)
    held = np.sort((flat * count + rows)[flat >= 0])
    held = held[np.append(True, np.diff(held) != 0)]
    # Neighbouring ranges of a volume are one: a run begins where the volume changes or a range is left out.
    begins = np.flatnonzero(np.append(True, (np.diff(held) != 1) | (held[1:] % count == 0)))
    last = np.append(begins[1:], len(held)) - 1
    owned: dict[VolumeId, list[Interval]] = {}
    runs = (held[begins] // count, placements.lows[held[begins] % count], ends[held[last] % count])
    for volume, low, high in zip(*(column.tolist() for column in runs), strict=True):
        owned.setdefault(volume, []).append((low, high))
    return owned


class _Volumes:
    """Where tokens are on each node."""

    def __init__(self, nodes: Mapping[NodeId, Node]) -> None:
        self._nodes = nodes
        self._known: dict[NodeId, list[tuple[int, VolumeId]]] = {}

    def slices(self, node: NodeId) -> list[tuple[int, VolumeId]]:
        if node not in self._known:
            self._known[node] = volume_slices(self._nodes[node].volumes)
        return self._known[node]

    def pieces(self, start: int, end: int, nodes: tuple[NodeId, ...]) -> Iterator[Interval]:
        """The tokens of a range, cut where a volume of one of the nodes ends; -1 stands for no node."""
        low = MIN_TOKEN if start == MIN_TOKEN else start + 1
        high = MAX_TOKEN if end == MIN_TOKEN else end
        cuts = {begin for node in set(nodes) if node >= 0 for begin, _ in self.slices(node) if low < begin <= high}
        bounds = [low, *sorted(cuts), high + 1]
        # After MAX_TOKEN nothing begins: what a range from there holds is in the first one.
        return ((first, after - 1) for first, after in itertools.pairwise(bounds) if first < after)

    def of(self, nodes: list[NodeId], token: int) -> tuple[VolumeId, ...]:
        """The volumes of the nodes that hold a token."""
        return tuple(
            next(volume for begin, volume in reversed(self.slices(node)) if begin <= token)
            for node in nodes
            if node >= 0
        )


def _sides(volumes: _Volumes, change: AssignmentChange) -> tuple[Sides, ...]:
    found: dict[Sides, None] = {}
    rows = zip(*(column.tolist() for column in (change.starts, change.ends, change.before, change.after)), strict=True)
    for start, end, before, after in rows:
        for low, _ in volumes.pieces(start, end, (*before, *after)):
            found[volumes.of(before, low), volumes.of(after, low)] = None
    return tuple(found)


def _gains(volumes: _Volumes, gained: Streams, change: AssignmentChange) -> list[Gain]:
    after_of = dict(zip(change.starts.tolist(), change.after.tolist(), strict=True))
    columns = (gained.starts, gained.ends, gained.targets, gained.givers, gained.sources)
    gains = []
    for start, end, target, giver, sources in zip(*(column.tolist() for column in columns), strict=True):
        after = after_of[start]
        for low, high in volumes.pieces(start, end, (*sources, *after)):
            [volume] = volumes.of([target], low)
            [given] = volumes.of([giver], low) or (None,)
            gains.append(Gain(low, high, volume, given, volumes.of(sources, low), volumes.of(after, low)))
    return _joined([*gains, *_for_those_that_stay(volumes, change)])


def _for_those_that_stay(volumes: _Volumes, change: AssignmentChange) -> Iterator[Gain]:
    fewer = np.flatnonzero((change.after >= 0).sum(axis=1) < (change.before >= 0).sum(axis=1))
    columns = (change.starts, change.ends, change.before, change.after)
    for start, end, before, after in zip(*(column[fewer].tolist() for column in columns), strict=True):
        going = [node for node in before if node >= 0 and node not in after]
        # The others give what they have to those that come (streaming.py).
        alone = going[sum(node >= 0 and node not in before for node in after) :]
        for low, high in volumes.pieces(start, end, (*before, *after)):
            old, new = volumes.of(before, low), volumes.of(after, low)
            for giver in volumes.of(alone, low):
                for target in (volume for volume in new if volume in old):
                    yield Gain(low, high, target, giver, old, new)


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
