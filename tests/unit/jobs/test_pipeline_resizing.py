"""Pipelines that planned before tablets were split or merged, or before that was decided, and land afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.commits import pre_split, straddling
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.metadata.events import DecideResize, FinishResize
from epochlake.metastore.metadata.placements import highs
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tokens import tablet_label

from tests.support.clusters import FOUR, SmallCluster, placed, reads_trust_fences_alone, without_zookeeper

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1, shared_file_bytes=0))
PARTS = [part << 60 for part in range(-8, 8)]
"""A token in each sixteenth of the token space."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    reads_trust_fences_alone(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, append_only=True, configuration=ONE_TRY)


def count(cluster: SmallCluster) -> int:
    return cluster.metadata.tablets.maps[cluster.table.table_id].count


def decide(cluster: SmallCluster, resize: Resize) -> None:
    """Commit the decision, and fence every replica at it."""
    number = cluster.metadata.tablets.maps[cluster.table.table_id].resize_seq_number
    cluster.cluster.commit(DecideResize(cluster.table.table_id, resize, number + 1))
    fence(cluster)


def finish(cluster: SmallCluster) -> None:
    number = cluster.metadata.tablets.maps[cluster.table.table_id].resize_seq_number
    cluster.cluster.commit(FinishResize(cluster.table.table_id, number))
    fence(cluster)


def fence(cluster: SmallCluster) -> None:
    for node in "ABC":
        assert raise_fence(cluster.address(node), cluster.metadata.epoch) == cluster.metadata.epoch


def middles(cluster: SmallCluster) -> list[int]:
    """Last tokens of all ranges while a split is decided."""
    return highs(cluster.metadata.placements(cluster.table.table_id).lows)[:-1].tolist()


def cut_apart(cluster: SmallCluster) -> None:
    for node in "AB":  # C is cut later, or never
        assert pre_split(cluster.address(node), middles(cluster), cluster.metadata.epoch) == 0


CHAIN: dict[str, Callable[[SmallCluster], None]] = {
    "before": lambda cluster: None,
    "a split is decided": lambda cluster: decide(cluster, Resize.SPLIT),
    "two replicas are cut apart": cut_apart,
    "tablets are split": finish,
    "a merge is decided": lambda cluster: decide(cluster, Resize.MERGE),
    "tablets are merged": finish,
    "another merge is decided": lambda cluster: decide(cluster, Resize.MERGE),
    "one tablet is left": finish,
}


@dataclass
class Story:
    """Batches staged at every moment, to be landed at every later one."""

    cluster: SmallCluster
    waiting: list[tuple[Pipeline, list[StagedFile], set[int]]] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    number: int = 0

    def stage(self, batches: int) -> None:
        for _ in range(batches):
            self.number += 1
            rows = {100 * self.number + n: token + self.number for n, token in enumerate(PARTS)}
            pipeline = self.cluster.pipeline()
            self.waiting.append((pipeline, self.cluster.staged(pipeline, rows), set(rows)))

    def land_one_of_each(self, every: int) -> None:
        for pipeline, staged, rows in self.waiting[::every]:
            self.cluster.land(pipeline, staged)
            self.acknowledged |= rows
        del self.waiting[::every]

    def check(self) -> None:
        for level in ("QUORUM", "ALL"):
            assert self.cluster.read_rows(self.cluster.pipeline(), level) == sorted(self.acknowledged)
        for away in "ABC":
            with self.cluster.without(away):
                assert self.cluster.read_rows(self.cluster.pipeline()) == sorted(self.acknowledged)


def test_what_was_staged_at_any_moment_lands_at_any_later_one_and_is_read_once(cluster: SmallCluster) -> None:
    story = Story(cluster)
    left = len(CHAIN)
    for happens in CHAIN.values():
        happens(cluster)
        story.land_one_of_each(left)
        story.check()
        left -= 1
        story.stage(left)
    assert not story.waiting
    assert count(cluster) == 1


def test_what_was_staged_before_a_split_was_decided_is_kept_apart_where_it_lands_after_it(
    cluster: SmallCluster,
) -> None:
    story = Story(cluster)
    story.stage(1)
    decide(cluster, Resize.SPLIT)
    story.land_one_of_each(1)
    for node in "ABC":
        snapshot = open_snapshot(cluster.address(node))
        assert len(snapshot.all_files) == 4
        assert straddling(snapshot, middles(cluster)) == []
    story.check()


def test_new_files_of_a_split_that_was_revoked_stay_what_they_are(cluster: SmallCluster) -> None:
    story = Story(cluster)
    decide(cluster, Resize.SPLIT)
    story.stage(2)
    story.land_one_of_each(2)
    decide(cluster, Resize.NONE)
    story.land_one_of_each(1)
    assert {file.label for file in cluster.files_within("A")} == {tablet_label(tablet, 4) for tablet in range(4)}
    story.check()


def test_acknowledgements_of_halves_count_for_the_tablet_that_they_became(cluster: SmallCluster) -> None:
    """Two replicas have the halves when the tablets are merged: they are asked again, and get nothing new."""
    decide(cluster, Resize.SPLIT)
    story = Story(cluster)
    story.stage(1)
    [(pipeline, staged, _)] = story.waiting
    with cluster.without("C"):
        cluster.land(pipeline, staged)
    decide(cluster, Resize.NONE)
    held = {node: {file.file_id for file in cluster.files_within(node)} for node in "AB"}
    story.land_one_of_each(1)
    assert {node: {file.file_id for file in cluster.files_within(node)} for node in "ABC"} == held | {"C": held["A"]}


@pytest.mark.parametrize("away", ["".join(pair) for pair in combinations("ABC", 2)])
def test_a_level_that_is_missed_during_a_split_names_tablets_not_halves(cluster: SmallCluster, away: str) -> None:
    decide(cluster, Resize.SPLIT)
    rows = dict(enumerate(PARTS[:4]))
    with cluster.without(away), pytest.raises(ConsistencyNotReached, match=r"for 1 tablet \(0\)"):
        cluster.write_rows(cluster.pipeline(), rows)
    with cluster.without(away), pytest.raises(ConsistencyNotReached, match=r"for 2 tablets \(0, 1\)"):
        cluster.read_rows(cluster.pipeline())
