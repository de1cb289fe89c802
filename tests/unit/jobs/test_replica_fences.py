"""Fences and sessions: what was planned before does not land, whoever is faster."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable
from epochlake.jobs.replicas import commits, fences
from epochlake.jobs.replicas.commits import commit_files, drop_ranges
from epochlake.jobs.replicas.fences import close_sessions, open_session, raise_fence
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, FencedOff, SessionClosed, Unreachable
from epochlake.jobs.replicas.replica import (
    COLUMNS,
    FENCE,
    DeclaredColumns,
    ReplicaAddress,
    ReplicaSnapshot,
    open_snapshot,
)
from epochlake.jobs.replicas.schema import delta_schema
from epochlake.metastore.metadata.model import Column
from epochlake.placement.tokens import tokens_of_label

from tests.support.replicas import TABLE, make_replica, store


def ranges(*labels: str) -> list[tuple[int, int]]:
    return [tokens_of_label(label) for label in labels]


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1, fence=5)


def test_a_commit_planned_below_the_fence_is_refused(address: ReplicaAddress) -> None:
    assert raise_fence(address, 8) == 8
    assert commit_files(address, [store(address)], epoch=7, app_id="load", app_version=1) == FencedOff(8)
    assert isinstance(commit_files(address, [store(address)], epoch=8, app_id="load", app_version=1), Acknowledged)


def test_a_fence_is_only_ever_raised(address: ReplicaAddress) -> None:
    assert [raise_fence(address, epoch) for epoch in (8, 6, 8)] == [8, 8, 8]
    assert open_snapshot(address).fence == 8


def test_a_fence_raised_between_the_look_and_the_commit_stops_it(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = open_snapshot

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        if snapshot.fence < 9:
            assert raise_fence(where, 9) == 9
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look_and_be_overtaken)
    assert commit_files(address, [store(address)], epoch=8, app_id="load", app_version=1) == FencedOff(9)
    assert looked(address).all_files == {}


def test_of_two_that_raise_the_fence_at_once_the_higher_one_stands(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = open_snapshot

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        if snapshot.fence < 9:
            monkeypatch.setattr(fences, "open_snapshot", looked)
            raise_fence(where, 9)
        return snapshot

    monkeypatch.setattr(fences, "open_snapshot", look_and_be_overtaken)
    assert raise_fence(address, 7) == 9
    assert looked(address).fence == 9


def test_appends_that_come_in_between_do_not_stop_a_commit(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, other, mine = open_snapshot, store(address, "2-0"), store(address)

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        monkeypatch.setattr(commits, "open_snapshot", looked)
        commit_files(where, [other], epoch=5, app_id="other", app_version=1)
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look_and_be_overtaken)
    assert isinstance(commit_files(address, [mine], epoch=5, app_id="load", app_version=1), Acknowledged)
    assert looked(address).all_files == {other.file_id: other, mine.file_id: mine}


def test_a_batch_that_is_tried_twice_at_once_lands_once(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, file, again = open_snapshot, store(address), store(address)

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        monkeypatch.setattr(commits, "open_snapshot", looked)
        commit_files(where, [file], epoch=5, app_id="load", app_version=1)
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look_and_be_overtaken)
    outcome = commit_files(address, [again], epoch=5, app_id="load", app_version=1)
    assert outcome == AlreadyApplied(1, frozenset({again.file_id}))
    assert list(looked(address).all_files) == [file.file_id]


def test_a_file_is_not_added_twice_under_another_application_id(address: ReplicaAddress) -> None:
    file = store(address)
    commit_files(address, [file], epoch=5, app_id="load", app_version=1)
    assert isinstance(commit_files(address, [file], epoch=5, app_id="stream", app_version=1), AlreadyApplied)
    assert open_snapshot(address).version == 1


def test_files_are_replaced_in_one_commit(address: ReplicaAddress) -> None:
    old, merged = [store(address), store(address)], store(address)
    commit_files(address, old, epoch=5, app_id="load", app_version=1)
    outcome = commit_files(address, [merged], removes=old, epoch=5, app_id="compact", app_version=1)
    assert outcome == Acknowledged(2)
    assert open_snapshot(address).all_files == {merged.file_id: merged}


def test_work_under_a_closed_session_is_refused(address: ReplicaAddress) -> None:
    file = store(address)
    arguments = {"epoch": 6, "app_id": "stream", "app_version": 1, "session": "s1"}
    assert commit_files(address, [file], **arguments) == SessionClosed("s1")
    assert open_session(address, 6, "s1") == 6
    assert close_sessions(address, 6, ["s1"]) == 6
    assert commit_files(address, [file], **arguments) == SessionClosed("s1")
    assert open_session(address, 6, "s1") == 6
    assert isinstance(commit_files(address, [file], **arguments), Acknowledged)


def test_a_stale_coordinator_neither_opens_nor_closes_sessions(address: ReplicaAddress) -> None:
    raise_fence(address, 9, open_sessions={"s9"})
    assert open_session(address, 8, "s8") == FencedOff(9)
    assert close_sessions(address, 8, ["s9"]) == FencedOff(9)
    assert raise_fence(address, 8, open_sessions=()) == 9
    assert open_snapshot(address).sessions == {"s9"}


def test_a_new_coordinator_makes_the_sessions_those_of_the_metadata(address: ReplicaAddress) -> None:
    raise_fence(address, 7, open_sessions={"a", "b"})
    version = open_snapshot(address).version
    assert raise_fence(address, 7, open_sessions={"b", "c"}) == 7
    assert open_snapshot(address).sessions == {"b", "c"}
    assert raise_fence(address, 7, open_sessions={"c", "b"}) == 7
    assert open_snapshot(address).version == version + 1, "saying the same again commits nothing"


def test_dropping_ranges_leaves_the_others_and_fences(address: ReplicaAddress) -> None:
    files = [store(address, label) for label in ("2-0", "2-1", "2-2")]
    commit_files(address, files, epoch=5, app_id="load", app_version=1)
    assert isinstance(drop_ranges(address, ranges("2-0", "2-2", "2-3"), 7), Acknowledged)
    snapshot = open_snapshot(address)
    assert (list(snapshot.all_files.values()), snapshot.fence) == ([files[1]], 7)
    assert isinstance(drop_ranges(address, ranges("2-0"), 7), AlreadyApplied)
    assert drop_ranges(address, ranges("2-1"), 6) == FencedOff(7)


def test_dropping_is_tried_again_when_appends_come_in_between(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped, kept = store(address, "2-0"), store(address, "2-1")
    commit_files(address, [dropped], epoch=5, app_id="load", app_version=1)
    looked = open_snapshot

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        monkeypatch.setattr(commits, "open_snapshot", looked)
        commit_files(where, [kept], epoch=6, app_id="load", app_version=2)
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look_and_be_overtaken)
    assert isinstance(drop_ranges(address, ranges("2-0"), 6), Acknowledged)
    assert looked(address).all_files == {kept.file_id: kept}


def test_an_unreachable_replica_answers_with_the_reason(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    (Path(address.volume_uri) / "epochlake-volume.json").unlink()
    answers = [raise_fence(address, 2), open_session(address, 2, "s"), drop_ranges(address, ranges("2-1"), 2)]
    for answer in answers:
        assert isinstance(answer, Unreachable)
        assert "not mounted" in answer.reason


def test_nothing_planned_below_a_fence_lands_after_it_was_raised_whatever_the_interleaving(
    tmp_path: Path, seed: int
) -> None:
    """Writers at random epochs race with a fence that climbs; each writer notes how far it had climbed before."""
    chance = random.Random(seed)
    address = make_replica(tmp_path, 1, fence=1)
    acknowledged: dict[str, int] = {}
    reached, done = [1], threading.Event()

    def write(number: int) -> None:
        file, before = store(address, ids=[number]), reached[0]
        epoch = max(1, before + chance.randint(-2, 2))
        outcome = commit_files(address, [file], epoch=epoch, app_id=f"w{number}", app_version=1)
        if isinstance(outcome, Acknowledged):
            assert epoch >= before, f"planned at {epoch}, landed although the fence stood at {before}"
            acknowledged[file.file_id] = epoch
        else:
            assert isinstance(outcome, FencedOff)
            assert outcome.fence > epoch

    def climb() -> None:
        while not done.wait(0.01):
            assert raise_fence(address, reached[0] + 1) == reached[0] + 1
            reached[0] += 1

    with ThreadPoolExecutor(5) as pool:
        climbing = pool.submit(climb)
        writing = [pool.submit(write, number) for number in range(60)]
        for future in writing:
            future.result()
        done.set()
        climbing.result()
    assert set(open_snapshot(address).all_files) == set(acknowledged)
    assert acknowledged, "no writer got through: the test shows nothing"


def test_a_replica_without_room_acknowledges_nothing(tmp_path: Path) -> None:
    from tests.support.failures import no_room_to_write

    address = make_replica(tmp_path, 1)
    file = store(address)
    with no_room_to_write():
        outcomes = [raise_fence(address, 2), commit_files(address, [file], epoch=1, app_id="load", app_version=1)]
    assert all(isinstance(outcome, Unreachable) for outcome in outcomes), outcomes
    snapshot = open_snapshot(address)
    assert (snapshot.fence, snapshot.all_files) == (1, {})
    assert isinstance(commit_files(address, [file], epoch=1, app_id="load", app_version=1), Acknowledged)


def test_a_commit_that_landed_before_the_error_is_acknowledged(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = commits._commit

    def commit_and_lose_the_answer(*arguments):  # type: ignore[no-untyped-def]
        committed(*arguments)
        raise OSError("connection reset")

    monkeypatch.setattr(commits, "_commit", commit_and_lose_the_answer)
    file = store(address)
    assert isinstance(commit_files(address, [file], epoch=5, app_id="load", app_version=1), Acknowledged)
    assert isinstance(commit_files(address, [file], epoch=5, app_id="load", app_version=1), AlreadyApplied)


def test_a_volume_that_vanishes_during_the_commit_does_not_acknowledge(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = commits._commit

    def commit_and_unmount(*arguments):  # type: ignore[no-untyped-def]
        version = committed(*arguments)
        (Path(address.volume_uri) / "epochlake-volume.json").unlink()
        return version

    monkeypatch.setattr(commits, "_commit", commit_and_unmount)
    outcome = commit_files(address, [store(address)], epoch=5, app_id="load", app_version=1)
    assert isinstance(outcome, Unreachable)
    assert "may be lost" in outcome.reason


# Columns that change


def altered(address: ReplicaAddress, version: str, fence: int, *names: str) -> ReplicaAddress:
    """The address as the metadata of a change of columns has it."""
    columns = (*TABLE.numbered, *(Column(name, "int", True, 50, name) for name in names))
    schema = delta_schema(msgspec.structs.replace(TABLE, columns=columns))
    return msgspec.structs.replace(address, columns=DeclaredColumns(version, fence, schema))


def declared(address: ReplicaAddress) -> list[str]:
    fields = json.loads(open_snapshot(address).metadata["schemaString"])["fields"]
    return [field["name"] for field in fields[4:]]


def test_a_file_of_altered_columns_lands_only_where_these_are_declared_and_what_knew_others_is_refused(
    address: ReplicaAddress,
) -> None:
    before = declared(address)
    now = altered(address, "2", 8, "c")
    assert isinstance(commit_files(now, [store(now)], epoch=9, app_id="new", app_version=1), Acknowledged)
    assert declared(now) == [*before, "c"]
    assert (open_snapshot(now).fence, open_snapshot(now).columns_version) == (8, "2")
    assert commit_files(address, [store(address)], epoch=7, app_id="old", app_version=1) == FencedOff(8)
    # Who knows older columns, and plans at an epoch that is not behind the fence, leaves them as they are.
    older = altered(address, "1", 4, "b")
    assert isinstance(commit_files(older, [store(older)], epoch=8, app_id="old", app_version=1), Acknowledged)
    assert declared(now) == [*before, "c"]


def test_who_is_behind_the_fence_declares_nothing(address: ReplicaAddress) -> None:
    assert raise_fence(address, 12) == 12
    now = altered(address, "2", 8, "c")
    assert commit_files(now, [store(now)], epoch=9, app_id="new", app_version=1) == FencedOff(12)
    assert raise_fence(now, 9) == 12
    assert "c" not in declared(now)
    assert raise_fence(now, 12) == 12
    assert ("c" in declared(now), open_snapshot(now).columns_version) == (True, "2")


def test_a_fence_and_the_columns_are_one_commit(address: ReplicaAddress) -> None:
    version = open_snapshot(address).version
    now = altered(address, "2", 8, "c")
    assert [raise_fence(now, 8), raise_fence(now, 8)] == [8, 8]
    assert open_snapshot(now).version == version + 1


def test_on_object_stores_delta_rs_adds_the_columns_and_may_be_asked_again(address: ReplicaAddress) -> None:
    columns = altered(address, "2", 8, "c").columns
    for _ in range(2):
        fences._change_by_delta_rs(DeltaTable(address.uri), {COLUMNS: "2", FENCE: "8"}, columns)
    assert (declared(address)[-1], open_snapshot(address).columns_version) == ("c", "2")
    assert open_snapshot(address).fence == 8
