"""Every condition of every event: the code it is rejected with, on which metadata, and a neighbour that is valid."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata import events as events_package
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AcceptLoss,
    AdvanceTransitions,
    AlterColumns,
    AlterNode,
    AlterTable,
    CancelRequest,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DropChanges,
    DropKeyspace,
    DropTable,
    Event,
    FinishRequest,
    FinishResize,
    FinishTransitions,
    ForgetTable,
    Initialise,
    KeepChanges,
    KeepHistory,
    NewTransition,
    PauseChanges,
    RegisterNode,
    RelaxBarriers,
    RelaxedBarrier,
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
)
from epochlake.metastore.metadata.model import (
    Check,
    Column,
    CompactionOptions,
    Keyspace,
    NodeState,
    PlacementKind,
    RequestKind,
    RequestState,
    Table,
    TabletOptions,
    Volume,
)
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.tablet_map import TabletMap
from epochlake.placement.tablets.transitions import Kind, Stage
from epochlake.placement.tokens import MAX_TABLET_BITS

from tests.support import (
    feature_event_cases,
    generated_event_cases,
    generation_event_cases,
    ring_event_cases,
    struct_event_cases,
)
from tests.support.histories import INITIALISE, applied, joined, keyspace, register, small_cluster, table

replace = msgspec.structs.replace

FLIGHTS = "id-flights"
LEAVE, REMOVE = RequestKind.LEAVE, RequestKind.REMOVE


@cache
def scenes() -> dict[str, ClusterMetadata]:
    """The metadata that events are tried on, by name. `small` is `small_cluster()`; most others build on it."""
    small = small_cluster()
    pending = applied([register(small, "n5")], small)
    running = applied([StartRequest("join-n5")], pending)
    leaving = applied([RequestTopology("leave-n4", LEAVE, 4)], small)
    moving = applied([StartTransitions((move(),))], small)
    replacing = applied([register(small, "n6", rack="rack-n3", replaces=3)], small)
    rebuilding = applied([StartRequest("join-n6")], replacing)
    lost = applied([RequestTopology("remove-n1", REMOVE, 1, declares_lost=True)], small)
    shelved = applied([ShelveTable(FLIGHTS, "air.flights")], small)
    ring_shelved = applied([ShelveTable("id-stars", "sky.stars")], ring_event_cases.scenes()["ring"])
    return {
        "shelved": shelved,
        "shelved, name taken": applied([new_table(name="flights")], shelved),
        "shelved, another keyspace": with_placement(shelved, PlacementKind.RING),
        "shelved, a node gone": with_state(shelved, 1, NodeState.LEFT),
        "shelved, a node going": with_state(shelved, 1, NodeState.DECOMMISSIONING),
        "ring shelved": ring_shelved,
        "ring shelved, moved since": msgspec.structs.replace(
            ring_shelved, rings=msgspec.structs.replace(ring_shelved.rings, epoch=ring_shelved.epoch + 1)
        ),
        "lost": lost,
        "nothing": ClusterMetadata.empty(),
        "begun": applied([INITIALISE]),
        "paused": applied([PauseChanges(why="night")], small),
        "snapshot": applied([TakeSnapshot()], small),
        "keeping": applied([KeepChanges(FLIGHTS, "air.flights", "s1", 1.0, 2.0)], small),
        "small": small,
        "checked": applied(
            [AlterColumns(FLIGHTS, "air.flights", small.schema.tables[FLIGHTS].version, NUMBERED, (SAID,))], small
        ),
        "pending": pending,
        "running": running,
        "leaving": leaving,
        "draining": applied([StartRequest("leave-n4")], leaving),
        "removing": applied([RequestTopology("remove-n1", REMOVE, 1), StartRequest("remove-n1")], small),
        "left": applied([StartRequest("leave-n4"), FinishRequest("leave-n4")], leaving),
        "moving": moving,
        "streaming": applied([advance("write_both_read_old"), advance("streaming", session="s1")], moving),
        "ending": through(moving),
        "replacing": replacing,
        "rebuilding": rebuilding,
        # No events lead here: whoever takes part in an open request is asked for nothing else.
        "replacing one that leaves": with_state(replacing, 3, NodeState.DECOMMISSIONING),
        "two datacenters": joined(small, "m1", datacenter="dc2", volumes=2),
        "two volumes": applied([table("crews", [[1, 5]])], joined(small, "m1", volumes=2)),
        "resting": applied([SetMaintenance(4, on=True)], small),
        "tagged": applied(
            [
                AlterNode(1, tags=("ssd",)),
                AlterNode(2, tags=("ssd",)),
                AlterTable(FLIGHTS, "air.flights", TabletOptions(tags=("ssd",))),
            ],
            small,
        ),
        "tight": applied([CreateKeyspace(keyspace("all", dc1=4))], small),
        "racks": applied([CreateKeyspace(keyspace("all", dc1=4))], joined(small, "m1", rack="rack-n1")),
        "splitting": applied([DecideResize(FLIGHTS, Resize.SPLIT, 1)], small),
        "splitting and moving": applied([DecideResize(FLIGHTS, Resize.SPLIT, 1)], moving),
        "merging": applied([DecideResize(FLIGHTS, Resize.MERGE, 1)], small),
        "merging one": applied([table("one", [[1, 2]]), table("two", [[1, 2], [2, 1]]), merge("id-two")], small),
        "as many tablets as there can be": with_tablets(small, 1 << MAX_TABLET_BITS),
        **feature_event_cases.scenes(),
        **struct_event_cases.scenes(),
        **generated_event_cases.scenes(),
        **generation_event_cases.scenes(),
        **ring_event_cases.scenes(),
    }


def move(
    tablet: int = 0, leaving: int = 1, pending: int = 4, kind: Kind = Kind.MIGRATION, on: str = FLIGHTS
) -> NewTransition:
    return NewTransition(on, tablet, kind, leaving, pending)


def advance(
    to: str, *, session: str | None = None, tablet: int = 0, came_from: str | None = None
) -> AdvanceTransitions:
    order = [stage.value for stage in Stage]
    before = came_from or order[order.index(to) - 1]
    return AdvanceTransitions((StageChange(FLIGHTS, tablet, Stage(before), Stage(to), session),))


def merge(on: str = FLIGHTS) -> DecideResize:
    return DecideResize(on, Resize.MERGE, 1)


def with_tablets(metadata: ClusterMetadata, count: int) -> ClusterMetadata:
    """No event is tried on as many tablets: only their number counts."""
    maps = {FLIGHTS: TabletMap(count, 0, ())}
    return msgspec.structs.replace(metadata, tablets=msgspec.structs.replace(metadata.tablets, maps=maps))


def with_state(metadata: ClusterMetadata, node_id: int, state: NodeState) -> ClusterMetadata:
    changed = msgspec.structs.replace(metadata.directory.nodes[node_id], state=state)
    return msgspec.structs.replace(metadata, directory=metadata.directory.with_nodes(changed, epoch=metadata.epoch))


def with_placement(metadata: ClusterMetadata, placement: PlacementKind) -> ClusterMetadata:
    """As if keyspace `air` had been dropped, and made anew in another way."""
    other = msgspec.structs.replace(metadata.schema.keyspaces["air"], placement=placement)
    keyspaces = {**metadata.schema.keyspaces, "air": other}
    return msgspec.structs.replace(metadata, schema=msgspec.structs.replace(metadata.schema, keyspaces=keyspaces))


def through(moving: ClusterMetadata) -> ClusterMetadata:
    steps = ["write_both_read_old", "streaming", "write_both_read_new", "use_new", "cleanup", "end_migration"]
    return applied([advance(step, session="s1" if step == "streaming" else None) for step in steps], moving)


def node(scene: str = "small", **changes: object) -> RegisterNode:
    return msgspec.structs.replace(register(scenes()[scene], "n5"), **changes)


def lost_one(scene: str, node_id: int, *takes_back: str) -> RegisterNode:
    """A node that takes the place of one in a scene."""
    rack = scenes()[scene].directory.nodes[node_id].rack
    asked = register(scenes()[scene], "n9", rack=rack)
    return msgspec.structs.replace(asked, replaces=node_id, takes_back=takes_back, declares_lost=True)


def new_table(
    *,
    columns: tuple[Column, ...] = (Column("id", "bigint", nullable=False), Column("note", "string")),
    key: tuple[str, ...] = ("id",),
    name: str = "trains",
    keyspace_name: str = "air",
    table_id: str = "id-trains",
    replicas: list[list[int]] | None = None,
    count: int | None = None,
) -> CreateTable:
    rows = replicas if replicas is not None else [[1, 2], [3, 4]]
    return CreateTable(
        Table(table_id, keyspace_name, name, columns, key),
        len(rows) if count is None else count,
        encode_replicas(np.array(rows, dtype=np.int32)),
    )


def columns(*pairs: tuple[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, kind, nullable=False) for name, kind in pairs)


def volume(number: int = 5, name: str = "d0", uri: str = "/n5/d0", capacity: int = 10) -> Volume:
    return Volume(number, name, uri, capacity)


def replacement(**changes: object) -> RegisterNode:
    return msgspec.structs.replace(register(scenes()["small"], "n6", rack="rack-n3", replaces=3), **changes)


KEY = Column("id", "bigint", nullable=False, column_id=1, stored_as="id")
NOTE = Column("note", "string", column_id=2, stored_as="note")
NUMBERED = (KEY, NOTE)


SAID = Check("said", "note is not null", (2,))


def altered(
    columns: tuple[Column, ...],
    *checks: Check,
    scene: str = "small",
    version: str | None = None,
    table_id: str = "id-flights",
) -> AlterColumns:
    """The event by which table `air.flights` gets these columns, and these checks where there are any."""
    now = scenes()[scene].schema.tables[FLIGHTS].version
    return AlterColumns(table_id, "air.flights", now if version is None else version, columns, checks or msgspec.UNSET)


REJECTED: list[tuple[str, object, str]] = [
    # The cluster
    ("nothing", PauseChanges(why=""), "not-initialised"),
    ("nothing", Initialise(name="1st", cluster_id="c", product_version="1"), "invalid-name"),
    ("nothing", Initialise(name="x" * 64, cluster_id="c", product_version="1"), "invalid-name"),
    ("nothing", Initialise(name="x\n", cluster_id="c", product_version="1"), "invalid-name"),
    ("small", INITIALISE, "already-initialised"),
    ("paused", SwitchBalancing(on=False), "changes-paused"),
    ("paused", PauseChanges(why="again"), "changes-paused"),
    ("paused", CancelRequest("join-n1"), "changes-paused"),
    ("small", ResumeChanges(), "not-paused"),
    ("small", SwitchBalancing(on=True), "nothing-to-do"),
    ("snapshot", TakeSnapshot(), "nothing-to-do"),
    ("small", AcceptLoss(1, 99), "old-incarnation"),
    ("small", RelaxBarriers(()), "nothing-to-do"),
    ("small", TakeSnapshot("1:another"), "wrong-digest"),
    # Nodes
    ("small", lambda: node(name="5"), "invalid-name"),
    ("small", lambda: node(datacenter="a b"), "invalid-name"),
    ("small", lambda: node(rack=""), "invalid-name"),
    ("small", lambda: node(name="n1"), "node-exists"),
    ("pending", lambda: node("pending", name="n5"), "node-exists"),
    ("small", lambda: node(host_id="host-n1"), "host-exists"),
    ("left", lambda: node("left", host_id="host-n4"), "host-exists"),
    ("small", lambda: node(node_id=4), "stale-plan"),
    ("small", lambda: node(node_id=6), "stale-plan"),
    ("small", lambda: node(volumes=()), "no-volumes"),
    ("small", lambda: node(volumes=(volume(4),)), "stale-plan"),
    ("small", lambda: node(volumes=(volume(6),)), "stale-plan"),
    ("small", lambda: node(volumes=(volume(5), volume(6, uri="/n5/d1"))), "volume-exists"),
    ("small", lambda: node(volumes=(volume(5), volume(6, name="d1"))), "volume-exists"),
    ("small", lambda: node(volumes=(volume(5), volume(6, name="d1", uri="/n5/d0/"))), "volume-exists"),
    ("small", lambda: node(volumes=(volume(uri="/n1/d0"),)), "volume-exists"),
    ("small", lambda: node(volumes=(volume(capacity=0),)), "invalid-capacity"),
    ("small", lambda: node(volumes=(volume(capacity=2**63),)), "invalid-capacity"),
    ("small", lambda: node(request_id="join-n1"), "request-exists"),
    ("small", lambda: replacement(replaces=9), "unknown-node"),
    ("small", lambda: replacement(replaces=0), "unknown-node"),
    ("left", lambda: replacement(replaces=4, rack="rack-n4"), "wrong-state"),
    ("draining", lambda: replacement(replaces=4, rack="rack-n4"), "stale-plan"),
    ("leaving", lambda: replacement(replaces=4, rack="rack-n4"), "stale-plan"),
    (
        "pending",
        lambda: msgspec.structs.replace(
            register(scenes()["pending"], "n7", rack="rack-n5"), replaces=5, takes_back=("join-n5",)
        ),
        "wrong-state",
    ),
    (
        "replacing",
        lambda: msgspec.structs.replace(register(scenes()["replacing"], "n7", rack="rack-n3"), replaces=3),
        "stale-plan",
    ),
    ("small", lambda: replacement(rack="rack-n1"), "wrong-rack"),
    ("small", lambda: replacement(datacenter="dc2"), "wrong-rack"),
    # Topology requests
    ("small", RequestTopology("r", LEAVE, 9), "unknown-node"),
    ("small", RequestTopology("r", RequestKind.JOIN, 1), "wrong-request"),
    ("small", RequestTopology("r", RequestKind.REPLACE, 1), "wrong-request"),
    ("pending", RequestTopology("r", LEAVE, 5), "wrong-state"),
    ("left", RequestTopology("r", REMOVE, 4), "wrong-state"),
    ("small", RequestTopology("join-n1", LEAVE, 1), "request-exists"),
    ("small", RequestTopology("r", LEAVE, 4, takes_back=("join-n5",)), "wrong-option"),
    ("leaving", RequestTopology("r", LEAVE, 4), "request-in-the-way"),
    ("leaving", RequestTopology("r", REMOVE, 4), "stale-plan"),
    ("draining", RequestTopology("r", REMOVE, 4), "stale-plan"),
    ("draining", RequestTopology("r", REMOVE, 4, takes_back=("leave-n4",)), "stale-plan"),
    ("replacing", RequestTopology("r", REMOVE, 3, takes_back=("join-n5",)), "stale-plan"),
    ("lost", RequestTopology("r", LEAVE, 1), "lost"),
    ("lost", RequestTopology("r", REMOVE, 1), "request-in-the-way"),
    ("lost", StartTransitions((move(1, 2, 1),)), "lost"),
    ("tight", RequestTopology("r", LEAVE, 1), "too-few-nodes"),
    ("racks", RequestTopology("r", LEAVE, 2), "rack-needed"),
    ("small", StartRequest("r"), "unknown-request"),
    ("running", StartRequest("join-n5"), "wrong-state"),
    ("small", StartRequest("join-n1"), "wrong-state"),
    ("replacing one that leaves", StartRequest("join-n6"), "wrong-state"),
    ("small", FinishRequest("r"), "unknown-request"),
    ("pending", FinishRequest("join-n5"), "wrong-state"),
    ("small", FinishRequest("join-n1"), "wrong-state"),
    ("removing", FinishRequest("remove-n1"), "replicas-left"),
    ("rebuilding", FinishRequest("join-n6"), "replicas-left"),
    ("small", CancelRequest("r"), "unknown-request"),
    ("small", CancelRequest("join-n1"), "wrong-state"),
    ("rebuilding", CancelRequest("join-n6"), "cannot-cancel"),
    # The schema
    ("small", lambda: altered(NUMBERED, table_id="id-older"), "stale-plan"),
    ("small", lambda: altered(NUMBERED, version="older"), "stale-plan"),
    ("small", lambda: altered(NUMBERED), "nothing-to-do"),
    ("small", lambda: altered((Column("id", "bigint", False), NOTE)), "invalid-event"),
    ("small", lambda: altered((*NUMBERED, replace(NOTE, name="other"))), "invalid-event"),
    ("small", lambda: altered((NOTE,)), "key-column"),
    ("small", lambda: altered((KEY, replace(NOTE, stored_as="text"))), "invalid-event"),
    ("small", lambda: altered((KEY, replace(NOTE, default="x"))), "invalid-event"),
    ("small", lambda: altered((replace(KEY, type="int"), NOTE)), "key-column"),
    ("small", lambda: altered((KEY, replace(NOTE, type="int"))), "narrower-type"),
    ("small", lambda: altered((KEY, replace(NOTE, nullable=False))), "nullable-column"),
    ("small", lambda: altered((*NUMBERED, Column("c", "int", column_id=0, stored_as="c"))), "invalid-event"),
    ("small", lambda: altered((KEY, Column("c", "int", column_id=3, stored_as="NOTE"))), "invalid-event"),
    ("small", lambda: altered((*NUMBERED, Column("c", "int", False, 3, "c"))), "invalid-default"),
    (
        "small",
        lambda: altered((*NUMBERED, Column("c", "int", True, 3, "c", "1"), Column("d", "array<int>", True, 4, "d"))),
        "invalid-default",
    ),
    ("small", lambda: altered((KEY, replace(NOTE, name="ID"))), "column-exists"),
    ("small", lambda: altered(NUMBERED, SAID, replace(SAID, name="SAID")), "invalid-check"),
    ("small", lambda: altered(NUMBERED, replace(SAID, predicate="")), "invalid-check"),
    ("small", lambda: altered(NUMBERED, replace(SAID, predicate="x" * 4001)), "invalid-check"),
    ("small", lambda: altered(NUMBERED, replace(SAID, name="a check")), "invalid-name"),
    ("small", lambda: altered(NUMBERED, replace(SAID, columns=())), "invalid-event"),
    ("small", lambda: altered(NUMBERED, replace(SAID, validated=3)), "invalid-event"),
    ("small", lambda: altered(NUMBERED, replace(SAID, columns=(7,))), "checked-column"),
    ("checked", lambda: altered(NUMBERED, scene="checked"), "nothing-to-do"),
    ("checked", lambda: altered((KEY,), scene="checked"), "checked-column"),
    ("checked", lambda: altered((KEY, replace(NOTE, name="text")), scene="checked"), "checked-column"),
    ("checked", lambda: altered(NUMBERED, replace(SAID, predicate="true", epoch=3), scene="checked"), "invalid-event"),
    ("small", CreateKeyspace(keyspace("1st")), "invalid-name"),
    ("small", CreateKeyspace(keyspace("air")), "keyspace-exists"),
    (
        "small",
        CreateKeyspace(Keyspace("k", PlacementKind.RING, "NetworkTopologyStrategy", {"dc1": 1})),
        "no-tokens",
    ),
    (
        "small",
        CreateKeyspace(Keyspace("k", PlacementKind.TABLETS, "SimpleStrategy", {"dc1": 1})),
        "unsupported-placement",
    ),
    ("small", CreateKeyspace(Keyspace("k", PlacementKind.TABLETS, "NetworkTopologyStrategy", {})), "no-replicas"),
    ("small", CreateKeyspace(keyspace("k", dc1=0)), "no-replicas"),
    ("small", CreateKeyspace(keyspace("k", dc1=1, dc2=-1)), "invalid-replication"),
    ("small", CreateKeyspace(keyspace("k", dc1=5)), "replication-too-high"),
    ("small", CreateKeyspace(keyspace("k", dc9=1)), "replication-too-high"),
    ("running", CreateKeyspace(keyspace("k", dc1=5)), "replication-too-high"),
    ("small", DropKeyspace("k"), "unknown-keyspace"),
    ("small", DropKeyspace("air"), "keyspace-not-empty"),
    ("small", lambda: new_table(keyspace_name="k"), "unknown-keyspace"),
    ("small", lambda: new_table(name="1st"), "invalid-name"),
    ("small", lambda: new_table(name="flights"), "table-exists"),
    ("small", lambda: new_table(table_id=FLIGHTS), "table-exists"),
    ("small", lambda: new_table(columns=()), "no-columns"),
    ("small", lambda: new_table(columns=columns(("id", "bigint"), ("ID", "bigint"))), "column-exists"),
    ("small", lambda: new_table(columns=columns(("id", "bigint"), ("_token", "bigint"))), "reserved-name"),
    ("small", lambda: new_table(key=()), "no-primary-key"),
    ("small", lambda: new_table(key=("id", "id")), "column-exists"),
    ("small", lambda: new_table(key=("number",)), "unknown-column"),
    *[
        ("small", lambda kind=kind: new_table(columns=columns(("id", kind))), "invalid-key-type")
        for kind in ("double", "FLOAT", "array<string>", "map<string,int>", "struct<a:int>", "binary", "variant")
    ],
    ("small", lambda: new_table(columns=(Column("id", "bigint"),)), "nullable-key"),
    ("small", lambda: new_table(count=4), "invalid-tablets"),
    ("small", lambda: new_table(replicas=[[1, 2]] * 3), "invalid-tablets"),
    (
        "small",
        lambda: CreateTable(new_table().table, 0, encode_replicas(np.empty((0, 2), np.int32))),
        "invalid-tablets",
    ),
    ("small", lambda: new_table(replicas=[[1, 9]]), "stale-plan"),
    ("small", lambda: new_table(replicas=[[1, -7]]), "stale-plan"),
    ("draining", lambda: new_table(replicas=[[1, 4]]), "stale-plan"),
    ("small", lambda: new_table(replicas=[[1, 1]]), "invalid-tablets"),
    ("small", lambda: new_table(replicas=[[1, 2], [1, -1]]), "invalid-tablets"),
    ("small", lambda: new_table(replicas=[[1, 2, 3]]), "invalid-tablets"),
    ("small", DropTable("id-trains", "air.trains"), "unknown-table"),
    ("small", DropTable(FLIGHTS, "flights"), "unknown-table"),
    ("small", DropTable("id-older", "air.flights"), "stale-plan"),
    ("moving", DropTable(FLIGHTS, "air.flights"), "transition-in-the-way"),
    ("moving", ShelveTable(FLIGHTS, "air.flights"), "transition-in-the-way"),
    ("small", ShelveTable(FLIGHTS, "air.flights", -1.0), "invalid-event"),
    ("small", RestoreTable(FLIGHTS, "flights"), "unknown-table"),
    ("shelved", RestoreTable(FLIGHTS, "no name"), "invalid-name"),
    ("shelved, name taken", RestoreTable(FLIGHTS, "flights"), "table-exists"),
    ("shelved, another keyspace", RestoreTable(FLIGHTS, "flights"), "not-restorable"),
    ("shelved, a node gone", RestoreTable(FLIGHTS, "flights"), "not-restorable"),
    ("shelved, a node going", RestoreTable(FLIGHTS, "flights"), "stale-plan"),
    ("ring shelved, moved since", RestoreTable("id-stars", "stars"), "not-restorable"),
    ("small", ForgetTable(FLIGHTS, "air.flights"), "unknown-table"),
    ("small", KeepHistory("id-older", "air.flights", 1.0), "stale-plan"),
    ("small", KeepHistory(FLIGHTS, "air.flights", -1.0), "invalid-event"),
    ("small", KeepHistory(FLIGHTS, "air.flights", 0.0), "nothing-to-do"),
    # Tablets
    ("small", StartTransitions(()), "nothing-to-do"),
    ("small", StartTransitions((move(), move(pending=3))), "transition-in-the-way"),
    ("moving", StartTransitions((move(),)), "transition-in-the-way"),
    ("small", StartTransitions((move(on="id-trains"),)), "unknown-table"),
    ("small", StartTransitions((move(4),)), "unknown-tablet"),
    ("small", StartTransitions((move(-1),)), "unknown-tablet"),
    ("small", StartTransitions((move(leaving=3),)), "not-a-replica"),
    ("small", StartTransitions((move(pending=2),)), "is-a-replica"),
    ("small", StartTransitions((move(pending=9),)), "unknown-volume"),
    ("draining", StartTransitions((move(),)), "wrong-state"),
    ("running", StartTransitions((move(pending=5),)), "wrong-state"),
    ("two datacenters", StartTransitions((move(pending=5),)), "wrong-datacenter"),
    ("two volumes", StartTransitions((move(0, 1, 6, on="id-crews"),)), "replica-on-node"),
    ("two volumes", StartTransitions((move(0, 5, 6, on="id-crews"),)), "wrong-kind"),
    ("small", StartTransitions((move(kind=Kind.INTRANODE_MIGRATION),)), "wrong-kind"),
    ("small", StartTransitions((move(), move(1, 2, 4), move(2, 9, 4))), "not-a-replica"),
    ("moving", AdvanceTransitions(()), "nothing-to-do"),
    ("moving", AdvanceTransitions(advance("write_both_read_old").changes * 2), "transition-in-the-way"),
    ("moving", advance("write_both_read_old", tablet=1), "no-transition"),
    ("moving", advance("streaming", session="s"), "stale-plan"),
    ("moving", advance("use_new", came_from="allow_write_both_read_old"), "wrong-stage"),
    ("streaming", advance("use_new", came_from="streaming"), "wrong-stage"),
    ("streaming", advance("write_both_read_new", session="s"), "wrong-session"),
    ("streaming", advance("cleanup_target", came_from="streaming", session="s"), "wrong-session"),
    ("moving", advance("write_both_read_old", session="s"), "wrong-session"),
    ("ending", FinishTransitions(()), "nothing-to-do"),
    ("ending", FinishTransitions(((FLIGHTS, 0), (FLIGHTS, 0))), "transition-in-the-way"),
    ("ending", FinishTransitions(((FLIGHTS, 1),)), "no-transition"),
    ("streaming", FinishTransitions(((FLIGHTS, 0),)), "wrong-stage"),
    ("resting", StartTransitions((move(),)), "in-maintenance"),
    ("tagged", StartTransitions((move(pending=3),)), "placement-rule"),
    # What operators say of nodes and tables
    ("small", SetMaintenance(9, on=True), "unknown-node"),
    ("left", SetMaintenance(4, on=True), "wrong-state"),
    ("small", SetMaintenance(4, on=False), "nothing-to-do"),
    ("resting", SetMaintenance(4, on=True), "nothing-to-do"),
    ("small", AlterNode(4, weight=0.0), "invalid-weight"),
    ("small", AlterNode(4, weight=float("inf")), "invalid-weight"),
    ("small", AlterNode(4, tags=("a b",)), "invalid-name"),
    ("small", AlterNode(4, weight=1.0, tags=()), "nothing-to-do"),
    ("tagged", AlterNode(1, tags=()), "rule-impossible"),
    ("small", KeepChanges("id-older", "air.flights", "s1", 1.0, 1.0), "stale-plan"),
    ("keeping", KeepChanges(FLIGHTS, "air.flights", "s2", 1.0, 1.0), "stale-plan"),
    ("small", KeepChanges(FLIGHTS, "air.flights", "s1", 2.0, 1.0), "invalid-event"),
    ("small", KeepChanges(FLIGHTS, "air.flights", "s1", -1.0, 1.0), "invalid-event"),
    ("keeping", KeepChanges(FLIGHTS, "air.flights", "s1", 1.0, 2.0), "nothing-to-do"),
    ("keeping", DropChanges("id-older", "air.flights"), "stale-plan"),
    ("small", DropChanges(FLIGHTS, "air.flights"), "nothing-to-do"),
    ("small", AlterTable("id-older", "air.flights", TabletOptions(min_count=2)), "stale-plan"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions()), "nothing-to-do"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(target_bytes=0)), "invalid-size"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(min_count=3)), "invalid-tablets"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(max_count=0)), "invalid-tablets"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(min_count=4, max_count=2)), "invalid-tablets"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(tags=("a b",))), "invalid-name"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(tags=("ssd",))), "rule-impossible"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(apart_from=(FLIGHTS,))), "unknown-table"),
    ("two volumes", AlterTable(FLIGHTS, "air.flights", TabletOptions(apart_from=("id-crews",))), "rule-impossible"),
    ("ring", AlterTable("id-stars", "sky.stars", TabletOptions(min_count=2)), "unsupported-placement"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(), CompactionOptions()), "nothing-to-do"),
    ("small", AlterTable(FLIGHTS, "air.flights", TabletOptions(), CompactionOptions(hours="9-17")), "invalid-event"),
    (
        "small",
        AlterTable(FLIGHTS, "air.flights", TabletOptions(), CompactionOptions(tombstone_grace_seconds=-1.0)),
        "invalid-event",
    ),
    # Splitting and merging
    ("small", DecideResize("id-trains", Resize.SPLIT, 1), "unknown-table"),
    ("small", DecideResize(FLIGHTS, Resize.SPLIT, 0), "stale-plan"),
    ("splitting", DecideResize(FLIGHTS, Resize.NONE, 1), "stale-plan"),
    ("splitting", DecideResize(FLIGHTS, Resize.SPLIT, 2), "nothing-to-do"),
    ("small", DecideResize(FLIGHTS, Resize.NONE, 1), "nothing-to-do"),
    ("splitting", DecideResize(FLIGHTS, Resize.MERGE, 2), "resize-in-the-way"),
    ("merging", DecideResize(FLIGHTS, Resize.SPLIT, 2), "resize-in-the-way"),
    ("as many tablets as there can be", DecideResize(FLIGHTS, Resize.SPLIT, 1), "too-many-tablets"),
    ("merging one", lambda: merge("id-one"), "too-few-tablets"),
    ("small", FinishResize(FLIGHTS, 0), "stale-plan"),
    ("splitting", FinishResize(FLIGHTS, 2), "stale-plan"),
    ("splitting and moving", FinishResize(FLIGHTS, 1), "transition-in-the-way"),
    ("merging", FinishResize(FLIGHTS, 1), "siblings-apart"),
    # The ring
    *feature_event_cases.REJECTED,
    *struct_event_cases.REJECTED,
    *generated_event_cases.REJECTED,
    *generation_event_cases.REJECTED,
    *ring_event_cases.REJECTED,
]

VALID: list[tuple[str, object]] = [
    ("nothing", Initialise(name="x" * 63, cluster_id="c", product_version="1")),
    ("paused", ResumeChanges()),
    ("paused", TakeSnapshot()),
    ("small", TakeSnapshot()),
    ("small", SwitchBalancing(on=False)),
    ("small", RelaxBarriers((RelaxedBarrier("tablet 0 of air.flights to n4/d1", "ALL", "QUORUM", "n1/d1: away"),))),
    ("small", node),
    ("left", lambda: node("left", name="n4", volumes=(volume(uri="/n4/d0"),))),
    ("small", lambda: replacement(volumes=(volume(uri="/n3/d0"),))),
    ("leaving", RequestTopology("r", LEAVE, 1)),
    ("leaving", RequestTopology("r", REMOVE, 4, takes_back=("leave-n4",), declares_lost=True)),
    ("draining", RequestTopology("r", REMOVE, 4, takes_over="leave-n4", declares_lost=True)),
    ("draining", lambda: lost_one("draining", 4, "leave-n4")),
    ("replacing", lambda: lost_one("replacing", 3, "join-n6")),
    ("replacing", RequestTopology("r", REMOVE, 3, takes_back=("join-n6",))),
    ("rebuilding", RequestTopology("r", REMOVE, 5, declares_lost=True)),
    ("running", RequestTopology("r", REMOVE, 5, takes_back=("join-n5",), declares_lost=True)),
    ("lost", lambda: lost_one("lost", 1, "remove-n1")),
    ("lost", CancelRequest("remove-n1")),
    ("leaving", StartRequest("leave-n4")),
    ("leaving", CancelRequest("leave-n4")),
    ("draining", CancelRequest("leave-n4")),
    ("draining", FinishRequest("leave-n4")),
    ("replacing", StartRequest("join-n6")),
    ("replacing", CancelRequest("join-n6")),
    ("running", CancelRequest("join-n5")),
    ("small", CreateKeyspace(keyspace("k", dc1=4, dc9=0))),
    ("small", new_table),
    ("two datacenters", lambda: new_table(replicas=[[1, 2]])),
    ("small", DropTable(FLIGHTS, "air.flights")),
    ("small", ShelveTable(FLIGHTS, "air.flights", 60.0)),
    ("shelved", RestoreTable(FLIGHTS, "flights")),
    ("shelved, name taken", RestoreTable(FLIGHTS, "others")),
    ("ring shelved", RestoreTable("id-stars", "stars")),
    ("shelved", ForgetTable(FLIGHTS, "air.flights")),
    ("small", KeepHistory(FLIGHTS, "air.flights", 60.0)),
    ("small", lambda: altered((Column("c", "int", False, 3, "c", "1"), replace(KEY, name="number")))),
    ("small", lambda: altered((replace(NOTE, comment="said"), KEY))),
    ("moving", lambda: altered((KEY,), scene="moving")),
    ("small", StartTransitions((move(), move(1, 2, 4), move(2, 3, 4)))),
    ("rebuilding", StartTransitions((move(1, 3, 5, Kind.REBUILD),))),
    ("two volumes", StartTransitions((move(0, 5, 6, Kind.INTRANODE_MIGRATION, on="id-crews"),))),
    ("moving", advance("write_both_read_old")),
    ("streaming", advance("write_both_read_new")),
    ("streaming", advance("cleanup_target", came_from="streaming")),
    ("ending", FinishTransitions(((FLIGHTS, 0),))),
    ("resting", StartTransitions((move(pending=3),))),
    ("resting", SetMaintenance(4, on=False)),
    ("tagged", AlterNode(3, tags=("ssd", "ssd"))),
    ("tagged", AlterNode(4, weight=0.5)),
    ("ring", AlterTable(FLIGHTS, "air.flights", TabletOptions(5, 2, 8, (), ()))),
    ("ring", AlterTable("id-stars", "sky.stars", TabletOptions(), CompactionOptions(False, "22:00-06:00", 60.0))),
    ("small", KeepChanges(FLIGHTS, "air.flights", "s1", 1.0, 1.0)),
    ("keeping", KeepChanges(FLIGHTS, "air.flights", "s1", 2.0, 2.0)),
    ("keeping", DropChanges(FLIGHTS, "air.flights")),
    ("moving", DecideResize(FLIGHTS, Resize.SPLIT, 1, "they are too large")),
    ("splitting", DecideResize(FLIGHTS, Resize.NONE, 2)),
    ("splitting", StartTransitions((move(),))),
    ("splitting", FinishResize(FLIGHTS, 1)),
    ("merging one", FinishResize("id-two", 1)),
    *feature_event_cases.VALID,
    *struct_event_cases.VALID,
    *generated_event_cases.VALID,
    *generation_event_cases.VALID,
    *ring_event_cases.VALID,
]


def event_of(asked: object) -> Event:
    return asked if isinstance(asked, Event) else asked()  # type: ignore[operator, no-any-return]


def named(case: tuple) -> str:
    return "-".join(part for part in case if isinstance(part, str))


@pytest.mark.parametrize(("scene", "asked", "code"), REJECTED, ids=map(named, REJECTED))
def test_an_event_that_is_not_valid_is_rejected_with_its_code(scene: str, asked: object, code: str) -> None:
    with pytest.raises(Rejected) as rejected:
        scenes()[scene].check(event_of(asked))
    assert rejected.value.code == code
    assert len(rejected.value.reason) > 10


@pytest.mark.parametrize(("scene", "asked"), VALID, ids=map(named, VALID))
def test_an_event_that_is_valid_passes_and_can_be_applied_and_described(scene: str, asked: object) -> None:
    event = event_of(asked)
    after = applied([event], scenes()[scene])
    assert after.epoch == scenes()[scene].epoch + 1
    assert event.summary()


def test_every_condition_of_every_event_fails_in_some_case() -> None:
    conditions = {
        f"{module.name}:{call.lineno}"
        for module in Path(events_package.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(module.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("require", "Rejected")
    }
    failed = set()
    for scene, asked, _ in REJECTED:
        with pytest.raises(Rejected) as rejected:
            scenes()[scene].check(event_of(asked))
        failed |= {f"{Path(entry.path).name}:{entry.lineno + 1}" for entry in rejected.traceback}
    assert len(conditions) > 60
    assert conditions - failed == set()


# What events do, where a wrong result would not be noticed by the properties


def test_a_node_that_leaves_goes_through_the_states_of_the_seed_and_keeps_its_numbers() -> None:
    states = [scenes()[scene].directory.nodes[4].state for scene in ("small", "leaving", "draining", "left")]
    assert states == [NodeState.NORMAL, NodeState.NORMAL, NodeState.DECOMMISSIONING, NodeState.LEFT]
    again = register(scenes()["left"], "n4")
    assert (again.node_id, again.volumes[0].volume_id) == (5, 5)


def test_a_replaced_node_leaves_at_the_start_and_its_request_ends_when_its_replicas_are_rebuilt() -> None:
    rebuilding = scenes()["rebuilding"]
    assert rebuilding.directory.nodes[3].state is NodeState.LEFT
    assert rebuilding.directory.nodes[3].replaced_by == 5
    assert rebuilding.directory.nodes[5].state is NodeState.NORMAL
    for tablet in (1, 2):
        rebuilding = applied([StartTransitions((move(tablet, 3, 5, Kind.REBUILD),))], rebuilding)
        steps = ["write_both_read_old", "streaming", "write_both_read_new", "use_new", "cleanup", "end_migration"]
        for step in steps:
            with pytest.raises(Rejected, match="replicas-left"):
                rebuilding.check(FinishRequest("join-n6"))
            rebuilding = applied(
                [advance(step, tablet=tablet, session="s" if step == "streaming" else None)], rebuilding
            )
        rebuilding = applied([FinishTransitions(((FLIGHTS, tablet),))], rebuilding)
    done = applied([FinishRequest("join-n6")], rebuilding)
    assert done.requests["join-n6"].state is RequestState.DONE
    assert list(done.tablets.maps[FLIGHTS]) == [(1, 2), (2, 5), (5, 1), (1, 2)]


def test_a_finished_transition_gives_the_new_replicas_in_the_place_of_the_old_ones() -> None:
    after = applied([FinishTransitions(((FLIGHTS, 0),))], scenes()["ending"])
    assert list(after.tablets.maps[FLIGHTS]) == [(4, 2), (2, 3), (3, 1), (1, 2)]
    assert after.tablets.transitions == {}
    assert next(iter(scenes()["small"].tablets.maps[FLIGHTS])) == (1, 2)


def test_a_transition_that_went_back_leaves_the_old_replicas() -> None:
    back = [advance("cleanup_target", came_from="streaming"), advance("revert_migration")]
    after = applied([*back, FinishTransitions(((FLIGHTS, 0),))], scenes()["streaming"])
    assert after.tablets.maps == scenes()["small"].tablets.maps
    assert after.open_sessions() == frozenset()


def test_a_session_is_open_in_its_stage_only() -> None:
    assert scenes()["moving"].open_sessions() == frozenset()
    assert scenes()["streaming"].open_sessions() == {"s1"}
    after = applied([advance("write_both_read_new")], scenes()["streaming"])
    assert after.open_sessions() == frozenset()


def test_a_table_has_the_state_id_of_its_creation_as_version() -> None:
    small = scenes()["small"]
    created = small.schema.tables[FLIGHTS]
    assert (created.version, created.epoch) == (small.state_id, small.epoch)
    assert table("flights", [[1, 2]]).table.version == ""
