"""The upgrade of a cluster that was described outside: what it is, that its state is built, and that it is done.

From the description on every other change is refused (seed 002, "Migration Plan"); while the state is built, what the
description says may be committed and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from epochlake.metastore.metadata.components.upgrade import Described, Upgrade, UpgradeState
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.model import NodeState
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class DescribeCluster(Event, frozen=True):
    """A cluster without nodes is to become what was described; it is `not_upgraded` from now on."""

    described: Described

    def check(self, metadata: ClusterMetadata) -> None:
        require(
            not metadata.directory.members() and not metadata.schema.keyspaces,
            Code.UPGRADE_REFUSED,
            "this cluster has nodes or keyspaces of its own already",
            hint="Begin another one at a root of its own for what is to be taken over",
        )
        described = self.described
        require(bool(described.nodes), Code.INVALID_EVENT, "a cluster without nodes is described")
        names = [node.name for node in described.nodes]
        tables = [table.name for table in described.tables]
        keyspaces = [keyspace.name for keyspace in described.keyspaces]
        twice = [name for known in (names, keyspaces, tables) for name in known if known.count(name) > 1]
        require(not twice, Code.INVALID_EVENT, f"described twice: {', '.join(sorted(set(twice)))}")
        astray = [name for name in tables if name.partition(".")[0] not in keyspaces]
        require(not astray, Code.INVALID_EVENT, f"in no keyspace that is described: {', '.join(astray)}")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        upgrade = Upgrade(UpgradeState.NOT_UPGRADED, self.described, epoch, epoch)
        return msgspec.structs.replace(metadata, upgrade=upgrade)

    def summary(self) -> str:
        said = self.described
        return "described: " + ", ".join(
            plural(len(many), word)
            for word, many in (("node", said.nodes), ("keyspace", said.keyspaces), ("table", said.tables))
        )


class AdvanceUpgrade(Event, frozen=True):
    """The upgrade goes on to a state; with `given_up` it ends as it is, and the cluster is one like any other."""

    during_upgrade: ClassVar[bool] = True

    state: UpgradeState
    given_up: bool = False
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        now = metadata.upgrade.state
        require(metadata.upgrade.going_on, Code.NOTHING_TO_DO, "no upgrade is going on")
        require(
            (now, self.state)
            in (
                (UpgradeState.NOT_UPGRADED, UpgradeState.BUILD_COORDINATOR_STATE),
                (UpgradeState.BUILD_COORDINATOR_STATE, UpgradeState.DONE),
            )
            or (self.given_up and self.state is UpgradeState.DONE),
            Code.WRONG_STATE,
            f"an upgrade that is {now} does not become {self.state}",
        )
        open_now = sorted(request.request_id for request in metadata.open_requests())
        require(
            not open_now and not metadata.tablets.transitions and not metadata.rings.operations,
            Code.REQUEST_IN_THE_WAY,
            f"operations are running: {', '.join(open_now) or 'tablets are in transition'}",
            hint="Let the coordinator end them first",
        )
        missing = [] if self.given_up or self.state is not UpgradeState.DONE else missing_of(metadata)
        require(not missing, Code.UPGRADE_REFUSED, f"not built yet: {', '.join(missing[:5])}")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        upgrade = msgspec.structs.replace(metadata.upgrade, state=self.state, epoch=epoch)
        return msgspec.structs.replace(metadata, upgrade=upgrade)

    def summary(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"the upgrade is given up{why}" if self.given_up else f"upgrade_state {self.state}"


def missing_of(metadata: ClusterMetadata) -> list[str]:
    """What was described and is not there yet, in words."""
    described = metadata.upgrade.described
    if described is None:
        return []
    nodes, known = metadata.directory.by_name, metadata.schema
    found = [
        f"node {node.name}"
        for node in described.nodes
        if node.name not in nodes or nodes[node.name].state is not NodeState.NORMAL
    ]
    found += [f"keyspace {one.name}" for one in described.keyspaces if one.name not in known.keyspaces]
    return found + [f"table {table.name}" for table in described.tables if table.name not in known.by_name]
