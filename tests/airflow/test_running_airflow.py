"""DAGs in a real Airflow: the examples from end to end, and tasks that are killed and tried again."""

from __future__ import annotations

import re
import shutil
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import epochlake
import pytest

from tests.airflow.lakes import EVENTS, FLIGHTS, add_node, connection, lake_below
from tests.airflow.standalone import Airflow

DAGS = Path(__file__).parent / "dags"
PAGE = Path(__file__).parents[2] / "docs" / "airflow.md"
SECONDS = 400.0
ASKS = {"awaiting_input", "deferred"}
"""The states of a task that waits for a person: that of Airflow 3.3, and that of those before it."""
PERSON_SECONDS = 5.0
"""So long a person takes at least to answer a question."""

pytestmark = pytest.mark.timeout(900)


class World(NamedTuple):
    directory: Path
    configuration: epochlake.Configuration
    airflow: Airflow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> Iterator[World]:
    """One Airflow and one cluster for all tests here: starting them takes half a minute."""
    directory = tmp_path_factory.mktemp("airflow")
    configuration = lake_below(directory / "lake")
    dags = directory / "dags"
    shutil.copytree(DAGS, dags)
    for example in examples.glob("[a-z]*.py"):
        # When they run is the test's to say; all else is as it is shipped.
        unscheduled = re.sub(r'schedule="@\w+"', "schedule=None", example.read_text(encoding="utf-8"))
        (dags / example.name).write_text(unscheduled, encoding="utf-8")
    (dags / "page.py").write_text(programs_of(PAGE), encoding="utf-8")
    (directory / "killed").mkdir()
    (directory / "home").mkdir()
    variables = {
        "AIRFLOW_CONN_EPOCHLAKE_DEFAULT": connection(configuration),
        "KILLED_BELOW": str(directory / "killed"),
    }
    with Airflow(directory / "home", dags, variables) as airflow:
        airflow.run(*command_of(PAGE, "airflow connections add", configuration.root))
        for dag in ("flights_follow", "weekly_review"):
            airflow.unpause(dag)
        yield World(directory, configuration, airflow)


def programs_of(page: Path) -> str:
    """The Python of a page, which is one file of DAGs; commands are left out."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(line for line in lines if not line.startswith(("    pip ", "    airflow "))))


def command_of(page: Path, beginning: str, root: str) -> list[str]:
    """The words of a command on a page after `airflow`, for the cluster at `root`."""
    [line] = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(f"    {beginning} ")]
    assert "/data/lake" in line
    return line.replace("/data/lake", root).split()[1:]


def rows_of(world: World, table: str) -> int:
    with epochlake.open_cluster(world.configuration) as cluster:
        return cluster.scan(table, columns=["id"], consistency="ALL").read_all().num_rows


def test_a_task_that_is_killed_in_the_middle_and_tried_again_by_the_scheduler_lands_once(world: World) -> None:
    run = world.airflow.trigger("tried_again")
    assert world.airflow.ended("tried_again", run, SECONDS) == "success"
    tried = world.airflow.tasks("tried_again", run)
    assert {task: state for task, (state, _) in tried.items()} == dict.fromkeys(
        ("with_spark", "without_spark"), "success"
    )
    # On a busy machine Airflow may take a try that goes on for one that has failed: that one more lands once as well.
    assert all(tries >= 2 for _, tries in tried.values())
    assert rows_of(world, EVENTS) == 6_000
    for task in ("with_spark", "without_spark"):
        assert "SIGKILL" in world.airflow.log("tried_again", run, task, 1)
    with epochlake.open_cluster(world.configuration) as cluster:
        epoch = cluster.metadata.epoch
    told = [event["extra"] for event in world.airflow.asset_events("epochlake://epochlake/air/events")]
    assert sorted(told, key=lambda one: -one["rows"]) == [
        {"table": EVENTS, "epoch": epoch, "rows": rows, "batches": [f"tried_again/{run}/{task}"]}
        for task, rows in (("with_spark", 5_000), ("without_spark", 1_000))
    ]


def test_a_submitted_job_that_goes_on_beside_its_second_try_lands_once(world: World) -> None:
    """The worker is killed, and nobody tells what it has started."""
    before, flags = rows_of(world, EVENTS), world.directory / "killed"
    run = world.airflow.trigger("left_behind")
    assert world.airflow.ended("left_behind", run, SECONDS) == "success"
    assert world.airflow.tasks("left_behind", run) == {"submitted": ("success", 2)}
    assert "SIGKILL" in world.airflow.log("left_behind", run, "submitted", 1)
    assert (flags / "second-has-written").exists()
    deadline = time.monotonic() + SECONDS
    while not (flags / "first-has-written").exists():
        assert time.monotonic() < deadline, "the first try has not gone on"
        time.sleep(0.5)
    assert rows_of(world, EVENTS) == before + 3_000


def test_the_nightly_example_loads_a_day_and_compacts(world: World) -> None:
    run = world.airflow.trigger("nightly_gated_load")
    assert world.airflow.ended("nightly_gated_load", run, SECONDS) == "success"
    assert {state for state, _ in world.airflow.tasks("nightly_gated_load", run).values()} == {"success"}
    assert rows_of(world, FLIGHTS) == world.airflow.value("nightly_gated_load", run, "check") == 1_000
    [event] = world.airflow.asset_events("epochlake://epochlake/air/flights")
    assert event["extra"]["batches"] == [f"nightly_gated_load/{run}/load"]


def test_the_weekly_example_moves_what_was_approved_and_nothing_else(world: World) -> None:
    airflow = world.airflow
    with epochlake.open_cluster(world.configuration) as cluster:
        # Whatever ran before: of empty tablets a wave may be left out that is in the plan of all of them.
        cluster.write(
            FLIGHTS, [{"id": 1 << 40 | number, "note": "so that no tablet is empty"} for number in range(999)]
        )
        add_node(cluster, world.directory / "lake", 4)
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        before = cluster.metadata
    unanswered = airflow.trigger("unanswered")
    assert airflow.ended("unanswered", unanswered, SECONDS) == "failed"
    states = {task.rpartition(".")[2]: state for task, (state, _) in airflow.tasks("unanswered", unanswered).items()}
    assert states == {"plan": "success", "approve": "failed", "apply": "upstream_failed", "verify": "upstream_failed"}
    rejected = answered(airflow, "Reject")
    states = airflow.tasks("weekly_rebalance", rejected)
    assert [states[f"rebalance.{task}"][0] for task in ("approve", "apply", "verify")] == ["success", *["skipped"] * 2]
    with epochlake.open_cluster(world.configuration) as cluster:
        assert cluster.metadata.epoch == before.epoch
    approved = answered(airflow, "Approve")
    assert {state for state, _ in airflow.tasks("weekly_rebalance", approved).values()} == {"success"}
    plan = airflow.value("weekly_rebalance", approved, "rebalance.plan")
    assert plan["epoch"] == before.epoch
    assert "n4/d1" in plan["text"]
    with epochlake.open_cluster(world.configuration) as cluster:
        after = cluster.metadata
        volumes = {volume.volume_id for volume in after.node("n4").volumes}
        assert len(after.replicas_in_use(volumes)) == plan["moves"] > 0
        assert not before.replicas_in_use(volumes)
        assert not after.switches.balancing
        assert not after.tablets.transitions


def answered(airflow: Airflow, option: str) -> str:
    """A run of the weekly example, to whose question a person gave this answer, and which has ended well."""
    run = airflow.trigger("weekly_rebalance")
    airflow.wait_for("weekly_rebalance", run, "rebalance.approve", ASKS, SECONDS)
    # As a person: Airflow 3.3 takes a task that is answered before its executor has said that it waits for one that has
    # failed, asks again five minutes later, and has forgotten the answer.
    time.sleep(PERSON_SECONDS)
    deadline = time.monotonic() + SECONDS
    while True:
        # On a busy machine that was too soon: whoever is asked again says it again.
        if airflow.tasks("weekly_rebalance", run)["rebalance.approve"][0] in ASKS:
            airflow.answer("weekly_rebalance", run, "rebalance.approve", option)
        try:
            ended = airflow.ended("weekly_rebalance", run, PERSON_SECONDS)
        except AssertionError:  # not yet
            if time.monotonic() > deadline:
                raise
            continue
        assert ended == "success", airflow.tasks("weekly_rebalance", run)
        return run


def test_the_page_is_done_as_it_is_written(world: World) -> None:
    airflow = world.airflow
    with epochlake.open_cluster(world.configuration) as cluster:
        before = cluster.scan(FLIGHTS, columns=["note"]).read_all().num_rows
    loaded = airflow.trigger("flights_load")
    assert airflow.ended("flights_load", loaded, SECONDS) == "success"
    assert rows_of(world, FLIGHTS) == before + 1_001
    # The DAG that follows is begun by the events of the table.
    following = airflow.wait_for_run("flights_follow", SECONDS)
    assert airflow.ended("flights_follow", following, SECONDS) == "success"
    runs = {dag: airflow.trigger(dag) for dag in ("flights_upkeep", "flights_submitted")}
    for dag, run in runs.items():
        assert airflow.ended(dag, run, SECONDS) == "success", airflow.tasks(dag, run)
    with epochlake.open_cluster(world.configuration) as cluster:
        assert cluster.metadata.node("n1").tags == ("nightly",)
