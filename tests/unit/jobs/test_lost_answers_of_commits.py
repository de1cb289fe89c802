"""What is told of a commit that has landed, whose answer was lost, and whose file was taken out before anybody asked.

On a file system its writer is told that it has landed, however the answer was lost: he never meets his own mark where
he commits. So what has gone since is what the last look at the newest metadata forgets. On an object store he meets it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs.replicas import commits
from epochlake.jobs.replicas.commits import FileActions, commit_files
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, CommitOutcome
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.metastore import delta_commits
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.storage import Storage

from tests.support.replicas import make_replica, store

Loses = Callable[[pytest.MonkeyPatch, Storage, Callable[[], None]], None]


def an_error_of_the_link(monkeypatch: pytest.MonkeyPatch, storage: Storage, meanwhile: Callable[[], None]) -> None:
    _after_the_link(monkeypatch, storage, meanwhile, OSError(errno.EIO, "the server has gone"))


def its_own_name(monkeypatch: pytest.MonkeyPatch, storage: Storage, meanwhile: Callable[[], None]) -> None:
    """As a network file system says of its own second try."""
    _after_the_link(monkeypatch, storage, meanwhile, FileExistsError(errno.EEXIST, "there is one"))


def an_error_of_the_sync(monkeypatch: pytest.MonkeyPatch, storage: Storage, meanwhile: Callable[[], None]) -> None:
    link = delta_commits._link

    def linked(*told: object) -> bool:
        assert link(*told)  # type: ignore[arg-type]
        monkeypatch.setattr(delta_commits, "_link", link)
        meanwhile()
        raise OSError(errno.EIO, "the disk has gone")

    monkeypatch.setattr(delta_commits, "_link", linked)


def _after_the_link(
    monkeypatch: pytest.MonkeyPatch, storage: Storage, meanwhile: Callable[[], None], error: OSError
) -> None:
    link = storage.disk.link

    def linked(source: str, target: str) -> None:
        link(source, target)
        monkeypatch.setattr(storage.disk, "link", link)
        meanwhile()
        raise error

    monkeypatch.setattr(storage.disk, "link", linked)


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1, storage=Storage(StorageSettings()))


def commit(address: ReplicaAddress, file: DataFile) -> CommitOutcome:
    return commit_files(address, [file], epoch=1, app_id="load", app_version=1, leaves_mark=True)


def taking_out(address: ReplicaAddress, file: DataFile) -> Callable[[], None]:
    """As repair takes out a damaged copy whose loss was accepted."""

    def take_out() -> None:
        assert file.file_id in open_snapshot(address).all_files
        assert isinstance(
            commit_files(address, [], removes=[file], epoch=1, app_id="repair", app_version=1), Acknowledged
        )

    return take_out


@pytest.mark.parametrize("loses", [an_error_of_the_link, its_own_name, an_error_of_the_sync])
def test_on_a_file_system_nobody_meets_his_own_mark(
    monkeypatch: pytest.MonkeyPatch, address: ReplicaAddress, loses: Loses
) -> None:
    file = store(address)
    loses(monkeypatch, address.storage, taking_out(address, file))
    assert isinstance(commit(address, file), Acknowledged)
    assert open_snapshot(address).applied("load") == 1
    assert file.file_id not in open_snapshot(address).all_files


def test_on_an_object_store_he_is_told_what_has_gone_since(
    monkeypatch: pytest.MonkeyPatch, address: ReplicaAddress
) -> None:
    file, by_delta_rs = store(address), commits._commit_by_delta_rs

    def in_conflict_with_itself(snapshot: ReplicaSnapshot, change: FileActions) -> int:
        monkeypatch.setattr(commits, "_commit", by_delta_rs)
        by_delta_rs(snapshot, change)
        taking_out(address, file)()
        raise commits._Overtaken

    monkeypatch.setattr(commits, "_commit", in_conflict_with_itself)
    outcome = commit(address, file)
    assert isinstance(outcome, AlreadyApplied)
    assert outcome.absent == {file.file_id}
