"""Compacting and healing the log: no entry is lost, changed or stored twice, whoever does the same at the same time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from epochlake.metastore.errors import HashMismatch, LogUnreadable
from epochlake.metastore.log import delta
from epochlake.metastore.log.compacting import compaction_of, rewrite
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict
from epochlake.metastore.log.files import files_of, write_entries
from epochlake.metastore.storage.storage import Storage

from tests.support.logs import chain, committer, resealed, toggle
from tests.support.slices import some
from tests.support.storages import STORAGE


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    return uri


def filled(uri: str, count: int) -> list[Entry]:
    """`count` entries, each in a file of its own."""
    entries = chain(count)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    for entry in entries:
        log.append([entry])
    return entries


def stored(uri: str) -> list[int]:
    """The epochs in the order of the files, as often as they are stored."""
    table = DeltaTable(uri)
    found = [pq.read_table(f"{uri}/{file.path}", columns=["epoch"])["epoch"].to_pylist() for file in files_of(table)]
    return sorted(epoch for epochs in found for epoch in epochs)


def damage(uri: str) -> None:
    """What earlier versions did: two OPTIMIZE at once, both of which delta-rs lets succeed."""
    one, other = DeltaTable(uri), DeltaTable(uri)
    before = len(stored(uri))
    one.optimize.compact()
    other.optimize.compact()
    assert len(stored(uri)) == 2 * before, "delta-rs refuses this by now: see docs/decisions/016-own-compaction.md"


def test_of_two_compactions_of_the_same_version_one_counts(uri: str) -> None:
    entries = filled(uri, 6)
    one, other = DeltaTable(uri), DeltaTable(uri)
    assert rewrite(STORAGE, uri, one, compaction_of(files_of(one))) is not None
    assert rewrite(STORAGE, uri, other, compaction_of(files_of(other))) is None
    assert stored(uri) == [1, 2, 3, 4, 5, 6]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_a_compaction_does_not_count_when_somebody_has_appended_since(uri: str) -> None:
    entries = filled(uri, 4)
    opened = DeltaTable(uri)
    more = chain(1, position_of(entries[-1]))
    put_after(uri, entries, more)
    assert rewrite(STORAGE, uri, opened, compaction_of(files_of(opened))) is None
    assert DeltaLog(STORAGE, uri).read(0) == [*entries, *more]


def test_many_that_compact_and_append_at_once_leave_each_entry_once(uri: str) -> None:
    entries = filled(uri, 3)
    end, errors = time.monotonic() + some(4, 2), list[BaseException]()

    def compact() -> None:
        try:
            while time.monotonic() < end:
                DeltaLog(STORAGE, uri).compact()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=compact) for _ in range(3)]
    for thread in threads:
        thread.start()
    log = DeltaLog(STORAGE, uri)
    while time.monotonic() < end:
        [entry] = chain(1, position_of(entries[-1]))
        try:
            log.read(entry.epoch - 1)
            log.append([entry])
            entries.append(entry)
        except AppendConflict:
            continue
    for thread in threads:
        thread.join()
    assert [error for error in errors if "tries" not in str(error)] == []
    assert stored(uri) == [entry.epoch for entry in entries]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_a_log_that_two_compactions_damaged_is_read_committed_to_and_healed(uri: str) -> None:
    entries = filled(uri, 5)
    damage(uri)
    assert DeltaLog(STORAGE, uri).read(2) == entries[2:]
    commits = committer(DeltaLog(STORAGE, uri))
    assert commits.commit(toggle).epoch == 6
    would = DeltaLog(STORAGE, uri).stored_twice()
    assert (would.ranges, would.copies, would.rewriting.files) == (((1, 5),), 5, 2)
    assert len(stored(uri)) == 11
    assert DeltaLog(STORAGE, uri).heal() == would
    assert stored(uri) == [1, 2, 3, 4, 5, 6]
    assert DeltaLog(STORAGE, uri).read(0)[:5] == entries
    assert DeltaLog(STORAGE, uri).heal().copies == DeltaLog(STORAGE, uri).stored_twice().copies == 0
    assert commits.commit(toggle).epoch == 7


def test_compaction_of_a_damaged_log_heals_it_too(uri: str) -> None:
    entries = filled(uri, 5)
    damage(uri)
    DeltaLog(STORAGE, uri).compact()
    assert stored(uri) == [1, 2, 3, 4, 5]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_many_that_heal_at_once_heal_once(uri: str) -> None:
    entries = filled(uri, 5)
    damage(uri)
    everybody = threading.Barrier(4)

    def heal() -> None:
        everybody.wait()
        DeltaLog(STORAGE, uri).heal()

    threads = [threading.Thread(target=heal) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(uri) == [1, 2, 3, 4, 5]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_two_contents_of_one_epoch_are_never_made_one(uri: str) -> None:
    entries = filled(uri, 3)
    put_after(uri, entries, [resealed(entries[1], reason="another")])
    for attempt in (
        DeltaLog(STORAGE, uri).heal,
        DeltaLog(STORAGE, uri).compact,
        lambda: DeltaLog(STORAGE, uri).read(0),
    ):
        with pytest.raises(LogUnreadable, match="epoch 2 is in the log twice"):
            attempt()
    assert stored(uri) == [1, 2, 2, 3]


def test_a_damaged_entry_is_not_given_sound_checksums_by_compaction(uri: str) -> None:
    entries = filled(uri, 3)
    [victim] = [file for file in files_of(DeltaTable(uri)) if file.first == 2]
    forged = write_entries(STORAGE, uri, [entries[1].__class__(**{**as_dict(entries[1]), "reason": "forged"})])
    os.replace(f"{uri}/{forged.path}", f"{uri}/{victim.path}")
    with pytest.raises(HashMismatch, match="epoch 2 is not what its hash says"):
        DeltaLog(STORAGE, uri).compact()
    assert len(files_of(DeltaTable(uri))) == 3


def test_a_compaction_that_slept_through_a_clean_up_does_not_count_and_leaves_no_version(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = filled(uri, 3)
    stray = Path(uri) / "_delta_log" / f"{4:020}.json"
    proper = delta.rewrite

    def asleep(storage: Storage, uri: str, table: DeltaTable, rewriting: object) -> set[str]:
        monkeypatch.setattr(delta, "rewrite", proper)
        log = DeltaLog(STORAGE, uri)
        log.read(0)
        for entry in chain(60, position_of(entries[-1])):
            log.append([entry])
            entries.append(entry)
        DeltaTable(uri).create_checkpoint()
        for path in (Path(uri) / "_delta_log").iterdir():
            os.utime(path, (time.time() - 3600,) * 2)
        DeltaTable(uri).cleanup_metadata()
        with stray.open("x") as file:  # fails unless the version was cleaned up
            file.write("{}")
        return {"part-of-the-sleeper.parquet"}

    monkeypatch.setattr(delta, "rewrite", asleep)
    DeltaLog(STORAGE, uri).compact()
    assert not stray.exists()
    assert stored(uri) == [entry.epoch for entry in entries]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_a_reader_whose_files_were_compacted_away_and_deleted_reads_the_new_ones(uri: str) -> None:
    entries = filled(uri, 4)
    reader = DeltaLog(STORAGE, uri)
    reader.read(0)
    old = [Path(uri) / file.path for file in files_of(DeltaTable(uri))]
    proper, done = reader._refresh, []

    def slow() -> DeltaTable:
        table = proper()
        if not done:
            done.append(DeltaLog(STORAGE, uri).compact())
            for path in old:
                path.unlink()
        return table

    reader._refresh = slow  # type: ignore[method-assign]
    assert reader.read(0) == entries


def put_after(uri: str, known: list[Entry], more: list[Entry]) -> None:
    log = DeltaLog(STORAGE, uri)
    log.read(known[-1].epoch)
    log.append(more)


def as_dict(entry: Entry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}
