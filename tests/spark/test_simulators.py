"""The simulators as Spark jobs: they count what they ran, and name the seed of what failed."""

from __future__ import annotations

import pytest
from epochlake.jobs import simulate_placements as simulate_placements_job
from epochlake.jobs import simulate_quorums as simulate_quorums_job
from epochlake.jobs.simulate_placements import main, simulate
from epochlake.jobs.simulation_runs import Outcome, outcomes
from epochlake.placement.errors import InvariantViolated
from epochlake.placement.simulation.placements import SimulationSettings, simulate_placements
from pyspark.sql import SparkSession


def test_runs_in_parallel_make_the_steps_that_they_make_alone(spark: SparkSession) -> None:
    small = [SimulationSettings(3, 2, 0, nodes=8), SimulationSettings(1, 2, 3, nodes=12)]
    ended = list(simulate(spark, small, [1, 2]))
    assert [(outcome.seed, outcome.number) for outcome in ended] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for outcome in ended:
        assert outcome.failure is None
        assert outcome.steps == simulate_placements(small[outcome.number], outcome.seed).steps > 0


def test_a_run_that_breaks_an_invariant_is_an_outcome_among_the_others(spark: SparkSession) -> None:
    def run(seed: int, number: int) -> int:
        if seed == 2:
            raise InvariantViolated(f"seed {seed} is wrong")
        return 10 * seed + number

    ended = list(outcomes(spark, run, 1, [1, 2, 3]))
    assert ended == [Outcome(1, 0, 10, None), Outcome(2, 0, 0, "seed 2 is wrong"), Outcome(3, 0, 30, None)]


@pytest.mark.parametrize("job", [simulate_placements_job, simulate_quorums_job])
def test_a_failed_run_is_named_and_ends_with_exit_code_4(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: object
) -> None:
    failed = Outcome(7, 0, 0, "seed 7, step 3: reads differ. Run it again with seed 7")
    monkeypatch.setattr(job, "simulate", lambda *_: iter([failed]))
    assert job.main(["--runs", "1", "--seed", "7"]) == 4
    printed = capsys.readouterr().out
    assert "seed 7, step 3" in printed
    assert "1 failed" in printed


def test_the_job_runs_the_chosen_configurations(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "2", "--operations", "3", "--factor", "2", "--datacenters", "0", "--nodes", "8"]) == 0
    assert "2 runs of 1 configuration(s), seeds 1 to 2" in capsys.readouterr().out


def test_the_quorum_simulator_runs_its_seeds(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_quorums_job.main(["--runs", "3", "--seed", "5", "--steps", "20"]) == 0
    assert "3 runs of random rings, seeds 5 to 7: 60 steps" in capsys.readouterr().out


def test_a_configuration_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--factor", "4"])
    assert ended.value.code == 2
