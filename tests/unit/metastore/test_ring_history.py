"""Histories of the ring: replayed, from snapshots, as tables, as differences, verified, and brought to rest."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from epochlake.metastore.errors import Rejected, UnknownFormat
from epochlake.metastore.following import verification
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.history import diff, metadata_at, verify
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.log.entry import Entry, Position
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AdvanceOperation, CreateKeyspace, Event, StartRequest
from epochlake.metastore.metadata.model import RequestState
from epochlake.metastore.metadata.placements import highs
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.metastore.metadata.ring_state import ring_state, settles
from epochlake.metastore.tables import columns
from epochlake.metastore.tables import metadata as tables
from epochlake.placement.ring.codec import encode_operation
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.placements import calculated, same
from epochlake.placement.ring.state import Step
from epochlake.placement.tokens import MIN_TOKEN

from tests.support.histories import applied, register, ring_cluster, ring_keyspace, ring_plan, start, steps
from tests.support.random_histories import (
    WITHOUT_FEATURES,
    History,
    as_entry,
    come_to_rest,
    random_history,
    random_ring_history,
)
from tests.support.storages import STORAGE

EPOCHS = 160


@pytest.fixture
def history(seed: int) -> History:
    return random_ring_history(seed, EPOCHS)


def covers(metadata: ClusterMetadata) -> Iterator[tuple[str, Any]]:
    for name in ring_keyspaces(metadata):
        yield name, metadata.ring_placements(name)


# Replay and rest


def test_replaying_a_log_gives_the_same_metadata_at_every_epoch(history: History) -> None:
    replayed = ClusterMetadata.empty()
    for entry, version in zip(history.entries, history.versions[1:], strict=True):
        replayed = replayed.apply(entry.decode(), entry.state_id)
        assert replayed == version


def test_when_everything_has_ended_the_ring_is_as_if_it_had_been_so_from_the_beginning(history, seed: int) -> None:
    come_to_rest(history, seed)
    metadata = history.metadata
    assert not list(metadata.open_requests())
    assert not metadata.rings.operations
    assert not metadata.open_sessions()
    state = ring_state(metadata)
    for setting, placements in state.placements.items():
        assert same(placements.reads, calculated(state.ring(), setting))
        assert same(placements.writes, placements.reads)


def test_two_ways_to_rest_reach_the_same_ring(history: History, seed: int) -> None:
    other = History([entry.decode() for entry in history.entries])
    come_to_rest(history, seed)
    come_to_rest(other, seed + 1)
    one, two = ring_state(history.metadata), ring_state(other.metadata)
    assert one.tokens() == two.tokens()
    assert all(same(one.placements[key].reads, two.placements[key].reads) for key in one.placements)


def test_a_plan_that_is_committed_on_later_metadata_is_rejected_or_leads_where_the_strategy_says(history) -> None:
    tried = {"accepted": 0, "rejected": 0}
    for version in history.versions[40::4]:
        for request in (r for r in version.open_requests() if r.state is RequestState.PENDING and r.node_id):
            try:
                event = start(version, request.request_id)
            except PlanRejected:
                continue
            for later in history.versions[version.epoch : version.epoch + 25 : 3]:
                try:
                    later.check(event)
                except Rejected:
                    tried["rejected"] += 1
                    continue
                tried["accepted"] += 1
                assert settles(ring_state(later.apply(event, "later")))
    assert all(tried.values()), tried


# Snapshots


def test_a_snapshot_of_any_epoch_is_read_as_it_was_written_and_gone_on_from(history: History) -> None:
    for epoch in range(20, EPOCHS, 23):
        position = history.position_at(epoch)
        data = encode_snapshot(history.versions[epoch], position)
        metadata, read = decode_snapshot(data)
        assert (metadata, read) == (history.versions[epoch], position)
        assert encode_snapshot(metadata, read) == data
        for entry in history.entries[epoch:]:
            metadata = metadata.apply(entry.decode(), entry.state_id)
        end = history.position
        assert encode_snapshot(metadata, end) == encode_snapshot(history.metadata, end)


def test_time_travel_over_snapshots_is_replay(seed: int, tmp_path: Path) -> None:
    history = random_ring_history(seed, EPOCHS, snapshots_at=(40, 90))
    snapshots = Snapshots(STORAGE, str(tmp_path / "snapshots"))
    for epoch in (40, 90):
        snapshots.write(history.versions[epoch], history.position_at(epoch))
    for epoch in (39, 40, 77, 120, EPOCHS):
        assert metadata_at(history.log(), snapshots, epoch) == history.versions[epoch]
    assert Follower(history.log(), snapshots).catch_up() == history.metadata


def test_a_snapshot_whose_rings_were_cut_off_is_refused(history: History) -> None:
    whole = encode_snapshot(history.metadata, history.position)[:-32]
    stream = pa.BufferReader(whole)
    pa.ipc.open_stream(stream).read_all()
    first = whole[: stream.tell()]
    with pytest.raises(UnknownFormat):
        decode_snapshot(first + hashlib.sha256(first).digest())


def in_format_1(metadata: ClusterMetadata, position: Position) -> bytes:
    """A snapshot as version 1 wrote it: without a second stream, and without a word of rings."""
    stream = pa.BufferReader(encode_snapshot(metadata, position)[:-32])
    table = pa.ipc.open_stream(stream).read_all()
    rest = msgspec.json.decode(table.schema.metadata[b"epochlake"])
    del rest["rings"]
    rest["format"] = 1
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({"epochlake": msgspec.json.Encoder(order="sorted").encode(rest)})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table.cast(schema))
    body = bytes(sink.getvalue())
    return body + hashlib.sha256(body).digest()


def test_snapshots_of_the_format_before_rings_are_read_and_taken_for_what_they_say(seed: int, tmp_path: Path) -> None:
    history = random_history(seed, 60, choices=WITHOUT_FEATURES)
    snapshots = Snapshots(STORAGE, str(tmp_path / "snapshots"))
    position = history.position_at(50)
    snapshots.write(history.versions[50], position)
    Path(snapshots.path(50)).write_bytes(in_format_1(history.versions[50], position))
    assert snapshots.read(50) == (history.versions[50], position)
    assert snapshots.matches(history.versions[50], position)
    assert not snapshots.matches(history.versions[49], position)
    assert verify(history.log(), snapshots).holds


# Tables


def by_range(placements: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in placements.to_pylist():
        found[row["table_id"], row["tablet"]].append(row)
    return found


def test_placements_of_ring_tables_agree_with_the_metadata_at_every_epoch(history: History) -> None:
    for metadata in history.versions[::7]:
        reads, writes = by_range(tables.read_placements(metadata)), by_range(tables.write_placements(metadata))
        on_ring = [key for key in metadata.schema.tables if metadata.is_on_ring(key)]
        for table_id in on_ring:
            cover = metadata.placements(table_id)
            ends = highs(cover.lows).tolist()
            for index, low in enumerate(cover.lows.tolist()):
                placed, rows = cover.placement(index), writes[table_id, index]
                assert tuple(row["volume_id"] for row in reads[table_id, index]) == placed.reads
                assert tuple(row["volume_id"] for row in rows) == placed.writes
                assert {(row["token_start"], row["token_end"]) for row in rows} <= {
                    (max(low - 1, MIN_TOKEN), ends[index])
                }
                assert write_sets_of(rows) == {frozenset(replicas) for replicas in placed.write_sets if replicas}
        assert {key for key, _ in writes} >= {key for key in on_ring if len(metadata.ring_volumes(key))}


def write_sets_of(rows: list[dict[str, Any]]) -> set[frozenset[int]]:
    sides = {
        side: frozenset(r["volume_id"] for r in rows if r["write_set"] in (side, "both")) for side in ("old", "new")
    }
    return {replicas for replicas in sides.values() if replicas}


@pytest.mark.parametrize("part", tables.PARTS)
def test_every_table_of_a_history_of_the_ring_has_its_schema(part: str, history: History) -> None:
    table = tables.PARTS[part](history.metadata)
    table.validate(full=True)
    schema = getattr(columns, f"{part.upper()}_SCHEMA")
    assert table.schema.equals(schema)
    assert not [field.name for field in table.schema if not field.nullable and table[field.name].null_count]


def test_ring_ranges_are_those_of_the_placements_and_name_the_operation_that_changes_them() -> None:
    ring = ring_cluster()
    metadata = applied([register(ring, "m7", rack="r1")], ring)
    metadata = applied([start(metadata, "join-m7"), *steps("join-m7", Step.START)], metadata)
    rows = tables.ring_ranges(metadata).to_pylist()
    [placements] = metadata.rings.placements.values()
    assert [row["reads"] for row in rows] == [replicas for _, _, replicas in placements.reads.ranges()]
    assert [row["writes"] for row in rows] == [replicas for _, _, replicas in placements.writes.ranges()]
    for row in rows:
        assert (row["operation_id"] == "join-m7") == (row["writes"] != row["reads"])
    [operation] = tables.operations(metadata).to_pylist()
    told = {
        name: operation[name] for name in ("operation_id", "kind", "node", "step", "next_step", "cancelling", "session")
    }
    assert told == {
        "operation_id": "join-m7",
        "kind": "join",
        "node": "m7",
        "step": "START",
        "next_step": "MID",
        "cancelling": False,
        "session": "session-join-m7",
    }


# Differences


def test_a_step_of_an_operation_is_told_with_its_ranges_and_nodes_by_name() -> None:
    ring = ring_cluster()
    asked = applied([register(ring, "m7", rack="r1")], ring)
    prepared = applied([start(asked, "join-m7")], asked)
    widened = applied(steps("join-m7", Step.START), prepared)
    changes = diff(prepared, widened)
    ranges = [change for change in changes if change.component == "ring range"]
    assert {change.field for change in ranges} == {"writes"}
    assert all(
        change.name.startswith("sky/(") and "m7" in change.after and "m7" not in change.before for change in ranges
    )
    told = {(c.field, c.before, c.after) for c in changes if c.component == "operation"}
    assert told == {("step", "PREPARE", "START"), ("session", None, "session-join-m7")}


def test_a_keyspace_on_the_ring_appears_with_one_change_of_placement() -> None:
    metadata = ring_cluster()
    after = applied([CreateKeyspace(ring_keyspace("sea", dc1=2))], metadata)
    [change] = [change for change in diff(metadata, after) if change.component == "ring placement"]
    assert (change.name, change.before, change.after) == ("sea", None, {"ranges": 25})


def test_nothing_differs_exactly_when_two_versions_of_the_ring_say_the_same(history: History) -> None:
    for before, after in zip(history.versions, history.versions[1:], strict=False):
        assert diff(after, after) == []
        assert diff(before, after), history.entries[before.epoch].event
    assert tables.diff(history.versions[30], history.metadata).num_rows


# Verification


def test_an_honest_history_of_the_ring_holds(history: History, tmp_path: Path) -> None:
    snapshots = Snapshots(STORAGE, str(tmp_path / "snapshots"))
    for epoch in (50, 100):
        snapshots.write(history.versions[epoch], history.position_at(epoch))
    report = verify(history.log(), snapshots)
    assert report.findings == ()
    assert (report.events, report.snapshots) == (EPOCHS, 2)


def test_a_step_that_was_never_valid_is_found() -> None:
    history = random_ring_history(1, 60)
    history.entries.append(bad := _entry(history, AdvanceOperation("nowhere", Step.MID)))
    report = verify(history.log())
    assert {(f.epoch, f.code) for f in report.findings} == {
        (bad.epoch, verification.REJECTED),
        (bad.epoch, verification.NOT_APPLICABLE),
    }


def test_a_plan_that_leads_elsewhere_than_the_strategy_says_is_found() -> None:
    history = History()
    for event in _events_of_a_false_join():
        history.add_unchecked(event)
    assert not settles(ring_state(history.metadata))
    found = {(f.epoch, f.code) for f in verify(history.log()).findings}
    assert {(history.metadata.epoch, code) for code in (verification.REJECTED, verification.RING_ASTRAY)} <= found


def _entry(history: History, event: Event) -> Entry:
    return as_entry(event, history.position)


def _events_of_a_false_join() -> list[Event]:
    """A log in which a join was planned with other tokens than it says."""
    events: list[Event] = [entry.decode() for entry in random_ring_history(3, 24).entries[:22]]
    metadata = applied(events)
    joining = register(metadata, "late", rack="r1", tokens=(12345, 99999))
    asked = applied([joining], metadata)
    plan = msgspec.structs.replace(ring_plan(asked, "join-late"), tokens=(777,))
    return [*events, joining, StartRequest("join-late", encode_operation(plan))]
