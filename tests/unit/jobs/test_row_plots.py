"""Histories of rows that are about one moment each: they end well, and notice the rule that is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from epochlake.jobs import campaign
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.replicas import cutting
from epochlake.jobs.testing import nemesis
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.row_plots import PLOTS
from epochlake.jobs.testing.row_themes import BY_NAME
from epochlake.jobs.testing.themes import Theme
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.placements import Since

OF_A_PLOT: dict[str, Theme] = {name: theme for name, theme in BY_NAME.items() if theme.plot}


def test_each_plot_of_rows_has_a_theme() -> None:
    assert {theme.plot for theme in OF_A_PLOT.values()} == {*PLOTS}


@pytest.mark.parametrize("theme", OF_A_PLOT)
def test_what_plots_of_rows_wait_for_are_moments_that_somebody_comes_to(theme: str) -> None:
    faults = [fault for seed in range(20) for fault in row_scenario(seed, theme=OF_A_PLOT[theme]).faults]
    assert {fault.when for fault in faults if fault.when} <= {*nemesis.MOMENTS}


def outlives_the_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    def since(_: CommitPhase, __: ClusterMetadata, since: Since) -> Since:
        return since

    monkeypatch.setattr(CommitPhase, "_since", since)
    # That the row is not there any more is looked at as well, where a write goes on for long.
    counts_what_is_gone(monkeypatch)


def cuts_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "require_intact", lambda *_: None)


def counts_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitPhase, "_forget_what_is_gone", lambda _: False)


@pytest.mark.parametrize(
    ("theme", "seed", "breaks"),
    [
        ("narrowed_meanwhile", 0, outlives_the_replication),
        ("lying_splits", 4, cuts_what_it_finds),
        ("whole_again_meanwhile", 4, counts_what_is_gone),
    ],
)
def test_a_history_of_one_moment_of_rows_ends_well_and_notices_the_rule_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, theme: str, seed: int, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    scenario = row_scenario(seed, theme=BY_NAME[theme])
    done = campaign.run(scenario)
    assert done.violations == []
    assert done.harm
    breaks(monkeypatch)
    assert campaign.run(scenario).violations
