"""What of the Airflow provider needs no Airflow: names, variables, conditions, shared clusters, programs."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import epochlake
import pytest
from epochlake.jobs.airflow_provider.conditions import (
    BatchLanded,
    ClusterSettled,
    Condition,
    EpochCommitted,
    RequestEnded,
    TableWritten,
    restored,
    stored,
)
from epochlake.jobs.airflow_provider.connecting import configuration_of, variables_of
from epochlake.jobs.airflow_provider.following import Followed
from epochlake.jobs.airflow_provider.naming import Names, TaskOfRun
from epochlake.jobs.airflow_provider.running import Program

KEPT: list[tuple[Condition, dict[str, object]]] = [
    (EpochCommitted(7), {"kind": "epoch", "epoch": 7}),
    (RequestEnded("n4"), {"kind": "request", "request_id": "n4"}),
    (ClusterSettled(), {"kind": "settled"}),
    (
        TableWritten("air.flights", datetime(2026, 1, 2, tzinfo=UTC), "ALL"),
        {"kind": "written", "table": "air.flights", "since": "2026-01-02T00:00:00Z", "consistency": "ALL"},
    ),
    (BatchLanded("air.flights", "day"), {"kind": "batch", "table": "air.flights", "batch": "day"}),
]
"""Conditions as Airflow's database has them: tasks that wait now are woken by later versions."""


def context(number: int, index: int = -1) -> dict[str, object]:
    return {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=index, try_number=number)}


def test_a_task_has_one_name_in_all_its_tries() -> None:
    assert {TaskOfRun.of(context(number)).name for number in (1, 2, 3)} == {"d/r/t"}
    assert TaskOfRun.of(context(1, index=0)).name == "d/r/t[0]"


def test_what_has_no_name_is_counted_by_what_it_is_about_and_given_names_are_below_the_base() -> None:
    names = Names("d/r/t")
    asked = [names.batch("write", "a", None), names.batch("write", "a", None), names.batch("write", "b", None)]
    assert asked == ["d/r/t", "d/r/t#2", "d/r/t"]
    assert names.batch("delete", "a", None) == "d/r/t"
    assert names.batch("write", "a", "2") == "d/r/t/2"
    first = Names("d/r/t")
    one, two, again = first.request("add node"), first.request("drop table"), first.request("add node")
    assert len({one, two, again}) == 3
    # In another order the same changes have the same ids.
    second = Names("d/r/t")
    assert (second.request("drop table"), second.request("add node")) == (two, one)


def test_a_connection_becomes_the_environment_of_a_process() -> None:
    extra = {"zookeeper": "zk:1", "settings": '{"storage": {"options": {"aws_Key": "a"}}, "log": {"poll_seconds": 2}}'}
    said = variables_of("/lake", extra)
    assert said == {
        "EPOCHLAKE__ROOT": "/lake",
        "EPOCHLAKE__ZOOKEEPER__CONNECT": "zk:1",
        "EPOCHLAKE__STORAGE__OPTIONS__aws_Key": "a",
        "EPOCHLAKE__LOG__POLL_SECONDS": "2",
    }
    found = configuration_of(said)
    assert (found.root, found.storage.options, found.log.poll_seconds) == ("/lake", {"aws_Key": "a"}, 2)
    assert variables_of(None, {}) == {}
    with pytest.raises(epochlake.InvalidRequest, match="'zoo', which is none"):
        variables_of(None, {"zoo": "zk"})


@pytest.mark.parametrize(("condition", "kept"), KEPT)
def test_conditions_stay_as_they_are_kept(condition: Condition, kept: dict[str, object]) -> None:
    assert stored(condition) == kept
    assert restored(kept) == condition


def test_a_cluster_is_open_once_for_all_who_look_at_it_and_closed_by_the_last(tmp_path: Path) -> None:
    configuration = epochlake.Configuration(root=str(tmp_path / "root"))
    followed = Followed()

    async def look() -> None:
        with pytest.raises(epochlake.NotInitialised):
            async with followed.cluster(configuration):
                pass
        epochlake.init_cluster(configuration)
        async with followed.cluster(configuration) as one:
            async with followed.cluster(configuration) as other:
                assert one is other
            one.require_open()
        with pytest.raises(epochlake.InvalidRequest, match="was closed"):
            one.require_open()

    asyncio.run(look())
    assert not followed._open


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('epochlake: away', file=sys.stderr); print('hint: wait', file=sys.stderr)", "away. wait"),
        ("print('epochlake: away'); print('hint: wait')", "away. wait"),
        ("""print('{"error": {"message": "away"}}', file=sys.stderr)""", "away"),
        ("print('{ no json', file=sys.stderr)", "{ no json"),
    ],
)
def test_a_program_says_why_it_has_failed(program: str, said: str) -> None:
    ran = Program(lambda line: None)
    code, _ = ran.run(
        [sys.executable, "-c", f"import os, sys; {program}; sys.exit(int(os.environ['CODE']))"], {"CODE": "75"}
    )
    assert (code, ran.said) == (75, said)


def test_a_process_that_is_made_while_the_others_are_told_to_end_ends_too() -> None:
    """The child blocks the signal at first, as one that is between fork and exec does; its parent is gone by then."""
    begun = threading.Event()
    ran = Program(lambda _: begun.set())
    ending = threading.Thread(target=lambda: (begun.wait(30), ran.end()))
    ending.start()
    late = "signal.signal(15, signal.SIG_IGN); print('begun', flush=True); time.sleep(1)"
    child = f"import signal, time; {late}; signal.signal(15, signal.SIG_DFL); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    code, _ = ran.run([sys.executable, "-c", program], {})
    ending.join()
    assert code == -15


def test_a_program_ends_with_its_children_when_it_is_told_to() -> None:
    lines: list[str] = []
    begun = threading.Event()

    def told(line: str) -> None:
        lines.append(line)
        begun.set()

    ran = Program(told)
    ending = threading.Thread(target=lambda: (begun.wait(30), ran.end()))
    ending.start()
    sleeps = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    program = f"import subprocess, sys; print('begun', flush=True); {sleeps}"
    code, printed = ran.run([sys.executable, "-c", program], {})
    ending.join()
    assert (code, printed, lines) == (-15, "begun", ["begun"])
