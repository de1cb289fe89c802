"""Tables whose tablets are split and merged under pipelines that planned before, and what must hold at every moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from epochlake.jobs import administration
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.commits import straddling
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.jobs.views.resizing import plan_resize
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.metadata.events import DecideResize
from epochlake.metastore.metadata.model import NodeState
from epochlake.metastore.metadata.placements import highs, index_of
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.tablet_map import TabletMap
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.clusters import SmallCluster
from tests.support.storages import STORAGE

NEVER_SPLIT = 1 << 60
ALWAYS_SPLIT = 1


@dataclass
class Resizable:
    """A small cluster, the rows that were acknowledged, and dice for their tokens."""

    cluster: SmallCluster
    dice: random.Random
    acknowledged: set[int] = field(default_factory=set)
    staged: list[tuple[list[StagedFile], set[int]]] = field(default_factory=list)
    _next: int = 0

    def __post_init__(self) -> None:
        administration.resume_balancing(self.cluster.cluster)

    @property
    def tablets(self) -> TabletMap:
        return self.cluster.metadata.tablets.maps[self.cluster.table.table_id]

    def aim(self, target_bytes: int) -> None:
        """From now on coordinators aim at this size."""
        configuration = self.cluster.cluster.configuration
        tablets = msgspec.structs.replace(configuration.tablets, target_bytes=target_bytes)
        self.cluster.cluster.configuration = msgspec.structs.replace(configuration, tablets=tablets)
        self.restart()

    def stay(self) -> None:
        """From now on neither a split nor a merge is due."""
        [planned] = plan_resize(STORAGE, self.cluster.metadata, Configuration().tablets).tables
        self.aim(int((planned.bytes or 1) * 1.4))

    def restart(self) -> None:
        """The coordinator dies, and another one begins."""
        self.cluster.coordinator = Coordinator(self.cluster.cluster)

    def decide(self, resize: Resize) -> None:
        """The decision is in force, and nothing has been done for it yet."""
        number = self.tablets.resize_seq_number + 1
        self.cluster.cluster.commit(DecideResize(self.cluster.table.table_id, resize, number, "test"))

    def rows(self, count: int = 5) -> dict[int, int]:
        """New rows: id -> token."""
        first, self._next = self._next, self._next + count
        return {row: self.dice.randint(MIN_TOKEN, MAX_TOKEN) for row in range(first, self._next)}

    def write(self, pipeline: Pipeline | None = None, count: int = 5) -> None:
        self.acknowledged |= self.cluster.write_rows(pipeline or self.cluster.pipeline(), self.rows(count))

    def stage(self) -> None:
        """Stage rows as it is planned now, to land them some time later."""
        rows = self.rows()
        self.staged.append((self.cluster.staged(self.cluster.pipeline(), rows), set(rows)))

    def land(self, pipeline: Pipeline) -> None:
        """Land what was staged longest ago."""
        staged, ids = self.staged.pop(0)
        self.cluster.land(pipeline, staged)
        self.acknowledged |= ids

    def until(self, done: Callable[[TabletMap], bool], rounds: int = 120, *, write: bool = True) -> None:
        """Let the coordinator do rounds until something holds of the tablets; pipelines of before write in between."""
        for number in range(rounds):
            if done(self.tablets):
                return
            if write:
                held = self.cluster.pipeline()
                if number % 3 == 0:
                    self.stage()
                self.cluster.round()
                self.write(held)
                if len(self.staged) > 2:
                    self.land(held)
            else:
                self.cluster.round()
        raise AssertionError(
            f"{self.tablets.count} tablets, {self.tablets.resize_type}: {self.cluster.coordinator._blocked}"
        )

    def until_count(self, count: int, **options: bool) -> None:
        self.until(lambda tablets: tablets.count == count and tablets.resize_type == "none", **options)

    def assert_sound(self) -> None:
        """INV-TABL-1 holds, and whatever quorum is read, every acknowledged row is there, and none twice."""
        metadata = self.cluster.metadata
        assert verify_replicas(STORAGE, metadata).violations == ()
        nodes = sorted({metadata.directory.node_of_volume[v].name for row in self.tablets for v in row})
        for away in nodes:
            with self.cluster.without(away):
                seen = self.cluster.read_rows(self.cluster.pipeline())
            assert len(seen) == len(set(seen))
            assert self.acknowledged <= set(seen)

    def assert_settled(self) -> None:
        """Sound, nothing is going on, and files lie apart under the labels of their tablets."""
        self.assert_sound()
        metadata = self.cluster.metadata
        assert not metadata.tablets.transitions
        assert not list(metadata.open_requests())
        assert self.tablets.resize_type == "none"
        cover = metadata.placements(self.cluster.table.table_id)
        boundaries = highs(cover.lows).tolist()[:-1]
        for node in metadata.directory.nodes.values():
            if node.state is NodeState.LEFT or not self.tablets.tablets_on(v.volume_id for v in node.volumes).size:
                continue
            snapshot = open_snapshot(self.cluster.address(node.name))
            assert straddling(snapshot, boundaries) == []
            for file in snapshot.all_files.values():
                if file.rows:
                    assert file.label == cover.label(int(index_of(cover.lows, file.min_token)))
