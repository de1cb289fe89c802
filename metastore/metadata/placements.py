"""Where every token of a table is read and written at one epoch, whatever the kind of its placement.

The one idea: a table's placement is a cover of the token space by ranges, each with its replicas. The gate, streaming
and the proofs over replica tables ask by token, so they know nothing of tablets and rings, and neither a split nor a
merge of ranges moves a row: only what a range's replicas are does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np
from epochlake.metastore.metadata.model import TableId, TabletKey, Transition, VolumeId
from epochlake.placement.tablet_map import TabletMap
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tablet_label, tablet_ranges
from epochlake.placement.transitions import read_replicas, write_replicas, write_sets
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


class Since(msgspec.Struct, frozen=True):
    """Since when a range is where it is: its replicas, their epoch, and that of the change in flight if any."""

    replicas: tuple[VolumeId, ...]
    placed_epoch: int
    started_epoch: int | None


class TablePlacements(Protocol):
    """The cover of one table: range i holds the tokens from `lows[i]` to `highs[i]`, both included, in token order."""

    @property
    def lows(self) -> NDArray[np.int64]:
        """First tokens of the ranges, ascending; the first one is MIN_TOKEN."""

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
    """The cover of a table with tablets: the tablets, or their halves from the decision to split them on."""

    def __init__(self, table_id: TableId, tablet_map: TabletMap, transitions: Mapping[TabletKey, Transition]) -> None:
        self._table_id = table_id
        self._map = tablet_map
        self._transitions = transitions
        self._halves = 2 if tablet_map.resize_type == SPLIT else 1

    @cached_property
    def lows(self) -> NDArray[np.int64]:
        starts, _ = tablet_ranges(self._map.count * self._halves)
        return np.concatenate([np.array([MIN_TOKEN]), starts[1:] + 1])

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
