"""What histories with log members look at from outside is noticed when a rule is broken, and else nothing is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from epochlake.jobs import campaign
from epochlake.jobs.testing.log import WorldLog
from epochlake.jobs.testing.log_drawing import log_scenario
from epochlake.jobs.testing.log_themes import BY_NAME
from epochlake.jobs.testing.member_plots import PLOTS
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.metastore.log import generations
from epochlake.metastore.log.generations import Generation
from epochlake.metastore.log.log_member import LogMember
from epochlake.metastore.log.majority_log import MajorityLog


def committed_beside_changes() -> Scenario:
    """A process that commits, an operator who changes the members meanwhile, and a root that is lost in the end."""
    commits = tuple(Operation("commit", 0.2, f"p{number}", number=7, seconds=60.0) for number in range(6))
    changes = (Operation("reconfigure", 0.5, keys=(2, 4, 6)), Operation("recover", 5.0))
    parts = (Part("p", "commits", (commits,)), Part("operator", "members", (changes,)))
    lost = Fault("lost storage", 1.5, place="/lake")
    return Scenario("log", 3, 8.0, Settings(members=(1, 2, 3)), parts, (lost,))


def lost_while_somebody_writes() -> Scenario:
    """The same, of which the root is lost as somebody writes to the first of its members, and stands still."""
    scenario = committed_beside_changes()
    commits = tuple(Operation("commit", 0.0, f"p{number}", number=7, seconds=60.0) for number in range(4))
    recovers = tuple(Operation("recover", 1.5) for _ in range(4))
    parts = (Part("p", "commits", (commits,)), Part("operator", "members", (recovers,)))
    faults = (
        Fault("lost storage", 0.0, place="/lake", when="member append", nth=4, by="p"),
        Fault("pause", 0.0, "p", seconds=9.0, when="member append", nth=4),
    )
    return Scenario("log", 3, 12.0, scenario.settings, parts, faults)


@pytest.mark.parametrize("scenario", [committed_beside_changes(), lost_while_somebody_writes()])
def test_the_loss_of_the_root_loses_nothing_in_a_history(scenario: Scenario) -> None:
    done = campaign.run(scenario)
    assert done.violations == []
    assert done.harm["lost storage"] == 1
    assert done.told["Committed"] >= 4
    assert any("RootRestored" in step.what for step in done.said)


def test_an_epoch_that_no_majority_has_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MajorityLog, "_ask_until_durable", lambda *_: None)
    found = campaign.run(committed_beside_changes()).violations
    assert any("of the log members" in one and "have it" in one for one in found), found


def test_members_of_a_restored_root_that_get_what_it_does_not_hold_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MajorityLog, "_require_at_root", lambda *_: None)
    monkeypatch.setenv(campaign.STEPS, "25000")
    assert campaign.run(lost_while_somebody_writes()).violations


@pytest.mark.parametrize("plot", PLOTS)
def test_a_history_of_one_moment_of_log_members_ends_well(plot: str) -> None:
    done = campaign.run(log_scenario(1, theme=BY_NAME[plot]._replace(tables=0.0)))
    assert done.violations == []
    assert done.told["Committed"] >= 4


def seals_without_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = LogMember.seal

    def seal(member: LogMember, generation: Generation) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(WorldLog, "fence", lambda _: None)
            sealed(member, generation)

    monkeypatch.setattr(LogMember, "seal", seal)


def gives_up_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = LogMember.clear_before

    def clear_before(member: LogMember, number: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LogMember, "_is_adopted", lambda *_: True)
            cleared(member, number)

    monkeypatch.setattr(LogMember, "clear_before", clear_before)


def restores_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "begin_restoring", lambda *_: None)


def follows_what_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MajorityLog, "_require_whole", lambda *_: None)


@pytest.mark.parametrize(
    ("plot", "seed", "breaks"),
    [
        ("under_way", 2, seals_without_fencing),
        ("half_adopted", 3, gives_up_too_early),
        ("half_restored", 1, restores_in_silence),
        ("behind", 1, follows_what_is_behind),
    ],
)
def test_a_history_of_one_moment_notices_the_rule_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, plot: str, seed: int, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breaks(monkeypatch)
    monkeypatch.setenv(campaign.STEPS, "25000")
    assert campaign.run(log_scenario(seed, theme=BY_NAME[plot]._replace(tables=0.0))).violations
