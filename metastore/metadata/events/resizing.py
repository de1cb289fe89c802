"""Events of splitting and merging: the decision, and its end (seed 000, "Tablet splitting").

A decision numbers itself: `resize_seq_number` is one more than that of the one before, so that work for a decision that
was revoked is known to be stale. An end doubles or halves the map and moves nothing: every token keeps its replicas.
It is serialised with the transitions of its table: while one is in flight, it is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.model import TableId
from epochlake.placement.rejections import Code
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.tablet_map import TabletMap
from epochlake.placement.tokens import MAX_TABLET_BITS

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class DecideResize(Event, frozen=True):
    """The tablets of a table are to be split or merged from now on; `none` revokes what was decided before.

    From the decision to split on, new files are kept apart at the middle of each tablet (metadata/placements.py).
    """

    table_id: TableId
    resize_type: Resize
    resize_seq_number: int
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        tablet_map = _map_of(metadata, self.table_id)
        name = metadata.schema.tables[self.table_id].full_name
        require(
            self.resize_seq_number == tablet_map.resize_seq_number + 1,
            Code.STALE_PLAN,
            f"decision {self.resize_seq_number} about {name} was planned on old metadata: the newest one is "
            f"{tablet_map.resize_seq_number}",
        )
        require(
            self.resize_type != tablet_map.resize_type,
            Code.NOTHING_TO_DO,
            f"the tablets of {name} are under the decision {tablet_map.resize_type!r} already",
        )
        require(
            Resize.NONE in (self.resize_type, tablet_map.resize_type),
            Code.RESIZE_IN_THE_WAY,
            f"a {tablet_map.resize_type} of {name} is going on",
            hint=f"Revoke it before a {self.resize_type} is decided",
        )
        require(
            self.resize_type is not Resize.SPLIT or tablet_map.count < 1 << MAX_TABLET_BITS,
            Code.TOO_MANY_TABLETS,
            f"{name} has {tablet_map.count} tablets: there can be no more",
        )
        require(
            self.resize_type is not Resize.MERGE or tablet_map.count > 1,
            Code.TOO_FEW_TABLETS,
            f"{name} has a single tablet: there is nothing to merge",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        tablet_map = metadata.tablets.maps[self.table_id]
        # A plain string: the same as what a snapshot of the metadata gives back.
        return _with_map(
            metadata, self.table_id, tablet_map.decided(str(self.resize_type), self.resize_seq_number, epoch), epoch
        )

    def summary(self) -> str:
        what = "not to be resized" if self.resize_type is Resize.NONE else f"to be {_DONE[self.resize_type]}"
        why = f": {self.why}" if self.why else ""
        return f"tablets of {self.table_id} are {what} (decision {self.resize_seq_number}){why}"


class FinishResize(Event, frozen=True):
    """What was decided is done: twice as many tablets, or half as many, each where it was before."""

    table_id: TableId
    resize_seq_number: int

    def check(self, metadata: ClusterMetadata) -> None:
        tablet_map = _map_of(metadata, self.table_id)
        name = metadata.schema.tables[self.table_id].full_name
        require(
            tablet_map.resize_type != Resize.NONE and self.resize_seq_number == tablet_map.resize_seq_number,
            Code.STALE_PLAN,
            f"decision {self.resize_seq_number} about {name} is not in force: the newest one is "
            f"{tablet_map.resize_seq_number} ({tablet_map.resize_type})",
        )
        moving = sum(key[0] == self.table_id for key in metadata.tablets.transitions)
        require(
            not moving,
            Code.TRANSITION_IN_THE_WAY,
            f"{moving} tablets of {name} are in transition: their numbers cannot change before that ends",
        )
        apart = tablet_map.siblings_apart() if tablet_map.resize_type == Resize.MERGE else ()
        require(
            not len(apart),
            Code.SIBLINGS_APART,
            f"{len(apart)} pairs of tablets of {name} are not on the same volumes: they are co-located before a merge",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        tablet_map = metadata.tablets.maps[self.table_id]
        splits = tablet_map.resize_type == Resize.SPLIT
        return _with_map(
            metadata, self.table_id, tablet_map.split(epoch) if splits else tablet_map.merged(epoch), epoch
        )

    def summary(self) -> str:
        return f"tablets of {self.table_id} are resized (decision {self.resize_seq_number})"


_DONE = {Resize.SPLIT: "split", Resize.MERGE: "merged"}


def _map_of(metadata: ClusterMetadata, table_id: TableId) -> TabletMap:
    tablet_map = metadata.tablets.maps.get(table_id)
    require(tablet_map is not None, Code.UNKNOWN_TABLE, f"there is no table with tablets with id {table_id}")
    assert tablet_map is not None
    return tablet_map


def _with_map(metadata: ClusterMetadata, table_id: TableId, tablet_map: TabletMap, epoch: int) -> ClusterMetadata:
    maps = {**metadata.tablets.maps, table_id: tablet_map}
    return msgspec.structs.replace(metadata, tablets=msgspec.structs.replace(metadata.tablets, maps=maps, epoch=epoch))
