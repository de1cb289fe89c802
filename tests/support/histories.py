"""Clusters and random histories for tests of the pure metadata: events that fit, and events that do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.upgrade import Described, DescribedNode, UpgradeState
from epochlake.metastore.metadata.events import (
    AcceptLoss,
    AdvanceOperation,
    AdvanceTransitions,
    AdvanceUpgrade,
    AlterColumns,
    AlterNode,
    AlterTable,
    AlterTabletReplication,
    AlterTimeToLive,
    AnnounceVersion,
    CancelRequest,
    ChangeReplicas,
    CommitGenerations,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DescribeCluster,
    DropChanges,
    DropKeyspace,
    DropTable,
    EnableFeatures,
    Event,
    FinishRequest,
    FinishResize,
    FinishTabletReplication,
    FinishTransitions,
    ForgetRequests,
    ForgetTable,
    Initialise,
    KeepChanges,
    KeepHistory,
    NewGeneration,
    NewTransition,
    PauseChanges,
    PinTablets,
    PrepareOperation,
    PublishedGeneration,
    PublishGenerations,
    RegisterNode,
    RelaxBarriers,
    RelaxedBarrier,
    RenameKeyspace,
    ReplicaChange,
    RequestStreamCheck,
    RequestTopology,
    RestoreTable,
    ResumeChanges,
    SetMaintenance,
    ShelveTable,
    StageChange,
    StartRequest,
    StartTransitions,
    SwitchBalancing,
    TakeSnapshot,
    UnregisterNodes,
)
from epochlake.metastore.metadata.events.forgetting import forgettable
from epochlake.metastore.metadata.events.nodes import next_node_id, next_volume_id
from epochlake.metastore.metadata.features import CHANGE_GENERATIONS, SUPPORTED, TIME_TO_LIVE
from epochlake.metastore.metadata.model import (
    Check,
    Column,
    Keyspace,
    Node,
    NodeState,
    PlacementKind,
    RequestKind,
    RequestState,
    Table,
    TabletOptions,
    TimeToLive,
    Volume,
)
from epochlake.metastore.metadata.replica_numbers import altering, tablets_left
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.placement.ring.codec import encode_operation
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move, plan_remove, plan_replace
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import Operation, Step
from epochlake.placement.ring.strategies import replication_of
from epochlake.placement.ring.tokens import MIN_TOKEN
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.transitions import BACKWARD, FORWARD, SESSION_STAGES, Kind, Stage

INITIALISE = Initialise(name="test", cluster_id="cluster-1", product_version="1")
COLUMNS = (Column("id", "bigint", nullable=False), Column("note", "string"))


def applied(events: Iterable[Event], metadata: ClusterMetadata | None = None) -> ClusterMetadata:
    """The metadata after `events`, each of which has to be valid."""
    metadata = metadata or ClusterMetadata.empty()
    for event in events:
        metadata.check(event)
        metadata = metadata.apply(event, f"{metadata.epoch + 1:08}-0000-7000-8000-000000000000")
    return metadata


def register(
    metadata: ClusterMetadata,
    name: str,
    *,
    datacenter: str = "dc1",
    rack: str | None = None,
    volumes: int = 1,
    replaces: int | None = None,
    tokens: tuple[int, ...] = (),
) -> RegisterNode:
    """The event by which a node asks to join, on top of `metadata`; its request has the name of the node."""
    first = next_volume_id(metadata)
    return RegisterNode(
        request_id=f"join-{name}",
        node_id=next_node_id(metadata),
        name=name,
        host_id=f"host-{name}",
        datacenter=datacenter,
        rack=rack or f"rack-{name}",
        volumes=tuple(Volume(first + i, f"d{i}", f"/{name}/d{i}", 1000) for i in range(volumes)),
        replaces=replaces,
        tokens=tokens,
    )


def joined(metadata: ClusterMetadata, *names: str, **options: str | int) -> ClusterMetadata:
    """The metadata after nodes have joined."""
    for name in names:
        event = register(metadata, name, **options)  # type: ignore[arg-type]
        metadata = applied([event, StartRequest(event.request_id), FinishRequest(event.request_id)], metadata)
    return metadata


def keyspace(name: str = "air", **replication: int) -> Keyspace:
    return Keyspace(name, PlacementKind.TABLETS, "NetworkTopologyStrategy", replication or {"dc1": 2})


def table(name: str, replicas: Sequence[Sequence[int]], *, keyspace: str = "air") -> CreateTable:
    """A table whose tablets are on the given volumes; its id is `id-<name>`."""
    return CreateTable(
        Table(f"id-{name}", keyspace, name, COLUMNS, ("id",)),
        len(replicas),
        encode_replicas(np.array(replicas, dtype=np.int32)),
    )


def small_cluster() -> ClusterMetadata:
    """Four nodes of one volume each (1 to 4) in four racks, keyspace `air` with two replicas, `air.flights` of four
    tablets on volumes 1, 2 and 3.
    """
    metadata = joined(applied([INITIALISE]), "n1", "n2", "n3", "n4")
    return applied([CreateKeyspace(keyspace()), table("flights", [[1, 2], [2, 3], [3, 1], [1, 2]])], metadata)


# The ring


def tokens_of(node_id: int, count: int = 4) -> tuple[int, ...]:
    """Tokens of a node that lie between those of the others, the same for the same node number below 64."""
    return tuple(MIN_TOKEN + (i * 64 + node_id % 64) * (2**58 // count) + 7 for i in range(count))


def ring_plan(metadata: ClusterMetadata, request_id: str, tokens: tuple[int, ...] = (), *, count: int = 4) -> Operation:
    """The plan of a node's open request, as the coordinator makes it but for where allocated tokens lie."""
    request, state = metadata.requests[request_id], ring_state(metadata)
    node = metadata.directory.nodes[request.node_id]
    wanted = tokens or request.tokens
    match request.kind:
        case RequestKind.JOIN:
            return plan_join(state, request_id, node.node_id, wanted or tokens_of(node.node_id, count))
        case RequestKind.LEAVE:
            return plan_leave(state, request_id, node.node_id, force=request.force)
        case RequestKind.REMOVE:
            return plan_remove(state, request_id, node.node_id, force=request.force)
        case RequestKind.MOVE:
            moved = tuple(token + 2**54 + metadata.epoch for token in node.tokens)
            return plan_move(state, request_id, node.node_id, wanted or moved)
        case RequestKind.REPLACE:
            assert node.replaces is not None
            return plan_replace(state, request_id, node.replaces, node.node_id, wanted or None)
        case _:
            return plan_rebuild(state, request_id, node.node_id, request.source_datacenter)


def start(metadata: ClusterMetadata, request_id: str, tokens: tuple[int, ...] = ()) -> StartRequest:
    """The event that starts a node's request with its plan."""
    return StartRequest(request_id, encode_operation(ring_plan(metadata, request_id, tokens)))


def replication_step(metadata: ClusterMetadata, request_id: str, number: int = 1) -> PrepareOperation:
    """The event that begins the next single step of a change of replication."""
    request, state = metadata.requests[request_id], ring_state(metadata)
    target = replication_of(request.strategy, request.replication)
    step = replication_path(state.keyspaces[request.keyspace], target)[0]
    plan = plan_replication_change(state, f"{request_id}/{number}", request.keyspace, step, force=request.force)
    return PrepareOperation(request_id, encode_operation(plan))


def steps(operation_id: str, *names: Step) -> list[Event]:
    """The events of an operation's steps, all after PREPARE when none is named."""
    return [
        AdvanceOperation(operation_id, step, f"session-{operation_id}" if step is Step.START else None)
        for step in names or (Step.START, Step.MID, Step.FINISH)
    ]


def joined_ring(metadata: ClusterMetadata, *names: str, **options: str | int) -> ClusterMetadata:
    """The metadata after nodes with four tokens each have joined, whatever keyspaces there are."""
    for name in names:
        metadata = applied([register(metadata, name, **options)], metadata)  # type: ignore[arg-type]
        metadata = applied([start(metadata, f"join-{name}")], metadata)
        onward = steps(f"join-{name}") if metadata.rings.operations else []
        metadata = applied([*onward, FinishRequest(f"join-{name}")], metadata)
    return metadata


def ring_keyspace(name: str = "sky", **replication: int) -> Keyspace:
    return Keyspace(name, PlacementKind.RING, "NetworkTopologyStrategy", replication or {"dc1": 3})


def ring_table(name: str = "stars", *, keyspace: str = "sky") -> CreateTable:
    """A table of a ring keyspace; its id is `id-<name>`."""
    return CreateTable(Table(f"id-{name}", keyspace, name, COLUMNS, ("id",)), 0)


def ring_nodes(volumes: int = 1) -> ClusterMetadata:
    """Nodes m1 to m6 of racks r1, r2, r3, r1, r2, r3 in dc1, four tokens each, and no keyspace."""
    metadata = applied([INITIALISE])
    for number in range(1, 7):
        metadata = joined_ring(metadata, f"m{number}", rack=f"r{(number - 1) % 3 + 1}", volumes=volumes)
    return metadata


def ring_cluster(volumes: int = 1) -> ClusterMetadata:
    """`ring_nodes` with ring keyspace `sky` of three replicas, its table `sky.stars`, and `air.flights` on tablets."""
    metadata = applied([CreateKeyspace(ring_keyspace()), ring_table(), CreateKeyspace(keyspace())], ring_nodes(volumes))
    first = [metadata.directory.nodes[key].volumes[0].volume_id for key in (1, 2, 3)]
    rows = [[first[0], first[1]], [first[1], first[2]], [first[2], first[0]], [first[0], first[1]]]
    return applied([table("flights", rows)], metadata)


# Random events: each function makes one on top of some metadata, most of them valid, and all of them possible to ask.


def a_node(metadata: ClusterMetadata, dice: random.Random) -> Event:
    names = [f"n{number}" for number in range(1, 9)]
    normal = [n for n in metadata.directory.nodes.values() if n.state is NodeState.NORMAL]
    replaced = dice.choice(normal) if normal and dice.random() < 0.3 else None
    event = register(
        metadata,
        dice.choice(names),
        datacenter=replaced.datacenter if replaced else dice.choice(["dc1", "dc1", "dc2"]),
        rack=replaced.rack if replaced else dice.choice(["r1", "r2", "r3"]),
        volumes=dice.randint(1, 3),
        replaces=replaced.node_id if replaced else dice.choice([None, None, None, 99]),
    )
    serial = len(metadata.requests)
    return RegisterNode(
        **{field: getattr(event, field) for field in event.__struct_fields__}
        | {"request_id": f"request-{serial}", "host_id": f"host-{serial}"}
    )


def a_topology_request(metadata: ClusterMetadata, dice: random.Random) -> Event:
    kind = dice.choice([RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.LEAVE, RequestKind.JOIN])
    return RequestTopology(
        f"request-{len(metadata.requests)}", kind, dice.randint(1, len(metadata.directory.nodes) + 1)
    )


def a_request_taken_further(metadata: ClusterMetadata, dice: random.Random) -> Event:
    states = (RequestState.PENDING, RequestState.RUNNING)
    pool = [request for request in metadata.requests.values() if request.state in states]
    if not pool or dice.random() < 0.1:
        pool = list(metadata.requests.values())
    if not pool:
        return StartRequest("nothing")
    request = dice.choice(pool)
    if dice.random() < 0.1:
        return CancelRequest(request.request_id, "enough")
    return (StartRequest if request.state is RequestState.PENDING else FinishRequest)(request.request_id)


def a_keyspace(metadata: ClusterMetadata, dice: random.Random) -> Event:
    name = dice.choice(["air", "rail"])
    if name in metadata.schema.keyspaces and dice.random() < 0.6:
        return DropKeyspace(name)
    return CreateKeyspace(keyspace(name, dc1=dice.randint(0, 3), dc2=dice.choice([0, 0, 1])))


def a_table(metadata: ClusterMetadata, dice: random.Random) -> Event:
    tables = list(metadata.schema.tables.values())
    if tables and dice.random() < 0.4:
        dropped = dice.choice(tables)
        return DropTable(dropped.table_id, dropped.full_name)
    if not metadata.schema.keyspaces:
        return table("flights", [[1]])
    chosen = dice.choice(list(metadata.schema.keyspaces.values()))
    rows = [_replicas(metadata, chosen, dice) for _ in range(2 ** dice.randint(0, 4))]
    name = dice.choice(["flights", "trains", "crews"])
    event = table(f"{name}-{len(tables)}", rows, keyspace=chosen.name)
    return CreateTable(
        Table(f"id-{metadata.epoch}", chosen.name, name, COLUMNS, ("id",)), event.tablet_count, event.attachment
    )


def a_dropped_table(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A table is put away, comes back, or is forgotten."""
    records, tables = list(metadata.dropped.tables.values()), list(metadata.schema.tables.values())
    if tables and (not records or dice.random() < 0.4):
        shelved = dice.choice(tables)
        return ShelveTable(shelved.table_id, shelved.full_name, dice.choice([0.0, 60.0]))
    if not records:
        return ForgetTable("id-nothing", "air.nothing")
    table = dice.choice(records).table
    if dice.random() < 0.3:
        return ForgetTable(table.table_id, table.full_name)
    return RestoreTable(table.table_id, dice.choice([table.name, f"{table.name}-again"]))


def a_change_stream(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """The changes of a table are kept, for another time, or no longer."""
    tables = list(metadata.schema.tables.values())
    if not tables:
        return DropChanges("id-nothing", "air.nothing")
    table = dice.choice(tables)
    stream = metadata.change_streams.get(table.table_id)
    if stream is not None and dice.random() < 0.5:
        return DropChanges(table.table_id, table.full_name)
    name = stream.stream_id if stream is not None else f"s-{metadata.epoch}"
    return KeepChanges(table.table_id, table.full_name, name, 1.0, dice.choice([1.0, 2.0]))


def a_generation(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """The changes of a table are divided as its ranges are, or it becomes known where that begins, or somebody asks for
    that; before it what it needs.
    """
    if CHANGE_GENERATIONS not in metadata.features.enabled and dice.random() < 0.8:
        return EnableFeatures((CHANGE_GENERATIONS,))
    streams = [one for key, one in metadata.change_streams.by_table.items() if key in metadata.schema.tables]
    if not streams or dice.random() < 0.1:
        return RequestStreamCheck(f"check-{metadata.epoch}") if dice.random() < 0.4 else a_change_stream(metadata, dice)
    stream = next((one for one in streams if one.generation and one.generation.position is None), dice.choice(streams))
    last, table_id = stream.generation, stream.table_id
    if last is not None and last.position is None and dice.random() < 0.8:
        oldest, position = dice.choice([0, last.number]), last.after + 1
        return PublishGenerations((PublishedGeneration(table_id, stream.stream_id, last.number, position, oldest),))
    tablets = metadata.tablets.maps.get(table_id)
    lows = () if tablets is not None else tuple(metadata.placements(table_id).lows.tolist())
    number, after, at = (1, 0, 1) if last is None else (last.number + 1, last.after + 1, last.at + 1)
    return CommitGenerations(
        (NewGeneration(table_id, stream.stream_id, number, after, 0 if tablets is None else tablets.count, lows),), at
    )


def _replicas(metadata: ClusterMetadata, chosen: Keyspace, dice: random.Random) -> list[int]:
    replicas: list[int] = []
    for datacenter, wanted in sorted(chosen.replication.items()):
        normal = [
            node
            for node in metadata.directory.nodes.values()
            if node.state is NodeState.NORMAL and node.datacenter == datacenter
        ]
        nodes = dice.sample(normal, wanted) if wanted <= len(normal) else [*normal, *normal[:1]]
        replicas += [dice.choice(node.volumes).volume_id for node in nodes]
    return replicas or [1]


def some_transitions(metadata: ClusterMetadata, dice: random.Random) -> Event:
    new = []
    for table_id, tablet_map in metadata.tablets.maps.items():
        for tablet in range(tablet_map.count):
            free = (table_id, tablet) not in metadata.tablets.transitions
            if dice.random() < (0.5 if free else 0.02):
                new.append(_transition(metadata, table_id, tablet, dice))
    if dice.random() < 0.05:
        new = new + new[:1]
    return StartTransitions(tuple(n for n in new if n is not None))


def _transition(metadata: ClusterMetadata, table_id: str, tablet: int, dice: random.Random) -> NewTransition | None:
    directory = metadata.directory
    replicas = metadata.tablets.maps[table_id].replicas(tablet)
    gone = [r for r in replicas if directory.node_of_volume[r].state is NodeState.LEFT]
    leaving = dice.choice(gone or replicas)
    source = directory.node_of_volume[leaving]
    taken = {directory.node_of_volume[r].node_id for r in replicas if r != leaving}
    targets = [
        volume.volume_id
        for node in directory.nodes.values()
        if _may_take(node, source, taken)
        for volume in node.volumes
        if volume.volume_id not in replicas
    ]
    if not targets and dice.random() < 0.9:
        return None
    pending = dice.choice(targets) if targets else dice.choice([1, 2, 77])
    same_node = directory.node_of_volume.get(pending) is source
    kind = Kind.INTRANODE_MIGRATION if same_node else dice.choice([Kind.MIGRATION, Kind.REBUILD])
    return NewTransition(table_id, tablet, kind, leaving, pending, "random")


def _may_take(node: Node, source: Node, taken: set[int]) -> bool:
    return node.state is NodeState.NORMAL and node.datacenter == source.datacenter and node.node_id not in taken


def an_advance(metadata: ClusterMetadata, dice: random.Random) -> Event:
    changes = []
    back = dice.random() < 0.25
    for (table_id, tablet), transition in metadata.tablets.transitions.items():
        stage = transition.stage
        to = (BACKWARD.get(stage) if back else None) or FORWARD[stage]
        if to is None or dice.random() < 0.2:
            continue
        if dice.random() < 0.02:
            to = dice.choice(list(Stage))
        session = f"session-{metadata.epoch}-{tablet}" if (to in SESSION_STAGES) != (dice.random() < 0.02) else None
        changes.append(StageChange(table_id, tablet, stage, to, session, "lost" if back else None))
    return AdvanceTransitions(tuple(changes))


def an_end(metadata: ClusterMetadata, dice: random.Random) -> Event:
    ready = [key for key, t in metadata.tablets.transitions.items() if FORWARD[t.stage] is None]
    if dice.random() < 0.05:
        ready = ready + list(metadata.tablets.transitions)[:1]
    return FinishTransitions(tuple(ready))


def a_resize(metadata: ClusterMetadata, dice: random.Random) -> Event:
    if not metadata.tablets.maps:
        return DecideResize("nothing", Resize.SPLIT, 1)
    table_id, tablet_map = dice.choice(list(metadata.tablets.maps.items()))
    number = tablet_map.resize_seq_number
    if tablet_map.resize_type != Resize.NONE and dice.random() < 0.7:
        return FinishResize(table_id, number)
    return DecideResize(table_id, dice.choice(list(Resize)), number + dice.choice([1, 1, 1, 1, 1, 2]), "random")


def a_word_of_an_operator(metadata: ClusterMetadata, dice: random.Random) -> Event:
    node_id = dice.choice(list(metadata.directory.nodes) or [1])
    tables = list(metadata.schema.tables.values())
    chosen = dice.choice(["maintenance", "weight", "tags", *(["table", "columns", "history"] if tables else [])])
    if chosen == "columns":
        return other_columns(dice.choice(tables), dice)
    if chosen == "history":
        table = dice.choice(tables)
        return KeepHistory(table.table_id, table.full_name, dice.choice([0.0, 60.0]))
    if chosen == "table":
        table = dice.choice(tables)
        tags = ("ssd",) if dice.random() < 0.3 else ()
        apart = (dice.choice(list(metadata.schema.tables)),) if dice.random() < 0.3 else ()
        options = TabletOptions(dice.choice([None, 1 << 20]), dice.choice([1, 2, 4]), None, tags, apart)
        return AlterTable(table.table_id, table.full_name, options)
    if chosen == "maintenance":
        return SetMaintenance(node_id, on=dice.random() < 0.5)
    if chosen == "weight":
        return AlterNode(node_id, weight=dice.choice([0.5, 1.0, 2.0]))
    return AlterNode(node_id, tags=dice.choice([(), ("ssd",), ("hdd", "ssd")]))


def other_columns(table: Table, dice: random.Random) -> AlterColumns:
    """Columns that come, go, change their names and places; names that were used come again. Or checks of these."""
    replace = msgspec.structs.replace
    if dice.random() < 0.3:
        return other_checks(table, dice)
    columns = [
        replace(column, name=dice.choice(["id", "key", "note", "text"])) if dice.random() < 0.3 else column
        for column in table.numbered
        if column.name in table.primary_key or dice.random() < 0.8
    ]
    number = table.last_column_id + 1
    columns.append(Column(dice.choice(["note", "text"]), "string", True, number, f"stored#{number}"))
    dice.shuffle(columns)
    return AlterColumns(table.table_id, table.full_name, table.version, tuple(columns))


def other_checks(table: Table, dice: random.Random) -> AlterColumns:
    """Checks that come, go, and are found to hold."""
    kept = [one for one in table.checked if dice.random() < 0.7]
    if kept and dice.random() < 0.5:
        kept[0] = msgspec.structs.replace(kept[0], validated=table.epoch)
    else:
        name, column = dice.choice(["first", "second", "third"]), dice.choice(table.numbered)
        assert column.column_id is not msgspec.UNSET
        kept.append(Check(name, f"{column.name} is not null", (column.column_id,)))
    return AlterColumns(table.table_id, table.full_name, table.version, table.numbered, tuple(kept))


def a_switch(metadata: ClusterMetadata, dice: random.Random) -> Event:
    if not metadata.switches.changes:
        return ResumeChanges() if dice.random() < 0.8 else SwitchBalancing(on=False)
    return dice.choice([PauseChanges(why="night"), SwitchBalancing(on=dice.random() < 0.5), ResumeChanges()])


def a_snapshot(metadata: ClusterMetadata, dice: random.Random) -> Event:
    return TakeSnapshot()


def a_beginning(metadata: ClusterMetadata, dice: random.Random) -> Event:
    return INITIALISE


def a_loss(metadata: ClusterMetadata, rng: random.Random) -> Event:
    return AcceptLoss(metadata.identity.incarnation + rng.randint(0, 1), metadata.epoch + 3, "h", "a test")


def a_relaxed_barrier(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """What a coordinator says when a node kept it waiting; now and then about nothing."""
    told = [RelaxedBarrier(f"tablet {number}", "ALL", "QUORUM", "n1/d1: away") for number in range(dice.randint(0, 2))]
    return RelaxBarriers(tuple(told))


def a_feature(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """What the cluster may use from now on, or what an agent runs; now and then an older version."""
    if dice.random() < 0.4 or not metadata.features.enabled:
        return EnableFeatures(tuple(dice.sample(SUPPORTED, dice.randint(1, len(SUPPORTED)))))
    supported = SUPPORTED if dice.random() < 0.9 else SUPPORTED[:-1]
    return AnnounceVersion(dice.choice(list(metadata.directory.nodes) or [1]), dice.choice(["1", "2"]), supported)


def a_replica_count(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A tablet that gets a replica, or gives one up."""
    if not metadata.tablets.maps:
        return ChangeReplicas(())
    table_id, tablet_map = dice.choice(list(metadata.tablets.maps.items()))
    tablet = dice.randrange(tablet_map.count)
    held, known = tablet_map.replicas(tablet), list(metadata.directory.volumes)
    if dice.random() < 0.6:
        return ChangeReplicas((ReplicaChange(table_id, tablet, dice.choice(known), None, "random"),))
    return ChangeReplicas((ReplicaChange(table_id, tablet, dice.choice(held), dice.choice(held), "random"),))


def a_time_to_live(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A time to live that a table gets by a column, or that ends; before that what it needs."""
    tables = list(metadata.schema.tables.values())
    if not tables:
        return AlterTimeToLive("nothing", "air.nothing", "", TimeToLive(1, 60, 1))
    if TIME_TO_LIVE not in metadata.features.enabled:
        return EnableFeatures((TIME_TO_LIVE,))
    table = max(tables, key=lambda one: (len(one.lifetimes), len(one.columns)))
    moments = [column.column_id for column in table.numbered if column.type == "timestamp"]
    if not moments:
        number = table.last_column_id + 1
        columns = (*table.numbered, Column(f"seen{number}", "timestamp", True, number, f"stored#{number}"))
        return AlterColumns(table.table_id, table.full_name, table.version, columns)
    column = dice.choice(moments) if dice.random() < 0.9 else 1
    assert isinstance(column, int)
    since = max([1, *(one.since for one in table.lifetimes)]) + dice.randint(-5, 50)
    ttl = TimeToLive(column, dice.choice([None, 60, 3600]), since)
    return AlterTimeToLive(table.table_id, table.full_name, table.version, ttl)


def a_tablet_replication(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A keyspace that is to have other numbers of replicas, or that has them."""
    done = [one.name for one in altering(metadata) if not tablets_left(metadata, one.name)]
    if done and dice.random() < 0.7:
        return FinishTabletReplication(dice.choice(done))
    name = dice.choice(sorted(metadata.schema.keyspaces) or ["nothing"])
    if dice.random() < 0.1:
        return FinishTabletReplication(name)
    known = metadata.schema.keyspaces.get(name)
    if known is not None and dice.random() < 0.7:
        wanted = {place: factor + dice.choice([-1, 1]) for place, factor in known.replication.items() if factor}
        return AlterTabletReplication(name, wanted)
    return AlterTabletReplication(name, {"dc1": dice.randint(0, 3), "dc2": dice.choice([0, 0, 1])})


def a_keyspace_name(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A keyspace that gets another name, often one that it or another keyspace had before."""
    names = sorted(metadata.schema.keyspaces) or ["nothing"]
    former = [name for one in metadata.schema.keyspaces.values() for name in one.former_names]
    return RenameKeyspace(dice.choice(names), dice.choice([*former, "air", "sky", "heavens"]))


def a_pin(metadata: ClusterMetadata, dice: random.Random) -> Event:
    if not metadata.tablets.maps:
        return PinTablets("nothing", 1, (0,), True)
    table_id, tablet_map = dice.choice(list(metadata.tablets.maps.items()))
    chosen = dice.sample(range(tablet_map.count), dice.randint(1, min(3, tablet_map.count)))
    return PinTablets(table_id, tablet_map.count, tuple(chosen), dice.random() < 0.7, "random")


def a_forgotten_request(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """Requests that are done, as the coordinator lets them go; now and then others."""
    may_go = [request.request_id for request in forgettable(metadata)]
    others = list(metadata.requests) if dice.random() < 0.1 else []
    ids = dict.fromkeys([*may_go[: dice.randint(1, 3)], *others[:1]])
    return ForgetRequests(tuple(ids))


def an_unregistered_node(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """Nodes that have left; now and then another one, or one that is out already."""
    known = metadata.directory.known
    left = [key for key, node in metadata.directory.nodes.items() if node.state is NodeState.LEFT]
    others = dice.sample(list(known), 1) if known and dice.random() < 0.2 else []
    return UnregisterNodes(tuple(dict.fromkeys([*left[: dice.randint(1, 2)], *others])))


def an_upgrade(metadata: ClusterMetadata, dice: random.Random) -> Event:
    """A cluster is described, most often too late; an upgrade that goes on ends soon."""
    if metadata.upgrade.going_on:
        state = dice.choice([UpgradeState.BUILD_COORDINATOR_STATE, UpgradeState.DONE])
        return AdvanceUpgrade(state, state is UpgradeState.DONE and dice.random() < 0.8, "random")
    return DescribeCluster(Described((DescribedNode("m0", "dc1", "r1", {"d0": "/m0/d0"}),)))


KINDS_OF_CHANGE: dict[str, Callable[[ClusterMetadata, random.Random], Event]] = {
    "node": a_node,
    "topology": a_topology_request,
    "request": a_request_taken_further,
    "keyspace": a_keyspace,
    "table": a_table,
    "dropped table": a_dropped_table,
    "change stream": a_change_stream,
    "generation": a_generation,
    "transitions": some_transitions,
    "advance": an_advance,
    "end": an_end,
    "resize": a_resize,
    "switch": a_switch,
    "word of an operator": a_word_of_an_operator,
    "snapshot": a_snapshot,
    "beginning": a_beginning,
    "loss": a_loss,
    "relaxed barrier": a_relaxed_barrier,
    "feature": a_feature,
    "replica count": a_replica_count,
    "tablet replication": a_tablet_replication,
    "time to live": a_time_to_live,
    "pin": a_pin,
    "keyspace name": a_keyspace_name,
    "forgotten request": a_forgotten_request,
    "unregistered node": an_unregistered_node,
    "upgrade": an_upgrade,
}
