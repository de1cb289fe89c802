"""A file that is missing or damaged on one replica is read on another; what cannot be read whole is an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs.gate.errors import ReadDisturbed, RowsUnreadable
from epochlake.jobs.replicas.commits import pre_split
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.placement.consistency import ConsistencyLevel

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import reaching, without_leases
from tests.support.slices import sliced
from tests.support.versions import compact_here, read_versions, write_versions

TABLE = "air.flights"
LEVELS = ("ONE", "QUORUM", "ALL")
EXPECTED = [(row, f"note {row}") for row in range(30)]


@pytest.fixture(params=[False, True], ids=["versions", "append-only"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)
    table = placed(tmp_path, FOUR, "ABC", append_only=request.param)
    for part in range(3):
        write_versions(table, {row: note for row, note in EXPECTED if row % 3 == part}, level="ALL")
    return table


def copies(table: SmallCluster, node: str) -> list[Path]:
    """Where the live files of a node are stored."""
    address = table.address(node)
    return [Path(address.uri, file.path) for file in open_snapshot(address).all_files.values()]


def flip_in_footer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-int.from_bytes(data[-8:-4], "little")] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "zeroes": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a flipped bit in the footer": flip_in_footer,
}


@sliced(at_least=5)
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_copy_is_read_on_another_replica_at_every_level_and_noted(
    table: SmallCluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = [copies(table, node)[number] for number, node in enumerate("ABC")]
    for path in damaged:
        DAMAGES[how](path)
    for level in LEVELS:
        assert read_versions(table, level) == EXPECTED
    noted = {note.path for note in table.cluster.damage.of(table.table.table_id)}
    assert noted, "whatever was met is remembered"
    assert noted <= {f"{path.parent.name}/{path.name}" for path in damaged}
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert all(any(path in text and "/d1" in text for text in warned) for path in noted), "named with its replica"
    caplog.clear()
    assert read_versions(table, "ALL") == EXPECTED


def test_rows_without_any_whole_copy_are_an_error_that_names_them(table: SmallCluster) -> None:
    for node in "ABC":
        copies(table, node)[0].unlink()
    for level in LEVELS:
        with pytest.raises(RowsUnreadable, match="the file is not there") as raised:
            read_versions(table, level)
        assert raised.value.exit_code == 1
        assert {copy.split("/")[0] for copy in raised.value.damaged} == {"A", "B", "C"}


def test_a_replica_that_is_away_may_have_the_rows_so_that_reading_again_is_worth_it(table: SmallCluster) -> None:
    for node in "AB":
        copies(table, node)[0].unlink()
    with table.without("C"), pytest.raises(RowsUnreadable, match="does not answer") as raised:
        read_versions(table, "QUORUM")
    assert raised.value.exit_code == 75
    assert read_versions(table, "QUORUM") == EXPECTED


def test_a_noted_copy_that_is_whole_again_serves_when_no_other_does(table: SmallCluster) -> None:
    kept = {path: path.read_bytes() for node in "ABC" for path in copies(table, node)}
    for node in "AB":
        copies(table, node)[0].unlink()
    assert read_versions(table, "ALL") == EXPECTED
    copies(table, "C")[0].unlink()
    first = copies(table, "A")[0]
    first.write_bytes(kept[first])
    for level in LEVELS:
        assert read_versions(table, level) == EXPECTED


def test_rows_of_a_damaged_file_are_read_of_pieces_and_the_other_way_round(table: SmallCluster) -> None:
    assert pre_split(table.address("B"), [0, 2**62], table.metadata.epoch) == 0
    for whole in "AC":
        for path in copies(table, whole):
            path.unlink()
    for level in LEVELS:
        assert read_versions(table, level) == EXPECTED


@sliced(at_least=3)
@pytest.mark.parametrize("merged_on", ["A", "AB", "C"])
def test_rows_of_half_a_compaction_are_read_of_whichever_side_is_whole(table: SmallCluster, merged_on: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", reaching(table.volumes(merged_on)))
        compact_here(table)
    for level in LEVELS:
        assert read_versions(table, level) == EXPECTED, "what a merged file stands for is shown once"
    kept = {path: path.read_bytes() for node in "ABC" for path in copies(table, node)}
    for bad in (set(merged_on), set("ABC") - set(merged_on)):
        for node in bad:
            for path in copies(table, node):
                path.unlink()
        for level in LEVELS:
            assert read_versions(table, level) == EXPECTED
        for path, data in kept.items():
            path.write_bytes(data)
        table.cluster.damage.clear(table.cluster.damage.of(table.table.table_id))


def test_a_merged_file_is_not_taken_for_whole_when_one_of_its_parts_is_gone(table: SmallCluster) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "commit_files", reaching(table.volumes("A")))
        compact_here(table)
    merged = [file for file in open_snapshot(table.address("A")).all_files.values() if file.is_merged]
    assert merged
    for path in copies(table, "A"):
        path.unlink()
    copies(table, "B")[0].unlink()
    assert read_versions(table, "QUORUM") == EXPECTED, "C has it"
    copies(table, "C")[0].unlink()
    same = copies(table, "B")[0].name == copies(table, "C")[0].name
    if same:
        with pytest.raises(RowsUnreadable):
            read_versions(table, "QUORUM")
    else:
        assert read_versions(table, "QUORUM") == EXPECTED


def test_an_error_while_a_frame_is_executed_is_told_as_damage_and_the_next_read_goes_elsewhere(
    table: SmallCluster,
) -> None:
    pipeline = table.pipeline("reader")
    plan = pipeline.gate.planned_read(table.table, ConsistencyLevel.ONE)
    bad = plan.copies[0]
    path = Path(bad.uri)
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    error = RuntimeError(f"[FAILED_READ_FILE] Encountered error while reading file file://{bad.uri}")
    with pytest.raises(ReadDisturbed, match="/d1") as raised:
        pipeline.__exit__(RuntimeError, error, None)
    assert raised.value.exit_code == 75
    assert raised.value.__cause__ is error
    for level in LEVELS:
        again = table.pipeline("again").gate.planned_read(table.table, ConsistencyLevel.parse(level))
        assert bad.uri not in {copy.uri for copy in again.copies}


def test_an_error_that_is_not_about_damage_stays_as_it_is(table: SmallCluster) -> None:
    pipeline = table.pipeline("reader")
    plan = pipeline.gate.planned_read(table.table, ConsistencyLevel.ONE)
    pipeline.__exit__(RuntimeError, RuntimeError(f"out of memory near {plan.copies[0].uri}"), None)
    assert table.cluster.damage.of(table.table.table_id) == []


def test_notes_that_cannot_be_kept_or_read_do_not_stop_a_read(table: SmallCluster) -> None:
    Path(table.cluster.damage.uri).write_text("a file where a directory belongs")
    copies(table, "A")[0].unlink()
    for level in LEVELS:
        assert read_versions(table, level) == EXPECTED


def test_reads_begin_with_different_replicas(table: SmallCluster) -> None:
    gates = [table.pipeline(f"reader {number}").gate for number in range(20)]
    firsts = {gate.planned_read(table.table, ConsistencyLevel.ALL).copies[0].address.volume_id for gate in gates}
    assert len(firsts) == 3
