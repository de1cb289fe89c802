"""Jobs as modules: the options and exit codes of their commands, and wheel tasks that raise instead of exiting."""

from __future__ import annotations

import argparse
import ast
import configparser
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from epochlake.jobs import compact_log, take_snapshot, vacuum_replicas, verify_log, wheel_tasks
from epochlake.jobs.simulation_runs import Outcome, report
from epochlake.jobs.wheel_tasks import JobFailed

from tests.support.command_line import CommandLine

REPOSITORY = Path(__file__).parents[3]
JOBS = ("run_coordinator", "verify_log", "compact_log", "take_snapshot", "vacuum_replicas", "repair", "compaction")


def test_jobs_take_the_options_of_their_commands_and_return_their_exit_codes(
    grown: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--root", str(grown.root)]
    assert take_snapshot.main([*root, "--reason", "before the upgrade"]) == 0
    assert verify_log.main(root) == 0
    assert compact_log.main(root) == 0
    assert vacuum_replicas.main(root) == 75
    assert verify_log.main(["--no-such-option"]) == 2
    assert grown.done("log", "list")[-1]["reason"] == "before the upgrade"


def test_a_wheel_task_returns_when_it_went_well_and_raises_when_not(
    grown: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["verify-log", "--root", str(grown.root)])
    wheel_tasks.verify_log()
    with pytest.raises(JobFailed, match="75") as failed:
        wheel_tasks.vacuum_replicas()
    assert failed.value.exit_code == 75


def test_every_wheel_task_that_is_declared_is_there() -> None:
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    declared = setup["options.entry_points"]["epochlake.tasks"].strip().splitlines()
    targets = [line.partition("=")[2].strip().split(":") for line in declared]
    assert {name for _, name in targets} == set(JOBS)
    assert all(callable(getattr(importlib.import_module(module), name)) for module, name in targets)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_the_process_only_when_it_is_run_as_a_program(job: str) -> None:
    tree = ast.parse((REPOSITORY / "jobs" / f"{job}.py").read_text(encoding="utf-8"))
    outside = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    assert not [node for part in outside for node in ast.walk(part) if "exit(" in ast.unparse(node)]


def test_a_command_that_needs_no_spark_starts_without_it_and_without_pandas(grown: CommandLine) -> None:
    looked = "from epochlake.jobs.cli.main import main; import sys; code = main(['--root', sys.argv[1], 'status']);"
    looked += "print([name for name in ('pyspark', 'pandas') if name in sys.modules], file=sys.stderr); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", looked, str(grown.root)], capture_output=True, text=True, env=os.environ, timeout=600
    )
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


@pytest.mark.parametrize(
    ("steps", "failure", "code"), [(7, None, 0), (0, None, 2), (0, "seed 1: two quorums do not meet", 4)]
)
def test_simulators_succeed_only_when_a_step_was_made(steps: int, failure: str | None, code: int) -> None:
    assert report([Outcome(1, 0, steps, failure)], "rings", argparse.Namespace(seed=1, runs=1)) == code
