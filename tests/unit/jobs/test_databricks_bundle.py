"""The Asset Bundle for Databricks: what it names is there, and its tasks run with the parameters that it gives them."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from epochlake.jobs.wheel_tasks import JobFailed

from tests.support.command_line import CommandLine

REPOSITORY = Path(__file__).parents[3]
VARIABLE = re.compile(r"\$\{var\.(\w+)\}")


@pytest.fixture
def bundle() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load((REPOSITORY / "databricks.yml").read_text(encoding="utf-8"))
    return told


def tasks_of(bundle: dict[str, Any]) -> list[dict[str, Any]]:
    return [task for job in bundle["resources"]["jobs"].values() for task in job["tasks"]]


def test_what_the_bundle_names_is_there(bundle: dict[str, Any]) -> None:
    text = (REPOSITORY / "databricks.yml").read_text(encoding="utf-8")
    assert {*VARIABLE.findall(text)} == {*bundle["variables"]}
    for job in bundle["resources"]["jobs"].values():
        clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
        keys = [task["task_key"] for task in job["tasks"]]
        for task in job["tasks"]:
            assert task["job_cluster_key"] in clusters
            assert all(before["task_key"] in keys for before in task.get("depends_on", ()))
            assert task["libraries"] == [{"whl": "dist/*.whl"}]
            if "notebook_task" in task:
                notebook = REPOSITORY / task["notebook_task"]["notebook_path"]
                assert notebook.read_text(encoding="utf-8").startswith("# Databricks notebook source\n")
                given = task["notebook_task"]["base_parameters"]
                assert {*re.findall(r'parameter\("(\w+)"', notebook.read_text(encoding="utf-8"))} == {*given}
        cluster = job["job_clusters"][0]["new_cluster"]
        assert all(name.startswith("EPOCHLAKE__") for name in cluster["spark_env_vars"])


def test_the_page_sets_each_variable_that_has_no_default_before_any_command(bundle: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs/databricks.md").read_text(encoding="utf-8")
    needed = {name for name, told in bundle["variables"].items() if "default" not in told}
    before = page.partition("\n    databricks bundle")[0]
    assert {*re.findall(r"^    export BUNDLE_VAR_(\w+)=", before, re.MULTILINE)} == needed


def test_production_says_where_its_one_copy_is_and_as_whom_it_runs(bundle: dict[str, Any]) -> None:
    """Without both the bundle is refused in this mode, but where a service principal deploys it."""
    target = bundle["targets"]["prod"]
    assert target["mode"] == "production"
    assert target["run_as"] == {"service_principal_name": "${var.principal}"}
    assert "${var.principal}" in target["workspace"]["root_path"]
    assert "${bundle.target}" in target["workspace"]["root_path"]


def test_the_wheel_of_the_bundle_asks_for_no_spark() -> None:
    needed = importlib.metadata.requires("epochlake") or []
    assert not [one for one in needed if "extra ==" not in one and re.match("pyspark|delta-spark", one)]
    assert [one for one in needed if one.startswith("pyspark==4.2.0") and 'extra == "spark"' in one]


def test_each_task_runs_with_its_parameters(
    bundle: dict[str, Any], grown: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"root": str(grown.root), "table": "air.no_such_table"}
    entry_points = {point.name: point for point in importlib.metadata.entry_points(group="epochlake.tasks")}
    for task in tasks_of(bundle):
        if "python_wheel_task" not in task:
            continue
        wheel_task = task["python_wheel_task"]
        assert wheel_task["package_name"] == "epochlake"
        parameters = [VARIABLE.sub(lambda found: values[found[1]], word) for word in wheel_task["parameters"]]
        monkeypatch.setattr(sys, "argv", [wheel_task["entry_point"], *parameters])
        run = entry_points[wheel_task["entry_point"]].load()
        code = 0
        try:
            run()
        except JobFailed as error:
            code = error.exit_code
        told = capsys.readouterr().err
        # Vacuum has no ZooKeeper here; what is known is that options are taken, and that the table is looked for.
        assert code in (0, 75) or "no_such_table" in told, f"{parameters}: {code} {told}"
