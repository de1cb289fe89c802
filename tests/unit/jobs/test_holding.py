"""Whoever looks at replicas from outside notices a row that a quorum misses, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate import planning, verified_reading
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas import opening
from epochlake.jobs.replicas.commits import drop_ranges
from epochlake.jobs.replicas.fences import change_properties, raise_fence
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import UNFILLED, open_snapshot
from epochlake.jobs.testing import holding
from epochlake.jobs.testing.holding import Acknowledged, Holdings
from epochlake.jobs.testing.power import files_below
from epochlake.jobs.testing.row_drawing import place
from epochlake.jobs.testing.rows import COLUMNS, KEYSPACE, TABLE, WorldRows
from epochlake.jobs.testing.themes import KEYS
from epochlake.jobs.testing.world import World
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.ring.state import STEPS, Step
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN


@pytest.fixture(params=[False, True], ids=["in memory", "on Delta tables"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(3, delta=request.param) as world:
        world.found()
        yield world


def in_world(world: World, what: Callable[[], object]) -> None:
    actor = world.run(world.process("somebody"), what)
    world.until_done(actor)
    if actor.error is not None:
        raise actor.error


def written(world: World, *notes: str) -> ClusterMetadata:
    """Three nodes with a table of one tablet, to which these were written under the key 1."""
    found = []

    def work() -> None:
        process = world.scheduler.current.process
        for number in (1, 2, 3):
            world.storage(process).create_directory(place(number), parents=True)
        with world.cluster(process) as cluster:
            for number in (1, 2, 3):
                volumes = [("d1", place(number), 10**12)]
                administration.add_node(cluster, f"n{number}", "dc1", f"r{number}", volumes)
            Coordinator(cluster).run(until_idle=True)
            administration.create_keyspace(cluster, KEYSPACE, {"dc1": 3}, placement=PlacementKind.TABLETS)
            administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=1)
            with Gate(cluster, "a pipeline") as gate:
                for note in notes:
                    gate.write(WorldRows({1: note}), gate.planning.table(TABLE), "ALL", None)
            found.append(cluster.catch_up())

    in_world(world, work)
    [metadata] = found
    return metadata


def newest_commit(world: World, metadata: ClusterMetadata, number: int) -> str:
    table = metadata.table(TABLE)
    log = f"{place(number)}/{KEYSPACE}/{table.table_id}/_delta_log"
    return max(f"{log}/{name}" for name in world.disk.names(log) if name.endswith(".json"))


def holdings(world: World, metadata: ClusterMetadata) -> Holdings:
    found = Holdings(world, ())
    found.learn(metadata)
    return found


def test_what_all_replicas_hold_is_not_missing(world: World) -> None:
    metadata = written(world, "first", "second")
    looking = holdings(world, metadata)
    looking.acknowledge([Acknowledged(1, "first", "ALL"), Acknowledged(1, "second", "QUORUM")])
    assert looking.missing == []


@pytest.mark.parametrize(
    ("level", "lacking", "is_missing"), [("QUORUM", 1, False), ("QUORUM", 2, True), ("ALL", 1, True)]
)
def test_a_row_is_missing_where_so_many_lack_it_as_are_asked(
    world: World, level: str, lacking: int, is_missing: bool
) -> None:
    metadata = written(world, "first", "second")
    for number in range(1, 1 + lacking):
        world.disk.delete(newest_commit(world, metadata, number))
    looking = holdings(world, metadata)
    looking.acknowledge([Acknowledged(1, "first", "QUORUM"), Acknowledged(1, "second", level)])
    assert [f"the row (1, 'second'), acknowledged at {level}," in one for one in looking.missing] == [True] * is_missing


def test_it_is_missed_as_soon_as_an_epoch_says_that_others_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = written(world, "first")
    looking = holdings(world, metadata)
    looking.acknowledge([Acknowledged(1, "first", "QUORUM")])
    for number in (1, 2):
        world.disk.delete(newest_commit(world, metadata, number))
    looking.learn(metadata)
    assert looking.missing == [], "who is read has not changed"
    changes = itertools.count()
    monkeypatch.setattr(holding, "_who_is_read", lambda _: next(changes))
    looking.learn(metadata)
    looking.learn(metadata)
    assert len(looking.missing) == 1, "each row is told once"


def test_what_is_destroyed_or_cannot_be_read_is_nobodys_answer(world: World) -> None:
    metadata = written(world, "first")
    for number in (1, 2):
        world.disk.delete(newest_commit(world, metadata, number))
    looking = Holdings(world, {place(1)})
    looking.learn(metadata)
    looking.acknowledge([Acknowledged(1, "first", "QUORUM")])
    assert looking.missing == []


def test_of_deletes_that_are_forgotten_nothing_need_be_left(world: World) -> None:
    metadata = written(world, "first")
    for number in (1, 2, 3):
        world.disk.delete(newest_commit(world, metadata, number))
    for forgets, missing in ((True, 0), (False, 1)):
        looking = Holdings(world, (), forgets=forgets)
        looking.learn(metadata)
        looking.deleting([1])
        looking.acknowledge([Acknowledged(1, "first", "QUORUM")])
        assert len(looking.missing) == missing


def test_an_older_row_of_its_key_does_not_stand_for_a_row(world: World) -> None:
    metadata = written(world, "first", "second")
    for number in (1, 2):
        world.disk.delete(newest_commit(world, metadata, number))
    looking = holdings(world, metadata)
    looking.acknowledge([Acknowledged(1, "second", "QUORUM")])
    assert len(looking.missing) == 1


@pytest.mark.parametrize(("lacking", "is_noticed"), [(1, False), (2, True)])
def test_a_change_is_noticed_that_is_streamed_before_a_quorum_has_it(
    world: World, lacking: int, *, is_noticed: bool
) -> None:
    metadata = written(world, "first", "second")
    for number in range(1, 1 + lacking):
        world.disk.delete(newest_commit(world, metadata, number))
    looking = holdings(world, metadata)
    looking.streamed([(Acknowledged(1, note, "QUORUM"), 0) for note in ("first", "second")], metadata)
    assert ["'second') is in the stream of changes" in one for one in looking.missing] == [True] * is_noticed


def test_a_copy_with_other_bytes_is_noticed_unless_something_has_damaged_it(world: World) -> None:
    metadata = written(world, "first")
    [path] = [path for path, _ in files_below(world.disk, place(2)) if path.endswith(".parquet")]
    for rotted in ({}, {path: 1}):
        looking = holdings(world, metadata)
        looking.acknowledge([Acknowledged(1, "first", "QUORUM")])
        assert looking.missing == []
        data = world.disk.read(path)
        world.disk.write(path, data[:10] + bytes([data[10] ^ 1]) + data[11:], new=False)
        world.rotted |= rotted
        looking.acknowledge([Acknowledged(1, "first", "QUORUM")])
        told = [one for one in looking.missing if "has other bytes than it was written with" in one]
        assert [path in one for one in told] == [True] * (not rotted)
        world.disk.write(path, data, new=False)


def test_a_read_at_an_epoch_that_a_replica_is_past_is_noticed(world: World) -> None:
    before, said = written(world, "first"), []

    def work() -> None:
        with world.cluster(world.scheduler.current.process) as cluster:
            administration.pause_balancing(cluster)
            table = cluster.metadata.table(TABLE)
            for volume in cluster.metadata.directory.volumes:
                raise_fence(address_of(cluster.storage, cluster.metadata, table, volume), cluster.metadata.fence)
            with Gate(cluster, "a pipeline") as gate:
                gate.write(WorldRows({1: "second"}), table, "ALL", None)
                plan = gate.plan_read(table, "ALL")
                said.extend(holdings(world, at).is_shown_too_much(plan, at) for at in (before, gate.planning.metadata))

    in_world(world, work)
    assert "when it was fenced at" in said[0]
    assert said[1] == ""


def test_a_read_of_what_a_rebuild_has_not_filled_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before, said = written(world, "first"), []
    monkeypatch.setattr(planning, "open_to_read", opening.open_all)
    monkeypatch.setattr(verified_reading, "open_to_read", opening.open_all)

    def work() -> None:
        with world.cluster(world.scheduler.current.process) as cluster, Gate(cluster, "a pipeline") as gate:
            table = before.table(TABLE)
            for volume in before.directory.volumes:
                snapshot = open_snapshot(address_of(cluster.storage, before, table, volume))
                assert change_properties(snapshot, {UNFILLED: "a rebuild"})
            gate.write(WorldRows({1: "second"}), table, "ALL", None)
            said.append(holdings(world, before).is_shown_too_much(gate.plan_read(table, "ALL"), before))

    in_world(world, work)
    assert "which is being rebuilt" in said[0]


def test_what_has_come_to_a_replica_on_the_ring_stays_there_until_it_is_read(world: World) -> None:
    looking = Holdings(world, ())

    def work() -> None:
        process = world.scheduler.current.process
        for number in (1, 2, 3):
            world.storage(process).create_directory(place(number), parents=True)
        with world.cluster(process) as cluster:
            for number in (1, 2):
                administration.add_node(cluster, f"n{number}", "dc1", f"r{number}", [("d1", place(number), 10**12)])
            Coordinator(cluster).run(until_idle=True)
            administration.create_keyspace(cluster, KEYSPACE, {"dc1": 2}, placement=PlacementKind.RING)
            administration.create_table(cluster, TABLE, COLUMNS, ["id"])
            administration.add_node(cluster, "n3", "dc1", "r3", [("d1", place(3), 10**12)])
            for _ in range(5):
                metadata = cluster.catch_up()
                if any(one.next_step > STEPS.index(Step.START) for one in metadata.rings.operations.values()):
                    break
                Coordinator(cluster).run(until_idle=True, most_rounds=1)
            looking.learn(metadata)
            with Gate(cluster, "a pipeline") as gate:
                gate.write(WorldRows(dict.fromkeys(range(KEYS), "first")), gate.planning.table(TABLE), "ALL", None)
            looking.acknowledge(Acknowledged(key, "first", "ALL") for key in range(KEYS))
            looking.acknowledge([])
            assert looking.missing == []
            [third] = [node for node in metadata.directory.members() if node.name == "n3"]
            replica = address_of(cluster.storage, metadata, metadata.table(TABLE), third.volumes[0].volume_id)
            drop_ranges(replica, [(MIN_TOKEN, MAX_TOKEN)], metadata.fence)
            looking.acknowledge([])

    in_world(world, work)
    assert looking.missing
    assert all("had come to" in said and "which is about to get its range" in said for said in looking.missing)


def test_what_was_acknowledged_before_epochs_were_lost_is_asked_for_when_a_repair_is_complete(world: World) -> None:
    metadata = written(world, "a")
    found = holdings(world, metadata)
    found.acknowledge([Acknowledged(1, "a", "ALL")])
    identity = msgspec.structs.replace(metadata.identity, incarnation=2, epoch=metadata.epoch)
    lost = msgspec.structs.replace(metadata, identity=identity)
    in_world(world, lambda: drop_at(world, lost, 1))
    found.learn(lost)
    found.acknowledge([Acknowledged(1, "a", "QUORUM")], incarnation=1)
    assert found.missing == []
    found.everywhere(found.acknowledged, lost.epoch)
    assert {text.partition(",")[0] for text in found.missing} == {f"a repair was complete at epoch {lost.epoch}"}


def test_what_is_acknowledged_after_a_loss_was_accepted_is_asked_for_at_once(world: World) -> None:
    metadata = written(world, "a")
    identity = msgspec.structs.replace(metadata.identity, incarnation=2, epoch=metadata.epoch)
    lost = msgspec.structs.replace(metadata, identity=identity)
    found = holdings(world, metadata)
    found.learn(lost)
    in_world(world, lambda: drop_at(world, lost, 1))
    found.acknowledge([Acknowledged(1, "a", "ALL")], incarnation=2)
    assert len(found.missing) == 1


def drop_at(world: World, metadata: ClusterMetadata, number: int) -> None:
    """Take all rows out of the replica of a node."""
    storage = world.storage(world.scheduler.current.process)
    [volume] = [one for one, volume in metadata.directory.volumes.items() if volume.uri == place(number)]
    drop_ranges(address_of(storage, metadata, metadata.table(TABLE), volume), [(MIN_TOKEN, MAX_TOKEN)], metadata.fence)
