"""Compaction: what it merges, what it may forget, and what every read shows wherever it stopped half-way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import batches
from epochlake.jobs.replicas import row_groups
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.ledger import Ledger, Merge
from epochlake.jobs.replicas.merging import MergedFile, MergePlan
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, CommitOutcome, Unreachable
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compacting, compaction
from epochlake.jobs.upkeep.compacting import CompactionPolicy
from epochlake.jobs.upkeep.compaction import NOT_STORED, OVERTAKEN, PENDING, UNREACHABLE, Budget, compact
from epochlake.jobs.upkeep.comparing import IN_TRANSITION
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore import announcing
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import CompactionOptions
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import Released, reaching
from tests.support.slices import sliced
from tests.support.storages import STORAGE
from tests.support.versions import compact_here, merge_here, read_versions, stage_versions, token_of, write_versions

TABLE = "air.flights"
ROWS = range(40)

pytestmark = sliced()  # of most tests one of the two kinds of table


class Killed(BaseException):
    """The process dies here: nothing catches it."""


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> list[Lease]:
    """The live pipelines, as compaction sees them; none at first."""
    live: list[Lease] = []

    without_zookeeper(monkeypatch)
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(compaction, "live_leases", lambda cluster: cluster.coordination() or list(live))
    monkeypatch.setattr(announcing, "announce", lambda coordination, lease: Released())
    return live


@pytest.fixture(params=[False, True], ids=["versions", "append-only"])
def either(request: pytest.FixtureRequest, tmp_path: Path, leases: list[Lease]) -> SmallCluster:
    """A table of each kind, with the same rows in three files of each tablet."""
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, append_only=request.param)
    for part in range(3):
        write_versions(table, {row: f"note {row}" for row in ROWS if row % 3 == part})
    return table


@pytest.fixture
def table(tmp_path: Path, leases: list[Lease]) -> SmallCluster:
    return placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})


EXPECTED = {row: f"note {row}" for row in ROWS}


def every_read(table: SmallCluster, nodes: str = "ABC") -> Iterator[list[tuple[int, str]]]:
    """What reads show at every level, and of every replica and every pair of them alone."""
    for level in ("ONE", "QUORUM", "ALL"):
        yield read_versions(table, level)
    for lost in combinations(nodes, 1):
        with table.without(lost):
            yield read_versions(table, "QUORUM")
    for lost in combinations(nodes, 2):
        with table.without(lost):
            yield read_versions(table, "ONE")


def assert_shown(table: SmallCluster, expected: Mapping[int, str], nodes: str = "ABC") -> None:
    for shown in every_read(table, nodes):
        assert shown == sorted(expected.items())


def live(table: SmallCluster, node: str) -> list[DataFile]:
    return list(open_snapshot(table.address(node)).all_files.values())


def merged_on(table: SmallCluster, node: str) -> int:
    return sum(file.is_merged for file in live(table, node))


def next_epoch(table: SmallCluster) -> None:
    if table.metadata.switches.balancing:
        administration.pause_balancing(table.cluster)
    else:
        administration.resume_balancing(table.cluster)


def compact_reaching(table: SmallCluster, nodes: str, **options: object) -> None:
    """A compaction that is committed on some nodes only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", reaching(table.volumes(nodes)))
        compact_here(table, **options)


# --- what it does --------------------------------------------------------------------------------------------------


def test_each_range_becomes_one_file_that_is_the_same_on_every_replica(either: SmallCluster) -> None:
    report = compact_here(either)
    assert [(one.unit, one.files_before, one.files_after) for one in report.compacted] == [(0, 3, 1), (1, 3, 1)]
    assert report.complete
    for tablet in (0, 1):
        [merged] = either.files_on("A", tablet)
        assert merged.startswith("c-")
        assert either.files_on("B", tablet) == either.files_on("C", tablet) == {merged}
    assert_shown(either, EXPECTED)
    assert compact_here(either).compacted == ()
    assert repair(either.cluster, TABLE, check_bytes=True).complete


def test_a_dry_run_says_what_and_why_and_changes_nothing(either: SmallCluster) -> None:
    before = live(either, "A")
    report = compact(either.cluster, TABLE, None, dry_run=True, policy=CompactionPolicy(small_files=3))
    assert [(one.files_before, one.files_after, one.reason) for one in report.compacted] == [
        (3, 0, "3 small files")
    ] * 2
    assert live(either, "A") == before
    assert either.cluster.ledger.merges(either.table.table_id) == {}


def test_a_large_result_is_several_files_with_windows_next_to_each_other(
    either: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 1)
    largest = max(file.size for file in live(either, "A"))
    compact_here(either, target_file_bytes=largest * 2 + 2)
    for tablet in (0, 1):
        first, last = either.tokens_of(tablet)
        windows = sorted(file.window for file in live(either, "A") if first <= file.window[0] <= last)
        assert len(windows) > 1
        assert (windows[0][0], windows[-1][1]) == (first, last)
        assert all(one[1] + 1 == other[0] for one, other in pairwise(windows))
    assert_shown(either, EXPECTED)


def test_versions_and_deletes_are_merged_as_a_read_merges_them(table: SmallCluster) -> None:
    write_versions(table, {1: "a", 2: "a", 3: "a"})
    write_versions(table, {1: "b", 2: None})
    write_versions(table, {2: "c", 3: None, 4: "c"})
    compact_here(table)
    assert sum(file.rows for file in live(table, "A")) == 3
    assert_shown(table, {1: "b", 2: "c", 4: "c"})


def test_only_small_files_are_put_together_and_deletes_kept_where_not_all_takes_part(table: SmallCluster) -> None:
    write_versions(table, {row: str([token_of(8 * row + n) for n in range(8)]) for row in range(2000)})
    for row in range(8):
        write_versions(table, {row: None, row + 100: "new"})
    large = {file.file_id for file in live(table, "A") if file.rows > 500}
    report = compact_here(table, policy=CompactionPolicy(small_files=4))
    assert report.compacted
    assert large <= {file.file_id for file in live(table, "A")}
    shown = dict(read_versions(table, "ONE"))
    assert not shown.keys() & set(range(8))
    assert shown[100] == "new"
    assert len(shown) == 1992


def test_what_is_left_of_a_range_without_rows_is_a_file_that_says_so(table: SmallCluster) -> None:
    files = write_versions(table, {1: "a"})
    write_versions(table, {1: None})
    compact_here(table)
    assert [file.rows for file in live(table, "A")] == [0]
    assert_shown(table, {})
    pipeline = table.pipeline("late")
    table.land(pipeline, [batches.StagedFile(file, frozenset(table.volumes("ABC")), {}) for file in files])
    assert_shown(table, {})
    write_versions(table, {2: "b"})
    assert_shown(table, {2: "b"})


# --- what may be forgotten -----------------------------------------------------------------------------------------


def test_a_delete_is_remembered_for_the_grace_and_as_long_as_a_pipeline_from_before_it_lives(
    table: SmallCluster, leases: list[Lease]
) -> None:
    write_versions(table, {1: "a", 2: "a"})
    write_versions(table, {1: None})
    cases = [(3600.0, []), (0.0, [Lease("nightly", "p", 1, (TABLE,), int((time.time() - 60) * 1000), "host", 1)])]
    for grace, alive in cases:
        leases[:] = alive
        report = compact_here(table, tombstone_grace_seconds=grace)
        assert report.purge_before is not None
        assert any(file.has_tombstones for file in live(table, "A"))
        assert_shown(table, {2: "a"})
    leases.clear()
    assert compact_here(table, tombstone_grace_seconds=0.0).compacted
    assert not any(file.has_tombstones for file in live(table, "A"))
    assert_shown(table, {2: "a"})


def test_no_delete_is_forgotten_when_it_cannot_be_asked_which_pipelines_live(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_versions(table, {1: "a"})
    write_versions(table, {1: None})
    without_zookeeper(monkeypatch)
    report = compact_here(table)
    assert report.purge_before is None
    assert "ZooKeeper is away" in str(report.tombstones_kept)
    assert any(file.has_tombstones for file in live(table, "A"))


def test_a_write_from_before_a_delete_that_lands_after_the_compaction_stays_deleted(table: SmallCluster) -> None:
    pipeline = table.pipeline("slow")
    staged = stage_versions(table, pipeline, {1: "late"})
    write_versions(table, {1: "a", 2: "a"})
    write_versions(table, {1: None})
    compact_here(table, tombstone_grace_seconds=60.0)
    table.land(pipeline, staged)
    assert_shown(table, {2: "a"})


# --- stopped half-way ------------------------------------------------------------------------------------------------


@sliced("either", at_least=4)
@pytest.mark.parametrize("reached", ["", "A", "B", "C", "AB", "BC", "AC", "ABC"])
def test_a_compaction_that_reached_some_replicas_shows_every_row_once_and_is_finished_later(
    either: SmallCluster, reached: str
) -> None:
    compact_reaching(either, reached)
    assert [merged_on(either, node) > 0 for node in "ABC"] == [node in reached for node in "ABC"]
    assert_shown(either, EXPECTED)
    write_versions(either, {100: "note 100"})
    assert_shown(either, EXPECTED | {100: "note 100"})
    compact_here(either)
    assert all(len(either.files_on(node, tablet)) == 1 for node in "ABC" for tablet in (0, 1))
    assert_shown(either, EXPECTED | {100: "note 100"})


@sliced("either", "reached")
@pytest.mark.parametrize("reached", ["", "A", "BC"])
def test_the_same_with_the_cluster_at_a_later_epoch(either: SmallCluster, reached: str) -> None:
    compact_reaching(either, reached)
    next_epoch(either)
    report = compact_here(either)
    assert report.voided == (0 if reached else 2)
    assert all(len(either.files_on(node, tablet)) == 1 for node in "ABC" for tablet in (0, 1))
    assert_shown(either, EXPECTED)


def test_killed_before_the_ledger_nothing_has_happened(either: SmallCluster) -> None:
    def merge_and_die(plan: MergePlan) -> list[MergedFile]:
        merge_here(plan)
        raise Killed

    with pytest.raises(Killed):
        compact_here(either, merger=merge_and_die)
    assert_shown(either, EXPECTED)
    assert compact_here(either).complete
    assert merged_on(either, "A") == 2


@sliced("either", "later")
@pytest.mark.parametrize(("later", "settled"), [(False, (2, 0)), (True, (0, 2))])
def test_killed_after_the_ledger_it_is_finished_at_the_same_epoch_and_voided_at_a_later_one(
    either: SmallCluster, monkeypatch: pytest.MonkeyPatch, later: bool, settled: tuple[int, int]
) -> None:
    record = Ledger.record

    def record_and_die(ledger: Ledger, groups: Sequence[Sequence[Merge]]) -> tuple[Merge, ...]:
        record(ledger, groups)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", record_and_die)
        with pytest.raises(Killed):
            compact_here(either)
    assert_shown(either, EXPECTED)
    if later:
        next_epoch(either)
    report = compact_here(either)
    assert (report.finished, report.voided) == settled
    assert all(len(either.files_on(node, tablet)) == 1 for node in "ABC" for tablet in (0, 1))
    assert_shown(either, EXPECTED)


def test_what_cannot_be_settled_yet_stands_in_the_way_and_is_named(either: SmallCluster) -> None:
    compact_reaching(either, "")
    for node in "ABC":
        for file in Path(either.address(node).uri).glob("*/c-*.parquet"):
            file.unlink()
    # Its bytes are gone, and at this epoch its process may still be about to commit it.
    report = compact_here(either)
    assert (report.compacted, report.voided) == ((), 0)
    assert [(one.reason, one.units) for one in report.skipped] == [(PENDING, (0, 1))]
    next_epoch(either)
    with either.without("C"):
        report = compact_here(either)
        assert (report.compacted, report.voided) == ((), 0)
        assert [(one.reason, one.units) for one in report.skipped] == [(UNREACHABLE, (0, 1))]
    assert compact_here(either).voided == 2
    assert merged_on(either, "A") == 2
    assert_shown(either, EXPECTED)


def test_a_process_that_was_paused_between_ledger_and_commit_is_refused_after_its_work_was_voided(
    either: SmallCluster,
) -> None:
    late: list[Callable[[], CommitOutcome]] = []

    def later(*arguments: object, **options: object) -> CommitOutcome:
        late.append(lambda: commit_files(*arguments, **options))  # type: ignore[arg-type]
        return Unreachable("paused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", later)
        compact_here(either)
    next_epoch(either)
    assert compact_here(either).voided == 2
    assert [type(commit()).__name__ for commit in late] == ["FencedOff"] * 3
    assert_shown(either, EXPECTED)


# --- beside others ---------------------------------------------------------------------------------------------------


def test_of_two_compactions_of_a_range_the_ledger_takes_one(either: SmallCluster) -> None:
    reports = []

    def merge_and_be_overtaken(plan: MergePlan) -> list[MergedFile]:
        made = merge_here(plan)
        reports.append(compact_here(either))
        return made

    slow = compact_here(either, merger=merge_and_be_overtaken)
    assert len(reports[0].compacted) == 2
    assert slow.compacted == ()
    assert [(one.reason, one.units) for one in slow.skipped] == [(OVERTAKEN, (0, 1))]
    assert_shown(either, EXPECTED)


def test_a_batch_that_is_landed_again_after_its_files_were_compacted_lands_once(either: SmallCluster) -> None:
    pipeline = either.pipeline("nightly")
    staged = stage_versions(either, pipeline, dict.fromkeys(range(50, 60), "batch"))
    either.land(pipeline, staged)
    expected = EXPECTED | dict.fromkeys(range(50, 60), "batch")
    for reached in ("A", "ABC"):
        compact_reaching(either, reached)
        retry = either.pipeline("nightly")
        opened, failed = retry.gate.planning.open_for_write(either.table)
        located = batches.locate(
            STORAGE, retry.gate.planning.metadata, either.table, staged, opened, failed, either.cluster.ledger
        )
        assert located.lost == ()
        retry.gate.writing.land(either.table, located.files, ConsistencyLevel.QUORUM, located)
        assert_shown(either, expected)


def test_a_batch_is_still_found_when_its_rows_were_compacted_again_and_again_and_its_files_are_deleted(
    either: SmallCluster,
) -> None:
    pipeline = either.pipeline("nightly")
    staged = stage_versions(either, pipeline, dict.fromkeys(range(50, 60), "batch"))
    either.land(pipeline, staged)
    for more in range(3):
        write_versions(either, dict.fromkeys(range(100 * more + 100, 100 * more + 110), "more"))
        compact_here(either)
    for node in "ABC":
        for one in staged:
            (Path(either.address(node).uri) / one.file.path).unlink()
    retry = either.pipeline("nightly")
    opened, failed = retry.gate.planning.open_for_write(either.table)
    ledger = Ledger(STORAGE, either.cluster.root.compactions)
    located = batches.locate(STORAGE, retry.gate.planning.metadata, either.table, staged, opened, failed, ledger)
    assert located.lost == ()
    retry.gate.writing.land(either.table, located.files, ConsistencyLevel.QUORUM, located)
    assert [row for row, _ in read_versions(either, "ALL") if 50 <= row < 60] == list(range(50, 60))


def test_a_range_that_begins_to_move_is_refused_by_its_fence(either: SmallCluster) -> None:
    def merge_and_move(plan: MergePlan) -> list[MergedFile]:
        made = merge_here(plan)
        either.start("C", "X", tablet=0)
        either.until(Stage.WRITE_BOTH_READ_OLD, tablet=0)
        return made

    report = compact_here(either, merger=merge_and_move)
    refused = {place for one in report.compacted for place, why in one.missing.items() if "fenced" in why}
    assert "C/d1" in refused
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(either, level) == sorted(EXPECTED.items())
    assert [one.units for one in compact_here(either).skipped if one.reason == IN_TRANSITION] == [(0,)]
    either.until(None, tablet=0)
    compact_here(either)
    assert either.files_on("X", 0) == either.files_on("A", 0) == either.files_on("B", 0)
    assert len(either.files_on("X", 0)) == 1
    assert either.files_on("C", 0) == set()
    assert read_versions(either, "ALL") == sorted(EXPECTED.items())


@sliced("either", "leaving", "reached")
@pytest.mark.parametrize("leaving", ["A", "B", "C"])
@pytest.mark.parametrize("reached", ["A", "C", "AB"])
def test_a_tablet_moves_after_half_a_compaction(either: SmallCluster, leaving: str, reached: str) -> None:
    compact_reaching(either, reached)
    either.start(leaving, "X", tablet=0)
    either.until(None, tablet=0)
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(either, level) == sorted(EXPECTED.items())
    compact_here(either)
    rest = [node for node in "ABC" if node != leaving]
    assert len({tuple(either.files_on(node, 0)) for node in [*rest, "X"]}) == 1
    assert read_versions(either, "ALL") == sorted(EXPECTED.items())


def test_rebuilding_brings_merged_files_and_not_what_they_have_replaced(either: SmallCluster) -> None:
    compact_reaching(either, "A")
    either.start("C", "X", Kind.REBUILD, tablet=0)
    either.until(None, tablet=0)
    stored = {path.name for path in Path(either.address("X").uri).glob("*/*.parquet")}
    assert stored == {f"{file_id}.parquet" for file_id in either.files_on("A", 0)}
    assert read_versions(either, "QUORUM") == sorted(EXPECTED.items())


def test_a_commit_that_is_repeated_after_its_files_were_compacted_finds_them_there(either: SmallCluster) -> None:
    staged = stage_versions(either, either.pipeline(), dict.fromkeys(range(100, 110), "x"))
    mark = {"epoch": either.metadata.epoch, "app_id": "job", "app_version": 1, "ledger": either.cluster.ledger}

    def commit(node: str) -> CommitOutcome:
        return commit_files(either.address(node), [one.file for one in staged], **mark)  # type: ignore[arg-type]

    assert [type(commit(node)) for node in "ABC"] == [Acknowledged] * 3
    compact_here(either)
    for node in "ABC":
        again = commit(node)
        assert isinstance(again, AlreadyApplied)
        assert again.absent == frozenset()


def test_a_replica_that_could_not_store_the_merged_file_leaves_the_range_as_it_was(either: SmallCluster) -> None:
    def merge_while_c_is_away(plan: MergePlan) -> list[MergedFile]:
        with either.without("C"):
            return merge_here(plan)

    report = compact_here(either, merger=merge_while_c_is_away)
    assert [(one.reason, one.units) for one in report.skipped] == [(NOT_STORED, (0, 1))]
    assert report.compacted == ()
    assert_shown(either, EXPECTED)


def test_without_its_ledger_a_merged_file_is_not_guessed_about(table: SmallCluster) -> None:
    write_versions(table, {1: "a", 2: "a"})
    write_versions(table, {1: "b"})
    compact_reaching(table, "A")
    ledger = Path(table.cluster.root.compactions)
    ledger.rename(ledger.with_name("gone"))
    table.cluster.ledger = Ledger(STORAGE, table.cluster.root.compactions)
    with pytest.raises(StorageUnavailable, match="no entry for the merged file"):
        read_versions(table, "ALL")


@pytest.mark.parametrize("grace", [-1.0, float("nan"), float("inf")])
def test_it_is_refused_with_a_grace_that_is_no_time(table: SmallCluster, grace: float) -> None:
    with pytest.raises(InvalidRequest, match="grace"):
        compact_here(table, tombstone_grace_seconds=grace)
    assert compact_here(table, tombstone_grace_seconds=1e300).complete, "no time is too long"


@pytest.mark.parametrize("size", [0, -1, 1.5, "1MB"])
def test_it_is_refused_with_a_size_of_files_that_is_none(table: SmallCluster, size: object) -> None:
    with pytest.raises(InvalidRequest, match="merged files"):
        compact_here(table, target_file_bytes=size)


def test_a_large_range_is_merged_in_slices_that_are_recorded_and_committed_together(
    either: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "SLICE_BYTES", max(file.size for file in live(either, "A")))
    report = compact_here(either)
    assert [(one.files_before, one.files_after) for one in report.compacted] == [(3, 3), (3, 3)]
    for tablet in (0, 1):
        first, last = either.tokens_of(tablet)
        windows = sorted(file.window for file in live(either, "A") if first <= file.window[0] <= last)
        assert (windows[0][0], windows[-1][1]) == (first, last)
        assert all(one[1] + 1 == other[0] for one, other in pairwise(windows))
    assert_shown(either, EXPECTED)


# --- damaged files -------------------------------------------------------------------------------------------------


def flip(table: SmallCluster, node: str, number: int) -> None:
    """Flip a bit of a value in one of a node's files."""
    file = sorted(live(table, node), key=lambda file: file.path)[number]
    path = Path(table.address(node).uri, file.path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_a_damaged_copy_is_never_merged_and_compaction_heals_by_a_whole_one(either: SmallCluster) -> None:
    # The first tablet's first file would be read on A, whichever it is: so at least one damaged copy is met.
    for number, node in enumerate("AAABCA"):
        flip(either, node, number)
    report = compact_here(either)
    assert (len(report.compacted), report.complete) == (2, True)
    assert_shown(either, EXPECTED)
    assert either.cluster.damage.of(either.table.table_id), "what it met is noted"


def test_a_range_without_a_whole_copy_of_a_file_is_left_alone_and_that_is_no_success(either: SmallCluster) -> None:
    before = {node: live(either, node) for node in "ABC"}
    for node in "ABC":
        flip(either, node, 0)
    report = compact_here(either)
    assert [skipped.reason for skipped in report.skipped] == [compaction.DAMAGED]
    assert (len(report.compacted), report.complete) == (1, False)
    tablet = report.skipped[0].units[0]
    low, high = either.tokens_of(tablet)
    for node in "ABC":
        assert {f.file_id for f in before[node] if low <= f.min_token <= high} == either.files_on(node, tablet)


def test_a_copy_that_rots_after_it_was_looked_at_is_noted_and_another_one_merged(either: SmallCluster) -> None:
    asked: list[MergePlan] = []

    def merger(plan: MergePlan) -> list[MergedFile]:
        asked.append(plan)
        if len(asked) == 1:
            uri = plan.merges[0].sources[0].uri
            data = bytearray(Path(uri).read_bytes())
            data[100] ^= 1
            Path(uri).write_bytes(data)
            raise OSError(f"Spark says: {uri}: CRC checksum verification failed")
        return merge_here(plan)

    report = compact_here(either, merger=merger)
    assert (len(report.compacted), report.complete) == (2, True)
    assert_shown(either, EXPECTED)
    assert len(either.cluster.damage.of(either.table.table_id)) == 1


def test_a_merge_that_fails_for_another_reason_says_so_and_nothing_is_recorded(either: SmallCluster) -> None:
    def merger(plan: MergePlan) -> list[MergedFile]:
        raise OSError(f"Spark says: no room for what is made of {plan.merges[0].sources[0].uri}")

    with pytest.raises(OSError, match="no room"):
        compact_here(either, merger=merger)
    assert either.cluster.ledger.merges(either.table.table_id) == {}
    assert_shown(either, EXPECTED)


def test_a_replica_that_is_away_is_named_and_compacting_is_worth_trying_again(either: SmallCluster) -> None:
    with either.without("B"):
        report = compact_here(either)
    assert (report.compacted, report.complete) == ((), False)
    assert [skipped.reason for skipped in report.skipped] == [UNREACHABLE]
    assert list(report.unreachable) == ["B/d1"]


def test_an_append_that_races_with_the_commit_of_a_merged_file_shows_nothing_twice_and_is_tidied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: list[Lease]
) -> None:
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, append_only=True)
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


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_a_budget_of_bytes_takes_what_readers_pay_most_for_and_the_next_run_goes_on(table: SmallCluster) -> None:
    for part in range(4):
        write_versions(table, dict.fromkeys(ROWS, f"{part}"))
    before = dict.fromkeys(ROWS, "3")
    for left in (1, 0):
        report = compact_here(table, budget=Budget(most_bytes=1))
        assert (len(report.compacted), report.left, report.left_bytes > 0) == (1, left, left > 0)
        assert report.complete
        assert_shown(table, before)
    assert compact_here(table, budget=Budget(most_bytes=1)).compacted == ()


def test_nothing_is_begun_when_the_time_is_over(table: SmallCluster) -> None:
    for part in range(4):
        write_versions(table, dict.fromkeys(ROWS, f"{part}"))
    report = compact_here(table, budget=Budget(seconds=0.0))
    assert (report.compacted, report.left) == ((), 2)
    assert compact_here(table, budget=Budget(seconds=600.0)).left == 0


def test_a_table_says_how_long_its_deletes_are_remembered(table: SmallCluster) -> None:
    for notes in (dict.fromkeys(ROWS, "x"), dict.fromkeys(ROWS)):
        write_versions(table, notes, at=time.time_ns() // 1000 - 60_000_000)
    for grace, kept in ((None, len(ROWS)), (3600.0, len(ROWS)), (30.0, 0)):
        said = CompactionOptions(by_itself=True, tombstone_grace_seconds=grace)
        administration.alter_table(table.cluster, TABLE, OptionChanges(compaction=said))
        compact_here(table, tombstone_grace_seconds=None)
        assert sum(file.rows for file in live(table, "A")) == kept
        assert_shown(table, {})


# --- without repair, as the coordinator does it ---------------------------------------------------------------------


def test_what_only_some_replicas_have_is_left_and_the_rest_is_put_together(either: SmallCluster) -> None:
    with either.without("C"):
        write_versions(either, dict.fromkeys(range(40, 50), "late"))
    expected = EXPECTED | dict.fromkeys(range(40, 50), "late")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "repair", lambda *_, **__: pytest.fail("it repairs"))
        report = compact_here(either, repairing=False)
    assert [(one.files_before, one.files_after) for one in report.compacted] == [(3, 1), (3, 1)]
    assert report.complete
    assert [len(live(either, node)) for node in "ABC"] == [4, 4, 2]
    assert [merged_on(either, node) for node in "ABC"] == [2, 2, 2]
    for level in ("QUORUM", "ALL"):
        assert read_versions(either, level) == sorted(expected.items())
    assert repair(either.cluster, TABLE).complete
    assert_shown(either, expected)
    compact_here(either, repairing=False)
    assert [len(live(either, node)) for node in "ABC"] == [2, 2, 2]
    assert_shown(either, expected)


def test_no_delete_is_forgotten_where_replicas_differ(table: SmallCluster) -> None:
    with table.without("BC"):
        write_versions(table, dict.fromkeys(ROWS, "old"), at=1_000, level="ONE")
    for at in (2_000, 3_000):
        write_versions(table, dict.fromkeys(ROWS), at=at)
    report = compact_here(table, repairing=False)
    assert [(one.files_after, one.purges_tombstones) for one in report.compacted] == [(1, False)] * 2
    assert_shown(table, {})
    repair(table.cluster, TABLE)
    assert_shown(table, {})
    assert [one.purges_tombstones for one in compact_here(table, repairing=False).compacted] == [True] * 2
    assert_shown(table, {})


@pytest.mark.parametrize("reached", ["A", "AB"])
def test_merged_files_that_did_not_reach_all_replicas_are_brought_to_the_rest(
    either: SmallCluster, reached: str
) -> None:
    with either.without("C"):
        write_versions(either, {50: "late"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", reaching(either.volumes(reached)))
        compact_here(either, repairing=False)
    assert [merged_on(either, node) for node in "ABC"] == [2 * (node in reached) for node in "ABC"]
    lacked = len(live(either, "C"))
    report = compact_here(either, repairing=False, budget=Budget(most_bytes=1))
    assert report.spread > 0
    compact_here(either, repairing=False)
    assert [merged_on(either, node) for node in "ABC"] == [2, 2, 2]
    assert len(live(either, "C")) < lacked  # and not what was written to the others
    assert compact_here(either, repairing=False).spread == 0
    expected = EXPECTED | {50: "late"}
    assert read_versions(either, "ALL") == sorted(expected.items())
    assert repair(either.cluster, TABLE).complete
    assert_shown(either, expected)
