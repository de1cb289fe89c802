"""What change streams leave and keep: for vacuum, for readers, and after kills at any access."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.change_streams import drop_changes, keep_changes
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas import change_index
from epochlake.jobs.replicas.change_index import ChangesGone
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.upkeep.change_streams import drop_old, settle
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.failures import StorageLate
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest

from tests.support import killed_access
from tests.support.changes import (
    FLIGHTS,
    aged,
    alone,
    applied,
    data_files,
    flights,
    gone_back,
    index_of,
    killed_before_it_is_in_the_index,
    replica_files,
    rows,
    shown,
    staged_by,
    stream_of,
    swept,
    told,
)
from tests.support.clusters import SmallCluster
from tests.support.killed_access import Killed
from tests.support.slices import some


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with flights(tmp_path, 2) as small:
        yield small


@pytest.fixture
def kept(cluster: SmallCluster) -> SmallCluster:
    keep_changes(cluster.cluster, FLIGHTS)
    return cluster


def test_vacuum_takes_the_copies_of_a_write_that_never_came_to_land_and_nothing_else(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    killed_before_it_is_in_the_index(kept, {2: "b"})
    needed = data_files(kept)
    with Gate(kept.cluster, "fails") as gate:
        staged = staged_by(gate, kept, {3: "never"})
    assert len(data_files(kept)) == len(needed) + len(staged) == 3
    assert administration.sweep(kept.cluster, older_than_seconds=0).root_files == 0, "it may be about to land"
    assert swept(kept) == 2, "the copy, and the entry that was made ready of the write that was killed"
    assert data_files(kept) == needed
    assert settle(kept.cluster, stream_of(kept)) == (1, 0, 0)
    assert told(kept) == [("upsert", 1, "a"), ("upsert", 2, "b")]


def test_a_write_that_was_paused_beyond_vacuum_before_it_could_land_makes_its_copies_again(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "paused") as gate:
        staged = staged_by(gate, kept, {1: "a"})
        assert swept(kept) == 1
        gate.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert told(kept) == [("upsert", 1, "a")]


def test_vacuum_takes_streams_that_have_ended_and_all_of_tables_that_are_forgotten(
    kept: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    kept.cluster.merge(FLIGHTS, rows({2: "b"})).when_not_matched_insert_all().execute()
    ended = Path(index_of(kept).uri)
    drop_changes(kept.cluster, FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({3: "c"}))
    assert ended.exists()
    assert swept(kept) > 0
    assert not ended.exists()
    assert told(kept) == [("upsert", 3, "c")]
    root = Path(kept.cluster.root.uri)
    administration.drop_table(kept.cluster, FLIGHTS, keep_seconds=3600)
    swept(kept)
    administration.restore_table(kept.cluster, FLIGHTS)
    assert told(kept) == [("upsert", 3, "c")]
    administration.drop_table(kept.cluster, FLIGHTS)
    administration.sweep(kept.cluster, older_than_seconds=0)
    assert [list((root / name).iterdir()) for name in ("changes", "merges")] == [[], []]


def test_vacuum_leaves_what_a_merge_needs_that_counts_and_has_not_landed(cluster: SmallCluster, tmp_path: Path) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "a"}))
    with patch.object(Writing, "land", side_effect=Killed), pytest.raises(Killed):
        cluster.cluster.merge(FLIGHTS, rows({1: "merged"})).when_matched_update_all().execute()
    old = time.time() - 7200
    for path in tmp_path.rglob("*"):
        os.utime(path, (old, old))
    files = len(replica_files(cluster))
    administration.sweep(cluster.cluster, older_than_seconds=60)
    assert len(replica_files(cluster)) < files, "what it has staged is taken"
    cluster.cluster.merge(FLIGHTS, rows({2: "next"})).when_not_matched_insert_all().execute()
    assert shown(cluster) == {1: "merged", 2: "next"}


def test_retention_looks_at_each_entry_once(kept: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        kept.cluster.write(FLIGHTS, rows({number: "a"}))
    told(kept, reader="r")
    index, looks = index_of(kept), []
    before_entry = change_index.ChangeIndex.before_entry

    def counted(self: Any, entry: Any, written_at: int) -> int:
        looks.append(entry.position)
        return before_entry(self, entry, written_at)

    monkeypatch.setattr(change_index.ChangeIndex, "before_entry", counted)
    for _ in range(3):
        assert index.compared_from(3, index.tail().position) == 3
    assert len(looks) == 6
    kept.cluster.write(FLIGHTS, rows({9: "a"}))
    index.compared_from(3, index.tail().position)
    assert len(looks) == 7


def test_what_is_compared_with_what_is_compared_is_kept_as_well(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "slow") as slow, Gate(kept.cluster, "slower") as slower:
        oldest = staged_by(slower, kept, {1: "oldest"})
        kept.cluster.write(FLIGHTS, rows({1: "b"}))
        older = staged_by(slow, kept, {1: "older"})
        kept.cluster.write(FLIGHTS, rows({1: "newest"}))
        slower.writing.land(kept.table, oldest, ConsistencyLevel.QUORUM)
        slow.writing.land(kept.table, older, ConsistencyLevel.QUORUM)
    index = index_of(kept)
    begun, tail = kept.cluster.changes_position(FLIGHTS), index.tail().position
    positions = [entry.position for entry in index.entries(0, tail)]
    assert index.compared_from(positions[-2], tail) == index.begun().position  # type: ignore[union-attr]
    assert index.compared_from(tail, tail) == tail == begun


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_write_that_is_killed_at_any_access_is_in_the_stream_exactly_as_reads_show_it(
    kept: SmallCluster, named: bool, after: bool
) -> None:
    for step in count(1, some(1, 3)):
        ended = False
        batch = f"b{step}" if named else None
        with killed_access.killed_at(step, after=after), suppress(killed_access.Killed):
            kept.cluster.write(FLIGHTS, rows({step: "killed", 1000: f"killed {step}"}), batch=batch)
            ended = True
        kept.cluster.write(FLIGHTS, rows({1000: f"other {step}"}))
        if named:
            kept.cluster.write(FLIGHTS, rows({step: "killed", 1000: f"killed {step}"}), batch=batch)
        elif step % 2:
            settle(kept.cluster, stream_of(kept))
        if ended:
            break
    settle(kept.cluster, stream_of(kept))
    found = told(kept)
    assert applied(found) == shown(kept)
    assert len(found) == len({(key, note) for _, key, note in found}), "each once"
    assert {note for _, key, note in found if key == 1000} >= {f"other {one}" for one in range(1, step + 1, some(1, 3))}
    assert step > 12


def test_a_write_fails_while_it_is_staged_where_the_root_hangs(kept: SmallCluster) -> None:
    storage = kept.cluster.storage
    whole = storage.write_bytes

    def hangs(uri: str, data: Any) -> None:
        if f"{index_of(kept).uri}/data" in uri:
            raise StorageLate("the root has not answered")
        whole(uri, data)

    with patch.object(storage, "write_bytes", hangs), pytest.raises(StorageLate):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert shown(kept) == {}
    assert Intents(storage, index_of(kept)).all() == []


def test_a_copy_that_the_disk_does_not_take_is_told_before_anything_lands(kept: SmallCluster) -> None:
    storage = kept.cluster.storage
    whole = storage.sync_always

    def broken(files: Any = (), directories: Any = ()) -> None:
        files = list(files)
        if any(f"{index_of(kept).uri}/data" in uri for uri in files):
            raise StorageUnavailable("the device reports an error")
        whole(files, directories)

    deletes = storage.delete_file
    kept_back = patch.object(storage, "delete_file", lambda uri: False if "/data/" in uri else deletes(uri))
    with kept_back, patch.object(storage, "sync_always", broken), pytest.raises(StorageUnavailable, match="device"):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert shown(kept) == {}


def test_a_named_reader_is_told_that_its_stream_has_ended_and_another_one_has_begun(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    told(kept, reader="search")
    drop_changes(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({2: "in no stream"}))
    keep_changes(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({3: "c"}))
    with pytest.raises(ChangesGone) as gone:
        kept.cluster.changes(FLIGHTS, reader="search")
    assert drop_old(kept.cluster, aged(kept, 0.0, 3600.0))[0] == 1, "nothing is kept for it"
    kept.cluster.write(FLIGHTS, rows({4: "d"}))
    assert told(kept, reader="search", after=gone.value.position) == [("upsert", 4, "d")]
    assert told(kept, reader="new") == [("upsert", 4, "d")]


def test_a_bookmark_goes_on_and_is_told_when_its_stream_is_another_one_or_went_back(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS)
    first = changes.bookmark
    list(changes)
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert [note for _, _, note in told(kept, after=first)] == ["a", "b"]
    assert [note for _, _, note in told(kept, after=changes.bookmark)] == ["b"]
    later: list[str] = []

    def read_further() -> None:
        kept.cluster.write(FLIGHTS, rows({3: "gone"}))
        further = kept.cluster.changes(FLIGHTS)
        list(further)
        later.append(further.bookmark)

    gone_back(kept, read_further)
    kept.cluster.write(FLIGHTS, rows({4: "in its place"}))
    with pytest.raises(ChangesGone, match="went back"):
        kept.cluster.changes(FLIGHTS, after=later[0])
    drop_changes(kept.cluster, FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    with pytest.raises(ChangesGone, match="another one has begun"):
        kept.cluster.changes(FLIGHTS, after=first)
    for nonsense in ("seven", "²/stream/write", f"{'9' * 5000}/stream/write"):
        with pytest.raises(InvalidRequest, match="no bookmark"):
            kept.cluster.changes(FLIGHTS, after=nonsense)
