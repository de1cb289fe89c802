"""What operators and upkeep do, by the operations of scenarios: in worlds, and in histories with real parts."""

from __future__ import annotations

from collections.abc import Callable

from epochlake.jobs import administration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.testing.drawing import OPERATIONS, RACKS, UPKEEP
from epochlake.jobs.testing.rows import COLUMNS, KEYSPACE, TABLE, WorldRows
from epochlake.jobs.testing.scenario import Operation
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.log_upkeep import compact_log
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.following.verification import verify
from epochlake.metastore.metadata.events import NewTransition, StartTransitions
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.tablets.transitions import Kind

KINDS = (*OPERATIONS, *UPKEEP)
"""What is understood here."""

NewVolume = Callable[[int], tuple[str, list[tuple[str, str, int]]]]
"""Makes the place of a node with this number; the node's name, and its volumes as `add_node` takes them."""


def operate(cluster: Cluster, new_volume: NewVolume, operation: Operation) -> None:
    """Do what an operation of an operator, or of upkeep, says. Raises EpochlakeError, NotAsPromised."""
    node = operation.name
    match operation.kind:
        case "leave":
            administration.decommission(cluster, node)
        case "add":
            name, volumes = new_volume(10 + operation.number)
            administration.add_node(cluster, name, "dc1", RACKS[operation.number % len(RACKS)], volumes)
        case "maintenance":
            administration.set_maintenance(cluster, node, operation.on)
        case "balance" if operation.on:
            administration.resume_balancing(cluster)
        case "balance":
            administration.pause_balancing(cluster)
        case "resize":
            administration.alter_table(cluster, TABLE, OptionChanges(min_count=operation.number))
        case "rebuild":
            administration.rebuild_node(cluster, node)
        case "remove":
            administration.remove_node(cluster, node)
        case "replace":
            administration.replace_node(cluster, node, *new_volume(2000 + operation.number))
        case "replication":
            administration.change_replication(cluster, KEYSPACE, {"dc1": 2 + operation.number % 2})
        case "move":
            administration.move_node(cluster, node, count=1 + operation.number % 4)
        case "shift":
            _shift(cluster, operation.number)
        case "come and go":
            _come_and_go(cluster, operation.number)
        case "cancel" | "pause request" as kind:
            for request in list(cluster.catch_up().open_requests())[:1]:
                act = administration.cancel_request if kind == "cancel" else administration.pause_request
                act(cluster, request.request_id)
        case "repair":
            repair(cluster, TABLE)
        case "repair bytes":
            repair(cluster, TABLE, check_bytes=True)
        case "compact":
            policy = None if operation.number == 0 else EVERYTHING
            compact(cluster, TABLE, policy=policy, tombstone_grace_seconds=0.0 if operation.on else 3600.0)
        case "vacuum":
            administration.sweep(cluster, older_than_seconds=0.0)
        case "compact log":
            compact_log(cluster)
        case "snapshot":
            administration.take_snapshot(cluster)
        case "verify":
            # While storage fails, what cannot be read now says nothing.
            wrong = [one for one in verify(cluster.log(), cluster.snapshots).findings if one.code != "unreadable"]
            if wrong:
                raise NotAsPromised("; ".join(map(str, wrong)))
        case unknown:
            raise ValueError(f"nobody knows the operation {unknown!r}")


def _come_and_go(cluster: Cluster, number: int) -> None:
    """Make another table, write to it, and drop it: nothing of it may stay."""
    name = f"{KEYSPACE}.spare{number}"
    metadata = cluster.catch_up()
    if name not in {table.full_name for table in metadata.schema.tables.values()}:
        on_ring = metadata.schema.keyspaces[KEYSPACE].placement is PlacementKind.RING
        administration.create_table(cluster, name, COLUMNS, ["id"], tablets=None if on_ring else 1)
    with Gate(cluster, name) as gate:
        gate.write(WorldRows({1: "spare"}), gate.planning.table(name), "QUORUM", None)
    administration.drop_table(cluster, name)


def _shift(cluster: Cluster, number: int) -> None:
    """Let a replica of a tablet go to another node, whatever balancing thinks of it, in a rack that has none of it."""
    metadata = cluster.catch_up()
    table = metadata.table(TABLE)
    if metadata.is_on_ring(table.table_id):
        return
    tablet_map = metadata.tablets.maps[table.table_id]
    tablet = number % tablet_map.count
    on = {volume: metadata.directory.node_of_volume[volume] for volume in tablet_map.replicas(tablet)}
    moves = [
        (leaving, volume.volume_id)
        for leaving in on
        for node in metadata.directory.members()
        for volume in node.volumes
        if node.rack not in {other.rack for held, other in on.items() if held != leaving}
        and node.node_id != on[leaving].node_id
    ]
    if moves:
        leaving, pending = moves[number % len(moves)]
        one = NewTransition(table.table_id, tablet, Kind.MIGRATION, leaving, pending, "shifted")
        cluster.commit(StartTransitions((one,)))


class NotAsPromised(Exception):
    """Something that may never be was found during a history."""
