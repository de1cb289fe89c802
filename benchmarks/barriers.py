"""A coordinator's look at a barrier of an operation on a big ring: the replicas are fenced, and it is asked whether so
many are that the next step may be made.

The operation is a change of replication, as it changes every range: nothing else has so many different sides. What is
asked of replica tables is answered at once, so what is measured is the look alone, which each round takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import msgspec
import numpy as np
from epochlake.jobs.coordinator import fencing
from epochlake.jobs.coordinator.fencing import Fences, Patience
from epochlake.jobs.coordinator.tracks.operations import Work
from epochlake.jobs.replicas.outcomes import Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.metastore.configuration import CoordinatorSettings
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceOperation,
    CreateKeyspace,
    CreateTable,
    Event,
    FinishRequest,
    Initialise,
    PrepareOperation,
    RegisterNode,
    RequestReplication,
    StartRequest,
)
from epochlake.metastore.metadata.model import Column, Keyspace, PlacementKind, Table, Volume
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.metastore.planning.ring_changes import change_of
from epochlake.placement.ring.codec import encode_operation
from epochlake.placement.ring.operations import plan_join
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import Step
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, replication_of
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN

from benchmarks.harness import STORAGE, Result, at_most, medians

NODES, TOKENS, RACKS = 1000, 256, 5
DATACENTERS = ("dc1", "dc2", "dc3")
BEFORE, AFTER = {"dc1": 2, "dc2": 3, "dc3": 3}, {"dc1": 3, "dc2": 3, "dc3": 3}
TABLE = "sky.stars"
ROUNDS = 5


def looking() -> list[Result]:
    """Where all replicas are fenced, and where one node of a thousand does not answer."""
    metadata = changing()
    everybody, but_one = looks(metadata, away=False), looks(metadata, away=True)
    taken = medians(ROUNDS, {"everybody": everybody, "but one": but_one})
    ring = f"a barrier of a change of replication, {NODES} nodes × {TOKENS} tokens"
    return [
        Result(f"looking at {ring}", taken["everybody"], "s", target=at_most(1)),
        Result("the same, where a node does not answer", taken["but one"], "s", target=at_most(1)),
    ]


def changing(nodes: int = NODES, tokens: int = TOKENS) -> ClusterMetadata:
    """A ring of so many nodes with so many random tokens each, one keyspace of which gets a replica more in dc1: START
    is done.
    """
    metadata = ClusterMetadata.empty()

    def apply(*events: Event) -> None:
        nonlocal metadata
        for event in events:
            metadata = metadata.apply(event, next_state_id(metadata.state_id))

    source = np.random.default_rng(1)
    apply(Initialise("benchmark", next_state_id(""), "0"))
    for number in range(1, nodes + 1):
        name, place = f"join-{number}", DATACENTERS[number % len(DATACENTERS)]
        volume = Volume(number, "disk", f"/volumes/{number}", 1 << 40)
        rack = f"r{number // len(DATACENTERS) % RACKS}"
        apply(RegisterNode(name, number, f"n{number}", next_state_id(""), place, rack, volumes=(volume,)))
        own = np.sort(source.integers(MIN_TOKEN, MAX_TOKEN, tokens)).tolist()
        apply(StartRequest(name, encode_operation(plan_join(ring_state(metadata), name, number, own))))
        apply(FinishRequest(name))
    columns = (Column("id", "bigint", nullable=False), Column("text", "string"))
    apply(
        CreateKeyspace(Keyspace("sky", PlacementKind.RING, NETWORK_TOPOLOGY, BEFORE)),
        CreateTable(Table("stars", "sky", "stars", columns, ("id",)), 0),
        RequestReplication("more", "sky", NETWORK_TOPOLOGY, AFTER),
        StartRequest("more"),
    )
    state = ring_state(metadata)
    [step] = replication_path(state.keyspaces["sky"], replication_of(NETWORK_TOPOLOGY, AFTER))
    plan = plan_replication_change(state, "more/1", "sky", step)
    apply(PrepareOperation("more", encode_operation(plan)), AdvanceOperation("more/1", Step.START, "session"))
    return metadata


def work_of(metadata: ClusterMetadata) -> Work:
    """The operation that `changing` has begun."""
    [(name, operation)] = metadata.rings.operations.items()
    running = metadata.rings.running[name]
    return Work(operation, running, metadata.requests[running.request_id], change_of(metadata, operation))


def looks(metadata: ClusterMetadata, *, away: bool) -> Callable[[], None]:
    """A look as a round of the coordinator takes it. `away`: a volume does not answer, of those that gain no ranges, as
    the next step would wait for these.
    """
    work = work_of(metadata)
    gaining = {volume for _, volume in work.change.gaining}
    absent = min(set(metadata.directory.volumes) - gaining) if away else None
    settings = msgspec.structs.replace(CoordinatorSettings(), barrier_level=fencing.BarrierLevel.EACH_QUORUM)
    fences, patience = Fences(STORAGE), Patience(settings)

    def look() -> None:
        with _answered(metadata, absent):
            barrier = work.barrier(metadata)
            fences.raise_for(metadata, [barrier])
            assert patience.passed(fences, metadata, work.key, barrier, "a benchmark")
            assert bool(fences.unreachable) is away

    return look


@contextmanager
def _answered(metadata: ClusterMetadata, away: int | None) -> Iterator[None]:
    def answer(address: ReplicaAddress, fence: int, **_: object) -> int | Unreachable:
        return Unreachable("it is away") if address.volume_id == away else fence

    with patch.object(fencing, "raise_fence", answer):
        yield


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"looking": looking}
