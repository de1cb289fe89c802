"""Ranges as a pipeline plans with them: grouped by replicas, cut finer for what is staged again, chosen for reads."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from epochlake.jobs.gate.routing import choose_for_read, grouped, named, ranges_of, refined, routes
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.placements import Placement, highs, index_of
from epochlake.placement.consistency import ConsistencyLevel, majority
from epochlake.placement.ring.state import Step
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tokens_of_label

from tests.support.histories import applied, register, ring_cluster, start, steps
from tests.support.storages import STORAGE

TABLES = ["sky.stars", "air.flights"]


@pytest.fixture(scope="module")
def metadata() -> ClusterMetadata:
    """Six nodes of two volumes, and a seventh that is joining: writes go to old and new replicas."""
    now = ring_cluster(volumes=2)
    now = applied([register(now, "m7", rack="r1", volumes=2)], now)
    return applied([start(now, "join-m7"), *steps("join-m7", Step.START)], now)


@pytest.mark.parametrize("name", TABLES)
def test_every_range_has_its_placement_in_its_group_and_groups_are_distinct(
    metadata: ClusterMetadata, name: str
) -> None:
    placements = metadata.placements(metadata.table(name).table_id)
    among = grouped(placements)
    found = [sets_of(among.distinct[group]) for group in among.group]
    assert found == [sets_of(placements.placement(index)) for index in range(len(placements.lows))]
    assert len(set(found)) == len(among.distinct)
    runs = list(among.runs())
    assert [index for first, last, _ in runs for index in range(first, last + 1)] == list(range(len(among.group)))
    assert all(one[2] != other[2] for one, other in pairwise(runs))


def sets_of(placement: Placement) -> tuple[frozenset[int], ...]:
    return (frozenset(placement.reads), *(frozenset(replicas) for replicas in placement.write_sets))


@pytest.mark.parametrize("name", TABLES)
def test_what_is_staged_names_each_replica_set_once_and_labels_are_the_ranges_own(
    metadata: ClusterMetadata, name: str
) -> None:
    table = metadata.table(name)
    placements = metadata.placements(table.table_id)
    cover = routes(STORAGE, metadata, table, grouped(placements))
    assert len(cover.routes) < len(cover.lows)
    ends = highs(cover.lows)
    for index, label in enumerate(cover.labels):
        assert tokens_of_label(label) == (cover.lows[index], ends[index])
        assert label == placements.label(index)
        assert {one.volume_id for one in cover.replicas(index)} == set(placements.placement(index).writes)


def test_no_range_of_a_refined_cover_is_partly_in_a_window_and_replicas_stay(
    metadata: ClusterMetadata, seed: int
) -> None:
    chosen = random.Random(seed)
    table = metadata.table("sky.stars")
    cover = routes(STORAGE, metadata, table, grouped(metadata.placements(table.table_id)))
    bounds = sorted(chosen.randint(MIN_TOKEN, MAX_TOKEN) for _ in range(6))
    windows = [(MIN_TOKEN, bounds[0]), (bounds[1], bounds[2]), (bounds[3], bounds[4]), (bounds[5], MAX_TOKEN)]
    finer = refined(cover, windows)
    ends = highs(finer.lows)
    for index, low in enumerate(finer.lows.tolist()):
        inside = [first <= low <= last for first, last in windows]
        assert inside == [first <= ends[index] <= last for first, last in windows]
        assert tokens_of_label(finer.labels[index]) == (low, ends[index])
        [before] = index_of(cover.lows, np.array([low])).tolist()
        assert finer.replicas(index) == cover.replicas(before)
    assert refined(cover, [(MIN_TOKEN, MAX_TOKEN)]).labels == cover.labels


@pytest.mark.parametrize("name", TABLES)
def test_a_read_asks_a_quorum_of_every_range_and_few_volumes(metadata: ClusterMetadata, name: str) -> None:
    among = grouped(metadata.placements(metadata.table(name).table_id))
    chosen, short = choose_for_read(metadata, among, ConsistencyLevel.QUORUM, (), None)
    assert not short
    for placement, volumes in zip(among.distinct, chosen, strict=True):
        assert set(volumes) <= set(placement.reads)
        assert len(volumes) == majority(len(placement.reads))
    away = set(among.distinct[0].reads[:2])
    _, short = choose_for_read(metadata, among, ConsistencyLevel.QUORUM, away, None)
    expected = {n for n, one in enumerate(among.distinct) if len(away & set(one.reads)) > len(one.reads) - 2}
    assert set(short) == expected
    assert among.ranges_in(short) == [index for index, group in enumerate(among.group) if group in expected]


def test_ranges_are_called_by_their_tokens_and_tablets_by_their_number(metadata: ClusterMetadata) -> None:
    ring, tablets = metadata.table("sky.stars"), metadata.table("air.flights")
    [first, *_] = ranges_of(metadata.placements(ring.table_id), [(MIN_TOKEN, MIN_TOKEN)])
    last = highs(metadata.placements(ring.table_id).lows)[first]
    assert str(named(metadata, ring, [first])) == f"1 range ({MIN_TOKEN} to {last})"
    assert str(named(metadata, tablets, [3, 1])) == "2 tablets (1, 3)"
    assert str(named(metadata, ring, range(11))).endswith(" and 3 more)")
