"""What small files of neighbouring tablets are put together to: one file, in whatever state that was left."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.merging import MergedFile, MergePlan
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compacting import CompactionPolicy
from epochlake.jobs.upkeep.compaction import OVERTAKEN
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.configuration import Configuration, PipelineSettings

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import reaching, without_leases
from tests.support.versions import compact_here, merge_here, read_versions, token_of, write_versions

TABLE = "air.flights"


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)


@pytest.fixture
def table(tmp_path: Path) -> SmallCluster:
    return placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})


def assert_shown(table: SmallCluster, expected: dict[int, str]) -> None:
    """At every level, and where a replica is away."""
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(table, level) == sorted(expected.items())
    for lost in combinations("ABC", 1):
        with table.without(lost):
            assert read_versions(table, "QUORUM") == sorted(expected.items())


def live(table: SmallCluster, node: str) -> list[DataFile]:
    return list(open_snapshot(table.address(node)).all_files.values())


def merged_on(table: SmallCluster, node: str) -> int:
    return sum(file.is_merged for file in live(table, node))


def compact_reaching(table: SmallCluster, nodes: str) -> None:
    """A compaction that is committed on some nodes only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", reaching(table.volumes(nodes)))
        compact_here(table, **FEW)


def beside_large_files(table: SmallCluster) -> dict[int, str]:
    """A large file of each tablet, and small ones with rows of both; the rows that are shown."""
    notes = {row: str([token_of(8 * row + n) for n in range(8)]) for row in range(2000)}
    write_versions(table, notes)
    for batch in range(4):
        changed: dict[int, str | None] = {row: None if row % 10 == 3 else f"batch {batch}" for row in range(batch, 60)}
        write_versions(table, changed)
        notes |= changed  # type: ignore[arg-type]
    return {row: note for row, note in notes.items() if note is not None}


FEW: dict[str, object] = {
    "policy": CompactionPolicy(small_files=4, slower=float("inf")),
    "tombstone_grace_seconds": 3600.0,
}


def test_small_files_of_neighbouring_tablets_become_one_beside_their_large_ones(table: SmallCluster) -> None:
    expected = beside_large_files(table)
    large = {file.file_id for file in live(table, "A") if file.rows > 500}
    report = compact_here(table, **FEW)
    [one] = report.compacted
    assert (one.unit, one.files_before, one.files_after) == (0, 8, 1)
    assert not one.purges_tombstones
    [merged] = [file for file in live(table, "A") if file.is_merged]
    assert merged.window == (table.tokens_of(0)[0], table.tokens_of(1)[1])
    for node in "ABC":
        assert {file.file_id for file in live(table, node)} == {*large, merged.file_id}
    assert_shown(table, expected)
    assert repair(table.cluster, TABLE, check_bytes=True).complete
    report = compact_here(table)
    assert [one.unit for one in report.compacted] == [0, 1], "whole ranges have files of their own"
    assert merged.file_id not in {file.file_id for file in live(table, "A")}
    assert_shown(table, expected)


@pytest.mark.parametrize("reached", ["", "A", "AB"])
def test_what_neighbouring_tablets_share_is_finished_by_the_next_one(table: SmallCluster, reached: str) -> None:
    expected = beside_large_files(table)
    compact_reaching(table, reached)
    assert [merged_on(table, node) for node in "ABC"] == [int(node in reached) for node in "ABC"]
    assert_shown(table, expected)
    report = compact_here(table, **FEW, repairing=False)
    assert report.complete
    assert report.finished + bool(report.spread) == 1
    assert [merged_on(table, node) for node in "ABC"] == [1, 1, 1]
    assert_shown(table, expected)


def test_what_neighbouring_tablets_share_and_nobody_finished_is_taken_back_at_the_next_epoch(
    table: SmallCluster,
) -> None:
    expected = beside_large_files(table)
    compact_reaching(table, "")
    administration.resume_balancing(table.cluster)
    report = compact_here(table, **FEW)
    assert report.voided == 1
    assert [merged_on(table, node) for node in "ABC"] == [1, 1, 1]
    assert_shown(table, expected)


def test_of_two_compactions_of_what_neighbours_share_one_is_refused_for_both_tablets(table: SmallCluster) -> None:
    expected = beside_large_files(table)

    def overtaken(plan: MergePlan) -> list[MergedFile]:
        made = merge_here(plan)
        compact_here(table, **FEW)
        return made

    report = compact_here(table, **FEW, merger=overtaken)
    assert report.compacted == ()
    assert [(one.reason, one.units) for one in report.skipped] == [(OVERTAKEN, (0, 1))]
    assert_shown(table, expected)


@pytest.mark.parametrize(("leaving", "reached"), [("A", "A"), ("C", "AB"), ("B", "ABC")])
def test_one_of_the_tablets_that_share_what_was_put_together_moves(
    table: SmallCluster, leaving: str, reached: str
) -> None:
    """Its rows go along; the rows of the other one stay, and both are put together as ever."""
    expected = beside_large_files(table)
    compact_reaching(table, reached)
    table.start(leaving, "X", tablet=0)
    table.until(None, tablet=0)
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(table, level) == sorted(expected.items())
    write_versions(table, {30: None, 31: "newest"})
    del expected[30]
    expected[31] = "newest"
    assert repair(table.cluster, TABLE, check_bytes=True).complete
    assert compact_here(table).complete
    rest = [node for node in "ABC" if node != leaving]
    assert len({tuple(table.files_on(node, 0)) for node in [*rest, "X"]}) == 1
    assert len({tuple(table.files_on(node, 1)) for node in "ABC"}) == 1
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(table, level) == sorted(expected.items())


def test_tablets_share_nothing_where_writers_share_no_files(tmp_path: Path) -> None:
    apart = Configuration(pipeline=PipelineSettings(shared_file_bytes=0))
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=apart)
    expected = beside_large_files(table)
    assert [one.unit for one in compact_here(table, **FEW).compacted] == [0, 1]
    assert_shown(table, expected)
