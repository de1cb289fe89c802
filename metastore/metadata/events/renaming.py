"""The event by which a keyspace gets another name. Where its replica tables are stays as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.components.dropped import Dropped
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.events.schema import require_no_operation_with
from epochlake.metastore.metadata.model import Keyspace, Table
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class RenameKeyspace(Event, frozen=True):
    """A keyspace is called `new_name` from now on, and so are its tables, also those that wait to be restored.

    Tables keep their ids, their versions and the directories of their replicas. The keyspace keeps its epoch: that says
    since when it has its replication, which is older than its name.
    """

    name: str
    new_name: str

    def check(self, metadata: ClusterMetadata) -> None:
        metadata.keyspace(self.name)
        require_name("keyspace", self.new_name)
        require(self.new_name != self.name, Code.NOTHING_TO_DO, f"keyspace {self.name!r} has this name already")
        require(
            self.new_name not in metadata.schema.keyspaces,
            Code.KEYSPACE_EXISTS,
            f"keyspace {self.new_name!r} exists already",
        )
        for request in metadata.open_requests():
            require(
                request.keyspace != self.name,
                Code.REQUEST_IN_THE_WAY,
                f"request {request.request_id} changes the replication of keyspace {self.name!r} ({request.state})",
                hint="Wait for it, or cancel it",
            )
        require_no_operation_with(metadata, self.name)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        keyspaces = {
            name: _without(one, {self.name, self.new_name})
            for name, one in metadata.schema.keyspaces.items()
            if name != self.name
        }
        was = _without(metadata.schema.keyspaces[self.name], {self.new_name})
        keyspaces[self.new_name] = msgspec.structs.replace(
            was, name=self.new_name, former=(*was.former_names, self.name), named=epoch
        )
        tables = {
            key: self._renamed(table, epoch) if table.keyspace == self.name else table
            for key, table in metadata.schema.tables.items()
        }
        schema = msgspec.structs.replace(metadata.schema, keyspaces=keyspaces, tables=tables, epoch=epoch)
        renamed = msgspec.structs.replace(metadata, schema=schema)
        following = {
            key: msgspec.structs.replace(one, table=self._renamed(one.table, epoch))
            for key, one in metadata.dropped.tables.items()
            if one.table.keyspace == self.name and one.may_be_of(was)
        }
        if not following:
            return renamed
        dropped = {key: following.get(key, one) for key, one in metadata.dropped.tables.items()}
        return msgspec.structs.replace(renamed, dropped=Dropped(dropped, epoch))

    def summary(self) -> str:
        return f"keyspace {self.name} renamed to {self.new_name}"

    def _renamed(self, table: Table, epoch: int) -> Table:
        return msgspec.structs.replace(table, keyspace=self.new_name, stored_in=table.directory, epoch=epoch)


def _without(keyspace: Keyspace, names: set[str]) -> Keyspace:
    """A keyspace that had other names than these: each name leads to the one that had it last."""
    left = tuple(name for name in keyspace.former_names if name not in names)
    if left == keyspace.former_names:
        return keyspace
    return msgspec.structs.replace(keyspace, former=left or msgspec.UNSET)
