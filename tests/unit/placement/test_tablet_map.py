"""The map of a table's tablets: what it holds, and what a changed one shares with the one before."""

from __future__ import annotations

import numpy as np
import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.tablet_map import CHUNK, NO_REPLICA, TabletMap
from hypothesis import given
from hypothesis import strategies as st


def random_map(count: int, width: int = 3) -> TabletMap:
    generator = np.random.default_rng(count)
    return TabletMap.from_array(generator.integers(0, 50, (count, width), dtype=np.int32))


def test_a_map_gives_back_what_it_was_made_of():
    array = np.arange(24, dtype=np.int32).reshape(8, 3)
    assert np.array_equal(TabletMap.from_array(array).to_array(), array)
    assert TabletMap.from_array(array).replicas(2) == (6, 7, 8)


@pytest.mark.parametrize("count", [3, 5, 6, 7, 100])
def test_a_number_of_tablets_that_is_no_power_of_two_is_refused(count):
    with pytest.raises(InvalidRequest, match=r"2\^k"):
        TabletMap.from_array(np.zeros((count, 3), np.int32))


@given(st.dictionaries(st.integers(0, 4 * CHUNK - 1), st.lists(st.integers(0, 99), max_size=5), max_size=12))
def test_changed_tablets_change_and_all_others_stay(changes):
    before = random_map(4 * CHUNK)
    untouched = before.to_array().copy()
    after = before.with_replicas(changes, epoch=7)
    for tablet, replicas in changes.items():
        assert after.replicas(tablet) == tuple(replicas)
    others = np.setdiff1d(np.arange(4 * CHUNK), list(changes))
    assert np.array_equal(after.to_array()[others][:, :3], untouched[others])
    assert np.array_equal(before.to_array(), untouched)
    assert after.epoch == 7


def test_chunks_without_a_change_are_shared():
    before = random_map(4 * CHUNK)
    after = before.with_replicas({0: (9,), CHUNK: (8, 7)}, epoch=1)
    assert [a is b for a, b in zip(before.chunks, after.chunks, strict=True)] == [False, False, True, True]


def test_chunks_cannot_be_written_to():
    changed = random_map(CHUNK).with_replicas({1: (1, 2, 3)}, epoch=1)
    with pytest.raises(ValueError, match="read-only"):
        changed.chunks[0][0, 0] = 1


def test_a_map_widens_when_a_tablet_gets_more_replicas_than_any_had():
    after = random_map(8, 2).with_replicas({3: (1, 2, 3, 4)}, epoch=1)
    assert after.width == 4
    assert after.replicas(3) == (1, 2, 3, 4)
    assert len(after.replicas(0)) == 2
    assert after.to_array()[0, 3] == NO_REPLICA


def test_tablets_on_volumes_are_those_with_a_replica_there():
    tablets = TabletMap.from_array(np.array([[1, 2], [3, 4], [1, 4], [5, 6]], np.int32))
    assert tablets.tablets_on([1]).tolist() == [0, 2]
    assert tablets.tablets_on([4, 6]).tolist() == [1, 2, 3]
    assert tablets.tablets_on([]).tolist() == []


@pytest.mark.parametrize("tablet", [-1, 8])
def test_a_tablet_that_is_not_there_is_named(tablet):
    with pytest.raises(InvalidRequest, match=f"no tablet {tablet}"):
        random_map(8).replicas(tablet)
    with pytest.raises(InvalidRequest, match=f"no tablet {tablet}"):
        random_map(8).with_replicas({tablet: (1,)}, epoch=1)


@pytest.mark.parametrize("count", [1, 8, CHUNK, 4 * CHUNK])
def test_a_split_doubles_the_tablets_where_they_are_and_a_merge_takes_it_back(count):
    before = random_map(count).decided("split", 3, epoch=4)
    split = before.split(epoch=5)
    assert (split.count, split.resize_type, split.resize_seq_number, split.epoch) == (2 * count, "none", 3, 5)
    for tablet in {0, count // 2, count - 1}:
        assert split.replicas(2 * tablet) == split.replicas(2 * tablet + 1) == before.replicas(tablet)
    assert list(split.merged(epoch=6)) == list(before)


def test_only_siblings_on_the_same_volumes_are_merged_in_whatever_order():
    tablets = TabletMap.from_array(np.array([[1, 2], [2, 1], [3, 4], [3, 5]], np.int32))
    assert tablets.siblings_apart().tolist() == [1]
    with pytest.raises(InvalidRequest, match="2 and 3 are not on the same volumes"):
        tablets.merged(epoch=1)
    assert list(tablets.with_replicas({3: (4, 3)}, epoch=1).merged(epoch=2)) == [(1, 2), (3, 4)]


def test_siblings_apart_are_numbered_over_all_chunks():
    apart = random_map(2 * CHUNK).split(epoch=1).with_replicas({0: (99,), 2 * CHUNK + 5: (98,)}, epoch=2)
    assert apart.siblings_apart().tolist() == [0, CHUNK + 2]


def test_a_single_tablet_cannot_be_merged():
    assert random_map(1).siblings_apart().tolist() == []
    with pytest.raises(InvalidRequest, match="single tablet"):
        random_map(1).merged(epoch=1)
