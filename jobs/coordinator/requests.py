"""The track of topology requests: taken up and ended as soon as their events allow it."""

from __future__ import annotations

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.planning import next_request_events
from epochlake.jobs.coordinator.track import Tally
from epochlake.metastore.metadata.cluster import ClusterMetadata


class RequestTrack:
    """Starts and finishes topology requests."""

    def __init__(self, cluster: Cluster, tally: Tally) -> None:
        self._cluster = cluster
        self._tally = tally
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        events, blocked = next_request_events(metadata)
        self.blocked += blocked
        for event in events:
            self._cluster.commit(event)
        self._tally.requests_finished += sum(event.kind() == "FinishRequest" for event in events)
        return bool(events)

    def idle(self, metadata: ClusterMetadata) -> bool:
        return not any(metadata.open_requests())
