"""Ring placement in the cluster metadata: placements of every replication setting, and the operations in flight.

`placement/ring/` computes on a `RingState`, the metadata keeps its parts where they belong. Tokens are
the nodes', replication is the keyspaces', placements and operations are here. `ring_state` puts them together for
planning and for going on by a step, `with_ring_state` takes them apart again. States of nodes follow their requests,
never the ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake.metastore.metadata.model import Keyspace, Node, NodeId, PlacementKind
from epochlake.metastore.metadata.placements import Moving, RingPlacements
from epochlake.placement.ring.codec import encode_state
from epochlake.placement.ring.placements import Placements, calculated, same
from epochlake.placement.ring.state import STEPS, Operation, OperationKind, RingNode, RingState, Step
from epochlake.placement.ring.steps import settled_placements, settled_tokens
from epochlake.placement.ring.strategies import Replication, replication_of
from msgspec.structs import replace

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

_START, _FINISH = STEPS.index(Step.START), STEPS.index(Step.FINISH)


class Running(msgspec.Struct, frozen=True):
    """How far the metadata has come with an operation.

    `session` is open from START until MID or the way back, for streaming; `started_epoch` is that of PREPARE, `epoch`
    that of the last step, in either direction.
    """

    operation_id: str
    request_id: str
    session: str | None
    started_epoch: int
    epoch: int


class Rings(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Placements by replication setting, and the operations in flight, in the order in which they were prepared.

    `changing` are the keyspaces whose replication an operation changes, with the setting of their own that they have
    until then; `placed` is the epoch in which the replicas of a setting last became what they are: when it came to be,
    or when an operation on it ended.
    """

    placements: Mapping[Replication, Placements] = {}
    operations: Mapping[str, Operation] = {}
    running: Mapping[str, Running] = {}
    changing: Mapping[str, Replication] = {}
    placed: Mapping[Replication, int] = {}
    epoch: int = 0

    def placements_for(self, replication: Replication, nodes: Mapping[NodeId, Node]) -> RingPlacements:
        """Where every token is read and written with a replication setting; made once, as volumes never change."""
        known: dict[Replication, RingPlacements] = self.__dict__.setdefault("known", {})
        if replication not in known:
            known[replication] = RingPlacements(
                self.placements[replication], self._moving(replication), nodes, self.placed[replication]
            )
        return known[replication]

    def _moving(self, replication: Replication) -> tuple[Moving, ...]:
        return tuple(
            Moving(
                operation.next_step in (_START + 1, _FINISH),
                operation.deltas[replication][_START].writes,
                operation.deltas[replication][_FINISH].writes,
                self.running[name].started_epoch,
            )
            for name, operation in self.operations.items()
            if replication in operation.deltas
        )

    def encoded(self) -> bytes:
        """Placements and operations as bytes: the same for equal ones."""
        return encode_state(RingState({}, {}, self.placements, self.operations))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rings):
            return NotImplemented
        if self is other:
            return True
        mine = (self.epoch, self.running, self.changing, self.placed)
        return mine == (other.epoch, other.running, other.changing, other.placed) and self.encoded() == other.encoded()

    __hash__ = None  # type: ignore[assignment]


def replication_setting(metadata: ClusterMetadata, keyspace: str) -> Replication:
    """The setting that decides where the rows of a ring keyspace are now."""
    found = metadata.schema.keyspaces[keyspace]
    return metadata.rings.changing.get(keyspace) or replication_of(found.strategy, found.replication)


def ring_keyspaces(metadata: ClusterMetadata) -> dict[str, Keyspace]:
    """Keyspaces with ring placement, by name."""
    return {
        name: keyspace
        for name, keyspace in metadata.schema.keyspaces.items()
        if keyspace.placement is PlacementKind.RING
    }


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
