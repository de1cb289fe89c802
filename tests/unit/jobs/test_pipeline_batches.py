"""Named batches are found by their rows: whole, in pieces, moved, lost; and staged again only where they are lost."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import batches, commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.commits import drop_ranges, pre_split
from epochlake.jobs.replicas.files import path_of
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.upkeep.vacuum import vacuum
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, range_label
from msgspec.structs import replace

from tests.support.clusters import FOUR, SmallCluster, SmallTable, placed, without_zookeeper
from tests.support.rings import FOUR as RING
from tests.support.rings import TURN, ringed
from tests.support.storages import STORAGE

ONE_TRY = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
QUORUM = ConsistencyLevel.QUORUM


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> SmallCluster:
    return placed(tmp_path, FOUR, "ABC", append_only=True, configuration=ONE_TRY)


def locate(table: SmallTable, pipeline: Pipeline, files: Sequence[StagedFile]) -> batches.Located:
    opened, failed = pipeline.gate.planning.open_for_write(table.table)
    return pipeline.gate.writing.locate(table.table, batches.BatchContents(1, tuple(files)), opened, failed)


def is_reached(table: SmallTable, pipeline: Pipeline, located: batches.Located) -> bool:
    opened, _ = pipeline.gate.planning.open_for_write(table.table)
    return pipeline.gate.writing.is_reached(table.table, QUORUM, located, opened)


def land_again(table: SmallTable, pipeline: Pipeline, located: batches.Located) -> None:
    pipeline.gate.writing.land(table.table, located.files, QUORUM, located)


def forget_staged(table: SmallTable, nodes: str, *, live_too: bool = False) -> None:
    """What cleaning up does with staged files that are not live."""
    for node in nodes:
        root = Path(table.address(node).uri)
        live = set() if live_too else {file.path for file in table.files_within(node)}
        for path in root.glob("_tablet=*/*.parquet"):
            if str(path.relative_to(root)) not in live:
                path.unlink()


def test_a_file_that_its_only_holder_has_cut_is_landed_from_the_pieces(cluster: SmallCluster) -> None:
    pipeline = cluster.pipeline()
    staged = cluster.staged(pipeline, {1: -5, 2: 5})
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
        cluster.land(pipeline, staged)
    pre_split(cluster.address("A"), [-1], cluster.metadata.epoch)
    forget_staged(cluster, "ABC")
    located = locate(cluster, pipeline, staged)
    assert (located.lost, located.files[0].stored, len(located.pieces)) == ((), frozenset(), 2)
    assert not is_reached(cluster, pipeline, located)
    land_again(cluster, pipeline, located)
    for node in "ABC":
        assert cluster.rows_on(node) == [1, 2]
    assert cluster.read_rows(pipeline, "ALL") == [1, 2]


def test_a_file_of_which_replicas_hold_different_pieces_is_not_lost(cluster: SmallCluster) -> None:
    pipeline = cluster.pipeline()
    [staged] = cluster.staged(pipeline, {1: -5, 2: 5})
    with cluster.without("C"):
        cluster.land(pipeline, [staged])
    drop_ranges(cluster.address("A"), [(0, MAX_TOKEN)], cluster.metadata.epoch)
    drop_ranges(cluster.address("B"), [(MIN_TOKEN, -1)], cluster.metadata.epoch)
    forget_staged(cluster, "ABC")
    located = locate(cluster, cluster.pipeline(), [staged])
    assert located.lost == ()
    assert {(piece.file.rows, tuple(piece.stored)) for piece in located.pieces} == {
        (1, cluster.volumes("A")),
        (1, cluster.volumes("B")),
    }
    land_again(cluster, pipeline, located)
    assert [cluster.rows_on(node) for node in "ABC"] == [[1, 2]] * 3


def test_a_batch_whose_ranges_have_moved_apart_has_reached_its_level(tmp_path: Path) -> None:
    """X takes a part of the range; the file as it was staged is nowhere live any more on A, B, C and D."""
    ring = ringed(tmp_path, RING, configuration=ONE_TRY, rows={})
    pipeline = ring.pipeline()
    staged = ring.staged(pipeline, {101: -TURN, 102: TURN})
    ring.land(pipeline, staged, "ALL")
    ring.add("X", ("dc1", "r3", (0,)))
    ring.until(None)
    ring.settle()
    forget_staged(ring, "ABCDX")
    retry = ring.pipeline()
    located = locate(ring, retry, staged)
    assert located.lost == ()
    assert located.pieces
    assert is_reached(ring, retry, located)
    files = {node: ring.files_within(node) for node in "ABCDX"}
    land_again(ring, retry, located)
    assert {node: ring.files_within(node) for node in "ABCDX"} == files
    assert ring.read_rows(retry, "ALL") == [101, 102]


def test_what_was_staged_long_ago_is_not_cleaned_up_between_being_found_and_being_committed(
    cluster: SmallCluster,
) -> None:
    staged = cluster.staged(cluster.pipeline(), {1: -5})
    for node in "ABC":
        os.utime(Path(cluster.address(node).uri, staged[0].file.path), (0, 0))
    began = time.time_ns() // 1_000_000
    retry = cluster.pipeline()
    located = locate(cluster, retry, staged)
    for node in "ABC":
        vacuum(cluster.address(node), began)
    land_again(cluster, retry, located)
    assert cluster.read_rows(retry, "ALL") == [1]


def test_what_nobody_has_is_lost_and_who_may_have_it_is_named(cluster: SmallCluster) -> None:
    pipeline = cluster.pipeline()
    staged = cluster.staged(pipeline, {1: 0})
    forget_staged(cluster, "ABC")
    located = locate(cluster, pipeline, staged)
    assert (located.lost, located.unanswered) == (((MIN_TOKEN, MAX_TOKEN),), {})
    with cluster.without("B"):
        located = locate(cluster, pipeline, staged)
        assert list(located.unanswered) == [cluster.volume("B")]
        with pytest.raises(ConsistencyNotReached, match=r"nobody else has,.* for 1 tablet \(0\)"):
            pipeline.gate.writing.require_answers(cluster.table, QUORUM, located)


def test_windows_staged_again_take_the_place_of_what_was_decided_for_them(tmp_path: Path) -> None:
    """Two tablets, then the upper one is staged again in two windows, then one of these; the lower one stays."""
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, append_only=True, configuration=ONE_TRY)
    root = str(tmp_path / "batches")
    lower, upper, second, third, fourth = (staged_for(table, token) for token in (-1, 1, TURN, 5 * TURN, 6 * TURN))
    second, third = renamed(second, (0, 4 * TURN - 1)), renamed(third, (4 * TURN, MAX_TOKEN))
    fourth = renamed(fourth, (4 * TURN, MAX_TOKEN))
    decision = batches.decide(STORAGE, root, "b", table.table, batches.BatchContents(0, ()), [lower, upper])
    assert decision == batches.BatchContents(1, (lower, upper))
    decision = batches.decide(STORAGE, root, "b", table.table, decision, [second, third], replaces=[(0, MAX_TOKEN)])
    assert decision == batches.BatchContents(2, (lower, second, third))
    late = batches.BatchContents(1, (lower, upper))  # somebody who has not seen the second generation decides nothing
    assert batches.decide(STORAGE, root, "b", table.table, late, [fourth], replaces=[(0, MAX_TOKEN)]) == decision
    decision = batches.decide(STORAGE, root, "b", table.table, decision, [fourth], replaces=[(4 * TURN, MAX_TOKEN)])
    assert decision == batches.decided(STORAGE, root, "b") == batches.BatchContents(3, (lower, second, fourth))


def staged_for(table: SmallTable, token: int) -> StagedFile:
    [staged] = table.staged(table.pipeline(), {1: token})
    return staged


def renamed(staged: StagedFile, window: tuple[int, int]) -> StagedFile:
    """The same file as if it had been staged for another window."""
    label = range_label(*window)
    return replace(staged, file=replace(staged.file, label=label, path=path_of(label, staged.file.file_id)))


def test_a_batch_of_a_table_that_is_drained_meanwhile_lands_where_it_belongs(cluster: SmallCluster) -> None:
    pipeline = cluster.pipeline()
    staged = cluster.staged(pipeline, {1: -5, 2: 5})
    with cluster.without("BC"), pytest.raises(ConsistencyNotReached):
        cluster.land(pipeline, staged)
    administration.decommission(cluster.cluster, "A")
    cluster.settle()
    retry = cluster.pipeline()
    located = locate(cluster, retry, staged)
    assert is_reached(cluster, retry, located) == (len(cluster.files_on("X")) > 1)
    land_again(cluster, retry, located)
    assert cluster.read_rows(retry, "ALL") == [1, 2]


def test_of_calls_that_land_a_batch_at_once_each_says_that_it_was_not_there_before_and_it_is_there_once(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    land, others, rows = commit_phase.CommitPhase.land, [2, 1], [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}]
    said: list[bool] = []

    def landed(phase: commit_phase.CommitPhase) -> object:
        if others:  # the next one looks before this one has landed anything, and lands all of it first
            others.pop()
            with Cluster(cluster.cluster.configuration) as other:
                said.append(other.write("air.flights", rows, batch="b").already)
        return land(phase)

    monkeypatch.setattr(commit_phase.CommitPhase, "land", landed)
    first = cluster.cluster.write("air.flights", rows, batch="b").already
    assert [first, *said] == [False] * 3
    assert cluster.cluster.count("air.flights") == 2
    assert cluster.cluster.write("air.flights", rows, batch="b").already
