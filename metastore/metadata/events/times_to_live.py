"""The event by which rows of a table expire from now on, or do so later, or no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.table_lifetimes import require_lifetimes
from epochlake.metastore.metadata.model import Alterations, TimeToLive
from epochlake.metastore.metadata.time_to_live import changed, in_force
from epochlake.placement.rejections import Code
from epochlake.placement.showing import duration

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class AlterTimeToLive(Event, frozen=True):
    """The time to live of a table from its `since` on. `version`: that of the table for which it was planned.

    Those from before stay in the metadata: what has expired by them stays so. The table gets a new version, so that its
    replicas are fenced, and a read that was planned before is planned again.
    """

    table_id: str
    name: str
    version: str
    ttl: TimeToLive

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        require(table.version == self.version, Code.STALE_PLAN, f"{self.name} has been altered since then")
        require_lifetimes(table, changed(table, self.ttl))
        now = in_force(table)
        same = self.ttl.seconds is None if now is None else _said(now) == _said(self.ttl)
        require(not same, Code.NOTHING_TO_DO, f"rows of {self.name} expire like that already")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        table = metadata.schema.tables[self.table_id]
        created = len(table.columns) if table.alterations is msgspec.UNSET else table.alterations.created
        altered = msgspec.structs.replace(
            table,
            columns=table.numbered,
            alterations=Alterations(
                epoch, created, table.last_column_id, table.dropped, table.dropped_fields or msgspec.UNSET
            ),
            ttl=changed(table, self.ttl),
            version=state_id,
            epoch=epoch,
        )
        tables = {**metadata.schema.tables, self.table_id: altered}
        return msgspec.structs.replace(
            metadata, schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch)
        )

    def summary(self) -> str:
        if self.ttl.seconds is None:
            return f"no further rows of table {self.name} expire"
        return f"rows of table {self.name} expire {duration(self.ttl.seconds)} after column number {self.ttl.column_id}"


def _said(one: TimeToLive) -> tuple[int, int | None]:
    return one.column_id, one.seconds
