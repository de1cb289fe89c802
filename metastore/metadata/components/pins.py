"""The component `pins`: tablets that the balancer leaves where they are, because somebody has said so.

A pin names a tablet by its number and the number of tablets that there were then, so it holds through splits and
merges: it covers every tablet that has tokens of the pinned one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component
from epochlake.metastore.metadata.differences import Difference, by_key
from epochlake.metastore.metadata.model import Table, TableId
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import rows_of
from epochlake.placement.tokens import tablet_label
from numpy.typing import NDArray

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

PIN = "pin"

PinKey = tuple[TableId, int, int]
"""A table, a number of tablets, and one of them."""


class Pin(msgspec.Struct, frozen=True):
    """Tablet `tablet` of `count`, pinned in `epoch`."""

    table_id: TableId
    count: int
    tablet: int
    why: str
    epoch: int

    @property
    def key(self) -> PinKey:
        return self.table_id, self.count, self.tablet

    def covers(self, tablet: int, count: int) -> bool:
        """Whether tablet `tablet` of `count` has tokens of the pinned one."""
        finer = max(count, self.count)
        first, mine = tablet * (finer // count), self.tablet * (finer // self.count)
        return first < mine + finer // self.count and mine < first + finer // count


class Pins(msgspec.Struct, frozen=True):
    """The pins, and the epoch that last changed them."""

    by_key: Mapping[PinKey, Pin] = {}
    epoch: int = 0

    def of_table(self, table_id: TableId) -> list[Pin]:
        return [pin for pin in self.by_key.values() if pin.table_id == table_id]

    def of_tablet(self, table_id: TableId, tablet: int, count: int) -> list[Pin]:
        """The pins that keep tablet `tablet` of `count` where it is."""
        return [pin for pin in self.of_table(table_id) if pin.covers(tablet, count)]

    def pinned(self, table_id: TableId, count: int) -> NDArray[np.bool_]:
        """Of each of the `count` tablets of a table whether it is pinned."""
        found = np.zeros(count, np.bool_)
        for pin in self.of_table(table_id):
            first = pin.tablet * count // pin.count
            found[first : max(first + 1, (pin.tablet + 1) * count // pin.count)] = True
        return found


class _Stored(msgspec.Struct, frozen=True):
    pins: list[Pin] = []
    pins_epoch: int = 0


def _encode(pins: Pins) -> _Stored:
    return _Stored([pins.by_key[key] for key in sorted(pins.by_key)], pins.epoch)


def _decode(stored: _Stored, _: pa.Table | None) -> Pins:
    return Pins({pin.key: pin for pin in stored.pins}, stored.pins_epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    tables = {**before.schema.tables, **after.schema.tables}  # by the names of now, also what was in renamed keyspaces
    was, now = ({_name(tables, pin): pin for pin in m.pins.by_key.values()} for m in (before, after))
    return by_key(PIN, was, now)


def _name(tables: Mapping[TableId, Table], pin: Pin) -> str:
    table = tables.get(pin.table_id)
    return f"{pin.table_id if table is None else table.full_name}/{tablet_label(pin.tablet, pin.count)}"


def pins(metadata: ClusterMetadata) -> pa.Table:
    """A row for each pin of a table that is there."""
    tables = metadata.schema.tables
    found = sorted((pin for pin in metadata.pins.by_key.values() if pin.table_id in tables), key=lambda pin: pin.key)
    return rows_of(
        c.PINS_SCHEMA,
        (
            (
                tables[pin.table_id].keyspace,
                tables[pin.table_id].name,
                pin.table_id,
                pin.tablet,
                tablet_label(pin.tablet, pin.count),
                pin.why,
                pin.epoch,
            )
            for pin in found
        ),
    )


PINS: Component[Pins] = Component(
    empty=Pins(),
    since=4,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda pins: pins.epoch,
    differences=_differences,
    tables=(pins,),
)
