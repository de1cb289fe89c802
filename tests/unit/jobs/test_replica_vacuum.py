"""Vacuum deletes what nobody can need, and nothing else."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from epochlake.jobs.replicas import replica
from epochlake.jobs.replicas.commits import commit_files, drop_ranges
from epochlake.jobs.replicas.fences import close_sessions, open_session
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.upkeep.vacuum import Vacuumed, removal_times, unused_files, vacuum
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.places import TEMPORARY
from epochlake.metastore.storage.storage import FileEntry, Storage
from epochlake.placement.tokens import TABLET, tokens_of_label

from tests.support.replicas import make_replica, store

HOUR = 3_600_000


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def now() -> int:
    return time.time_ns() // 1_000_000


def aged(address: ReplicaAddress, file: DataFile, hours: float) -> DataFile:
    """The same file, stored so many hours ago."""
    when = time.time() - hours * 3600
    os.utime(Path(address.uri) / file.path, (when, when))
    return file


def is_stored(address: ReplicaAddress, file: DataFile) -> bool:
    return (Path(address.uri) / file.path).exists()


def test_a_file_that_was_staged_and_never_committed_goes_when_no_lease_is_as_old(address: ReplicaAddress) -> None:
    old, fresh = aged(address, store(address), 3), aged(address, store(address), 1)
    assert vacuum(address, now() - 2 * HOUR) == Vacuumed(1, old.size, 1)
    assert (is_stored(address, old), is_stored(address, fresh)) == (False, True)


def test_live_files_stay_however_old_they_are(address: ReplicaAddress) -> None:
    files = [aged(address, store(address), 100), aged(address, store(address), 100)]
    commit_files(address, files, epoch=1, app_id="load", app_version=1)
    assert vacuum(address, now() + HOUR) == Vacuumed(0, 0, 0)
    assert all(is_stored(address, file) for file in files)


def test_a_dropped_file_stays_while_a_pipeline_that_began_before_may_read_it(address: ReplicaAddress) -> None:
    file = aged(address, store(address), 100)
    commit_files(address, [file], epoch=1, app_id="load", app_version=1)
    began = now()
    drop_ranges(address, [tokens_of_label("2-1")], 2)
    assert vacuum(address, began, clock_margin_ms=0) == Vacuumed(0, 0, 1)
    assert vacuum(address, now() + 1000, clock_margin_ms=0) == Vacuumed(1, file.size, 0)
    assert not is_stored(address, file)


def test_a_removal_is_remembered_also_when_only_a_checkpoint_tells(address: ReplicaAddress) -> None:
    file = aged(address, store(address), 100)
    commit_files(address, [file], epoch=1, app_id="load", app_version=1)
    began = now()
    drop_ranges(address, [tokens_of_label("2-1")], 2)
    for version in range(30):
        commit_files(address, [store(address, "2-2")], epoch=2, app_id="load", app_version=2 + version)
    for entry in (Path(address.uri) / "_delta_log").glob("*.json"):
        if entry.name < f"{20:020}":
            entry.unlink()
    assert removal_times(address)[file.path] >= began
    assert vacuum(address, began, clock_margin_ms=0) == Vacuumed(0, 0, 1)


def test_nothing_is_deleted_under_an_open_session(address: ReplicaAddress) -> None:
    file = aged(address, store(address), 100)
    open_session(address, 2, "s1")
    assert vacuum(address, now()) == Vacuumed(0, 0, 1)
    close_sessions(address, 3, ["s1"])
    assert vacuum(address, now()) == Vacuumed(1, file.size, 0)


def test_nothing_is_deleted_for_a_lease_older_than_the_memory_of_removed_files(address: ReplicaAddress) -> None:
    aged(address, store(address), 24 * 30)
    assert vacuum(address, now() - 24 * 8 * HOUR) == Vacuumed(0, 0, 1)


def test_leftovers_of_a_killed_copy_go_too(address: ReplicaAddress) -> None:
    file = store(address)
    path = Path(address.uri) / file.path
    leftover = path.rename(path.with_name(f".{path.name}{TEMPORARY}0"))
    os.utime(leftover, (0, 0))
    assert vacuum(address, now()).files == 1
    assert not leftover.exists()


def test_the_log_of_long_ago_is_cleaned_up_and_the_replica_still_opens(address: ReplicaAddress) -> None:
    files = [store(address, ids=[n]) for n in range(25)]
    for number, file in enumerate(files):
        commit_files(address, [file], epoch=1, app_id="load", app_version=number)
    log = Path(address.uri) / "_delta_log"
    for entry in log.iterdir():
        os.utime(entry, (time.time() - 3 * 86_400,) * 2)
    vacuum(address, now())
    assert len(list(log.glob("*.json"))) < 15
    assert set(open_snapshot(address).all_files) == {file.file_id for file in files}
    assert open_snapshot(address).applied("load") == 24


def test_a_volume_that_fails_as_the_log_is_cleaned_is_named(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(uri: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), uri)

    open_snapshot(address)
    monkeypatch.setattr(replica, "DeltaTable", fails)
    with pytest.raises(StorageUnavailable, match=r"cannot clean the log of .* the device reports an error") as refused:
        vacuum(address, now())
    assert address.uri in str(refused.value)


def test_what_stays_for_its_history_is_told_apart_in_time_that_grows_with_the_files(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{TABLET}=0000/{number:08}.parquet" for number in range(100_000)]
    entries = [FileEntry(name, 1, 0) for name in names]
    monkeypatch.setattr(Storage, "list_files", lambda *_, **__: entries)
    monkeypatch.setattr("epochlake.jobs.upkeep.vacuum.removal_times", lambda _: {})
    history = {f"{number:08}" for number in range(0, 100_000, 2)}
    began = time.process_time()
    found = unused_files(address, now() - HOUR, history=history)
    assert time.process_time() - began < 20
    assert [entry.name for entry in found.history] == names[::2]
    assert [entry.name for entry in found.deletable] == names[1::2]
