"""Events that belong to features, on metadata that they do and do not fit: cases for `test_events.py`."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.features import Announced, Features
from epochlake.metastore.metadata.components.upgrade import (
    Described,
    DescribedKeyspace,
    DescribedNode,
    DescribedTable,
    Upgrade,
    UpgradeState,
)
from epochlake.metastore.metadata.events import (
    AdvanceUpgrade,
    AlterColumns,
    AlterTabletReplication,
    AlterTimeToLive,
    AnnounceVersion,
    ChangeReplicas,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DescribeCluster,
    DropKeyspace,
    EnableFeatures,
    FinishTabletReplication,
    ForgetRequests,
    PauseChanges,
    PinTablets,
    RenameKeyspace,
    ReplicaChange,
    RequestReplication,
    RequestTopology,
    RestoreTable,
    SetMaintenance,
    ShelveTable,
    StartTransitions,
    UnregisterNodes,
)
from epochlake.metastore.metadata.events.tablets import NewTransition
from epochlake.metastore.metadata.features import ANNOUNCEMENTS, SUPPORTED, TABLET_DATACENTERS
from epochlake.metastore.metadata.model import Column, NodeState, RequestKind, RequestState, TimeToLive, Volume
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.tablet_map import TabletMap
from epochlake.placement.tablets.transitions import Kind

from tests.support import ring_event_cases
from tests.support.histories import (
    INITIALISE,
    applied,
    joined,
    keyspace,
    register,
    ring_cluster,
    ring_keyspace,
    small_cluster,
    table,
)

replace = msgspec.structs.replace

FLIGHTS = "id-flights"

NODE = DescribedNode("n1", "dc1", "r1", {"d1": "/d1"})
OLD = Described((NODE,), (DescribedKeyspace("air", {"dc1": 1}),), (DescribedTable("air.flights", "/old"),))
BUILD, DONE = UpgradeState.BUILD_COORDINATOR_STATE, UpgradeState.DONE


@cache
def scenes() -> dict[str, ClusterMetadata]:
    """Metadata by name: `featured` uses all features, `announced` has an announcement as well."""
    small = small_cluster()
    featured = applied([EnableFeatures(SUPPORTED)], small)
    ring = applied([EnableFeatures(SUPPORTED)], ring_cluster())
    fewer = EnableFeatures(tuple(name for name in SUPPORTED if name != TABLET_DATACENTERS))
    # Two more, so that no placement comes or goes with a keyspace.
    keyspace_gone = applied(
        [
            CreateKeyspace(ring_keyspace("twin")),
            CreateKeyspace(ring_keyspace("moons", dc1=2)),
            ShelveTable("id-stars", "sky.stars"),
            DropKeyspace("sky"),
        ],
        ring,
    )
    timed = applied([table_of_moments()], featured)
    return {
        "featured": featured,
        "featured, a node left": without(featured, 4),
        "announced": applied([AnnounceVersion(1, "0.1.0", SUPPORTED)], featured),
        "featured, merging": applied([DecideResize(FLIGHTS, Resize.MERGE, 1)], featured),
        "featured, moving": applied([StartTransitions((NewTransition(FLIGHTS, 0, Kind.MIGRATION, 1, 4),))], featured),
        "featured, resting": applied([SetMaintenance(4, on=True)], featured),
        "featured, two datacenters": joined(featured, "m1", datacenter="dc2"),
        "featured but datacenters": joined(applied([fewer], small), "m1", datacenter="dc2"),
        "featured, one lost": applied(
            [RequestTopology("remove-n2", RequestKind.REMOVE, 2, declares_lost=True)], featured
        ),
        "featured, apart": in_datacenter(featured, 2, "dc2"),
        "featured, moved": moved_twice(featured),
        "featured, one left is named": without(featured, 1),
        "featured, one left is asked about": asked_about(without(featured, 4), 4),
        "featured, two left are replaced": replaced_in_turn(featured),
        "featured, all that left are replaced": replaced_in_turn(featured, RequestState.DONE),
        "unregistered": applied([UnregisterNodes((4,))], without(featured, 4)),
        "empty": applied([INITIALISE, EnableFeatures(SUPPORTED)]),
        "described": applied([INITIALISE, EnableFeatures(SUPPORTED), DescribeCluster(OLD)]),
        "building": applied([INITIALISE, EnableFeatures(SUPPORTED), DescribeCluster(OLD), AdvanceUpgrade(BUILD)]),
        "building, a node joins": replace(
            featured,
            upgrade=Upgrade(BUILD, OLD, 1, 1),
            requests={"join-n1": replace(featured.requests["join-n1"], state=RequestState.PENDING)},
        ),
        "featured, ring": ring,
        "featured, ring asked": applied([RequestReplication("fewer", "sky", NETWORK_TOPOLOGY, {"dc1": 2})], ring),
        "ring shelved, another of that name": applied([RenameKeyspace("moons", "sky")], keyspace_gone),
        "ring shelved, made anew": applied([CreateKeyspace(ring_keyspace("sky", dc1=2))], keyspace_gone),
        "ring shelved, renamed": applied(
            [ShelveTable("id-stars", "sky.stars"), RenameKeyspace("sky", "heavens")], ring
        ),
        "shelved, another of that name": applied(
            [
                CreateKeyspace(keyspace("spare", dc1=3)),
                ShelveTable(FLIGHTS, "air.flights"),
                DropKeyspace("air"),
                RenameKeyspace("spare", "air"),
            ],
            on_volumes(featured, [[1, 2, 3], [2, 3, -1], [3, 1, -1], [1, 2, -1]]),
        ),
        "featured, ring prepared": applied([EnableFeatures(SUPPORTED)], ring_event_cases.scenes()["ring prepared"]),
        "altering": applied([AlterTabletReplication("air", {"dc1": 3})], featured),
        "back again": applied(
            [AlterTabletReplication("air", {"dc1": 3}), AlterTabletReplication("air", {"dc1": 2})], featured
        ),
        "timed": timed,
        "expiring": applied([expire(timed, TimeToLive(2, 60, 1_000))], timed),
        "pinned": applied([PinTablets(FLIGHTS, 4, (0,), True, "hot")], featured),
        "an older agent": replace(small, features=Features({}, {1: Announced(1, "0.0.9", (), 1)}, 1)),
        "an older agent that left": without(
            replace(small, features=Features({}, {4: Announced(4, "0.0.9", (), 1)}, 1)), 4
        ),
    }


MOMENTS = (Column("id", "bigint", nullable=False), Column("seen", "timestamp"), Column("note", "string"))


def table_of_moments(*ttl: TimeToLive) -> CreateTable:
    """A table with a column by which its rows may expire."""
    event = table("visits", [[1, 2], [2, 3]])
    return replace(event, table=replace(event.table, columns=MOMENTS, ttl=ttl or msgspec.UNSET))


def expire(metadata: ClusterMetadata, ttl: TimeToLive, **other: str) -> AlterTimeToLive:
    visits = metadata.table("air.visits")
    return replace(AlterTimeToLive(visits.table_id, "air.visits", visits.version, ttl), **other)


def columns_of(metadata: ClusterMetadata, *names: str) -> AlterColumns:
    """The event by which the table has only these columns left."""
    visits = metadata.table("air.visits")
    left = tuple(column for column in visits.numbered if column.name in names)
    return AlterColumns(visits.table_id, "air.visits", visits.version, left)


def without(metadata: ClusterMetadata, node_id: int) -> ClusterMetadata:
    """As if a node had left."""
    gone = replace(metadata.directory.nodes[node_id], state=NodeState.LEFT)
    return replace(metadata, directory=metadata.directory.with_nodes(gone, epoch=metadata.epoch))


def asked_about(metadata: ClusterMetadata, node_id: int, state: RequestState = RequestState.PENDING) -> ClusterMetadata:
    """As if the request by which a node joined were open again."""
    request = next(one for one in metadata.requests.values() if one.node_id == node_id)
    return replace(metadata, requests={**metadata.requests, request.request_id: replace(request, state=state)})


def replaced_in_turn(metadata: ClusterMetadata, state: RequestState = RequestState.RUNNING) -> ClusterMetadata:
    """As if n3 had been put in the place of n4, was lost, and n2 came in its place; `state` of the request of n2."""
    nodes = metadata.directory.nodes
    gone = (
        replace(nodes[4], state=NodeState.LEFT, replaced_by=3),
        replace(nodes[3], state=NodeState.LEFT, replaces=4, replaced_by=2),
        replace(nodes[2], replaces=3),
    )
    directory = metadata.directory.with_nodes(*gone, epoch=metadata.epoch)
    elsewhere = on_volumes(replace(metadata, directory=directory), [[1, 2]] * 4)
    request = replace(metadata.requests["join-n2"], kind=RequestKind.REPLACE, state=state)
    return replace(elsewhere, requests={**metadata.requests, "join-n2": request})


def in_datacenter(metadata: ClusterMetadata, node_id: int, datacenter: str) -> ClusterMetadata:
    """As if a node were in another datacenter."""
    moved = replace(metadata.directory.nodes[node_id], datacenter=datacenter)
    return replace(metadata, directory=metadata.directory.with_nodes(moved, epoch=metadata.epoch))


def on_volumes(metadata: ClusterMetadata, replicas: list[list[int]]) -> ClusterMetadata:
    """As if the tablets of `air.flights` were on these volumes."""
    now = TabletMap.from_array(np.array(replicas, dtype=np.int32), epoch=metadata.epoch)
    return replace(metadata, tablets=replace(metadata.tablets, maps={FLIGHTS: now}))


def moved_twice(metadata: ClusterMetadata) -> ClusterMetadata:
    """Node n1 has asked twice: what it asked for first is done."""
    first = metadata.requests["join-n1"]
    later = replace(first, request_id="later-n1", kind=RequestKind.REBUILD, requested_epoch=metadata.epoch)
    cancelled = replace(first, request_id="no-n1", state=RequestState.CANCELLED, requested_epoch=metadata.epoch - 1)
    return replace(metadata, requests={**metadata.requests, "no-n1": cancelled, "later-n1": later})


def more(table_id: str = FLIGHTS, tablet: int = 0, pending: int = 4) -> ReplicaChange:
    """Tablet 0 of `small_cluster` is on volumes 1 and 2."""
    return ReplicaChange(table_id, tablet, pending)


def less(pending: int = 2, leaving: int = 1) -> ReplicaChange:
    return ReplicaChange(FLIGHTS, 0, pending, leaving)


TIMED, EXPIRING, UNREGISTERED = (scenes()[name] for name in ("timed", "expiring", "unregistered"))

REJECTED: list[tuple[str, object, str]] = [
    # Rows that expire
    ("small", AlterTimeToLive(FLIGHTS, "air.flights", "", TimeToLive(1, 60, 1)), "feature-not-enabled"),
    ("small", table_of_moments(TimeToLive(2, 60, 1_000)), "feature-not-enabled"),
    ("featured", table_of_moments(TimeToLive(3, 60, 1_000)), "invalid-ttl"),
    ("timed", expire(TIMED, TimeToLive(2, 60, 1_000), name="air.nothing"), "unknown-table"),
    ("timed", expire(TIMED, TimeToLive(2, 60, 1_000), table_id="id-older"), "stale-plan"),
    ("timed", expire(TIMED, TimeToLive(2, 60, 1_000), version="older"), "stale-plan"),
    ("timed", expire(TIMED, TimeToLive(9, 60, 1_000)), "unknown-column"),
    ("timed", expire(TIMED, TimeToLive(1, 60, 1_000)), "invalid-ttl"),
    ("timed", expire(TIMED, TimeToLive(2, 0, 1_000)), "invalid-ttl"),
    ("timed", expire(TIMED, TimeToLive(2, 1 << 60, 1_000)), "invalid-ttl"),
    ("timed", expire(TIMED, TimeToLive(2, 60, 0)), "invalid-event"),
    ("timed", expire(TIMED, TimeToLive(2, None, 1_000)), "nothing-to-do"),
    ("featured", table_of_moments(TimeToLive(2, 60, 2_000), TimeToLive(2, 90, 1_000)), "invalid-event"),
    ("expiring", expire(EXPIRING, TimeToLive(2, 60, 2_000)), "nothing-to-do"),
    ("expiring", columns_of(EXPIRING, "id", "note"), "ttl-column"),
    ("small", EnableFeatures(()), "invalid-event"),
    ("small", EnableFeatures((ANNOUNCEMENTS, ANNOUNCEMENTS)), "invalid-event"),
    ("featured", EnableFeatures((ANNOUNCEMENTS,)), "nothing-to-do"),
    ("an older agent", EnableFeatures((ANNOUNCEMENTS,)), "feature-lacking"),
    ("small", AnnounceVersion(1, "0.1.0", SUPPORTED), "feature-not-enabled"),
    ("featured", AnnounceVersion(99, "0.1.0", SUPPORTED), "unknown-node"),
    ("featured, a node left", AnnounceVersion(4, "0.1.0", SUPPORTED), "wrong-state"),
    ("featured", AnnounceVersion(1, "0.0.9", ()), "feature-lacking"),
    ("announced", AnnounceVersion(1, "0.1.0", SUPPORTED), "nothing-to-do"),
    # One replica more, or one less
    ("small", ChangeReplicas((more(),)), "feature-not-enabled"),
    ("featured", ChangeReplicas(()), "nothing-to-do"),
    ("featured", ChangeReplicas((more(), less())), "transition-in-the-way"),
    ("featured", ChangeReplicas((more(table_id="nothing"),)), "unknown-table"),
    ("featured", ChangeReplicas((more(tablet=4),)), "unknown-tablet"),
    ("featured, moving", ChangeReplicas((more(),)), "transition-in-the-way"),
    ("featured, merging", ChangeReplicas((more(),)), "resize-in-the-way"),
    ("featured", ChangeReplicas((more(pending=1),)), "is-a-replica"),
    ("featured", ChangeReplicas((more(pending=99),)), "unknown-volume"),
    ("featured, resting", ChangeReplicas((more(),)), "in-maintenance"),
    ("featured, two datacenters", ChangeReplicas((more(pending=5),)), "wrong-datacenter"),
    ("featured, two datacenters", table("more", [[1, 2, 5]]), "invalid-tablets"),
    ("featured", ChangeReplicas((less(leaving=4),)), "not-a-replica"),
    ("featured", ChangeReplicas((less(pending=4),)), "not-a-replica"),
    ("featured", ChangeReplicas((less(pending=1),)), "not-a-replica"),
    ("featured, one lost", ChangeReplicas((less(),)), "lost"),
    ("featured, apart", ChangeReplicas((less(),)), "wrong-datacenter"),
    # Taking over
    ("small", DescribeCluster(OLD), "feature-not-enabled"),
    ("featured", DescribeCluster(OLD), "upgrade-refused"),
    ("empty", DescribeCluster(Described(())), "invalid-event"),
    ("empty", DescribeCluster(Described((NODE, NODE))), "invalid-event"),
    ("empty", DescribeCluster(replace(OLD, keyspaces=())), "invalid-event"),
    ("described", DescribeCluster(OLD), "upgrading"),
    ("described", SetMaintenance(1, on=True), "upgrading"),
    ("empty", AdvanceUpgrade(BUILD), "nothing-to-do"),
    ("described", AdvanceUpgrade(DONE), "wrong-state"),
    ("building", AdvanceUpgrade(BUILD), "wrong-state"),
    ("building", AdvanceUpgrade(DONE), "upgrade-refused"),
    ("building, a node joins", AdvanceUpgrade(DONE), "request-in-the-way"),
    ("building, a node joins", AdvanceUpgrade(DONE, True), "request-in-the-way"),
    # Requests that are done
    ("small", ForgetRequests(("join-n1",)), "feature-not-enabled"),
    ("featured", ForgetRequests(()), "nothing-to-do"),
    ("featured", ForgetRequests(("nothing",)), "unknown-request"),
    ("featured", ForgetRequests(("join-n1",)), "wrong-state"),
    ("featured, moved", ForgetRequests(("join-n1", "join-n1")), "invalid-event"),
    ("featured, moved", ForgetRequests(("no-n1",)), "wrong-state"),
    ("featured, moved", ForgetRequests(("later-n1",)), "wrong-state"),
    # Nodes that are taken out; n4 has no tablet
    ("small", UnregisterNodes((4,)), "feature-not-enabled"),
    ("featured, a node left", UnregisterNodes(()), "nothing-to-do"),
    ("featured, a node left", UnregisterNodes((4, 4)), "invalid-event"),
    ("featured, a node left", UnregisterNodes((4, 99)), "unknown-node"),
    ("featured, a node left", UnregisterNodes((4, 1)), "wrong-state"),
    ("featured, one left is named", UnregisterNodes((1,)), "replicas-left"),
    ("featured, one left is asked about", UnregisterNodes((4,)), "request-in-the-way"),
    ("featured, two left are replaced", UnregisterNodes((3,)), "request-in-the-way"),
    ("featured, two left are replaced", UnregisterNodes((4,)), "request-in-the-way"),
    ("unregistered", UnregisterNodes((4,)), "unknown-node"),
    ("unregistered", AnnounceVersion(4, "0.1.0", SUPPORTED), "unknown-node"),
    ("unregistered", register(UNREGISTERED, "n4"), "host-exists"),
    ("unregistered", replace(register(UNREGISTERED, "n5"), node_id=4), "stale-plan"),
    ("unregistered", replace(register(UNREGISTERED, "n5"), volumes=(Volume(4, "d1", "/n5", 1),)), "stale-plan"),
    # The replication of a keyspace on tablets; it has 2 replicas and 4 nodes
    ("small", AlterTabletReplication("air", {"dc1": 3}), "feature-not-enabled"),
    ("featured", AlterTabletReplication("nothing", {"dc1": 3}), "unknown-keyspace"),
    ("featured", AlterTabletReplication("air", {"dc1": 2}), "nothing-to-do"),
    ("featured", AlterTabletReplication("air", {"dc1": 5}), "replication-too-high"),
    ("featured, resting", AlterTabletReplication("air", {"dc1": 4}), "replication-too-high"),
    ("featured, one lost", AlterTabletReplication("air", {"dc1": 4}), "replication-too-high"),
    ("featured", AlterTabletReplication("air", {"dc1": 2, "dc9": 1}), "wrong-datacenter"),
    ("featured, two datacenters", AlterTabletReplication("air", {"dc1": 2, "dc2": 2}), "replication-too-high"),
    ("featured but datacenters", AlterTabletReplication("air", {"dc1": 2, "dc2": 1}), "feature-not-enabled"),
    ("featured but datacenters", AlterTabletReplication("air", {"dc2": 1}), "feature-not-enabled"),
    ("featured", AlterTabletReplication("air", {"dc1": 0}), "no-replicas"),
    ("featured, ring", AlterTabletReplication("sky", {"dc1": 2}), "unsupported-placement"),
    ("featured", CreateKeyspace(replace(keyspace("new"), before={"dc1": 1})), "invalid-event"),
    ("featured", FinishTabletReplication("air"), "nothing-to-do"),
    ("altering", FinishTabletReplication("air"), "stale-plan"),
    ("altering", AlterTabletReplication("air", {"dc1": 3}), "nothing-to-do"),
    # Names of keyspaces
    ("small", RenameKeyspace("air", "new"), "feature-not-enabled"),
    ("featured", RenameKeyspace("nothing", "new"), "unknown-keyspace"),
    ("featured", RenameKeyspace("air", "1st"), "invalid-name"),
    ("featured", RenameKeyspace("air", "air"), "nothing-to-do"),
    ("featured, ring", RenameKeyspace("sky", "air"), "keyspace-exists"),
    ("featured, ring asked", RenameKeyspace("sky", "heavens"), "request-in-the-way"),
    ("featured, ring prepared", RenameKeyspace("sky", "heavens"), "operation-in-the-way"),
    ("building", RenameKeyspace("air", "new"), "upgrading"),
    ("featured", CreateKeyspace(replace(keyspace("new"), former=("old",))), "invalid-event"),
    (
        "featured",
        replace(table("t", [[1, 2]]), table=replace(table("t", [[1, 2]]).table, stored_in="../elsewhere")),
        "invalid-event",
    ),
    ("ring shelved, another of that name", RestoreTable("id-stars", "stars"), "not-restorable"),
    ("ring shelved, made anew", RestoreTable("id-stars", "stars"), "not-restorable"),
    ("shelved, another of that name", RestoreTable(FLIGHTS, "flights"), "invalid-tablets"),
    ("featured", CreateKeyspace(replace(keyspace("new"), named=3)), "invalid-event"),
    # Pins
    ("small", PinTablets(FLIGHTS, 4, (0,), True), "feature-not-enabled"),
    ("featured", PinTablets("nothing", 4, (0,), True), "unknown-table"),
    ("featured", PinTablets(FLIGHTS, 4, (), True), "nothing-to-do"),
    ("featured", PinTablets(FLIGHTS, 8, (0,), True), "stale-plan"),
    ("featured", PinTablets(FLIGHTS, 4, (0, 4), True), "unknown-tablet"),
    ("pinned", PinTablets(FLIGHTS, 4, (0,), True), "nothing-to-do"),
    ("featured", PinTablets(FLIGHTS, 4, (0,), False), "nothing-to-do"),
]

VALID: list[tuple[str, object]] = [
    ("featured", table_of_moments(TimeToLive(2, 60, 1_000))),
    ("timed", expire(TIMED, TimeToLive(2, 60, 1_000))),
    ("timed", columns_of(TIMED, "id", "note")),
    ("expiring", expire(EXPIRING, TimeToLive(2, 90, 2_000))),
    ("expiring", expire(EXPIRING, TimeToLive(2, None, 2_000))),
    ("expiring", columns_of(EXPIRING, "id", "seen")),
    ("paused", EnableFeatures((ANNOUNCEMENTS,))),
    ("an older agent that left", EnableFeatures((ANNOUNCEMENTS,))),
    ("featured", AnnounceVersion(4, "0.1.0", SUPPORTED)),
    ("announced", AnnounceVersion(1, "0.1.1", (*SUPPORTED, "of-later"))),
    ("featured", ChangeReplicas((more(), replace(less(), tablet=1, pending=3, leaving=2)))),
    ("featured", ChangeReplicas((less(),))),
    ("pinned", ChangeReplicas((less(),))),
    ("altering", AlterTabletReplication("air", {"dc1": 2})),
    ("back again", FinishTabletReplication("air")),
    ("featured", RenameKeyspace("air", "new")),
    ("featured, moving", RenameKeyspace("air", "new")),
    ("featured, ring", RenameKeyspace("sky", "heavens")),
    ("ring shelved, renamed", RestoreTable("id-stars", "stars")),
    ("featured, ring asked", RenameKeyspace("air", "new")),
    ("altering", RenameKeyspace("air", "new")),
    ("back again", RenameKeyspace("air", "new")),
    ("pinned", RenameKeyspace("air", "new")),
    ("pinned", PinTablets(FLIGHTS, 4, (0, 1), True)),
    ("empty", DescribeCluster(OLD)),
    ("described", AdvanceUpgrade(BUILD)),
    ("described", AdvanceUpgrade(DONE, True, "no")),
    ("described", PauseChanges("night")),
    ("building", AdvanceUpgrade(DONE, True, "no")),
    ("featured, moved", ForgetRequests(("join-n1",))),
    ("featured, a node left", UnregisterNodes((4,))),
    ("featured, all that left are replaced", UnregisterNodes((3,))),
    ("featured, all that left are replaced", UnregisterNodes((3, 4))),
    ("unregistered", replace(register(UNREGISTERED, "n4"), host_id="host-new")),
    ("unregistered", register(UNREGISTERED, "n5")),
    ("pinned", PinTablets(FLIGHTS, 4, (0, 1), False)),
]
