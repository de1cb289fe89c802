"""The placement simulator as a Spark job: it counts what it ran, and names the seed of what failed."""

from __future__ import annotations

import pytest
from epochlake.jobs import simulate_placements as simulate_placements_job
from epochlake.jobs.simulate_placements import Outcome, main, simulate
from epochlake.placement.ring.simulation.placements import CONFIGURATIONS, Configuration, simulate_placements
from pyspark.sql import SparkSession


def test_runs_in_parallel_make_the_steps_that_they_make_alone(spark: SparkSession) -> None:
    small = [Configuration(3, 2, 0, nodes=8), Configuration(1, 2, 3, nodes=12)]
    outcomes = list(simulate(spark, small, [1, 2]))
    assert len(outcomes) == 4
    for outcome in outcomes:
        assert outcome.failure is None
        assert outcome.steps == simulate_placements(outcome.configuration, outcome.seed).steps > 0


def test_a_failed_run_is_named_and_ends_with_exit_code_4(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Outcome(7, CONFIGURATIONS[0], 0, "seed 7, step 3: reads differ. Run it again with seed 7.")
    monkeypatch.setattr(simulate_placements_job, "simulate", lambda *_: iter([failed]))
    assert main(["--runs", "1", "--seed", "7"]) == 4
    printed = capsys.readouterr().out
    assert "seed 7, step 3" in printed
    assert "1 failed" in printed


def test_the_job_runs_the_chosen_configurations(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "2", "--operations", "3", "--factor", "2", "--datacenters", "0", "--nodes", "8"]) == 0
    assert "2 runs of 1 configuration(s), seeds 1 to 2" in capsys.readouterr().out


def test_a_configuration_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--factor", "4"])
    assert ended.value.code == 2
    assert "factor 2, 3, 5" in capsys.readouterr().err
    assert len(CONFIGURATIONS) == 18
