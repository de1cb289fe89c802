"""A log that was put back, replaced or cut: nothing is appended to it, and the error says both positions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.errors import LogTorn, LogWentBack
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, Position, position_of

from tests.support.logs import StartingAt, chain, chain_to_snapshot, committer, toggle
from tests.support.storages import STORAGE


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "root" / "log")
    create_log_table(STORAGE, uri)
    return uri


class Announcing(LocalQueue):
    """A line in which somebody has announced an epoch."""

    def __init__(self, announced: Position | None) -> None:
        super().__init__()
        self._announced = announced

    def announced(self) -> Position | None:  # type: ignore[override]
        return self._announced


def append(uri: str, entries: list[Entry]) -> None:
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    for entry in entries:
        log.append([entry])


def restored(uri: str, backup: Path) -> None:
    shutil.rmtree(uri)
    shutil.copytree(backup, uri)


@pytest.mark.parametrize("how", ["restored", "deleted", "emptied"])
def test_a_request_that_the_log_has_lost_is_not_called_committed_by_who_remembers_it(
    uri: str, tmp_path: Path, how: str
) -> None:
    append(uri, chain(3))
    shutil.copytree(uri, tmp_path / "backup")
    survivor = committer(DeltaLog(STORAGE, uri))
    assert survivor.commit(toggle, request_id="mine").epoch == 4
    last = max((Path(uri) / "_delta_log").glob("*.json"))
    if how == "restored":
        restored(uri, tmp_path / "backup")
    elif how == "deleted":
        last.unlink()
    else:
        last.write_bytes(b"")
    for request_id in ("mine", "another", "mine"):
        with pytest.raises(LogTorn if how == "emptied" else LogWentBack):
            survivor.commit(toggle, request_id=request_id, timeout=2)


@pytest.mark.parametrize("grown", [0, 1, 2, 3, 5])
def test_a_process_that_survives_a_restore_appends_nothing_however_far_others_have_gone_on(
    uri: str, tmp_path: Path, grown: int
) -> None:
    entries = chain(6)
    append(uri, entries[:3])
    shutil.copytree(uri, tmp_path / "backup")
    append(uri, entries[3:])
    survivor = committer(DeltaLog(STORAGE, uri))
    assert survivor.commit(toggle).epoch == 7
    restored(uri, tmp_path / "backup")
    if grown:
        append(uri, chain(grown, position_of(entries[2]), tag="after the restore"))
    before = DeltaLog(STORAGE, uri).read(0)
    for _ in range(2):
        with pytest.raises(LogWentBack) as caught:
            survivor.commit(toggle, timeout=2)
        assert (caught.value.log_epoch, caught.value.known_epoch) == (3 + grown, 7)
    assert DeltaLog(STORAGE, uri).read(0) == before


def test_a_process_goes_on_when_the_right_log_is_back(uri: str, tmp_path: Path) -> None:
    append(uri, chain(3))
    shutil.copytree(uri, tmp_path / "backup")
    survivor = committer(DeltaLog(STORAGE, uri))
    survivor.commit(toggle)
    Path(uri).rename(tmp_path / "right")
    shutil.copytree(tmp_path / "backup", uri)
    with pytest.raises(LogWentBack):
        survivor.commit(toggle, timeout=2)
    shutil.rmtree(uri)
    (tmp_path / "right").rename(uri)
    assert survivor.commit(toggle).epoch == 5


def test_a_log_whose_last_commit_file_was_deleted_takes_no_append_of_those_who_know(uri: str) -> None:
    append(uri, chain(4))
    survivor = committer(DeltaLog(STORAGE, uri))
    survivor.commit(toggle)
    max((Path(uri) / "_delta_log").glob("*.json")).unlink()
    with pytest.raises(LogWentBack, match=r"ends at epoch 4, but epoch 5 was known to this process .*accept-loss"):
        survivor.commit(toggle, timeout=2)


ANNOUNCED: list[tuple[str, Callable[[list[Entry]], Position], str]] = [
    ("ahead", lambda e: Position(9, "s", "h" * 64), r"ends at epoch 6, but epoch 9 was known to ZooKeeper \(hash hhh"),
    ("another tail", lambda e: Position(6, e[5].state_id, "h" * 64), "another entry at epoch 6"),
    ("another past", lambda e: Position(2, e[1].state_id, "h" * 64), "another entry at epoch 2"),
    ("newer incarnation", lambda e: Position(2, e[1].state_id, e[1].hash, 2), "another entry at epoch 2"),
]


@pytest.mark.parametrize(("announced", "message"), [c[1:] for c in ANNOUNCED], ids=[c[0] for c in ANNOUNCED])
def test_a_log_that_does_not_hold_what_zookeeper_knows_takes_no_append(
    uri: str, announced: Callable[[list[Entry]], Position], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochlake.metastore.following.follower.BEHIND_SECONDS", 0.0)
    entries = chain(6)
    append(uri, entries)
    commits = Committer(Follower(DeltaLog(STORAGE, uri)), Announcing(announced(entries)), author="test")
    with pytest.raises(LogWentBack, match=message):
        commits.commit(toggle, timeout=2)
    assert DeltaLog(STORAGE, uri).read(0) == entries


@pytest.mark.parametrize("behind", range(7))
def test_a_head_that_lags_behind_the_log_lets_commits_go_on(uri: str, behind: int) -> None:
    entries = chain_to_snapshot(5)
    entries += chain(1, position_of(entries[-1]))
    append(uri, entries)
    announced = position_of(entries[5 - behind]) if behind < 6 else Position()
    follower = Follower(DeltaLog(STORAGE, uri), StartingAt(entries[:5]))
    commits = Committer(follower, Announcing(announced), author="test")
    assert commits.commit(toggle).epoch == 7
    assert commits.commit(toggle).epoch == 8


def test_what_is_announced_late_is_waited_for(uri: str) -> None:
    entries = chain(4)
    append(uri, entries[:3])
    follower = Follower(DeltaLog(STORAGE, uri))
    follower.catch_up()
    append(uri, entries[3:])  # as a network file system shows it: not with the first look
    follower.require_reached(position_of(entries[3]))
    assert follower.position == position_of(entries[3])


def test_catching_up_without_news_reads_no_data_file_again(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(uri, chain(4))
    commits = committer(DeltaLog(STORAGE, uri))
    commits.commit(toggle)

    def unexpected(*_: object) -> None:
        raise AssertionError("the handle proves that it is on the same log")

    monkeypatch.setattr("epochlake.metastore.log.files._read_rows", unexpected)
    for _ in range(3):
        assert commits.commit(toggle).epoch > 5
