"""What the coordinator decides about tablets from measured loads, and the moves that a merge begins with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.views.resizing import plan_resize
from epochlake.metastore.configuration import TabletSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import DecideResize, SetMaintenance, StartTransitions
from epochlake.metastore.metadata.model import TabletOptions, VolumeId
from epochlake.metastore.planning.balancing import Loads, cluster_load
from epochlake.metastore.planning.resizing import colocating_transitions, planned_resizes, replica_sets_with
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.placement.balancing.model import Hold
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.transitions import Kind

from tests.support.clusters import FOUR, placed, without_zookeeper
from tests.support.histories import applied, joined, small_cluster, table
from tests.support.storages import STORAGE

FLIGHTS = "id-flights"
SETTINGS = TabletSettings(target_bytes=100)


def loads(sizes: dict[tuple[int, int], int], unmeasured: set[VolumeId] = frozenset(), on: str = FLIGHTS) -> Loads:  # type: ignore[assignment]
    return Loads({(on, tablet, volume): size for (tablet, volume), size in sizes.items()}, frozenset(unmeasured))


def with_options(metadata: ClusterMetadata, **options: object) -> ClusterMetadata:
    changed = msgspec.structs.replace(metadata.schema.tables[FLIGHTS], options=TabletOptions(**options))  # type: ignore[arg-type]
    schema = msgspec.structs.replace(metadata.schema, tables={FLIGHTS: changed})
    return msgspec.structs.replace(metadata, schema=schema)


def each(size: int) -> dict[tuple[int, int], int]:
    """So many bytes on each replica of `air.flights`."""
    return {(tablet, volume): size for tablet, row in enumerate([(1, 2), (2, 3), (3, 1), (1, 2)]) for volume in row}


def test_the_mean_is_over_all_replicas_that_were_measured_empty_ones_too() -> None:
    [planned] = planned_resizes(small_cluster(), loads({(0, 1): 500, (0, 2): 500}), SETTINGS)
    assert (planned.bytes, planned.decision.resize) == (125.0, Resize.SPLIT)


def test_replicas_that_are_away_are_left_out_of_the_mean() -> None:
    present = {key: size for key, size in each(120).items() if key[1] != 3}
    [planned] = planned_resizes(small_cluster(), loads(present, {3}), SETTINGS)
    assert planned.bytes == 120.0


def test_nothing_is_decided_when_no_replica_answers() -> None:
    [planned] = planned_resizes(small_cluster(), loads({}, {1, 2, 3}), SETTINGS)
    assert (planned.bytes, planned.decision.changes) == (None, False)


def test_bytes_that_lie_where_the_table_is_not_any_more_do_not_count() -> None:
    [planned] = planned_resizes(small_cluster(), loads(each(80) | {(0, 4): 10_000}), SETTINGS)
    assert planned.bytes == 80.0


@pytest.mark.parametrize(
    ("options", "size", "resize", "wanted"),
    [
        ({}, 101, Resize.SPLIT, 8),
        ({"target_bytes": 200}, 101, Resize.NONE, 4),
        ({"target_bytes": 1000}, 101, Resize.MERGE, 1),
        ({"max_count": 4}, 900, Resize.NONE, 4),
        ({"min_count": 4}, 1, Resize.NONE, 4),
        ({"min_count": 16}, 80, Resize.SPLIT, 16),
    ],
)
def test_the_options_of_a_table_come_before_the_configuration(
    options: dict[str, int], size: int, resize: Resize, wanted: int
) -> None:
    [planned] = planned_resizes(with_options(small_cluster(), **options), loads(each(size)), SETTINGS)
    assert (planned.decision.resize, planned.decision.wanted) == (resize, wanted)


def test_the_goal_counts_the_volumes_of_normal_nodes() -> None:
    settings = msgspec.structs.replace(SETTINGS, per_volume=3)
    [planned] = planned_resizes(small_cluster(), loads(each(80)), settings)
    assert planned.decision.wanted == 8  # 4 volumes, 12 replicas asked for, 8 there are


# --- co-locating ---------------------------------------------------------------------------------------------------


def merging(*rows: list[int], volumes: int = 1) -> ClusterMetadata:
    metadata = joined(small_cluster(), "m5", "m6", volumes=volumes)
    return applied([table("pairs", rows), DecideResize("id-pairs", Resize.MERGE, 1)], metadata)


def begun(metadata: ClusterMetadata, streams: int = 8, **where: frozenset[VolumeId]) -> tuple[list, list[str]]:
    loads = Loads({}, where.get("away", frozenset()), where.get("avoided", frozenset()))
    return colocating_transitions(metadata, "id-pairs", loads, StreamLimits(streams, 0))


def test_the_odd_tablet_moves_to_the_volumes_of_the_even_one_a_replica_at_a_time() -> None:
    moves, stuck = begun(merging([1, 2], [3, 4]))
    assert [(one.tablet, one.leaving, one.pending, one.kind) for one in moves] == [(1, 3, 1, Kind.MIGRATION)]
    assert stuck == []
    assert "co-located with tablet 0" in moves[0].reason


def test_a_replica_moves_to_the_other_volume_of_its_node_first() -> None:
    metadata = merging([5, 1], [6, 2], volumes=2)
    [move], _ = begun(metadata)
    assert (move.leaving, move.pending, move.kind) == (6, 5, Kind.INTRANODE_MIGRATION)


def test_as_many_begin_as_volumes_may_stream() -> None:
    metadata = merging(*[[1, 2], [1, 3]] * 4)
    for streams in (1, 2, 3):
        moves, _ = begun(metadata, streams)
        assert len(moves) == streams
        metadata.check(StartTransitions(tuple(moves)))
    under_way = applied([StartTransitions(tuple(begun(metadata, 2)[0]))], metadata)
    assert begun(under_way, 2) == ([], [])
    assert [move.tablet for move in begun(under_way, 3)[0]] == [5]


def test_small_tablets_of_one_way_share_a_stream() -> None:
    metadata = merging(*[[1, 2], [1, 3]] * 4, *[[1, 2], [1, 4]] * 4)
    sizes = {("id-pairs", tablet, 3): 40 for tablet in (1, 3, 5, 7)} | {
        ("id-pairs", tablet, 4): 200 for tablet in (9, 11, 13, 15)
    }
    moves, _ = colocating_transitions(metadata, "id-pairs", Loads(sizes, frozenset()), StreamLimits(1, 100))
    assert [(move.tablet, move.leaving, move.pending) for move in moves] == [(1, 3, 2), (3, 3, 2)]
    metadata.check(StartTransitions(tuple(moves)))
    under_way = applied([StartTransitions(tuple(moves))], metadata)
    moves, _ = colocating_transitions(under_way, "id-pairs", Loads(sizes, frozenset()), StreamLimits(2, 100))
    assert [(move.tablet, move.leaving, move.pending) for move in moves] == [(5, 3, 2), (7, 3, 2)]


@pytest.mark.parametrize("where", ["away", "avoided"])
def test_a_pair_waits_for_a_volume_that_cannot_take_part(where: str) -> None:
    moves, [why] = begun(merging([1, 2], [1, 3]), **{where: frozenset({2})})
    assert moves == []
    assert why.startswith("tablets 0 and 1 wait for their merge: n2/")


def test_a_pair_waits_for_a_node_in_maintenance() -> None:
    metadata = applied([SetMaintenance(2, True)], merging([1, 2], [1, 3]))
    moves, [why] = begun(metadata)
    assert moves == []
    assert "maintenance" in why


def test_nothing_begins_while_a_pair_cannot_be_brought_together_on_the_whole_way() -> None:
    metadata = applied([SetMaintenance(2, True)], merging([1, 2], [3, 4]))
    moves, [why] = begun(metadata)
    assert moves == [], "the first of the two could begin, and balancing would lead back"
    assert "maintenance" in why
    metadata = applied([SetMaintenance(2, True)], merging([1, 2], [1, 3], [1, 3], [1, 4]))
    moves, [why] = begun(metadata)
    assert moves == []
    assert why.startswith("tablets 0 and 1 wait")
    alike = applied([SetMaintenance(2, True)], merging(*[[1, 2], [1, 3]] * 2))
    assert [("tablet 1 of" in why, "tablet 3 of" in why) for why in begun(alike)[1]] == [(True, False), (False, True)]
    moves, stuck = begun(applied([SetMaintenance(2, False)], metadata))
    assert [move.tablet for move in moves] == [1, 3]
    assert stuck == []


def test_the_replica_sets_that_have_a_volume_are_each_named_once() -> None:
    tablet_map = small_cluster().tablets.maps[FLIGHTS]
    assert replica_sets_with(tablet_map, [1]) == [(1, 2), (1, 3)]
    assert replica_sets_with(tablet_map, [1, 3]) == [(1, 2), (1, 3), (2, 3)]
    assert replica_sets_with(tablet_map, []) == []


def test_tables_that_are_held_are_not_balanced_but_drained() -> None:
    metadata = small_cluster()
    measured = msgspec.structs.replace(loads(each(10)), held=frozenset({FLIGHTS}))
    held, _ = cluster_load(metadata, measured, set(), StreamLimits(2))
    drained, _ = cluster_load(metadata, measured, {1}, StreamLimits(2))
    assert set(held.tablet_hold.tolist()) == {Hold.PENDING_REQUEST}
    assert set(drained.tablet_hold.tolist()) == {Hold.FREE}


# --- for people ----------------------------------------------------------------------------------------------------


def test_the_plan_says_what_would_be_resized_and_why_or_why_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zookeeper(monkeypatch)
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "XBC"})
    cluster.write(cluster.pipeline(), ids=range(20))
    plan = plan_resize(STORAGE, cluster.metadata, TabletSettings(target_bytes=1))
    [flights] = plan.tables
    assert (flights.table, flights.tablets, flights.decision, flights.changes) == ("air.flights", 2, "split", True)
    assert "more than the target of 1 B" in flights.reason
    assert (plan.resizing, plan.paused) == (False, "balancing is off")
    administration.resume_balancing(cluster.cluster)
    assert plan_resize(STORAGE, cluster.metadata, SETTINGS).resizing
    administration.decommission(cluster.cluster, "X")
    assert plan_resize(STORAGE, cluster.metadata, SETTINGS).paused == "1 topology request(s) come first"
    administration.cancel_request(cluster.cluster, "X")
    cluster.cluster.commit(DecideResize(cluster.table.table_id, Resize.MERGE, 1))
    with cluster.without("C"):
        [flights] = (plan := plan_resize(STORAGE, cluster.metadata, TabletSettings())).tables
    assert (flights.in_force, flights.apart, flights.wanted_tablets) == ("merge", 1, 1)
    assert plan.unmeasured == ("C/d1",)
