"""The replication of a keyspace on tablets: what is asked for at once, and that every tablet has it in the end.

New tables get it from the first of the two events on. Tablets that are there are brought to it one replica at a time,
by `ChangeReplicas`; who reads or writes meanwhile counts the replicas of each tablet, never the number asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.nodes import nodes_going
from epochlake.metastore.metadata.events.operators import require_enough_tagged
from epochlake.metastore.metadata.events.replicas import require_replication
from epochlake.metastore.metadata.features import REPLICA_COUNTS, TABLET_DATACENTERS
from epochlake.metastore.metadata.model import Keyspace, NodeState
from epochlake.metastore.metadata.replica_numbers import on_tablets, tablets_left, tablets_of
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class AlterTabletReplication(Event, frozen=True):
    """A keyspace asks for other numbers of replicas, and maybe in other datacenters.

    A datacenter comes with the first replica of a tablet there, and goes with its last. Said again, also back, before
    all tablets have the last one, the newest holds.
    """

    keyspace: str
    replication: dict[str, int]
    why: str = ""

    def features_used(self) -> tuple[str, ...]:
        return (*self.features_of_kind(), REPLICA_COUNTS)

    def check(self, metadata: ClusterMetadata) -> None:
        keyspace = metadata.keyspace(self.keyspace)
        require(
            on_tablets(keyspace), Code.UNSUPPORTED_PLACEMENT, f"keyspace {self.keyspace!r} is not placed by tablets"
        )
        wanted = dict(require_replication(self.keyspace, keyspace.strategy, self.replication).factors)
        known = {node.datacenter for node in metadata.directory.members()}
        strange = sorted(name for name, factor in wanted.items() if factor and name not in known)
        require(
            not strange,
            Code.WRONG_DATACENTER,
            f"keyspace {self.keyspace!r} cannot have replicas in datacenter {', '.join(strange)}: no node is there",
            hint=f"There are nodes in {', '.join(sorted(known)) or 'none'}",
        )
        now, wanted = _factors(keyspace.replication), _factors(wanted)
        require(now != wanted, Code.NOTHING_TO_DO, f"keyspace {self.keyspace!r} asks for that replication already")
        if {*wanted} != {*now}:
            metadata.require_enabled(TABLET_DATACENTERS)
        more = [datacenter for datacenter in sorted(wanted) if wanted[datacenter] > now.get(datacenter, 0)]
        for datacenter in more:
            _require_nodes(metadata, self.keyspace, datacenter, wanted[datacenter])
        after = _with(metadata, msgspec.structs.replace(keyspace, replication=self.replication))
        if more:
            for table_id in tablets_of(metadata, self.keyspace):
                require_enough_tagged(after, metadata.schema.tables[table_id])

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        old = metadata.schema.keyspaces[self.keyspace]
        new = msgspec.structs.replace(old, replication=dict(self.replication), before=dict(old.replication))
        return _with(metadata, new, epoch)

    def summary(self) -> str:
        replication = ", ".join(f"{name}={factor}" for name, factor in self.replication.items())
        return f"keyspace {self.keyspace} is to have {replication}" + (f": {self.why}" if self.why else "")


class FinishTabletReplication(Event, frozen=True):
    """Every tablet of a keyspace has the replicas that it asks for."""

    keyspace: str

    def check(self, metadata: ClusterMetadata) -> None:
        keyspace = metadata.keyspace(self.keyspace)
        require(
            keyspace.before is not msgspec.UNSET,
            Code.NOTHING_TO_DO,
            f"the replication of keyspace {self.keyspace!r} is not being changed",
        )
        left = tablets_left(metadata, self.keyspace)
        require(
            not left, Code.STALE_PLAN, f"{left} tablet(s) of keyspace {self.keyspace!r} have other replicas than asked"
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        return _with(
            metadata, msgspec.structs.replace(metadata.schema.keyspaces[self.keyspace], before=msgspec.UNSET), epoch
        )

    def summary(self) -> str:
        return f"keyspace {self.keyspace}: every tablet has the replication that was asked for"


def _factors(replication: dict[str, int]) -> dict[str, int]:
    return {name: factor for name, factor in replication.items() if factor}


def _with(metadata: ClusterMetadata, keyspace: Keyspace, epoch: int | None = None) -> ClusterMetadata:
    if epoch is not None:
        keyspace = msgspec.structs.replace(keyspace, epoch=epoch)
    keyspaces = {**metadata.schema.keyspaces, keyspace.name: keyspace}
    schema = msgspec.structs.replace(
        metadata.schema, keyspaces=keyspaces, epoch=metadata.schema.epoch if epoch is None else epoch
    )
    return msgspec.structs.replace(metadata, schema=schema)


def _require_nodes(metadata: ClusterMetadata, keyspace: str, datacenter: str, wanted: int) -> None:
    """That replicas more have somewhere to go: nodes that are on their way out, lost or resting get none."""
    going = nodes_going(metadata)
    able = sum(
        node.state is NodeState.NORMAL and not node.lost and not node.maintenance and node.node_id not in going
        for node in metadata.directory.nodes.values()
        if node.datacenter == datacenter
    )
    require(
        wanted <= able,
        Code.REPLICATION_TOO_HIGH,
        f"keyspace {keyspace!r} asks for {wanted} replicas in datacenter {datacenter!r}, where {able} node(s) can take "
        "replicas",
        hint="Add nodes, or ask for less",
    )
