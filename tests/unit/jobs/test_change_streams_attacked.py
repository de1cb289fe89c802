"""Change streams where the world does its worst: paused, killed, torn, restored, behind in time, and back again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.change_streams import drop_changes, keep_changes
from epochlake.jobs.administration.dropped import forget_dropped
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.batches import Located
from epochlake.jobs.gate.change_streaming import Changes
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.planning import HybridClock
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas import change_index, encoding
from epochlake.jobs.replicas.change_index import ChangesGone
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.replicas.change_readers import Readers
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.upkeep import change_settling
from epochlake.jobs.upkeep.change_streams import begin, drop_old, keep_up, settle
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import LogUnreadable, Rejected, StorageUnavailable, WaitTimeout
from epochlake.placement.consistency import ConsistencyLevel

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
    told,
)
from tests.support.clusters import SmallCluster
from tests.support.killed_access import Killed


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


def while_landing(gate: Gate, act: Callable[[], object]) -> Any:
    """A patch: `act` is done once, right before the first commits of a write."""
    rounds = commit_phase.CommitPhase._round

    def paused(self: commit_phase.CommitPhase, number: int) -> int:
        if number == 1:
            act()
        return rounds(self, number)

    return patch.object(commit_phase.CommitPhase, "_round", paused)


def test_a_write_that_was_paused_while_its_stream_was_replaced_is_in_the_new_one(kept: SmallCluster) -> None:
    def replace() -> None:
        drop_changes(kept.cluster, FLIGHTS)
        keep_changes(kept.cluster, FLIGHTS)

    with Gate(kept.cluster, "slow") as slow:
        staged = staged_by(slow, kept, {1: "slow"})
        with while_landing(slow, replace):
            slow.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert told(kept) == [("upsert", 1, "slow")]


def test_a_write_that_was_paused_while_its_stream_ended_succeeds_though_nothing_is_left_of_that(
    kept: SmallCluster,
) -> None:
    place = index_of(kept).uri

    def end() -> None:
        drop_changes(kept.cluster, FLIGHTS)
        shutil.rmtree(place)

    with Gate(kept.cluster, "slow") as slow:
        staged = staged_by(slow, kept, {1: "slow"})
        with while_landing(slow, end):
            slow.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert shown(kept) == {1: "slow"}


def test_what_is_over_goes_though_a_writer_is_faster(kept: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    stream = aged(kept, 0.0, 0.0)
    put, overtaken = delta_commits.put_commit, []

    def slower(storage: Any, commit: delta_commits.CommitName, operation: str, *rest: Any) -> bool:
        if operation == "DELETE" and not overtaken:
            overtaken.append(commit.version)
            kept.cluster.write(FLIGHTS, rows({2: "b"}))
        return put(storage, commit, operation, *rest)

    monkeypatch.setattr(delta_commits, "put_commit", slower)
    assert drop_old(kept.cluster, stream)[0] == 1
    assert len(data_files(kept)) == 1
    assert told(kept) == [("upsert", 2, "b")]


@pytest.mark.parametrize("step", ["put_commit", "delete_file"])
def test_what_a_killed_coordinator_has_not_deleted_is_deleted_by_the_next(kept: SmallCluster, step: str) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    stream = aged(kept, 0.0, 0.0)
    there = kept.cluster.storage if step == "delete_file" else delta_commits
    with patch.object(there, step, side_effect=Killed), pytest.raises(Killed):
        drop_old(kept.cluster, stream)
    assert data_files(kept)
    drop_old(kept.cluster, stream)
    assert data_files(kept) == []
    assert drop_old(kept.cluster, stream) == (0, 0)


def test_a_merge_that_counts_while_the_stream_begins_is_in_the_table_or_in_the_stream(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "a"}))
    found: dict[int, str | None] = {}
    began: list[int] = []
    stage = Writing.stage

    def beside(self: Writing, *given: Any) -> Any:
        staged = stage(self, *given)
        if not began:
            cluster.cluster.write(FLIGHTS, rows({2: "newer"}))
            began.append(keep_changes(cluster.cluster, FLIGHTS).position)
            found.update(shown(cluster))
        return staged

    with patch.object(Writing, "stage", beside):
        merge = cluster.cluster.merge(FLIGHTS, rows({1: "merged"}))
        merge.when_matched_update_all().execute()
    for kind, key, note in told(cluster, after=began[0]):
        assert kind == "upsert"
        found[key] = note
    assert found == shown(cluster) == {1: "merged", 2: "newer"}


def test_a_merge_that_counts_and_was_paused_while_the_stream_begins_is_finished_before_it(
    cluster: SmallCluster,
) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "a"}))
    found: dict[int, str | None] = {}
    began: list[int] = []
    land = Writing.land

    def paused(self: Writing, *given: Any, **named: Any) -> Any:
        if not began:
            began.append(0)
            cluster.cluster.write(FLIGHTS, rows({2: "newer"}))
            began[0] = keep_changes(cluster.cluster, FLIGHTS).position
            found.update(shown(cluster))
        return land(self, *given, **named)

    merge = cluster.cluster.merge(FLIGHTS, rows({1: "merged"})).when_matched_update_all()
    with patch.object(Writing, "land", paused):
        merge.execute()
    found |= applied(told(cluster, after=began[0]))
    assert found == shown(cluster) == {1: "merged", 2: "newer"}
    assert settle(cluster.cluster, stream_of(cluster))[2] == 0


def test_a_flipped_bit_in_what_may_land_loses_no_write(kept: SmallCluster) -> None:
    killed_before_it_is_in_the_index(kept, {1: "a"})
    [intent] = (Path(index_of(kept).uri) / "_open").iterdir()
    data = intent.read_bytes()
    at = data.index(b'"file_id":"') + 12
    intent.write_bytes(data[:at] + (b"0" if data[at : at + 1] != b"0" else b"1") + data[at + 1 :])
    with pytest.raises(LogUnreadable, match="not those that were written"):
        settle(kept.cluster, stream_of(kept))
    intent.write_bytes(data)
    assert settle(kept.cluster, stream_of(kept)) == (1, 0, 0)
    assert told(kept) == [("upsert", 1, "a")]


def test_an_intent_that_a_power_cut_has_torn_is_of_a_write_that_has_not_landed(kept: SmallCluster) -> None:
    killed_before_it_is_in_the_index(kept, {1: "a"})
    [intent] = (Path(index_of(kept).uri) / "_open").iterdir()
    for torn in (b"", intent.read_bytes()[:-20], b"\0" * 300):
        intent.with_name("00000000-0000-0000-0000-000000000000.json").write_bytes(torn)
        assert len(Intents(kept.cluster.storage, index_of(kept)).all()) == 1


def test_an_intent_of_an_earlier_version_is_settled(kept: SmallCluster) -> None:
    killed_before_it_is_in_the_index(kept, {1: "a"})
    [intent] = (Path(index_of(kept).uri) / "_open").iterdir()
    head, _, _ = intent.read_bytes().rpartition(b',"digest"')
    intent.write_bytes(head + b"}")
    assert settle(kept.cluster, stream_of(kept)) == (1, 0, 0)


def test_who_follows_a_stream_is_told_that_it_has_ended_after_all_of_its_changes(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, follow=True)
    drop_changes(kept.cluster, FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    batches = iter(changes)
    assert next(batches).column("id").to_pylist() == [1]
    with pytest.raises(Rejected, match="has ended, and another one has begun"):
        next(batches)


def test_a_write_whose_bytes_lie_elsewhere_than_they_were_staged_is_not_forgotten(kept: SmallCluster) -> None:
    with patch.object(commit_phase.CommitPhase, "_round", side_effect=Killed), pytest.raises(Killed):
        kept.cluster.write(FLIGHTS, rows({1: "paused"}))
    [intent] = Intents(kept.cluster.storage, index_of(kept)).all()
    [staged] = intent.files
    # Its writer has cut a piece for another replica, and was paused before it committed that.
    away = address_of(kept.cluster.storage, kept.metadata, kept.table, kept.volume("A")).uri
    piece = Path(away, staged.file.path).with_name(f"{staged.file.file_id}.0-1.parquet")
    shutil.copyfile(Path(away, staged.file.path), piece)
    for path in replica_files(kept):
        if path != piece:
            path.unlink()
    assert settle(kept.cluster, stream_of(kept)) == (0, 0, 1)
    piece.unlink()
    assert settle(kept.cluster, stream_of(kept)) == (0, 1, 0)


def test_a_write_that_was_forgotten_and_lands_all_the_same_is_in_the_stream(kept: SmallCluster) -> None:
    def forget() -> None:
        [intent] = Intents(kept.cluster.storage, index_of(kept)).all()
        Intents(kept.cluster.storage, index_of(kept)).take_away(intent)
        for path in data_files(kept):
            path.unlink()

    with Gate(kept.cluster, "paused") as paused:
        staged = staged_by(paused, kept, {1: "a"})
        with while_landing(paused, forget):
            paused.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert told(kept) == [("upsert", 1, "a")]


def test_a_reader_that_lost_what_it_had_dealt_with_has_it_kept_from_where_it_reads_again(kept: SmallCluster) -> None:
    begun = kept.cluster.changes_position(FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, reader="r")
    list(changes)
    changes.commit()
    again = kept.cluster.changes(FLIGHTS, reader="r", after=begun)
    assert drop_old(kept.cluster, aged(kept, 0.0, 3600.0)) == (0, 0)
    assert [row["note"] for batch in again for row in batch.to_pylist()] == ["a"]


def test_a_process_that_was_paused_does_not_set_its_reader_back(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    paused = kept.cluster.changes(FLIGHTS, reader="r")
    list(paused)
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    in_its_place = kept.cluster.changes(FLIGHTS, reader="r")
    list(in_its_place)
    further = in_its_place.commit().position
    assert paused.commit().position == further
    assert Readers(kept.cluster.storage, index_of(kept)).of("r").position == further  # type: ignore[union-attr]


def test_a_reader_that_has_to_begin_again_holds_nothing_back(kept: SmallCluster) -> None:
    told(kept, reader="dead")
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert drop_old(kept.cluster, aged(kept, 0.0, 0.0))[0] == 1
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert drop_old(kept.cluster, aged(kept, 0.0, 3600.0))[0] == 1


def test_changes_of_a_writer_whose_clock_is_behind_are_kept_as_long_as_others(kept: SmallCluster) -> None:
    hour_ago = time.time_ns() - 3600 * 10**9
    with patch.object(change_index.time, "time_ns", lambda: hour_ago):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert drop_old(kept.cluster, aged(kept, 600.0, 600.0)) == (0, 0)
    assert told(kept) == [("upsert", 1, "a")]


def test_a_coordinator_whose_clock_has_jumped_ahead_drops_no_change_that_is_kept(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    stream, far = aged(kept, 600.0, 600.0), time.time_ns() + 30 * 86_400 * 10**9
    with patch.object(time, "time_ns", lambda: far):
        assert drop_old(kept.cluster, stream) == (0, 0)
    assert told(kept) == [("upsert", 1, "a")]
    assert drop_old(kept.cluster, aged(kept, 0.0, 0.0))[0] == 1


def test_a_process_that_lives_while_the_root_goes_back_leaves_no_hole_in_the_index(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    gone_back(kept, lambda: [kept.cluster.write(FLIGHTS, rows({2: "gone"})) for _ in range(3)])
    kept.cluster.write(FLIGHTS, rows({3: "c"}))
    kept.cluster.change_indexes._known.clear()
    assert told(kept) == [("upsert", 1, "a"), ("upsert", 3, "c")]


def test_who_follows_while_the_root_goes_back_is_told_so(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, follow=True)
    batches = iter(changes)

    def goes_on() -> None:
        kept.cluster.write(FLIGHTS, rows({2: "gone"}))
        next(batches)
        next(batches)

    gone_back(kept, goes_on)
    kept.cluster.write(FLIGHTS, rows({3: "in its place"}))
    with pytest.raises(ChangesGone, match="went back"):
        next(batches)


def test_who_commits_after_the_root_went_back_is_told_so_and_skips_nothing(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert told(kept, reader="r") == [("upsert", 1, "a")]
    first = kept.cluster.changes(FLIGHTS, reader="r")
    list(first)
    first.commit()
    further: list[Changes] = []

    def read_further() -> None:
        kept.cluster.write(FLIGHTS, rows({2: "gone"}))
        further.append(kept.cluster.changes(FLIGHTS, reader="r"))
        list(further[0])

    gone_back(kept, read_further)
    with pytest.raises(ChangesGone, match="went back"):
        further[0].commit()  # nothing is at its position
    kept.cluster.write(FLIGHTS, rows({3: "in its place"}))
    with pytest.raises(ChangesGone, match="went back"):
        further[0].commit()
    assert told(kept, reader="r") == [("upsert", 3, "in its place")]


def test_damage_of_the_copy_at_the_root_comes_to_no_replica(kept: SmallCluster) -> None:
    killed_before_it_is_in_the_index(kept, {1: "a"})
    [intent] = Intents(kept.cluster.storage, index_of(kept)).all()
    [staged] = intent.files
    [copy] = data_files(kept)
    data = bytearray(copy.read_bytes())
    data[len(data) // 3] ^= 1
    copy.write_bytes(bytes(data))
    for path in replica_files(kept):
        path.unlink()
    nowhere = Located((StagedFile(staged.file, frozenset(), {}),), (), (), {})
    with Gate(kept.cluster, "settling") as gate:
        opened, _ = gate.planning.open_for_write(kept.table)
        with pytest.raises(StorageUnavailable, match="not those that were written"):
            change_settling._with_bytes(kept.cluster, kept.metadata, kept.table, index_of(kept), nowhere, opened)
    assert replica_files(kept) == []


def test_a_stream_does_not_begin_by_what_too_few_replicas_say(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epochlake.jobs.upkeep import change_streams

    opened = change_streams.open_all

    def one_of_them(*given: Any) -> Any:
        there, failed = opened(*given)
        first = min(there)
        return {first: there[first]}, failed | {volume: "away" for volume in there if volume != first}

    monkeypatch.setattr(change_streams, "open_all", one_of_them)
    with pytest.raises(WaitTimeout, match="has not begun"):
        keep_changes(cluster.cluster, FLIGHTS)
    monkeypatch.setattr(change_streams, "open_all", opened)
    assert begin(cluster.cluster, stream_of(cluster)).position == 1


def test_a_table_that_is_dropped_with_a_stream_is_told_and_its_writes_are_settled_when_it_is_restored(
    kept: SmallCluster,
) -> None:
    killed_before_it_is_in_the_index(kept, {1: "a"})
    stream = stream_of(kept)
    administration.drop_table(kept.cluster, FLIGHTS, keep_seconds=3600)
    with pytest.raises(Rejected, match="dropped"):
        keep_up(kept.cluster, stream)
    assert settle(kept.cluster, stream) == (0, 0, 1)
    administration.restore_table(kept.cluster, FLIGHTS)
    assert keep_up(kept.cluster, stream).settled == 1
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert told(kept) == [("upsert", 1, "a"), ("upsert", 2, "b")]


def test_a_table_of_the_same_name_has_nothing_of_the_stream_before(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, follow=True)
    administration.drop_table(kept.cluster, FLIGHTS)
    administration.create_table(
        kept.cluster, FLIGHTS, [("id", "bigint", False), ("note", "string", True)], ["id"], tablets=2
    )
    with pytest.raises(Rejected, match="not kept"):
        kept.cluster.changes(FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert told(kept) == [("upsert", 2, "b")]
    with pytest.raises(Rejected, match=r"was dropped in epoch .*; another table has the name") as taken:
        list(changes)
    assert f"`epochlake table restore {FLIGHTS} --as NAME` brings it back" in str(taken.value.hint)


def test_who_follows_the_changes_of_a_table_that_is_dropped_is_told_so_and_goes_on_when_it_is_back(
    kept: SmallCluster,
) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, follow=True)
    epoch = administration.drop_table(kept.cluster, FLIGHTS).epoch
    batches = iter(changes)
    assert next(batches).column("id").to_pylist() == [1]
    with pytest.raises(Rejected, match=f"was dropped in epoch {epoch}, and its changes end there") as dropped:
        next(batches)
    assert f"`epochlake table restore {FLIGHTS}` brings it back" in str(dropped.value.hint)
    administration.restore_table(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    after = kept.cluster.changes(FLIGHTS, after=changes.bookmark)
    assert [batch.column("id").to_pylist() for batch in after] == [[2]]


def test_who_follows_the_changes_of_a_table_that_vacuum_has_deleted_is_not_told_to_restore_it(
    kept: SmallCluster,
) -> None:
    changes = kept.cluster.changes(FLIGHTS, follow=True)
    administration.drop_table(kept.cluster, FLIGHTS)
    forget_dropped(kept.cluster, kept.cluster.catch_up().dropped.tables.values())
    with pytest.raises(Rejected, match="was dropped, and its changes end there") as gone:
        list(changes)
    assert gone.value.hint == "It cannot be restored any more"


def test_who_follows_changes_that_are_kept_no_more_is_told_how_they_are_kept_again(kept: SmallCluster) -> None:
    changes = kept.cluster.changes(FLIGHTS, follow=True)
    drop_changes(kept.cluster, FLIGHTS)
    with pytest.raises(Rejected, match="are not kept") as ended:
        list(changes)
    assert "changes keep" in str(ended.value.hint)


def test_a_write_is_staged_later_than_all_rows_from_before_the_stream(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = HybridClock()
    ahead._last = time.time_ns() // 1000 + 3600 * 10**6
    with Gate(cluster.cluster, "ahead") as gate:
        gate.writing._clock = ahead
        staged = staged_by(gate, cluster, {1: "an hour ahead, on A"})
        with cluster.without("BC"), pytest.raises(Exception, match="QUORUM"):
            gate.writing.land(cluster.table, staged, ConsistencyLevel.QUORUM)
    position = keep_changes(cluster.cluster, FLIGHTS).position
    with cluster.without("A"):
        cluster.cluster.merge(FLIGHTS, rows({2: "merged"})).when_not_matched_insert_all().execute()
    assert told(cluster, after=position) == [("upsert", 2, "merged")]


@pytest.mark.parametrize("how", ["write_bytes", "sync_always"])
def test_a_root_that_takes_no_copy_while_a_write_is_staged_gets_it_before_it_lands(
    kept: SmallCluster, how: str
) -> None:
    storage = kept.cluster.storage
    whole = getattr(storage, how)

    def full(*given: Any, **named: Any) -> Any:
        place = str(given[0] if how == "write_bytes" else [*given[0], *(given[1] if len(given) > 1 else ())])
        if f"{index_of(kept).uri}/data" in place and "/_delta_log" not in place:
            raise StorageUnavailable("the root is full")
        return whole(*given, **named)

    with Gate(kept.cluster, "w") as gate:
        with patch.object(storage, how, full):
            staged = staged_by(gate, kept, {1: "a"})
        assert data_files(kept) == []
        gate.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert told(kept) == [("upsert", 1, "a")]


def test_a_write_stores_its_copies_while_it_is_staged(kept: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a file was read back to be copied")

    monkeypatch.setattr(Intents, "_keep", never)
    kept.cluster.write(FLIGHTS, rows({1: "a", 2: "b"}))
    kept.cluster.delete(FLIGHTS, [{"id": 1}])
    assert [kind for kind, _, _ in told(kept)] == ["upsert", "upsert", "delete"]
    assert encoding.Replicas(kept.cluster.storage)._copying is False


@pytest.mark.parametrize("batch", [None, "named"])
def test_a_root_that_fails_when_it_may_land_leaves_no_write_that_is_waited_for(
    kept: SmallCluster, batch: str | None
) -> None:
    announce = Intents._announce

    def put_and_fail(self: Intents, *given: Any) -> None:
        announce(self, *given)
        raise StorageUnavailable("the root did not answer")

    with patch.object(Intents, "_announce", put_and_fail), pytest.raises(StorageUnavailable, match="did not answer"):
        kept.cluster.write(FLIGHTS, rows({1: "a"}), batch=batch)
    assert Intents(kept.cluster.storage, index_of(kept)).all() == []
    assert shown(kept) == {}


def test_a_write_that_is_staged_again_leaves_nothing_of_its_first_try(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    with kept.without("BC"), pytest.raises(ConsistencyNotReached):
        kept.cluster.write(FLIGHTS, rows({1: "b"}))
    assert Intents(kept.cluster.storage, index_of(kept)).all() == []


def test_a_write_that_was_killed_while_it_was_staged_and_announced_is_forgotten_with_its_files(
    kept: SmallCluster,
) -> None:
    announce = Intents.announce

    def announced_and_killed(self: Intents, *given: Any) -> None:
        announce(self, *given)
        raise Killed

    with patch.object(Intents, "announce", announced_and_killed), pytest.raises(Killed):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert len(Intents(kept.cluster.storage, index_of(kept)).all()) == 1
    assert settle(kept.cluster, stream_of(kept)) == (0, 0, 1)
    for path in replica_files(kept):
        path.unlink()
    settle(kept.cluster, stream_of(kept))
    assert Intents(kept.cluster.storage, index_of(kept)).all() == []
    assert told(kept) == []
