"""Topology requests that are done leave the metadata: what every replay and every change of a request would carry."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.model import RequestState, TopologyRequest
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class ForgetRequests(Event, frozen=True):
    """Requests that are done are not kept any more; the log says for ever what was asked and what became of it.

    Those that failed or were cancelled stay, so a request that is not there was done; and so does the last one about
    each node and keyspace, which says why it is as it is.
    """

    request_ids: tuple[str, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require(bool(self.request_ids), Code.NOTHING_TO_DO, "no request was given")
        require(len(set(self.request_ids)) == len(self.request_ids), Code.INVALID_EVENT, "a request is named twice")
        may_go = {request.request_id for request in forgettable(metadata)}
        for request_id in self.request_ids:
            request = metadata.request(request_id)
            require(
                request_id in may_go,
                Code.WRONG_STATE,
                f"request {request_id} is {request.state}: only what is done, and is not the last about its node or "
                "keyspace, is forgotten",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        gone = set(self.request_ids)
        kept = {key: request for key, request in metadata.requests.items() if key not in gone}
        return msgspec.structs.replace(metadata, requests=kept)

    def summary(self) -> str:
        return f"{plural(len(self.request_ids), 'finished request')} forgotten"


def forgettable(metadata: ClusterMetadata) -> list[TopologyRequest]:
    """The requests that may be forgotten, the oldest first."""
    in_order = sorted(metadata.requests.values(), key=lambda request: request.requested_epoch)
    left = Counter(_subject(request) for request in in_order)
    found = []
    for request in in_order:
        left[_subject(request)] -= 1
        if left[_subject(request)] and request.state is RequestState.DONE:
            found.append(request)
    return found


def _subject(request: TopologyRequest) -> tuple[int, str]:
    return request.node_id, request.keyspace
