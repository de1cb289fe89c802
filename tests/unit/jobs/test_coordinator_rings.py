"""Operations on the ring, carried out with real files while rows are written and read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import schema
from epochlake.jobs.coordinator.effects import ring as ring_effects
from epochlake.jobs.coordinator.progress import operation_progress, seconds_left
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.metastore.configuration import CoordinatorSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateTable
from epochlake.metastore.metadata.model import NodeState, PlacementKind, RequestState
from epochlake.metastore.planning.ring import started
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import BarrierLevel
from epochlake.placement.ring.codec import decode_operation
from epochlake.placement.ring.state import Step

from tests.support.clusters import COLUMNS, relaxed_in_the_log, without_zookeeper
from tests.support.rings import (
    CANCELLABLE,
    FOUR,
    JOINER,
    KINDS,
    QUICK,
    SPREAD,
    STEPS_IN_FLIGHT,
    TURN,
    RingCluster,
    assert_settled,
    join,
    leave,
    rebuild,
    ringed,
)
from tests.support.slices import sliced
from tests.support.storages import STORAGE

Begin = Callable[[RingCluster], str]
EIGHT = {name: ("dc1", f"r{index % 3}", (2 * index - 7,)) for index, name in enumerate("ABCDEFGH")}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


def settle_under_writes(ring: RingCluster, first: int = 100) -> set[int]:
    """Let the coordinator end everything while one pipeline writes; the rows that were acknowledged."""
    writer = ring.pipeline()
    acknowledged: set[int] = set()
    for number in range(100):
        if not ring.round() and ring.coordinator._is_idle(ring.metadata):
            return acknowledged
        acknowledged |= ring.write_rows(writer, {first + number: (number % 16 - 8) * TURN + 7})
    raise AssertionError(f"never idle: {ring.coordinator._blocked}")


@sliced(at_least=4)
@pytest.mark.parametrize("begin", KINDS)
def test_an_operation_goes_through_while_rows_are_written(tmp_path: Path, begin: Begin) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = begin(ring)
    acknowledged = settle_under_writes(ring)
    assert ring.request(request).state is RequestState.DONE
    assert_settled(ring, acknowledged | set(SPREAD))


@sliced("begin", "step")
@pytest.mark.parametrize("step", STEPS_IN_FLIGHT)
@pytest.mark.parametrize("begin", CANCELLABLE)
def test_an_operation_that_is_cancelled_leaves_everything_as_it_was(tmp_path: Path, begin: Begin, step: Step) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    before = ring.metadata
    request = begin(ring)
    ring.until(step)
    acknowledged = ring.write_rows(ring.pipeline(), {100: 5 * TURN})
    administration.cancel_request(ring.cluster, request)
    acknowledged |= settle_under_writes(ring, 200)
    after = ring.metadata
    assert ring.request(request).state is RequestState.CANCELLED
    assert after.schema.keyspaces["air"].replication == before.schema.keyspaces["air"].replication
    assert {n: after.node(n).tokens for n in "ABCD"} == {n: before.node(n).tokens for n in "ABCD"}
    if "X" in after.directory.by_name:
        assert after.node("X").state is NodeState.LEFT
        assert not ring.files_within("X")
    if "away" in {path.name for path in (ring.directory / "D").iterdir()}:
        ring.bring_back("D")
    assert_settled(ring, acknowledged | set(SPREAD))


def test_operations_on_disjoint_ranges_go_on_together(tmp_path: Path) -> None:
    ring = ringed(tmp_path, EIGHT, {"replication_factor": 1}, configuration=QUICK)
    requests = [ring.add("X", ("dc1", "r9", (-6,))), ring.add("Y", ("dc1", "r9", (2,)))]
    ring.round()
    assert len(ring.metadata.rings.operations) == 2
    acknowledged = settle_under_writes(ring)
    assert {ring.request(request).state for request in requests} == {RequestState.DONE}
    assert_settled(ring, acknowledged | set(SPREAD))


def test_an_operation_on_locked_ranges_waits_and_names_the_one_in_its_way(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    first = join(ring)
    second = ring.add("Y", ("dc1", "r3", (1,)))
    ring.round()
    assert ring.request(second).state is RequestState.PENDING
    assert any(first in why and "join of node Y" in why for why in ring.coordinator._blocked)
    assert_settled(ring, settle_under_writes(ring) | set(SPREAD))
    assert ring.request(second).state is RequestState.DONE


def test_tokens_are_allocated_for_a_node_that_asks_for_none(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    ring.add("X", ("dc1", "r2", ()))
    ring.settle()
    assert len(ring.metadata.node("X").tokens) == ring.cluster.configuration.ring.tokens_per_node
    assert_settled(ring, SPREAD)


def test_a_node_leaves_only_when_its_tablets_and_its_ranges_are_handed_over(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    administration.create_keyspace(ring.cluster, "land", {"dc1": 3})
    table = administration.create_table(ring.cluster, "land.trips", COLUMNS, ["id"], tablets=4).table_id
    request = leave(ring)
    seen = set()
    for _ in range(200):
        metadata = ring.metadata
        tablets = bool(metadata.replicas_in_use({v.volume_id for v in metadata.node("D").volumes}))
        seen.add((tablets, bool(metadata.rings.operations), metadata.node("D").state))
        if not ring.round() and ring.coordinator._is_idle(ring.metadata):
            break
    assert {state for tablets, ranges, state in seen if tablets or ranges} <= {
        NodeState.NORMAL,
        NodeState.DECOMMISSIONING,
    }
    assert (True, True, NodeState.DECOMMISSIONING) in seen
    assert ring.request(request).state is RequestState.DONE
    assert not ring.metadata.tablets.maps[table].tablets_on([ring.volume("D")]).size
    assert_settled(ring, SPREAD)


def test_several_tables_and_keyspaces_move_in_one_operation(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    administration.create_table(ring.cluster, "air.planes", COLUMNS, ["id"])
    administration.create_keyspace(ring.cluster, "sea", {"replication_factor": 2}, placement=PlacementKind.RING)
    administration.create_table(ring.cluster, "sea.ships", COLUMNS, ["id"])
    others = [
        RingCluster(ring.cluster, ring.metadata.table(name), ring.directory) for name in ("air.planes", "sea.ships")
    ]
    for other in others:
        other.write_rows(other.pipeline(), SPREAD)
    join(ring)
    ring.settle()
    for one in (ring, *others):
        assert_settled(one, SPREAD)


def test_a_node_with_several_volumes_shares_its_ranges_among_them(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    ring.add("X", JOINER, volumes=2)
    ring.settle()
    metadata = ring.metadata
    first, second = (volume.volume_id for volume in metadata.node("X").volumes)
    assert {first, second} <= set(metadata.ring_volumes(ring.table.table_id))
    assert set(ring.read_rows(ring.pipeline(), "ALL")) == set(SPREAD)
    leave(ring)
    ring.settle()
    assert set(ring.read_rows(ring.pipeline(), "ALL")) == set(SPREAD)


@pytest.mark.parametrize("step", STEPS_IN_FLIGHT)
def test_a_paused_request_stays_where_it_is_until_it_is_resumed(tmp_path: Path, step: Step) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    request = join(ring)
    ring.until(step)
    administration.pause_request(ring.cluster, request, reason="a busy hour")
    epoch = ring.metadata.epoch
    for _ in range(3):
        assert not ring.round()
    assert ring.metadata.epoch == epoch
    assert any("paused (a busy hour)" in why for why in ring.coordinator._blocked)
    acknowledged = ring.write_rows(ring.pipeline(), {100: 5 * TURN})
    administration.resume_request(ring.cluster, request)
    ring.settle()
    assert_settled(ring, acknowledged | set(SPREAD))


def test_another_operation_goes_on_beside_one_that_is_paused(tmp_path: Path) -> None:
    ring = ringed(tmp_path, EIGHT, {"replication_factor": 1}, configuration=QUICK)
    paused, other = ring.add("X", ("dc1", "r9", (-6,))), ring.add("Y", ("dc1", "r9", (2,)))
    ring.until(Step.START)
    administration.pause_request(ring.cluster, paused)
    for _ in range(20):
        ring.round()
    assert ring.request(other).state is RequestState.DONE
    assert ring.request(paused).state is RequestState.RUNNING
    administration.resume_request(ring.cluster, paused)
    ring.settle()
    assert_settled(ring, SPREAD)


def test_streaming_goes_on_in_groups_and_shows_how_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_effects, "GROUP_FILES", 1)
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    for number in range(3):
        ring.write_rows(ring.pipeline(), {100 + 16 * number + row: at + number for row, at in SPREAD.items()}, "ALL")
    join(ring)
    ring.until(Step.PREPARE)
    [operation] = ring.metadata.rings.operations.values()
    assert operation_progress(STORAGE, ring.metadata, operation).bytes_streamed == 0
    ring.until(Step.START)
    seen = []
    while ring.step()[0] is Step.START:
        [operation] = ring.metadata.rings.operations.values()
        seen.append(operation_progress(STORAGE, ring.metadata, operation))
        ring.restart()
        ring.round()
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert len(set(fractions)) > 3
    assert fractions[0] == 0.0
    assert seen[-1].rows_total == seen[0].rows_total
    assert seconds_left(seen[0], 10.0) is None
    [operation] = ring.metadata.rings.operations.values()
    done = operation_progress(STORAGE, ring.metadata, operation)
    assert (done.fraction, seconds_left(done, 10.0)) == (1.0, 0.0)
    ring.settle()
    assert_settled(ring, SPREAD)


def test_a_rebuild_brings_back_what_a_disk_has_lost(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    lost = set(ring.rows_on("D"))
    wiped = Path(ring.address("D").uri)
    wiped.rename(tmp_path / "broken")
    rebuild(ring)
    acknowledged = settle_under_writes(ring)
    assert lost <= set(ring.rows_on("D"))
    assert_settled(ring, acknowledged | set(SPREAD))


def test_a_table_that_was_lost_is_not_made_anew_while_it_is_read(tmp_path: Path) -> None:
    """Empty, it would be read as if it knew that there is nothing."""
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    wiped = Path(ring.address("D").uri)
    wiped.rename(tmp_path / "broken")
    rebuild(ring)
    ring.until(Step.PREPARE)
    assert not wiped.exists()
    assert set(ring.read_rows(ring.pipeline())) == set(SPREAD)


@pytest.mark.parametrize("source", ["dc1", "dc2"])
def test_a_rebuild_streams_from_the_datacenter_that_it_was_asked_to(tmp_path: Path, source: str) -> None:
    nodes = {name: ("dc1", f"r{index}", (index - 6,)) for index, name in enumerate("ABC")}
    nodes |= {name: ("dc2", f"r{index}", (index + 1,)) for index, name in enumerate("DEF")}
    ring = ringed(tmp_path, nodes, {"dc1": 3, "dc2": 3}, configuration=QUICK)
    request = administration.rebuild_node(ring.cluster, "A", datacenter=source).request_id
    Path(ring.address("A").uri).rename(tmp_path / "broken")
    with ring.without("B"):
        for _ in range(12):
            ring.round()
    if source == "dc1":
        # The other two of dc1 do not meet every quorum of all six.
        assert any("needs 3 of the 2 replicas of datacenter dc1" in why for why in ring.coordinator._blocked)
        administration.cancel_request(ring.cluster, request)
    ring.settle()
    assert (set(ring.rows_on("A")) == set(SPREAD)) == (source == "dc2")


def test_a_replication_grows_into_a_datacenter_and_goes_from_another(tmp_path: Path) -> None:
    nodes = {name: ("dc1", f"r{index}", (index - 6,)) for index, name in enumerate("ABC")}
    nodes |= {name: ("dc2", f"r{index}", (index + 1,)) for index, name in enumerate("DEF")}
    ring = ringed(tmp_path, nodes, {"dc1": 3}, configuration=QUICK)
    administration.change_replication(ring.cluster, "air", {"dc1": 0, "dc2": 2})
    acknowledged = settle_under_writes(ring)
    assert_settled(ring, acknowledged | set(SPREAD))
    assert not any(ring.rows_on(node) for node in "ABC")


def test_a_barrier_at_all_waits_for_every_replica_until_it_relaxes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = CoordinatorSettings(backoff_seconds=0.0, barrier_level=BarrierLevel.ALL, barrier_timeout_seconds=0.3)
    ring = ringed(tmp_path, FOUR, configuration=msgspec.structs.replace(QUICK, coordinator=settings))
    join(ring)
    ring.until(Step.START)
    with ring.without("C"):
        ring.round()
        assert ring.step()[0] is Step.START
        assert any("waits for fences after START" in why for why in ring.coordinator._blocked)
        ring.until(Step.MID, rounds=5000)
    assert "relaxes from ALL" in caplog.text
    [told] = relaxed_in_the_log(ring.cluster)
    assert (told.level, told.passed_at) == ("ALL", "QUORUM")
    assert "(join of node" in told.what
    assert "C/d1" in told.missing
    ring.settle()
    assert_settled(ring, SPREAD)


def test_throttled_streaming_takes_its_time(tmp_path: Path) -> None:
    rate = 6_000
    settings = msgspec.structs.replace(QUICK.coordinator, bytes_per_second=rate)
    ring = ringed(tmp_path, FOUR, configuration=msgspec.structs.replace(QUICK, coordinator=settings))
    for _ in range(4):
        ring.write_rows(ring.pipeline(), SPREAD, "ALL")  # each is a file of its own
    join(ring)
    ring.until(Step.START)
    [operation] = ring.metadata.rings.operations.values()
    size = operation_progress(STORAGE, ring.metadata, operation).bytes_total
    began = time.monotonic()
    ring.until(Step.MID)
    took = time.monotonic() - began
    # The first file is let through at once.
    assert took > 0.4 * size / rate, (took, size)
    ring.settle()


def test_a_table_that_is_created_while_a_node_joins_has_a_replica_table_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    create = schema._create_replicas

    def overtaken(storage: Storage, event: CreateTable, metadata: ClusterMetadata) -> None:
        create(storage, event, metadata)
        if "X" not in ring.metadata.directory.by_name:
            join(ring)
            ring.settle()

    monkeypatch.setattr(schema, "_create_replicas", overtaken)
    administration.create_table(ring.cluster, "air.crews", COLUMNS, ["id"])
    metadata = ring.metadata
    table = metadata.table("air.crews")
    volumes = metadata.ring_volumes(table.table_id)
    assert metadata.node("X").volumes[0].volume_id in volumes
    assert all(not open_snapshot(address_of(STORAGE, metadata, table, volume)).all_files for volume in volumes)


def test_who_joins_does_not_get_the_tokens_that_somebody_has_asked_for(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    joining = ring.request(ring.add("X", ("dc1", "r1", ())))
    [best] = decode_operation(started(ring.metadata, joining, 1).attachment).tokens
    moving = administration.move_node(ring.cluster, "D", tokens=[best]).request_id
    [other] = decode_operation(started(ring.metadata, joining, 1).attachment).tokens
    assert other != best
    ring.settle()
    assert ring.request(moving).state is RequestState.DONE
    assert ring.request(joining.request_id).state is RequestState.DONE


def test_a_request_whose_tokens_somebody_else_has_got_ends_and_says_why(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    joining = ring.request(ring.add("X", ("dc1", "r1", ())))
    taking = started(ring.metadata, joining, 1)  # by somebody who does not know what comes now
    [token] = decode_operation(taking.attachment).tokens
    moving = administration.move_node(ring.cluster, "D", tokens=[token]).request_id
    ring.cluster.commit(taking)
    # While what takes them may still be cancelled, it waits.
    ring.round()
    assert ring.request(moving).state is RequestState.PENDING
    ring.settle()
    ended = ring.request(moving)
    assert ended.state is RequestState.CANCELLED
    assert f"tokens [{token}] belong to node 'X'" in ended.detail
    assert ring.request(joining.request_id).state is RequestState.DONE
    assert_settled(ring, set(SPREAD))
