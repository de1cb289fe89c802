"""Random histories of writes, deletes, half and whole compactions, repairs and moves, with nodes that are away: every
quorum reads what a dict would hold, for tablets and on the ring; append-only rows are shown once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.tracks import resizing
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore import announcing
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings

from tests.support.clusters import FOUR, SmallCluster, SmallTable, placed, without_zookeeper
from tests.support.compactions import Released, reaching
from tests.support.resizing import ALWAYS_SPLIT, NEVER_SPLIT, Resizable
from tests.support.rings import FOUR as RING
from tests.support.rings import RingCluster, join, leave, move, ringed
from tests.support.slices import sliced
from tests.support.versions import compact_here, read_versions, write_versions

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
TABLE = "air.flights"
STEPS = 14


@pytest.fixture(autouse=True)
def _no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(compaction, "live_leases", lambda coordination: [])
    monkeypatch.setattr(announcing, "announce", lambda coordination, lease: Released())


@pytest.fixture
def draw(seed: int) -> random.Random:
    return random.Random(seed)


class History:
    """One table and what it should show."""

    def __init__(self, table: SmallTable, draw: random.Random, nodes: str, model: dict[int, str]) -> None:
        self.table = table
        self.draw = draw
        self.nodes = nodes
        self.model = model
        self._next = 1000

    def step(self, number: int, monkeypatch: pytest.MonkeyPatch) -> str:
        kinds = ["write", "write", "compact", "half", "repair"] + ["delete"] * (not self.table.table.append_only)
        kind = self.draw.choice(kinds)
        if kind in ("write", "delete"):
            with self.table.without(self.draw.choice(["", *self.nodes])):
                self._write(number, kind)
        elif kind == "repair":
            repair(self.table.cluster, TABLE)
        else:
            reached = self.nodes if kind == "compact" else self.draw.sample(self.nodes, self.draw.randrange(3))
            with monkeypatch.context() as patch:
                patch.setattr(compaction, "commit_files", reaching(self.table.volumes("".join(reached))))
                compact_here(self.table)
        return kind

    def _write(self, number: int, kind: str) -> None:
        if self.table.table.append_only:
            notes: dict[int, str | None] = {self._next + n: f"new {number}" for n in range(8)}
            self._next += 8
        else:
            note = None if kind == "delete" else f"note {number}"
            notes = {self.draw.randrange(40): note for _ in range(12)}
        write_versions(self.table, notes)
        self.model = {row: note for row, note in (self.model | notes).items() if note is not None}

    def check(self, said: object) -> None:
        expected = sorted(self.model.items())
        assert read_versions(self.table, "QUORUM") == expected, said
        for lost in self.nodes:
            with self.table.without(lost):
                assert read_versions(self.table, "QUORUM") == expected, (said, f"without {lost}")


def settle_and_check_every_replica(history: History, nodes: str) -> None:
    """In the end all replicas agree, and any one of them alone shows it all."""
    compact_here(history.table)
    assert repair(history.table.cluster, TABLE, check_bytes=True).complete
    for lost in combinations(nodes, 2):
        with history.table.without(lost):
            try:
                assert read_versions(history.table, "ONE") == sorted(history.model.items())
            except ConsistencyNotReached:
                assert len(nodes) > 3  # both were the only replicas of something


@sliced()
@pytest.mark.parametrize("append_only", [False, True], ids=["versions", "append-only"])
def test_tablets_that_move_show_what_a_dict_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random, append_only: bool
) -> None:
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, append_only=append_only, configuration=QUICK)
    history = History(table, draw, "ABC", {})
    for number in range(STEPS):
        kind = history.step(number, monkeypatch)
        history.check((number, kind))
        if number == STEPS // 2:
            _move_a_tablet(table, draw)
            history.nodes = "ABCX"
            history.check("moved")
    settle_and_check_every_replica(history, "ABCX")


def _move_a_tablet(table: SmallCluster, draw: random.Random) -> None:
    table.start(draw.choice("ABC"), "X", tablet=0)
    table.until(None, tablet=0)


@sliced()
@pytest.mark.parametrize("operation", [join, leave, move], ids=["join", "leave", "move"])
def test_ring_tables_with_operations_show_what_a_dict_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random, operation: Callable[[RingCluster], str]
) -> None:
    ring = ringed(tmp_path, RING, configuration=QUICK, rows={})
    history = History(ring, draw, "ABCD", {})
    for number in range(STEPS):
        kind = history.step(number, monkeypatch)
        history.check((number, kind))
        if number == STEPS // 2:
            operation(ring)
            ring.settle()
            history.nodes = {"join": "ABCDX", "leave": "ABC", "move": "ABCD"}[operation.__name__]
            history.check("operation done")
    settle_and_check_every_replica(history, history.nodes)


@sliced()
@pytest.mark.parametrize("reached", ["A", "BC", "ABC"])
def test_tablets_split_and_merge_after_half_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random, reached: str
) -> None:
    monkeypatch.setattr(resizing, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(resizing, "RETRY_SECONDS", 0.0)
    table = placed(tmp_path, {name: FOUR[name] for name in "ABC"}, "ABC", append_only=True, configuration=QUICK)
    story = Resizable(table, draw)
    for target, count in ((ALWAYS_SPLIT, 4), (NEVER_SPLIT, 1)):
        for _ in range(3):
            story.write(count=12)
        with monkeypatch.context() as patch:
            patch.setattr(compaction, "commit_files", reaching(table.volumes(reached)))
            compact_here(table)
        story.aim(target)
        story.until_count(count)
        story.stay()
        story.assert_sound()
    while story.staged:
        story.land(table.pipeline())
    table.settle()
    compact_here(table)
    assert repair(table.cluster, TABLE, check_bytes=True).complete
    story.assert_settled()


def test_an_append_that_races_with_the_commit_of_a_merged_file_shows_nothing_twice_and_is_tidied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, append_only=True, configuration=QUICK)
    files = write_versions(table, dict.fromkeys(range(20), "old"))
    write_versions(table, dict.fromkeys(range(20, 40), "new"))
    expected = [(row, "old" if row < 20 else "new") for row in range(40)]
    compact_here(table)
    with monkeypatch.context() as patch:
        # Its snapshot is from before the merged file came: it does not know of it.
        patch.setattr(Ledger, "lineage", lambda ledger, table_id, files: {})
        for node in "AC":
            commit_files(
                table.address(node),
                files,
                epoch=table.metadata.epoch,
                app_id="x",
                app_version=1,
                ledger=table.cluster.ledger,
            )
    assert {file.file_id for file in files} <= table.files_on("A", 0) | table.files_on("A", 1)
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(table, level) == expected
    report = repair(table.cluster, TABLE)
    assert [(one.replica, one.removed) for one in report.replicas] == [("A/d1", 2), ("C/d1", 2)]
    assert all(len(table.files_on(node, tablet)) == 1 for node in "ABC" for tablet in (0, 1))
    assert read_versions(table, "ALL") == expected
