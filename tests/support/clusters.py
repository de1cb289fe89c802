"""Real clusters for tests that start no ZooKeeper: a Delta log and volumes in a directory, the line of one process."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from epochlake.jobs import administration
from epochlake.jobs import cluster as clusters
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.dataplane.files import DataFile, directory_of
from epochlake.jobs.dataplane.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.jobs.dataplane.staging import StagedFile
from epochlake.jobs.dataplane.volumes import MARKER_FILE
from epochlake.jobs.pipeline.pipeline import Pipeline
from epochlake.jobs.pipeline.replicas import address_of
from epochlake.jobs.verification import verify_tablets
from epochlake.metastore.configuration import ClusterSettings, Configuration
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.local_queue import LocalQueue
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    CreateTable,
    FinishRequest,
    NewTransition,
    StartRequest,
    StartTransitions,
)
from epochlake.metastore.metadata.model import Column, NodeState, Table, Transition, VolumeId
from epochlake.placement.consistency import ConsistencyLevel, majority
from epochlake.placement.tokens import tablet_label
from epochlake.placement.transitions import Kind, Stage

from tests.support.replicas import store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES = (("n1", "r1"), ("n2", "r2"), ("n3", "r3"))
COLUMNS = [("id", "bigint", False), ("note", "string", True)]


def without_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on clusters of this process queue up in it, and ZooKeeper cannot be asked for anything."""
    queue = LocalQueue()

    def away(cluster: Cluster) -> Coordination:
        raise CoordinationUnavailable("ZooKeeper is away: this test has none")

    monkeypatch.setattr(clusters, "ZooKeeperQueue", lambda connect: queue)
    monkeypatch.setattr(Cluster, "coordination", away)


def begin(root: Path, name: str = "", configuration: Configuration | None = None) -> Cluster:
    """A new, empty cluster below `root`, open. `configuration` says the rest."""
    configuration = msgspec.structs.replace(
        configuration or Configuration(), root=str(root / "root"), cluster=ClusterSettings(name)
    )
    clusters.initialise(configuration)
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


def grow(root: Path, name: str = "") -> Cluster:
    """A cluster of three normal nodes in three racks, with keyspace `air` at three replicas."""
    cluster = begin(root, name)
    for node, rack in NODES:
        join(cluster, root / "volumes", node, rack)
    administration.create_keyspace(cluster, "air", {"dc1": 3})
    return cluster


# --- small clusters whose tablets move, step by step, under pipelines that were opened before ---------------------


@dataclass
class SmallCluster:
    """One table of few tablets on nodes with a volume each, and a coordinator that is told when to do a round."""

    cluster: Cluster
    table: Table
    directory: Path
    coordinator: Coordinator = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.cluster)

    @property
    def metadata(self) -> ClusterMetadata:
        return self.cluster.catch_up()

    def volume(self, node: str) -> VolumeId:
        return self.metadata.node(node).volumes[0].volume_id

    def volumes(self, nodes: str) -> tuple[VolumeId, ...]:
        return tuple(self.volume(node) for node in nodes)

    def address(self, node: str) -> ReplicaAddress:
        return address_of(self.metadata, self.table, self.volume(node))

    def files_on(self, node: str, tablet: int = 0) -> set[str]:
        """Ids of the live files of a tablet; of a node without the replica table, none."""
        if not Path(self.address(node).uri).exists():
            return set()
        label = tablet_label(tablet, self.metadata.tablets.maps[self.table.table_id].count)
        return set(open_snapshot(self.address(node)).files.get(label, {}))

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

    def transition(self, tablet: int = 0) -> Transition | None:
        return self.metadata.tablets.transitions.get((self.table.table_id, tablet))

    def stage(self, tablet: int = 0) -> Stage | None:
        found = self.transition(tablet)
        return None if found is None else found.stage

    def start(self, leaving: str, pending: str, kind: Kind = Kind.MIGRATION, tablet: int = 0) -> None:
        new = NewTransition(self.table.table_id, tablet, kind, self.volume(leaving), self.volume(pending), "test")
        self.cluster.commit(StartTransitions((new,)))

    def round(self) -> bool:
        return self.coordinator._round_safely()

    def until(self, stage: Stage | None, tablet: int = 0, rounds: int = 30) -> None:
        """Let the coordinator do rounds until a tablet is in a stage; None: until its transition has ended."""
        for _ in range(rounds):
            if self.stage(tablet) is stage:
                return
            self.round()
        raise AssertionError(f"stays in {self.stage(tablet)}: {self.coordinator._blocked}")

    def settle(self, rounds: int = 200) -> None:
        """Let the coordinator do rounds until nothing is left to do."""
        for _ in range(rounds):
            if not self.round() and self.coordinator._is_idle(self.metadata):
                return
        raise AssertionError(f"never idle: {self.coordinator._blocked}")

    def pipeline(self, name: str = "test", spark: SparkSession | None = None, dc: str | None = None) -> Pipeline:
        """A pipeline that plans at the epoch of now, until it learns of a newer one."""
        return Pipeline(self.cluster, name, spark, dc)  # type: ignore[arg-type]

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
        metadata = pipeline._metadata
        label = tablet_label(tablet, metadata.tablets.maps[self.table.table_id].count)
        at = pipeline._next_written_at([])
        file = stored_by_hand(self.directory / "staging", label, ids, at)
        stored = set()
        for volume in metadata.placement(self.table.table_id, tablet).writes:
            address = address_of(metadata, self.table, volume)
            if metadata.directory.node_of_volume[volume].name in skip:
                continue
            if Path(address.volume_uri, MARKER_FILE).exists() and Path(address.uri).exists():
                copy = Path(address.uri) / file.path
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(self.directory / "staging" / file.path, copy)
                stored.add(volume)
        staged = StagedFile(file, frozenset(stored), {})
        pipeline._land(self.table, [staged], ConsistencyLevel.parse(level))
        return file.file_id

    def read(self, pipeline: Pipeline, level: str = "QUORUM", tablet: int = 0) -> set[str]:
        """What `Pipeline.read` does without Spark: the ids of the files that it would read of a tablet."""
        opened, chosen = pipeline._open_for_read(self.table, ConsistencyLevel.parse(level))
        label = tablet_label(tablet, pipeline._metadata.tablets.maps[self.table.table_id].count)
        return {file_id for volume in chosen[tablet] for file_id in opened[volume].files.get(label, {})}


def stored_by_hand(directory: Path, label: str, ids: Sequence[int], at: int) -> DataFile:
    """A real data file of a tablet below a directory, as staging would have made it."""
    (directory / directory_of(label)).mkdir(parents=True, exist_ok=True)
    return store(ReplicaAddress("", 0, str(directory.parent), ".", directory.name), label, ids=ids, at=at)


def placed(
    root: Path,
    nodes: Mapping[str, tuple[str, str]],
    replicas: str | Mapping[int, str],
    *,
    replication: Mapping[str, int] | None = None,
    append_only: bool = False,
    columns: Sequence[tuple[str, str, bool]] = COLUMNS,
    configuration: Configuration | None = None,
) -> SmallCluster:
    """A cluster of `nodes` (name -> datacenter, rack) whose table `air.flights` is exactly on `replicas`.

    `replicas` are names of nodes of one letter each: `"ABC"` for one tablet, or tablet -> names.
    """
    cluster = begin(root, configuration=configuration)
    directory = root / "volumes"
    for name, (datacenter, rack) in nodes.items():
        join(cluster, directory, name, rack, datacenter=datacenter)
    placed = {0: replicas} if isinstance(replicas, str) else dict(replicas)
    chosen = [name for name in nodes if name in placed[0]]
    if replication is None:
        replication = Counter(nodes[name][0] for name in chosen)
    administration.create_keyspace(cluster, "air", replication)
    administration.pause_balancing(cluster)
    metadata = cluster.catch_up()
    table = Table(
        table_id=str(uuid.uuid4()),
        keyspace="air",
        name="flights",
        columns=tuple(Column(*column) for column in columns),
        primary_key=(columns[0][0],),
        append_only=append_only,
    )
    rows = [[metadata.node(name).volumes[0].volume_id for name in placed[tablet]] for tablet in sorted(placed)]
    for volume in {volume for row in rows for volume in row}:
        create_replica(address_of(metadata, table, volume), table, metadata.epoch)
    cluster.commit(CreateTable(table, len(rows), encode_replicas(np.array(rows, np.int32))))
    return SmallCluster(cluster, cluster.catch_up().table("air.flights"), directory)


FOUR = {"A": ("dc1", "r1"), "B": ("dc1", "r2"), "C": ("dc1", "r3"), "X": ("dc1", "r1")}
"""The nodes of seed 002, "Consistency Guarantees"."""


def assert_at_rest(cluster: SmallCluster, acknowledged: Collection[str], tablet: int = 0) -> None:
    """Nothing is in transition or asked for, INV-TABL-1 holds, and every quorum reads every acknowledged file."""
    metadata = cluster.metadata
    assert not metadata.tablets.transitions
    assert not list(metadata.open_requests())
    report = verify_tablets(metadata)
    assert report.violations == ()
    replicas = metadata.tablets.maps[cluster.table.table_id].replicas(tablet)
    names = {metadata.directory.node_of_volume[volume].name for volume in replicas}
    assert all(metadata.directory.node_of_volume[volume].state is NodeState.NORMAL for volume in replicas)
    held = [cluster.files_on(name, tablet) for name in names]
    for quorum in combinations(held, majority(len(held))):
        assert set(acknowledged) <= set().union(*quorum)
