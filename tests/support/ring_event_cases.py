"""Events of the ring on metadata that they do and do not fit: cases for `test_events.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
from epochlake.metastore.metadata.attachments import decode_replicas, encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceOperation,
    CancelRequest,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    Event,
    FinishRequest,
    PauseRequest,
    PrepareOperation,
    RenameKeyspace,
    RequestReplication,
    RequestTopology,
    ResumeRequest,
    RetreatOperation,
    StartRequest,
)
from epochlake.metastore.metadata.model import Keyspace, PlacementKind, RequestKind
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.placement.ring.codec import encode_operation
from epochlake.placement.ring.replication import plan_replication_change
from epochlake.placement.ring.state import Operation, Step
from epochlake.placement.ring.steps import accepted
from epochlake.placement.ring.strategies import Replication

from tests.support.histories import (
    INITIALISE,
    applied,
    joined,
    joined_ring,
    keyspace,
    register,
    replication_step,
    ring_cluster,
    ring_keyspace,
    ring_nodes,
    ring_plan,
    ring_table,
    start,
    steps,
    tokens_of,
)

LEAVE, REMOVE, MOVE, REBUILD = RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.MOVE, RequestKind.REBUILD
NTS, SIMPLE = "NetworkTopologyStrategy", "SimpleStrategy"
START, MID, FINISH, PREPARE = Step.START, Step.MID, Step.FINISH, Step.PREPARE


def then(metadata: ClusterMetadata, *events: Event | Callable[[ClusterMetadata], Event]) -> ClusterMetadata:
    """The metadata after events, some of them made of what it is by then."""
    for event in events:
        metadata = applied([event if isinstance(event, Event) else event(metadata)], metadata)
    return metadata


def asked(kind: RequestKind, node_id: int, **more: object) -> RequestTopology:
    return RequestTopology(f"{kind}-m{node_id}", kind, node_id, **more)  # type: ignore[arg-type]


def started(request_id: str, tokens: tuple[int, ...] = ()) -> Callable[[ClusterMetadata], Event]:
    return lambda metadata: start(metadata, request_id, tokens)


def fewer() -> RequestReplication:
    return RequestReplication("fewer", "sky", NTS, {"dc1": 1})


def sparse() -> ClusterMetadata:
    """Six nodes with a token each, far from each other, and one replica; m7 and m8 want to join, m7 has begun."""
    metadata = applied([INITIALISE])
    for number in range(1, 7):
        metadata = then(
            metadata,
            register(metadata, f"m{number}", rack="r1", tokens=(number << 59,)),
            started(f"join-m{number}"),
            FinishRequest(f"join-m{number}"),
        )
    metadata = then(metadata, CreateKeyspace(ring_keyspace(dc1=1)))
    for number, token in ((7, 3 << 58), (8, 11 << 58)):
        metadata = then(metadata, register(metadata, f"m{number}", rack="r1", tokens=(token,)))
    return then(metadata, started("join-m7"))


@cache
def scenes() -> dict[str, ClusterMetadata]:
    """`ring`: six nodes m1 to m6 in three racks, keyspace `sky` on the ring, `air` with tablets."""
    ring = ring_cluster()
    joining = then(ring, register(ring, "m7", rack="r1"))
    prepared = then(joining, started("join-m7"))
    widened = then(prepared, *steps("join-m7", START))
    moved = then(widened, *steps("join-m7", MID))
    changing = then(ring, fewer(), StartRequest("fewer"))
    one_step = then(changing, lambda metadata: replication_step(metadata, "fewer"))
    leaving = then(ring, asked(LEAVE, 1))
    bare = ring_nodes()
    three = applied([INITIALISE])
    for number in (1, 2, 3):
        three = joined_ring(three, f"m{number}", rack=f"r{number}")
    single = then(joined_ring(applied([INITIALISE]), "m1"), CreateKeyspace(ring_keyspace(dc1=1)))
    no_table = then(ring, DropTable("id-stars", "sky.stars"))
    far_apart = sparse()
    elsewhere = joined_ring(ring, "m7", rack="r1", datacenter="dc2")
    elsewhere = then(elsewhere, register(elsewhere, "m8", rack="r1", datacenter="dc2", replaces=7))
    return {
        "ring": ring,
        "ring, no table": no_table,
        "ring prepared, no table": then(no_table, register(no_table, "m7", rack="r1"), started("join-m7")),
        "replication asked, no table": then(no_table, fewer()),
        # m7 is in another datacenter and takes the tokens of m8: no range of `sky` changes, none is locked.
        "a replace elsewhere": elsewhere,
        "a replace elsewhere beside a change": then(
            elsewhere, fewer(), StartRequest("fewer"), lambda metadata: replication_step(metadata, "fewer")
        ),
        "a change beside a replace elsewhere": then(elsewhere, started("join-m8"), fewer(), StartRequest("fewer")),
        "two sessions": then(far_apart, *steps("join-m7", START), started("join-m8")),
        "replication beside a join": then(changing, register(changing, "m7", rack="r1"), started("join-m7")),
        "ring pending": joining,
        "ring with tokens asked for": then(ring, register(ring, "m7", rack="r1", tokens=(5, 9))),
        "ring prepared": prepared,
        "ring widened": widened,
        "ring moved": moved,
        "ring finished": then(moved, *steps("join-m7", FINISH)),
        "ring cancelling": then(moved, CancelRequest("join-m7")),
        "ring going back": then(moved, CancelRequest("join-m7"), RetreatOperation("join-m7", MID)),
        "ring taken back": then(widened, CancelRequest("join-m7")),
        "ring leaving": leaving,
        "ring has moved, lost": then(
            ring, asked(MOVE, 1), started("move-m1"), *steps("move-m1"), asked(REMOVE, 1, declares_lost=True)
        ),
        "replication raised, one lost": then(
            ring,
            RequestReplication("more", "sky", NTS, {"dc1": 4}),
            StartRequest("more"),
            asked(REMOVE, 4, declares_lost=True),
        ),
        "ring left": then(leaving, started("leave-m1"), *steps("leave-m1")),
        "ring moving": then(ring, asked(MOVE, 1), started("move-m1")),
        "ring has moved": then(ring, asked(MOVE, 1), started("move-m1"), *steps("move-m1")),
        "ring to move": then(ring, asked(MOVE, 1, tokens=(3, 7))),
        "ring to rebuild": then(ring, asked(REBUILD, 1, source_datacenter="dc1")),
        "ring paused": then(joining, PauseRequest("join-m7", "later")),
        "ring to replace": then(ring, register(ring, "m7", rack="r1", replaces=1)),
        "replication asked": then(ring, fewer()),
        "replication changing": changing,
        "replication paused": then(changing, PauseRequest("fewer")),
        "replication in a step": one_step,
        "replication half-way": then(one_step, *steps("fewer/1")),
        "replication raised": then(ring, RequestReplication("more", "sky", NTS, {"dc1": 5})),
        "three": then(three, CreateKeyspace(ring_keyspace()), ring_table()),
        "three to be raised": then(
            three, CreateKeyspace(ring_keyspace(dc1=2)), RequestReplication("more", "sky", NTS, {"dc1": 3})
        ),
        "single": single,
        "one replica": then(bare, CreateKeyspace(ring_keyspace(dc1=1))),
        "bare": bare,
        "bare leaving": then(bare, asked(LEAVE, 1), StartRequest("leave-m1")),
        "bare pending": then(bare, register(bare, "m7", rack="r1")),
        "bare pending, then a ring": then(
            bare, register(bare, "m7", rack="r1"), CreateKeyspace(ring_keyspace()), ring_table()
        ),
        "bare moving": then(bare, asked(MOVE, 1), started("move-m1")),
        "no tokens": then(joined(bare, "m7"), CreateKeyspace(keyspace())),
        "another has joined": then(
            joining,
            register(joining, "m8", rack="r1"),
            started("join-m8", tuple(token + 1 for token in tokens_of(7))),
            *steps("join-m8"),
        ),
    }


def plan(scene: str, request_id: str, **changes: object) -> StartRequest:
    """The start of a request with a plan that was altered."""
    made = msgspec.structs.replace(ring_plan(scenes()[scene], request_id), **changes)
    return StartRequest(request_id, encode_operation(made))


def under_way(scene: str) -> StartRequest:
    """A plan of which PREPARE is done."""
    made = ring_plan(scenes()[scene], "join-m7")
    prepared = accepted(ring_state(scenes()[scene]), made).operations["join-m7"]
    return StartRequest("join-m7", encode_operation(prepared))


def step_of(scene: str, keyspace_name: str = "sky", **changes: object) -> PrepareOperation:
    made: Operation = plan_replication_change(
        ring_state(scenes()[scene]), "fewer/1", keyspace_name, Replication(NTS, (("dc1", 2),))
    )
    return PrepareOperation("fewer", encode_operation(msgspec.structs.replace(made, **changes)))


def from_start(scene: str, request_id: str) -> StartRequest:
    return start(scenes()[scene], request_id)


def on_ring(name: str = "k", strategy: str = NTS, **replication: int) -> CreateKeyspace:
    return CreateKeyspace(Keyspace(name, PlacementKind.RING, strategy, replication))


def recorded(change: Callable[[np.ndarray], np.ndarray] = np.copy, **asked_for: int) -> CreateKeyspace:
    """A keyspace with the placement that is recorded for it on the ring `bare`, altered."""
    event = on_ring(**asked_for or {"dc1": 3}).completed(scenes()["bare"])
    replicas = change(decode_replicas(event.attachment).copy())
    return msgspec.structs.replace(event, attachment=encode_replicas(replicas))


def with_node(number: int, row: int, place: int) -> Callable[[np.ndarray], np.ndarray]:
    """Another node (-1: none) in one place of a placement."""

    def change(replicas: np.ndarray) -> np.ndarray:
        replicas[row, place] = number if number else replicas[row, place - 1]
        return replicas

    return change


def with_map() -> CreateTable:
    made = ring_table("moons").table
    return CreateTable(made, 1, encode_replicas(np.array([[1, 2, 3]], dtype=np.int32)))


REJECTED: list[tuple[str, object, str]] = [
    # Tokens
    ("ring", lambda: register(scenes()["ring"], "m7", tokens=(5, 5)), "tokens-taken"),
    ("ring", lambda: register(scenes()["ring"], "m7", tokens=tokens_of(1)), "tokens-taken"),
    ("ring", lambda: register(scenes()["ring"], "m7", tokens=(2**63,)), "tokens-taken"),
    ("ring with tokens asked for", asked(MOVE, 1, tokens=(9,)), "tokens-taken"),
    ("ring", asked(MOVE, 1, tokens=tokens_of(2)), "tokens-taken"),
    ("ring", asked(MOVE, 1, tokens=tokens_of(1)), "tokens-unchanged"),
    # Nodes whose storage is lost
    (
        "ring left",
        lambda: msgspec.structs.replace(register(scenes()["ring left"], "m7", rack="r1"), replaces=1),
        "request-in-the-way",
    ),
    ("ring has moved, lost", StartRequest("remove-m1"), "request-in-the-way"),
    (
        "replication raised, one lost",
        lambda: replication_step(scenes()["replication raised, one lost"], "more"),
        "lost",
    ),
    # Asking of nodes
    ("ring", asked(LEAVE, 1, tokens=(5,)), "wrong-option"),
    ("ring", asked(MOVE, 1, source_datacenter="dc1"), "wrong-option"),
    ("ring", asked(REBUILD, 1, force=True), "wrong-option"),
    ("ring", asked(REBUILD, 1, source_datacenter="dc9"), "unknown-datacenter"),
    ("single", asked(REBUILD, 1), "no-source"),
    ("single", asked(LEAVE, 1, force=True), "last-node"),
    ("three", asked(LEAVE, 1), "below-replication"),
    ("three", asked(REMOVE, 1), "below-replication"),
    ("three to be raised", asked(LEAVE, 1), "below-replication"),
    ("ring leaving", asked(LEAVE, 4), "rack-needed"),
    ("one replica", asked(REMOVE, 1), "only-replica"),
    # Placements that are recorded
    ("bare", CreateKeyspace(ring_keyspace(), b"nonsense"), "invalid-event"),
    ("ring", recorded, "invalid-event"),
    ("bare", lambda: CreateKeyspace(keyspace("k"), recorded().attachment), "invalid-event"),
    ("bare", lambda: recorded(lambda replicas: replicas[:-1]), "stale-plan"),
    ("bare", lambda: recorded(with_node(99, row=3, place=0)), "stale-plan"),
    ("bare", lambda: recorded(with_node(0, row=5, place=1)), "invalid-event"),
    ("bare", lambda: recorded(with_node(-1, row=7, place=2)), "invalid-event"),
    ("bare", lambda: CreateKeyspace(ring_keyspace(dc1=2), recorded().attachment), "invalid-event"),
    # Starting
    ("ring pending", StartRequest("join-m7"), "plan-needed"),
    ("bare moving", StartRequest("move-m1"), "wrong-state"),
    ("ring to move", StartRequest("move-m1"), "plan-needed"),
    ("ring paused", lambda: from_start("ring paused", "join-m7"), "request-paused"),
    ("ring pending", StartRequest("join-m7", b"nonsense"), "invalid-event"),
    ("ring pending", lambda: under_way("ring pending"), "invalid-event"),
    ("ring pending", lambda: plan("ring pending", "join-m7", node_id=1), "invalid-event"),
    ("ring pending", lambda: plan("ring pending", "join-m7", operation_id="other"), "invalid-event"),
    ("ring to move", lambda: plan("ring to move", "move-m1", tokens=(3,)), "stale-plan"),
    ("ring to rebuild", lambda: plan("ring to rebuild", "rebuild-m1", datacenter=""), "stale-plan"),
    ("ring pending", lambda: plan("ring pending", "join-m7", tokens=tokens_of(1)), "tokens-taken"),
    ("ring pending", lambda: plan("ring pending", "join-m7", tokens=tokens_of(9)), "stale-plan"),
    ("bare pending, then a ring", lambda: from_start("bare pending", "join-m7"), "stale-plan"),
    ("another has joined", lambda: from_start("ring pending", "join-m7"), "stale-plan"),
    ("replication asked", StartRequest("fewer", b"plan"), "invalid-event"),
    # Going on
    ("ring", AdvanceOperation("join-m7", START, "s"), "unknown-operation"),
    ("ring prepared", AdvanceOperation("join-m7", MID), "stale-plan"),
    ("ring prepared", AdvanceOperation("join-m7", START), "wrong-session"),
    ("ring widened", AdvanceOperation("join-m7", MID, "s"), "wrong-session"),
    ("two sessions", AdvanceOperation("join-m8", START, "session-join-m7"), "wrong-session"),
    ("ring cancelling", AdvanceOperation("join-m7", FINISH), "cancelling"),
    # Going back
    ("ring taken back", RetreatOperation("join-m7", START), "unknown-operation"),
    ("ring moved", RetreatOperation("join-m7", MID), "wrong-state"),
    ("ring cancelling", RetreatOperation("join-m7", FINISH), "stale-plan"),
    ("ring going back", RetreatOperation("join-m7", MID), "stale-plan"),
    ("ring cancelling", RetreatOperation("join-m7", START), "stale-plan"),
    ("ring cancelling", RetreatOperation("join-m7", PREPARE), "stale-plan"),
    # Ending
    ("ring moved", FinishRequest("join-m7"), "operation-in-flight"),
    ("ring cancelling", FinishRequest("join-m7"), "operation-in-flight"),
    ("replication half-way", FinishRequest("fewer"), "replication-not-reached"),
    ("ring finished", CancelRequest("join-m7"), "cannot-cancel"),
    ("ring left", CancelRequest("leave-m1"), "cannot-cancel"),
    ("ring has moved", CancelRequest("move-m1"), "cannot-cancel"),
    ("bare moving", CancelRequest("move-m1"), "cannot-cancel"),
    ("ring cancelling", CancelRequest("join-m7"), "wrong-state"),
    # Pausing
    ("ring cancelling", PauseRequest("join-m7"), "wrong-state"),
    ("ring paused", PauseRequest("join-m7"), "nothing-to-do"),
    ("ring pending", ResumeRequest("join-m7"), "not-paused"),
    ("ring", PauseRequest("join-m7"), "unknown-request"),
    # Changes of replication
    ("ring", RequestReplication("r", "air", NTS, {"dc1": 1}), "unsupported-placement"),
    ("ring", RequestReplication("r", "sea", NTS, {"dc1": 1}), "unknown-keyspace"),
    ("ring", RequestReplication("join-m1", "sky", NTS, {"dc1": 1}), "request-exists"),
    ("replication asked", RequestReplication("r", "sky", NTS, {"dc1": 2}), "request-in-the-way"),
    ("ring", RequestReplication("r", "sky", NTS, {"dc1": 3}), "nothing-to-do"),
    ("ring", RequestReplication("r", "sky", NTS, {"dc1": 7}), "replication-too-high"),
    ("ring", RequestReplication("r", "sky", SIMPLE, {"replication_factor": 7}), "replication-too-high"),
    ("ring", RequestReplication("r", "sky", SIMPLE, {"dc1": 3}), "invalid-replication"),
    ("ring", RequestReplication("r", "sky", "Everywhere", {"dc1": 3}), "invalid-replication"),
    ("ring", RequestReplication("r", "sky", NTS, {"dc1": -1}), "invalid-replication"),
    ("ring", RequestReplication("r", "sky", NTS, {"dc1": 0}), "no-replicas"),
    ("ring prepared", PrepareOperation("join-m7"), "wrong-request"),
    ("replication asked", lambda: step_of("ring"), "wrong-state"),
    ("replication paused", lambda: step_of("ring"), "request-paused"),
    ("replication in a step", lambda: step_of("ring"), "operation-in-the-way"),
    ("replication changing", PrepareOperation("fewer", b"nonsense"), "invalid-event"),
    ("replication changing", lambda: step_of("ring", operation_id="other/1"), "invalid-event"),
    ("replication changing", lambda: step_of("ring", keyspace="air"), "invalid-event"),
    ("replication half-way", lambda: step_of("ring", operation_id="fewer/2"), "stale-plan"),
    ("replication beside a join", lambda: step_of("ring"), "ranges-locked"),
    (
        "a replace elsewhere beside a change",
        lambda: from_start("a replace elsewhere", "join-m8"),
        "stale-plan",
    ),
    ("a change beside a replace elsewhere", lambda: step_of("a replace elsewhere"), "ranges-locked"),
    # The schema
    ("no tokens", on_ring(dc1=3), "no-tokens"),
    ("ring prepared", on_ring(dc1=3), "operation-in-the-way"),
    ("bare leaving", on_ring(dc1=3), "request-in-the-way"),
    ("bare", on_ring(dc1=7), "replication-too-high"),
    ("bare", on_ring(strategy=SIMPLE, replication_factor=7), "replication-too-high"),
    ("bare", on_ring(strategy=SIMPLE, dc1=3), "invalid-replication"),
    ("ring", with_map, "invalid-tablets"),
    ("ring prepared", ring_table("moons"), "operation-in-the-way"),
    ("ring prepared", DropTable("id-stars", "sky.stars"), "operation-in-the-way"),
    ("ring", DropKeyspace("sky"), "keyspace-not-empty"),
    ("ring", RenameKeyspace("sky", "air"), "keyspace-exists"),
    ("replication asked, no table", RenameKeyspace("sky", "heavens"), "request-in-the-way"),
    ("ring prepared, no table", RenameKeyspace("sky", "heavens"), "operation-in-the-way"),
    ("replication asked, no table", DropKeyspace("sky"), "request-in-the-way"),
    ("ring prepared, no table", DropKeyspace("sky"), "operation-in-the-way"),
]

VALID: list[tuple[str, object]] = [
    ("bare", recorded),
    ("ring left", asked(REMOVE, 1, takes_over="leave-m1", declares_lost=True)),
    ("ring moving", asked(REMOVE, 1, takes_back=("move-m1",), declares_lost=True)),
    ("ring has moved", asked(REMOVE, 1, declares_lost=True)),
    ("ring moved", asked(REMOVE, 7, takes_back=("join-m7",), declares_lost=True)),
    ("ring finished", asked(REMOVE, 7, declares_lost=True)),
    ("ring", lambda: register(scenes()["ring"], "m7", tokens=(5, 9))),
    ("ring to replace", CancelRequest("join-m7")),
    ("ring to replace", lambda: from_start("ring to replace", "join-m7")),
    ("a replace elsewhere", lambda: from_start("a replace elsewhere", "join-m8")),
    ("three", asked(LEAVE, 1, force=True)),
    ("one replica", asked(REMOVE, 1, force=True)),
    ("ring", asked(REBUILD, 1, source_datacenter="dc1")),
    ("ring", asked(MOVE, 1)),
    ("bare", asked(MOVE, 1, tokens=(3, 4))),
    ("bare pending", StartRequest("join-m7")),
    ("bare pending", lambda: from_start("bare pending", "join-m7")),
    ("bare leaving", CancelRequest("leave-m1")),
    ("ring pending", CancelRequest("join-m7")),
    ("ring prepared", CancelRequest("join-m7")),
    ("ring widened", CancelRequest("join-m7")),
    ("ring moved", CancelRequest("join-m7")),
    ("ring taken back", FinishRequest("join-m7")),
    ("ring cancelling", RetreatOperation("join-m7", MID)),
    ("ring going back", RetreatOperation("join-m7", START)),
    ("ring going back", RetreatOperation("join-m7", PREPARE)),
    ("ring moved", AdvanceOperation("join-m7", FINISH)),
    ("ring finished", FinishRequest("join-m7")),
    ("ring pending", PauseRequest("join-m7")),
    ("ring paused", ResumeRequest("join-m7")),
    ("ring paused", CancelRequest("join-m7")),
    ("replication asked", CancelRequest("fewer")),
    ("replication changing", CancelRequest("fewer")),
    ("replication changing", lambda: step_of("replication changing")),
    ("replication half-way", CancelRequest("fewer")),
    ("bare", RequestTopology("r", LEAVE, 1)),
    ("bare", on_ring(dc1=3)),
    ("bare", on_ring(strategy=SIMPLE, replication_factor=6)),
    ("ring", on_ring(dc1=3)),
    ("ring", ring_table("moons")),
    ("ring", DropTable("id-stars", "sky.stars")),
    ("ring, no table", DropKeyspace("sky")),
    ("ring", RenameKeyspace("sky", "heavens")),
    ("ring", RequestReplication("r", "sky", NTS, {"dc1": 7}, force=True)),
    ("ring", RequestReplication("r", "sky", SIMPLE, {"replication_factor": 3})),
]
