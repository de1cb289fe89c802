"""Histories to measure on: a long one of small events, and a cluster as large as section 6 of the design asks for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, Position, encode_event, seal
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    CreateKeyspace,
    CreateTable,
    Event,
    FinishRequest,
    FinishTransitions,
    Initialise,
    NewTransition,
    RegisterNode,
    StageChange,
    StartRequest,
    StartTransitions,
)
from epochlake.metastore.metadata.model import Column, Keyspace, PlacementKind, Table, TabletKey, Volume
from epochlake.placement.tablets.transitions import FORWARD, SESSION_STAGES, Kind, Stage

from benchmarks.harness import STORAGE

REPLICAS = 3
RACKS = 5


def large_cluster(nodes: int = 1_000, tables: int = 16, tablets: int = 2**16) -> list[Event]:
    """Events that make `nodes` normal nodes with a volume each and `tables` tables of `tablets` tablets at RF 3."""
    events: list[Event] = [Initialise("benchmark", next_state_id(""), "0")]
    for number in range(1, nodes + 1):
        request_id = f"join-{number}"
        volume = Volume(number, "disk", f"/volumes/{number}", 1 << 40)
        events += [
            RegisterNode(
                request_id, number, f"n{number}", next_state_id(""), "dc1", f"r{number % RACKS}", volumes=(volume,)
            ),
            StartRequest(request_id),
            FinishRequest(request_id),
        ]
    events.append(CreateKeyspace(Keyspace("air", PlacementKind.TABLETS, "NetworkTopologyStrategy", {"dc1": REPLICAS})))
    random = np.random.default_rng(1)
    for number in range(tables):
        # Each replica from a third of its own, so that no tablet meets a node twice.
        third = nodes // REPLICAS
        within = random.integers(third, size=(tablets, REPLICAS))
        replicas = 1 + (random.integers(nodes, size=(tablets, 1)) + np.arange(REPLICAS) * third + within) % nodes
        columns = (Column("id", "bigint", nullable=False), Column("text", "string"))
        table = Table(f"table-{number}", "air", f"t{number}", columns, ("id",))
        events.append(CreateTable(table, tablets, attachment=encode_replicas(replicas.astype(np.int32))))
    return events


def migration(metadata: ClusterMetadata, tablets: list[TabletKey]) -> Iterator[Event]:
    """The events of moving the first replica of each of `tablets` to the next node that has none, stage by stage."""
    yield StartTransitions(
        tuple(
            NewTransition(table_id, tablet, Kind.MIGRATION, replicas[0], _elsewhere(metadata, replicas), "a benchmark")
            for table_id, tablet in tablets
            for replicas in [metadata.tablets.maps[table_id].replicas(tablet)]
        )
    )
    stage = Stage.ALLOW_WRITE_BOTH_READ_OLD
    while (then := FORWARD[stage]) is not None:
        session = next_state_id("") if then in SESSION_STAGES else None
        yield AdvanceTransitions(tuple(StageChange(*key, stage, then, session) for key in tablets))
        stage = then
    yield FinishTransitions(tuple(tablets))


def _elsewhere(metadata: ClusterMetadata, replicas: tuple[int, ...]) -> int:
    count = len(metadata.directory.volumes)
    return next(
        volume
        for volume in itertools.chain(range(replicas[0] + 1, count + 1), range(1, count + 1))
        if volume not in replicas
    )


class Recorder:
    """Makes events into sealed entries of a log at `uri`, and keeps the metadata that they make."""

    def __init__(self, uri: str, *, batch: int = 1_000) -> None:
        create_log_table(STORAGE, uri)
        self.log = DeltaLog(STORAGE, uri)
        self.metadata = ClusterMetadata.empty()
        self.position = Position()
        self._batch = batch
        self._waiting: list[Entry] = []

    def record(self, event: Event) -> None:
        state_id = next_state_id(self.position.state_id)
        metadata = self.metadata.apply(event, state_id)
        entry = seal(
            encode_event(event),
            epoch=metadata.epoch,
            request_id=state_id,
            state_id=state_id,
            previous_state_id=self.position.state_id,
            author="benchmark",
            reason="",
            committed_at=time.time_ns() // 1_000,
            incarnation=metadata.identity.incarnation,
            previous_hash=self.position.hash,
        )
        self.metadata, self.position = metadata, Position(entry.epoch, entry.state_id, entry.hash)
        self._waiting.append(entry)
        if len(self._waiting) == self._batch:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self.log.read(self._waiting[0].epoch - 1)
            self.log.append(self._waiting)
            self._waiting = []


def record_small_events(uri: str, epochs: int) -> Recorder:
    """A log of `epochs` epochs: twenty nodes, a table of 1,024 tablets, and then one tablet after the other moves."""
    recorder = Recorder(uri)
    for event in large_cluster(nodes=20, tables=1, tablets=1_024):
        recorder.record(event)
    for tablet in itertools.cycle(range(1_024)):
        for event in migration(recorder.metadata, [("table-0", tablet)]):
            if recorder.metadata.epoch == epochs:
                recorder.flush()
                return recorder
            recorder.record(event)
    raise AssertionError("the cycle of tablets does not end")
