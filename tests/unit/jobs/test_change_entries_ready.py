"""Entries of change streams that are made ready while their writes land: used where they fit, and never instead."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.change_streams import drop_changes, keep_changes
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas import change_index
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.encoding import Replicas
from epochlake.metastore import delta_commits
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.storage import Storage
from epochlake.metastore.storage.syncing import Syncing
from epochlake.placement.consistency import ConsistencyLevel

from tests.support.changes import FLIGHTS, alone, applied, flights, index_of, rows, shown, staged_by, swept, told
from tests.support.clusters import SmallCluster


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)
    monkeypatch.setattr(change_index, "READY_SECONDS", 600.0)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SmallCluster]:
    with flights(tmp_path, 2) as small:
        keep_changes(small.cluster, FLIGHTS)
        yield small


def commits_of(small: SmallCluster) -> tuple[list[str], list[str]]:
    """The names of the commits of the index, and of what is not committed."""
    names = sorted(path.name for path in Path(index_of(small).log_directory).iterdir())
    return [name for name in names if ".tmp-" not in name], [name for name in names if ".tmp-" in name]


def test_an_entry_that_was_made_ready_is_what_is_appended(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    with patch.object(delta_commits, "put_commit", side_effect=AssertionError("it was stored again")):
        kept.cluster.write(FLIGHTS, rows({1: "b", 2: "c"}))
        kept.cluster.delete(FLIGHTS, [{"id": 2}], batch="named")
    assert told(kept)[0] == ("upsert", 1, "a")
    assert applied(told(kept)) == shown(kept) == {1: "b"}
    assert commits_of(kept)[1] == []
    [first, second] = [index_of(kept).entry(position) for position in (2, 3)]
    assert first is not None
    assert second is not None
    assert second.totals is not None
    assert second.totals.writes == 2
    assert second.newest == max(file.max_written_at for file in second.files) > first.newest


def overtaken(small: SmallCluster, act: Any) -> None:
    """A write of which the entry is made ready, and then `act` happens before it is appended."""
    append = ChangeIndex.append
    acts = [act]

    def later(index: ChangeIndex, *given: Any, **named: Any) -> Any:
        assert named["ready"] is not None or not acts
        if acts:
            acts.pop()()
        return append(index, *given, **named)

    with patch.object(ChangeIndex, "append", later):
        small.cluster.write(FLIGHTS, rows({1: "mine"}))


def test_an_entry_that_another_write_overtakes_is_made_anew_behind_it(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "other") as other:
        staged = staged_by(other, kept, {1: "older", 2: "other"})

        def land() -> None:
            other.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)

        overtaken(kept, land)
    assert sorted(told(kept)) == [("upsert", 1, "mine"), ("upsert", 1, "older"), ("upsert", 2, "other")]
    assert [note for _, key, note in told(kept) if key == 1] == ["older", "mine"]
    assert applied(told(kept)) == shown(kept)
    assert commits_of(kept)[1] == []


def test_an_entry_that_has_waited_for_long_is_made_anew_as_its_age_is_that_of_its_bytes(kept: SmallCluster) -> None:
    before = int(time.time() * 1_000_000)

    def wait() -> None:
        change_index.READY_SECONDS = 0.0

    overtaken(kept, wait)
    [entry] = index_of(kept).entries(0, index_of(kept).tail().position)
    assert entry.at >= before
    assert told(kept) == [("upsert", 1, "mine")]
    assert commits_of(kept)[1] == []


def test_an_entry_that_vacuum_takes_before_it_is_used_is_made_anew(kept: SmallCluster) -> None:
    def swept() -> None:
        [name] = commits_of(kept)[1]
        Path(index_of(kept).log_directory, name).unlink()

    overtaken(kept, swept)
    assert told(kept) == [("upsert", 1, "mine")]


def test_a_write_that_fails_leaves_no_entry_that_was_made_ready(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    with kept.without("BC"), pytest.raises(ConsistencyNotReached):
        kept.cluster.write(FLIGHTS, rows({1: "b"}))
    assert commits_of(kept)[1] == []
    with Gate(kept.cluster, "fails") as gate:
        staged = staged_by(gate, kept, {3: "c"})
        with kept.without("BC"), pytest.raises(ConsistencyNotReached):
            gate.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert commits_of(kept)[1] == []


def test_a_write_does_without_an_entry_that_cannot_be_made_ready(kept: SmallCluster) -> None:
    full = StorageUnavailable("the disk is full")
    with (
        patch.object(delta_commits, "write_prepared", side_effect=full),
        patch.object(delta_commits, "prepare_commit", side_effect=full),
    ):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
        kept.cluster.write(FLIGHTS, rows({2: "b"}), batch="named")
    assert told(kept) == [("upsert", 1, "a"), ("upsert", 2, "b")]


def test_the_disk_has_an_entry_that_is_made_ready_with_the_write_before_it_lands(kept: SmallCluster) -> None:
    """One group: the copies, the write among those that may land, the entry; none of them is synced twice."""
    synced: list[str] = []
    sync, land = Syncing.sync, CommitPhase.land

    def counted(syncing: Syncing, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        files = list(files)
        synced.extend(file for file in files if file.startswith(index_of(kept).uri))
        sync(syncing, files, directories)

    def landing(phase: CommitPhase) -> Any:
        assert sorted(Path(file).parent.name for file in synced) == ["_delta_log", "_open", "data"]
        assert all(Path(file).exists() for file in synced)
        return land(phase)

    with patch.object(Syncing, "sync", counted), patch.object(CommitPhase, "land", landing):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert len(synced) == 3
    assert told(kept) == [("upsert", 1, "a")]


def test_a_write_whose_stream_ends_before_it_lands_leaves_no_entry_that_was_made_ready(kept: SmallCluster) -> None:
    ended, land = index_of(kept), CommitPhase.land

    def landing(phase: CommitPhase) -> Any:
        assert [".tmp-" in path.name for path in Path(ended.log_directory).iterdir()].count(True) == 1
        drop_changes(kept.cluster, FLIGHTS)
        return land(phase)

    with patch.object(CommitPhase, "land", landing):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert shown(kept) == {1: "a"}
    assert [path.name for path in Path(ended.log_directory).iterdir() if ".tmp-" in path.name] == []


def test_vacuum_takes_old_entries_that_a_writer_who_died_has_made_ready(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    prepared = delta_commits.prepare_commit(
        kept.cluster.storage, delta_commits.CommitName(index_of(kept).uri, 1), "WRITE", []
    )
    assert len(commits_of(kept)[1]) == 1
    assert administration.sweep(kept.cluster, older_than_seconds=0).root_files == 0, "it may be used at once"
    assert swept(kept) == 1
    assert not Path(prepared).exists()
    assert told(kept) == [("upsert", 1, "a")]


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "alone"])
def test_a_copy_that_the_disk_has_not_taken_while_the_next_file_was_made_is_none(
    tmp_path: Path, announced: bool
) -> None:
    """It is deleted; who was told of it while it was there fails."""
    storage = Storage(StorageSettings())
    replicas = Replicas(storage, str(tmp_path))
    whole = storage.sync_always

    def broken(files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        files = list(files)
        if any("first" in file for file in files):
            raise StorageUnavailable("the device reports an error")
        whole(files, directories)

    def beside() -> None:
        assert len(list(tmp_path.iterdir())) == 2

    with patch.object(storage, "sync_always", broken):
        for name in ("first", "second"):
            assert replicas.store((), "label", name, pa.py_buffer(b"data")) == {}
        if announced:
            with pytest.raises(StorageUnavailable, match="device"):
                replicas.sync(beside)
        else:
            assert replicas.sync() == {}
    replicas.close()
    assert list(tmp_path.iterdir()) == []
