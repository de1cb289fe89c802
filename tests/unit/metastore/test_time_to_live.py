"""Which rows have expired: a rule of the metadata that goes only forward, whatever is altered."""

from __future__ import annotations

from itertools import pairwise

import pytest
from epochlake.metastore.metadata.model import Column, Table, TimeToLive
from epochlake.metastore.metadata.time_to_live import (
    MICROS,
    SKEW_MICROS,
    begins,
    changed,
    expired_before,
    in_force,
    judged_at,
)
from hypothesis import given, settings
from hypothesis import strategies as st

COLUMNS = (Column("id", "bigint", False), Column("seen", "timestamp"), Column("made", "timestamp"))
HOUR = 3600


def table(*lifetimes: TimeToLive) -> Table:
    return Table("t", "air", "visits", COLUMNS, ("id",), ttl=lifetimes)


ALTERATIONS = st.lists(
    st.tuples(st.sampled_from([2, 3]), st.sampled_from([None, 1, 5, 20]), st.integers(1, 9)), max_size=6
)
"""Each the column, the seconds, and how many seconds after the one before it is made."""


def altered(alterations: list[tuple[int, int | None, int]]) -> tuple[Table, list[Table]]:
    """A table after all alterations, and what it was after each of them."""
    made, at, on_the_way = table(), 100, [table()]
    for column, seconds, later in alterations:
        at += later
        made = table(*changed(made, TimeToLive(column, seconds, begins(made, at * MICROS))))
        on_the_way.append(made)
    return made, on_the_way


def model(alterations: list[tuple[int, int | None, int]], column: int, moment: int, at: int) -> bool:
    """Whether a row with this moment has expired, by going through all seconds one after another."""
    clock, begun = 100, []
    for of, seconds, later in alterations:
        clock += later
        begun.append((clock, of, seconds))
    for now in range(100, at + 1):
        # As a second begins, both what ends with it and what begins with it count.
        counting = [one for one in begun if one[0] <= now][-1:] + [
            before for before, after in pairwise(begun) if after[0] == now
        ]
        for _, of, seconds in counting:
            if seconds is not None and of == column and moment < now - seconds:
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(ALTERATIONS, st.sampled_from([2, 3]), st.integers(60, 160), st.integers(100, 160))
def test_a_row_has_expired_where_it_had_at_any_second_before(
    alterations: list[tuple[int, int | None, int]], column: int, moment: int, at: int
) -> None:
    bounds = expired_before(altered(alterations)[0], at * MICROS)
    expired = column in bounds and moment * MICROS < bounds[column]
    assert expired is model(alterations, column, moment, at)


@settings(max_examples=150, deadline=None)
@given(ALTERATIONS, st.integers(100, 160), st.integers(0, 60))
def test_no_alteration_and_no_later_time_brings_an_expired_row_back(
    alterations: list[tuple[int, int | None, int]], at: int, later: int
) -> None:
    after, on_the_way = altered(alterations)
    for before in on_the_way:
        last = before.lifetimes[-1].since if before.lifetimes else 0
        following = after.lifetimes[len(before.lifetimes)].since if before is not on_the_way[-1] else 1 << 60
        if not last <= at * MICROS <= following:
            continue  # what a compaction knows at `at`: all alterations up to then
        known = expired_before(before, at * MICROS)
        then = expired_before(after, (at + later) * MICROS)
        assert all(then[column] >= bound for column, bound in known.items())


def test_a_read_is_never_judged_by_a_time_before_the_last_change() -> None:
    changed_now = table(TimeToLive(2, HOUR, 1_000 * MICROS))
    assert judged_at(changed_now, 900 * MICROS) == 1_000 * MICROS
    assert judged_at(changed_now, 1_100 * MICROS) == 1_100 * MICROS
    assert judged_at(table(), 5) == 5


def test_a_change_by_a_clock_that_is_years_ahead_hides_nothing_and_is_replaced() -> None:
    now, years = 1_000_000 * MICROS, 1_000_000 * MICROS + 100_000 * SKEW_MICROS
    wrong = table(TimeToLive(2, HOUR, 5 * MICROS), TimeToLive(2, 1, years))
    assert judged_at(wrong, now) == now
    assert expired_before(wrong, now) == {2: now - HOUR * MICROS}
    mended = table(*changed(wrong, TimeToLive(2, 2 * HOUR, begins(wrong, now))))
    assert mended.lifetimes == (TimeToLive(2, HOUR, 5 * MICROS), TimeToLive(2, 2 * HOUR, now))


def test_a_change_by_a_clock_that_is_behind_begins_after_the_last_one() -> None:
    first = table(TimeToLive(2, HOUR, 1_000 * MICROS))
    assert begins(first, 990 * MICROS) == 1_000 * MICROS + 1


@pytest.mark.parametrize(
    ("lifetimes", "now"),
    [
        ((), None),
        ((TimeToLive(2, 5, 1),), TimeToLive(2, 5, 1)),
        ((TimeToLive(2, 5, 1), TimeToLive(2, None, 2)), None),
    ],
)
def test_the_last_one_is_in_force(lifetimes: tuple[TimeToLive, ...], now: TimeToLive | None) -> None:
    assert in_force(table(*lifetimes)) == now
