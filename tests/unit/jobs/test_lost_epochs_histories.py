"""Histories of rows beside a log that goes back: what is asked of them, and when."""

from __future__ import annotations

from collections import Counter

import pytest
from epochlake.jobs import campaign
from epochlake.jobs.coordinator.effects import replicas
from epochlake.jobs.replicas.commits import Once
from epochlake.jobs.testing import nemesis
from epochlake.jobs.testing.disk import LOG, ROOT
from epochlake.jobs.testing.lost_epochs import Loss, goes_back
from epochlake.jobs.testing.row_checkers import Access, RowHistory, violations
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.row_scenarios import damaged_places, harmed, lossy_levels
from epochlake.jobs.testing.row_themes import BY_NAME
from epochlake.jobs.testing.scenario import Fault, Scenario, Settings

LOSS = Loss(100, 200, 300)


def history(*accesses: Access, append_only: bool = False) -> RowHistory:
    nothing: Counter[str] = Counter()
    scenario = Scenario("rows", 1, 5.0, Settings(), (), (Fault("old storage", 1.0, place=LOG),))
    return RowHistory(scenario, [*accesses], 0, nothing, nothing, nothing, [], append_only=append_only, losses=[LOSS])


def write(began: float) -> Access:
    return Access("write", "p", began, began + 5, True, {1: "a"})


def read(began: float, *notes: str) -> Access:
    rows: dict[int, list[str | None]] = {1: [*notes]} if notes else {}
    return Access("read", "p", began, began + 5, True, {key: of_key[0] for key, of_key in rows.items()}, rows)


@pytest.mark.parametrize("append_only", [False, True])
@pytest.mark.parametrize(
    ("written", "is_read", "may_lack"),
    [
        (50, 80, False),  # nothing is lost yet
        (50, 98, True),  # the log goes back while it is read
        (150, 170, True),  # somebody has come to the log that went back, and it is not accepted
        (50, 250, True),
        (210, 250, False),  # whoever writes after that is believed
        (50, 301, False),  # it was repaired
        (150, 301, False),
    ],
)
def test_what_lost_epochs_have_moved_is_shown_again_after_a_repair(
    written: float, is_read: float, may_lack: bool, append_only: bool
) -> None:
    assert violations(history(write(written), read(is_read, "a"), append_only=append_only)) == []
    assert (violations(history(write(written), read(is_read), append_only=append_only)) == []) == may_lack


def test_a_loss_excuses_nothing_that_nobody_has_written() -> None:
    assert violations(history(write(50), read(250, "b")))
    assert violations(history(write(50), read(250, "a", "a")))


@pytest.mark.parametrize("place", [LOG, ROOT])
def test_a_log_that_goes_back_destroys_nothing_of_replicas(place: str) -> None:
    scenario = Scenario("rows", 1, 5.0, Settings(), (), (Fault("old storage", 1.0, place=place),))
    assert goes_back(scenario)
    assert (harmed(scenario), damaged_places(scenario), lossy_levels(scenario)) == (set(), set(), set())


def test_histories_of_lost_epochs_wait_for_moments_that_somebody_comes_to() -> None:
    scenarios = [row_scenario(seed, theme=BY_NAME["epochs_lost"]) for seed in range(40)]
    assert {fault.when for one in scenarios for fault in one.faults if fault.when} <= {*nemesis.MOMENTS}
    assert all(map(goes_back, scenarios))


def test_a_history_of_lost_epochs_ends_well() -> None:
    done = campaign.run(row_scenario(1, theme=BY_NAME["epochs_lost"]))
    assert done.violations == []
    assert done.harm["old storage"] == 1
    assert any("incarnation 2 begins" in step.what for step in done.said)


def test_a_root_that_is_lost_beside_rows_and_restored_loses_nothing() -> None:
    scenario = row_scenario(1, theme=BY_NAME["root_lost_beside_rows"]._replace(tables=0.0))
    assert not goes_back(scenario)
    done = campaign.run(scenario)
    assert done.violations == []
    assert any("recover: RootRestored" in step.what for step in done.said)


def test_a_history_notices_that_what_was_prepared_in_lost_epochs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "Once", lambda name, incarnation, ranges: Once(name, 1, ranges))
    assert campaign.run(row_scenario(SHOWS, theme=BY_NAME["epochs_lost"])).violations


SHOWS = 2
"""A seed in which the moment comes."""
