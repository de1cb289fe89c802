"""Repair: replicas get what they miss, damaged files are healed, nothing is brought back that was given up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs.gate.errors import RowsUnreadable
from epochlake.jobs.replicas import damage, row_groups
from epochlake.jobs.replicas.commits import pre_split
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.comparing import IN_TRANSITION, Range
from epochlake.jobs.upkeep.healing import Surroundings, heal_by_rows
from epochlake.jobs.upkeep.repair import look, repair
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.storage import FileEntry, Storage
from epochlake.placement.tablets.transitions import Stage
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import reaching, without_leases
from tests.support.versions import compact_here, read_versions, write_versions

TABLE = "air.flights"
HALVES = ((MIN_TOKEN, 0), (1, MAX_TOKEN))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})


def stored_path(table: SmallCluster, node: str, number: int = 0) -> Path:
    """Where one of the live files of a node is stored."""
    address = table.address(node)
    files = sorted(open_snapshot(address).all_files.values(), key=lambda file: file.path)
    return Path(address.uri, files[number].path)


def flip(path: Path, position: float = 0.4) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * position)] ^= 0xFF
    path.write_bytes(data)


def test_a_replica_gets_the_files_that_it_has_missed(table: SmallCluster) -> None:
    write_versions(table, dict.fromkeys(range(50), "old"))
    with table.without("C"):
        write_versions(table, dict.fromkeys(range(0, 50, 2), "new"))
    assert table.files_on("C") != table.files_on("A")
    planned = repair(table.cluster, TABLE, dry_run=True)
    assert (planned.differing, planned.complete) == (2, False)
    assert table.files_on("C") != table.files_on("A")
    done = repair(table.cluster, TABLE)
    assert (done.differing, done.complete) == (2, True)
    assert [(one.replica, one.files) for one in done.replicas] == [("C/d1", 2)]
    for tablet in (0, 1):
        assert table.files_on("A", tablet) == table.files_on("B", tablet) == table.files_on("C", tablet)
    assert repair(table.cluster, TABLE).differing == 0


def test_replicas_that_lack_something_of_each_other_are_repaired_in_one_go(table: SmallCluster) -> None:
    for lost in "ABC":
        with table.without(lost):
            write_versions(table, dict.fromkeys(range(20), f"without {lost}"))
    assert repair(table.cluster, TABLE).complete
    expected = [(row, "without C") for row in range(20)]
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(table, level) == expected
    for lost in ("AB", "BC", "CA"):
        with table.without(lost):
            assert read_versions(table, "ONE") == expected


def test_a_replica_that_has_a_file_in_pieces_lacks_only_what_is_in_no_piece(table: SmallCluster) -> None:
    write_versions(table, dict.fromkeys(range(50), "x"))
    middle = -(2**62)
    assert pre_split(table.address("A"), [middle], table.metadata.epoch) == 0
    assert table.files_on("A") != table.files_on("B")
    report = repair(table.cluster, TABLE)
    assert (report.differing, report.complete) == (0, True)


def test_pieces_that_have_other_bytes_on_each_replica_are_brought_as_their_source_has_them(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.without("C"):
        write_versions(table, dict.fromkeys(range(50), "x"))
    middles = [-(2**62), 2**62]
    assert pre_split(table.address("A"), middles, table.metadata.epoch) == 0
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 2)
    assert pre_split(table.address("B"), middles, table.metadata.epoch) == 0
    sizes = [sorted(file.size for file in table.files_within(node)) for node in "AB"]
    assert sizes[0] != sizes[1]
    assert repair(table.cluster, TABLE).complete
    report = repair(table.cluster, TABLE, check_bytes=True)
    assert (report.differing, report.damaged, report.complete) == (0, (), True)


@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(b""), Path.unlink])
def test_a_commit_that_rots_after_this_process_has_read_it_is_told_by_its_repair_too(
    table: SmallCluster, harm: Callable[[Path], object]
) -> None:
    for turn in range(6):
        write_versions(table, dict.fromkeys(range(9), f"turn {turn}"))
    address = table.address("A")
    rotten = Path(delta_commits.commit_uri(address.uri, open_snapshot(address).version - 2))
    assert repair(table.cluster, TABLE).complete
    harm(rotten)
    assert "is torn" in str(repair(table.cluster, TABLE, dry_run=True).unreachable)
    report = repair(table.cluster, TABLE)
    assert ([*report.unreachable], report.complete) == ([table.cluster.metadata.describe(address.volume_id)], False)
    # From now on this process counts on it no more than others do.
    with pytest.raises(StorageUnavailable, match="is torn"):
        open_snapshot(address)
    assert dict(read_versions(table)) == dict.fromkeys(range(9), "turn 5")


def test_a_checkpoint_that_rots_after_this_process_has_read_it_is_put_aside_by_its_repair(table: SmallCluster) -> None:
    for turn in range(14):
        write_versions(table, {turn: "new"})
    [checkpoint] = Path(table.address("A").uri, "_delta_log").glob("*.checkpoint.parquet")
    flip(checkpoint)
    assert repair(table.cluster, TABLE).complete
    assert not checkpoint.exists()


def test_a_ledger_that_rots_after_this_process_has_read_it_is_told_by_its_repair_too(table: SmallCluster) -> None:
    write_versions(table, dict.fromkeys(range(9), "old"))
    write_versions(table, dict.fromkeys(range(9), "new"))
    assert compact_here(table).complete
    assert repair(table.cluster, TABLE).complete
    flip(Path(delta_commits.commit_uri(table.cluster.ledger.uri, 1)))
    with pytest.raises(StorageUnavailable, match="the ledger of compactions is damaged"):
        repair(table.cluster, TABLE)


def test_ranges_in_transition_are_left_alone_and_named(table: SmallCluster) -> None:
    with table.without("C"):
        write_versions(table, dict.fromkeys(range(50), "x"))
    table.start("C", "X", tablet=0)
    table.until(Stage.WRITE_BOTH_READ_OLD, tablet=0)
    report = repair(table.cluster, TABLE)
    assert [(one.reason, one.units) for one in report.skipped] == [(IN_TRANSITION, (0,))]
    assert not report.complete
    assert table.files_on("C", 0) == set()
    assert table.files_on("C", 1) == table.files_on("A", 1) != set()


def test_a_repair_planned_before_a_tablet_moved_is_refused_and_planned_again(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C gives the tablet up between the plan and the copy: nothing of it may come back to C."""
    from epochlake.jobs.upkeep import repair as module

    with table.without("C"):
        write_versions(table, dict.fromkeys(range(50), "x"))
    plan = module.plan_copies
    calls = []

    def plan_and_move(*arguments: object) -> object:
        planned = plan(*arguments)  # type: ignore[arg-type]
        if not calls:
            table.start("C", "X", tablet=0)
            table.until(None, tablet=0)
        calls.append(planned)
        return planned

    monkeypatch.setattr(module, "plan_copies", plan_and_move)
    report = repair(table.cluster, TABLE)
    assert len(calls) == 2
    assert report.complete
    assert table.files_on("C", 0) == set()
    assert table.files_on("X", 0) == table.files_on("A", 0) != set()
    assert table.files_on("C", 1) == table.files_on("A", 1)


def test_a_replica_table_that_was_lost_is_reported_and_not_made_anew(table: SmallCluster) -> None:
    write_versions(table, dict.fromkeys(range(50), "x"))
    place = Path(table.address("B").uri)
    place.rename(place.with_name("gone"))
    report = repair(table.cluster, TABLE)
    assert not report.complete
    assert "was lost" in report.unreachable["B/d1"]
    assert not place.exists()
    with pytest.raises(StorageUnavailable):
        open_snapshot(table.address("B"))


@pytest.mark.parametrize("position", [0.1, 0.3, 0.6, 0.8])
def test_bytes_that_changed_in_storage_are_found_and_healed_from_a_good_replica(
    table: SmallCluster, position: float
) -> None:
    write_versions(table, {row: f"note {row}" for row in range(200)})
    path = stored_path(table, "B")
    good = path.read_bytes()
    flip(path, position)
    assert repair(table.cluster, TABLE).damaged == ()
    found = repair(table.cluster, TABLE, check_bytes=True, dry_run=True)
    assert [(one.replica, one.healed) for one in found.damaged] == [("B/d1", False)]
    assert path.read_bytes() != good
    healed = repair(table.cluster, TABLE, check_bytes=True)
    assert [(one.replica, one.healed, one.obstacle) for one in healed.damaged] == [("B/d1", True, None)]
    assert healed.checked_files == 6
    assert path.read_bytes() == good
    assert repair(table.cluster, TABLE, check_bytes=True).damaged == ()


def test_files_that_are_torn_or_gone_are_found_without_reading_any(table: SmallCluster) -> None:
    write_versions(table, {row: f"note {row}" for row in range(200)})
    torn, gone = stored_path(table, "A", 0), stored_path(table, "B", 1)
    torn.write_bytes(torn.read_bytes()[:100])
    gone.unlink()
    report = repair(table.cluster, TABLE)
    assert [(one.replica, one.healed) for one in report.damaged] == [("A/d1", True), ("B/d1", True)]
    assert report.complete
    assert read_versions(table, "ALL") == [(row, f"note {row}") for row in range(200)]


def test_a_file_that_is_damaged_everywhere_is_neither_healed_nor_copied(table: SmallCluster) -> None:
    with table.without("C"):
        write_versions(table, {row: f"note {row}" for row in range(200)})
    for node in "AB":
        flip(stored_path(table, node))
    report = repair(table.cluster, TABLE, check_bytes=True)
    assert [(one.replica, one.healed) for one in report.damaged] == [("A/d1", False), ("B/d1", False)]
    assert not report.complete
    assert len(table.files_on("C", 0) | table.files_on("C", 1)) == 1


def test_of_bytes_that_all_decode_but_differ_most_votes_win() -> None:
    from epochlake.jobs.replicas.damage import Checked, outvoted

    good, odd = Checked("one", None), Checked("two", None)
    bad = Checked(None, "torn")
    cases = [
        ([good, good, good], set()),
        ([good, odd, good], {1}),
        ([good, odd], {0, 1}),
        ([good, bad], set()),
        ([good, odd, bad, odd], {0}),
    ]
    for found, losers in cases:
        assert set(outvoted([(None, one) for one in found])) == losers  # type: ignore[misc]


# --- healing by rows -----------------------------------------------------------------------------------------------


def damage_all(table: SmallCluster, node: str) -> None:
    address = table.address(node)
    for number in range(len(open_snapshot(address).all_files)):
        flip(stored_path(table, node, number))


def assert_healed(table: SmallCluster, expected: list[tuple[int, str]]) -> None:
    report = repair(table.cluster, TABLE, check_bytes=True)
    assert report.complete, report
    assert all(file.healed for file in report.damaged)
    again = repair(table.cluster, TABLE, check_bytes=True)
    assert (again.damaged, again.differing) == ((), 0)
    assert table.cluster.damage.of(table.table.table_id) == []
    for lost in ("AB", "BC", "CA"):
        with table.without(lost):
            assert read_versions(table, "ONE") == expected


def test_whole_files_are_healed_by_pieces_and_pieces_by_whole_files(table: SmallCluster) -> None:
    expected = write_some(table)
    assert pre_split(table.address("B"), [-(2**62), 0, 2**62], table.metadata.epoch) == 0
    damage_all(table, "A")
    damage_all(table, "C")
    assert_healed(table, expected)
    damage_all(table, "B")
    assert_healed(table, expected)


def test_a_piece_is_healed_by_a_piece_of_the_same_rows_with_other_bytes(table: SmallCluster) -> None:
    expected = write_some(table)
    for node in "AB":
        assert pre_split(table.address(node), [0], table.metadata.epoch) == 0
    address = table.address("A")
    for file in list(open_snapshot(address).all_files.values()):
        # The same rows with other bytes: as if it had been cut out of another piece by another version.
        path = Path(address.uri, file.path)
        path.write_bytes(path.read_bytes()[:-1])
    damage_all(table, "C")
    assert_healed(table, expected)


@pytest.mark.parametrize("merged_on", ["A", "AB"])
@pytest.mark.parametrize("bad", ["merged", "not merged"])
def test_merged_files_are_healed_by_what_they_replace_and_the_other_way_round(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, merged_on: str, bad: str
) -> None:
    expected = write_some(table)
    without_leases(monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", reaching(table.volumes(merged_on)))
        compact_here(table)
    for node in merged_on if bad == "merged" else set("ABC") - set(merged_on):
        damage_all(table, node)
    assert_healed(table, expected)
    assert compact_here(table).complete, "what is left of the half compaction stands in nobody's way"
    assert_healed(table, expected)


def test_what_reads_have_noted_is_looked_at_without_reading_everything(table: SmallCluster) -> None:
    expected = write_some(table)
    flip(stored_path(table, "A"))
    [stored] = [
        ExpectedFile(file, table.address("A"))
        for file in open_snapshot(table.address("A")).all_files.values()
        if file.path == str(stored_path(table, "A").relative_to(table.address("A").uri))
    ]
    table.cluster.damage.add(table.table.table_id, [(stored, "a read met it")])
    report = repair(table.cluster, TABLE)
    assert [(file.replica, file.healed) for file in report.damaged] == [("A/d1", True)]
    assert report.checked_files == 1
    assert_healed(table, expected)


def test_a_damaged_file_whose_rows_are_nowhere_else_stays_and_is_noted(table: SmallCluster) -> None:
    write_some(table)
    for node in "ABC":
        flip(stored_path(table, node))
    report = repair(table.cluster, TABLE, check_bytes=True)
    assert not report.complete
    assert [(file.healed, "backup" in (file.obstacle or "")) for file in report.damaged] == [(False, True)] * 3
    assert len(table.cluster.damage.of(table.table.table_id)) == 3
    for node in "ABC":
        assert stored_path(table, node).exists()


def test_damaged_files_whose_rows_are_nowhere_else_are_given_up_when_that_is_accepted(table: SmallCluster) -> None:
    expected = write_some(table)
    with table.without("BC"):
        write_versions(table, {100: "only at A"}, level="ONE")
    [lost] = [path for path in all_paths(table, "A") if path not in all_paths(table, "A", like="B")]
    flip(lost)
    assert not repair(table.cluster, TABLE, check_bytes=True).complete
    assert read_versions(table, "QUORUM") == expected, "as if its replica did not answer"
    with pytest.raises(RowsUnreadable) as raised:
        read_versions(table, "ALL")
    assert "--accept-loss" in raised.value.hint
    with table.without("B"):
        [file] = repair(table.cluster, TABLE, check_bytes=True, accept_loss=True).damaged
        assert (file.given_up, "does not answer" in (file.obstacle or "")) == (False, True)
    would = repair(table.cluster, TABLE, check_bytes=True, accept_loss=True, dry_run=True)
    assert not any(file.given_up for file in would.damaged)
    report = repair(table.cluster, TABLE, check_bytes=True, accept_loss=True)
    assert [(file.replica, file.given_up, file.healed) for file in report.damaged] == [("A/d1", True, False)]
    assert report.complete
    for level in ("ONE", "QUORUM", "ALL"):
        assert read_versions(table, level) == expected
    assert table.cluster.damage.of(table.table.table_id) == []
    assert repair(table.cluster, TABLE, check_bytes=True).damaged == ()


def test_nothing_is_given_up_while_a_copy_cannot_be_read_that_may_be_the_whole_one(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = write_some(table)
    path, closed, other = (stored_path(table, node) for node in "ABC")
    assert path.name == closed.name == other.name
    flip(path)
    flip(other)
    intact = damage.require_intact

    def denied(storage: Storage, file: DataFile, uri: str) -> bytes | None:
        if uri.endswith(str(closed)):
            raise StorageUnavailable(f"{uri} cannot be read: Permission denied")
        return intact(storage, file, uri)

    with monkeypatch.context() as patch:
        patch.setattr(damage, "require_intact", denied)
        report = repair(table.cluster, TABLE, check_bytes=True, accept_loss=True)
        assert not report.complete
        assert [file.is_settled for file in report.damaged] == [False] * 3
        assert all(f"{closed.name} on B/d1 could not be read" in (file.obstacle or "") for file in report.damaged)
    assert repair(table.cluster, TABLE, check_bytes=True, accept_loss=True).complete
    assert read_versions(table, "ALL") == expected


def test_a_replica_whose_files_cannot_be_listed_is_named_and_that_is_no_success(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(table)
    stored_path(table, "B").unlink()
    listed = Storage.list_files

    def fails(storage: Storage, uri: str) -> list[FileEntry]:
        if uri == table.address("B").uri:
            raise StorageUnavailable(f"{uri} cannot be listed: Input/output error")
        return listed(storage, uri)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "list_files", fails)
        report = repair(table.cluster, TABLE)
        assert not report.complete
        assert "Input/output error" in report.unreachable["B/d1"]
    assert repair(table.cluster, TABLE).complete


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "gone"])
def test_a_damaged_file_of_a_tablet_that_moves_is_healed(table: SmallCluster, damage: Callable[[Path], object]) -> None:
    expected = write_some(table)
    table.start("C", "X", tablet=0)
    table.until(Stage.WRITE_BOTH_READ_OLD, tablet=0)
    before = stored_path(table, "A").read_bytes()
    damage(path := stored_path(table, "A"))
    report = repair(table.cluster, TABLE, check_bytes=True)
    assert [(file.replica, file.healed) for file in report.damaged] == [("A/d1", True)]
    assert not report.complete, "a range is in transition"
    assert path.read_bytes() == before
    assert read_versions(table, "ALL") == expected


@pytest.mark.parametrize("leaves", [True, False], ids=["left already", "still moving"])
def test_a_damaged_file_is_healed_although_a_range_moves_that_its_replica_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """As when old storage came back with a file from before a split, and clean-up waits for it to be cut."""
    without_zookeeper(monkeypatch)
    table = placed(tmp_path, FOUR, "ABC")
    write_some(table)
    for node in "AB":
        assert pre_split(table.address(node), [0], table.metadata.epoch) == 0
    damage_all(table, "C")
    view = look(table.cluster, TABLE)
    low, high = (Range(n, n, f"{n}-1", *bounds, table.volumes("ABC")) for n, bounds in enumerate(HALVES))
    moving = msgspec.structs.replace(low, replicas=table.volumes("ABX" if leaves else "ABCX"))
    among = Surroundings(view.metadata.fence, (high,), (moving,), view.snapshots, view.lineage, {})
    damaged = {(table.volume("C"), file.path) for file in open_snapshot(table.address("C")).all_files.values()}
    answers = heal_by_rows(damaged, among, Copier(), table.cluster.ledger)
    if leaves:
        assert set(answers.values()) == {None}
        assert table.rows_on("C") == table.rows_on("A", *HALVES[1]) != []
    else:
        assert all(answer is not None and "is moving now" in answer for answer in answers.values())
        assert {(table.volume("C"), f.path) for f in open_snapshot(table.address("C")).all_files.values()} == damaged


def all_paths(table: SmallCluster, node: str, like: str = "") -> list[Path]:
    """Where the live files of a node are, or would be if it had those of another one."""
    files = open_snapshot(table.address(like or node)).all_files.values()
    return [Path(table.address(node).uri, file.path) for file in files]


def write_some(table: SmallCluster) -> list[tuple[int, str]]:
    for part in range(3):
        write_versions(table, {row: f"note {row}" for row in range(part, 60, 3)})
    return [(row, f"note {row}") for row in range(60)]
