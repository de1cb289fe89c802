"""Random histories of a cluster: valid events one after the other, from one seed, without a clock or a committer."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Sequence

import numpy as np
from epochlake.metastore.errors import Rejected
from epochlake.metastore.log.entry import Entry, Position, encode_event, position_of, seal
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AcceptLoss,
    AdvanceTransitions,
    CancelRequest,
    CreateKeyspace,
    CreateTable,
    DropTable,
    EnableFeatures,
    Event,
    FinishRequest,
    FinishTransitions,
    Initialise,
    NewTransition,
    PauseChanges,
    RegisterNode,
    RequestTopology,
    ResumeChanges,
    StageChange,
    StartRequest,
    StartTransitions,
    SwitchBalancing,
    TakeSnapshot,
    UnregisterNodes,
)
from epochlake.metastore.metadata.events.nodes import next_node_id, next_volume_id
from epochlake.metastore.metadata.features import UNREGISTERED_NODES
from epochlake.metastore.metadata.model import (
    Column,
    Keyspace,
    NodeState,
    PlacementKind,
    RequestKind,
    RequestState,
    Table,
    Transition,
    Volume,
)
from epochlake.placement.tablets.transitions import BACKWARD, FORWARD, OUTCOME_NEW, OUTCOME_OLD, SESSION_STAGES, Kind

from tests.support.histories import register as ring_register
from tests.support.histories import ring_keyspace, ring_table, start
from tests.support.random_ring import RING_CHANGES, a_ring_node, towards_rest

RACKS = ("r1", "r2", "r3")

Choice = Callable[[ClusterMetadata, random.Random], Event | None]
"""Draws an event that may be valid; None: there is nothing to do it to."""


def as_entry(event: Event, position: Position, *, request_id: str | None = None, incarnation: int = 1) -> Entry:
    """The entry of `event` after `position`. Ids and times follow from the epoch, so that a seed repeats all of it."""
    epoch = position.epoch + 1
    return seal(
        encode_event(event),
        epoch=epoch,
        request_id=request_id or f"request-{epoch}",
        state_id=str(uuid.UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + epoch)),
        previous_state_id=position.state_id,
        author="test",
        reason=f"because {epoch}",
        committed_at=1_700_000_000_000_000 + epoch,
        incarnation=incarnation,
        previous_hash=position.hash,
    )


class History:
    """A log as it grows: its entries, and the metadata after each (`versions[epoch]`, the empty one at 0)."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.entries: list[Entry] = []
        self.versions = [ClusterMetadata.empty()]
        self.position = Position()
        for event in events:
            self.add(event)

    @property
    def metadata(self) -> ClusterMetadata:
        return self.versions[-1]

    def add(self, event: Event) -> None:
        """Check the event, append and apply it. Raises Rejected."""
        self.metadata.check(event)
        self.add_unchecked(event)

    def add_unchecked(self, event: Event) -> None:
        incarnation = event.incarnation if isinstance(event, AcceptLoss) else self.metadata.identity.incarnation
        entry = as_entry(event, self.position, incarnation=incarnation)
        self.entries.append(entry)
        self.versions.append(self.metadata.apply(event, entry.state_id))
        self.position = position_of(entry)

    def position_at(self, epoch: int) -> Position:
        return position_of(self.entries[epoch - 1])

    def log(self) -> InMemoryLog:
        log = InMemoryLog()
        log.shared.entries.extend(self.entries)
        return log


def small_cluster(nodes: int = 4, tablets: int = 4) -> History:
    """Nodes n1, n2, … that have joined, a keyspace `air` of three replicas, a table `air.flights`; 3 epochs a node."""
    history = History([Initialise("test", "cluster-1", "0")])
    for _ in range(nodes):
        history.add(register(history.metadata, random.Random(nodes)))
        for step in (StartRequest, FinishRequest):
            history.add(step(next(history.metadata.open_requests()).request_id))
    history.add(CreateKeyspace(keyspace("air")))
    history.add(create_table(history.metadata, "air", "flights", tablets, random.Random(tablets)))
    return history


def random_ring_history(seed: int, epochs: int, *, snapshots_at: Collection[int] = ()) -> History:
    """Six nodes, a table on the ring and one with tablets, and then operations, several at a time, going on and back.

    Epochs 1 to about `epochs`, at least; nothing is at rest at the end. At `snapshots_at` a snapshot is asked for.
    """
    dice = random.Random(seed)
    history = History(_events_of_ring_cluster(dice))
    changes = [change for name, weight in _RING_WEIGHTS.items() for change in [RING_CHANGES[name]] * weight]
    while history.metadata.epoch < epochs:
        try:
            event = dice.choice(changes)(history.metadata, dice)
            due = history.metadata.epoch + 1 in snapshots_at
            history.add(TakeSnapshot().completed(history.metadata) if due else event)
        except Rejected:
            continue
    return history


def come_to_rest(history: History, seed: int) -> None:
    """Add what ends every operation and every request, steps in a random order; the table with tablets goes first."""
    dice = random.Random(seed)
    tablets = history.metadata.schema.by_name.get("air.flights")
    if tablets is not None:  # nothing here moves tablets away from nodes that leave
        history.add(DropTable(tablets.table_id, tablets.full_name))
    for _ in range(200):
        event = towards_rest(history.metadata, dice)
        if event is None:
            return
        try:
            history.add(event)
        except Rejected:  # a request whose next step cannot be
            history.add(CancelRequest(next(history.metadata.open_requests()).request_id))


_RING_WEIGHTS = {
    "begun": 8,
    "step": 16,
    "ring node": 3,
    "ring request": 3,
    "replication": 2,
    "ring table": 1,
    "pause": 1,
}


def _events_of_ring_cluster(dice: random.Random) -> list[Event]:
    """The events of a cluster of six nodes in three racks, with some tokens and some volumes each."""
    events: list[Event] = [Initialise("test", "cluster-1", "0")]
    history = History(events)
    taken: set[int] = set()
    for number in range(6):
        node = a_ring_node(ClusterMetadata.empty(), dice)
        while len(taken.union(node.tokens)) < len(taken) + len(node.tokens):  # tokens that are drawn twice
            node = a_ring_node(ClusterMetadata.empty(), dice)
        taken.update(node.tokens)
        asked = ring_register(
            history.metadata, f"n{number + 1}", rack=RACKS[number % 3], volumes=len(node.volumes), tokens=node.tokens
        )
        history.add(asked)
        for event in (start(history.metadata, asked.request_id), FinishRequest(asked.request_id)):
            history.add(event)
    for event in (CreateKeyspace(ring_keyspace()), ring_table(), CreateKeyspace(keyspace("air"))):
        history.add(event)
    history.add(create_table(history.metadata, "air", "flights", 4, dice))
    return [entry.decode() for entry in history.entries]


def random_history(
    seed: int,
    epochs: int,
    *,
    snapshots_at: Collection[int] = (),
    choices: Sequence[Choice] | None = None,
) -> History:
    """A small cluster, and then whatever is valid: epochs 1 to about `epochs`, at least. `choices`: None for all.

    At the epochs `snapshots_at`, no two of them next to each other, a snapshot is asked for.
    """
    rng = random.Random(seed)
    history = small_cluster(nodes=4, tablets=8)
    while history.metadata.epoch < epochs:
        event, next_epoch = rng.choice(choices or CHOICES)(history.metadata, rng), history.metadata.epoch + 1
        if next_epoch in snapshots_at:
            event = TakeSnapshot().completed(history.metadata)
        elif next_epoch + 1 in snapshots_at and isinstance(event, TakeSnapshot | PauseChanges):
            continue  # the one that is asked for would be refused
        if event is None:
            continue
        try:
            history.add(event)
        except Rejected:
            continue
    return history


def register(metadata: ClusterMetadata, rng: random.Random) -> Event:
    number, first = next_node_id(metadata), next_volume_id(metadata)
    volumes = tuple(
        Volume(first + i, f"v{i}", f"/volumes/{number}/{i}", rng.randint(1, 9) << 30) for i in range(rng.randint(1, 2))
    )
    return RegisterNode(
        request_id=f"join-{number}",
        node_id=number,
        name=f"n{number}",
        host_id=f"host-{number}",
        datacenter="dc1",
        rack=RACKS[number % len(RACKS)],
        volumes=volumes,
    )


def keyspace(name: str, replicas: int = 3) -> Keyspace:
    return Keyspace(name, PlacementKind.TABLETS, "NetworkTopologyStrategy", {"dc1": replicas})


def create_table(metadata: ClusterMetadata, keyspace: str, name: str, tablets: int, rng: random.Random) -> CreateTable:
    """A table whose replicas are on any distinct nodes."""
    nodes = [node for node in metadata.directory.nodes.values() if node.state is NodeState.NORMAL]
    width = metadata.schema.keyspaces[keyspace].replication["dc1"]
    replicas = [[rng.choice(node.volumes).volume_id for node in rng.sample(nodes, width)] for _ in range(tablets)]
    table = Table(
        table_id=f"{name}-{metadata.epoch + 1}",
        keyspace=keyspace,
        name=name,
        columns=(Column("id", "bigint", nullable=False), Column("text", "string")),
        primary_key=("id",),
    )
    return CreateTable(table, tablets, attachment=encode_replicas(np.array(replicas, dtype=np.int32)))


def _any_table(metadata: ClusterMetadata, rng: random.Random) -> Event:
    tables = list(metadata.schema.tables.values())
    if len(tables) > 2:
        chosen = rng.choice(tables)
        return DropTable(chosen.table_id, chosen.full_name)
    return create_table(metadata, "air", f"t{metadata.epoch}", 2 ** rng.randint(0, 4), rng)


def _any_request(metadata: ClusterMetadata, rng: random.Random) -> Event | None:
    open_requests = list(metadata.open_requests())
    if open_requests and rng.random() < 0.8:
        request = rng.choice(open_requests)
        step = StartRequest if request.state is RequestState.PENDING else FinishRequest
        return CancelRequest(request.request_id, "changed my mind") if rng.random() < 0.2 else step(request.request_id)
    node = rng.choice(list(metadata.directory.nodes.values()))
    kind = rng.choice([RequestKind.LEAVE, RequestKind.REMOVE])
    return RequestTopology(f"{kind}-{metadata.epoch}", kind, node.node_id, "why not")


def _any_move(metadata: ClusterMetadata, rng: random.Random) -> Event | None:
    """One to three tablets of a table begin to move or to be rebuilt, each to any volume."""
    if not metadata.tablets.maps:
        return None
    table_id = rng.choice(list(metadata.tablets.maps))
    tablet_map = metadata.tablets.maps[table_id]
    tablets = rng.sample(range(tablet_map.count), min(tablet_map.count, rng.randint(1, 3)))
    volumes = sorted(metadata.directory.volumes)
    return StartTransitions(
        tuple(
            NewTransition(table_id, tablet, rng.choice(list(Kind)), rng.choice(tablet_map.replicas(tablet)), target)
            for tablet, target in zip(tablets, rng.choices(volumes, k=len(tablets)), strict=True)
        )
    )


def _any_step(metadata: ClusterMetadata, rng: random.Random) -> Event | None:
    """Some of the tablets in transition go on, or back, or end."""
    under_way = list(metadata.tablets.transitions.values())
    if not under_way:
        return None
    ready = [t.key for t in under_way if t.stage in OUTCOME_NEW | OUTCOME_OLD]
    if ready:
        return FinishTransitions(tuple(ready))
    chosen = rng.sample(under_way, rng.randint(1, len(under_way)))
    return AdvanceTransitions(tuple(_change(transition, metadata.epoch, rng) for transition in chosen))


def _change(transition: Transition, epoch: int, rng: random.Random) -> StageChange:
    back = BACKWARD.get(transition.stage) if rng.random() < 0.1 else None
    then = back or FORWARD[transition.stage]
    assert then is not None
    session = f"session-{epoch}-{transition.tablet}" if then in SESSION_STAGES else None
    return StageChange(
        transition.table_id, transition.tablet, transition.stage, then, session, "went wrong" if back else None
    )


def _any_switch(metadata: ClusterMetadata, rng: random.Random) -> Event:
    if not metadata.switches.changes:
        return ResumeChanges()
    if rng.random() < 0.1:
        return AcceptLoss(metadata.identity.incarnation + 1, metadata.epoch + 7, known_by="a test")
    return rng.choice([PauseChanges("a break"), SwitchBalancing(not metadata.switches.balancing), TakeSnapshot()])


def _any_unregistered(metadata: ClusterMetadata, rng: random.Random) -> Event | None:
    """A node that has left is taken out; the feature that this takes is enabled first."""
    left = [key for key, node in metadata.directory.nodes.items() if node.state is NodeState.LEFT]
    if not left:
        return None
    return UnregisterNodes((rng.choice(left),)) if metadata.may_use(UnregisterNodes) else ENABLED


ENABLED = EnableFeatures((UNREGISTERED_NODES,))

WITHOUT_FEATURES: tuple[Choice, ...] = (
    register,
    _any_table,
    *[_any_request] * 4,
    *[_any_move] * 20,
    *[_any_step] * 20,
    *[_any_switch] * 3,
)
"""What there has been from the beginning, also in the oldest format of snapshots."""

CHOICES = (*WITHOUT_FEATURES, _any_unregistered)
