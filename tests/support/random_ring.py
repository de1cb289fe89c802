"""Random events of the ring on top of some metadata: most of them valid, all of them possible to ask."""

from __future__ import annotations

import random
from collections.abc import Callable

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceOperation,
    CancelRequest,
    CreateKeyspace,
    DropKeyspace,
    DropTable,
    Event,
    FinishRequest,
    PauseRequest,
    PrepareOperation,
    RegisterNode,
    RequestReplication,
    RequestTopology,
    ResumeRequest,
    RetreatOperation,
    StartRequest,
)
from epochlake.metastore.metadata.events.nodes import next_node_id
from epochlake.metastore.metadata.model import (
    Keyspace,
    NodeState,
    PlacementKind,
    RequestKind,
    RequestState,
    TopologyRequest,
)
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.metastore.metadata.ring_state import operation_of_request
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.ring.state import STEPS, Operation, Step
from epochlake.placement.ring.tokens import MIN_TOKEN

from tests.support.histories import register, replication_step, ring_table, start

MOST_NODES = 9


def some_tokens(dice: random.Random) -> tuple[int, ...]:
    """Some that others may have as well, and some that no float can hold."""
    low = dice.choice([0, dice.randrange(2**52)])
    return tuple(sorted(MIN_TOKEN + dice.randrange(1, 2**12) * 2**52 + low for _ in range(dice.randint(1, 3))))


def a_ring_node(metadata: ClusterMetadata, dice: random.Random) -> RegisterNode:
    """A node that asks to join, or to replace a normal one."""
    normal = [node for node in metadata.directory.nodes.values() if node.state is NodeState.NORMAL]
    replaced = dice.choice(normal) if normal and (dice.random() < 0.3 or len(normal) >= MOST_NODES) else None
    number = next_node_id(metadata)
    return register(
        metadata,
        f"n{number}",
        datacenter=replaced.datacenter if replaced else dice.choice(["dc1", "dc1", "dc2"]),
        rack=replaced.rack if replaced else dice.choice(["r1", "r2", "r3"]),
        volumes=dice.randint(1, 3),
        replaces=replaced.node_id if replaced else None,
        tokens=some_tokens(dice) if dice.random() < 0.5 else (),
    )


def a_ring_request(metadata: ClusterMetadata, dice: random.Random) -> Event:
    kind = dice.choice([RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.MOVE, RequestKind.MOVE, RequestKind.REBUILD])
    going = kind in (RequestKind.LEAVE, RequestKind.REMOVE)
    return RequestTopology(
        f"request-{metadata.epoch}",
        kind,
        dice.randint(1, max(1, len(metadata.directory.nodes))),
        tokens=some_tokens(dice) if kind is RequestKind.MOVE else (),
        source_datacenter=dice.choice(["", "dc1", "dc2"]) if kind is RequestKind.REBUILD else "",
        force=going and dice.random() < 0.5,
    )


def a_replication(metadata: ClusterMetadata, dice: random.Random) -> Event:
    name = dice.choice([*ring_keyspaces(metadata), "sea"])
    strategy, replication = _replication(dice)
    return RequestReplication(f"request-{metadata.epoch}", name, strategy, replication, force=dice.random() < 0.2)


def a_ring_keyspace(metadata: ClusterMetadata, dice: random.Random) -> Event:
    name = dice.choice(["sky", "sea"])
    if name in metadata.schema.keyspaces and dice.random() < 0.5:
        return DropKeyspace(name)
    return CreateKeyspace(Keyspace(name, PlacementKind.RING, *_replication(dice)))


def a_ring_table(metadata: ClusterMetadata, dice: random.Random) -> Event:
    tables = [table for table in metadata.schema.tables.values() if metadata.is_on_ring(table.table_id)]
    if tables and dice.random() < 0.5:
        dropped = dice.choice(tables)
        return DropTable(dropped.table_id, dropped.full_name)
    return ring_table(f"t{metadata.epoch}", keyspace=dice.choice([*ring_keyspaces(metadata), "sky"]))


def a_request_begun(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A pending request is started, a change of replication goes on, a request is ended or cancelled."""
    open_ones = list(metadata.open_requests())
    if not open_ones:
        return dice.choice([a_ring_node, a_ring_request, a_replication])(metadata, dice)
    request = dice.choice(open_ones)
    if dice.random() < 0.1 and request.state is not RequestState.CANCELLING:
        return CancelRequest(request.request_id, "enough")
    if request.state is RequestState.PENDING:
        return _begun(metadata, request)
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE and request.state is RequestState.RUNNING:
        return _next_single_step(metadata, request)
    return FinishRequest(request.request_id)


def a_step(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """An operation in flight goes on or back, or is cancelled, or somebody tries the wrong step."""
    operations = list(metadata.rings.operations.values())
    if not operations:
        return AdvanceOperation("nothing", Step.MID) if dice.random() < 0.1 else a_request_begun(metadata, dice)
    operation = dice.choice(operations)
    if dice.random() < 0.05:
        wrong = dice.choice(STEPS)
        return dice.choice([AdvanceOperation, RetreatOperation])(operation.operation_id, wrong)
    if dice.random() < (0.3 if operation.next_step == len(STEPS) - 1 else 0.05) and not operation.cancelling:
        return CancelRequest(metadata.rings.running[operation.operation_id].request_id, "enough")
    return onward(metadata, operation)


def a_pause(metadata: ClusterMetadata, dice: random.Random) -> Event:
    requests = list(metadata.open_requests())
    paused = [request for request in requests if request.paused]
    if paused:
        return ResumeRequest(dice.choice(paused).request_id)
    return PauseRequest(dice.choice(requests).request_id if requests else "nothing", "for a while")


def onward(metadata: ClusterMetadata, operation: Operation) -> Event:
    """The event that takes an operation a step nearer to its end, in the direction in which it goes."""
    name = operation.operation_id
    if operation.cancelling:
        return RetreatOperation(name, STEPS[operation.next_step - 1])
    step = STEPS[operation.next_step]
    return AdvanceOperation(name, step, f"session-{metadata.epoch}" if step is Step.START else None)


def towards_rest(metadata: ClusterMetadata, dice: random.Random) -> Event | None:
    """An event that brings an open request nearer to its end, operations first; None when there is none to bring."""
    if metadata.rings.operations:
        return onward(metadata, dice.choice(list(metadata.rings.operations.values())))
    for request in metadata.open_requests():
        if request.paused:
            return ResumeRequest(request.request_id)
        if request.state is RequestState.PENDING:
            return CancelRequest(request.request_id)
        if request.kind is RequestKind.KEYSPACE_RF_CHANGE and request.state is RequestState.RUNNING:
            return _next_single_step(metadata, request)
        return FinishRequest(request.request_id)
    return None


def _begun(metadata: ClusterMetadata, request: TopologyRequest) -> Event:
    if request.kind is RequestKind.CHECK_AND_REPAIR_CDC_STREAMS:
        return FinishRequest(request.request_id)
    if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
        return StartRequest(request.request_id)
    try:
        return start(metadata, request.request_id)
    except EpochlakeError:  # no plan is possible now
        return StartRequest(request.request_id)


def _next_single_step(metadata: ClusterMetadata, request: TopologyRequest) -> Event:
    if operation_of_request(metadata, request.request_id) is not None:
        return FinishRequest(request.request_id)
    try:
        return replication_step(metadata, request.request_id, metadata.epoch)
    except IndexError:  # it is there
        return FinishRequest(request.request_id)
    except EpochlakeError:
        return PrepareOperation(request.request_id)


def _replication(dice: random.Random) -> tuple[str, dict[str, int]]:
    if dice.random() < 0.2:
        return "SimpleStrategy", {"replication_factor": dice.randint(1, 3)}
    return "NetworkTopologyStrategy", {"dc1": dice.randint(0, 3), "dc2": dice.choice([0, 0, 1, 2])}


RING_CHANGES: dict[str, Callable[[ClusterMetadata, random.Random], Event]] = {
    "ring node": a_ring_node,
    "ring request": a_ring_request,
    "replication": a_replication,
    "ring keyspace": a_ring_keyspace,
    "ring table": a_ring_table,
    "begun": a_request_begun,
    "step": a_step,
    "pause": a_pause,
}
