"""A whole commit that has come into the place of another one is named: nobody reads it for what was committed there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.outcomes import Acknowledged, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.metastore import delta_commits
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.delta_commits import DIGEST, LINES, MADE_ONCE, TABLE, VERSION, CommitName, commit_uri
from epochlake.metastore.errors import LogTorn, LogUnreadable, WrongCluster
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.mending import mend
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage

from tests.support.logs import chain
from tests.support.making import KINDS, made_by_delta_rs, metadata_in, replica_at
from tests.support.replicas import TABLE as TABLE_OF_ROWS
from tests.support.replicas import make_replica, make_volume, store
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
    prepared = delta_commits.prepare_commit(STORAGE, CommitName(mine.uri, 5, table_id), "WRITE", [mark])
    committed(mine, 4)
    assert delta_commits.put_prepared(STORAGE, CommitName(mine.uri, 6, table_id), prepared)
    assert not Path(prepared).exists()
    said = information(mine.uri, 6)
    assert (said[VERSION], said[TABLE]) == ("6", table_id)
    assert open_snapshot(ReplicaAddress(Storage(StorageSettings()), *_rest(mine))).applied("late") == 7
    again = delta_commits.prepare_commit(STORAGE, CommitName(mine.uri, 7, table_id), "WRITE", [mark])
    assert not delta_commits.put_prepared(STORAGE, CommitName(mine.uri, 6, table_id), again)
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


def _take(other: str, mine: str, version: int) -> None:
    put_in_place(commit_uri(other, version), commit_uri(mine, version))


@pytest.mark.parametrize("version", [1, 2, 4], ids=["in between", "a fence", "the newest"])
def test_a_replica_with_a_commit_of_the_same_version_of_another_one_is_refused(tmp_path: Path, version: int) -> None:
    mine, other = two_replicas(tmp_path)
    _take(other.uri, mine.uri, version)
    fresh = ReplicaAddress(Storage(StorageSettings()), *_rest(mine))
    with pytest.raises(StorageDamaged, match="is one of another table, or damaged: it says the id") as refused:
        open_snapshot(fresh)
    assert f"commit {version} of the table {mine.uri}" in str(refused.value)
    assert "replace" in refused.value.hint
    assert isinstance(commit_files(fresh, [], epoch=2, app_id="x", app_version=1, leaves_mark=True), Unreachable)
    assert len(open_snapshot(other).all_files) == 3


def test_a_process_that_goes_on_with_a_replica_refuses_a_commit_of_another_one(tmp_path: Path) -> None:
    mine, other = two_replicas(tmp_path)
    assert len(open_snapshot(mine).all_files) == 3
    committed(other, 4)
    put_in_place_of_none(commit_uri(other.uri, 5), commit_uri(mine.uri, 5))
    with pytest.raises(StorageDamaged, match=r"commit 5 .* is one of another table"):
        open_snapshot(mine)


def test_no_checkpoint_stands_for_a_commit_of_another_table(tmp_path: Path) -> None:
    """Who goes on with a replica has looked at its commits before; the next one who opens it is told."""
    mine, other = two_replicas(tmp_path)
    for number in range(4, 8):
        committed(mine, number)
        committed(other, number)
    assert open_snapshot(mine).version == 8
    _take(other.uri, mine.uri, 5)
    committed(mine, 8)
    committed(other, 8)
    assert [len([*Path(one.uri, "_delta_log").glob("*.checkpoint.parquet")]) for one in (mine, other)] == [0, 1]
    with pytest.raises(StorageDamaged, match=r"commit 5 .* is one of another table"):
        open_snapshot(ReplicaAddress(Storage(StorageSettings()), *_rest(mine)))


def put_in_place_of_none(taken: str, place: str) -> None:
    Path(place).write_bytes(Path(taken).read_bytes())


def test_the_ledger_of_compactions_is_not_read_over_a_commit_of_another_ledger(tmp_path: Path) -> None:
    ledgers = [Ledger(STORAGE, str(tmp_path / name / "compactions")) for name in ("mine", "other")]
    for ledger in ledgers:
        for number in range(3):
            ledger.record([[Merge("t-1", f"c-{number}", 0, 9, 1, 7, (Replaced(f"f-{number}", 0, 9),))]])
    mine, other = ledgers
    _take(other.uri, mine.uri, 2)
    with pytest.raises(StorageDamaged, match=r"commit 2 .* is one of another table") as refused:
        Ledger(Storage(StorageSettings()), mine.uri).merges("t-1")
    assert commit_uri(mine.uri, 2) in refused.value.hint


def test_an_index_of_changes_is_not_read_over_a_commit_of_another_index(tmp_path: Path) -> None:
    mine, other = (ChangeIndex(STORAGE, str(tmp_path / name)) for name in ("mine", "other"))
    for index in (mine, other):
        index.create(TABLE_OF_ROWS)
        index.begin(7)
    _take(other.uri, mine.uri, 1)
    with pytest.raises(StorageDamaged, match=r"commit 1 .* is one of another table"):
        ChangeIndex(Storage(StorageSettings()), mine.uri).begun()


@pytest.mark.parametrize("when", [1, 2], ids=["at once", "after a commit"])
@pytest.mark.parametrize("kind", ["a replica", "a ledger"])
def test_a_table_that_an_earlier_release_has_made_once_more_is_read_whichever_id_its_commits_say(
    tmp_path: Path, when: int, kind: str
) -> None:
    """By whoever has read it before, and by others; and it stays so."""
    make_volume(tmp_path, 1)
    uri = KINDS[kind](STORAGE, tmp_path)
    address, ledger = replica_at(STORAGE, tmp_path), Ledger(STORAGE, uri)

    def commit(number: int) -> None:
        if kind == "a replica":
            committed(address, number)
        else:
            assert ledger.record([[Merge("t-1", f"c-{number}", 0, 9, 1, 7, (Replaced(f"f-{number}", 0, 9),))]])

    if kind == "a replica":
        assert raise_fence(address, 2) == 2 if when == 2 else open_snapshot(address)
    elif when == 2:
        commit(9)
    first = metadata_in(uri, 0)
    second = made_by_delta_rs(tmp_path / "theirs", uri, when)
    assert second != first["id"]
    for number in range(1, 4):
        commit(number)
    assert {information(uri, version)[TABLE] for version in range(when + 1, when + 4)} == {second}
    # Whoever knows the table as it was first made, and reads all of that at once.
    assert len(delta_commits.commits_after(STORAGE, CommitName(uri, 0, first["id"])) or []) == when + 3
    fresh = Storage(StorageSettings())
    if kind == "a replica":
        assert len(open_snapshot(ReplicaAddress(fresh, *_rest(address))).all_files) == 3
        assert raise_fence(ReplicaAddress(fresh, *_rest(address)), 5) == 5
        assert MADE_ONCE not in open_snapshot(address).metadata["configuration"]
    else:
        assert len(Ledger(fresh, uri).merges("t-1")) == 3 + (when == 2)


def test_commits_of_a_table_that_was_made_by_an_earlier_release_are_held_against_no_id(tmp_path: Path) -> None:
    """It may have been made twice, and the checkpoint has only the second id."""
    mine, other = two_replicas(tmp_path)
    for address in (mine, other):
        _without_word(address.uri)
    _take(other.uri, mine.uri, 1)
    assert len(open_snapshot(ReplicaAddress(Storage(StorageSettings()), *_rest(mine))).all_files) == 3


def _without_word(uri: str) -> None:
    for version in (0, 2):
        path = Path(commit_uri(uri, version))
        first, *lines = path.read_bytes().splitlines()
        lines = [line.replace(f',"{MADE_ONCE}":"true"'.encode(), b"") for line in lines]
        said = json.loads(first)["commitInfo"] | {DIGEST: hashlib.sha256(b"\n".join(lines)).hexdigest()[:32]}
        path.write_bytes(b"\n".join([json.dumps({"commitInfo": said}).encode(), *lines]) + b"\n")


def test_a_replica_that_is_made_anew_where_another_one_was_is_no_damage_to_who_knows_that_one(tmp_path: Path) -> None:
    mine, other = two_replicas(tmp_path)
    assert open_snapshot(mine).version == 4
    committed(other, 4)
    shutil.rmtree(mine.uri)
    shutil.copytree(other.uri, mine.uri)
    with pytest.raises(WrongCluster, match="copied or moved there"):
        open_snapshot(mine)


def test_a_log_with_a_commit_of_another_log_is_told_by_its_hashes(tmp_path: Path) -> None:
    """It is held against no id: what heals a log would empty every commit after a first one that is another log's."""
    uris = []
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        uris.append(log_of(tmp_path / name, chain(4)))
    _take(uris[1], uris[0], 3)
    with pytest.raises(LogUnreadable):
        DeltaLog(Storage(StorageSettings()), uris[0]).read(0)
