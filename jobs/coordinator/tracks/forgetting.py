"""The track that lets requests go that are done, so that old ones slow no replay."""

from __future__ import annotations

from epochlake.jobs.replicas.store import Store
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import ForgetRequests
from epochlake.metastore.metadata.events.forgetting import forgettable

KEPT_REQUESTS = 100
"""So many of those that are done stay, for people who look at what was asked lately."""

AT_ONCE = 100
"""They go so many together: each time is an epoch."""


class ForgettingTrack:
    """Requests that are done leave the metadata once there are many, where the cluster uses that."""

    def __init__(self, cluster: Store) -> None:
        self._cluster = cluster
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        if not metadata.switches.changes or not metadata.may_use(ForgetRequests):
            return False
        if len(metadata.requests) < KEPT_REQUESTS + AT_ONCE:
            return False
        gone = forgettable(metadata)[:-KEPT_REQUESTS]
        if len(gone) < AT_ONCE:
            return False
        ids = tuple(request.request_id for request in gone)
        self._cluster.commit(ForgetRequests(ids), reason="they are done, and the log says what became of them")
        return True

    def idle(self, metadata: ClusterMetadata) -> bool:
        return True
