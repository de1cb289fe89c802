"""Whether the nodes are enough for the replicas that keyspaces ask for, or would be without one of them.

Asked before anything changes: when a keyspace is made or is to have another replication, and when a node is to go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.events.plans import allowed
from epochlake.metastore.metadata.model import Node, NodeState, PlacementKind, RequestKind, TopologyRequest
from epochlake.metastore.metadata.replica_numbers import most_of
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.ring import checks
from epochlake.placement.ring.state import RingState
from epochlake.placement.ring.strategies import SIMPLE, Replication, replication_of
from msgspec.structs import replace

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

HOLDING = (NodeState.NORMAL, NodeState.MOVING, NodeState.REBUILDING)
"""States of a node that keeps its replicas."""

GOING = (RequestKind.LEAVE, RequestKind.REMOVE)
_JOINING = (NodeState.NONE, NodeState.BOOTSTRAPPING)


def require_replication(keyspace: str, strategy: str, replication: dict[str, int]) -> Replication:
    """The setting that a keyspace asks for. Raises Rejected when it is none, or keeps no replica."""
    for name, wanted in replication.items():
        require(wanted >= 0, Code.INVALID_REPLICATION, f"{name}={wanted}: a replication factor is 0 or more")
    try:
        setting = replication_of(strategy, replication)
    except InvalidRequest as error:
        raise Rejected(Code.INVALID_REPLICATION, f"keyspace {keyspace!r}: {error.reason}", hint=error.hint) from error
    require(
        setting.total > 0,
        Code.NO_REPLICAS,
        f"keyspace {keyspace!r} asks for no replica anywhere",
        hint="Give a replication such as dc1=3",
    )
    return setting


def require_enough_nodes(metadata: ClusterMetadata, keyspace: str, setting: Replication) -> None:
    """Raise Rejected when a datacenter, or the cluster with SimpleStrategy, has too few nodes for its replicas."""
    for name, wanted in setting.factors:
        simple = setting.strategy == SIMPLE
        where = "the cluster" if simple else f"datacenter {name!r}"
        here = [node for node in metadata.directory.nodes.values() if simple or node.datacenter == name]
        normal = sum(node.state in HOLDING for node in here)
        joining = sum(node.state in _JOINING for node in here)
        require(
            wanted <= normal,
            Code.REPLICATION_TOO_HIGH,
            f"keyspace {keyspace!r} asks for {wanted} replicas in {where}, which has {normal} normal node(s)"
            + (f" and {joining} still joining" if joining else ""),
            hint="Run `epochlake coordinator run --until-idle`" if joining else "Add nodes, or ask for less",
        )


def require_enough_nodes_without(
    metadata: ClusterMetadata, leaving: Node, request: TopologyRequest | None, *, kind: RequestKind, force: bool
) -> None:
    """Refuse that a node goes where some keyspace could not keep its replicas, on as many racks as before.

    Nodes that are to go already are not counted; `request` is the one that is asked about, when it is open already.
    Ring keyspaces can be forced below that, as long as a node is left; tablets would have nowhere to go.
    """
    others = {r.node_id for r in metadata.open_requests() if r.kind in GOING and r is not request}
    for keyspace in metadata.schema.keyspaces.values():
        if keyspace.placement is PlacementKind.TABLETS:
            _tablets_kept(metadata, leaving, others, keyspace.name, most_of(keyspace).get(leaving.datacenter, 0))
    if not metadata.rings.placements:
        return
    state = _without(ring_state(metadata), others)
    for check in _ring_checks(kind, force):
        allowed(metadata, lambda now, check=check: check(now, leaving.node_id), state)  # type: ignore[misc]
    if not force:
        _ring_kept_as_asked_for(metadata, state, leaving)


def _tablets_kept(metadata: ClusterMetadata, leaving: Node, others: set[int], keyspace: str, wanted: int) -> None:
    staying = [
        node
        for node in metadata.directory.nodes.values()
        if node.datacenter == leaving.datacenter
        and node.state in HOLDING
        and node.node_id not in {leaving.node_id, *others}
    ]
    if wanted > len(staying):
        raise Rejected(
            Code.TOO_FEW_NODES,
            f"without node {leaving.name!r} datacenter {leaving.datacenter} would have {len(staying)} normal "
            f"node(s), but keyspace {keyspace!r} keeps {wanted} replicas there",
            hint="Add a node first",
        )
    racks = {node.rack for node in staying}
    if len(racks) < min(wanted, len(racks | {leaving.rack})):
        raise Rejected(
            Code.RACK_NEEDED,
            f"node {leaving.name!r} is the last normal one of rack {leaving.rack}, and keyspace {keyspace!r} "
            f"keeps {wanted} replicas in {leaving.datacenter}, which would have {len(racks)} rack(s) without "
            "it: its tablets could only go where a rack holds one of their replicas already",
            hint="Add a node to the rack, or replace this one",
        )


def _ring_checks(kind: RequestKind, force: bool) -> list[Callable[[RingState, int], None]]:
    if force:
        return [checks.not_last]
    if kind is RequestKind.LEAVE:
        return [checks.not_last, checks.replication_kept]
    return [checks.not_last, checks.replication_kept, checks.others_hold]


def _ring_kept_as_asked_for(metadata: ClusterMetadata, state: RingState, leaving: Node) -> None:
    """The same for the replication that keyspaces are on their way to."""
    wanted = {
        f"{request.keyspace} (as request {request.request_id} asks)": replication_of(
            request.strategy, request.replication
        )
        for request in metadata.open_requests()
        if request.kind is RequestKind.KEYSPACE_RF_CHANGE
    }
    if wanted:
        asked_for = replace(state, keyspaces=wanted)
        allowed(metadata, lambda now: checks.replication_kept(now, leaving.node_id), asked_for)


def _without(state: RingState, going: set[int]) -> RingState:
    """The state as if the nodes of open requests had given their tokens up already."""
    nodes = {key: replace(node, tokens=()) if key in going else node for key, node in state.nodes.items()}
    return replace(state, nodes=nodes)
