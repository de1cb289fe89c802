"""What a process keeps of a replica table is what it holds: after any commits, and when another takes its place."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas import commits, fences, states
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, relabel
from epochlake.jobs.replicas.fences import close_sessions, open_session, raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import meet
from epochlake.jobs.replicas.outcomes import Acknowledged, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.states import ReplicaState
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import tokens_of_label

from tests.support.clusters import FOUR, placed, without_zookeeper
from tests.support.replicas import make_replica, store
from tests.support.storages import STORAGE, forget

READERS = ["load", "stream", "nobody"]
Shown = tuple[int, Mapping[str, Any], dict[str, DataFile], list[int | None], int, bytes, dict[str, list[Any]]]


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1, fence=5)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that are read from their beginning."""
    read, seen = states._read, []

    def watched(storage: Storage, uri: str) -> ReplicaState:
        seen.append(uri)
        return read(storage, uri)

    monkeypatch.setattr(states, "_read", watched)
    return seen


def never() -> DeltaTable:
    raise AssertionError("nothing was cleaned up")


def shown(state: ReplicaState) -> Shown:
    applied = [state.applied(name, never) for name in READERS]
    files, *columns = state.table
    known = [column.T.tolist() for column in columns]
    chosen_by = {file.file_id: told for file, *told in zip(files, *known, strict=True)}
    return state.version, state.metadata, state.files, applied, state.newest_written_at, state.fingerprint, chosen_by


def assert_as_read_anew(address: ReplicaAddress) -> None:
    assert shown(states.open_state(STORAGE, address.uri)) == shown(states._read(STORAGE, address.uri))


def test_after_any_commits_what_is_kept_is_what_is_read_from_the_beginning(
    address: ReplicaAddress, reads: list[str], seed: int
) -> None:
    dice, epoch, files = random.Random(seed), 5, 0
    for turn in range(60):
        match dice.randrange(7):
            case 0 | 1 | 2:
                staged = [
                    store(address, dice.choice(["2-0", "2-1"]), at=dice.randrange(1000))
                    for _ in range(dice.randint(1, 2))
                ]
                files += len(staged)
                commit_files(address, staged, epoch=epoch, app_id=dice.choice(READERS[:2]), app_version=turn)
            case 3:
                epoch += 1
                raise_fence(address, epoch)
            case 4:
                open_session(address, epoch, "s") if dice.random() < 0.5 else close_sessions(address, epoch, ["s"])
            case 5:
                relabel(address, lambda file: dice.choice(["1-0", file.label]), epoch)
            case 6:
                low, high = tokens_of_label("2-1")
                drop_ranges(address, [(low + 1, high)] if dice.random() < 0.5 else [(low, high)], epoch)
        snapshot = open_snapshot(address)
        if dice.random() < 0.7:  # what was reckoned of one is handed on to the next
            window = tokens_of_label("2-1")
            asked = {file.file_id for file in snapshot.within(*window)}
            meeting = [one for one in snapshot.all_files.values() if meet(one.window, window)]
            assert asked == {one.file_id for one in meeting}
            newest = max((one.max_written_at for one in snapshot.all_files.values()), default=0)
            assert snapshot.newest_written_at == newest
            assert len(snapshot.fingerprint) == 32
        if dice.random() < 0.3:
            assert_as_read_anew(address)
    assert_as_read_anew(address)
    assert files > 10
    assert len(reads) < 40, "it was read from the beginning at every turn"


def test_a_snapshot_stays_what_it_was(address: ReplicaAddress) -> None:
    first = store(address)
    commit_files(address, [first], epoch=5, app_id="load", app_version=1)
    before, read_later = open_snapshot(address), open_snapshot(address)
    assert list(before.all_files) == [first.file_id]
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=2)
    raise_fence(address, 9)
    for snapshot in (before, read_later):
        assert (list(snapshot.all_files), snapshot.fence, snapshot.applied("load")) == ([first.file_id], 5, 1)
    assert (open_snapshot(address).fence, open_snapshot(address).applied("load")) == (9, 2)


def test_what_was_committed_is_known_when_clean_up_has_deleted_the_commits(address: ReplicaAddress) -> None:
    for version in range(1, 4):
        commit_files(address, [store(address)], epoch=5, app_id=f"load {version}", app_version=version)
    forget()
    snapshot = open_snapshot(address)  # reads the names of the commits, not yet what they are about
    for version in range(4, 20):
        commit_files(address, [store(address)], epoch=5, app_id="stream", app_version=version)
    log = Path(address.uri, "_delta_log")
    for path in log.iterdir():
        os.utime(path, (1_600_000_000, 1_600_000_000))
    DeltaTable(address.uri).cleanup_metadata()
    assert not (log / f"{snapshot.version:020}.json").exists()
    with pytest.raises(StorageUnavailable):
        snapshot.applied("load 2")  # it ends with a commit that is not there any more
    newest = open_snapshot(address)
    assert [newest.applied(name) for name in ("load 2", "stream", "nobody")] == [2, 19, None]
    kept = states.open_state(STORAGE, address.uri)
    assert kept.applied("load 3", lambda: DeltaTable(address.uri)) == 3


def exchanged(address: ReplicaAddress, other: Path) -> None:
    shutil.rmtree(address.uri)
    shutil.move(other, address.uri)


@pytest.mark.parametrize("further", [0, 1, 3])
def test_an_older_copy_that_went_on_is_not_taken_for_the_table(
    address: ReplicaAddress, tmp_path: Path, further: int
) -> None:
    """It was copied after one of three commits, and goes on to fewer, to as many, or to more."""
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    shutil.copytree(address.uri, tmp_path / "copy")
    for version in (2, 3):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
        assert len(open_snapshot(address).all_files) == version
    exchanged(address, tmp_path / "copy")
    for version in range(further):
        commit_files(address, [store(address, "2-0")], epoch=5, app_id="stream", app_version=version)
    assert len(open_snapshot(address).all_files) == 1 + further
    assert_as_read_anew(address)


def test_the_same_directory_with_another_commit_at_the_same_version_is_told(
    address: ReplicaAddress, tmp_path: Path, reads: list[str]
) -> None:
    elsewhere = make_replica(tmp_path / "elsewhere", 1, fence=5)
    for where in (address, elsewhere):
        commit_files(where, [store(where)], epoch=5, app_id="load", app_version=1)
        open_snapshot(where)
    theirs = open_snapshot(elsewhere).all_files
    exchanged(address, Path(elsewhere.uri))
    assert open_snapshot(address).all_files == theirs
    assert reads.count(address.uri) == 1


def by_setting_a_property(table: DeltaTable) -> None:
    table.alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)


def by_checkpoint(table: DeltaTable) -> None:
    table.create_checkpoint()
    table.cleanup_metadata()


@pytest.mark.parametrize("change", [by_setting_a_property, by_checkpoint])
def test_what_another_tool_commits_is_seen(address: ReplicaAddress, change: Callable[[DeltaTable], None]) -> None:
    for version in range(3):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
        open_snapshot(address)
    change(DeltaTable(address.uri))
    assert_as_read_anew(address)


@pytest.mark.parametrize("passed", [(1.0, states.KEPT_SECONDS), (states.KEPT_SECONDS, 1.0), (1.0, -60.0)])
def test_what_was_kept_for_long_is_not_carried_on(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch, reads: list[str], passed: Sequence[float]
) -> None:
    """Commits that came since may be deleted by now, and would be taken for never made."""
    for version in range(2):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
        open_snapshot(address)
    before, now = len(reads), states._now()
    later = (now[0] + passed[0], now[1] + passed[1])
    monkeypatch.setattr(states, "_now", lambda: later)
    open_snapshot(address)
    assert len(reads) == before + 1
    open_snapshot(address)
    assert len(reads) == before + 1


def test_clean_up_deletes_no_commit_that_a_kept_table_may_lack(address: ReplicaAddress) -> None:
    deleted_after = DeltaTable(address.uri).metadata().configuration["delta.logRetentionDuration"]
    assert deleted_after == f"interval {states.LOG_RETENTION_SECONDS} seconds"
    assert states.KEPT_SECONDS <= states.LOG_RETENTION_SECONDS / 2


def test_no_more_files_are_kept_than_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "KEPT_FILES", 3)
    STORAGE.kept(states.KeptStates)._kept.clear()
    for volume in range(1, 4):
        where = make_replica(tmp_path, volume, fence=5)
        commit_files(where, [store(where), store(where)], epoch=5, app_id="load", app_version=1)
        for _ in range(4):
            assert len(open_snapshot(where).all_files) == 2
    assert [Path(uri).parts[-3] for uri in STORAGE.kept(states.KeptStates)._kept] == ["v3"]


def test_thousands_of_tables_are_kept_without_counting_all_of_them_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def files_kept(state: states.ReplicaState) -> int:
        nonlocal asked
        asked += 1
        return 1

    monkeypatch.setattr(states.ReplicaState, "files_kept", property(files_kept))
    kept, tables = states.KeptStates(), 2_000
    for _ in range(2):
        for number in range(tables):
            kept.keep(f"{number}", states._Kept(states.ReplicaState(0, {}, None), (), states._now()))
    assert tables <= asked <= 4 * 2 * tables


@pytest.mark.parametrize("later", [1, 12])
@pytest.mark.parametrize("missing", [1, 11])
def test_a_commit_that_vanished_between_others_is_not_taken_for_the_next_one(
    address: ReplicaAddress, later: int, missing: int
) -> None:
    """Who has opened the table before it would read and fence as if nothing had come, and fill the hole."""
    for version in range(2):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
    known = open_snapshot(address).version
    at_that_time = dict(STORAGE.kept(states.KeptStates)._kept)
    for version in range(2, 2 + missing + later):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
    for version in range(known + 1, known + 1 + missing):
        Path(address.uri, "_delta_log", f"{version:020}.json").unlink()
    STORAGE.kept(states.KeptStates)._kept.update(at_that_time)
    seen = commit_files(address, [store(address)], epoch=5, app_id="late", app_version=1)
    if isinstance(seen, Unreachable):  # what vanished is not in a checkpoint
        with pytest.raises(StorageUnavailable, match="is missing"):
            open_snapshot(address)
        assert isinstance(raise_fence(address, 9), Unreachable)
    else:
        assert len(open_snapshot(address).all_files) == 2 + missing + later + 1
    assert not Path(address.uri, "_delta_log", f"{known + 1:020}.json").exists()


def test_a_hole_that_comes_while_a_commit_is_made_is_not_filled(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    before = open_snapshot(address)
    for version in (2, 3):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
    Path(address.uri, "_delta_log", f"{before.version + 1:020}.json").unlink()
    monkeypatch.setattr(commits, "open_snapshot", lambda _: before)
    assert isinstance(commit_files(address, [store(address)], epoch=5, app_id="late", app_version=1), Unreachable)
    monkeypatch.setattr(fences, "open_snapshot", lambda _: before)
    assert isinstance(raise_fence(address, 9), Unreachable)
    assert not Path(address.uri, "_delta_log", f"{before.version + 1:020}.json").exists()


def test_a_commit_to_a_table_that_is_exchanged_meanwhile_is_not_acknowledged(
    address: ReplicaAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older copy went on to as many versions: the commit finds its place there, and proves nothing."""
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    shutil.copytree(address.uri, tmp_path / "copy")
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=2)
    mine, link = store(address), os.link

    def exchange_and_link(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        shutil.copytree(address.uri, tmp_path / "newer")
        exchanged(address, tmp_path / "copy")
        raise_fence(address, 6)
        shutil.copy(tmp_path / "newer" / Path(source).relative_to(address.uri), source)
        link(source, target)

    monkeypatch.setattr(os, "link", exchange_and_link)
    outcome = commit_files(address, [mine], epoch=6, app_id="load", app_version=3)
    assert isinstance(outcome, Unreachable)
    assert "exchanged" in outcome.reason


def test_a_table_is_the_same_one_while_its_newest_commit_loses_or_gets_another_name(address: ReplicaAddress) -> None:
    """Who committed it deletes the first name only then; a backup may be made of names alone."""
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    before = open_snapshot(address)
    commit = Path(address.uri, "_delta_log", f"{before.version:020}.json")
    changed = commit.stat().st_ctime_ns
    while commit.stat().st_ctime_ns == changed:  # the clock of a file system has coarse steps
        other = commit.with_name("another-name")
        other.hardlink_to(commit)
        other.unlink()
    assert before.is_still_there()
    assert open_snapshot(address).version == before.version


@pytest.mark.parametrize("when", ["before the look", "between two looks"])
def test_a_table_that_is_away_for_a_moment_after_a_commit_is_not_taken_for_another_one(
    address: ReplicaAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nothing was put back: whoever took it for another copy would have it refused from then on."""
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    put, look, away = delta_commits._put, delta_commits.identity, tmp_path / "away"

    def put_and_go(*arguments: Any) -> bool:
        monkeypatch.setattr(delta_commits, "_put", put)
        done = put(*arguments)
        shutil.move(address.uri, away)
        monkeypatch.setattr(delta_commits, "identity", look_and_come)
        return done

    def look_and_come(*arguments: Any) -> tuple[int, ...] | None:
        found = look(*arguments)
        if when == "between two looks" and away.exists():
            shutil.move(away, address.uri)
        return found

    monkeypatch.setattr(delta_commits, "_put", put_and_go)
    outcome = commit_files(address, [store(address)], epoch=5, app_id="load", app_version=2)
    monkeypatch.undo()
    if when == "between two looks":
        assert isinstance(outcome, Acknowledged)
    else:
        assert isinstance(outcome, Unreachable)
        assert not outcome.on_another
        shutil.move(away, address.uri)
    assert len(open_snapshot(address).all_files) == 2


def test_a_table_that_went_on_until_what_was_looked_at_is_cleaned_up_is_not_taken_for_another_one(
    address: ReplicaAddress,
) -> None:
    before = open_snapshot(address)
    for version in range(1, 4):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
    Path(address.uri, "_delta_log", f"{before.version:020}.json").unlink()
    with pytest.raises(StorageUnavailable, match="gone on for long"):
        before.is_still_there()


@pytest.mark.parametrize("what", ["rows", "a fence"])
@pytest.mark.parametrize("older_by", [1, 2, 3])
def test_what_is_committed_behind_the_end_of_a_copy_that_was_put_there_meanwhile_is_taken_out_again(
    address: ReplicaAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, older_by: int
) -> None:
    """Else nobody could open that copy any more, as commits between others are missing."""
    commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    shutil.copytree(address.uri, tmp_path / "copy")
    for version in range(2, 2 + older_by):
        commit_files(address, [store(address)], epoch=5, app_id="load", app_version=version)
    before, mine, put = open_snapshot(address), store(address), delta_commits._put

    def exchange_and_put(*arguments: Any) -> bool:
        monkeypatch.setattr(delta_commits, "_put", put)
        exchanged(address, tmp_path / "copy")
        return put(*arguments)

    monkeypatch.setattr(delta_commits, "_put", exchange_and_put)
    # The file is looked for before that, where the table still was.
    if what == "rows":
        outcome = commit_files(address, [mine], epoch=6, app_id="load", app_version=9)
        assert isinstance(outcome, Unreachable)
    else:
        assert raise_fence(address, 6) == 6
    there = open_snapshot(address)
    assert there.version == before.version - older_by + (what == "a fence")
    assert len(there.all_files) == 1


def test_a_replica_that_another_tool_has_written_to_counts_as_damaged_and_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    cluster = placed(tmp_path, FOUR, "ABC")
    written = {cluster.write(cluster.pipeline()) for _ in range(4)}
    DeltaTable(cluster.address("A").uri).optimize.compact()
    for _ in range(2):
        assert written == cluster.read(cluster.pipeline())
        written.add(cluster.write(cluster.pipeline()))
        STORAGE.kept(states.KeptStates)._kept.clear()
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match="another tool"):
        cluster.read(cluster.pipeline())
    assert not repair(cluster.cluster, "air.flights").complete


def test_what_was_forgotten_is_not_kept_again_by_who_had_carried_it_on_meanwhile(
    address: ReplicaAddress, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states.open_state(STORAGE, address.uri)
    carried_on = states._carried_on

    def forgotten_meanwhile(storage: Storage, uri: str) -> object:
        found = carried_on(storage, uri)
        states.forget_state(storage, uri)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(states, "_carried_on", forgotten_meanwhile)
        states.open_state(STORAGE, address.uri)
    reads.clear()
    states.open_state(STORAGE, address.uri)
    states.open_state(STORAGE, address.uri)
    assert reads == [address.uri]
