"""What the balancer sees is what the metadata and the measured sizes say."""

from __future__ import annotations

import random

import msgspec
import pytest
from epochlake.jobs.coordinator.loads import LONGEST_SECONDS, Meter, bytes_by_tablet
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.intervals import overlap
from epochlake.jobs.replicas.states import FileTable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import NewTransition, StartTransitions
from epochlake.metastore.metadata.model import TableId
from epochlake.metastore.planning.balancing import Loads, cluster_load
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.placement.balancing.model import Hold
from epochlake.placement.tablets.transitions import Kind
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tablet_label, tablet_of, tokens_of_label

from tests.support.histories import applied, small_cluster

FLIGHTS: TableId = "id-flights"


@pytest.mark.parametrize("seed", range(20))
def test_the_sizes_that_are_balanced_are_those_of_each_replica_when_its_moves_have_ended(seed: int) -> None:
    chance = random.Random(seed)
    metadata = small_cluster()
    rows = list(metadata.tablets.maps[FLIGHTS])
    moves = []
    for tablet, replicas in enumerate(rows):
        free = [volume for volume in metadata.directory.volumes if volume not in replicas]
        if free and chance.random() < 0.5:
            leaving, pending = chance.choice(replicas), chance.choice(free)
            moves.append(NewTransition(FLIGHTS, tablet, Kind.MIGRATION, leaving, pending, "to see"))
    metadata = applied([StartTransitions(tuple(moves))], metadata) if moves else metadata
    sizes = {
        (table, tablet, volume): chance.choice([0, 1, chance.randrange(1 << 40)])
        for table in (FLIGHTS, "id-gone")
        for tablet in range(len(rows) + 2)
        for volume in metadata.directory.volumes
        if chance.random() < 0.6
    }
    load, _ = cluster_load(metadata, Loads(sizes, frozenset()), set(), StreamLimits(2))

    volumes = [volume.volume_id for node in metadata.directory.nodes.values() for volume in node.volumes]
    expected = []
    for tablet, replicas in enumerate(rows):
        transition = metadata.tablets.transitions.get((FLIGHTS, tablet))
        largest = max(sizes.get((FLIGHTS, tablet, volume), 0) for volume in replicas)
        for volume in replicas if transition is None else transition.new_replicas:
            size = max(sizes.get((FLIGHTS, tablet, volume), largest), 1)
            expected.append((tablet, volumes.index(volume), size))
    seen = zip(load.replica_tablet.tolist(), load.replica_volume.tolist(), load.replica_size.tolist(), strict=True)
    assert [*seen] == expected
    moving = {move.tablet for move in moves}
    assert {tablet for tablet, hold in enumerate(load.tablet_hold) if hold == Hold.IN_TRANSITION} == moving
    assert load.tablet_table.tolist() == [0] * len(rows)


@pytest.mark.parametrize("seed", range(40))
def test_a_file_that_straddles_tablets_counts_in_each_by_its_share_of_the_tokens(seed: int) -> None:
    chance = random.Random(seed)
    count = 1 << chance.randrange(0, 9)
    files = []
    for _ in range(chance.randrange(0, 30)):
        low = chance.choice([MIN_TOKEN, MAX_TOKEN, chance.randrange(MIN_TOKEN, MAX_TOKEN)])
        near = min(MAX_TOKEN, low + chance.randrange(1 << 50))
        high = chance.choice([low, MAX_TOKEN, near, chance.randrange(MIN_TOKEN, MAX_TOKEN)])
        files.append(_file(min(low, high), max(low, high), chance.randrange(1, 1 << 33)))
    held = bytes_by_tablet(FileTable.of(files), count)
    expected: dict[int, float] = {}
    for file in files:
        low, high = file.extent
        for tablet in range(int(tablet_of([low], count)[0]), int(tablet_of([high], count)[0]) + 1):
            begin, end = overlap(tokens_of_label(tablet_label(tablet, count)), (low, high))
            share = file.size * (end - begin + 1) / (high - low + 1)
            expected[tablet] = expected.get(tablet, 0) + share
    assert held.keys() == expected.keys()
    assert all(held[tablet] == pytest.approx(size, rel=1e-6, abs=1) for tablet, size in expected.items())
    assert sum(held.values()) == pytest.approx(sum(file.size for file in files), rel=1e-6, abs=count)


def test_a_file_without_a_row_counts_in_all_of_its_window() -> None:
    empty = msgspec.structs.replace(_file(5, 5, 1024), rows=0)
    assert bytes_by_tablet(FileTable.of([empty]), 4) == dict.fromkeys(range(4), 256)
    assert bytes_by_tablet(FileTable.of([]), 4) == {}


def test_what_took_long_to_measure_is_used_for_long_and_never_when_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, taking, measured = 0.0, 0.5, 0

    def measure(metadata: ClusterMetadata) -> Loads:
        nonlocal now, measured
        now += taking
        measured += 1
        return Loads({}, frozenset())

    monkeypatch.setattr("epochlake.jobs.coordinator.loads.time.monotonic", lambda: now)
    meter, metadata = Meter(measure), small_cluster()
    for later, known, count in [(0, 1, 1), (9.9, 1, 1), (0.2, 1, 2), (0, 2, 3), (0, 1, 4), (9.9, 1, 4)]:
        now += later
        meter.loads(metadata, known)
        assert measured == count
    taking = 1000.0
    meter.loads(metadata, 5)
    now += LONGEST_SECONDS + 1
    meter.loads(metadata, 5)
    assert measured == 6
    patient = Meter(measure, seconds=10_000.0)
    for _ in range(2):
        patient.loads(metadata, 1)
        now += 9_000.0
    assert measured == 7


def _file(low: int, high: int, size: int) -> DataFile:
    return DataFile(
        file_id=(file_id := new_file_id()),
        label="0-0",
        path=path_of("0-0", file_id),
        size=size,
        rows=1,
        min_token=low,
        max_token=high,
        min_written_at=1,
        max_written_at=1,
        has_tombstones=False,
    )
