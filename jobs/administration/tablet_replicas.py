"""Giving tablets a replica more, or one less, by hand; the coordinator carries it out as it does a move."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.jobs.administration.tablet_moves import emptiest, place_of, require_staying, require_tablet, with_tablets
from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import ChangeReplicas, ReplicaChange
from epochlake.metastore.metadata.events.nodes import nodes_going
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

BY_HAND = "by hand"


def add_replicas(
    cluster: Cluster, table: str, tablets: tuple[int, ...], node: str, **options: Unpack[Options]
) -> Committed:
    """Let tablets of a table have one replica more, on a node: `n1`, or `n1/d2` for one of its volumes.

    All of them begin in one epoch, or none. Raises Rejected for what the balancer would not do either, for a datacenter
    in which the tablet has none, and (feature-not-enabled) while the cluster does not use `replica-counts`.
    """
    return cluster.commit(ReplicaAddition(table, tablets, node), **options)


def drop_replicas(
    cluster: Cluster, table: str, tablets: tuple[int, ...], node: str, **options: Unpack[Options]
) -> Committed:
    """Let tablets of a table give up their replica on a node; another one in its datacenter takes over its rows first.

    All of them begin in one epoch, or none. Raises Rejected for the last replica in a datacenter.
    """
    return cluster.commit(ReplicaRemoval(table, tablets, node), **options)


class ReplicaAddition(Change[ChangeReplicas], frozen=True):
    """What `add_replicas` commits."""

    verb: ClassVar[str] = "add replicas"
    table: str
    tablets: tuple[int, ...]
    node: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> ChangeReplicas:
        table, tablet_map = with_tablets(metadata, self.table)
        node, volumes = place_of(metadata, self.node)
        require_staying(metadata, node)
        choose = emptiest(metadata, volumes)
        changes = []
        for tablet in self.tablets:
            require_tablet(tablet_map, tablet, self.table)
            changes.append(ReplicaChange(table.table_id, tablet, choose(volumes), None, call.reason or BY_HAND))
        return ChangeReplicas(tuple(changes))


class ReplicaRemoval(Change[ChangeReplicas], frozen=True):
    """What `drop_replicas` commits."""

    verb: ClassVar[str] = "drop replicas"
    table: str
    tablets: tuple[int, ...]
    node: str

    def plan(self, metadata: ClusterMetadata, call: Call) -> ChangeReplicas:
        table, tablet_map = with_tablets(metadata, self.table)
        _, volumes = place_of(metadata, self.node)
        mine = {volume.volume_id for volume in volumes}
        changes = []
        for tablet in self.tablets:
            require_tablet(tablet_map, tablet, self.table)
            replicas = tablet_map.replicas(tablet)
            leaving = next((volume for volume in replicas if volume in mine), None)
            if leaving is None:
                raise Rejected(Code.NOT_A_REPLICA, f"{self.node} holds no replica of tablet {tablet} of {self.table}")
            heir = _heir(metadata, replicas, leaving)
            if heir is None:
                where = metadata.directory.datacenter_of(leaving)
                raise Rejected(
                    Code.TOO_FEW_REPLICAS,
                    f"tablet {tablet} of {self.table} has no other replica in {where} that could keep its rows",
                    hint="Move the replica, or add another one there first",
                )
            changes.append(ReplicaChange(table.table_id, tablet, heir, leaving, call.reason or BY_HAND))
        return ChangeReplicas(tuple(changes))


def _heir(metadata: ClusterMetadata, replicas: tuple[VolumeId, ...], leaving: VolumeId) -> VolumeId | None:
    """A replica that stays, and can take over what the leaving one has: in its datacenter, and not about to go."""
    directory = metadata.directory
    going = nodes_going(metadata)
    where = directory.datacenter_of(leaving)
    usable = (
        volume
        for volume in replicas
        if volume != leaving
        and directory.datacenter_of(volume) == where
        and directory.node_of_volume[volume].node_id not in going
        and volume not in directory.lost
    )
    return next(usable, None)
