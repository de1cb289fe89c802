"""A whole commit that has come into the place of another one is named: nobody reads it for what was committed there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.outcomes import Acknowledged, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.metastore import delta_commits
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.delta_commits import DIGEST, LINES, TABLE, VERSION, commit_uri
from epochlake.metastore.errors import LogTorn, LogUnreadable
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.mending import mend
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage

from tests.support.logs import chain
from tests.support.making import made_by_delta_rs
from tests.support.replicas import make_replica, store
from tests.support.storages import STORAGE

Misplacing = Callable[[ReplicaAddress, ReplicaAddress], tuple[str, str]]

MISPLACED: dict[str, Misplacing] = {
    "the one before": lambda mine, _: (commit_uri(mine.uri, 2), commit_uri(mine.uri, 3)),
    "a later one": lambda mine, _: (commit_uri(mine.uri, 4), commit_uri(mine.uri, 2)),
    "the newest is an older one": lambda mine, _: (commit_uri(mine.uri, 1), commit_uri(mine.uri, 4)),
}


def committed(address: ReplicaAddress, version: int) -> None:
    outcome = commit_files(address, [store(address)], epoch=2, app_id="load", app_version=version)
    assert isinstance(outcome, Acknowledged)


def two_replicas(tmp_path: Path) -> tuple[ReplicaAddress, ReplicaAddress]:
    """Two of one table with as many commits: files, a fence, and files."""
    mine, other = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    for address in (mine, other):
        committed(address, 1)
        assert raise_fence(address, 2) == 2
        committed(address, 2)
        committed(address, 3)
    return mine, other


def put_in_place(taken: str, place: str) -> None:
    data = Path(taken).read_bytes()
    Path(place).unlink()
    Path(place).write_bytes(data)


def information(uri: str, version: int) -> dict[str, str]:
    found: dict[str, str] = json.loads(Path(commit_uri(uri, version)).read_bytes().splitlines()[0])["commitInfo"]
    return found


@pytest.mark.parametrize("which", MISPLACED)
def test_a_replica_with_a_commit_in_the_place_of_another_one_is_refused(tmp_path: Path, which: str) -> None:
    mine, other = two_replicas(tmp_path)
    put_in_place(*MISPLACED[which](mine, other))
    fresh = ReplicaAddress(Storage(StorageSettings()), *_rest(mine))
    with pytest.raises(StorageDamaged, match="it is commit") as refused:
        open_snapshot(fresh)
    assert "replace" in refused.value.hint
    assert isinstance(commit_files(fresh, [], epoch=2, app_id="x", app_version=1, leaves_mark=True), Unreachable)
    assert len(open_snapshot(other).all_files) == 3


def _rest(address: ReplicaAddress) -> tuple[str, int, str, str, str]:
    return address.cluster_id, address.volume_id, address.volume_uri, address.directory, address.table_id


def test_commits_of_releases_that_did_not_say_which_they_are_stay_readable(tmp_path: Path) -> None:
    mine, _ = two_replicas(tmp_path)
    for version in (1, 3):
        path = Path(commit_uri(mine.uri, version))
        first, *lines = path.read_bytes().splitlines()
        said = json.loads(first)["commitInfo"]
        # What these look at: the lines are counted, and digested, as ever.
        assert (said[LINES], said[DIGEST]) == (
            str(len(lines) + 1),
            hashlib.sha256(b"\n".join(lines)).hexdigest()[:32],
        )
        earlier = {name: value for name, value in said.items() if name not in (VERSION, TABLE)}
        path.write_bytes(b"\n".join([json.dumps({"commitInfo": earlier}).encode(), *lines]) + b"\n")
    for storage in (STORAGE, Storage(StorageSettings())):
        assert len(open_snapshot(ReplicaAddress(storage, *_rest(mine))).all_files) == 3


def test_a_commit_that_was_prepared_for_another_version_says_which_it_became(tmp_path: Path) -> None:
    mine, _ = two_replicas(tmp_path)
    table_id = information(mine.uri, 1)[TABLE]
    mark = {"txn": {"appId": "late", "version": 7}}
    prepared = delta_commits.prepare_commit(STORAGE, mine.uri, 5, "WRITE", [mark], table_id=table_id)
    committed(mine, 4)
    assert delta_commits.put_prepared(STORAGE, mine.uri, 6, prepared)
    assert not Path(prepared).exists()
    said = information(mine.uri, 6)
    assert (said[VERSION], said[TABLE]) == ("6", table_id)
    assert open_snapshot(ReplicaAddress(Storage(StorageSettings()), *_rest(mine))).applied("late") == 7
    again = delta_commits.prepare_commit(STORAGE, mine.uri, 7, "WRITE", [mark], table_id=table_id)
    assert not delta_commits.put_prepared(STORAGE, mine.uri, 6, again)
    assert [path.name for path in Path(mine.uri, "_delta_log").iterdir() if ".tmp-" in path.name] == []


def log_of(tmp_path: Path, entries: Sequence[Entry]) -> str:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    for entry in entries:
        log.read(entry.epoch - 1)
        log.prepare([entry])
        log.append([entry])
    return uri


@pytest.mark.parametrize(("place", "taken"), [(4, 3), (4, 2), (2, 4)], ids=["the newest", "an older one", "in between"])
def test_a_log_with_a_commit_in_the_place_of_another_one_is_torn_and_healed(
    tmp_path: Path, place: int, taken: int
) -> None:
    entries = chain(4)
    uri = log_of(tmp_path, entries)
    assert [information(uri, version)[VERSION] for version in range(1, 5)] == ["1", "2", "3", "4"]
    put_in_place(commit_uri(uri, taken), commit_uri(uri, place))
    fresh = Storage(StorageSettings())
    with pytest.raises(LogTorn, match=f"it says that it is commit {taken}"):
        DeltaLog(fresh, uri).read(0)
    assert [(one.version, one.first, one.last) for one in mend(fresh, uri)] == [(place, place, place)]
    assert DeltaLog(Storage(StorageSettings()), uri).read(0) == entries


def test_an_append_that_was_prepared_before_a_fence_is_written_for_its_own_version(tmp_path: Path) -> None:
    entries = chain(3)
    uri = log_of(tmp_path, entries[:2])
    log = DeltaLog(STORAGE, uri)
    log.read(1)
    log.prepare([entries[2]])
    DeltaLog(STORAGE, uri).fence()
    log.read(1)
    log.append([entries[2]])
    assert [information(uri, version)[VERSION] for version in (3, 4)] == ["3", "4"]
    assert DeltaLog(Storage(StorageSettings()), uri).read(0) == entries


def test_the_ledger_of_compactions_is_not_read_over_a_commit_in_the_place_of_another_one(tmp_path: Path) -> None:
    ledger = Ledger(STORAGE, str(tmp_path / "compactions"))
    for number in range(3):
        ledger.record([[Merge("t-1", f"c-{number}", 0, 9, 1, 7, (Replaced(f"f-{number}", 0, 9),))]])
    put_in_place(commit_uri(ledger.uri, 1), commit_uri(ledger.uri, 2))
    with pytest.raises(StorageDamaged, match="it says that it is commit 1"):
        Ledger(Storage(StorageSettings()), ledger.uri).merges("t-1")


def test_a_log_that_two_created_at_once_is_read_whichever_of_both_its_commits_name(tmp_path: Path) -> None:
    """With earlier releases: delta-rs makes a second commit of what the other one creates, with another id."""
    uri, entries = str(tmp_path / "log"), chain(2)
    create_log_table(STORAGE, uri)
    early = DeltaLog(STORAGE, uri)
    assert early.read(0) == []
    early.append(entries[:1])
    made_by_delta_rs(tmp_path / "theirs", uri, 2)
    log = DeltaLog(Storage(StorageSettings()), uri)
    assert log.read(0) == entries[:1]
    log.append(entries[1:])
    assert DeltaLog(Storage(StorageSettings()), uri).read(0) == entries
    assert mend(Storage(StorageSettings()), uri) == []


@pytest.mark.parametrize("place", [4, 2], ids=["the newest", "in between"])
def test_a_data_file_of_the_log_in_the_place_of_another_one_is_named(tmp_path: Path, place: int) -> None:
    """Else the log would end before the newest epoch, without a word, and the next append would take its number."""
    uri = log_of(tmp_path, chain(4))
    added = [_added(uri, version) for version in range(1, 5)]
    put_in_place(added[0], added[place - 1])
    log = DeltaLog(Storage(StorageSettings()), uri)
    with pytest.raises(LogUnreadable, match=f"epochs {place} to {place} of the log.*another file lies") as named:
        log.read(0)
    assert named.value.epochs == (place, place)
    with pytest.raises(LogUnreadable, match="another file lies"):
        log.request_epochs(4)


def _added(uri: str, version: int) -> str:
    lines = Path(commit_uri(uri, version)).read_bytes().splitlines()
    [path] = [json.loads(line)["add"]["path"] for line in lines if b'"add"' in line]
    return f"{uri}/{path}"
