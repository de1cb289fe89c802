"""What operators and upkeep do, by the operations of scenarios: in worlds, and in histories with real parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from epochlake.jobs import administration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.arrow_reading import looked_after
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.testing.rows import ALL_OF_IT, COLUMNS, KEYSPACE, TABLE, WorldRows, padding, scanned
from epochlake.jobs.testing.scenario import Operation
from epochlake.jobs.testing.themes import CHANGE_OF_MIND, KEYS, OPERATIONS, RACKS, UPKEEP
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.jobs.upkeep.compacting import EVERYTHING, TARGET_FILE_BYTES, CompactionPolicy
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.log_upkeep import compact_log
from epochlake.jobs.upkeep.repair import RepairReport, repair
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.verification import verify
from epochlake.metastore.metadata.events import AdvanceTransitions, NewTransition, StageChange, StartTransitions
from epochlake.metastore.metadata.model import PlacementKind, RequestKind, VolumeId
from epochlake.placement.rejections import Code
from epochlake.placement.tablets.transitions import BACKWARD, Kind, Stage

KINDS = (*OPERATIONS, *UPKEEP, CHANGE_OF_MIND)
"""What is understood here."""

SHUTTLES = 8
"""So often a replica goes to and fro in one operation, at most."""

WAVERING_SECONDS = 0.5
"""So long writes may come to a new replica until it is taken back."""

KEPT_SECONDS = 1e6
"""For so long a dropped table can be restored: for longer than clocks go wrong."""

PATIENCE = 40
"""So many news are waited for until a tablet is at rest."""

SOMETHING = CompactionPolicy(small_files=2, small_bytes=1 << 62, overlap=1, tombstone_share=1.0)
"""Puts the small files of a range together, and leaves alone what is far larger."""

ONLY_SMALL = CompactionPolicy(small_files=2, small_bytes=8192, overlap=1000, tombstone_share=1.0, slower=float("inf"))
"""Puts small files together, and never the wide rows of a range with them."""

SMALL_FILE_BYTES = 4096
"""How large merged files are where what is merged becomes several."""

NewVolume = Callable[[int], tuple[str, list[tuple[str, str, int]]]]
"""Makes the place of a node with this number; the node's name, and its volumes as `add_node` takes them."""


def operate(cluster: Cluster, new_volume: NewVolume, operation: Operation) -> RepairReport | None:
    """Do what an operation of an operator, or of upkeep, says; what a repair has told. Raises EpochlakeError,
    NotAsPromised.
    """
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
        case "change of mind":
            administration.change_replication(cluster, KEYSPACE, {"dc1": 2 + operation.number % 2})
            for request in cluster.catch_up().open_requests():
                if request.kind is RequestKind.KEYSPACE_RF_CHANGE:
                    administration.cancel_request(cluster, request.request_id)
        case "keyspace beside":
            _keyspace_beside(cluster)
        case "replicas":
            administration.change_replication(cluster, KEYSPACE, {"dc1": operation.number})
        case "move":
            administration.move_node(cluster, node, count=1 + operation.number % 4)
        case "shift":
            _shift(cluster, operation.number)
        case "shuttle":
            _shuttle(cluster, operation.number)
        case "waver":
            _waver(cluster, operation.number)
        case "come and go":
            _come_and_go(cluster, operation.number)
        case "drop and restore":
            _drop_and_restore(cluster, operation.number)
        case "shelve what is shared":
            _shelve_shared(cluster, operation.number)
        case "cancel" | "pause request" as kind:
            for request in list(cluster.catch_up().open_requests())[:1]:
                act = administration.cancel_request if kind == "cancel" else administration.pause_request
                act(cluster, request.request_id)
        case "repair":
            return repair(cluster, TABLE)
        case "repair bytes":
            return repair(cluster, TABLE, check_bytes=True)
        case "compact some":
            grace = 0.0 if operation.on else 3600.0
            compact(cluster, TABLE, policy=SOMETHING, tombstone_grace_seconds=grace)
        case "compact shared":
            _compact_shared(cluster, operation)
        case "compact":
            policies = {0: None, 1: SOMETHING}
            policy = policies.get(operation.number, EVERYTHING)
            grace = 0.0 if operation.on else 3600.0
            # As a coordinator does it: nothing is repaired before.
            repairing = operation.number != 3
            compact(cluster, TABLE, policy=policy, tombstone_grace_seconds=grace, repairing=repairing)
        case "keep up changes":
            for stream in cluster.catch_up().change_streams.by_table.values():
                keep_up(cluster, stream)
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
    return None


def _keyspace_beside(cluster: Cluster) -> None:
    """Make another keyspace with the replication that this one began with: that stays known then."""
    placement = cluster.catch_up().schema.keyspaces[KEYSPACE].placement
    administration.create_keyspace(cluster, f"{KEYSPACE}_beside", {"dc1": 3}, placement=placement)


def _table_beside(cluster: Cluster, table: str, tablets: int) -> str:
    """The full name of another table of the keyspace, which is made where there is none: on the ring, or of so many
    tablets.
    """
    name = f"{KEYSPACE}.{table}"
    metadata = cluster.catch_up()
    if name not in {made.full_name for made in metadata.schema.tables.values()}:
        on_ring = metadata.schema.keyspaces[KEYSPACE].placement is PlacementKind.RING
        administration.create_table(cluster, name, COLUMNS, ["id"], tablets=None if on_ring else tablets)
    return name


def _come_and_go(cluster: Cluster, number: int) -> None:
    """Make another table, write to it, and drop it: nothing of it may stay."""
    name = _table_beside(cluster, f"spare{number}", tablets=1)
    with Gate(cluster, name) as gate:
        gate.write(WorldRows({1: "spare"}), gate.planning.table(name), "QUORUM", None)
    administration.drop_table(cluster, name)


def _compact_shared(cluster: Cluster, operation: Operation) -> None:
    """Put small files together: by this process or by workers near the disks, in large files or in very small ones, and
    as a coordinator does it, who repairs nothing before.
    """
    compact(
        cluster,
        TABLE,
        policy=ONLY_SMALL,
        tombstone_grace_seconds=0.0 if operation.on else 3600.0,
        target_file_bytes=SMALL_FILE_BYTES if operation.number % 4 == 2 else TARGET_FILE_BYTES,
        workers=ThreadWorkers(2) if operation.number % 4 == 1 else None,
        repairing=operation.number % 4 != 3,
    )


def _shelve_shared(cluster: Cluster, number: int) -> None:
    """Write to another table of several ranges, have its small files put together, drop it, and bring it back."""
    name = _table_beside(cluster, f"shared{number}", tablets=8)
    notes = {key: f"kept {key}" for key in range(KEYS)}
    with Gate(cluster, name) as gate:
        for rows in ({key: padding(note) for key, note in notes.items()}, notes, notes):
            shares = rows is notes
            gate.write(WorldRows(rows, shares=shares), gate.planning.table(name), "ALL", None)
    compact(cluster, name, policy=ONLY_SMALL, repairing=bool(number % 2))
    administration.drop_table(cluster, name, keep_seconds=KEPT_SECONDS)
    try:
        administration.restore_table(cluster, name)
    except Rejected as rejected:
        if rejected.code == Code.UNKNOWN_TABLE:
            raise NotAsPromised(f"{name} is kept, and cannot be restored: {rejected}") from rejected
        raise
    for level in ("ONE", "QUORUM"):
        with Gate(cluster, name) as gate:
            plan = gate.plan_read(gate.planning.table(name), level)
            found = scanned(looked_after(gate, scan(plan, ALL_OF_IT)))
        if found != {key: [note] for key, note in notes.items()}:
            raise NotAsPromised(f"{name} was restored, and shows {found} at {level}")
    administration.drop_table(cluster, name)


def _drop_and_restore(cluster: Cluster, number: int) -> None:
    """Write to another table, drop it, and bring it back some time later: what was acknowledged is shown, and for as
    long as it is kept nobody is told that it cannot be restored because its files are gone.
    """
    name = _table_beside(cluster, f"shelved{number}", tablets=1)
    notes = {key: f"kept {key}" for key in range(KEYS)}
    written, read = ("ALL", "ONE") if number % 2 else ("QUORUM", "QUORUM")
    with Gate(cluster, name) as gate:
        gate.write(WorldRows(notes), gate.planning.table(name), written, None)
    administration.drop_table(cluster, name, keep_seconds=KEPT_SECONDS)
    for _ in range(number % 5):
        cluster.wait_for_news(cluster.catch_up().epoch, 1.0)
    try:
        administration.restore_table(cluster, name)
    except Rejected as rejected:
        if rejected.code == Code.UNKNOWN_TABLE:
            raise NotAsPromised(f"{name} is kept, and cannot be restored: {rejected}") from rejected
        raise
    with Gate(cluster, name) as gate:
        plan = gate.plan_read(gate.planning.table(name), read)
        found = scanned(looked_after(gate, scan(plan, ALL_OF_IT)))
    if found != {key: [note] for key, note in notes.items()}:
        raise NotAsPromised(f"{name} was restored, and shows {found} at {read}")
    administration.drop_table(cluster, name)


def _shift(cluster: Cluster, number: int) -> None:
    """Let a replica of a tablet go to another node, whatever balancing thinks of it, in a rack that has none of it."""
    moves = _moves(cluster, number)
    if moves:
        _start(cluster, number, *moves[number % len(moves)])


def _shuttle(cluster: Cluster, number: int) -> None:
    """Let a replica go to another node and back again, a few times: each begins as soon as the one before has ended.
    One that was taken back begins again.
    """
    moves = _moves(cluster, number)
    if not moves:
        return
    leaving, pending = moves[number % len(moves)]
    for _ in range(SHUTTLES):
        _wait_for_rest(cluster)
        moves = _moves(cluster, number)
        if (leaving, pending) not in moves:
            leaving, pending = pending, leaving
        if (leaving, pending) not in moves:
            return
        _start(cluster, number, leaving, pending)
        leaving, pending = pending, leaving


def _waver(cluster: Cluster, number: int) -> None:
    """Let a replica go to another node a few times, and each time take that back once before it goes."""
    moves = _moves(cluster, number)
    if not moves:
        return
    leaving, pending = moves[number % len(moves)]
    for turn in range(2 * SHUTTLES):
        _wait_for_rest(cluster)
        if (leaving, pending) not in _moves(cluster, number):
            return
        _start(cluster, number, leaving, pending)
        if turn % 2:
            leaving, pending = pending, leaving
            continue
        for _ in range(PATIENCE):
            metadata = cluster.catch_up()
            moving = next(iter(metadata.tablets.transitions.values()), None)
            if moving is None or moving.error is not None:
                break
            if moving.stage is Stage.WRITE_BOTH_READ_OLD and cluster.wait_for_news(metadata.epoch, WAVERING_SECONDS):
                continue
            if moving.stage in (Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING):
                back = StageChange(*moving.key, moving.stage, BACKWARD[moving.stage], error="wavered")
                with suppress(Rejected):  # it is further by now
                    cluster.commit(AdvanceTransitions((back,)))
            else:
                cluster.wait_for_news(metadata.epoch, 1.0)


def _wait_for_rest(cluster: Cluster) -> None:
    for _ in range(PATIENCE):
        metadata = cluster.catch_up()
        if not metadata.tablets.transitions:
            return
        cluster.wait_for_news(metadata.epoch, 1.0)


def _moves(cluster: Cluster, number: int) -> list[tuple[VolumeId, VolumeId]]:
    """From which volume to which one replica of a tablet may go."""
    metadata = cluster.catch_up()
    table = metadata.table(TABLE)
    if metadata.is_on_ring(table.table_id):
        return []
    tablet_map = metadata.tablets.maps[table.table_id]
    on = {
        volume: metadata.directory.node_of_volume[volume] for volume in tablet_map.replicas(number % tablet_map.count)
    }
    return [
        (leaving, volume.volume_id)
        for leaving in on
        for node in metadata.directory.members()
        for volume in node.volumes
        if node.rack not in {other.rack for held, other in on.items() if held != leaving}
        and node.node_id != on[leaving].node_id
    ]


def _start(cluster: Cluster, number: int, leaving: VolumeId, pending: VolumeId) -> None:
    table = cluster.metadata.table(TABLE)
    tablet = number % cluster.metadata.tablets.maps[table.table_id].count
    one = NewTransition(table.table_id, tablet, Kind.MIGRATION, leaving, pending, "shifted")
    cluster.commit(StartTransitions((one,)))


class NotAsPromised(Exception):
    """Something that may never be was found during a history."""
