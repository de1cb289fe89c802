"""Whoever follows steps between placements notices one that was made too early, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.commits import drop_ranges
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica
from epochlake.jobs.testing.holding import Acknowledged, Holdings
from epochlake.jobs.testing.row_drawing import place
from epochlake.jobs.testing.rows import COLUMNS, KEYSPACE, TABLE, WorldRows
from epochlake.jobs.testing.stepping import Steps
from epochlake.jobs.testing.world import World
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceOperation,
    AdvanceTransitions,
    FinishTransitions,
    NewTransition,
    StageChange,
    StartTransitions,
)
from epochlake.metastore.metadata.model import PlacementKind, VolumeId
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Kind, Stage
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

WAY = (
    Stage.ALLOW_WRITE_BOTH_READ_OLD,
    Stage.WRITE_BOTH_READ_OLD,
    Stage.STREAMING,
    Stage.WRITE_BOTH_READ_NEW,
    Stage.USE_NEW,
    Stage.CLEANUP,
    Stage.END_MIGRATION,
)
"""The stages of a tablet that moves."""


class Moving:
    """A table of one tablet on the volumes of three of four nodes, which is moved by hand, a stage at a time."""

    def __init__(self, cluster: Cluster, steps: Steps, holdings: Holdings) -> None:
        self.cluster = cluster
        self.steps = steps
        self.holdings = holdings
        self.table = cluster.catch_up().table(TABLE)
        self.old = cluster.metadata.tablets.maps[self.table.table_id].replicas(0)
        [self.pending] = {*cluster.metadata.directory.volumes} - {*self.old}
        self.leaving = self.old[0]
        self.learn()

    def learn(self) -> ClusterMetadata:
        metadata = self.cluster.catch_up()
        self.steps.learn(metadata)
        self.holdings.learn(metadata)
        return metadata

    def begin(self) -> None:
        new = NewTransition(self.table.table_id, 0, Kind.MIGRATION, self.leaving, self.pending, "by hand")
        self.cluster.commit(StartTransitions((new,)))
        self.learn()
        create_replica(self.address(self.pending), self.table, 0)

    def address(self, volume: VolumeId) -> ReplicaAddress:
        return address_of(self.cluster.storage, self.cluster.metadata, self.table, volume)

    def fence(self, *volumes: VolumeId) -> None:
        for volume in volumes:
            raise_fence(self.address(volume), self.cluster.metadata.fence)

    def go(self, stage: Stage) -> None:
        session = "5e5e3b0e-8f0b-4c7e-9a55-0a7f5e2c1d11" if stage is Stage.STREAMING else None
        [transition] = self.cluster.metadata.tablets.transitions.values()
        self.cluster.commit(
            AdvanceTransitions((StageChange(self.table.table_id, 0, transition.stage, stage, session),))
        )
        self.learn()

    def go_to(self, stage: Stage) -> None:
        """All steps up to that one, each of them with all fences."""
        for one in WAY[1 : WAY.index(stage) + 1]:
            self.fence(*self.old, self.pending)
            self.go(one)

    def end(self) -> None:
        self.cluster.commit(FinishTransitions(((self.table.table_id, 0),)))
        self.learn()


@pytest.fixture(params=[False, True], ids=["in memory", "on Delta tables"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(3, delta=request.param) as world:
        world.found()
        yield world


def in_world(world: World, what: Callable[[Moving], None]) -> Moving:
    """Do that to a tablet; what was noticed meanwhile."""
    found = []

    def work() -> None:
        process = world.scheduler.current.process
        for number in (1, 2, 3, 4):
            world.storage(process).create_directory(place(number), parents=True)
        with world.cluster(process) as cluster:
            for number in (1, 2, 3, 4):
                volumes = [("d1", place(number), 10**12)]
                administration.add_node(cluster, f"n{number}", "dc1", f"r{number}", volumes)
            Coordinator(cluster).run(until_idle=True)
            administration.create_keyspace(cluster, KEYSPACE, {"dc1": 3}, placement=PlacementKind.TABLETS)
            administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=1)
            with Gate(cluster, "a pipeline") as gate:
                gate.write(WorldRows({1: "first"}), gate.planning.table(TABLE), "ALL", None)
            found.append(Moving(cluster, Steps(world, ()), Holdings(world, ())))
            what(found[0])

    actor = world.run(world.process("somebody"), work)
    world.until_done(actor)
    if actor.error is not None:
        raise actor.error
    return found[0]


def test_a_tablet_that_moves_behind_its_fences_is_no_wonder(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.go_to(Stage.CLEANUP)
        drop_ranges(moving.address(moving.leaving), [(MIN_TOKEN, MAX_TOKEN)], moving.cluster.metadata.fence)
        moving.go(Stage.END_MIGRATION)
        moving.end()

    moving = in_world(world, moves)
    assert moving.steps.wrong == []
    assert not [text for text in moving.holdings.missing if "given up" in text]


@pytest.mark.parametrize("stage", [WAY[0], WAY[1], WAY[3], WAY[4]])
def test_a_step_is_noticed_behind_which_a_quorum_is_free(world: World, stage: Stage) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.go_to(stage)
        moving.fence(moving.old[1], moving.pending)  # of the old replicas two are free
        moving.go(WAY[WAY.index(stage) + 1])

    [said] = in_world(world, moves).steps.wrong
    assert "a quorum is not fenced" in said


def test_so_many_fences_as_no_quorum_does_without_are_enough(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.fence(*moving.old[1:], moving.pending)
        moving.go(Stage.WRITE_BOTH_READ_OLD)

    assert in_world(world, moves).steps.wrong == []


def test_who_gets_the_rows_has_to_be_fenced_as_well(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.fence(*moving.old)
        moving.go(Stage.WRITE_BOTH_READ_OLD)

    [said] = in_world(world, moves).steps.wrong
    assert "who gets rows is not fenced" in said


def test_rows_that_are_taken_from_a_replica_that_is_not_fenced_are_noticed(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.go_to(Stage.STREAMING)
        moving.fence(*moving.old[1:], moving.pending)  # which is enough for the barriers
        moving.go(Stage.WRITE_BOTH_READ_NEW)

    [said] = in_world(world, moves).steps.wrong
    assert "which it leaves, is fenced at" in said


def test_what_has_come_to_a_new_replica_stays_there(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.go_to(Stage.WRITE_BOTH_READ_OLD)
        with Gate(moving.cluster, "a pipeline") as gate:
            gate.write(WorldRows({1: "second"}), gate.planning.table(TABLE), "ALL", None)
        moving.holdings.acknowledge([Acknowledged(1, "second", "ALL")])
        assert moving.holdings.missing == []
        drop_ranges(moving.address(moving.pending), [(MIN_TOKEN, MAX_TOKEN)], moving.cluster.metadata.fence)
        moving.fence(*moving.old, moving.pending)
        moving.go(Stage.STREAMING)

    [said] = in_world(world, moves).holdings.missing
    assert "had come to" in said
    assert "is not there any more" in said


def test_storage_is_declared_lost_while_a_quorum_is_left(world: World) -> None:
    def declares(moving: Moving) -> None:
        moving.steps.learn(_lost(moving.cluster.metadata, moving.old[0]))
        assert moving.steps.wrong == []
        moving.steps.learn(_lost(_lost(moving.cluster.metadata, moving.old[0]), moving.old[1]))

    [said] = in_world(world, declares).steps.wrong
    assert "were declared lost" in said
    assert "only" in said


def test_who_knows_that_storage_is_lost_fences_it_no_more(world: World) -> None:
    def declares(moving: Moving) -> None:
        lost = _lost(moving.cluster.metadata, moving.old[0])
        raise_fence(moving.address(moving.old[0]), moving.cluster.metadata.fence)
        moving.steps.learn(lost)
        assert moving.steps.wrong == []
        raise_fence(moving.address(moving.old[0]), lost.fence)
        moving.steps.learn(_later(lost))

    [said] = in_world(world, declares).steps.wrong
    assert "was declared lost at epoch" in said


def test_lost_storage_is_not_taken_for_fenced(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        lost = _lost(moving.cluster.metadata, moving.old[0])
        moving.steps.learn(lost)
        moving.fence(moving.old[1], moving.pending)
        transitions = {
            key: msgspec.structs.replace(one, stage=Stage.WRITE_BOTH_READ_OLD, epoch=lost.epoch + 1)
            for key, one in lost.tablets.transitions.items()
        }
        tablets = msgspec.structs.replace(lost.tablets, transitions=transitions, epoch=lost.epoch + 1)
        moving.steps.learn(_later(lost, tablets=tablets))

    [said] = in_world(world, moves).steps.wrong
    assert "a quorum is not fenced" in said


def _lost(metadata: ClusterMetadata, volume: VolumeId) -> ClusterMetadata:
    """The metadata of the next epoch, in which the node of a volume is declared lost."""
    node = metadata.directory.node_of_volume[volume]
    directory = metadata.directory.with_nodes(msgspec.structs.replace(node, lost=True), epoch=metadata.epoch + 1)
    return _later(metadata, directory=directory)


def test_a_step_of_the_ring_is_noticed_that_is_made_without_its_fences(world: World) -> None:
    wrong: list[str] = []

    def joins() -> None:
        process = world.scheduler.current.process
        with world.cluster(process) as cluster:
            steps = Steps(world, ())
            for number in range(1, 6):
                world.storage(process).create_directory(place(number), parents=True)
                if number == 5:
                    administration.create_keyspace(cluster, KEYSPACE, {"dc1": 3}, placement=PlacementKind.RING)
                    administration.create_table(cluster, TABLE, COLUMNS, ["id"])
                    cluster.follower.add_listener(_Told(steps))
                    # Nobody reaches the others from here on.
                    world.troubles.unreachable[process] = {place(2), place(3)}
                administration.add_node(cluster, f"n{number}", "dc1", f"r{number}", [("d1", place(number), 10**12)])
                if number < 5:
                    Coordinator(cluster).run(until_idle=True)
            coordinator = Coordinator(cluster)
            for _ in range(4):
                coordinator.round()
            assert steps.wrong == []
            [operation] = cluster.catch_up().rings.operations.values()
            cluster.commit(AdvanceOperation(operation.operation_id, Step.MID))
            wrong.extend(steps.wrong)

    actor = world.run(world.process("somebody"), joins)
    world.until_done(actor)
    if actor.error is not None:
        raise actor.error
    assert wrong
    assert all("went on after START" in text for text in wrong)


class _Told:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def before(self, entry: object, metadata: ClusterMetadata) -> None:
        """Nothing."""

    def after(self, entry: object, metadata: ClusterMetadata) -> None:
        self._steps.learn(metadata)


def test_a_way_back_in_one_step_is_noticed(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.go_to(Stage.WRITE_BOTH_READ_NEW)
        now = moving.cluster.metadata
        transitions = {
            key: msgspec.structs.replace(
                one, stage=Stage.CLEANUP_TARGET, error="it does not answer", epoch=now.epoch + 1
            )
            for key, one in now.tablets.transitions.items()
        }
        tablets = msgspec.structs.replace(now.tablets, transitions=transitions, epoch=now.epoch + 1)
        moving.steps.learn(_later(now, tablets=tablets))

    said = in_world(world, moves).steps.wrong
    assert said
    assert all("can pass over what is written" in text for text in said)


def test_a_tablet_in_two_transitions_is_noticed(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        now = moving.cluster.metadata
        transitions = {
            key: msgspec.structs.replace(one, started_epoch=now.epoch + 1, epoch=now.epoch + 1)
            for key, one in now.tablets.transitions.items()
        }
        tablets = msgspec.structs.replace(now.tablets, transitions=transitions, epoch=now.epoch + 1)
        moving.steps.learn(_later(now, tablets=tablets))

    [said] = in_world(world, moves).steps.wrong
    assert "the one before has not ended" in said


def _later(metadata: ClusterMetadata, **changes: object) -> ClusterMetadata:
    """The metadata of the next epoch, with these changes."""
    return msgspec.structs.replace(metadata, epoch=metadata.epoch + 1, **changes)


def test_rows_that_stay_with_a_replica_that_a_tablet_has_left_are_noticed(world: World) -> None:
    def moves(moving: Moving) -> None:
        moving.begin()
        moving.go_to(Stage.END_MIGRATION)
        moving.end()

    found = in_world(world, moves).holdings.missing
    assert [text for text in found if "rows of the keys [1], which it had given up before" in text]


@pytest.mark.parametrize(("level", "is_noticed"), [("ALL", True), ("QUORUM", False), ("ONE", False)])
def test_lost_storage_does_not_acknowledge(world: World, level: str, *, is_noticed: bool) -> None:
    def declares(moving: Moving) -> None:
        now = moving.cluster.metadata
        node = now.directory.node_of_volume[moving.old[0]]
        lost = now.directory.with_nodes(msgspec.structs.replace(node, lost=True), epoch=now.epoch)
        told = msgspec.structs.replace(now, directory=lost)
        moving.holdings.acknowledge([Acknowledged(1, "first", level)], told)

    found = in_world(world, declares).holdings.missing
    assert bool(found) is is_noticed
