"""What an epoch did, in a line for people: the event's summary, with names where the event has numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceOperation,
    AdvanceTransitions,
    AlterNode,
    AlterTable,
    CancelRequest,
    DecideResize,
    Event,
    FinishRequest,
    FinishResize,
    FinishTransitions,
    PauseRequest,
    PrepareOperation,
    RegisterNode,
    RequestTopology,
    RestoreTable,
    ResumeRequest,
    RetreatOperation,
    SetMaintenance,
    StartRequest,
    StartTransitions,
    UnregisterNodes,
)
from epochlake.metastore.metadata.model import (
    CompactionOptions,
    RequestKind,
    RequestState,
    TableId,
    TabletOptions,
    TopologyRequest,
)
from epochlake.placement.showing import duration

_ENDINGS = {
    StartRequest: "begins",
    FinishRequest: "is done",
    CancelRequest: "is cancelled",
    PauseRequest: "is paused",
    ResumeRequest: "goes on",
}


def summary(event: Event, metadata: ClusterMetadata | None) -> str:
    """The line for `event`; `metadata` is that of any later epoch (it knows every node that there was)."""
    if metadata is None:
        return event.summary()
    match event:
        case StartRequest() | FinishRequest() | PauseRequest() | ResumeRequest() | CancelRequest():
            request = metadata.requests.get(event.request_id)
            if request is not None:
                return f"{_named(metadata, request)} {_ending(event, request)}"
        case RegisterNode() if event.replaces is not None:
            lost = metadata.directory.known[event.replaces].name
            return f"node {event.name} ({event.datacenter}/{event.rack}) asks to replace node {lost}{_to(event.tokens)}"
        case RegisterNode() if event.tokens:
            return f"{event.summary()}{_to(event.tokens)}"
        case RequestTopology():
            return f"node {metadata.directory.known[event.node_id].name} {_asked(event)}"
        case UnregisterNodes():
            return f"{_nodes(metadata, event.node_ids)} unregistered"
        case SetMaintenance() | AlterNode():
            # Their own line begins with the node's number.
            name = metadata.directory.known[event.node_id].name
            return f"node {name}{event.summary().removeprefix(f'node {event.node_id}')}"
        case AlterTable():
            said = _options(event.options, metadata)
            if event.compaction is not None:
                said += f"; {', '.join(compaction_said(event.compaction)) or 'compacted as usual'}"
            return f"table {event.name}: {said}"
        case DecideResize() | FinishResize() if event.table_id in metadata.schema.tables:
            return event.summary().replace(event.table_id, metadata.schema.tables[event.table_id].full_name)
        case RestoreTable():
            return f"table {_restored(event, metadata)} restored"
        case PrepareOperation() | AdvanceOperation() | RetreatOperation():
            return _step(event, metadata) or event.summary()
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


def _restored(event: RestoreTable, metadata: ClusterMetadata) -> str:
    """The full name that a table came back under; the bare one where nobody knows it any more."""
    dropped = metadata.dropped.tables.get(event.table_id)
    table = metadata.schema.tables.get(event.table_id) or (dropped and dropped.table)
    return f"{table.keyspace}.{event.name}" if table else event.name


def _ending(event: Event, request: TopologyRequest) -> str:
    if isinstance(event, FinishRequest) and request.state is RequestState.CANCELLED:
        return "is taken back"
    return _ENDINGS[type(event)]


def _options(options: TabletOptions, metadata: ClusterMetadata) -> str:
    tables = metadata.schema.tables
    apart = (tables[key].full_name if key in tables else key for key in options.apart_from)
    said = {
        "tablets of": None if options.target_bytes is None else f"{options.target_bytes:,} B",
        "at least": None if options.min_count == 1 else f"{options.min_count} tablets",
        "at most": None if options.max_count is None else f"{options.max_count} tablets",
        "only on nodes tagged": ", ".join(options.tags) or None,
        "apart from": ", ".join(apart) or None,
    }
    return "; ".join(f"{name} {value}" for name, value in said.items() if value) or "sized and placed as usual"


def compaction_said(options: CompactionOptions) -> list[str]:
    """What an operator has said of a table's compaction, a few words each."""
    said = []
    if options.by_itself is not None:
        said.append("compacted by itself" if options.by_itself else "not compacted by itself")
    if options.hours is not None:
        said.append(f"compacted {options.hours}" if options.hours else "compacted all day")
    if options.tombstone_grace_seconds is not None:
        said.append(f"deletes remembered for {duration(options.tombstone_grace_seconds)}")
    return said


def _asked(event: RequestTopology) -> str:
    forced = ", forced" if event.force else ""
    match event.kind_of_request:
        case RequestKind.LEAVE:
            return f"is to hand over what it holds and leave{forced}"
        case RequestKind.REMOVE:
            return f"is lost and to be removed{forced}"
        case RequestKind.MOVE:
            return f"is to move{_to(event.tokens)}"
        case RequestKind.REBUILD:
            source = f" from datacenter {event.source_datacenter}" if event.source_datacenter else ""
            return f"is to be rebuilt{source}"
        case kind:
            return str(kind)


def _nodes(metadata: ClusterMetadata, node_ids: Sequence[int]) -> str:
    names = [metadata.directory.known[node_id].name for node_id in node_ids]
    return f"node{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _to(tokens: Sequence[int]) -> str:
    if not tokens:
        return ""
    return f" with token {tokens[0]}" if len(tokens) == 1 else f" with {len(tokens)} tokens"


def _named(metadata: ClusterMetadata, request: TopologyRequest) -> str:
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return f"the change of replication of keyspace {request.keyspace}"
    if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return "the check of the streams of changes"
    return f"{request.kind} of node {metadata.directory.known[request.node_id].name}"


def _step(event: PrepareOperation | AdvanceOperation | RetreatOperation, metadata: ClusterMetadata) -> str | None:
    """`MID of join of node n4`; None where the request is not known."""
    if isinstance(event, PrepareOperation):
        request, step = metadata.requests.get(event.request_id), "PREPARE"
    else:
        # Operations of a change of replication are named after their request, with a number.
        known = metadata.requests
        name = event.operation_id
        request = known.get(name) or known.get(name.rpartition("/")[0])
        step = str(event.step)
    if request is None:
        return None
    back = ", taken back" if isinstance(event, RetreatOperation) else ""
    return f"{step} of {_named(metadata, request)}{back}"


def _tables(metadata: ClusterMetadata, table_ids: list[TableId]) -> str:
    """How many tablets of which tables; a table that was dropped since is named by its id."""
    counts = Counter(
        metadata.schema.tables[table_id].full_name if table_id in metadata.schema.tables else table_id
        for table_id in table_ids
    )
    return ", ".join(f"{count} tablet{'' if count == 1 else 's'} of {name}" for name, count in counts.items())
