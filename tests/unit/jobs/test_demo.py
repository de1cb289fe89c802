"""The demo's parts by themselves: its directory, its schedule, its checksum, its processes, its options."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from epochlake.jobs.agent.documents import AgentState, LogSeen
from epochlake.jobs.agent.task_messages import TasksSeen
from epochlake.jobs.demo.checks import CHECKS, CHECKS_OF_AGENTS, Evidence, processes
from epochlake.jobs.demo.checksum import of_source
from epochlake.jobs.demo.children import Child, ChildFailed, Ended, environment
from epochlake.jobs.demo.choreography import SHORTEST, schedule
from epochlake.jobs.demo.command import run
from epochlake.jobs.demo.directory import DemoRunning, claimed
from epochlake.jobs.demo.flights import COLUMNS, PARTS, as_arrow, part_of
from epochlake.jobs.demo.story import CoordinatorTotals, Story
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.files import DataFile, cut_id, directory_of
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import range_label

from tests.support.clusters import FOUR, placed, without_zookeeper


def flights(count: int = 5) -> pd.DataFrame:
    """Rows as the source's file has them: gaps make whole numbers floats, times are texts."""
    rows = [
        {column.name: ("AA" if column.type == "string" else float(number + 1)) for column in COLUMNS}
        | {
            "flight": number,
            "dep_delay": np.nan if number == 2 else -3.0,
            "time_hour": f"2013-01-0{number + 1}T10:00:00Z",
        }
        for number in range(count)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("batches", range(SHORTEST, 13))
def test_every_event_of_the_demo_has_a_batch_and_what_moves_after_it_has_the_next_one(batches: int) -> None:
    plan = schedule(batches)
    assert 1 < plan.fourth < plan.fifth < plan.loss - 1
    assert plan.loss < plan.replacement < batches


@pytest.mark.parametrize("rows", [1, 7, PARTS, 200, 27_004])
def test_the_parts_of_a_month_are_all_of_it_each_row_once(rows: int) -> None:
    months = pd.DataFrame({"month": [1, 2] * rows, "flight": range(2 * rows)})
    parts = [part_of(months, 2, part, part + 1) for part in range(PARTS)]
    assert [flight for part in parts for flight in part["flight"]] == list(range(1, 2 * rows, 2))
    assert part_of(months, 2, 0, PARTS)["flight"].tolist() == list(range(1, 2 * rows, 2))


def test_the_checksum_does_not_depend_on_the_order_of_rows(seed: int) -> None:
    rows = flights()
    assert of_source(rows.sample(frac=1, random_state=random.Random(seed).randrange(2**32))) == of_source(rows)


@pytest.mark.parametrize("column", [column.name for column in COLUMNS])
def test_the_checksum_sees_a_change_of_any_column(column: str) -> None:
    rows = flights()
    changed = rows.copy()
    changed.loc[1, column] = rows.loc[0, column] if column in ("flight", "time_hour") else np.nan
    if column not in ("flight", "time_hour", "carrier", "tailnum", "origin", "dest"):
        changed.loc[1, column] = 77.0
    assert of_source(changed) != of_source(rows)


def test_the_checksum_sees_a_row_that_is_missing_and_one_that_is_doubled() -> None:
    rows = flights()
    doubled = pd.concat([rows.iloc[:4], rows.iloc[:1]])
    assert len({of_source(rows).digest, of_source(rows.iloc[:4]).digest, of_source(doubled).digest}) == 3


def test_a_value_that_does_not_fit_its_column_is_refused_not_rounded() -> None:
    rows = flights()
    rows.loc[0, "dep_delay"] = 1.5
    with pytest.raises(pa.ArrowInvalid):
        as_arrow(rows)


def test_a_directory_that_no_demo_has_made_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidRequest, match=r"thesis\.tex"), claimed(tmp_path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_earlier_demo_is_replaced_unless_something_else_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    with claimed(root) as place:
        place.volume_of("n1").mkdir(parents=True)
    with claimed(root) as place:
        assert not place.storage_of("n1").exists()
    (root / "notes.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"notes\.txt"), claimed(root):
        pass
    assert (root / "notes.txt").read_text() == "mine"


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidRequest, match="directory of its own"), claimed(tmp_path / "link"):
        pass


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    with claimed(tmp_path / "demo"), pytest.raises(DemoRunning), claimed(tmp_path / "demo"):
        pass


def test_what_a_demo_has_made_is_removed_and_a_lost_node_has_nothing_left(tmp_path: Path) -> None:
    with claimed(tmp_path / "demo") as place:
        place.volume_of("n1").mkdir(parents=True)
        place.lose("n1")
        assert list((place.directory / "nodes").iterdir()) == []
        place.remove()
    assert not (tmp_path / "demo").exists()


def test_a_process_that_fails_is_told_with_its_code_and_its_last_words(tmp_path: Path) -> None:
    child = Child("writer", ["timeit", "-n1", "-r1", "raise SystemExit('out of flights')"], tmp_path / "writer.txt")
    try:
        with pytest.raises(ChildFailed, match=r"(?s)the writer ended before it had answered.*exit code 1.*out of fl"):
            child.receive(30)
    finally:
        child.stop()


def test_a_process_that_does_not_answer_is_told_and_can_be_stopped(tmp_path: Path) -> None:
    child = Child("writer", ["timeit", "-n1", "-r1", "import time; time.sleep(60)"], tmp_path / "writer.txt")
    with pytest.raises(ChildFailed, match="did not answer within 0 s"):
        child.receive(0.2)
    child.stop()
    assert not child.running


def test_a_failed_process_fails_the_demo() -> None:
    story = Story(
        0.0, of_source(flights()), batches=1, tablets=1, replication=3, streamed=CoordinatorTotals(0, 0, 0, 0)
    )
    assert processes(story).holds
    story.processes.append(Ended("coordinator", "epochlake coordinator run", 1, "coordinator.txt"))
    assert not processes(story).holds


def state_of_agent(name: str, **more: int) -> AgentState:
    log = LogSeen(1, "", 1, "followed", "", 0.0)
    return AgentState(
        agent_id=name,
        name=name,
        address="",
        tag=None,
        protocol=1,
        product_version="",
        discovered=None,
        waits="",
        join=None,
        log=log,
        volumes=(),
        problems=(),
        tasks=TasksSeen(**more),
    )


@pytest.mark.parametrize("rows", [0, 1])
def test_a_piece_on_one_replica_of_three_fails_a_demo_unless_it_has_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    without_zookeeper(monkeypatch)
    lake = placed(tmp_path, FOUR, "ABC")
    name = cut_id("58919509-22ee-4229-9daa-cbf55ea12a62", 0, 9)
    path = f"{directory_of(range_label(0, 9))}/{name}.parquet"
    piece = DataFile(name, "0-0", path, 100, rows, 5, 5, 1, 2, False)
    stored = Path(lake.address("A").uri, path)
    stored.parent.mkdir(parents=True)
    stored.write_bytes(bytes(piece.size))
    made = commit_files(lake.address("A"), [piece], epoch=lake.metadata.epoch, app_id="cut", app_version=1)
    assert isinstance(made, Acknowledged)
    check = dict(CHECKS)["Replicas agree"](Evidence(None, None, lake.cluster, []))  # type: ignore[arg-type]
    assert (check.holds, len(check.findings)) == (not rows, rows)


def test_files_that_do_not_go_from_agent_to_agent_fail_a_demo_with_agents(tmp_path: Path) -> None:
    [check] = [check for name, check in CHECKS_OF_AGENTS if name == "Streaming from agent to agent"]
    there = {node: state_of_agent(node, done=2, received=100) for node in ("n4", "n5", "n6")}
    giving = {"n1": state_of_agent("n1", served=300)}
    evidence = Evidence(None, None, None, [], {**giving, **there})  # type: ignore[arg-type]
    assert check(evidence).holds
    for broken in (
        {**giving, **there, "n5": state_of_agent("n5", undone=3)},
        {**giving, "n4": there["n4"], "n6": there["n6"]},
        {**there, "n1": state_of_agent("n1", served=299)},
        "an agent does not answer",
    ):
        assert not check(msgspec.structs.replace(evidence, agents=broken)).holds


def test_the_processes_of_a_demo_do_not_take_over_anybodys_configuration() -> None:
    given = {"EPOCHLAKE__ROOT": "/mine", "EPOCHLAKE_CONF": "mine.toml", "SPARK_REMOTE": "sc://mine", "PATH": "/bin"}
    assert environment(given) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "options", [["--months", "3"], ["--months", "13"], ["--rows", "3"], ["--output", "xml"], ["-x"]]
)
def test_options_that_cannot_be_meant_are_one_line_and_exit_code_2(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options) == 2
    assert capsys.readouterr().err.count("\n") == 1
