"""What an epoch did, in a line for people: the event's summary, with names where the event has numbers."""

from __future__ import annotations

from collections import Counter

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    CancelRequest,
    Event,
    FinishRequest,
    FinishTransitions,
    RegisterNode,
    RequestTopology,
    StartRequest,
    StartTransitions,
)
from epochlake.metastore.metadata.model import RequestKind, TableId

_ENDINGS = {StartRequest: "begins", FinishRequest: "is done", CancelRequest: "is cancelled"}
_ASKED = {RequestKind.LEAVE: "is to hand over its tablets and leave", RequestKind.REMOVE: "is lost and to be removed"}


def summary(event: Event, metadata: ClusterMetadata | None) -> str:
    """The line for `event`; `metadata` is that of any later epoch (nodes and requests are never forgotten)."""
    if metadata is None:
        return event.summary()
    match event:
        case StartRequest() | FinishRequest() | CancelRequest():
            request = metadata.requests.get(event.request_id)
            if request is not None:
                node = metadata.directory.nodes[request.node_id].name
                return f"{request.kind} of node {node} {_ENDINGS[type(event)]}"
        case RegisterNode() if event.replaces is not None:
            lost = metadata.directory.nodes[event.replaces].name
            return f"node {event.name} ({event.datacenter}/{event.rack}) asks to replace node {lost}"
        case RequestTopology():
            node = metadata.directory.nodes[event.node_id].name
            return f"node {node} {_ASKED.get(event.kind_of_request, str(event.kind_of_request))}"
        case StartTransitions():
            where = _tables(metadata, [new.table_id for new in event.transitions])
            kinds = ", ".join(sorted({new.kind.value for new in event.transitions}))
            return f"{where}: {kinds} begins"
        case AdvanceTransitions():
            where = _tables(metadata, [change.table_id for change in event.changes])
            steps = Counter((change.from_stage.value, change.to_stage.value) for change in event.changes)
            return f"{where}: {', '.join(f'{a} → {b}' for a, b in steps)}"
        case FinishTransitions():
            return f"{_tables(metadata, [key[0] for key in event.tablets])}: the transition ends"
    return event.summary()


def _tables(metadata: ClusterMetadata, table_ids: list[TableId]) -> str:
    """How many tablets of which tables; a table that was dropped since is named by its id."""
    counts = Counter(
        metadata.schema.tables[table_id].full_name if table_id in metadata.schema.tables else table_id
        for table_id in table_ids
    )
    return ", ".join(f"{count} tablet{'' if count == 1 else 's'} of {name}" for name, count in counts.items())
