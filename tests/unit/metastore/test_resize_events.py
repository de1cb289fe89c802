"""Decisions to split and merge, and their ends: numbers grow, maps double and halve, no token changes its replicas."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import DecideResize, FinishResize
from epochlake.metastore.metadata.placements import index_of
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN
from hypothesis import given
from hypothesis import strategies as st

from tests.support.histories import applied, small_cluster, table

FLIGHTS = "id-flights"
SMALL = applied([table("pairs", [[1, 2], [2, 1], [3, 4], [4, 3]])], small_cluster())
TOKENS = np.array([MIN_TOKEN, *range(MIN_TOKEN + 5, MAX_TOKEN, (1 << 64) // 97), MAX_TOKEN])


def resized(metadata: ClusterMetadata, resize: Resize, table_id: str = FLIGHTS) -> ClusterMetadata:
    number = metadata.tablets.maps[table_id].resize_seq_number + 1
    return applied([DecideResize(table_id, resize, number), FinishResize(table_id, number)], metadata)


def replicas_by_token(metadata: ClusterMetadata, table_id: str) -> list[set[int]]:
    cover = metadata.placements(table_id)
    return [set(cover.placement(index).writes) for index in index_of(cover.lows, TOKENS).tolist()]


@pytest.mark.parametrize("resize", [Resize.SPLIT, Resize.MERGE])
def test_neither_a_split_nor_a_merge_changes_the_replicas_of_a_token(resize: Resize) -> None:
    before = replicas_by_token(SMALL, "id-pairs")
    number = 1
    decided = applied([DecideResize("id-pairs", resize, number)], SMALL)
    assert replicas_by_token(decided, "id-pairs") == before
    finished = applied([FinishResize("id-pairs", number)], decided)
    assert replicas_by_token(finished, "id-pairs") == before
    assert finished.tablets.maps["id-pairs"].count == (8 if resize is Resize.SPLIT else 2)


def test_new_files_are_kept_apart_at_the_middle_from_the_decision_on_until_it_is_revoked() -> None:
    decided = applied([DecideResize(FLIGHTS, Resize.SPLIT, 1)], SMALL)
    assert [len(m.placements(FLIGHTS).lows) for m in (SMALL, decided)] == [4, 8]
    revoked = applied([DecideResize(FLIGHTS, Resize.NONE, 2)], decided)
    assert len(revoked.placements(FLIGHTS).lows) == 4


def test_a_split_ends_with_the_cover_that_its_decision_began() -> None:
    decided = applied([DecideResize(FLIGHTS, Resize.SPLIT, 1)], SMALL)
    finished = applied([FinishResize(FLIGHTS, 1)], decided)
    covers = [m.placements(FLIGHTS) for m in (decided, finished)]
    assert covers[0].lows.tolist() == covers[1].lows.tolist()
    assert [covers[0].label(i) for i in range(8)] == [covers[1].label(i) for i in range(8)]


def test_the_number_grows_by_one_with_every_decision_and_outlives_its_end() -> None:
    metadata = SMALL
    for number, resize in enumerate([Resize.SPLIT, Resize.NONE, Resize.MERGE, Resize.NONE, Resize.SPLIT], start=1):
        metadata = applied([DecideResize(FLIGHTS, resize, number)], metadata)
        found = metadata.tablets.maps[FLIGHTS]
        assert (found.resize_type, found.resize_seq_number) == (resize.value, number)
        assert type(found.resize_type) is str
    finished = applied([FinishResize(FLIGHTS, 5)], metadata).tablets.maps[FLIGHTS]
    assert (finished.resize_type, finished.resize_seq_number, finished.count) == ("none", 5, 8)


def test_an_end_that_comes_after_its_decision_was_revoked_or_carried_out_is_stale() -> None:
    decided = applied([DecideResize(FLIGHTS, Resize.SPLIT, 1)], SMALL)
    again = applied([DecideResize(FLIGHTS, Resize.NONE, 2), DecideResize(FLIGHTS, Resize.SPLIT, 3)], decided)
    for metadata in (again, applied([FinishResize(FLIGHTS, 1)], decided)):
        with pytest.raises(Rejected, match="stale-plan"):
            metadata.check(FinishResize(FLIGHTS, 1))


def test_siblings_with_the_same_replicas_in_another_order_are_merged_in_the_order_of_the_even_one() -> None:
    assert list(resized(SMALL, Resize.MERGE, "id-pairs").tablets.maps["id-pairs"]) == [(1, 2), (3, 4)]


@given(st.lists(st.booleans(), max_size=6))
def test_any_splits_and_as_many_merges_lead_back_to_the_map_of_before(more: list[bool]) -> None:
    metadata = resized(SMALL, Resize.SPLIT)
    for splits in more:
        metadata = resized(metadata, Resize.SPLIT)
        if not splits:
            metadata = resized(metadata, Resize.MERGE)
    for _ in range(1 + sum(more)):
        metadata = resized(metadata, Resize.MERGE)
    assert list(metadata.tablets.maps[FLIGHTS]) == list(SMALL.tablets.maps[FLIGHTS])


@pytest.mark.parametrize("word", ["none", "split", "merge"])
def test_a_decision_is_read_back_as_it_was_written(word: str) -> None:
    event = DecideResize(FLIGHTS, Resize(word), 1, "because")
    assert msgspec.json.decode(msgspec.json.encode(event), type=DecideResize) == event


def test_a_word_that_is_no_decision_is_refused() -> None:
    payload = b'{"table_id": "t", "resize_type": "shrink", "resize_seq_number": 1}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(payload, type=DecideResize)
