"""The component `requests`: changes of the topology that were asked for, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.differences import Difference, by_key
from epochlake.metastore.metadata.model import TopologyRequest
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import json_of, rows_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

Requests = Mapping[str, TopologyRequest]
"""Requests by id. The last change is that of those that are kept: who forgets one changes no other."""

REQUEST = "request"


class _Stored(msgspec.Struct, frozen=True):
    requests: list[TopologyRequest]


def _encode(requests: Requests) -> _Stored:
    return _Stored(sorted(requests.values(), key=lambda request: request.requested_epoch))


def _decode(stored: _Stored, _: pa.Table | None) -> Requests:
    return {request.request_id: request for request in stored.requests}


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    return by_key(REQUEST, before.requests, after.requests)


def requests(metadata: ClusterMetadata) -> pa.Table:
    """A row for each topology request, ended ones included; oldest first."""
    known = metadata.directory.known
    return rows_of(
        c.REQUESTS_SCHEMA,
        (
            (
                request.request_id,
                request.kind.value,
                request.node_id if request.node_id in known else None,
                known[request.node_id].name if request.node_id in known else None,
                request.keyspace or None,
                request.state.value,
                request.paused,
                request.reason,
                request.detail,
                request.requested_epoch,
                request.started_epoch,
                request.epoch,
                list(request.tokens),
                request.strategy or None,
                json_of(request.replication or None),
                request.source_datacenter or None,
                request.force,
            )
            for request in sorted(metadata.requests.values(), key=lambda request: request.requested_epoch)
        ),
    )


REQUESTS: Component[Requests] = Component(
    empty={},
    since=1,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda requests: max((request.epoch for request in requests.values()), default=0),
    facts=lambda requests: Facts({"requests": [plain(requests[key]) for key in sorted(requests)]}),
    differences=_differences,
    tables=(requests,),
)
