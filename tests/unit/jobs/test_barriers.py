"""A look at a barrier says what the rule says of each of its sides, and a change of the ring is told once."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from epochlake.jobs.coordinator.fencing import Barrier, Fences, Sides
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateTable
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.planning.ring_changes import change_of
from epochlake.placement.consistency import BarrierLevel, barrier_passed
from epochlake.placement.ring.state import Step

from benchmarks import barriers
from benchmarks.harness import STORAGE
from tests.support.histories import COLUMNS, applied, steps
from tests.support.ring_event_cases import scenes

VOLUMES = range(8)
EPOCH = 7


class _Known(Fences):
    """Fences of which it is known what is fenced."""

    def __init__(self, known: set[tuple[str, int]]) -> None:
        super().__init__(STORAGE)
        self._known = dict.fromkeys(known, EPOCH)


@pytest.mark.parametrize("seed", range(40))
def test_a_barrier_is_passed_when_each_of_its_sides_is(seed: int) -> None:
    dice = random.Random(seed)
    said = set()
    for _ in range(60):
        tables = ["one", "other"][: dice.randint(1, 2)]
        sides = tuple(
            Sides(dice.choice(tables), *(tuple(dice.sample(VOLUMES, dice.randint(0, 4))) for _ in range(2)))
            for _ in range(dice.randint(0, 6))
        )
        asked = {(side.table_id, volume) for side in sides for volume in (*side.old, *side.new)}
        required = frozenset(key for key in asked if dice.random() < 0.1) | (
            {("one", 99)} if dice.random() < 0.1 else set()
        )
        barrier = Barrier(EPOCH, sides, required)
        fenced = {key for key in asked | required if dice.random() < 0.9}
        lost = frozenset(volume for volume in VOLUMES if dice.random() < 0.15)
        metadata = SimpleNamespace(directory=SimpleNamespace(datacenter_of=lambda volume: f"dc{volume % 2}", lost=lost))
        level = dice.choice(list(BarrierLevel))
        expected = required <= fenced and all(
            barrier_passed(
                level,
                side.old,
                side.new,
                {volume for volume in (*side.old, *side.new) if (side.table_id, volume) in fenced},
                metadata.directory.datacenter_of,
                lost,
            )
            for side in sides
        )
        assert barrier.replica_keys == asked | required
        assert _Known(fenced).passed(cast("ClusterMetadata", metadata), barrier, level) is expected
        said.add(expected)
    assert said == {True, False}


def test_what_is_fenced_at_an_earlier_epoch_passes_no_barrier() -> None:
    fences = _Known({("one", volume) for volume in VOLUMES})
    metadata = cast("ClusterMetadata", SimpleNamespace(directory=SimpleNamespace(datacenter_of=str, lost=frozenset())))
    sides = (Sides("one", (1, 2, 3), (2, 3, 4)),)
    assert fences.passed(metadata, Barrier(EPOCH, sides), BarrierLevel.ALL)
    assert not fences.passed(metadata, Barrier(EPOCH + 1, sides), BarrierLevel.QUORUM)


def test_what_each_replica_gains_is_all_that_is_gained_by_its_volume() -> None:
    change = barriers.work_of(barriers.changing(nodes=9, tokens=4)).change
    assert change.settings
    expected = {
        (table_id, target): tuple(gain for gain in one.gains if gain.target == target)
        for one in change.settings
        for table_id in one.tables
        for target in dict.fromkeys(gain.target for gain in one.gains)
    }
    assert list(change.gains_of().items()) == list(expected.items())
    assert len(expected) > 1


def test_a_change_is_told_once_and_anew_where_tables_or_steps_are_others() -> None:
    metadata = scenes()["ring prepared"]
    [operation] = metadata.rings.operations.values()
    told = change_of(metadata, operation)
    assert change_of(metadata, operation) is told
    more = metadata.apply(CreateTable(Table("id-more", "sky", "more", COLUMNS, ("id",)), 0), "state")
    assert more.rings is metadata.rings
    assert {table for table, _ in change_of(more, operation).gaining} == {"id-stars", "id-more"}
    assert change_of(metadata, operation) == told
    another = msgspec.structs.replace(operation)
    assert change_of(metadata, another) == told
    widened = applied(steps("join-m7", Step.START), metadata)
    [onward] = widened.rings.operations.values()
    assert change_of(widened, onward) == told


def test_the_benchmark_looks_at_a_barrier_that_is_passed_though_a_node_is_away() -> None:
    metadata = barriers.changing(nodes=9, tokens=4)
    barriers.looks(metadata, away=False)()
    barriers.looks(metadata, away=True)()
