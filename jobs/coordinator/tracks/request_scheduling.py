"""The track of topology requests: taken up with their plans, and ended when everything that they need is done.

A request that cannot go on says why and waits, and never stands in the way of another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from epochlake.jobs.coordinator.effects.sweeping import Sweeper
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.tracks.track import Tally
from epochlake.jobs.replicas.store import Store
from epochlake.metastore.committing.committer import Planner
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CancelRequest, Event, FinishRequest
from epochlake.metastore.metadata.events.losses import DECLARING
from epochlake.metastore.metadata.model import RequestKind, RequestState, TopologyRequest
from epochlake.metastore.metadata.ring_state import operation_of_request
from epochlake.metastore.planning.ring import next_replication_step, replication_left, started
from epochlake.placement.rejections import Code

logger = logging.getLogger(__name__)

NOT_YET = frozenset({Code.REPLICAS_LEFT, Code.OPERATION_IN_FLIGHT, Code.REPLICATION_NOT_REACHED})
"""Why a request that goes on has not ended: nothing to report."""


class RequestTrack:
    """Starts and finishes topology requests; prepares the steps of changes of replication."""

    def __init__(self, cluster: Store, sweeper: Sweeper, tally: Tally) -> None:
        self._cluster = cluster
        self._sweeper = sweeper
        self._tally = tally
        self._tokens = cluster.configuration.ring.tokens_per_node
        self.blocked: list[str] = []
        self._cleaned_up: set[str] = set()
        """Cancelled requests that have left nothing."""

    def advance(self, metadata: ClusterMetadata) -> bool:
        progressed = False
        self._clean_up_cancelled(metadata)
        for request in sorted(metadata.open_requests(), key=_is_about_live_storage):
            now = self._cluster.metadata
            if request.paused:
                why = request.detail or "no reason given"
                self.blocked.append(f"{name_of(now, request)} is paused ({why}): resume it, or cancel it")
                continue
            if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
                continue  # it is ended by who keeps up the streams
            try:
                progressed |= self._advance(now, request)
            except Rejected as rejected:
                logger.info("%s", rejected)
                self.blocked.append(f"{name_of(now, request)}: {rejected.text}")
            except SideEffectFailed as failure:
                logger.info("%s", failure)
                self.blocked.append(f"{name_of(now, request)}: {failure}")
        return progressed

    def idle(self, metadata: ClusterMetadata) -> bool:
        return not any(metadata.open_requests())

    def _advance(self, metadata: ClusterMetadata, request: TopologyRequest) -> bool:
        if request.state is RequestState.PENDING and _may_end(metadata, request):
            return self._finish(metadata, request)
        if request.state is RequestState.PENDING:
            self._cluster.commit(_while(request, lambda now: _begun(now, request, self._tokens)))
            return True
        if _begins_a_step(metadata, request):
            self._cluster.commit(_while(request, lambda now: next_replication_step(now, request)))
            return True
        return self._finish(metadata, request)

    def _clean_up_cancelled(self, metadata: ClusterMetadata) -> None:
        """Sweep what changes of replication have left that were cancelled between two of their steps.

        Such a request has ended in the epoch of its cancellation, while replicas still held what steps before had taken
        from them. Who has not seen that cannot know it, so a coordinator that begins sweeps once.
        """
        changes = [one for one in metadata.requests.values() if one.kind is RequestKind.KEYSPACE_RF_CHANGE]
        swept = max((one.epoch for one in changes if one.state is RequestState.DONE), default=0)
        left = [
            one
            for one in changes
            if one.state is RequestState.CANCELLED and one.epoch > swept and one.request_id not in self._cleaned_up
        ]
        if not left:
            return
        try:
            self._sweeper.sweep(metadata, left[-1])
            self._cleaned_up.update(one.request_id for one in left)
        except SideEffectFailed as failure:
            logger.info("%s was cancelled, and a later round has to clean up: %s", name_of(metadata, left[-1]), failure)

    def _finish(self, metadata: ClusterMetadata, request: TopologyRequest) -> bool:
        event = FinishRequest(request.request_id)
        try:
            metadata.check(event)
        except Rejected as rejected:
            if rejected.code in NOT_YET:
                return False
            raise
        self._sweeper.sweep(metadata, request)
        self._cluster.commit(event)
        self._tally.requests_finished += 1
        return True


def name_of(metadata: ClusterMetadata, request: TopologyRequest) -> str:
    """A request for people: what it does to whom."""
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return f"change of the replication of keyspace {request.keyspace}"
    if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return "check of the streams of changes"
    return f"{request.kind} of node {metadata.directory.nodes[request.node_id].name}"


def _is_about_live_storage(request: TopologyRequest) -> bool:
    """False for what declares a node lost: it is looked at first, as others may wait for that storage."""
    return request.kind not in DECLARING


def _begun(metadata: ClusterMetadata, request: TopologyRequest, tokens: int) -> Event | None:
    """What begins a request; or what ends it, where another node has got the tokens that it asks for and keeps them:
    nothing that anybody is about to do would ever let it begin.
    """
    try:
        return started(metadata, request, tokens)
    except Rejected as rejected:
        if rejected.code != Code.TOKENS_TAKEN or _may_come_free(metadata, request):
            raise
        return CancelRequest(request.request_id, f"it cannot begin: {rejected.text}")


def _may_come_free(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    """Whether somebody is about to give tokens up, or may not get those that it is about to have."""
    others = (one for one in metadata.open_requests() if one.request_id != request.request_id)
    return bool(metadata.rings.operations) or any(one.kind in _GIVING_TOKENS_UP for one in others)


_GIVING_TOKENS_UP = frozenset({RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.REPLACE})


def _may_end(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    try:
        metadata.check(FinishRequest(request.request_id))
    except Rejected:
        return False
    return True


def _begins_a_step(metadata: ClusterMetadata, request: TopologyRequest) -> bool:
    return (
        request.kind is RequestKind.KEYSPACE_RF_CHANGE
        and request.state is RequestState.RUNNING
        and operation_of_request(metadata, request.request_id) is None
        and bool(replication_left(metadata, request))
    )


def _while(request: TopologyRequest, plan: Callable[[ClusterMetadata], Event | None]) -> Planner:
    """A planner of the event that `plan` gives as long as nobody has moved the request on."""

    def planned(metadata: ClusterMetadata) -> Event:
        event = plan(metadata) if metadata.request(request.request_id) == request else None
        if event is None:
            raise Rejected(Code.STALE_PLAN, f"request {request.request_id} has been moved on by somebody else")
        return event

    return planned
