"""Topology requests as lists show them."""

from __future__ import annotations

import msgspec
from epochlake.jobs.administration.topology_changes import subjects
from epochlake.metastore.metadata.cluster import OPEN, ClusterMetadata
from epochlake.metastore.metadata.model import TopologyRequest
from epochlake.placement.showing import Listing, Shown


class RequestRow(Shown, msgspec.Struct, frozen=True):
    """A topology request: of what kind and about what, and what became of it. `epoch` is the one that changed it last.

    `reason` is why it was asked for, `detail` why it was paused, cancelled or failed. `left_out`: how many older
    requests the list leaves out for its `--limit`, the same in each of its rows.
    """

    request_id: str
    kind: str
    about: str
    state: str
    paused: bool
    reason: str
    detail: str | None
    requested_epoch: int
    started_epoch: int | None
    epoch: int
    left_out: int = 0


def request_rows(metadata: ClusterMetadata, *, everything: bool = False) -> Listing[RequestRow]:
    """The open requests, or with `everything` those that have ended as well; the newest last."""
    found = (one for one in metadata.requests.values() if everything or one.state in OPEN)
    return Listing(request_row(metadata, request) for request in found)


def request_row(metadata: ClusterMetadata, request: TopologyRequest) -> RequestRow:
    """A request as lists show it."""
    return RequestRow(
        request_id=request.request_id,
        kind=request.kind.value,
        about=" for ".join(subjects(metadata, request)),
        state=request.state.value,
        paused=request.paused,
        reason=request.reason,
        detail=request.detail,
        requested_epoch=request.requested_epoch,
        started_epoch=request.started_epoch,
        epoch=request.epoch,
    )
