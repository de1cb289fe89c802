"""Real clusters for tests that start no ZooKeeper: a Delta log and volumes in a directory, the line of one process."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, count
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
import pytest
from epochlake.jobs import administration, few_rows
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.gate.planning import Planning
from epochlake.jobs.replicas.files import DataFile, directory_of
from epochlake.jobs.replicas.intervals import meet, overlap, select
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore import metastore
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.configuration import ClusterSettings, Configuration, LogSettings
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    CreateTable,
    FinishRequest,
    NewTransition,
    RelaxBarriers,
    RelaxedBarrier,
    StartRequest,
    StartTransitions,
)
from epochlake.metastore.metadata.model import Column, NodeState, Table, Transition, VolumeId
from epochlake.metastore.metadata.placements import index_of
from epochlake.placement.consistency import ConsistencyLevel, majority
from epochlake.placement.tablets.transitions import Kind, Stage
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, TOKEN, Interval, tablet_label, tokens_of_label

from tests.support.files import stored_rows
from tests.support.replicas import store
from tests.support.storages import STORAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE_SECONDS = 300.0
"""So long at least what is not idle yet may wait for its time."""

NODES = (("n1", "r1"), ("n2", "r2"), ("n3", "r3"))
COLUMNS = [("id", "bigint", False), ("note", "string", True)]


def without_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on clusters of this process queue up in it, and ZooKeeper cannot be asked for anything."""
    queue = LocalQueue()

    def away(cluster: Cluster, *_: float) -> Coordination:
        raise CoordinationUnavailable("ZooKeeper is away: this test has none")

    monkeypatch.setattr(metastore, "ZooKeeperQueue", lambda connect, require_root: queue)
    for opened in (metastore.Metastore, Cluster):
        monkeypatch.setattr(opened, "coordination", away)


def spark_stages_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a job of Spark stages the rows of every DataFrame, however few they are."""
    monkeypatch.setattr(few_rows, "MOST_ROWS", -1)
    monkeypatch.setattr(few_rows, "MOST_BYTES", -1)


def reads_trust_fences_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on pipelines do not ask the log for news before they read, as one that was asked just before a step.

    Fences have to be enough for them, except where too little is left of what can be fenced.
    """
    monkeypatch.setattr(Planning, "catch_up_before", lambda planning, table: None)


def begin(root: Path, name: str = "", configuration: Configuration | None = None) -> Cluster:
    """A new, empty cluster below `root`, open. `configuration` says the rest; without one its log is not compacted."""
    configuration = msgspec.structs.replace(
        configuration or Configuration(log=LogSettings(compact_every=10_000)),
        root=str(root / "root"),
        cluster=ClusterSettings(name),
    )
    metastore.init_cluster(configuration)
    return Cluster(configuration)


def join(
    cluster: Cluster,
    directory: Path,
    name: str,
    rack: str,
    capacity: int | None = 1 << 30,
    datacenter: str = "dc1",
) -> None:
    """A node that has joined, with one volume in `directory`; what a coordinator would do is committed here."""
    volumes = [("d1", str(directory / name), capacity)]
    request = administration.add_node(cluster, name, datacenter, rack, volumes).request_id
    finish(cluster, request)


def finish(cluster: Cluster, request_id: str) -> None:
    """Commit the start and the end of a topology request."""
    cluster.commit(StartRequest(request_id))
    cluster.commit(FinishRequest(request_id))


@contextmanager
def appended_at_once(cluster: Cluster) -> Iterator[None]:
    """What is committed meanwhile is appended to the log in one piece at the end, which is quicker.

    For what comes before a test, unless that looks at single commits. Other handles see nothing of it until then.
    """
    log, kept = cluster.follower.log, InMemoryLog()
    kept.shared.entries += log.read(0)
    there = len(kept.read(0))
    cluster.follower.log = kept
    yield
    cluster.follower.log = log
    log.append(kept.shared.entries[there:])


def grow(root: Path, name: str = "") -> Cluster:
    """A cluster of three normal nodes in three racks, with keyspace `air` at three replicas."""
    cluster = begin(root, name)
    _grow(cluster, root)
    return cluster


def grow_at_once(root: Path) -> Cluster:
    """`grow`, with two versions of the log instead of one for each epoch: quicker, for tests that look at none."""
    cluster = begin(root)
    with appended_at_once(cluster):
        _grow(cluster, root)
    return cluster


def _grow(cluster: Cluster, root: Path) -> None:
    for node, rack in NODES:
        join(cluster, root / "volumes", node, rack)
    administration.create_keyspace(cluster, "air", {"dc1": 3})


# --- small clusters whose ranges move, step by step, under pipelines that were opened before ----------------------


class BegunPipeline(Pipeline):
    """A pipeline that a test may begin by itself, or in a `with`."""

    def __enter__(self) -> Self:
        return self if self.gate.is_announced else super().__enter__()


@dataclass
class SmallTable:
    """One table on nodes with a volume each, and a coordinator that is told when to do a round.

    Rows are written and read at given tokens, as `Pipeline` does it, without Spark.
    """

    cluster: Cluster
    table: Table
    directory: Path

    @cached_property
    def coordinator(self) -> Coordinator:
        return Coordinator(self.cluster)

    @property
    def metadata(self) -> ClusterMetadata:
        return self.cluster.catch_up()

    def volume(self, node: str) -> VolumeId:
        return self.metadata.node(node).volumes[0].volume_id

    def volumes(self, nodes: str) -> tuple[VolumeId, ...]:
        return tuple(self.volume(node) for node in nodes)

    def address(self, node: str) -> ReplicaAddress:
        """Where a node's replica table is; to look at also when the node is declared lost."""
        return msgspec.structs.replace(
            address_of(self.cluster.storage, self.metadata, self.table, self.volume(node)), lost=""
        )

    def files_within(self, node: str, low: int = MIN_TOKEN, high: int = MAX_TOKEN) -> list[DataFile]:
        """Live files with rows between two tokens; of a node without the replica table, none."""
        address = self.address(node)
        if not Path(address.uri).exists():
            return []
        return [file for file in open_snapshot(address).within(low, high) if meet(file.extent, (low, high))]

    def rows_on(self, node: str, low: int = MIN_TOKEN, high: int = MAX_TOKEN) -> list[int]:
        """Ids of the rows that a node has between two tokens, as often as it has them, ascending."""
        return sorted(row for _, row in self.tokens_on(node, low, high))

    def tokens_on(self, node: str, low: int = MIN_TOKEN, high: int = MAX_TOKEN) -> list[tuple[int, int]]:
        """Token and id of each row that a node has between two tokens, as often as it has it."""
        directory = self.address(node).uri
        return [
            row
            for part in select(self.files_within(node, low, high), low, high)
            for row in tokens_of(Path(directory, part.file.path), [(part.low, part.high)])
        ]

    def lose(self, node: str) -> None:
        """The node's storage is unreachable, as a disk that is not mounted, until `bring_back`."""
        os.rename(self.directory / node / MARKER_FILE, self.directory / node / "away")

    def bring_back(self, node: str) -> None:
        os.rename(self.directory / node / "away", self.directory / node / MARKER_FILE)

    @contextmanager
    def without(self, nodes: Iterable[str]) -> Iterator[None]:
        lost = list(nodes)
        for node in lost:
            self.lose(node)
        try:
            yield
        finally:
            for node in lost:
                self.bring_back(node)

    def round(self) -> bool:
        return self.coordinator._round_safely()

    def settle(self, rounds: int = 200) -> None:
        """Let the coordinator do rounds until nothing is left to do. Some of it waits for its time."""
        deadline = time.monotonic() + SETTLE_SECONDS
        for number in count(1):
            if not self.round():
                if self.coordinator._is_idle(self.metadata):
                    return
                time.sleep(0.01)
            if number >= rounds and time.monotonic() > deadline:
                break
        busy = [type(track).__name__ for track in self.coordinator.tracks if not track.idle(self.metadata)]
        raise AssertionError(f"never idle: {busy}, {self.coordinator._blocked}")

    def pipeline(self, name: str = "test", spark: SparkSession | None = None, dc: str | None = None) -> Pipeline:
        """A pipeline that plans at the epoch of now, until it learns of a newer one; begun if it has a session."""
        pipeline = BegunPipeline(self.cluster, name, spark, dc)  # type: ignore[arg-type]
        return pipeline if spark is None else pipeline.__enter__()

    def staged(self, pipeline: Pipeline, rows: Mapping[int, int], skip: Collection[str] = ()) -> list[StagedFile]:
        """Rows (id -> token) staged as a pipeline plans now: a file for each range, not stored on nodes in `skip`."""
        metadata = pipeline.gate.planning.metadata
        placements = metadata.placements(self.table.table_id)
        tokens = sorted((token, row) for row, token in rows.items())
        ranges = index_of(placements.lows, np.array([token for token, _ in tokens], dtype=np.int64)).tolist()
        at = pipeline.gate.clock.next([])
        return [
            self._stage(
                metadata, index, [one for one, where in zip(tokens, ranges, strict=True) if where == index], at, skip
            )
            for index in sorted(set(ranges))
        ]

    def _stage(
        self, metadata: ClusterMetadata, index: int, rows: Sequence[tuple[int, int]], at: int, skip: Collection[str]
    ) -> StagedFile:
        placements = metadata.placements(self.table.table_id)
        tokens, ids = zip(*rows, strict=True)
        file = stored_by_hand(self.directory / "staging", placements.label(index), ids, at, tokens)
        stored = set()
        for volume in placements.placement(index).writes:
            address = address_of(self.cluster.storage, metadata, self.table, volume)
            if metadata.directory.node_of_volume[volume].name in skip:
                continue
            if Path(address.volume_uri, MARKER_FILE).exists() and Path(address.uri).exists():
                copy = Path(address.uri) / file.path
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(self.directory / "staging" / file.path, copy)
                stored.add(volume)
        return StagedFile(file, frozenset(stored), {})

    def land(self, pipeline: Pipeline, staged: Sequence[StagedFile], level: str = "QUORUM") -> None:
        """The second phase of a write. Raises ConsistencyNotReached."""
        pipeline.gate.writing.land(self.table, staged, ConsistencyLevel.parse(level))

    def write_rows(self, pipeline: Pipeline, rows: Mapping[int, int], level: str = "QUORUM") -> set[int]:
        """Write rows (id -> token), return their ids. Raises ConsistencyNotReached."""
        self.land(pipeline, self.staged(pipeline, rows), level)
        return set(rows)

    def read_rows(self, pipeline: Pipeline, level: str = "QUORUM") -> list[int]:
        """Ids of the rows that `Pipeline.read` shows of an append-only table, ascending; twice what it shows twice.

        Raises ConsistencyNotReached.
        """
        append_only = msgspec.structs.replace(self.table, append_only=True)
        plan = pipeline.gate.planned_read(append_only, ConsistencyLevel.parse(level))
        return sorted(
            row
            for scan in (*plan.plain, *plan.filtered)
            for path in scan.paths
            for row in rows_of(Path(path.removeprefix("file://")), scan.intervals)
        )


@dataclass
class SmallCluster(SmallTable):
    """A small table with few tablets."""

    def tokens_of(self, tablet: int) -> tuple[int, int]:
        return tokens_of_label(tablet_label(tablet, self.metadata.tablets.maps[self.table.table_id].count))

    def files_on(self, node: str, tablet: int = 0) -> set[str]:
        """Ids of the live files of a tablet; of a node without the replica table, none."""
        return {file.file_id for file in self.files_within(node, *self.tokens_of(tablet))}

    def transition(self, tablet: int = 0) -> Transition | None:
        return self.metadata.tablets.transitions.get((self.table.table_id, tablet))

    def stage(self, tablet: int = 0) -> Stage | None:
        found = self.transition(tablet)
        return None if found is None else found.stage

    def start(self, leaving: str, pending: str, kind: Kind = Kind.MIGRATION, tablet: int = 0) -> None:
        new = NewTransition(self.table.table_id, tablet, kind, self.volume(leaving), self.volume(pending), "test")
        self.cluster.commit(StartTransitions((new,)))

    def until(self, stage: Stage | None, tablet: int = 0, rounds: int = 30) -> None:
        """Let the coordinator do rounds until a tablet is in a stage; None: until its transition has ended."""
        for _ in range(rounds):
            if self.stage(tablet) is stage:
                return
            self.round()
        raise AssertionError(f"stays in {self.stage(tablet)}: {self.coordinator._blocked}")

    def write(
        self,
        pipeline: Pipeline,
        level: str = "QUORUM",
        *,
        tablet: int = 0,
        ids: Sequence[int] = (1,),
        skip: str = "",
    ) -> str:
        """What `Pipeline.write` does without Spark: one file of a tablet, staged where it can be, then landed.

        Not staged on the nodes in `skip`. Returns its id. Raises ConsistencyNotReached.
        """
        first, _ = self._window(pipeline, tablet)
        [staged] = self.staged(pipeline, {row: first + n for n, row in enumerate(ids)}, skip)
        self.land(pipeline, [staged], level)
        return staged.file.file_id

    def _window(self, pipeline: Pipeline, tablet: int) -> Interval:
        """The tokens of a tablet, by the metadata that a pipeline plans at."""
        count = pipeline.gate.planning.metadata.tablets.maps[self.table.table_id].count
        return tokens_of_label(tablet_label(tablet, count))

    def read(self, pipeline: Pipeline, level: str = "QUORUM", tablet: int = 0) -> set[str]:
        """What `Pipeline.read` does without Spark: the ids of the files that it would read of a tablet."""
        _, asked = pipeline.gate.planning.open_for_read(self.table, ConsistencyLevel.parse(level))
        window = self._window(pipeline, tablet)
        return {
            file.file_id
            for low, high, snapshots in asked
            for snapshot in snapshots
            for file in snapshot.within(*overlap(window, (low, high)))
            if meet(window, (low, high))
        }


def rows_of(path: Path, intervals: Collection[Interval]) -> list[int]:
    """Ids of the rows of a file with tokens in any of the intervals; of all rows when there is none."""
    return [row for _, row in tokens_of(path, intervals)]


def tokens_of(path: Path, intervals: Collection[Interval]) -> list[tuple[int, int]]:
    """Token and id of the rows of a file with tokens in any of the intervals; of all rows when there is none."""
    rows = stored_rows(path)
    inside = intervals or [(MIN_TOKEN, MAX_TOKEN)]
    found = zip(rows[TOKEN].to_pylist(), rows["id"].to_pylist(), strict=True)
    return [(token, row) for token, row in found if any(low <= token <= high for low, high in inside)]


def stored_by_hand(
    directory: Path, label: str, ids: Sequence[int], at: int, tokens: Sequence[int] | None = None
) -> DataFile:
    """A real data file of a tablet or range below a directory, as staging would have made it."""
    (directory / directory_of(label)).mkdir(parents=True, exist_ok=True)
    address = ReplicaAddress(STORAGE, "", 0, str(directory.parent), ".", directory.name)
    return store(address, label, ids=ids, at=at, tokens=tokens)


def placed(
    root: Path,
    nodes: Mapping[str, tuple[str, str]],
    replicas: str | Mapping[int, str],
    *,
    replication: Mapping[str, int] | None = None,
    append_only: bool = False,
    columns: Sequence[tuple[str, str, bool]] = COLUMNS,
    primary_key: Sequence[str] = (),
    configuration: Configuration | None = None,
) -> SmallCluster:
    """A cluster of `nodes` (name -> datacenter, rack) whose table `air.flights` is exactly on `replicas`.

    `replicas` are names of nodes of one letter each: `"ABC"` for one tablet, or tablet -> names.
    """
    cluster = begin(root, configuration=configuration)
    directory = root / "volumes"
    placed = {0: replicas} if isinstance(replicas, str) else dict(replicas)
    chosen = [name for name in nodes if name in placed[0]]
    if replication is None:
        replication = Counter(nodes[name][0] for name in chosen)
    with appended_at_once(cluster):
        for name, (datacenter, rack) in nodes.items():
            join(cluster, directory, name, rack, datacenter=datacenter)
        administration.create_keyspace(cluster, "air", replication)
        administration.pause_balancing(cluster)
    metadata = cluster.catch_up()
    table = flights(columns, append_only, primary_key)
    rows = [[metadata.node(name).volumes[0].volume_id for name in placed[tablet]] for tablet in sorted(placed)]
    for volume in {volume for row in rows for volume in row}:
        create_replica(address_of(STORAGE, metadata, table, volume), table, metadata.epoch)
    cluster.commit(CreateTable(table, len(rows), encode_replicas(np.array(rows, np.int32))))
    return SmallCluster(cluster, cluster.catch_up().table("air.flights"), directory)


def flights(
    columns: Sequence[tuple[str, str, bool]] = COLUMNS, append_only: bool = False, primary_key: Sequence[str] = ()
) -> Table:
    """Table `air.flights`, with an id of its own."""
    return Table(
        table_id=str(uuid.uuid4()),
        keyspace="air",
        name="flights",
        columns=tuple(Column(*column) for column in columns),
        primary_key=tuple(primary_key) or (columns[0][0],),
        append_only=append_only,
    )


FOUR = {"A": ("dc1", "r1"), "B": ("dc1", "r2"), "C": ("dc1", "r3"), "X": ("dc1", "r1")}
"""The nodes of seed 002, "Consistency Guarantees"."""


def assert_at_rest(cluster: SmallCluster, acknowledged: Collection[str], tablet: int = 0) -> None:
    """Nothing is in transition or asked for, INV-TABL-1 holds, and every quorum reads every acknowledged file."""
    metadata = cluster.metadata
    assert not metadata.tablets.transitions
    assert not list(metadata.open_requests())
    report = verify_replicas(STORAGE, metadata)
    assert report.violations == ()
    replicas = metadata.tablets.maps[cluster.table.table_id].replicas(tablet)
    names = {metadata.directory.node_of_volume[volume].name for volume in replicas}
    assert all(metadata.directory.node_of_volume[volume].state is NodeState.NORMAL for volume in replicas)
    held = [cluster.files_on(name, tablet) for name in names]
    for quorum in combinations(held, majority(len(held))):
        assert set(acknowledged) <= set().union(*quorum)


def relaxed_in_the_log(cluster: Cluster) -> list[RelaxedBarrier]:
    """The barriers that the log says relaxed."""
    events = [entry.decode() for entry in cluster.follower.log.read(0)]
    return [barrier for event in events if isinstance(event, RelaxBarriers) for barrier in event.barriers]


def lead_at_once(cluster: Cluster, rounds: int) -> None:
    """Two coordinators do rounds at the same time, as after an election that one of them has not noticed."""

    def lead(coordinator: Coordinator) -> None:
        for _ in range(rounds):
            coordinator._round_safely()

    threads = [threading.Thread(target=lead, args=(Coordinator(cluster),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
