"""The provider without a running Airflow: what parsing costs, connections, names, ends of tasks, sensors, triggers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import epochlake
import epochlake.airflow
import pytest
from airflow.exceptions import TaskDeferred
from epochlake.airflow import (
    EpochlakeBalanceOperator,
    EpochlakeBatchSensor,
    EpochlakeClusterOperator,
    EpochlakeCommandOperator,
    EpochlakeCompactOperator,
    EpochlakeCoordinatorOperator,
    EpochlakeEpochSensor,
    EpochlakeFreshnessSensor,
    EpochlakeHook,
    EpochlakePlanBalanceOperator,
    EpochlakeRepairOperator,
    EpochlakeRequestSensor,
    EpochlakeSettledSensor,
    EpochlakeSubmitOperator,
    EpochlakeVerifyOperator,
    table_asset,
)
from epochlake.jobs.airflow_provider import triggers
from epochlake.jobs.airflow_provider.assets import normalised
from epochlake.jobs.airflow_provider.ending import AirflowException, AirflowFailException, AirflowSkipException
from epochlake.jobs.airflow_provider.provider_info import get_provider_info

from tests.airflow.lakes import EVENTS, FLIGHTS, connection, lake_below

PARSED = """
import sys, time
import airflow.sdk, airflow.providers.standard.operators.hitl, airflow.triggers.base
bare, begun = set(sys.modules), time.monotonic()
from epochlake.airflow import *
from epochlake.jobs.airflow_provider.examples import nightly_gated_load, weekly_rebalance
took = time.monotonic() - begun
print(took, *sorted(name.split(".")[0] for name in set(sys.modules) - bare))
"""
HEAVY = {"pyspark", "py4j", "kazoo", "deltalake", "arro3", "pyarrow", "pandas", "numpy", "typer"}


class Instance:
    """What operators look at of a task in a run."""

    dag_id, run_id, task_id, map_index, try_number = "load", "scheduled__2026-01-01", "write", -1, 1


class Outlets:
    """The events of outlets, as Airflow gives them."""

    def __init__(self) -> None:
        self._events: dict[str, SimpleNamespace] = {}

    def __getitem__(self, asset: Any) -> SimpleNamespace:
        return self._events.setdefault(asset.uri, SimpleNamespace(extra={}))


def context(**changes: Any) -> dict[str, Any]:
    instance = type("Changed", (Instance,), changes)()
    return {"ti": instance, "outlet_events": Outlets()}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> epochlake.Configuration:
    return lake_below(tmp_path_factory.mktemp("lake"))


@pytest.fixture(autouse=True)
def connected(lake: epochlake.Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLAKE_DEFAULT", connection(lake))


@pytest.fixture
def cluster(lake: epochlake.Configuration) -> Iterator[epochlake.Cluster]:
    with epochlake.open_cluster(lake) as opened:
        yield opened


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "note": "here"} for number in numbers]


def count_of(cluster: epochlake.Cluster, table: str) -> int:
    return cluster.scan(table, columns=["id"], consistency="ALL").read_all().num_rows


def work(function: Callable[..., Any], **arguments: Any) -> EpochlakeClusterOperator:
    return EpochlakeClusterOperator(task_id="write", python_callable=function, **arguments)


# --- parsing --------------------------------------------------------------------------------------------------------


def test_parsing_dags_imports_neither_spark_nor_delta_nor_zookeeper() -> None:
    ended = subprocess.run([sys.executable, "-c", PARSED], capture_output=True, text=True, check=True)
    seconds, *loaded = ended.stdout.splitlines()[-1].split()
    assert not HEAVY & {*loaded}
    assert float(seconds) < 5


def test_airflow_finds_the_provider_its_connection_and_its_hook() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert get_provider_info().items() <= manager.providers["epochlake"].data.items()
    hook = manager.hooks["epochlake"]
    assert hook is not None
    assert hook.hook_class_name == f"{EpochlakeHook.__module__}.EpochlakeHook"


def test_each_public_name_is_there_and_says_what_it_is_for() -> None:
    for name in epochlake.airflow.__all__:
        assert getattr(epochlake.airflow, name).__doc__


# --- connections ----------------------------------------------------------------------------------------------------


def test_a_connection_says_what_a_configuration_file_may_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = tmp_path / "lake.toml"
    conf.write_text('root = "elsewhere"\n[pipeline]\nattempts = 7\n')
    said = {
        "conf": str(conf),
        "zookeeper": "zk:2181",
        "settings": {
            "pipeline": {"consistency": "local-quorum"},
            "storage": {"deadline_seconds": 9, "options": {"aws_region": "eu"}},
        },
    }
    monkeypatch.setenv(
        "AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "epochlake", "host": "/lake/root", "extra": json.dumps(said)})
    )
    found = EpochlakeHook("other").configuration()
    assert (found.root, found.zookeeper.connect, found.pipeline.attempts) == ("/lake/root", "zk:2181", 7)
    assert found.pipeline.consistency is epochlake.ConsistencyLevel.LOCAL_QUORUM
    assert found.storage.deadline_seconds == 9
    assert found.storage.options == {"aws_region": "eu"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"conn_type": "http", "host": "/lake"}, "the connection 'other' has the type 'http'"),
        ({"conn_type": "epochlake", "extra": '{"zoo": "zk"}'}, "the extra field 'zoo', which is none"),
        ({"conn_type": "epochlake", "extra": '{"settings": "[1]"}'}, "the settings of the connection cannot be"),
        ({"conn_type": "epochlake", "extra": '{"settings": {"pipelin": {"attempts": 1}}}'}, "names no section or key"),
    ],
)
def test_a_connection_that_cannot_be_meant_fails_the_task_for_good(
    fields: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(fields))
    with pytest.raises(AirflowFailException, match=reason.replace("[", r"\[")):
        work(lambda cluster: None, epochlake_conn_id="other").execute(context())
    assert EpochlakeHook("other").test_connection()[0] is False


def test_the_button_of_a_connection_says_how_the_cluster_is(
    lake: epochlake.Configuration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, said = EpochlakeHook().test_connection()
    assert found
    assert said.startswith("cluster 'lake' is at epoch ")
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps({"conn_type": "epochlake", "host": str(tmp_path / "none")}))
    assert EpochlakeHook("nowhere").test_connection()[0] is False


# --- names and ends -------------------------------------------------------------------------------------------------


def test_what_a_try_writes_and_asks_counts_once_and_is_another_thing_in_another_run(cluster: epochlake.Cluster) -> None:
    epochlake.create_table(
        cluster, "air.once", [("id", "bigint", False), ("note", "string", True)], ["id"], append_only=True
    )

    def twice(task: epochlake.Cluster) -> list[bool]:
        written = [
            task.write("air.once", rows(1, 2)),
            task.write("air.once", rows(3)),
            task.write("air.once", rows(3), batch="b"),
        ]
        asked = [epochlake.alter_node(task, "n1", tags=["here"], reason="a task asks")]
        return [one.already for one in (*written, *asked)]

    assert work(twice).execute(context()) == [False] * 4
    assert work(twice).execute(context(try_number=2)) == [True] * 4
    assert count_of(cluster, "air.once") == 4
    epoch = cluster.catch_up().epoch
    with pytest.raises(AirflowFailException, match="nothing-to-do"):
        work(twice).execute(context(run_id="manual__2026-01-02"))
    assert count_of(cluster, "air.once") == 8
    assert cluster.catch_up().epoch == epoch


def test_a_mapped_task_is_another_one_for_each_index_and_a_batch_may_be_named(cluster: epochlake.Cluster) -> None:
    before = count_of(cluster, EVENTS)
    for index in (0, 1, 0):
        work(lambda task: task.write(EVENTS, rows(1))).execute(context(map_index=index))
    assert count_of(cluster, EVENTS) == before + 2
    for run in ("a", "b"):
        work(lambda task: task.write(EVENTS, rows(1)), batch="2026-01-01").execute(context(run_id=run))
    assert count_of(cluster, EVENTS) == before + 3


def test_a_retry_that_brings_other_rows_is_rejected_and_not_tried_again(cluster: epochlake.Cluster) -> None:
    def write(*numbers: int) -> None:
        work(lambda task: task.write(EVENTS, rows(*numbers))).execute(context(run_id="clock"))

    write(1, 2)
    before = count_of(cluster, EVENTS)
    with pytest.raises(AirflowFailException, match="batch-used"):
        write(1, 3)
    assert count_of(cluster, EVENTS) == before


def test_errors_worth_a_retry_stay_as_they_are_and_others_fail_for_good() -> None:
    def raising(error: Exception) -> Callable[..., None]:
        def function(cluster: object) -> None:
            raise error

        return function

    for error in (epochlake.StorageUnavailable("away"), epochlake.NotInitialised("none"), OSError("full")):
        with pytest.raises(type(error)):
            work(raising(error)).execute(context())
    with pytest.raises(AirflowFailException, match=r"wrong\. Do it right"):
        work(raising(epochlake.InvalidRequest("wrong", hint="Do it right"))).execute(context())


def test_the_event_of_a_table_tells_epoch_rows_and_batches(cluster: epochlake.Cluster) -> None:
    asset, other = table_asset(EVENTS), table_asset(FLIGHTS)
    given = context(run_id="told")
    work(lambda task: task.write(EVENTS, rows(7, 8)), outlets=[asset, other]).execute(given)
    name = "load/told/write"
    epoch = cluster.catch_up().epoch
    assert given["outlet_events"][asset].extra == {"table": EVENTS, "epoch": epoch, "rows": 2, "batches": [name]}
    assert given["outlet_events"][other].extra == {"table": FLIGHTS, "epoch": epoch, "rows": 0, "batches": []}


def test_a_table_is_an_asset_by_its_keyspace_and_its_name() -> None:
    assert table_asset("air.flights", "lake").uri == "epochlake://lake/air/flights"
    with pytest.raises(ValueError, match="give its keyspace and its name"):
        table_asset("flights")
    with pytest.raises(ValueError, match="epochlake://CLUSTER/KEYSPACE/TABLE"):
        normalised(urlsplit("epochlake://lake/flights"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: work(None), "python_callable is None: give a function"),  # type: ignore[arg-type]
        (lambda: EpochlakeCoordinatorOperator(task_id="a", rounds=0), "rounds is 0: give at least 1"),
        (lambda: EpochlakeCompactOperator(task_id="a", table=EVENTS, seconds=-1), "seconds is -1: give more than 0"),
        (lambda: EpochlakeCommandOperator(task_id="a", arguments="node list"), r"a list of words, \['node', 'list'\]"),
        (lambda: EpochlakeSubmitOperator(task_id="a"), "give an application, or the name of one of Epochlake's jobs"),
    ],
)
def test_an_operator_that_cannot_be_meant_is_an_error_of_its_dag(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


# --- operators ------------------------------------------------------------------------------------------------------


def test_upkeep_gives_its_reports_and_unknown_tables_fail_for_good() -> None:
    assert EpochlakeCoordinatorOperator(task_id="a").execute(context())["idle"]
    assert EpochlakeCoordinatorOperator(task_id="a", rounds=1).execute(context())["rounds"] == 1
    assert EpochlakeRepairOperator(task_id="b", table=EVENTS, check_bytes=True).execute(context())["differing"] == 0
    assert EpochlakeCompactOperator(task_id="c", table=EVENTS, seconds=60).execute(context())["table"] == EVENTS
    for operator in (EpochlakeRepairOperator, EpochlakeCompactOperator):
        with pytest.raises(AirflowFailException, match="unknown-table"):
            operator(task_id="d", table="air.none").execute(context())


def test_a_command_gives_its_document_and_ends_as_its_exit_code_says() -> None:
    document = EpochlakeVerifyOperator(task_id="verify").execute(context())
    assert document["holds"]
    assert document["replicas"] >= 6
    command = EpochlakeCommandOperator(
        task_id="k", arguments=["keyspace", "create", "sea", "--replication", "dc1=3"], named=True
    )
    assert command.execute(context())["already"] is False
    assert command.execute(context(try_number=2))["already"] is True
    with pytest.raises(AirflowFailException, match=r"exit code 3: .*keyspace"):
        command.execute(context(run_id="other"))
    with pytest.raises(AirflowFailException, match="epochlake ended with exit code 2: No such command 'nonsense'"):
        EpochlakeCommandOperator(task_id="k", arguments=["nonsense"]).execute(context())


def test_a_submitted_job_gets_the_cluster_and_the_name_of_its_task(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import os, sys, epochlake\n"
        "print('epochlake: away\\nhint: wait', file=sys.stderr, flush=True)\n"
        "with epochlake.open_cluster() as cluster:\n"
        "    print(cluster.metadata.identity.name, os.environ['EPOCHLAKE_RUN'])\n"
        "sys.exit(int(sys.argv[1]))\n"
    )

    def submit(code: int) -> str:
        arguments = {"application": str(job), "application_args": [str(code)], "master": "local[1]"}
        return EpochlakeSubmitOperator(task_id="s", **arguments).execute(context())

    assert submit(0) == "lake load/scheduled__2026-01-01/write"
    with pytest.raises(AirflowException, match=r"exit code 75: away\. wait") as worth_it:
        submit(75)
    assert not isinstance(worth_it.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match="exit code 3"):
        submit(3)
    with pytest.raises(AirflowFailException, match="Epochlake has no job 'compactions'"):
        EpochlakeSubmitOperator(task_id="s", job="compactions").execute(context())


def test_a_program_ends_when_its_task_is_killed(tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    endless.write_text(f"#!{sys.executable}\nimport time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    endless.chmod(0o755)
    operator = EpochlakeSubmitOperator(task_id="s", application="none.py", spark_submit=str(endless), with_delta=False)
    killer = threading.Timer(2.0, operator.on_kill)
    killer.start()
    with pytest.raises(AirflowException, match="exit code -15"):
        operator.execute(context())


def test_a_plan_is_refused_while_balancing_is_not_paused_and_skipped_when_nothing_moves(
    cluster: epochlake.Cluster,
) -> None:
    with pytest.raises(AirflowSkipException, match="balanced as it is"):
        EpochlakePlanBalanceOperator(task_id="plan").execute(context())
    epochlake.resume_balancing(cluster)
    try:
        with pytest.raises(AirflowFailException, match="epochlake balance pause"):
            EpochlakePlanBalanceOperator(task_id="plan").execute(context())
    finally:
        epochlake.pause_balancing(cluster)


def test_what_was_approved_is_not_applied_to_a_cluster_that_has_moved_on(cluster: epochlake.Cluster) -> None:
    epoch = cluster.catch_up().epoch
    with pytest.raises(AirflowFailException, match="epoch-moved"):
        EpochlakeBalanceOperator(task_id="apply", epoch=epoch - 1).execute(context(run_id="stale"))
    assert cluster.catch_up().epoch == epoch
    operator = EpochlakeBalanceOperator(task_id="apply", epoch=str(epoch))
    done = operator.execute(context(run_id="apply"))
    assert operator.execute(context(run_id="apply", try_number=2)) == done
    assert not cluster.catch_up().switches.balancing


# --- sensors and triggers -------------------------------------------------------------------------------------------


def sensors(since: datetime) -> list[Any]:
    return [
        EpochlakeEpochSensor(task_id="s", epoch="2"),
        EpochlakeRequestSensor(task_id="s", request_id="n1"),
        EpochlakeSettledSensor(task_id="s"),
        EpochlakeFreshnessSensor(task_id="s", table=EVENTS, since=since.isoformat()),
        EpochlakeBatchSensor(task_id="s", table=EVENTS, batch="load/sensed/write", consistency="ALL"),
    ]


def test_sensors_see_what_is_so(cluster: epochlake.Cluster) -> None:
    begun = datetime.now(UTC)
    work(lambda task: task.write(EVENTS, rows(1))).execute(context(run_id="sensed"))
    for sensor in sensors(begun):
        assert sensor.execute(context()) == cluster.catch_up().epoch


def test_a_sensor_leaves_what_is_not_so_yet_to_a_trigger_which_sees_it_come(cluster: epochlake.Cluster) -> None:
    soon = EpochlakeEpochSensor(task_id="s", epoch=cluster.catch_up().epoch + 1, poke_interval=0.1, timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        soon.execute(context())
    assert deferred.value.timeout == timedelta(seconds=60)
    path, arguments = deferred.value.trigger.serialize()
    assert path == "epochlake.jobs.airflow_provider.triggers.EpochlakeTrigger"
    trigger = triggers.EpochlakeTrigger(**json.loads(json.dumps(arguments)))
    changing = threading.Timer(1.0, lambda: epochlake.create_keyspace(cluster, "sensed", {"dc1": 1}))
    changing.start()
    [event] = run(trigger)
    changing.join()
    assert soon.execute_complete(context(), event.payload) == cluster.catch_up().epoch


@pytest.mark.parametrize(
    ("sensor", "reason"),
    [
        (EpochlakeFreshnessSensor(task_id="s", table="air.none", since="2026-01-01T00:00:00+00:00"), "unknown-table"),
        (EpochlakeFreshnessSensor(task_id="s", table=EVENTS, since="2026-01-01T00:00:00"), "no time zone"),
        (EpochlakeFreshnessSensor(task_id="s", table=EVENTS, since="yesterday"), "'yesterday' is no time"),
        (EpochlakeBatchSensor(task_id="s", table=EVENTS, batch="b", consistency="MOST"), "MOST"),
        (EpochlakeEpochSensor(task_id="s", epoch="None"), "'None' is no epoch"),
        (EpochlakeBatchSensor(task_id="s", table=EVENTS, batch=""), "the batch to wait for is ''"),
        (EpochlakeRequestSensor(task_id="s", request_id=" "), "the request id to wait for is ' '"),
        (EpochlakeRequestSensor(task_id="s", request_id=None), "the request id to wait for is None"),
    ],
)
def test_a_sensor_that_can_never_see_it_fails_for_good(sensor: Any, reason: str) -> None:
    with pytest.raises(AirflowFailException, match=reason):
        sensor.execute(context())


def test_a_request_that_was_cancelled_fails_its_sensor_for_good(cluster: epochlake.Cluster, tmp_path: Path) -> None:
    from epochlake.jobs.administration import cancel_request

    epochlake.add_node(cluster, "n9", "dc1", "r1", [("d1", str(tmp_path / "n9"), 1 << 30)], request_id="n9")
    sensor = EpochlakeRequestSensor(task_id="s", request_id="n9", poke_interval=0.1)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())
    unsettled = EpochlakeSettledSensor(task_id="s", deferrable=False)
    assert not unsettled.poke(context()).is_done
    cancel_request(cluster, "n9")
    assert epochlake.Coordinator(cluster).run(until_idle=True).idle
    [event] = run(deferred.value.trigger)
    with pytest.raises(AirflowFailException, match="request n9 is cancelled"):
        sensor.execute_complete(context(), event.payload)


def test_a_trigger_waits_for_a_root_that_is_away_and_tells_of_one_that_never_was(
    lake: epochlake.Configuration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps({"conn_type": "epochlake", "host": str(tmp_path / "none")}))
    [event] = run(triggers.EpochlakeTrigger({"kind": "settled"}, "nowhere", 0.1))
    assert event.payload["exit_code"] == 1
    looks: list[int] = []

    def once_away(variables: dict[str, str]) -> epochlake.Configuration:
        looks.append(1)
        if len(looks) == 1:
            raise epochlake.StorageUnavailable("the root does not answer")
        return lake

    monkeypatch.setattr(triggers, "configuration_of", once_away)
    [event] = run(triggers.EpochlakeTrigger({"kind": "settled"}, "epochlake_default", 0.1))
    assert (event.payload["detail"], len(looks)) == ("nothing is in motion", 2)


NO_JVM = """
import asyncio, subprocess, sys
from epochlake.jobs.airflow_provider.triggers import EpochlakeTrigger

async def main():
    waiting = [EpochlakeTrigger(condition, None, 0.1) for condition in CONDITIONS]
    async def first(trigger):
        async for event in trigger.run():
            return event.payload["epoch"]
    return await asyncio.gather(*map(first, waiting))

def refused(*arguments, **options):
    raise AssertionError(f"a process is started: {arguments}")

subprocess.Popen = refused
epochs = asyncio.run(main())
from epochlake.jobs.airflow_provider.following import FOLLOWED
print(len(epochs), len(set(epochs)), FOLLOWED._open, "pyspark" in sys.modules, "kazoo.client" in sys.modules)
"""


def test_triggers_start_no_process_and_open_the_cluster_once(lake: epochlake.Configuration) -> None:
    """The ZooKeeper of this cluster is embedded: whoever asked for it would start a JVM."""
    work(lambda task: task.write(EVENTS, rows(1))).execute(context(run_id="sensed"))
    conditions = [sensor.condition() for sensor in sensors(datetime(2026, 1, 1, tzinfo=UTC))]
    from epochlake.jobs.airflow_provider.conditions import stored

    program = NO_JVM.replace("CONDITIONS", repr([json.loads(json.dumps(stored(one))) for one in conditions]))
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "EPOCHLAKE__ROOT": lake.root},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].split()[:3] == ["5", "1", "{}"]
    assert ended.stdout.splitlines()[-1].split()[3] == "False"


def run(trigger: triggers.EpochlakeTrigger) -> list[Any]:
    async def events() -> list[Any]:
        return [event async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(events(), 60))
