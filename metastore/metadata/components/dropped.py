"""The component `dropped`: tables that were dropped and can be restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component
from epochlake.metastore.metadata.differences import Difference, one
from epochlake.metastore.metadata.model import Keyspace, Table, TableId

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

KIND = "dropped table"


class DroppedTable(msgspec.Struct, frozen=True):
    """A table that was dropped by `epoch`, as it was before.

    `replicas`: where its tablets were, `width` volumes for each, 32-bit numbers with the lowest byte first; nothing of
    a table on the ring. It is kept for `keep_seconds`, and at least until vacuum comes.
    """

    table: Table
    epoch: int
    keep_seconds: float = 0.0
    width: int = 0
    replicas: bytes = b""

    @property
    def tablets(self) -> int:
        """How many tablets it had, 0 on the ring."""
        return len(self.replicas) // (4 * self.width) if self.width else 0

    def may_be_of(self, keyspace: Keyspace) -> bool:
        """Whether it can have been a table of a keyspace that has the name of its own: not where that was renamed to
        it later. The epoch of a dropped table that follows its keyspace to another name is that of the renaming.
        """
        return keyspace.name_since <= max(self.epoch, self.table.epoch)


class Dropped(msgspec.Struct, frozen=True):
    """Tables that were dropped, by their ids, and the epoch that last changed this."""

    tables: Mapping[TableId, DroppedTable]
    epoch: int = 0

    def named(self, full_name: str) -> list[DroppedTable]:
        """Those that had this name, the one that was dropped last at the end."""
        return sorted(
            (one for one in self.tables.values() if one.table.full_name == full_name), key=lambda one: one.epoch
        )


class _Stored(msgspec.Struct, frozen=True):
    dropped: list[DroppedTable]
    dropped_epoch: int


def _encode(dropped: Dropped) -> _Stored:
    return _Stored([dropped.tables[key] for key in sorted(dropped.tables)], dropped.epoch)


def _decode(stored: _Stored, _: pa.Table | None) -> Dropped:
    return Dropped({one.table.table_id: one for one in stored.dropped}, stored.dropped_epoch)


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    was, now = before.dropped.tables, after.dropped.tables
    for key in sorted({*was, *now}):
        yield from one(KIND, key, was.get(key), now.get(key))


DROPPED = Component(
    empty=Dropped({}),
    since=3,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda dropped: dropped.epoch,
    differences=_differences,
)
