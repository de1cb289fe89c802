"""Entries whose data file is damaged or gone are put back from other files where that is certain, or given up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import HashMismatch, LogUnreadable, LogWentBack, StorageUnavailable
from epochlake.metastore.log import restoring
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed
from epochlake.metastore.log.files import write_entries
from epochlake.metastore.log.restoring import Lost, plan_restoring, restore
from epochlake.metastore.log.shortening import ShortLog

from tests.support.failures import no_room_to_write
from tests.support.logs import chain
from tests.support.storages import STORAGE

ENTRIES = chain(8)


def _gone(path: Path) -> None:
    path.unlink()


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flipped(path: Path) -> None:
    """One bit, the first from a third on that is noticed: nothing checks some of those between the pages."""
    whole = path.read_bytes()
    for place in range(len(whole) // 3, len(whole)):
        data = bytearray(whole)
        data[place] ^= 4
        try:
            pq.ParquetFile(pa.BufferReader(bytes(data)), page_checksum_verification=True).read()
        except (OSError, pa.ArrowException):
            path.write_bytes(data)
            return
    raise AssertionError(f"no bit of {path} is checked")


DAMAGE: list[Callable[[Path], None]] = [_gone, _torn, _empty, _flipped]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    return uri


def appended(uri: str, entries: list[Entry]) -> list[Path]:
    """Append entries one by one; the data file of each."""
    log, files = DeltaLog(STORAGE, uri), []
    for entry in entries:
        there = set(Path(uri).glob("*.parquet"))
        log.read(entry.epoch - 1)
        log.append([entry])
        files += set(Path(uri).glob("*.parquet")) - there
    return files


def compacted(uri: str) -> Path:
    there = set(Path(uri).glob("*.parquet"))
    DeltaLog(STORAGE, uri).compact()
    [made] = set(Path(uri).glob("*.parquet")) - there
    return made


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("later", [3, 0])
def test_what_compaction_put_together_is_found_in_the_files_that_it_replaced(
    uri: str, damage: Callable[[Path], None], later: int
) -> None:
    appended(uri, ENTRIES[:5])
    made = compacted(uri)
    appended(uri, ENTRIES[5 : 5 + later])
    damage(made)
    with pytest.raises(LogUnreadable, match="epochlake log heal"):
        DeltaLog(STORAGE, uri).read(0)
    [planned] = plan_restoring(STORAGE, uri)
    assert planned.epochs == ((1, 5),)
    with pytest.raises(LogUnreadable):
        DeltaLog(STORAGE, uri).read(0)
    assert restore(STORAGE, uri) == [planned]
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES[: 5 + later]
    assert plan_restoring(STORAGE, uri) == restore(STORAGE, uri) == []
    appended(uri, ENTRIES[5 + later :])
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_entry_that_lies_nowhere_else_is_lost_and_said_so(uri: str, damage: Callable[[Path], None]) -> None:
    files = appended(uri, ENTRIES)
    damage(files[4])
    for attempt in (plan_restoring, restore):
        with pytest.raises(Lost, match="epochs 5 to 8 are lost for good, run `epochlake log accept-loss`") as caught:
            attempt(STORAGE, uri)
        assert (caught.value.after, caught.value.last, caught.value.epochs) == (4, 8, (5, 8))
        assert files[4].name in str(caught.value)
    assert DeltaLog(STORAGE, uri).read(5) == ENTRIES[5:], "nothing was changed"


def test_an_entry_at_the_end_is_only_taken_from_what_a_commit_has_named(uri: str) -> None:
    files = appended(uri, ENTRIES[:4])
    write_entries(
        STORAGE, uri, [ENTRIES[3]]
    )  # of somebody who was killed before the commit: it could have been another one
    files[-1].unlink()
    with pytest.raises(Lost, match="no file that a commit has named"):
        restore(STORAGE, uri)


def test_an_entry_at_the_end_that_only_a_checkpoint_remembers_as_named_is_put_back(uri: str) -> None:
    appended(uri, ENTRIES[:4])
    made = compacted(uri)
    log = Path(uri, "_delta_log")
    DeltaTable(uri).create_checkpoint()
    for commit in log.glob("*.json"):
        commit.unlink()
    _torn(made)
    assert [one.epochs for one in restore(STORAGE, uri)] == [((1, 4),)]
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES[:4]


def test_entries_by_somebody_else_are_never_taken_for_those_that_are_lost(uri: str) -> None:
    files = appended(uri, ENTRIES)
    write_entries(STORAGE, uri, chain(3, position_of(ENTRIES[1]), tag="another"))
    write_entries(STORAGE, uri, [ENTRIES[3]])
    files[2].unlink()
    with pytest.raises(Lost, match="by its hashes"):
        restore(STORAGE, uri)
    write_entries(STORAGE, uri, ENTRIES[1:4])
    assert [one.epochs for one in restore(STORAGE, uri)] == [((3, 3),)]
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES


def test_a_damaged_file_whose_entries_are_in_whole_files_of_the_log_is_taken_out(uri: str) -> None:
    files = appended(uri, ENTRIES[:4])
    twice = json.loads(Path(uri, "_delta_log", f"{2:020}.json").read_text().splitlines()[1])
    copy = write_entries(STORAGE, uri, [ENTRIES[1]])
    twice["add"]["path"], twice["add"]["size"] = copy.path, copy.size
    assert delta_commits.put_commit(STORAGE, delta_commits.CommitName(uri, 5), "WRITE", [twice])
    _torn(files[1])
    assert [one.epochs for one in restore(STORAGE, uri)] == [()]
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES[:4]


def test_an_entry_that_is_not_what_its_hash_says_is_damaged_too(uri: str) -> None:
    files = appended(uri, ENTRIES[:4])
    made = compacted(uri)
    forged = [*ENTRIES[:2], msgspec.structs.replace(ENTRIES[2], reason="forged"), ENTRIES[3]]
    other = write_entries(STORAGE, uri, forged)
    os.replace(Path(uri, other.path), made)
    assert [one.epochs for one in restore(STORAGE, uri)] == [((1, 4),)]
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES[:4]
    assert all(file.exists() for file in files)


def test_two_who_restore_at_once_and_an_append_meanwhile_change_nothing_twice(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(uri, ENTRIES[:4])
    _torn(compacted(uri))
    whole, rest = restoring.look, [ENTRIES[4:5], ENTRIES[5:6]]

    def disturbed(*arguments: object) -> object:
        found = whole(*arguments)  # type: ignore[arg-type]
        if rest:
            # Who has the log open knows its end, and goes on.
            blind = DeltaLog(STORAGE, uri)
            blind.read(rest[0][0].epoch - 1)
            blind.append(rest.pop(0))
        return found

    monkeypatch.setattr(restoring, "look", disturbed)
    assert [one.epochs for one in restore(STORAGE, uri)] == [((1, 4),)]
    assert restore(STORAGE, uri) == []
    assert DeltaLog(STORAGE, uri).read(0) == ENTRIES[:6]


def test_a_log_that_gets_other_entries_all_the_time_is_not_healed_and_says_so(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(uri, ENTRIES[:4])
    _torn(compacted(uri))
    monkeypatch.setattr(restoring, "replace_files", lambda *_: False)
    with pytest.raises(StorageUnavailable, match="Try again"):
        restore(STORAGE, uri)


def test_storage_that_does_not_answer_has_lost_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    appended(uri, ENTRIES)

    def away(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("epochlake.metastore.log.files._read_rows", away)
    with pytest.raises(StorageUnavailable, match="device"):
        restore(STORAGE, uri)


def test_a_lost_first_epoch_is_refused(uri: str) -> None:
    appended(uri, ENTRIES)[0].unlink()
    with pytest.raises(LogUnreadable, match="first epoch") as caught:
        restore(STORAGE, uri)
    assert not isinstance(caught.value, Lost)


def test_two_files_of_the_log_that_contradict_each_other_are_no_damage_to_be_mended(uri: str) -> None:
    files = appended(uri, ENTRIES[:4])
    other = write_entries(STORAGE, uri, chain(1, position_of(ENTRIES[0]), tag="another"))
    line = json.loads(Path(uri, "_delta_log", f"{2:020}.json").read_text().splitlines()[1])
    line["add"]["path"], line["add"]["size"] = other.path, other.size
    delta_commits.put_commit(STORAGE, delta_commits.CommitName(uri, 5), "WRITE", [line])
    _torn(files[3])
    with pytest.raises(HashMismatch, match="epoch 2 is in the log twice"):
        restore(STORAGE, uri)


@pytest.fixture
def shortened(uri: str) -> str:
    """A log of eight epochs; the third to the fifth were put together, and all files with the fourth are lost."""
    appended(uri, ENTRIES[:2])
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    log.append(ENTRIES[2:5])
    appended(uri, ENTRIES[5:])
    [middle] = [path for path in Path(uri).glob("*.parquet") if len(DeltaLog(STORAGE, uri).read(0)) and _holds(path, 4)]
    _torn(middle)
    return uri


def _holds(path: Path, epoch: int) -> bool:
    return epoch in pq.read_table(path, columns=["epoch"])["epoch"].to_pylist()


def another(tag: str) -> list[Entry]:
    return chain(1, position_of(ENTRIES[1]), tag=tag)


def test_an_accepted_loss_takes_out_what_reaches_beyond_it_in_one_step(shortened: str) -> None:
    uri = shortened
    log = ShortLog(STORAGE, uri)
    assert log.read(0) == log.entries() == ENTRIES[:2]
    assert (log.read(1, 1), log.entry(2), log.request_epochs(1)) == ([], ENTRIES[1], {"request-1": 1})
    assert log.beyond == position_of(ENTRIES[-1])
    assert len(log.gone) == 4
    with pytest.raises(LogWentBack):
        log.read(3)
    first = another("first")
    log.append(first)
    assert log.read(0) == log.entries() == DeltaLog(STORAGE, uri).read(0) == [*ENTRIES[:2], *first]
    second = chain(1, position_of(first[0]))
    log.append(second)
    assert DeltaLog(STORAGE, uri).read(2) == [*first, *second]
    assert plan_restoring(STORAGE, uri) == []
    with pytest.raises(LogWentBack):
        DeltaLog(STORAGE, uri).read(8)


def test_of_two_who_accept_at_once_one_does(shortened: str) -> None:
    one, two = ShortLog(STORAGE, shortened), ShortLog(STORAGE, shortened)
    two.read(0)
    one.append(another("one"))
    with pytest.raises(AppendConflict):
        two.append(another("two"))
    assert two.read(2) == one.read(2)


def test_what_can_be_proved_of_a_damaged_file_is_kept(uri: str) -> None:
    appended(uri, ENTRIES[:3])
    compacted(uri)
    appended(uri, ENTRIES[3:5])
    made = compacted(uri)
    for path in Path(uri).glob("*.parquet"):
        if path != made and _holds(path, 5):
            path.unlink()
    made.unlink()
    log = ShortLog(STORAGE, uri)
    assert log.read(0) == ENTRIES[:4]
    last = chain(1, position_of(ENTRIES[3]), tag="after")
    log.append(last)
    assert DeltaLog(STORAGE, uri).read(0) == [*ENTRIES[:4], *last]


def test_a_full_disk_leaves_the_log_as_it_is(shortened: str) -> None:
    log = ShortLog(STORAGE, shortened)
    log.read(0)
    with no_room_to_write(), pytest.raises(AppendFailed):
        log.append(another("late"))
    with pytest.raises(LogUnreadable):
        DeltaLog(STORAGE, shortened).read(0)
    log.append(another("again"))
    assert DeltaLog(STORAGE, shortened).read(2)[0].request_id == "again-3"
