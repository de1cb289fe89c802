"""History: time travel is replay, a diff says exactly what changed, and verifying finds what was altered."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from epochlake.metastore.errors import HashMismatch, LogUnreadable, NotInitialised, StorageUnavailable
from epochlake.metastore.following import verification
from epochlake.metastore.following.history import Difference, diff, entries, metadata_at, verify
from epochlake.metastore.following.snapshot_format import encode_snapshot
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, entry_hash
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.tablets import TABLET, TABLET_MAP
from epochlake.metastore.metadata.differences import WHOLE
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    FinishTransitions,
    NewTransition,
    PauseChanges,
    RegisterNode,
    StageChange,
    StartTransitions,
    TakeSnapshot,
)
from epochlake.metastore.metadata.events.nodes import next_node_id, next_volume_id
from epochlake.metastore.metadata.model import Volume
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.transitions import FORWARD, SESSION_STAGES, Kind, Stage

from tests.support.random_histories import History, as_entry, create_table, random_history, small_cluster
from tests.support.storages import STORAGE


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(STORAGE, str(tmp_path / "snapshots"))


def write(snapshots: Snapshots, history: History, *epochs: int) -> None:
    for epoch in epochs:
        snapshots.write(history.versions[epoch], history.position_at(epoch))


# --- time travel ------------------------------------------------------------------------------------------------


def test_the_metadata_of_every_epoch_is_what_it_was_then(seed: int, snapshots: Snapshots) -> None:
    taken = random.Random(seed).sample(range(20, 121, 2), 5)
    history = random_history(seed, 120, snapshots_at=taken)
    write(snapshots, history, *taken)
    for epoch in range(1, 121):
        assert metadata_at(history.log(), snapshots, epoch) == history.versions[epoch]


def test_time_travel_starts_from_the_newest_snapshot_before_the_epoch(snapshots: Snapshots) -> None:
    history = random_history(1, 60, snapshots_at=(20, 40))
    write(snapshots, history, 20, 40)
    asked: list[tuple[int, int | None]] = []

    class Watched(InMemoryLog):
        def read(self, after: int, up_to: int | None = None) -> list[Entry]:
            asked.append((after, up_to))
            return super().read(after, up_to)

    assert metadata_at(Watched(history.log().shared), snapshots, 50) == history.versions[50]
    assert asked == [(39, 50)]


def test_a_torn_snapshot_or_one_of_another_log_is_passed_over(snapshots: Snapshots) -> None:
    history, other = (random_history(seed, 60, snapshots_at=(20, 30, 40)) for seed in (1, 2))
    write(snapshots, history, 20, 30)
    write(snapshots, other, 40)
    Path(snapshots.path(30)).write_bytes(b"torn")
    assert metadata_at(history.log(), snapshots, 50) == history.versions[50]


@pytest.mark.parametrize("epoch", [-1, 0, 61])
def test_an_epoch_that_is_not_there_is_refused_with_the_range_that_is(epoch: int, snapshots: Snapshots) -> None:
    history = random_history(1, 60)
    write(snapshots, history, 60)
    with pytest.raises(InvalidRequest, match=f"epoch {epoch} is not in the log. Ask for one from 1 to 60"):
        metadata_at(history.log(), snapshots, epoch)


def test_a_log_that_is_shorter_than_its_snapshots_is_not_trusted(snapshots: Snapshots) -> None:
    write(snapshots, random_history(1, 60), 60)
    with pytest.raises(LogUnreadable, match="ends at epoch 40"):
        metadata_at(random_history(1, 40).log(), snapshots, 60)


def test_an_empty_log_says_that_there_is_no_cluster_yet() -> None:
    with pytest.raises(NotInitialised, match="epochlake init"):
        metadata_at(InMemoryLog(), None, 1)


def test_time_travel_over_an_altered_entry_is_refused() -> None:
    history = random_history(1, 30)
    history.entries[9] = msgspec.structs.replace(history.entries[9], reason="another")
    with pytest.raises(HashMismatch, match="epoch 10"):
        metadata_at(history.log(), None, 20)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, None, (1, 30)), (5, 7, (5, 7)), (30, 30, (30, 30)), (25, 99, (25, 30))],
)
def test_entries_are_read_by_range(first: int, last: int | None, expected: tuple[int, int]) -> None:
    found = entries(random_history(1, 30).log(), first, last)
    assert [entry.epoch for entry in found] == list(range(expected[0], expected[1] + 1))


@pytest.mark.parametrize(("first", "last"), [(0, 3), (31, None), (31, 40), (35, 40), (7, 5)])
def test_a_range_without_an_epoch_is_refused(first: int, last: int | None) -> None:
    with pytest.raises(InvalidRequest):
        entries(random_history(1, 30).log(), first, last)


def test_ranges_of_the_delta_log_are_those_of_the_log_in_memory(tmp_path: Path) -> None:
    history = random_history(1, 40)
    log = delta_log(tmp_path, history, files=4)
    for first, last in [(1, None), (1, 40), (9, 12), (10, 10), (11, None), (35, 99)]:
        assert entries(log, first, last) == entries(history.log(), first, last)
    for beyond in (41, 42, 99):
        with pytest.raises(InvalidRequest, match=f"epoch {beyond} is not in the log. Ask for one from 1 to 40"):
            entries(log, beyond)


# --- differences ------------------------------------------------------------------------------------------------


def test_nothing_differs_exactly_when_two_versions_say_the_same(seed: int) -> None:
    history = random_history(seed, 80)
    for before, after in zip(history.versions[1:], history.versions[2:], strict=False):
        assert (diff(before, after) == []) == (without_epochs(before) == without_epochs(after))


def test_a_diff_the_other_way_round_swaps_before_and_after(seed: int) -> None:
    rng, history = random.Random(seed), random_history(seed, 80)
    for _ in range(20):
        a, b = rng.choices(history.versions[1:], k=2)
        back = [msgspec.structs.replace(change, before=change.after, after=change.before) for change in diff(b, a)]
        assert sorted(map(str, diff(a, b))) == sorted(map(str, back))


def test_a_diff_is_the_same_whether_chunks_are_shared_or_not(seed: int, snapshots: Snapshots) -> None:
    history = random_history(seed, 80)
    write(snapshots, history, 30)
    loaded, _ = snapshots.read(30)
    assert diff(loaded, history.metadata) == diff(history.versions[30], history.metadata)


def test_a_joining_node_appears_with_its_volumes_and_its_request() -> None:
    history = small_cluster()
    before = history.metadata
    history.add(a_node(before, "n9"))
    changes = diff(before, history.metadata)
    assert [(c.component, c.name, c.field, c.before) for c in changes] == [
        ("node", "n9", WHOLE, None),
        ("volume", "n9/disk", WHOLE, None),
        ("request", "join-n9", WHOLE, None),
    ]
    assert changes[0].after["rack"] == "r1"
    assert changes[1].after["uri"] == "/volumes/n9"


def test_a_new_table_is_one_change_of_its_map_however_many_tablets_it_has() -> None:
    history = small_cluster()
    before = history.metadata
    history.add(create_table(before, "air", "big", 2**15, random.Random(1)))
    changes = diff(before, history.metadata)
    assert [(c.component, c.name) for c in changes] == [("table", "air.big"), (TABLET_MAP, "air.big")]
    assert changes[1].after["count"] == 2**15


def test_a_moved_tablet_is_named_with_its_volumes() -> None:
    history = small_cluster(nodes=4, tablets=4)
    before = history.metadata
    table_id = before.schema.by_name["air.flights"].table_id
    leaving, pending = migrate(history, table_id, tablet=2)
    [change] = diff(before, history.metadata)
    names = {v.volume_id: f"{n.name}/{v.name}" for n in before.directory.nodes.values() for v in n.volumes}
    old = [names[volume] for volume in before.tablets.maps[table_id].replicas(2)]
    new = [names[pending] if volume == names[leaving] else volume for volume in old]
    assert change == Difference(TABLET, "air.flights/2-2", "replicas", old, new)


def test_the_way_of_a_transition_is_told_field_by_field() -> None:
    history = small_cluster()
    history.add(a_move(history.metadata, 0))
    before = history.metadata
    [transition] = before.tablets.transitions.values()
    step = StageChange(transition.table_id, 0, transition.stage, Stage.WRITE_BOTH_READ_OLD)
    history.add(AdvanceTransitions((step,)))
    assert diff(before, history.metadata) == [
        Difference("transition", "air.flights/2-0", "stage", "allow_write_both_read_old", "write_both_read_old")
    ]


def test_ten_moved_tablets_of_a_million_are_ten_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    history = small_cluster()
    replicas = np.tile(np.array([1, 2, 3], dtype=np.int32), (2**20, 1))
    table = create_table(history.metadata, "air", "big", 1, random.Random(1))
    whole = msgspec.structs.replace(table, tablet_count=2**20, attachment=encode_replicas(replicas))
    before = history.metadata.apply(whole, "z")
    table_id = table.table.table_id
    moved = dict.fromkeys(range(0, 1_000_000, 100_000), (1, 2, 4))
    tablet_map = before.tablets.maps[table_id].with_replicas(moved, before.epoch + 1)
    tablets = msgspec.structs.replace(before.tablets, maps={**before.tablets.maps, table_id: tablet_map})
    compared = []
    monkeypatch.setattr(np, "flatnonzero", lambda rows: compared.append(len(rows)) or rows.nonzero()[0])
    changes = diff(before, msgspec.structs.replace(before, tablets=tablets))
    assert [change.name for change in changes] == [f"air.big/20-{tablet}" for tablet in moved]
    assert sum(compared) <= len(moved) * 4096


# --- verifying --------------------------------------------------------------------------------------------------


def test_an_honest_history_holds(seed: int, snapshots: Snapshots) -> None:
    history = random_history(seed, 150)
    write(snapshots, history, 40, 90, 150)
    report = verify(history.log(), snapshots)
    assert report.findings == ()
    assert (report.last_epoch, report.entries, report.events, report.snapshots) == (150, 150, 150, 3)


Tampering = Callable[[History], None]


def altered(history: History) -> None:
    history.entries[9] = msgspec.structs.replace(history.entries[9], reason="another")


def altered_and_sealed_again(history: History) -> None:
    changed = msgspec.structs.replace(history.entries[9], reason="another")
    history.entries[9] = msgspec.structs.replace(changed, hash=entry_hash(changed))


def missing(history: History) -> None:
    del history.entries[9:12]


def doubled(history: History) -> None:
    history.entries.insert(10, history.entries[9])


def from_the_future(history: History) -> None:
    changed = msgspec.structs.replace(history.entries[9], format=9)
    history.entries[9] = msgspec.structs.replace(changed, hash=entry_hash(changed))


def of_unknown_kind(history: History) -> None:
    history.entries[9] = msgspec.structs.replace(history.entries[9], event="PaintNode")


def of_another_incarnation(history: History) -> None:
    history.entries[9] = msgspec.structs.replace(history.entries[9], incarnation=2)


def with_a_request_id_used_before(history: History) -> None:
    history.entries[9] = msgspec.structs.replace(history.entries[9], request_id="request-4")


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (altered, {(10, verification.CHAIN)}),
        (altered_and_sealed_again, {(11, verification.CHAIN)}),
        (missing, {(10, verification.GAP)}),
        (doubled, {(10, verification.DUPLICATE)}),
        (from_the_future, {(10, verification.FORMAT), (11, verification.CHAIN)}),
        (of_unknown_kind, {(10, verification.CHAIN), (10, verification.FORMAT)}),
        (of_another_incarnation, {(10, verification.CHAIN), (10, verification.INCARNATION)}),
        (with_a_request_id_used_before, {(10, verification.CHAIN), (10, verification.REQUEST_ID)}),
    ],
)
def test_what_was_altered_is_found_at_its_epoch(
    tamper: Tampering, expected: set[tuple[int, str]], snapshots: Snapshots
) -> None:
    history = random_history(1, 40)
    write(snapshots, history, 30)
    tamper(history)
    report = verify(history.log(), snapshots)
    assert {(finding.epoch, finding.code) for finding in report.findings} == expected
    assert report.last_epoch == 40


def test_after_a_gap_the_metadata_is_taken_up_again_at_a_snapshot(snapshots: Snapshots) -> None:
    history = random_history(1, 40, snapshots_at=(20, 35))
    write(snapshots, history, 20, 35)
    missing(history)
    history.entries[-1] = msgspec.structs.replace(history.entries[-1], event="PaintNode")
    report = verify(history.log(), snapshots)
    assert {(finding.epoch, finding.code) for finding in report.findings} == {
        (10, verification.GAP),
        (40, verification.CHAIN),
        (40, verification.FORMAT),
    }
    assert (report.entries, report.events, report.snapshots) == (37, 9 + 19, 1)


def test_an_event_that_was_never_valid_is_found() -> None:
    history = small_cluster()
    epoch = history.metadata.epoch + 2
    history.add(PauseChanges("a break"))
    history.add_unchecked(a_move(history.metadata, 0))
    [finding] = verify(history.log()).findings
    assert (finding.epoch, finding.code) == (epoch, verification.REJECTED)
    assert "paused" in finding.message


def test_a_second_transition_of_a_tablet_is_a_violation_of_inv_tabl_2() -> None:
    history = small_cluster()
    history.add(a_move(history.metadata, 0))
    history.add_unchecked(a_move(history.metadata, 0))
    [finding] = verify(history.log()).findings
    assert (finding.epoch, finding.code) == (history.metadata.epoch, verification.INV_TABL_2)


def test_an_event_that_cannot_be_applied_is_found_and_the_chain_is_walked_on() -> None:
    history = small_cluster()
    history.entries.append(as_entry(FinishTransitions((("no-such-table", 0),)), history.position))
    report = verify(history.log())
    assert {(f.epoch, f.code) for f in report.findings} == {
        (history.metadata.epoch + 1, verification.REJECTED),
        (history.metadata.epoch + 1, verification.NOT_APPLICABLE),
    }


def test_snapshots_that_the_log_does_not_give_are_found(snapshots: Snapshots) -> None:
    history, longer = random_history(1, 40), random_history(1, 60)
    write(snapshots, history, 10, 40)
    write(snapshots, longer, 60)
    Path(snapshots.path(20)).write_bytes(b"torn")
    paused = history.versions[30].apply(PauseChanges("never happened"), history.versions[30].state_id)
    lie = msgspec.structs.replace(paused, epoch=30)
    Path(snapshots.path(30)).write_bytes(encode_snapshot(lie, history.position_at(30)))
    report = verify(history.log(), snapshots)
    assert [(finding.epoch, finding.code) for finding in report.findings] == [
        (20, verification.SNAPSHOT_DAMAGED),
        (30, verification.SNAPSHOT_DIFFERS),
        (60, verification.SNAPSHOT_ASTRAY),
    ]
    assert "switches" in report.findings[1].message
    assert report.snapshots == 3


def test_a_snapshot_that_cannot_be_read_now_is_not_called_damaged(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = random_history(1, 40)
    write(snapshots, history, 10)

    def fails(uri: str) -> bytes:
        raise StorageUnavailable(f"cannot read {uri}: the device reports an error")

    monkeypatch.setattr(STORAGE, "read_bytes", fails)
    [finding] = verify(history.log(), snapshots).findings
    assert (finding.epoch, finding.code) == (10, verification.UNREADABLE)


def test_a_torn_file_of_the_log_is_found_and_what_is_around_it_is_verified(tmp_path: Path) -> None:
    history = random_history(1, 40)
    log = delta_log(tmp_path, history, files=4)
    torn = sorted((tmp_path / "log").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)[1]
    torn.write_bytes(b"torn")
    report = verify(DeltaLog(STORAGE, log.uri))
    [finding] = report.findings
    assert (finding.epoch, finding.code) == (11, verification.UNREADABLE)
    assert "epochs 11 to 20" in finding.message
    assert (report.last_epoch, report.entries, report.events) == (40, 30, 10)


# --- what the tests above are made of ---------------------------------------------------------------------------


def delta_log(tmp_path: Path, history: History, files: int) -> DeltaLog:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    size = len(history.entries) // files
    for start in range(0, len(history.entries), size):
        log.read(start)
        log.append(history.entries[start : start + size])
    return log


def without_epochs(metadata: ClusterMetadata) -> object:
    """The metadata as plain values without the epochs that its parts carry."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in ("epoch", "last_snapshot_epoch")}
        return [strip(item) for item in value] if isinstance(value, list | tuple) else value

    plain = msgspec.to_builtins(
        msgspec.structs.replace(
            metadata, state_id="", tablets=msgspec.structs.replace(metadata.tablets, maps={}, transitions={})
        )
    )
    maps = {key: (m.resize_type, m.resize_seq_number, list(m)) for key, m in metadata.tablets.maps.items()}
    transitions = {key: strip(msgspec.to_builtins(t)) for key, t in metadata.tablets.transitions.items()}
    return strip(plain), maps, transitions


def a_node(metadata: ClusterMetadata, name: str) -> RegisterNode:
    volume = Volume(next_volume_id(metadata), "disk", f"/volumes/{name}", 1 << 30)
    return RegisterNode(f"join-{name}", next_node_id(metadata), name, f"host-{name}", "dc1", "r1", (volume,))


def a_move(metadata: ClusterMetadata, tablet: int) -> StartTransitions:
    """The first replica of a tablet of air.flights moves to a node that has none."""
    table_id = metadata.schema.by_name["air.flights"].table_id
    replicas = metadata.tablets.maps[table_id].replicas(tablet)
    taken = {metadata.directory.node_of_volume[volume].node_id for volume in replicas}
    target = next(node for node in metadata.directory.nodes.values() if node.node_id not in taken)
    new = NewTransition(table_id, tablet, Kind.MIGRATION, replicas[0], target.volumes[0].volume_id)
    return StartTransitions((new,))


def migrate(history: History, table_id: str, tablet: int) -> tuple[int, int]:
    """Move a tablet from the first stage to the end; the volumes that it left and went to."""
    move = a_move(history.metadata, tablet)
    history.add(move)
    stage = Stage.ALLOW_WRITE_BOTH_READ_OLD
    while (then := FORWARD[stage]) is not None:
        session = "a session" if then in SESSION_STAGES else None
        history.add(AdvanceTransitions((StageChange(table_id, tablet, stage, then, session),)))
        stage = then
    history.add(FinishTransitions(((table_id, tablet),)))
    return move.transitions[0].leaving, move.transitions[0].pending


def test_an_epoch_of_only_a_snapshot_changes_nothing() -> None:
    history = small_cluster()
    before = history.metadata
    history.add(TakeSnapshot())
    assert diff(before, history.metadata) == []
