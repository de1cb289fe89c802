"""Tablets with more or fewer replicas than their keyspace asks for: one replica comes, or one goes.

Both are transitions, with the stages, barriers and way back of a move. What goes is streamed first to all that stay: a
write of consistency ONE may be nowhere else. What comes is rebuilt from a quorum of those that are there. In which
datacenters a tablet has replicas is for its keyspace to say: single tablets get none elsewhere, and keep one in each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.tablets import (
    first_stage,
    require_at_rest,
    require_each_once,
    require_new_replica,
    with_transitions,
)
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.transitions import Kind

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class ReplicaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tablet gets the replica `pending`, where nothing is `leaving`; else it gives up `leaving`, and `pending`, which
    stays, takes over what only the other has.
    """

    table_id: TableId
    tablet: int
    pending: VolumeId
    leaving: VolumeId | None = None
    reason: str = ""


class ChangeReplicas(Event, frozen=True):
    """Tablets begin to get a replica more, or one less, in the stage `allow_write_both_read_old`."""

    changes: tuple[ReplicaChange, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require_each_once([(change.table_id, change.tablet) for change in self.changes], "change of replicas")
        for change in self.changes:
            name, replicas = require_at_rest(metadata, change.table_id, change.tablet)
            resize = metadata.tablets.maps[change.table_id].resize_type
            require(
                resize != Resize.MERGE,
                Code.RESIZE_IN_THE_WAY,
                f"{name} is about to be merged with its sibling, which has as many replicas",
                hint="Pin one of the table's tablets, and the merge is revoked",
            )
            if change.leaving is None:
                _check_more(metadata, change, name, replicas)
            else:
                _check_less(metadata, change, change.leaving, name, replicas)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        begun = []
        for change in self.changes:
            old = metadata.tablets.maps[change.table_id].replicas(change.tablet)
            if change.leaving is None:
                kind, after = Kind.REBUILD, (*old, change.pending)
            else:
                kind, after = Kind.MIGRATION, tuple(volume for volume in old if volume != change.leaving)
            ends = (change.leaving, change.pending)
            begun.append(first_stage((change.table_id, change.tablet), kind, (old, after), ends, change.reason, epoch))
        return with_transitions(metadata, begun, epoch)

    def summary(self) -> str:
        more = sum(change.leaving is None for change in self.changes)
        fewer = len(self.changes) - more
        said = [f"{plural(more, 'tablet')} {'gets' if more == 1 else 'get'} a replica"] if more else []
        said += [f"{plural(fewer, 'tablet')} {'gives' if fewer == 1 else 'give'} up a replica"] if fewer else []
        why = f": {self.changes[0].reason}" if self.changes[0].reason else ""
        return ", ".join(said) + why


def _check_more(metadata: ClusterMetadata, change: ReplicaChange, name: str, replicas: tuple[VolumeId, ...]) -> None:
    target = require_new_replica(metadata, change.table_id, change.pending, replicas, name)
    require(
        target.datacenter in _datacenters(metadata, replicas) or _asked_for(metadata, change, target.datacenter),
        Code.WRONG_DATACENTER,
        f"{name} has no replica in datacenter {target.datacenter}: its keyspace asks for none there",
    )


def _check_less(
    metadata: ClusterMetadata, change: ReplicaChange, leaving: VolumeId, name: str, replicas: tuple[VolumeId, ...]
) -> None:
    require(leaving in replicas, Code.NOT_A_REPLICA, f"volume {leaving} is no replica of {name}")
    require(
        change.pending in replicas and change.pending != leaving,
        Code.NOT_A_REPLICA,
        f"volume {change.pending} is no replica of {name} that stays: nobody takes over what the other has",
    )
    directory = metadata.directory
    require(
        change.pending not in directory.lost,
        Code.LOST,
        f"{name} cannot hand its rows to volume {change.pending}: its storage is declared lost",
    )
    here = directory.datacenter_of(leaving)
    if directory.datacenter_of(change.pending) != here:
        last = sum(directory.datacenter_of(volume) == here for volume in replicas) == 1
        require(
            last and not _asked_for(metadata, change, here),
            Code.WRONG_DATACENTER,
            f"{name} has to keep a replica in datacenter {here}, which takes over its rows",
        )


def _asked_for(metadata: ClusterMetadata, change: ReplicaChange, datacenter: str) -> bool:
    """Whether the keyspace asks for replicas in a datacenter, where a tablet may have none as yet."""
    keyspace = metadata.schema.keyspaces[metadata.schema.tables[change.table_id].keyspace]
    return keyspace.replication.get(datacenter, 0) > 0


def _datacenters(metadata: ClusterMetadata, volumes: Iterable[VolumeId]) -> set[str]:
    return {metadata.directory.datacenter_of(volume) for volume in volumes}
