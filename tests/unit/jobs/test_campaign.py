"""Scenarios: drawn from seeds, made shorter, kept, shown; and the campaign that runs them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import campaign
from epochlake.jobs.testing import coverage, log_drawing, merge_drawing, nemesis, row_drawing, row_themes
from epochlake.jobs.testing.nemesis import DATA
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings, decoded, encoded
from epochlake.jobs.testing.scheduler import Process, Step, WorldEnded
from epochlake.jobs.testing.shrinking import rule_of, shrunk
from epochlake.jobs.testing.timeline import WIDTH, timeline
from epochlake.jobs.testing.world import World

KEPT = Path(__file__).parents[2] / "data" / "histories"


def drawn(kind: str, seeds: int = 200) -> list[Scenario]:
    return [campaign.drawn(campaign.Task(kind, seed)) for seed in range(seeds)]


@pytest.mark.parametrize("kind", campaign.KINDS)
def test_a_seed_has_one_scenario_which_can_be_kept(kind: str) -> None:
    for scenario in drawn(kind, 50):
        assert scenario == campaign.drawn(campaign.Task(kind, scenario.seed))
        assert decoded(encoded(scenario)) == scenario
    with pytest.raises(msgspec.ValidationError):
        decoded(b'{"kind": "rows"}')


@pytest.mark.parametrize("kind", campaign.KINDS)
def test_everything_that_can_be_drawn_is_drawn(kind: str) -> None:
    scenarios = drawn(kind)
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    kinds |= {
        one.kind for scenario in scenarios for part in scenario.parts for thread in part.threads for one in thread
    }
    about = {"log": log_drawing.KINDS, "rows": row_drawing.KINDS, "merges": merge_drawing.KINDS}
    assert kinds >= set(about[kind])
    assert {scenario.settings.delta for scenario in scenarios} == {True, False}


@pytest.mark.parametrize("kind", campaign.KINDS)
def test_histories_of_one_theme_are_drawn_from_seeds_as_others_are(kind: str) -> None:
    for theme in campaign.theme_names(kind):
        tasks = [campaign.Task(kind, seed, theme=theme) for seed in range(20)]
        assert [campaign.drawn(task) for task in tasks] == [campaign.drawn(task) for task in tasks]
        assert len({encoded(campaign.drawn(task)) for task in tasks}) == len(tasks)


@pytest.mark.parametrize("kind", campaign.KINDS)
def test_a_campaign_draws_every_theme_and_leaves_other_seeds_what_they_were(kind: str) -> None:
    later = campaign.later_themes(kind)
    themes = [campaign.later_theme(kind, seed, campaign.LATER) for seed in range(2000)]
    assert {*themes} == {*later, ""}
    assert themes == [campaign.later_theme(kind, seed, campaign.LATER) for seed in range(2000)]
    assert not any(campaign.later_theme(kind, seed, 0.0) for seed in range(100))
    tasks = campaign.Campaign((kind,), 0, later=campaign.LATER)._tasks(100)
    assert [task.theme for task in tasks] == themes[:100]
    assert {*campaign.theme_names(kind)} >= {*later}


def test_what_themes_wait_for_are_moments_that_somebody_comes_to() -> None:
    lying = [one for theme in row_themes.BY_NAME.values() for one in (*theme.lying, *theme.lying_to_followers)]
    named = {moment for one in lying for moment in one.moments} | {*merge_drawing.MOMENTS}
    followed = [row_drawing.row_scenario(seed, theme=row_themes.BY_NAME["followed_writes"]) for seed in range(60)]
    named |= {fault.when for scenario in followed for fault in scenario.faults if fault.when}
    assert named - {"volume open"} <= {*nemesis.MOMENTS}


def test_data_is_destroyed_at_no_more_places_than_a_quorum_does_without() -> None:
    most: dict[int, int] = {}
    for scenario in drawn("rows", 400):
        places = len({fault.place for fault in scenario.faults if fault.kind in DATA})
        most[scenario.settings.replication] = max(places, most.get(scenario.settings.replication, 0))
    assert most == {1: 0, 2: 1, 3: 1, 5: 2}


def test_a_failing_scenario_is_made_as_short_as_it_fails() -> None:
    scenario = next(one for one in drawn("rows") if one.size > 60 and any(f.kind == "kill" for f in one.faults))

    def fails(one: Scenario) -> bool:
        kinds = [operation.kind for part in one.parts for thread in part.threads for operation in thread]
        return any(fault.kind == "kill" for fault in one.faults) and "write" in kinds

    shortest = shrunk(scenario, fails)
    assert [fault.kind for fault in shortest.faults] == ["kill"]
    assert shortest.size == 3, "one part, one write, one fault"
    assert shrunk(shortest, fails) == shortest
    assert shrunk(scenario, fails, most_tries=1).size >= shortest.size


def test_a_history_is_made_shorter_for_as_long_as_it_breaks_the_rule_that_it_had_broken_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Scenario] = []

    def run(one: Scenario, **_: object) -> campaign.Run:
        kept.append(one)
        kinds = {operation.kind for part in one.parts for thread in part.threads for operation in thread}
        of_faults = ["p1 shows the row (1, 'w3') 0 times at QUORUM at step 12"] if one.faults else []
        # Without its faults another rule is broken, which the first history had broken as well.
        others = ["p0-0-1 was told epoch 6, and is at None"] if "write" in kinds else []
        return campaign.Run(10, *({} for _ in range(3)), [*others, *of_faults], [])  # type: ignore[arg-type]

    scenario = next(one for one in drawn("rows") if one.size > 60 and one.faults)
    monkeypatch.setattr(campaign, "run", run)
    said = ("rest 2 shows the row (4, 'b1') 0 times at ONE at step 99", "p0-0-1 was told epoch 6, and is at None")
    shortest, done = campaign.shorten(campaign.Outcome("rows", scenario.seed, violations=said), 300)
    assert len(shortest.faults) == 1
    assert shortest.size < scenario.size
    assert done.violations == ["p1 shows the row (1, 'w3') 0 times at QUORUM at step 12"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("p0-0-1 was told epoch 6, and is at None", "p3-2-9 was told epoch 43, and is at 7", True),
        ("p0-0-1 was told epoch 6, and is at None", "p0-0-1 was told Rejected, and is at epoch 6", False),
        ("p0-0-1 was told Rejected, and is at epoch 6", "p0-0-1 was told CommitTimeout, and is at epoch 6", False),
        ("pipeline1 is shown key 2 twice", "rest 1 is shown key 11 twice", True),
        ("at rest: KeyError('c-dd88d225-…')", 'at rest: KeyError("it\'s {gone")', True),
        ("at rest: KeyError('c-dd88d225-…')", "at rest: LogWentBack('the log ends at epoch 1, but (", False),
        (
            "the row (2, 'w35'), acknowledged at ALL, is missing at 1 of the 3 replicas [2, 1, 3] that are read",
            "the row (0, 'it''s w4'), acknowledged at QUORUM, is missing at 2 of the 2 replicas [2, 1] that are read",
            True,
        ),
        ("the world ended by StepsUsedUp: 120001 steps", "the world ended by StepsUsedUp: 25001 steps", True),
    ],
)
def test_two_violations_are_of_one_rule_when_only_who_what_and_when_differ(one: str, other: str, same: bool) -> None:
    assert (rule_of(one) == rule_of(other)) is same


def test_what_was_met_least_is_drawn_more_often() -> None:
    met = {coverage.pair("kill", "write"): 50, coverage.pair("read", "write"): 50, coverage.pair("cut", "read"): 1}
    weights = coverage.weights(met, ["kill", "cut", "write", "read"])
    assert weights["cut"] > weights["kill"] >= weights["write"]
    assert coverage.pair("a", "b") == coverage.pair("b", "a")
    assert coverage.unmet(met, ["kill", "cut"], ["write"]) == [coverage.pair("cut", "write")]
    often, seldom = (
        [
            fault.kind
            for seed in range(60)
            for fault in row_drawing.row_scenario(seed, {"kill": weight}, theme=row_themes.ANYTHING).faults
            if not fault.when  # followers have theirs, which nothing steers
        ]
        for weight in (20.0, 0.05)
    )
    assert often.count("kill") > 5 * seldom.count("kill")


def test_a_timeline_has_what_actors_say_in_80_columns() -> None:
    part = Part("pipeline0", "pipeline", ((Operation("write", 0.0, "w1", (1, 2), "QUORUM"),),))
    scenario = Scenario("rows", 7, 1.0, Settings(delta=True), (part,), (Fault("kill", 0.5, "pipeline0"),))
    steps = [
        Step(1, 0.25, "pipeline0/thread 0", str(part.threads[0][0]), said=True),
        Step(2, 0.3, "pipeline0/thread 0", "read /disks/n1/x"),
        Step(3, 0.5, "world/main", "kill " + "very " * 40 + "long", said=True),
    ]
    lines = list(timeline(scenario, steps))
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[1].split() == ["0.250", "pipeline0.0", "write", "w1", "QUORUM", "keys", "[1,", "2]"]
    assert not any("/disks" in line for line in lines)
    assert any("/disks" in line for line in timeline(scenario, steps, accesses=True))


# --- the job --------------------------------------------------------------------------------------------------------


class Broken(campaign.Campaign):
    """One history of each kind, of which that of rows has failed."""

    def run(self, histories: int | None, seconds: float | None = None, least: int = 0) -> Iterator[campaign.Outcome]:
        for kind in self.kinds:
            wrong = ("something is wrong",) if kind == "rows" else ()
            outcome = campaign.Outcome(kind, self.first, 10, 0.5, True, {"kill": 1}, {"told": 2}, {}, wrong)
            self._add(outcome)
            yield outcome


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Later tests of this process look at what is logged."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    yield
    assert logging.root.manager.disable == logging.NOTSET


def test_a_history_that_failed_is_made_shorter_shown_and_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = Scenario("rows", 7, 1.0, parts=(Part("p", "pipeline"),))
    first = campaign.drawn(campaign.Task("rows", 7))
    said = [Step(1, 0.5, "p/main", "write w1", said=True)]
    run = campaign.Run(10, *({} for _ in range(3)), ["something is wrong"], said)  # type: ignore[arg-type]
    monkeypatch.setattr(campaign, "Campaign", Broken)
    monkeypatch.setattr(campaign, "shorten", lambda *_: (scenario, run))
    monkeypatch.chdir(tmp_path)
    assert campaign.main(["--first", "7", "--histories", "1"]) == campaign.FAILED
    told = capsys.readouterr().out
    assert "rows history 7: something is wrong" in told
    assert f"again: make campaign ARGS='--replay {campaign.FAILURES / 'rows-7.json'}'" in told
    assert "1 log histories (1 on Delta tables), 10 steps, 20 a second and core, 0 failed" in told
    assert "p" in told
    assert "VIOLATION: something is wrong" in told
    assert decoded((tmp_path / campaign.FAILURES / "rows-7.json").read_bytes()) == first
    kept = tmp_path / campaign.FAILURES / "rows-7-shorter.json"
    assert decoded(kept.read_bytes()) == scenario
    assert campaign.main(["--keep", str(kept), "--name", "a-defect"]) == 0
    assert decoded((tmp_path / campaign.KEPT / "a-defect.json").read_bytes()) == scenario
    other = tmp_path / "other.json"
    other.write_bytes(encoded(msgspec.structs.replace(scenario, seed=8)))
    assert campaign.main(["--keep", str(kept), "--name", "a-defect"]) == 0
    assert campaign.main(["--keep", str(other), "--name", "a-defect"]) == 1
    assert decoded((tmp_path / campaign.KEPT / "a-defect.json").read_bytes()) == scenario
    assert campaign.main(["--only", "log", "--histories", "1"]) == 0


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    results = tmp_path / "results"
    first = campaign.Campaign(("log",), 1, results, processes=1)
    assert len(list(first.run(3))) == 3
    assert all(outcome.violations == () for outcome in first.ended)
    second = campaign.Campaign(("log",), 1, results, processes=1)
    assert sorted(outcome.seed for outcome in second.ended) == [1, 2, 3]
    assert [outcome.seed for outcome in second.run(4)] == [4]
    assert len(results.read_bytes().splitlines()) == 4


def test_a_torn_results_file_is_gone_on_with_and_what_failed_in_it_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    failed = campaign.Outcome("log", 1, 10, 0.5, violations=("something was wrong",))
    line = msgspec.json.encode(failed) + b"\n"
    results.write_bytes(line + line[: len(line) // 2])
    arguments = ["--only", "log", "--first", "1", "--histories", "1", "--results", str(results), "--shorten", "0"]
    assert campaign.main(arguments) == campaign.FAILED
    assert "1 failed" in capsys.readouterr().out
    assert results.read_bytes() == line


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), campaign.INTERRUPTED), (campaign.WorkerDied("it has died"), 1)]
)
def test_a_campaign_that_ends_early_says_so(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: campaign.Campaign, *_: object) -> Iterator[campaign.Outcome]:
        raise error

    monkeypatch.setattr(campaign.Campaign, "run", run)
    assert campaign.main(["--only", "log", "--histories", "1"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bad_input_is_one_clear_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for arguments in (
        ["--histories", "0"],
        ["--only", "nothing"],
        ["--replay", str(tmp_path / "not-there")],
        ["--replay", str(tmp_path / "x.json")],
        ["--keep", str(tmp_path / "x.json")],
        ["--only", "merges", "--theme", "narrowing"],
        ["--fresh", "--seed", "5"],
        ["--shorten", "-5"],
        ["--name", "without-a-scenario"],
        ["--later", "1.5"],
        ["--least", "-1"],
    ):
        with pytest.raises(SystemExit) as ended:
            campaign.main(arguments)
        assert ended.value.code == 2
        assert "campaign: error: " in capsys.readouterr().err


def test_histories_that_failed_once_hold() -> None:
    for path in sorted(KEPT.glob("*.json")):
        assert campaign.run(decoded(path.read_bytes())).violations == [], path.name


def test_a_history_that_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(campaign, "LONGEST_SECONDS", 0.5)
    monkeypatch.setattr("epochlake.jobs.testing.log_histories._commit", spin)
    scenario = Scenario("log", 1, 1.0, parts=(Part("p", "commits", ((Operation("commit", name="x"),),)),))
    [violation] = campaign.run(scenario).violations
    assert "too much time" in violation


def test_a_history_that_has_not_ended_when_the_time_is_over_is_cut_off_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spin(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr("epochlake.jobs.testing.log_histories._commit", spin)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    arguments = ["--only", "log", "--theme", "in_line", "--minutes", "0.02", "--processes", "0", "--shorten", "5"]
    assert campaign.main(arguments) == campaign.NOTHING_SHOWN
    said, error = capsys.readouterr()
    assert "log history 1 had not ended after" in said
    assert "0 log histories" in said
    assert "VIOLATION" not in said
    assert "nothing is shown" in error


@pytest.mark.parametrize("processes", [0, 1])
def test_a_history_that_has_to_end_is_waited_for_though_the_time_is_over(processes: int) -> None:
    one = campaign.Campaign(("log",), 1, processes=processes, theme="in_line")
    outcomes = list(one.run(20, -1.0, 1))
    assert [outcome.seed for outcome in outcomes] == [1]
    assert not one.cut_off
    none = campaign.Campaign(("log",), 1, processes=processes, theme="in_line")
    assert list(none.run(20, -1.0)) == []


def test_a_campaign_that_had_nothing_left_to_run_is_done_in_no_time(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.write_bytes(msgspec.json.encode(campaign.Outcome("log", 1, 10, 0.5)) + b"\n")
    arguments = ["--only", "log", "--histories", "1", "--results", str(results), "--processes", "0"]
    assert campaign.main([*arguments, "--hours", "100"]) == 0


def test_what_the_last_one_of_a_history_was_at_when_it_was_cut_off_is_no_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At rest nobody else is waited for: the end of the world must not be taken for an outcome of who looks at it."""
    looked: list[World] = []
    reached: list[World] = []
    log = World.log

    def ended(world: World, process: Process) -> object:
        if not looked:
            return log(world, process)
        reached.append(world)
        world.scheduler.is_late = True  # as the alarm does it
        raise WorldEnded

    monkeypatch.setattr("epochlake.jobs.testing.scheduler.LOOK_SECONDS", 3600.0)  # and the alarm itself does not
    monkeypatch.setattr("epochlake.jobs.testing.log_histories._findings", lambda world, _: looked.append(world) or [])
    monkeypatch.setattr(World, "log", ended)
    scenario = Scenario("log", 1, 1.0, parts=(Part("p", "commits", ((Operation("commit", name="x"),),)),))
    done = campaign.run(scenario, until=0.0)
    assert reached
    assert done.is_cut_off
    assert not done.violations


def test_shortening_ends_when_the_time_is_over() -> None:
    scenario = row_drawing.row_scenario(3)
    asked: list[Scenario] = []
    found = shrunk(scenario, lambda one: not asked.append(one), is_over=lambda: len(asked) >= 2)
    assert len(asked) == 2
    assert found.size < scenario.size
