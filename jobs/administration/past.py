"""Looking back: the cluster as it was at an epoch. Nothing here asks ZooKeeper or a volume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlake.metastore.history import metadata_at
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.metadata.cluster import ClusterMetadata

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


def log_of(cluster: Cluster) -> DeltaLog:
    """A handle of its own on the cluster's log, for reading history."""
    return DeltaLog(cluster.root.log)


def cluster_at(cluster: Cluster, epoch: int | None) -> ClusterMetadata:
    """The metadata as of `epoch`; None: the newest. Raises InvalidRequest for an epoch that is not in the log."""
    metadata = cluster.catch_up()
    return metadata if epoch in (None, metadata.epoch) else metadata_at(log_of(cluster), cluster.snapshots, epoch or 0)
