"""Checkpoints that are torn, as power leaves them that is cut after delta-rs wrote one and before it was synced: tables
that no operator looks after open over them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import CHECKPOINT_INTERVAL, ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.states import KeptStates
from epochlake.metastore import delta_checkpoints
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.storage import Storage

from tests.support.replicas import TABLE, make_replica, store
from tests.support.storages import STORAGE


def torn_to_nothing(checkpoint: Path) -> None:
    checkpoint.write_bytes(b"")


def torn_in_half(checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])


def torn_to_zeros(checkpoint: Path) -> None:
    checkpoint.write_bytes(bytes(checkpoint.stat().st_size))


def torn_before_its_footer(checkpoint: Path) -> None:
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])


def lost_with_its_pointer_left(checkpoint: Path) -> None:
    checkpoint.unlink()


def whole_with_its_pointer_torn(checkpoint: Path) -> None:
    checkpoint.with_name("_last_checkpoint").write_bytes(b'{"ver')


TEARS = [
    torn_to_nothing,
    torn_in_half,
    torn_to_zeros,
    torn_before_its_footer,
    lost_with_its_pointer_left,
    whole_with_its_pointer_torn,
]


def with_a_checkpoint(address: ReplicaAddress, commits: int = CHECKPOINT_INTERVAL + 2) -> set[str]:
    """Commit files until there is a checkpoint, and some after it; their ids."""
    files = [store(address) for _ in range(commits)]
    for version, file in enumerate(files):
        outcome = commit_files(address, [file], epoch=1, app_id="load", app_version=version)
        assert isinstance(outcome, Acknowledged)
    return {file.file_id for file in files}


def checkpoint_of(uri: str) -> Path:
    [checkpoint] = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    return checkpoint


def seen_by_another_process(address: ReplicaAddress) -> set[str]:
    return set(open_snapshot(_by(Storage(StorageSettings()), address)).all_files)


def _by(storage: Storage, address: ReplicaAddress) -> ReplicaAddress:
    return ReplicaAddress(
        storage, address.cluster_id, address.volume_id, address.volume_uri, address.directory, address.table_id
    )


@pytest.mark.parametrize("tear", TEARS)
def test_a_replica_opens_over_a_torn_checkpoint_with_all_that_was_committed(
    tmp_path: Path, tear: Callable[[Path], None]
) -> None:
    address = make_replica(tmp_path, 1)
    committed = with_a_checkpoint(address)
    tear(checkpoint_of(address.uri))
    assert seen_by_another_process(address) == committed
    later = store(address)
    assert isinstance(commit_files(address, [later], epoch=1, app_id="load", app_version=99), Acknowledged)
    assert seen_by_another_process(address) == committed | {later.file_id}


def test_no_checkpoint_is_built_upon_a_commit_that_has_rotted_since_it_was_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Delta-rs takes an empty one for one without content: its rows were gone for ever, and nobody was told."""
    address = make_replica(tmp_path, 1)
    with_a_checkpoint(address, CHECKPOINT_INTERVAL // 2)
    rotten = Path(address.uri, "_delta_log", f"{3:020}.json")
    data = rotten.read_bytes()
    rotten.write_bytes(b"")
    for number in range(CHECKPOINT_INTERVAL):
        outcome = commit_files(address, [store(address)], epoch=1, app_id="on", app_version=number)
        assert isinstance(outcome, Acknowledged), "this process has read what has rotted since"
    assert not list(rotten.parent.glob("*.checkpoint.parquet"))
    assert "no checkpoint" in caplog.text
    with pytest.raises(StorageUnavailable, match=r"commit 3 of the table .* is empty"):
        seen_by_another_process(address)
    rotten.write_bytes(data)
    assert len(seen_by_another_process(address)) == CHECKPOINT_INTERVAL // 2 + CHECKPOINT_INTERVAL


def test_who_reads_a_table_from_its_beginning_again_looks_at_what_has_rotted_since(tmp_path: Path) -> None:
    """As a process that has not opened it for long: it had looked at that commit before."""
    address = make_replica(tmp_path, 1)
    with_a_checkpoint(address, 5)
    mine = _by(Storage(StorageSettings()), address)
    assert len(open_snapshot(mine).all_files) == 5
    Path(address.uri, "_delta_log", f"{3:020}.json").write_bytes(b"")
    del mine.storage._kept[KeptStates]
    with pytest.raises(StorageUnavailable, match=r"commit 3 of the table .* is empty"):
        open_snapshot(mine)


@pytest.mark.parametrize("tear", TEARS)
def test_the_ledger_opens_over_a_torn_checkpoint(tmp_path: Path, tear: Callable[[Path], None]) -> None:
    uri = str(tmp_path / "ledger")
    merges = [Merge(TABLE.table_id, f"merged-{n}", 0, 9, 1, 0, (Replaced(f"f{n}", 0, 9),)) for n in range(22)]
    for merge in merges:
        assert Ledger(STORAGE, uri).record([[merge]]) == (merge,)
    tear(checkpoint_of(uri))
    again = Ledger(Storage(StorageSettings()), uri)
    assert set(again.merges(TABLE.table_id)) == {merge.file_id for merge in merges}


def test_a_checkpoint_that_alone_stands_for_commits_is_not_touched_and_the_replica_not_read(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    with_a_checkpoint(address)
    torn_in_half(checkpoint := checkpoint_of(address.uri))
    Path(address.uri, "_delta_log", f"{3:020}.json").unlink()
    with pytest.raises(StorageUnavailable, match="is not what was written"):
        seen_by_another_process(address)
    assert checkpoint.exists()


def test_a_commit_that_is_torn_as_well_is_not_counted_over(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    with_a_checkpoint(address)
    torn_in_half(checkpoint_of(address.uri))
    Path(address.uri, "_delta_log", f"{3:020}.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match=r"commit 3 of the table .* as after a power cut"):
            seen_by_another_process(address)


def test_a_replica_that_cannot_be_changed_says_why_it_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make_replica(tmp_path, 1)
    with_a_checkpoint(address)
    torn_in_half(checkpoint_of(address.uri))

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    storage = Storage(StorageSettings())
    monkeypatch.setattr(storage.disk, "rename", refused)
    with pytest.raises(StorageUnavailable, match="is not what was written"):
        open_snapshot(_by(storage, address))


def test_what_was_written_whole_after_it_was_looked_at_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has put the torn one aside, and delta-rs has written another one under its name."""
    address = make_replica(tmp_path, 1)
    committed = with_a_checkpoint(address)
    checkpoint = checkpoint_of(address.uri)
    whole = checkpoint.read_bytes()
    torn_in_half(checkpoint)
    looked_at = delta_checkpoints.damaged_checkpoints

    def slowly(storage: Storage, table: str, known: Collection[str]) -> list[str]:
        found = looked_at(storage, table, known)
        checkpoint.write_bytes(whole)
        return found

    monkeypatch.setattr(delta_checkpoints, "damaged_checkpoints", slowly)
    assert delta_checkpoints.put_torn_aside(STORAGE, address.uri) == [checkpoint.name, "_last_checkpoint"]
    assert checkpoint.read_bytes() == whole
    assert seen_by_another_process(address) == committed
