"""Snapshots: the same bytes for the same metadata, used whole or not at all, and never those of another log."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.errors import HashMismatch, LogUnreadable, Rejected, UnknownFormat
from epochlake.metastore.following import snapshot_format
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.history import metadata_at
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot
from epochlake.metastore.following.snapshots import Snapshots, SnapshotWriter
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.component import Facts, components_of
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.events import (
    CreateKeyspace,
    Event,
    FinishRequest,
    NewTransition,
    StartRequest,
    StartTransitions,
    TakeSnapshot,
)
from epochlake.placement.tablets.transitions import Kind

from tests.support.failures import no_room_to_write
from tests.support.histories import INITIALISE, keyspace, register, small_cluster, table
from tests.support.logs import ScriptedLog, put, sealed, toggle
from tests.support.storages import STORAGE


def a_log(*, snapshots_after: tuple[int, ...] = ()) -> InMemoryLog:
    """A log with nodes, a table and a transition; `TakeSnapshot` comes after the given numbers of events."""
    log, metadata, position = InMemoryLog(), ClusterMetadata.empty(), Position()

    def add(event: Event) -> None:
        nonlocal metadata, position
        metadata.check(event)
        entry = sealed(event, position)
        put(log, [entry])
        metadata, position = metadata.apply(event, entry.state_id), position_of(entry)

    def events() -> list[Event]:
        joins: list[Event] = []
        known = ClusterMetadata.empty().apply(INITIALISE, "0")
        for name in ("n1", "n2", "n3"):
            event = register(known, name)
            joins += [event, StartRequest(event.request_id), FinishRequest(event.request_id)]
            for step in joins[-3:]:
                known = known.apply(step, "0")
        move = NewTransition("id-flights", 1, Kind.MIGRATION, 2, 3, "to spread")
        return [
            INITIALISE,
            *joins,
            CreateKeyspace(keyspace()),
            table("flights", [[1, 2], [2, 1]]),
            StartTransitions((move,)),
        ]

    for number, event in enumerate(events(), 1):
        add(event)
        if number in snapshots_after:
            add(TakeSnapshot())
    return log


def followed(log: InMemoryLog, snapshots: Snapshots | None = None) -> Follower:
    follower = Follower(InMemoryLog(log.shared), snapshots)
    follower.catch_up()
    return follower


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(STORAGE, str(tmp_path / "snapshots"))


def write_all(log: InMemoryLog, snapshots: Snapshots) -> None:
    follower = Follower(InMemoryLog(log.shared))
    follower.add_listener(SnapshotWriter(snapshots))
    follower.catch_up()


def test_a_snapshot_is_read_as_it_was_written_and_has_the_same_bytes_again() -> None:
    follower = followed(a_log())
    data = encode_snapshot(follower.metadata, follower.position)
    metadata, position = decode_snapshot(data)
    assert (metadata, position) == (follower.metadata, follower.position)
    assert encode_snapshot(metadata, position) == data


def test_metadata_that_was_replayed_and_metadata_from_a_snapshot_have_the_same_bytes(snapshots: Snapshots) -> None:
    log = a_log(snapshots_after=(5,))
    write_all(log, snapshots)
    replayed, resumed = followed(log), followed(log, snapshots)
    assert snapshots.epochs() == [6]
    assert resumed.metadata == replayed.metadata
    assert encode_snapshot(resumed.metadata, resumed.position) == encode_snapshot(replayed.metadata, replayed.position)


def test_an_empty_cluster_and_a_large_map_round_trip() -> None:
    rows = np.stack([np.arange(1 << 14) % 3 + 1, (np.arange(1 << 14) + 1) % 3 + 1], axis=1)
    log = a_log()
    put(log, [sealed(table("crews", rows.tolist()), position_of(log.shared.entries[-1]))])
    follower = followed(log)
    for metadata, position in ((ClusterMetadata.empty(), Position()), (follower.metadata, follower.position)):
        data = encode_snapshot(metadata, position)
        assert decode_snapshot(data) == (metadata, position)
        assert encode_snapshot(*decode_snapshot(data)) == data
    assert len(follower.metadata.tablets.maps["id-crews"].chunks) == 4


def test_what_comes_from_a_snapshot_cannot_be_changed_in_place() -> None:
    metadata, _ = decode_snapshot(encode_snapshot(small_cluster(), Position()))
    with pytest.raises(ValueError, match="read-only"):
        metadata.tablets.maps["id-flights"].chunks[0][0, 0] = 9


def test_torn_and_altered_snapshots_are_refused(seed: int) -> None:
    dice = random.Random(seed)
    follower = followed(a_log())
    data = encode_snapshot(follower.metadata, follower.position)
    for length in (0, 1, 31, 32, 33, *dice.sample(range(34, len(data)), 20), len(data) - 1):
        with pytest.raises(UnknownFormat):
            decode_snapshot(data[:length])
    for place in dice.sample(range(len(data)), 50):
        altered = bytearray(data)
        altered[place] ^= 1 << dice.randrange(8)
        with pytest.raises(UnknownFormat):
            decode_snapshot(bytes(altered))
    with pytest.raises(UnknownFormat):
        decode_snapshot(data + b"x")


def test_a_snapshot_in_another_format_is_refused_and_not_used(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(snapshots_after=(3, 6))
    write_all(log, snapshots)
    newest = followed(log, snapshots)
    Path(snapshots.path(8)).unlink()
    monkeypatch.setattr(snapshot_format, "FORMAT", 99)
    at_8 = Follower(InMemoryLog(log.shared))
    at_8.receive(log.shared.entries[:8])
    snapshots.write(at_8.metadata, at_8.position)
    monkeypatch.undo()
    with pytest.raises(UnknownFormat, match="format 99"):
        snapshots.read(8)
    found = snapshots.newest()
    assert found is not None
    assert found[1].epoch == 4
    assert followed(log, snapshots).metadata == newest.metadata


@pytest.mark.parametrize("damage", ["torn", "empty", "altered", "renamed", "directory"])
@pytest.mark.parametrize("damaged", [(8,), (8, 4)], ids=["the newest", "all"])
def test_catching_up_falls_back_from_damaged_snapshots_to_an_older_one_or_to_the_whole_log(
    snapshots: Snapshots, damage: str, damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    log = a_log(snapshots_after=(3, 6))
    write_all(log, snapshots)
    assert snapshots.epochs() == [4, 8]
    for epoch in damaged:
        path = Path(snapshots.path(epoch))
        data = path.read_bytes()
        path.unlink()
        match damage:
            case "torn":
                path.write_bytes(data[: len(data) // 2])
            case "empty":
                path.write_bytes(b"")
            case "altered":
                path.write_bytes(data.replace(b"rack-n1", b"rack-n9"))
            case "renamed":
                path.with_name(f"{epoch + 1:020}.snapshot").write_bytes(data)
            case "directory":
                path.mkdir()
    scripted = ScriptedLog(InMemoryLog(log.shared))
    follower = Follower(scripted, snapshots)
    assert follower.position.epoch == (4 if damaged == (8,) else 0)
    assert follower.catch_up() == followed(log).metadata
    if damage != "directory":
        assert str(damaged[0]) in caplog.text


def test_the_newest_snapshot_at_or_below_an_epoch_is_found(snapshots: Snapshots) -> None:
    assert snapshots.newest() is None
    write_all(a_log(snapshots_after=(3, 6)), snapshots)
    found = [snapshots.newest(at_most=epoch) for epoch in (3, 4, 7, 8, 99)]
    assert [one[1].epoch if one else None for one in found] == [None, 4, 4, 8, 8]


def test_files_that_are_no_snapshots_are_not_looked_at(snapshots: Snapshots) -> None:
    write_all(a_log(snapshots_after=(3,)), snapshots)
    for name in (".00000000000000000009.snapshot.tmp-1", "9.snapshot", "00000000000000000009.snapshot.bak", "README"):
        (Path(snapshots.uri) / name).write_bytes(b"x")
    assert snapshots.epochs() == [4]


def test_a_snapshot_is_written_once_and_every_follower_can_check_it(snapshots: Snapshots) -> None:
    log = a_log(snapshots_after=(10,))
    at_11 = Follower(InMemoryLog(log.shared))
    at_11.receive(log.shared.entries[:11])
    write_all(log, snapshots)
    before = Path(snapshots.path(11)).stat()
    write_all(log, snapshots)
    assert snapshots.write(at_11.metadata, at_11.position) is False
    assert Path(snapshots.path(11)).stat().st_mtime_ns == before.st_mtime_ns
    assert snapshots.matches(at_11.metadata, at_11.position)
    other = msgspec.structs.replace(at_11.metadata, last_snapshot_epoch=1)
    assert not snapshots.matches(other, at_11.position)


def test_a_snapshot_that_cannot_be_written_is_logged_and_leaves_nothing(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    log = a_log(snapshots_after=(5,))
    follower = Follower(InMemoryLog(log.shared))
    follower.add_listener(SnapshotWriter(snapshots))
    with no_room_to_write():
        follower.catch_up()
    assert follower.metadata == followed(log).metadata
    [told] = caplog.records
    assert (told.levelno, told.exc_info) == (logging.WARNING, None)
    assert snapshots.epochs() == []
    assert not any(path.is_file() for path in Path(snapshots.uri).rglob("*"))


def test_a_follower_from_a_snapshot_tells_listeners_only_of_what_comes_after(snapshots: Snapshots) -> None:
    log = a_log(snapshots_after=(5,))
    write_all(log, snapshots)
    told: list[int] = []

    class Listener:
        def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
            told.append(entry.epoch)

        def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
            told.append(-entry.epoch)

    follower = Follower(InMemoryLog(log.shared), snapshots)
    follower.add_listener(Listener())
    follower.catch_up()
    assert told == [sign * epoch for epoch in range(7, len(log.shared.entries) + 1) for sign in (1, -1)]


def test_a_snapshot_of_another_log_stops_the_follower_and_names_the_epoch(snapshots: Snapshots) -> None:
    write_all(a_log(snapshots_after=(5,)), snapshots)
    other = a_log(snapshots_after=(5,))
    for _ in range(2):
        with pytest.raises(HashMismatch, match="another entry at epoch 6"):
            followed(other, snapshots)


@pytest.mark.parametrize("length", [0, 3, 5])
def test_a_log_that_ends_before_its_snapshot_is_not_gone_on_with(snapshots: Snapshots, length: int) -> None:
    log = a_log(snapshots_after=(5,))
    write_all(log, snapshots)
    del log.shared.entries[length:]
    with pytest.raises(LogUnreadable, match=f"ends at epoch {length}, but epoch 6 was known to a snapshot"):
        followed(log, snapshots)


def test_a_snapshot_of_the_very_tail_can_be_committed_on(snapshots: Snapshots) -> None:
    log = a_log(snapshots_after=(13,))
    write_all(log, snapshots)
    follower = Follower(InMemoryLog(log.shared), snapshots)
    assert follower.position == position_of(log.shared.entries[-1])
    assert Committer(follower, LocalQueue(), author="a").commit(toggle).epoch == 15
    assert follower.metadata == followed(log).metadata


# --- what the log says of snapshots ------------------------------------------------------------------------------


def a_lie(snapshots: Snapshots, epoch: int) -> None:
    """Put a snapshot in the place of another one: whole, of the right entry, and of metadata that never was."""
    metadata, position = snapshots.read(epoch)
    lie = msgspec.structs.replace(metadata, switches=msgspec.structs.replace(metadata.switches, balancing=False))
    Path(snapshots.path(epoch)).write_bytes(encode_snapshot(lie, position))


def committed_log(tmp_path: Path, snapshots: Snapshots) -> InMemoryLog:
    """A log with two snapshots that were asked for through commits, and some epochs after them."""
    log = InMemoryLog()
    follower = Follower(log)
    follower.add_listener(SnapshotWriter(snapshots))
    commits = Committer(follower, LocalQueue(), author="test")
    commits.commit(INITIALISE)
    for _ in range(2):
        commits.commit(toggle)
        commits.commit(TakeSnapshot(), request_id=f"snapshot-{follower.position.epoch}")
    commits.commit(toggle)
    return log


def test_a_snapshot_that_is_not_what_the_log_says_is_left_for_an_older_one_or_the_whole_log(
    tmp_path: Path, snapshots: Snapshots
) -> None:
    log = committed_log(tmp_path, snapshots)
    [first, second] = snapshots.epochs()
    true = followed(log).metadata
    for lied in ([second], [first, second]):
        for epoch in lied:
            a_lie(snapshots, epoch)
        assert followed(log, snapshots).metadata == true
        assert metadata_at(InMemoryLog(log.shared), snapshots, true.epoch) == true
        assert metadata_at(InMemoryLog(log.shared), snapshots, second) == followed_to(log, second)


def test_a_snapshot_that_the_log_proves_is_begun_with(tmp_path: Path, snapshots: Snapshots) -> None:
    log = committed_log(tmp_path, snapshots)
    asked: list[int] = []

    class Watched(InMemoryLog):
        def read(self, after: int, up_to: int | None = None) -> list[Entry]:
            asked.append(after)
            return super().read(after, up_to)

    assert Follower(Watched(log.shared), snapshots).catch_up() == followed(log).metadata
    assert asked == [snapshots.epochs()[-1] - 1]


def test_a_snapshot_that_nobody_asked_for_is_not_used(tmp_path: Path, snapshots: Snapshots) -> None:
    log = committed_log(tmp_path, snapshots)
    last = followed(log)
    lie = msgspec.structs.replace(last.metadata, switches=followed_to(log, 2).switches)
    assert snapshots.write(lie, last.position)
    assert followed(log, snapshots).metadata == last.metadata


def test_the_same_request_for_a_snapshot_comes_again_though_the_log_has_its_digest(
    tmp_path: Path, snapshots: Snapshots
) -> None:
    log = committed_log(tmp_path, snapshots)
    again = Committer(followed(log), LocalQueue(), author="test").commit(TakeSnapshot(), request_id="snapshot-2")
    assert (again.epoch, again.already) == (3, True)


def test_a_digest_says_what_the_metadata_is_and_not_where_in_the_history() -> None:
    metadata = followed(a_log()).metadata
    digest = digest_of(metadata)
    elsewhere = msgspec.structs.replace(metadata, epoch=99, state_id="x", last_snapshot_epoch=98)
    assert digest_of(elsewhere) == digest_of(decode_snapshot(encode_snapshot(metadata, Position()))[0]) == digest
    components = components_of(ClusterMetadata).items()
    not_covered = {name for name, one in components if one.facts_of(name, getattr(metadata, name)) == Facts()}
    assert not_covered == {"last_snapshot_epoch"}
    with pytest.raises(Rejected, match="wrong-digest"):
        TakeSnapshot("1:another").check(metadata)
    TakeSnapshot("9:of a later version").check(metadata)


def followed_to(log: InMemoryLog, epoch: int) -> ClusterMetadata:
    before = InMemoryLog()
    before.shared.entries.extend(log.shared.entries[:epoch])
    return followed(before).metadata
