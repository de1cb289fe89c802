"""The ring at one epoch: nodes, keyspaces, placements, and the operations in flight with what they lock.

A `RingState` is frozen; every function of this package that changes one returns a new one. Operations are data: a
plan computed once, when it was prepared, so that going on with it never depends on the version of the planning code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
from epochlake.placement.ring.locks import Ranges
from epochlake.placement.ring.placements import Delta, Placements, calculated, settled
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import Location, Ring, ring_of


class NodeState(StrEnum):
    """States of a node, by the names of seed 000, "Topology state machine"; `moving` is seed 002's."""

    NONE = "none"
    BOOTSTRAPPING = "bootstrapping"
    DECOMMISSIONING = "decommissioning"
    REMOVING = "removing"
    REPLACING = "replacing"
    REBUILDING = "rebuilding"
    MOVING = "moving"
    NORMAL = "normal"
    LEFT = "left"


LOST = frozenset({NodeState.REMOVING, NodeState.LEFT})
"""States of a node whose storage is lost for everybody: an operator has declared it so, or it has handed everything
over. It is in nobody's quorum and counts in no barrier, its replicas are neither read nor counted, and none of its
volumes is opened: volumes are numbered once, so what comes back is never taken for a new one (decision 026). A node in
any other state may be declared lost as well, from its removal or replace on."""


class OperationKind(StrEnum):
    JOIN = "join"
    LEAVE = "leave"
    MOVE = "move"
    REPLACE = "replace"
    REMOVE = "remove"
    REBUILD = "rebuild"
    CHANGE_REPLICATION = "change_replication"


class Step(StrEnum):
    """The steps of every operation, one epoch each."""

    PREPARE = "PREPARE"
    START = "START"
    MID = "MID"
    FINISH = "FINISH"


STEPS = tuple(Step)


class RingNode(msgspec.Struct, frozen=True):
    """A member; `tokens` are those that it owns now, ascending. `lost`: its storage is declared lost, in any state."""

    node_id: int
    datacenter: str
    rack: str
    state: NodeState = NodeState.NONE
    tokens: tuple[int, ...] = ()
    replaced_by: int | None = None
    lost: bool = False


class Operation(msgspec.Struct, frozen=True, eq=False):
    """A prepared plan. `tokens` are those that `node_id` owns once it has finished; `deltas` hold one for each step.

    `replaced` is the node that a replace takes out. `keyspace`, `previous` and `replication` belong to a change of
    replication, `datacenter` to a rebuild from that datacenter. `next_step` counts the steps that are done; one that
    is `cancelling` only goes back.
    """

    operation_id: str
    kind: OperationKind
    node_id: int
    tokens: tuple[int, ...]
    deltas: Mapping[Replication, tuple[Delta, ...]]
    locks: Mapping[Replication, Ranges]
    replaced: int | None = None
    keyspace: str = ""
    previous: Replication | None = None
    replication: Replication | None = None
    datacenter: str = ""
    next_step: int = 0
    cancelling: bool = False

    @property
    def departing(self) -> frozenset[int]:
        """Nodes that hold nothing any more once the operation has finished."""
        if self.kind is OperationKind.REPLACE and self.replaced is not None:
            return frozenset((self.replaced,))
        return frozenset((self.node_id,)) if self.kind in (OperationKind.LEAVE, OperationKind.REMOVE) else frozenset()

    @property
    def nodes(self) -> frozenset[int]:
        """Nodes that take part by name."""
        if self.kind is OperationKind.CHANGE_REPLICATION:
            return frozenset()
        return self.departing | {self.node_id}

    def __str__(self) -> str:
        if self.kind is OperationKind.CHANGE_REPLICATION:
            return f"operation {self.operation_id} (change of the replication of keyspace {self.keyspace})"
        if self.kind is OperationKind.REPLACE:
            return f"operation {self.operation_id} (replace of node {self.replaced} by node {self.node_id})"
        return f"operation {self.operation_id} ({self.kind} of node {self.node_id})"


class RingState(msgspec.Struct, frozen=True, eq=False):
    """Everything that planning needs to know. Placements are kept once for each replication setting."""

    nodes: Mapping[int, RingNode]
    keyspaces: Mapping[str, Replication]
    placements: Mapping[Replication, Placements]
    operations: Mapping[str, Operation] = msgspec.field(default_factory=dict)

    def tokens(self) -> dict[int, tuple[int, ...]]:
        """Tokens of the nodes that own any."""
        return {node.node_id: node.tokens for node in self.nodes.values() if node.tokens}

    def ring(self) -> Ring:
        return self.ring_with(self.tokens())

    def ring_with(self, tokens: Mapping[int, Iterable[int]]) -> Ring:
        """The ring of this state's nodes with other tokens."""
        places = {node: Location(self.nodes[node].datacenter, self.nodes[node].rack) for node in tokens}
        return ring_of(tokens, places)


def ring_state(nodes: Iterable[RingNode], keyspaces: Mapping[str, Replication]) -> RingState:
    """The state of a cluster at rest: every placement is what its strategy calculates."""
    bare = RingState({node.node_id: node for node in nodes}, dict(keyspaces), {})
    ring = bare.ring()
    placements = {
        replication: settled(calculated(ring, replication)) for replication in dict.fromkeys(keyspaces.values())
    }
    return msgspec.structs.replace(bare, placements=placements)
