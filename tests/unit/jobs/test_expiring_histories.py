"""Histories of rows that expire: what a read may show of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from epochlake.jobs import campaign
from epochlake.jobs.gate import expiry
from epochlake.jobs.replicas.merging import MergePlan
from epochlake.jobs.testing.expiring import NEVER, bound
from epochlake.jobs.testing.row_checkers import Access, RowHistory, violations
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.row_themes import BY_NAME
from epochlake.jobs.testing.scenario import Fault, Scenario
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compacting import Chosen
from epochlake.metastore.metadata.model import Table, TimeToLive
from epochlake.metastore.storage.storage import Storage

THEME = BY_NAME["expiring_rows"]._replace(tables=0.0)


def write(began: float, note: str, moment: int | None = None) -> Access:
    return Access("write", "p", began, began + 5, True, {1: note}, moment=moment)


def read(expired: float, *notes: str) -> Access:
    rows: dict[int, list[str | None]] = {1: [*notes]} if notes else {}
    first = {key: of_key[0] for key, of_key in rows.items()}
    return Access("read", "p", 100, 105, True, first, rows, bound=expired)


def wrong(*accesses: Access) -> bool:
    nothing: Counter[str] = Counter()
    scenario = Scenario("rows", 1, 5.0, faults=(Fault("kill", 1.0, "p"),))
    return bool(violations(RowHistory(scenario, [*accesses], 0, nothing, nothing, nothing, [])))


def test_a_row_is_shown_until_it_has_expired_and_an_older_one_does_not_come_back() -> None:
    older, newer = write(10, "a"), write(20, "b", moment=50)
    assert not wrong(older, newer, read(50, "b"))
    assert wrong(older, newer, read(51, "b"))
    assert not wrong(older, newer, read(51))
    assert wrong(older, newer, read(50))
    assert wrong(older, newer, read(51, "a"))
    assert wrong(older, newer, read(NEVER))


def lifetimes(*told: tuple[int, int | None]) -> list[TimeToLive]:
    return [TimeToLive(3, seconds, since * 1_000_000) for since, seconds in told]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(0, 5)], {0: -5, 3: -2, 9: 4}),
        ([(0, 5), (4, 100)], {3: -2, 4: -1, 9: -1, 106: 6}),  # longer: what has expired stays so
        ([(0, 5), (4, None)], {4: -1, 1000: -1}),
        ([(0, 5), (4, 1)], {3: -2, 4: 3, 5: 4}),
    ],
)
def test_a_bound_is_the_highest_that_there_was(told: list[tuple[int, int | None]], expected: dict[int, int]) -> None:
    assert {at: bound(lifetimes(*told), at * 1_000_000) / 1_000_000 for at in expected} == expected


def test_a_bound_never_goes_back() -> None:
    told = lifetimes((0, 5), (4, 100), (9, None), (12, 2), (20, 50))
    found = [bound(told, at * 1_000_000) for at in range(60)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(found))
    assert bound(told, -1) == NEVER


def test_a_history_of_rows_that_expire_ends_well() -> None:
    done = campaign.run(row_scenario(1, theme=THEME))
    assert done.violations == []
    assert any("alter ttl" in step.what for step in done.said)


def test_a_history_notices_that_what_has_expired_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_the_last(table: Table, at: int) -> dict[int, int]:
        last: Sequence[TimeToLive] = table.lifetimes[-1:]
        return {one.column_id: at - one.seconds * 1_000_000 for one in last if one.seconds is not None}

    monkeypatch.setattr(expiry, "expired_before", by_the_last)
    assert campaign.run(row_scenario(SHOWS, theme=THEME)).violations


SHOWS = 3
"""A seed in which a time to live ends, or gets longer, when rows have expired."""


def test_a_history_notices_that_rows_are_dropped_which_a_clock_behind_still_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = row_scenario(1, theme=BY_NAME["dropped_early"])
    assert campaign.run(scenario).violations == []
    monkeypatch.setattr(compaction, "SKEW_MICROS", 0)
    assert campaign.run(scenario).violations


def test_a_history_notices_that_expired_rows_are_dropped_where_not_all_of_their_range_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = row_scenario(1, theme=BY_NAME["half_expired"])
    assert campaign.run(scenario).violations == []
    planned = compaction.plan_merges

    def as_if_whole(storage: Storage, table: Table, chosen: Sequence[Chosen], *how: Any) -> MergePlan:
        return planned(storage, table, [msgspec.structs.replace(one, whole=True) for one in chosen], *how)

    monkeypatch.setattr(compaction, "plan_merges", as_if_whole)
    assert campaign.run(scenario).violations
