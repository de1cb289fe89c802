"""Pinning tablets: the balancer leaves them where they are. Nodes that go, and people, move them all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.components.pins import Pin, Pins
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.model import TableId
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class PinTablets(Event, frozen=True):
    """Tablets of a table are pinned, or, with `on` false, no pin keeps them any more. `count`: of how many they are."""

    table_id: TableId
    count: int
    tablets: tuple[int, ...]
    on: bool
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        tablet_map = metadata.tablets.maps.get(self.table_id)
        require(tablet_map is not None, Code.UNKNOWN_TABLE, f"there is no table with tablets with id {self.table_id}")
        assert tablet_map is not None
        name = metadata.schema.tables[self.table_id].full_name
        require(bool(self.tablets), Code.NOTHING_TO_DO, "no tablet was given")
        require(
            self.count == tablet_map.count,
            Code.STALE_PLAN,
            f"{name} has {tablet_map.count} tablets now, not {self.count}",
        )
        for tablet in self.tablets:
            require(0 <= tablet < self.count, Code.UNKNOWN_TABLET, f"there is no tablet {tablet} of {name}")
        pinned = [bool(metadata.pins.of_tablet(self.table_id, tablet, self.count)) for tablet in self.tablets]
        word = "pinned" if self.on else "free"
        require(not all(one == self.on for one in pinned), Code.NOTHING_TO_DO, f"all of them are {word} already")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        by_key = dict(metadata.pins.by_key)
        for tablet in self.tablets:
            covering = metadata.pins.of_tablet(self.table_id, tablet, self.count)
            if self.on and not covering:
                pin = Pin(self.table_id, self.count, tablet, self.why, epoch)
                by_key[pin.key] = pin
            for pin in () if self.on else covering:
                by_key.pop(pin.key, None)
        # What is known of tables that are gone for good is not kept.
        known = {*metadata.schema.tables, *metadata.dropped.tables}
        kept = {key: pin for key, pin in by_key.items() if pin.table_id in known}
        return msgspec.structs.replace(metadata, pins=Pins(kept, epoch))

    def summary(self) -> str:
        counted = plural(len(self.tablets), "tablet")
        are = "is" if len(self.tablets) == 1 else "are"
        state = "pinned" if self.on else "free again"
        return f"{counted} of {self.table_id} {are} {state}" + (f": {self.why}" if self.why else "")
