"""Repair: replicas get what they miss, damaged files are healed, nothing is brought back that was given up."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs.dataplane.comparing import IN_TRANSITION
from epochlake.jobs.dataplane.replica import open_snapshot
from epochlake.jobs.repair import repair
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.transitions import Stage

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.versions import read_versions, write_versions

TABLE = "air.flights"


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
    from epochlake.jobs.dataplane.commits import segregate

    write_versions(table, dict.fromkeys(range(50), "x"))
    middle = -(2**62)
    assert segregate(table.address("A"), [middle], table.metadata.epoch) == 0
    assert table.files_on("A") != table.files_on("B")
    report = repair(table.cluster, TABLE)
    assert (report.differing, report.complete) == (0, True)


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
    from epochlake.jobs import repair as module

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
    from epochlake.jobs.dataplane.damage import Checked, outvoted

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
