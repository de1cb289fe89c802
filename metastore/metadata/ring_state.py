"""Ring placement in the cluster metadata: placements of every replication setting, and the operations in flight.

`placement/ring/` computes on a `RingState`, the metadata keeps its parts where they belong. Tokens are
the nodes', replication is the keyspaces', placements and operations are here. `ring_state` puts them together for
planning and for going on by a step, `with_ring_state` takes them apart again. States of nodes follow their requests,
never the ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochlake.metastore.metadata.components.rings import Rings, Running
from epochlake.metastore.metadata.model import Node
from epochlake.metastore.metadata.replication import replication_setting, ring_keyspaces
from epochlake.placement.ring.placements import calculated, same
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, RingNode, RingState, Step
from epochlake.placement.ring.steps import settled_placements, settled_tokens
from epochlake.placement.ring.strategies import Replication, replication_of
from msgspec.structs import replace

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

_START, _FINISH = STEPS.index(Step.START), STEPS.index(Step.FINISH)


def ring_state(metadata: ClusterMetadata) -> RingState:
    """The metadata as planning of range movements needs it."""
    return RingState(
        nodes={node_id: ring_node(node) for node_id, node in metadata.directory.nodes.items()},
        keyspaces={name: replication_setting(metadata, name) for name in ring_keyspaces(metadata)},
        placements=metadata.rings.placements,
        operations=metadata.rings.operations,
    )


def ring_node(node: Node) -> RingNode:
    return RingNode(
        node_id=node.node_id,
        datacenter=node.datacenter,
        rack=node.rack,
        state=node.state,
        tokens=node.tokens,
        replaced_by=node.replaced_by,
        lost=node.lost,
    )


def with_ring_state(metadata: ClusterMetadata, state: RingState, epoch: int) -> ClusterMetadata:
    """The metadata with what range movements have changed in `state`: placements, operations, tokens, replication."""
    return _with_rings(_with_tokens(_with_replication(metadata, state, epoch), state, epoch), state, epoch)


def with_session(metadata: ClusterMetadata, operation_id: str, session: str) -> ClusterMetadata:
    """The metadata with a session open for the side effects of an operation's step."""
    running = {
        **metadata.rings.running,
        operation_id: replace(metadata.rings.running[operation_id], session=session),
    }
    return replace(metadata, rings=replace(metadata.rings, running=running))


def request_of(operation: Operation) -> str:
    """The request that an operation belongs to: of its own name, or of the one that it is a numbered step of."""
    if operation.kind is OperationKind.CHANGE_REPLICATION:
        return operation.operation_id.rpartition("/")[0]
    return operation.operation_id


def operation_of_request(metadata: ClusterMetadata, request_id: str) -> Operation | None:
    """The operation in flight that a request waits for; there is one at most."""
    running = metadata.rings.running.values()
    name = next((one.operation_id for one in running if one.request_id == request_id), None)
    return None if name is None else metadata.rings.operations[name]


def settles(state: RingState) -> bool:
    """Whether the placements will be those that the strategies calculate once everything in flight has ended."""
    targets: dict[Replication, Replication | None] = {}
    for operation in state.operations.values():
        if operation.replication is not None:
            target = operation.previous if operation.cancelling else operation.replication
            targets.update(dict.fromkeys(operation.deltas, target))
    ring = state.ring_with(settled_tokens(state))
    return all(
        same(placements.reads, calculated(ring, targets.get(setting) or setting))
        for setting, placements in settled_placements(state).items()
    )


def _with_replication(metadata: ClusterMetadata, state: RingState, epoch: int) -> ClusterMetadata:
    changed = {
        name: replace(
            metadata.schema.keyspaces[name], strategy=now.strategy, replication=dict(now.factors), epoch=epoch
        )
        for name, now in state.keyspaces.items()
        if not now.changing
        and replication_of(metadata.schema.keyspaces[name].strategy, metadata.schema.keyspaces[name].replication) != now
    }
    if not changed:
        return metadata
    keyspaces = {**metadata.schema.keyspaces, **changed}
    return replace(metadata, schema=replace(metadata.schema, keyspaces=keyspaces, epoch=epoch))


def _with_tokens(metadata: ClusterMetadata, state: RingState, epoch: int) -> ClusterMetadata:
    nodes = metadata.directory.nodes
    changed = [
        replace(nodes[key], tokens=now.tokens, replaced_by=now.replaced_by)
        for key, now in state.nodes.items()
        if (nodes[key].tokens, nodes[key].replaced_by) != (now.tokens, now.replaced_by)
    ]
    if not changed:
        return metadata
    return replace(metadata, directory=metadata.directory.with_nodes(*changed, epoch=epoch))


def _with_rings(metadata: ClusterMetadata, state: RingState, epoch: int) -> ClusterMetadata:
    before = metadata.rings
    changing = {name: setting for name, setting in state.keyspaces.items() if setting.changing}
    if (
        _identical(before.placements, state.placements)
        and _identical(before.operations, state.operations)
        and before.changing == changing
    ):
        return metadata
    running = {
        name: _running(operation, before.operations.get(name), before.running.get(name), epoch)
        for name, operation in state.operations.items()
    }
    ended = {
        setting for name, gone in before.operations.items() if name not in state.operations for setting in gone.deltas
    }
    placed = {setting: epoch if setting in ended else before.placed.get(setting, epoch) for setting in state.placements}
    rings = Rings(state.placements, state.operations, running, changing, placed, epoch)
    return replace(metadata, rings=rings)


def _running(now: Operation, then: Operation | None, known: Running | None, epoch: int) -> Running:
    if then is None or known is None:
        return Running(now.operation_id, request_of(now), None, epoch, epoch)
    if then.next_step == now.next_step:
        return known
    return replace(known, session=None, epoch=epoch)


def _identical(left: Mapping[Any, object], right: Mapping[Any, object]) -> bool:
    """Whether two maps have the same things, by identity: nothing of an operation or a placement changes in place."""
    return left.keys() == right.keys() and all(left[key] is right[key] for key in left)
