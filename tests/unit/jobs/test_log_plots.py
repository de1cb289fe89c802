"""Histories of commits that are about one moment each: they end well, and notice the rule that is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from epochlake.jobs import campaign
from epochlake.jobs.testing import nemesis
from epochlake.jobs.testing.log_drawing import log_scenario
from epochlake.jobs.testing.log_plots import PLOTS
from epochlake.jobs.testing.log_themes import BY_NAME
from epochlake.metastore.committing import outcomes
from epochlake.metastore.committing.batches import Prepared
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.offers import Offers
from epochlake.metastore.committing.outcomes import Outcomes
from epochlake.metastore.committing.submissions import TRANSITIONS, Committed, Standing, Submission, SubmissionStep
from epochlake.metastore.log.delta import DeltaLog


@pytest.mark.parametrize("plot", PLOTS)
def test_a_history_of_one_moment_of_the_log_ends_well(plot: str) -> None:
    done = campaign.run(log_scenario(1, theme=BY_NAME[plot]))
    assert done.violations == []
    assert done.told["Committed"] >= 4


@pytest.mark.parametrize("plot", PLOTS)
def test_what_plots_of_the_log_wait_for_are_moments_that_somebody_comes_to(plot: str) -> None:
    faults = [fault for seed in range(20) for fault in log_scenario(seed, theme=BY_NAME[plot]).faults]
    places = ("", " of proposals")
    known = {moment.replace(asked, asked + place) for moment in nemesis.MOMENTS for asked in ASKED for place in places}
    assert {fault.when for fault in faults if fault.when} <= known


ASKED = ("create", "delete")


def looks_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prepared, "fails_an_earlier_try", lambda _: False)


def fences_nothing_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Submission, "may_be_landing", property(lambda one: one.taken))


def takes_a_silent_line_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = Offers.drop_earlier_tries
    monkeypatch.setattr(Offers, "drop_earlier_tries", lambda *of: drop(*of)._replace(are_in_line=False))


def forgets_an_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSITIONS[Standing.OFFERED], SubmissionStep.MOVE_LOG, Standing.OWN)


def tells_before_it_announces(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Outcomes.settle_committed

    def settled(told: Outcomes, submissions: Sequence[Submission]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(told, "_publish", lambda _: None)
            settle(told, submissions)

    monkeypatch.setattr(Outcomes, "settle_committed", settled)


def counts_what_was_written_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaLog, "_has_moved_on", lambda *_: False)


def remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(committer: Committer, *_: object) -> bool:
        committer._told_requests.clear()
        return False

    monkeypatch.setattr(Committer, "_remember", forget)


def tells_as_new_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def succeeded(submission: Submission, epoch: int) -> Committed:
        return Committed(epoch, submission.request_id)

    monkeypatch.setattr(outcomes, "succeeded", succeeded)


@pytest.mark.parametrize(
    ("theme", "seed", "breaks"),
    [
        ("left_in_line", 1, looks_for_nobody_else),
        ("silent_line", 1, takes_a_silent_line_for_an_empty_one),
        ("taken_from_the_dead", 1, fences_nothing_of_before),
        ("cut_off_with_two", 2, forgets_an_offer),
        ("appended_and_died", 1, tells_before_it_announces),
        ("slept_past_clean_up", 1, counts_what_was_written_too_late),
        ("unsure_and_asked_again", 1, tells_as_new_what_it_has_found),
        ("again_unread", 2, remembers_nothing),
    ],
)
def test_a_history_of_one_moment_of_the_log_notices_the_rule_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, theme: str, seed: int, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breaks(monkeypatch)
    monkeypatch.setenv(campaign.STEPS, "25000")
    assert campaign.run(log_scenario(seed, theme=BY_NAME[theme])).violations
