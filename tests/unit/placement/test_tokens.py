"""Tablet arithmetic: 2^k equal ranges, and labels that survive splits."""

from __future__ import annotations

import numpy as np
import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import (
    MAX_TOKEN,
    MIN_TOKEN,
    parse_label,
    tablet_label,
    tablet_of,
    tablet_range,
    tablet_ranges,
)
from hypothesis import given
from hypothesis import strategies as st

tokens = st.integers(MIN_TOKEN, MAX_TOKEN)
bits = st.integers(0, 31)


def of(token: int, count: int) -> int:
    return int(tablet_of(np.array([token], dtype=np.int64), count)[0])


@given(tokens, bits)
def test_a_token_lies_in_the_range_of_its_tablet_and_of_no_neighbour(token: int, k: int) -> None:
    count = 1 << k
    index = of(token, count)
    start, end = tablet_range(index, count)
    assert start < token <= end or (index == 0 and token == MIN_TOKEN)
    if index > 0:
        assert tablet_range(index - 1, count)[1] == start
    if index < count - 1:
        assert tablet_range(index + 1, count)[0] == end


@pytest.mark.parametrize("k", [0, 1, 2, 5, 10])
def test_all_ranges_at_once_are_the_ranges_one_by_one(k: int) -> None:
    starts, ends = tablet_ranges(1 << k)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [tablet_range(i, 1 << k) for i in range(1 << k)]


@given(tokens, st.integers(0, 30))
def test_splitting_sends_a_token_to_one_of_the_two_children_of_its_tablet(token: int, k: int) -> None:
    assert of(token, 2 << k) // 2 == of(token, 1 << k)


@given(st.lists(tokens, min_size=1), bits)
def test_tablets_are_in_token_order(values: list[int], k: int) -> None:
    indices = tablet_of(np.array(sorted(values), dtype=np.int64), 1 << k)
    assert (np.diff(indices) >= 0).all()


@pytest.mark.parametrize(
    ("token", "count", "tablet"),
    [
        (MIN_TOKEN, 1, 0),
        (MAX_TOKEN, 1, 0),
        (MIN_TOKEN, 2, 0),
        (-1, 2, 0),
        (0, 2, 1),
        (MAX_TOKEN, 2, 1),
        (MIN_TOKEN, 16, 0),
        (MAX_TOKEN, 16, 15),
        (MAX_TOKEN, 2**31, 2**31 - 1),
    ],
)
def test_the_edges_of_the_token_space_have_tablets(token: int, count: int, tablet: int) -> None:
    assert of(token, count) == tablet


def test_the_ranges_of_all_tablets_end_at_the_largest_token() -> None:
    assert tablet_range(0, 1) == (MIN_TOKEN, MAX_TOKEN)
    assert [tablet_range(i, 4) for i in range(4)] == [
        (MIN_TOKEN, -(2**62) - 1),
        (-(2**62) - 1, -1),
        (-1, 2**62 - 1),
        (2**62 - 1, MAX_TOKEN),
    ]


@given(bits, st.data())
def test_a_label_says_index_and_count(k: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, (1 << k) - 1))
    assert parse_label(tablet_label(index, 1 << k)) == (index, 1 << k)


@pytest.mark.parametrize("label", ["", "4", "4-", "-4", "4-16", "04-1", "4-01", "4-1-1", "a-b", "32-0", "²-1", "4--1"])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidRequest, match="tablet label"):
        parse_label(label)


@pytest.mark.parametrize("count", [0, -1, 3, 6, 2**32])
def test_a_count_that_is_no_power_of_two_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest, match="2\\^k"):
        tablet_label(0, count)


def test_a_tablet_beyond_the_count_is_refused() -> None:
    for call in (tablet_label, tablet_range):
        with pytest.raises(InvalidRequest, match="no tablet 4 among 4"):
            call(4, 4)
