"""The demo, short: it holds on a cluster that is as it should be, and it fails when a row or a file is not."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from epochlake.jobs.administration.switches import pause_balancing
from epochlake.jobs.demo import flights
from epochlake.jobs.demo.checks import Check, examine
from epochlake.jobs.demo.command import DemoOptions, gathered, outcome, run, show
from epochlake.jobs.demo.report import DemoReport
from epochlake.jobs.demo.stage import RunningDemo
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.placement.tokens import tablet_label, tokens_of_label

from tests.support.storages import STORAGE

ROWS = 1400
MONTHS = 7


class Shown(NamedTuple):
    """A demo that was run: its exit code, its document, and the checks of the same cluster with something broken."""

    exit_code: int
    document: dict[str, Any]
    root: Path
    broken: dict[str, list[Check]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    broken: dict[str, list[Check]] = {}

    def break_and_mend(stage: RunningDemo) -> None:
        # What is lost and put back makes replicas smaller and larger: nothing is to be balanced meanwhile.
        pause_balancing(stage.cluster)
        stage.wait("that nothing moves", lambda now: not now.tablets.transitions, 60.0)
        for damage in (a_lost_row, a_misplaced_file, a_file_that_is_gone, a_file_on_a_minority):
            with damage(stage):
                broken[damage.__name__] = examine(gathered(stage))

    exit_code, document, root = played(tmp_path_factory, "--page", "demo.html", before_checks=break_and_mend)
    return Shown(exit_code, document, root, broken)


def played(
    tmp_path_factory: pytest.TempPathFactory,
    *words: str,
    before_checks: Callable[[RunningDemo], None] = lambda stage: None,
) -> tuple[int, dict[str, Any], Path]:
    """Run the demo; its exit code, its document, and where it was. Files that words name are beside it."""
    # Whether tablets are still on their way when a batch begins is a matter of time as well, where a process stands
    # still for seconds: that much may be tried again.
    for _ in range(3):
        root = tmp_path_factory.mktemp("demo") / "root"
        arguments = ["--root", str(root), "--rows", str(ROWS), "--months", str(MONTHS), "--output", "json"]
        arguments += [str(root.parent / word) if word.endswith(".html") else word for word in words]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exit_code = run(arguments, before_checks=before_checks)
        document = json.loads(out.getvalue())
        missed = {check["name"] for check in document.get("checks", []) if not check["holds"]}
        if not missed or not missed <= {"Growing while writing", "Rebuilding while writing"}:
            break
    return exit_code, document, root


@pytest.mark.timeout(1800)
def test_with_agents_nodes_join_by_themselves_and_files_go_from_agent_to_agent(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    exit_code, document, _ = played(tmp_path_factory, "--agents")
    assert (exit_code, document["ok"]) == (0, True), failing(document)
    checks = {check["name"]: check["figures"] for check in document["checks"]}
    assert len(checks) == 15
    assert [word for word in checks["Nodes joined by themselves"].split() if word.startswith("n")] == [
        "n2",
        "n3",
        "n4",
        "n5",
    ]
    assert "between 6 agents" in checks["Streaming from agent to agent"]
    commands = [ended["name"] for ended in document["processes"] if ended["exit_code"] == 0]
    assert {f"agent-n{number}" for number in range(1, 7)} <= {*commands}


def test_nodes_join_and_one_is_lost_under_a_writing_pipeline_and_every_check_holds(shown: Shown) -> None:
    assert (shown.exit_code, shown.document["ok"]) == (0, True), failing(shown.document)
    assert len(shown.document["checks"]) == 13
    assert sum(write["rows"] for write in shown.document["writes"]) == ROWS
    assert {back["level"]: back["checksum"]["rows"] for back in shown.document["read_back"]} == {
        "QUORUM": ROWS,
        "ALL": ROWS,
    }
    assert {node["node"] for node in shown.document["nodes"][-1]["holdings"]} == {"n1", "n2", "n4", "n5", "n6"}


def test_the_timeline_has_every_epoch_once_and_shows_tablets_moving_beside_batches(shown: Shown) -> None:
    stretches = shown.document["timeline"]
    epochs = [e for s in stretches if s["epochs"] for e in range(s["epochs"][0], s["epochs"][1] + 1)]
    assert epochs == list(range(1, shown.document["throughput"]["epochs"] + 1))
    said = [" ".join(s["cluster"]) for s in stretches]
    assert all(any(f"tablets to {node}" in what for what in said) for node in ("n4", "n5", "n6"))
    # That each node's tablets moved during a write, and not only beside one, is a check of the demo itself.
    assert any("tablets to" in " ".join(s["cluster"]) for s in stretches if s["batch"] is not None)


def test_what_it_prints_fits_a_terminal_and_has_no_line_that_ends_with_blanks(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    options = DemoOptions(shown.root, ROWS, MONTHS, keep=False, output="text")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        show(msgspec.convert(shown.document, DemoReport), options)
    printed = out.getvalue()
    assert "All 13 checks hold" in printed
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def test_its_page_shows_every_batch_and_every_request(shown: Shown) -> None:
    page = (shown.root.parent / "demo.html").read_text(encoding="utf-8")
    assert all(f"{write['name']}: {write['rows']:,} rows" in page for write in shown.document["writes"])
    assert all(f"join {node}" in page for node in ("n1", "n2", "n3", "n4", "n5"))
    assert "replace n6 for n3" in page
    assert page.count('class="plotly-graph-div"') == 3


def test_a_page_that_cannot_be_written_is_said_before_the_demo_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    for place in (tmp_path, tmp_path / "nowhere" / "demo.html"):
        assert run(["--root", str(root), "--page", str(place)]) == 2
        assert "Name a file in a directory that is there" in capsys.readouterr().err
    assert not root.exists()


def test_a_demo_that_holds_leaves_nothing_behind(shown: Shown) -> None:
    assert not shown.root.exists()
    assert all(process["exit_code"] == 0 for process in shown.document["processes"])
    assert not processes_that_name(shown.root)


@pytest.mark.parametrize(
    ("damage", "found_by"),
    [
        ("a_lost_row", {"Read back at QUORUM", "Read back at ALL"}),
        ("a_misplaced_file", {"Rows where they belong"}),
        ("a_file_that_is_gone", {"Stored bytes"}),
        ("a_file_on_a_minority", {"Replicas agree"}),
    ],
)
def test_what_is_broken_is_found_and_makes_the_exit_code_that_of_an_invariant(
    shown: Shown, damage: str, found_by: set[str]
) -> None:
    checks = shown.broken[damage]
    assert found_by <= {check.name for check in checks if not check.holds}
    assert all(check.findings for check in checks if not check.holds)
    assert outcome(checks) == 4


def test_ctrl_c_ends_every_process_and_says_so(tmp_path: Path) -> None:
    root = tmp_path / "interrupted"
    demo = subprocess.Popen(
        [sys.executable, "-m", "epochlake.jobs.demo", "--root", str(root)], stderr=subprocess.PIPE, text=True
    )
    assert demo.stderr is not None
    assert any("starting Spark" in line for line in demo.stderr)
    assert processes_that_name(root) - {demo.pid}
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in errors
    assert not processes_that_name(root)


@contextlib.contextmanager
def a_lost_row(stage: RunningDemo) -> Iterator[None]:
    """A file of rows is on no replica any more."""
    file, replicas = some_file(stage)
    for replica in replicas:
        change(replica, "lost", 1, removes=[file])
    yield
    for replica in replicas:
        change(replica, "lost", 2, adds=[file])


@contextlib.contextmanager
def a_misplaced_file(stage: RunningDemo) -> Iterator[None]:
    """A replica table has a file of a tablet that it is no replica of; the rows are whole."""
    file, replicas = some_file(stage)
    metadata = stage.cluster.metadata
    elsewhere = next(
        address_of(STORAGE, metadata, metadata.table(flights.TABLE), node.volumes[0].volume_id)
        for node in metadata.directory.nodes.values()
        if node.state == "normal" and node.volumes[0].volume_id not in {r.volume_id for r in replicas}
    )
    target = Path(elsewhere.uri, file.path)
    target.parent.mkdir(exist_ok=True)
    shutil.copy(Path(replicas[0].uri, file.path), target)
    change(elsewhere, "stray", 1, adds=[file])
    yield
    change(elsewhere, "stray", 2, removes=[file])


@contextlib.contextmanager
def a_file_that_is_gone(stage: RunningDemo) -> Iterator[None]:
    """A replica's table names a file that is not on its disk."""
    file, replicas = some_file(stage)
    path = Path(replicas[-1].uri, file.path)
    path.rename(path.with_suffix(".away"))
    yield
    path.with_suffix(".away").rename(path)


@contextlib.contextmanager
def a_file_on_a_minority(stage: RunningDemo) -> Iterator[None]:
    """Only one replica still has a file."""
    file, replicas = some_file(stage)
    for replica in replicas[1:]:
        change(replica, "minority", 1, removes=[file])
    yield
    for replica in replicas[1:]:
        change(replica, "minority", 2, adds=[file])


def some_file(stage: RunningDemo) -> tuple[DataFile, list[ReplicaAddress]]:
    """A data file of one tablet, and its replicas: all of them have it whole.

    Few rows share a file for some tablets, and a replica that came later has a piece of that.
    """
    metadata = stage.cluster.catch_up()
    table = metadata.table(flights.TABLE)
    tablet_map = metadata.tablets.maps[table.table_id]
    for tablet in range(tablet_map.count):
        replicas = [address_of(STORAGE, metadata, table, volume) for volume in tablet_map.replicas(tablet)]
        low, high = tokens_of_label(tablet_label(tablet, tablet_map.count))
        held = [{file.path: file for file in open_snapshot(replica).within(low, high)} for replica in replicas]
        for path, file in held[0].items():
            first, last = file.extent
            if low <= first and last <= high and all(path in files for files in held):
                return file, replicas
    raise AssertionError("each file is of several tablets, or some replica has a piece of it only")


def change(
    replica: ReplicaAddress, name: str, version: int, adds: list[DataFile] | None = None, removes: Any = ()
) -> None:
    epoch = open_snapshot(replica).fence
    made = commit_files(replica, adds or [], removes=removes, epoch=epoch, app_id=name, app_version=version)
    assert isinstance(made, Acknowledged), msgspec.to_builtins(made)


def failing(document: dict[str, Any]) -> list[Any]:
    return [check for check in document.get("checks", [document]) if not check.get("holds")]


def processes_that_name(root: Path) -> set[int]:
    """Processes with the directory in their command line; those that are about to end get a moment."""
    for _ in range(50):
        found = {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and str(root) in command_of(entry)}
        if not found - {os.getpid()}:
            return set()
        time.sleep(0.05)
    return found - {os.getpid()}


def command_of(process: str) -> str:
    try:
        return Path("/proc", process, "cmdline").read_text(errors="replace")
    except OSError:
        return ""
