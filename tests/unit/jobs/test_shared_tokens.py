"""Rows whose token is not their own are all found, whatever the runs are; of a long run no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from epochlake.jobs.replicas import shared_tokens
from epochlake.jobs.replicas.shared_tokens import ALL, shared_rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

TOKENS = st.one_of(st.integers(-6, 6), st.sampled_from([-(2**63), 2**63 - 1]))
RUNS = st.lists(st.lists(TOKENS, max_size=40).map(sorted), max_size=6)


def arrays(runs: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
    return [np.array(tokens, dtype=np.int64) for tokens in runs]


def of_more_than_one_row(runs: Sequence[Sequence[int]]) -> list[set[int]]:
    """By counting: the numbers of rows whose token another row has."""
    count = Counter(token for tokens in runs for token in tokens)
    return [{number for number, token in enumerate(tokens) if count[token] > 1} for tokens in runs]


def numbers(runs: Sequence[Sequence[int]]) -> list[list[int]]:
    found = shared_rows(arrays(runs))
    assert len(found) == len(runs)
    return [np.arange(len(tokens))[of_run].tolist() for tokens, of_run in zip(runs, found, strict=True)]


@given(RUNS, st.integers(0, 4), st.integers(0, 3))
def test_every_row_that_shares_its_token_is_found_and_none_twice(
    runs: list[list[int]], long_to_short: int, most_long: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_tokens, "LONG_TO_SHORT", long_to_short)
        patched.setattr(shared_tokens, "MOST_LONG", most_long)
        found = numbers(runs)
    for of_run, expected in zip(found, of_more_than_one_row(runs), strict=True):
        assert of_run == sorted(set(of_run))
        assert expected <= set(of_run)


def test_of_long_runs_beside_each_other_only_what_others_share_is_found() -> None:
    one, other = list(range(0, 400, 2)), list(range(400, 800, 2))
    short = [-1, 4, 4, 5, 398, 400, 798, 799]
    assert numbers([short, one, other, [6]]) == [list(range(8)), [2, 3, 199], [0, 199], [0]]
    assert numbers([other, one]) == [[], []]


def test_a_token_that_a_run_has_twice_is_found_in_it() -> None:
    assert numbers([[0, 1, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8], [1, 8]]) == [[1, 2, 3, 5, 6, 11], [0, 1]]


@pytest.mark.parametrize(
    "runs",
    [
        [[1, 2, 3, 4, 5, 6, 7, 8], [1, 3, 2]],
        [[1, 3, 2, 4, 5, 6, 7, 8], [1]],
        [[1, 2, 3, 4, 5, 6, 7], [1, 2]],
    ],
    ids=["a short run is not in order", "a long run is not in order", "the rest is not short"],
)
def test_all_rows_are_taken_where_looking_for_some_would_not_do(runs: list[list[int]]) -> None:
    assert shared_rows(arrays(runs)) == [ALL] * 2
