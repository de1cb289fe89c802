"""Taking over a cluster that was described outside: the description, and each state of the upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.metastore.committing.changes import Call, FixedChange, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.components.upgrade import Described, UpgradeState
from epochlake.metastore.metadata.events import AdvanceUpgrade, DescribeCluster

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


def describe_cluster(cluster: Cluster, described: Described, **options: Unpack[Options]) -> Committed:
    """Say what an empty cluster is to take over; every other change is refused from then on.

    Rejected (upgrade-refused) for a cluster with nodes or keyspaces of its own.
    """
    return cluster.commit(ClusterDescription(described), **options)


def advance_upgrade(
    cluster: Cluster, state: UpgradeState, *, given_up: bool = False, **options: Unpack[Options]
) -> Committed:
    """Let the upgrade go on to a state, or end as it is with `given_up`. Rejected while operations are running,
    and (upgrade-refused) for `done` before all that was described is there.
    """
    return cluster.commit(UpgradeAdvance(state, given_up), **options)


class ClusterDescription(FixedChange[DescribeCluster], frozen=True):
    """What `describe_cluster` commits."""

    verb: ClassVar[str] = "describe cluster"
    described: Described

    def event(self, call: Call) -> DescribeCluster:
        return DescribeCluster(self.described)


class UpgradeAdvance(FixedChange[AdvanceUpgrade], frozen=True):
    """What `advance_upgrade` commits."""

    verb: ClassVar[str] = "advance upgrade"
    state: UpgradeState
    given_up: bool = False

    def event(self, call: Call) -> AdvanceUpgrade:
        return AdvanceUpgrade(self.state, self.given_up, call.reason)
