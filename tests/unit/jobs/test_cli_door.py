"""What a stranger meets first: versions, paths, variables, cut lists, roots that have lost something, Ctrl-C."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs.cli import changing
from epochlake.jobs.cli.session import Session
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.committing.committer import Committed

from tests.support.command_line import CommandLine

REPOSITORY = Path(__file__).parents[3]
NODE = ["--datacenter", "dc1", "--rack", "r1", "--volume"]


def test_the_version_is_the_one_of_the_package(empty: CommandLine) -> None:
    package = configparser.ConfigParser()
    package.read(REPOSITORY / "setup.cfg")
    assert package["metadata"]["version"] == "attr: epochlake.placement.version.PRODUCT_VERSION"
    result = empty.text("--version")
    assert (result.code, result.out) == (0, f"epochlake {importlib.metadata.version('epochlake')}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "", "status"], "--root is empty"),
        (["--root", "  ", "init"], "--root is empty"),
        (["--root", "~no-such-user/lake", "init"], "~no-such-user/lake names a home directory"),
        (["--conf", "~no-such-user/lake.toml", "status"], "~no-such-user/lake.toml names a home directory"),
    ],
)
def test_a_path_that_cannot_be_meant_is_refused(
    empty: CommandLine, words: list[str], said: str, tmp_path: Path
) -> None:
    result = empty.text(*words)
    assert (result.code, said in result.error_text) == (2, True), result.err
    assert not list(tmp_path.iterdir())


def test_a_path_below_the_home_directory_is_kept_whole(
    grown: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    shutil.copytree(grown.root, home / "lake")
    assert grown.text("--root", "~/lake", "log", "list").code == 0
    grown.done("node", "add", "n4", *NODE, "~/disks/n4,1GB")
    assert grown.done("node", "show", "n4")["node"]["volumes"][0]["uri"] == str(home / "disks" / "n4")
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("EPOCHLAKE_ROOT", "EPOCHLAKE__ROOT"),
        ("EPOCHLAKE_LOG_COMPACT_EVERY", "EPOCHLAKE__LOG__COMPACT_EVERY"),
        ("EPOCHLAKE_ZOOKEEPER__CONNECT", "EPOCHLAKE__ZOOKEEPER__CONNECT"),
    ],
)
def test_a_variable_that_lacks_an_underscore_is_not_ignored(
    unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "7")
    if variable != "EPOCHLAKE_ROOT":
        result = unchanged.text("status")
        assert (result.code, f"{variable} is not read" in result.error_text, meant in result.error_text) == (2, 1, 1)
    monkeypatch.setenv(meant, "7")
    assert unchanged.text("config", "show").code == 0


def test_the_root_s_variable_with_one_underscore_is_refused_unless_the_root_is_named(
    unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from epochlake.jobs.cli.main import main

    monkeypatch.setenv("EPOCHLAKE_ROOT", "elsewhere")
    assert main(["status"]) == 2
    assert "did you mean EPOCHLAKE__ROOT?" in capsys.readouterr().err
    assert unchanged.text("log", "list").code == 0


@pytest.mark.parametrize("level", ["each_quorum", "Each-Quorum", "EACH QUORUM"])
def test_levels_are_spelt_alike_in_the_configuration(
    unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("EPOCHLAKE__PIPELINE__CONSISTENCY", level)
    monkeypatch.setenv("EPOCHLAKE__COORDINATOR__BARRIER_LEVEL", level)
    rows = {(row["section"], row["key"]): row["value"] for row in unchanged.done("config", "show")}
    assert {rows["pipeline", "consistency"], rows["coordinator", "barrier_level"]} == {"EACH_QUORUM"}


def test_a_list_that_is_cut_says_so(unchanged: CommandLine) -> None:
    epochs = len(unchanged.log())
    assert [row["left_out"] for row in unchanged.json("log", "list", "--limit", "0").json] == [0] * epochs
    for words in (["log", "list", "--limit", "2"], ["log", "list", "--limit", "2", "--first", "1"]):
        cut = unchanged.json(*words)
        assert [row["epoch"] for row in cut.json] == [epochs - 1, epochs]
        assert [row["left_out"] for row in cut.json] == [epochs - 2] * 2
        assert cut.err == f"epochlake: {epochs - 2} older epochs are left out: --limit 0 lists all\n"
        assert unchanged.text(*words).out.startswith(f"{epochs - 2} older epochs are left out: --limit 0 lists all\n")
    requests = unchanged.json("request", "list", "--all", "--limit", "1")
    assert [row["left_out"] for row in requests.json] == [2]
    assert "2 older requests are left out" in unchanged.text("request", "list", "--all", "--limit", "1").out


def test_a_dry_run_of_init_goes_where_init_goes(empty: CommandLine) -> None:
    (empty.root / "log").mkdir(parents=True)
    assert empty.done("init", "--dry-run")["event"] == "Initialise"
    assert list((empty.root / "log").iterdir()) == []
    assert empty.done("init")["epoch"] == 1


@pytest.mark.parametrize("lost", ["log", "log/_delta_log"])
def test_a_root_that_has_lost_its_log_is_never_told_to_begin_another_one(grown: CommandLine, lost: str) -> None:
    (grown.root / "snapshots").mkdir(exist_ok=True)
    (grown.root / "snapshots" / "5.parquet").write_bytes(b"what a cluster has left")
    shutil.rmtree(grown.root / lost)
    for words in (["status"], ["node", "list"], ["init"], ["init", "--dry-run"], ["balance", "pause"]):
        result = grown.text(*words)
        assert (result.code, "backup" in result.error_text) == (1, True), result.err
        assert "do not begin another" in result.error_text
        assert "init` first" not in result.error_text
    assert not (grown.root / "log" / "_delta_log").exists()


@pytest.mark.parametrize("left", ["snapshots", "batches", "compactions", "damaged", "leases", "receipts"])
def test_no_cluster_begins_on_what_another_one_has_left(empty: CommandLine, left: str) -> None:
    place = empty.root / left / "t-1"
    place.mkdir(parents=True)
    (place / "something").write_bytes(b"")
    for words in (["init"], ["init", "--dry-run"]):
        result = empty.text(*words)
        assert (result.code, left in result.error_text) == (1, True), result.err
    assert not (empty.root / "log").exists()


@pytest.mark.parametrize("wrong", ["a scheme", "a file", "a file above", "a commit"])
def test_what_does_not_pass_by_itself_is_not_worth_retrying(grown: CommandLine, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "file").write_text("no directory")
    if wrong == "a commit":
        newest = max((grown.root / "log" / "_delta_log").glob("*.json"))
        newest.write_text("garbage")
    roots = {"a scheme": "nowhere://bucket/lake", "a file": tmp_path / "file", "a file above": tmp_path / "file" / "x"}
    for words in (["status"], ["log", "list"], ["balance", "pause"]):
        result = grown.text("--root", roots.get(wrong, grown.root), *words)
        assert result.code in (1, 2, 4), result.err
        assert not any(word in result.err for word in ("retry", "Errno", "Arrow", "Delta")), result.err


def test_removing_a_node_that_is_needed_points_to_replacing_it(unchanged: CommandLine) -> None:
    for words in (["node", "remove", "n1"], ["node", "remove", "n1", "--dry-run"]):
        result = unchanged.text(*words)
        assert (result.code, "`epochlake node replace n1 NEW --volume …`" in result.error_text) == (3, True), result.err


# --- Ctrl-C -----------------------------------------------------------------------------------------------------


def interrupting(commit: Callable[..., Committed], when: str) -> Callable[..., Committed]:
    def interrupted(*args: Any, **kwargs: Any) -> Committed:
        if when == "after":
            commit(*args, **kwargs)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_ctrl_c_during_a_commit_says_whether_the_log_has_it(
    grown: CommandLine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(Cluster, "commit", interrupting(Cluster.commit, when))
    result = grown.text("balance", "pause", "--request-id", "mine")
    assert result.code == 130
    epoch = len(grown.log())
    if when == "after":
        said = f"epochlake: interrupted, but the change was committed: it is epoch {epoch}, request mine"
    else:
        said = (
            "epochlake: interrupted; the change is not in the log. To be sure run the command again with "
            "--request-id mine: it is committed at most once"
        )
    assert result.error_text == said
    structured = grown.json("balance", "pause", "--request-id", "mine")
    assert structured.code == 130
    assert (structured.error["type"], structured.error["request_id"]) == ("Interrupted", "mine")


@pytest.mark.parametrize("moment", ["while it is told", "while the cluster is closed"])
def test_a_ctrl_c_after_a_commit_never_says_that_nothing_was_committed(
    grown: CommandLine, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if moment == "while it is told":
        monkeypatch.setattr(changing, "changed", interrupted)
    else:
        monkeypatch.setattr(Session, "close", interrupted)
    result = grown.text("balance", "pause", "--request-id", "mine")
    epoch = len(grown.log())
    assert result.code == 130
    assert result.err.endswith(f"interrupted, but the change was committed: it is epoch {epoch}, request mine\n")
    if moment == "while the cluster is closed":
        # The next command of the same process has committed nothing.
        assert grown.text("status").err == "epochlake: interrupted; nothing was committed\n"


def test_a_ctrl_c_before_anything_is_committed_says_so(unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "__init__", interrupted)
    result = unchanged.text("status")
    assert (result.code, result.error_text) == (130, "epochlake: interrupted; nothing was committed")


INTERRUPTED_WHILE_IMPORTING = """
import builtins, os, signal, sys
real = builtins.__import__
def interrupting(name, *rest):
    if name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest)
builtins.__import__ = interrupting
from epochlake.jobs.cli.entry import run
run()
"""


@pytest.mark.parametrize("module", ["epochlake.jobs.cli.main", "msgspec", "typer", "numpy", "deltalake"])
def test_a_ctrl_c_in_the_first_second_is_one_line(tmp_path: Path, module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING, module], capture_output=True, text=True, cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (130, "epochlake: interrupted; nothing was committed\n")


def test_a_ctrl_c_in_the_first_second_is_a_document_where_one_is_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING, "typer", "--output", "json", "status"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert json.loads(ended.stderr) == {
        "error": {"type": "Interrupted", "message": "interrupted; nothing was committed", "exit_code": 130}
    }
